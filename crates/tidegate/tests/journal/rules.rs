//! Rules, and changing them while clients work.

use tidegate_testkit::{Frames, Signal};

use crate::kept::{Kept, outcomes, queries};

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
    fn the_first_rule_that_matches_decides(fixture) {
        let table = fixture.own_table("n int");
        let kept = Kept::new(fixture, "size = 1\nuser = \"postgres\"\n", RULES);
        let mut monitor = kept.gateway.startup("postgres").user("monitor").connect();
        assert_eq!(monitor.query("select 1/0").code(), "22012");
        let mut client = kept.gateway.client("postgres");
        client.ok("select 'fast'");
        client.ok("select pg_sleep(0.06)");
        client.ok("begin");
        client.ok(&format!("insert into {table} values (1)"));
        assert_eq!(client.query("select 2/0").code(), "22012");
        client.ok("rollback");
        drop((monitor, client));
        let entries = kept.end();
        let texts: Vec<_> = outcomes(&entries).into_iter().map(|(text, ..)| text).collect();
        let insert = format!("insert into {table} values (1)");
        assert_eq!(texts, ["select pg_sleep(0.06)", &insert, "select 2/0"]);
    }

    /// What the gateway ends has failed as well as what the server refuses.
    fn a_query_that_takes_too_long_is_an_error(fixture) {
        let keys = "[[journal.rules]]\nerrors = true\n[[journal.rules]]\naction = \"skip\"\n[timeouts]\nquery = \"100ms\"\n";
        let kept = Kept::new(fixture, "size = 1\n", keys);
        let mut client = kept.gateway.client("postgres");
        client.ok("select 'fast'");
        client.send(&Frames::new().query("select pg_sleep(60)"));
        client.expect("E:57014");
        let entries = kept.end();
        let [query] = &*queries(&entries) else { panic!("{entries:?}") };
        assert_eq!((query.sqlstate.as_deref(), query.reason.as_deref()), (Some("57014"), Some("query timeout")));
    }

    fn a_reload_takes_new_rules_and_loses_nothing(fixture) {
        let mut kept = Kept::new(fixture, "size = 2\n", "");
        let stop = std::sync::atomic::AtomicBool::new(false);
        let address = kept.gateway.startup("postgres");
        let asked = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut client = address.connect();
                let mut asked = 0_usize;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.ok(&format!("select {asked}"));
                    asked += 1;
                }
                asked
            });
            for form in ["normalised", "text", "normalised"] {
                kept.gateway.rewrite("journal.statement", form);
                kept.gateway.signal(Signal::HUP);
                tidegate_testkit::eventually("it is in force", || {
                    let rows = kept.gateway.show("CONFIG");
                    rows.iter().any(|row| row["key"] == "journal.statement" && row["value"] == form)
                });
            }
            kept.when("the new form is written", |entries| {
                queries(entries).last().is_some_and(|entry| entry.statement.as_deref() == Some("select ?"))
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            worker.join().expect("the client is served")
        });
        let entries = kept.end();
        assert_eq!(queries(&entries).len(), asked);
    }
}
