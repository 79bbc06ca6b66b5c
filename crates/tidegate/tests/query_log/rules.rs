//! Rules of the query log, and reloads of its settings.

use tidegate_testkit::{Frames, Signal, on_each_postgres};

use crate::logging_gateway::{LoggingGateway, outcomes, queries};

const RULES: &str = r#"
[[journal.rules]]
action = "skip"
users = "monitor"
[[journal.rules]]
errors = true
[[journal.rules]]
min_duration = "50ms"
[[journal.rules]]
action = "skip"
statements = ["select", "transaction"]
"#;

on_each_postgres! {
    fn first_matching_rule_applies(fixture) {
        let table = fixture.create_table("n int");
        let logged = LoggingGateway::new(fixture, "size = 1\nuser = \"postgres\"\n", RULES);
        let mut monitor = logged.gateway.startup("postgres").user("monitor").connect();
        assert_eq!(monitor.query("select 1/0").code(), "22012");
        let mut client = logged.gateway.client("postgres");
        client.ok("select 'fast'");
        client.ok("select pg_sleep(0.06)");
        client.ok("begin");
        client.ok(&format!("insert into {table} values (1)"));
        assert_eq!(client.query("select 2/0").code(), "22012");
        client.ok("rollback");
        drop((monitor, client));
        let entries = logged.end();
        let texts: Vec<_> = outcomes(&entries).into_iter().map(|(text, ..)| text).collect();
        let insert = format!("insert into {table} values (1)");
        assert_eq!(texts, ["select pg_sleep(0.06)", &insert, "select 2/0"]);
    }

    /// A query that the gateway ends is an error, like a query that the server rejects.
    fn query_timeout_matches_a_rule_for_errors(fixture) {
        let keys = "[[journal.rules]]\nerrors = true\n[[journal.rules]]\naction = \"skip\"\n[timeouts]\nquery = \"100ms\"\n";
        let logged = LoggingGateway::new(fixture, "size = 1\n", keys);
        let mut client = logged.gateway.client("postgres");
        client.ok("select 'fast'");
        client.send(&Frames::new().query("select pg_sleep(60)"));
        client.expect("E:57014");
        let entries = logged.end();
        let [query] = &*queries(&entries) else { panic!("{entries:?}") };
        assert_eq!((query.sqlstate.as_deref(), query.reason.as_deref()), (Some("57014"), Some("query timeout")));
    }

    fn reload_applies_settings_and_loses_no_record(fixture) {
        let mut logged = LoggingGateway::new(fixture, "size = 2\n", "");
        let stop = std::sync::atomic::AtomicBool::new(false);
        let address = logged.gateway.startup("postgres");
        let queries_run = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut client = address.connect();
                let mut queries_run = 0_usize;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.ok(&format!("select {queries_run}"));
                    queries_run += 1;
                }
                queries_run
            });
            for form in ["normalised", "text", "normalised"] {
                logged.gateway.set_config("journal.statement", form);
                logged.gateway.signal(Signal::HUP);
                tidegate_testkit::eventually("the setting is applied", || {
                    let rows = logged.gateway.show("CONFIG");
                    rows.iter().any(|row| row["key"] == "journal.statement" && row["value"] == form)
                });
            }
            logged.wait_for("a record in the new form is written", |entries| {
                queries(entries).last().is_some_and(|entry| entry.statement.as_deref() == Some("select ?"))
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            worker.join().expect("the client is served")
        });
        let entries = logged.end();
        assert_eq!(queries(&entries).len(), queries_run);
    }
}
