//! What a session leaves behind, and who may see it.

use tidegate_testkit::{FaultyServer, Fixture, Frames, eventually, reply};

use crate::gateway_before;

/// The statements that need a session of their own, each with what PostgreSQL calls the state.
const PINNING: &[(&str, &str)] = &[
    ("listen", "listen some_channel"),
    ("cursor", "begin; declare held cursor with hold for select generate_series(1, 3); commit"),
    ("lock", "select pg_advisory_lock(LOCK)"),
    ("temporary table", "create temporary table scratch (n int)"),
    ("temp table", "CREATE TEMP TABLE scratch AS SELECT 1 AS n"),
    ("prepare", "prepare plan as select 60"),
];

/// A number for an advisory lock that no other test uses.
fn lock_number(fixture: &Fixture) -> String {
    let name = fixture.name("9");
    format!("{}{:03}", fixture.server.major(), name.trim_start_matches("9_").parse::<u32>().unwrap_or(0))
}

on_each_postgres! {
    fn edge_59_listen_keeps_its_server_and_hears(fixture) {
        let channel = fixture.name("channel");
        let gateway = fixture.gateway("size = 2\n");
        let mut listener = gateway.client("postgres");
        let backend = listener.backend();
        listener.ok(&format!("listen {channel}"));
        let mut other = gateway.client("postgres");
        other.ok(&format!("notify {channel}, 'hello'"));
        let heard = listener.expect(&format!("A:{channel}"));
        assert_eq!(heard[0].notification().2, "hello");
        // Its own notification comes between CommandComplete and ReadyForQuery, as from Postgres.
        listener.send(&Frames::new().query(&format!("notify {channel}, 'self'")));
        listener.expect(&format!("C:NOTIFY A:{channel} Z:I"));
        assert_eq!(listener.backend(), backend);
        assert_ne!(other.backend(), listener.backend());
    }

    fn edge_59_nothing_is_heard_after_the_listener_left(fixture) {
        let channel = fixture.name("channel");
        let gateway = fixture.gateway("size = 1\n");
        let mut listener = gateway.client("postgres");
        listener.ok(&format!("listen {channel}"));
        listener.vanish(false);
        let mut next = gateway.client("postgres");
        assert_eq!(next.value("select count(*) from pg_listening_channels()"), "0");
        fixture.server.sql(&format!("notify {channel}"));
        next.send(&Frames::new().query("select 1"));
        next.expect("T D:1 C:SELECT_1 Z:I");
    }

    fn edge_60_state_that_needs_a_session_keeps_its_server(fixture) {
        for (state, sql) in PINNING {
            let sql = sql.replace("LOCK", &lock_number(fixture));
            let gateway = fixture.gateway("size = 2\n");
            let mut owner = gateway.client("postgres");
            let backend = owner.backend();
            owner.ok(&sql);
            let mut others: Vec<_> = (0..3).map(|_| gateway.client("postgres")).collect();
            for other in &mut others {
                assert_ne!(other.backend(), backend, "{state}");
            }
            assert_eq!(owner.backend(), backend, "{state}");
        }
    }

    fn edge_60_what_is_behind_discard_all_in_a_pipeline_keeps_its_server(fixture) {
        for behind in [
            Frames::new().query("discard all").query("listen some_channel").query("select 1"),
            Frames::new().once("discard all").once("listen some_channel").once("select 1").sync(),
            Frames::new().query("discard all").query("listen some_channel").query("begin; discard all").query("rollback"),
        ] {
            let gateway = fixture.gateway("size = 2\n");
            let mut owner = gateway.client("postgres");
            let backend = owner.backend();
            owner.send(&behind.query("select 'the end'"));
            while owner.until_ready().rows.first().is_none_or(|row| row[0] != "the end") {}
            assert_ne!(gateway.client("postgres").backend(), backend);
            assert_eq!(owner.value("select count(*) from pg_listening_channels()"), "1");
            owner.ok("discard all");
            let mut holder = gateway.client("postgres");
            holder.ok("begin");
            assert_eq!(gateway.client("postgres").backend(), owner.backend(), "nothing is left of it");
        }
    }

    /// Texts in which it takes a close look to find what they leave behind. Each does, as Postgres itself says.
    fn edge_60_state_that_is_hard_to_see_keeps_its_server(fixture) {
        let hidden = [
            "select 1 -- a\r; listen some_channel",
            "select 1 as a$b$; listen some_channel; select 1 as a$b$",
            "select $\u{e9}$ ' $\u{e9}$; listen some_channel; select '1'",
            r"select name'\'; listen some_channel; select '1'",
            "select E'a'\n'\\'' ; listen some_channel; select '1'",
            "update pg_settings set setting = '7MB' where name = 'work_mem'",
            r#"select U&"set\005fconfig"('work_mem', '7MB', false)"#,
            "select '--' as n into temp scratch",
            "do $$ begin listen some_channel; end $$",
            "begin; set local search_path = pg_temp; create table scratch (); commit",
        ];
        let left = "select (select count(*) from pg_listening_channels()) + (select count(*) from pg_class
            where relname = 'scratch' and pg_table_is_visible(oid))
            + (select count(*) from pg_settings where name = 'work_mem' and setting = '7168')";
        let escaped = r"select 'a\''; listen some_channel; select '1'";
        for (sql, strings) in hidden.map(|sql| (sql, "on")).into_iter().chain([(escaped, "off")]) {
            let strings = format!("set standard_conforming_strings = {strings}");
            let mut direct = fixture.server.startup().connect();
            direct.ok(&strings);
            direct.ok(sql);
            assert_eq!(direct.value(left), "1", "{sql}");
            let gateway = fixture.gateway("size = 2\n");
            let mut owner = gateway.client("postgres");
            owner.ok(&strings);
            let backend = owner.backend();
            owner.ok(sql);
            let mut other = gateway.client("postgres");
            assert_ne!(other.backend(), backend, "{sql}");
            assert_eq!(other.value(left), "0", "{sql}");
            assert_eq!(owner.value(left), "1", "{sql}");
        }
    }

    fn edge_60_what_a_search_path_makes_temporary_keeps_its_server(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let by_set = gateway.client("postgres");
        let by_login = gateway.startup("postgres").parameter("options", "-c search_path=pg_temp").connect();
        for (mut owner, set) in [(by_set, "set search_path = pg_temp, public"), (by_login, "select 1")] {
            owner.ok(set);
            owner.ok("create table scratch ()");
            let backend = owner.backend();
            let mut other = gateway.client("postgres");
            assert_ne!(other.backend(), backend);
            assert_eq!(other.value("select count(*) from pg_class where relname = 'scratch' and pg_table_is_visible(oid)"), "0");
        }
    }

    /// A server that has had a temporary table knows its schema by a number, which others may see.
    fn edge_60_the_schema_of_temporary_tables_by_its_number(fixture) {
        for (open, close) in [("", ""), ("\"", "\"")] {
            let gateway = fixture.gateway("size = 2\n");
            let mut former = gateway.client("postgres");
            former.ok("create temporary table scratch (n int)");
            former.send(&Frames::new().terminate());
            former.expect_eof();
            gateway.wait_for_pool("postgres", "sv_idle", 1);
            let mut owner = gateway.client("postgres");
            let backend = owner.backend();
            let schema = owner.value("select nspname from pg_namespace where oid = pg_my_temp_schema()");
            owner.ok(&format!("create table {open}{schema}{close}.scratch ()"));
            let mut other = gateway.client("postgres");
            assert_ne!(other.backend(), backend);
            assert_eq!(other.query("select * from scratch").code(), "42P01");
            owner.ok("select * from scratch");
        }
    }

    fn edge_60_state_in_a_prepared_statement_keeps_its_server_too(fixture) {
        let lock = lock_number(fixture);
        let gateway = fixture.gateway("size = 2\n");
        let mut owner = gateway.client("postgres");
        let backend = owner.backend();
        owner.send(&Frames::new().parse("lock", "select pg_advisory_lock($1)").bind("lock", &[&lock]).execute().sync());
        owner.expect("1 2 D C:SELECT_1 Z:I");
        let mut other = gateway.client("postgres");
        assert_ne!(other.backend(), backend);
        assert_eq!(other.value(&format!("select pg_try_advisory_lock({lock})")), "f");
        assert_eq!(owner.value(&format!("select pg_advisory_unlock({lock})")), "t");
    }

    fn edge_60_the_next_client_finds_nothing_of_it(fixture) {
        for (state, sql) in PINNING {
            let sql = sql.replace("LOCK", &lock_number(fixture));
            for (orderly, reset) in [(true, "DISCARD ALL"), (false, "DISCARD ALL"), (true, ""), (false, "RESET ALL")] {
                let gateway = fixture.gateway(&format!("size = 1\nserver_reset = \"{reset}\"\n"));
                let mut owner = gateway.client("postgres");
                owner.ok(&sql);
                if orderly {
                    owner.send(&Frames::new().terminate());
                }
                drop(owner);
                let mut next = gateway.client("postgres");
                let left = "select (select count(*) from pg_listening_channels())
                    + (select count(*) from pg_cursors) + (select count(*) from pg_prepared_statements where from_sql)
                    + (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
                    + (select count(*) from pg_class where relname = 'scratch' and pg_table_is_visible(oid))";
                assert_eq!(next.value(left), "0", "{state}, {reset}");
            }
        }
    }

    fn edge_60_state_in_a_statement_that_is_not_followed_keeps_its_server_too(fixture) {
        for sql in ["set work_mem = '7MB'", "listen some_channel", "reset all", "select set_config('work_mem', '7MB', false)"] {
            let frames = Frames::new().parse("one", sql).run("one").sync();
            let gateway = fixture.gateway("size = 2\nprepared_statements_per_server = 0\n");
            let mut owner = gateway.client("postgres");
            let backend = owner.backend();
            owner.send(&frames);
            assert_eq!(owner.until_ready().code(), "", "{sql}");
            assert_ne!(gateway.client("postgres").backend(), backend, "{sql}");
            let gateway = fixture.gateway("size = 2\npin = false\nprepared_statements_per_server = 0\n");
            let mut refused = gateway.client("postgres");
            refused.send(&frames);
            assert_eq!(refused.until_ready().code(), "0A000", "{sql}");
        }
    }

    fn edge_60_a_function_called_by_its_number_keeps_its_server_too(fixture) {
        let calls = "select oid, pronargs, proname from pg_proc where proname = 'set_config' or
            proname ~ '^pg_(try_)?advisory_lock(_shared)?$' order by oid";
        let calls = fixture.server.client().ok(calls).rows;
        assert_eq!(calls.len(), 9);
        let gateway = fixture.gateway("size = 20\n");
        let unpinning = fixture.gateway("size = 1\npin = false\n");
        let mut owners = Vec::new();
        for call in calls {
            let number = |text: &str| text.parse::<u32>().expect("a number");
            let arguments = match &*call[2] {
                "set_config" => vec!["work_mem", "7MB", "f"],
                _ => vec!["1"; number(&call[1]) as usize],
            };
            let mut body = number(&call[0]).to_be_bytes().to_vec();
            body.extend([0, 0, 0, arguments.len() as u8]);
            for argument in arguments {
                body.extend((argument.len() as u32).to_be_bytes());
                body.extend(argument.bytes());
            }
            body.extend([0, 0]);
            let mut owner = gateway.client("postgres");
            let backend = owner.backend();
            if call[2].contains("try") || call[2] == "set_config" {
                owner.send(&Frames::new().message(b'F', &body));
                owner.expect("V Z:I");
                let mut other = gateway.client("postgres");
                assert_ne!(other.backend(), backend, "{call:?}");
                owners.push(owner);
            }
            let mut refused = unpinning.client("postgres");
            refused.send(&Frames::new().message(b'F', &body));
            assert_eq!(refused.until_ready().code(), "0A000", "{call:?}");
            refused.ok("select 1");
        }
    }

    fn edge_60_without_pinning_they_are_refused_with_a_hint(fixture) {
        let gateway = fixture.gateway("size = 1\npin = false\n");
        for (state, sql) in PINNING {
            let sql = sql.replace("LOCK", &lock_number(fixture));
            let mut client = gateway.client("postgres");
            let outcome = client.query(&sql);
            assert_eq!(outcome.code(), "0A000", "{state}");
            assert!(!outcome.error.unwrap_or_default().hint.is_empty(), "{state}");
            assert_eq!(outcome.status, 'I', "{state}");
            client.ok("select 1");
            client.send(&Frames::new().once(&sql.replace("begin; ", "").replace("; commit", "")).sync());
            assert_eq!(client.until_ready().code(), "0A000", "{state}");
            let mut next = gateway.client("postgres");
            assert_eq!(next.value("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"), "0");
        }
    }

    fn edge_60_without_pinning_an_unnamed_statement_with_values_is_refused_with_a_hint(fixture) {
        let gateway = fixture.gateway("size = 1\npin = false\n");
        let mut client = gateway.client("postgres");
        let lock = lock_number(fixture);
        for _ in 0..2 {
            let frames = Frames::new().parse("", "select pg_advisory_lock($1)").describe_statement("");
            client.send(&frames.bind("", &[&lock]).execute().sync());
            client.expect("1 t T 2 E:0A000 Z:I");
            client.send(&Frames::new().bind("", &[&lock]).execute().sync());
            client.expect("2 E:0A000 Z:I");
        }
        client.ok("select 1");
    }

    fn edge_60_words_in_strings_and_comments_do_not_pin(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let harmless = [
            "select 'listen to me'",
            "select 1 /* listen x */",
            "select 1 -- create temp table",
            "select $$prepare x as$$",
        ];
        let mut clients: Vec<_> = harmless.iter().map(|_| gateway.client("postgres")).collect();
        for (client, sql) in clients.iter_mut().zip(harmless) {
            client.ok(sql);
        }
        gateway.client("postgres").ok("select 'the server is free'");
    }

    fn edge_62_a_client_that_vanishes_in_a_transaction_leaves_it_undone(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        for reset in [false, true] {
            for state in ["select 1", "select 1/0"] {
                let mut vanishing = gateway.client("postgres");
                vanishing.ok(&format!("begin; insert into {table} values (1)"));
                vanishing.query(state);
                vanishing.vanish(reset);
                let mut next = gateway.client("postgres");
                let outcome = next.ok(&format!("select count(*) from {table}"));
                assert_eq!((outcome.value().as_str(), outcome.status), ("0", 'I'));
            }
        }
    }

    fn edge_62_a_client_that_vanishes_in_a_query_does_not_hold_the_server(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut vanishing = gateway.client("postgres");
        vanishing.send(&Frames::new().query(&format!("insert into {table} select 1 from pg_sleep(600)")));
        let mut observer = fixture.server.client();
        let running = format!(
            "select count(*) from pg_stat_activity where query like 'insert into {table} %' and state = 'active'"
        );
        eventually("the query runs", || observer.value(&running) == "1");
        vanishing.vanish(false);
        assert_eq!(gateway.client("postgres").value("select 'served'"), "served");
        eventually("the query is gone", || observer.value(&running) == "0");
    }

    /// The gateway reads no more of it than it can pass on, and sees all the same that it has left.
    fn edge_62_a_client_that_vanishes_behind_messages_that_wait_does_not_hold_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut observer = fixture.server.client();
        for (reset, more) in [(false, 0), (true, 0), (false, 100_000)] {
            let name = fixture.name("waits");
            let mut vanishing = gateway.client("postgres");
            // Nobody knows yet whether the statement will be there.
            let sleep = Frames::new().once(&format!("select pg_sleep(600) as {name}")).parse("s", "select 1").sync();
            vanishing.send(&sleep.run("s").sync().query(&" ".repeat(more)));
            let running = format!("select count(*) from pg_stat_activity where query like '% {name}' and state = 'active'");
            eventually("the query runs", || observer.value(&running) == "1");
            vanishing.vanish(reset);
            assert_eq!(gateway.client("postgres").value("select 'served'"), "served");
            eventually("the query is gone", || observer.value(&running) == "0");
        }
    }
}

/// What may come from an idle server, and what means that it is out of step.
#[test]
fn edge_61_an_idle_server_may_report_but_not_answer() {
    let cases: [(Vec<u8>, bool); 6] = [
        (reply::parameter("in_hot_standby", "on"), true),
        (reply::notice(&[(b'S', "WARNING"), (b'C', "01000"), (b'M', "by the way")]), true),
        (reply::notification(1, "channel", ""), true),
        (reply::row("nobody asked"), false),
        (reply::ready(b'I'), false),
        (reply::fatal("57P01", "terminating connection due to administrator command"), false),
    ];
    for (unasked, kept) in cases {
        let sent = unasked.clone();
        let (said, is_said) = std::sync::mpsc::channel();
        let server = FaultyServer::start(move |connection| {
            connection.log_in()?;
            let message = connection.read_until(b"Q")?;
            connection.answer(&message)?;
            if connection.number() == 0 {
                connection.send(&sent)?;
                said.send(()).map_err(std::io::Error::other)?;
            }
            connection.oblige()
        });
        let gateway = gateway_before(&server, "size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        // The gateway may learn of it only when it lends the server out.
        is_said.recv().expect("the server speaks unasked");
        if kept {
            for _ in 0..3 {
                client.ok("select 2");
            }
            assert_eq!(server.connections(), 1, "{:?}", char::from(unasked[0]));
        } else {
            client.ok("select 2");
            assert_eq!(server.connections(), 2, "{:?}", char::from(unasked[0]));
        }
    }
}
