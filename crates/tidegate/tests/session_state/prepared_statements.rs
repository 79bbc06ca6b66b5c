//! Prepared statements of clients that share servers.

use tidegate_testkit::{FaultyServer, Fixture, Frames, Gateway, RawClient, gateway_for, on_each_postgres};

/// The number of prepared statements with this text on the only server of the gateway.
pub(crate) fn statements_on_server(client: &mut RawClient, text: &str) -> String {
    client.value(&format!("select count(*) from pg_prepared_statements where statement = '{text}'"))
}

#[track_caller]
pub(crate) fn prepare(client: &mut RawClient, name: &str, sql: &str) {
    client.send(&Frames::new().parse(name, sql).sync());
    client.expect("1 Z:I");
}

#[track_caller]
pub(crate) fn run(client: &mut RawClient, name: &str) -> Vec<String> {
    client.send(&Frames::new().run(name).sync());
    client.expect("2 D C:SELECT_1 Z:I")[1].texts()
}

pub(crate) fn clients(gateway: &Gateway, count: usize) -> Vec<RawClient> {
    (0..count).map(|_| gateway.client("postgres")).collect()
}

/// Fails in execution, not in planning.
const FAILING: &str = "select 1 / (random() * 0)::int";

on_each_postgres! {
    /// EDGE-22: A configured reset may leave statements and roles in place.
    fn custom_reset_that_keeps_state(fixture) {
        let role = fixture.create_role("x", "");
        for reset in ["RESET ALL", "DEALLOCATE ALL", "SELECT 1", "discard all;"] {
            let gateway = fixture.gateway(&format!("size = 1\nserver_reset = \"{reset}\"\nserver_reset_always = true\n"));
            let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            client.ok(&format!("set role {role}"));
            client.ok("set work_mem = '7MB'");
            client.send(&Frames::new().parse("one", "select current_user").sync());
            assert_eq!(client.until_ready().code(), "", "{reset}");
            for _ in 0..2 {
                client.send(&Frames::new().bind("one", &[]).execute().sync());
                assert_eq!(client.until_ready().value(), role, "{reset}");
                assert_eq!(other.value("select current_user"), "postgres", "{reset}");
                assert_eq!(other.value("show work_mem"), "4MB", "{reset}");
            }
        }
    }

    /// EDGE-24: A literal is evaluated when its statement is prepared. A client must not get the evaluation of
    /// another client.
    fn literal_is_evaluated_for_its_own_client(fixture) {
        let sql = "select extract(month from '01/02/2020'::date)::int";
        let month = |client: &mut RawClient, name: &str| {
            client.send(&Frames::new().bind(name, &[]).execute().sync());
            client.until_ready().value()
        };
        // The server holds one statement, and the first one is prepared again for a client that has changed its
        // setting.
        let gateway = fixture.gateway("size = 1\nprepared_statements_per_server = 1\n");
        let (mut changed, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        changed.send(&Frames::new().parse("one", sql).parse("two", "select 2").sync());
        changed.until_ready();
        changed.ok("set datestyle = 'SQL, DMY'");
        month(&mut changed, "one");
        other.send(&Frames::new().parse("same", sql).sync());
        other.until_ready();
        assert_eq!(month(&mut other, "same"), "1");
        assert_eq!(month(&mut changed, "two"), "2");
        // The statement is prepared in the same write as the SET.
        let set = "set datestyle = 'SQL, DMY'";
        for set_frames in [Frames::new().query(set), Frames::new().once(set)] {
            let gateway = fixture.gateway("size = 1\n");
            let (mut changed, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            let is_query = set_frames.bytes()[0] == b'Q';
            changed.send(&set_frames.parse("one", sql).bind("one", &[]).execute().sync());
            if is_query {
                changed.until_ready();
            }
            assert_eq!(changed.until_ready().value(), "2");
            other.send(&Frames::new().parse("same", sql).sync());
            other.until_ready();
            assert_eq!(month(&mut other, "same"), "1");
        }
    }

    /// EDGE-13.
    fn statement_names_are_local_to_each_client(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 5);
        for (number, client) in clients.iter_mut().enumerate() {
            prepare(client, "same", &format!("select {number}"));
        }
        for _ in 0..3 {
            for (number, client) in clients.iter_mut().enumerate() {
                assert_eq!(run(client, "same"), [number.to_string()]);
            }
        }
    }

    /// EDGE-13.
    fn same_text_is_prepared_once_for_all_clients(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 5);
        for (number, client) in clients.iter_mut().enumerate() {
            prepare(client, &format!("name{number}"), "select 131313");
            assert_eq!(run(client, &format!("name{number}")), ["131313"]);
        }
        assert_eq!(statements_on_server(&mut clients[0], "select 131313"), "1");
    }

    /// EDGE-13: All clients of a pgbench thread wait for a statement that one of them prepares.
    fn known_text_is_prepared_without_a_free_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 8);
        for client in &mut clients {
            prepare(client, "first", "select 13");
        }
        let mut owner = clients.pop().expect("eight");
        owner.ok("begin");
        for client in &mut clients {
            prepare(client, "second", "select 13");
            client.send(&Frames::new().close_statement("first").sync());
            client.expect("3 Z:I");
        }
        for client in &mut clients {
            client.send(&Frames::new().run("second").sync());
        }
        owner.ok("commit");
        for client in &mut clients {
            client.expect("2 D:13 C:SELECT_1 Z:I");
        }
        let mut late = gateway.client("postgres");
        owner.ok("begin");
        late.send(&Frames::new().parse("own", "select 1313").sync());
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        owner.ok("commit");
        late.expect("1 Z:I");
    }

    /// EDGE-13: A text that the last server has rejected is sent again.
    fn parse_of_a_broken_statement_is_rejected(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\nprepared_statements_per_server = 1\n");
        let [mut one, mut other] = [gateway.client("postgres"), gateway.client("postgres")];
        let text = format!("select n from {table}");
        prepare(&mut one, "s", &text);
        one.ok(&format!("drop table {table}"));
        prepare(&mut one, "room", "select 1");
        one.send(&Frames::new().run("s").sync());
        one.expect("E:42P01 Z:I");
        other.send(&Frames::new().parse("t", &text).sync());
        other.expect("E:42P01 Z:I");
    }

    /// EDGE-13.
    fn statement_works_on_every_server(fixture) {
        let gateway = fixture.gateway("size = 3\n");
        let mut client = gateway.client("postgres");
        prepare(&mut client, "pid", "select pg_backend_pid()");
        let first = run(&mut client, "pid");
        let mut blocker = gateway.client("postgres");
        blocker.ok("begin");
        let blocked = blocker.backend();
        let second = run(&mut client, "pid");
        assert_ne!(second[0], blocked);
        assert!(first[0] == blocked || second == first, "{first:?} {second:?} {blocked}");
    }

    /// EDGE-14.
    fn parameter_types_are_part_of_the_statement(fixture) {
        const INT4: u32 = 23;
        const TEXT: u32 = 25;
        let gateway = fixture.gateway("size = 1\n");
        for oid in [INT4, TEXT, INT4] {
            let mut client = gateway.client("postgres");
            let typed = Frames::new().parse_typed("s", "select $1", &[oid]).describe_statement("s");
            client.send(&typed.bind("s", &["1"]).execute().sync());
            let answer = client.expect("1 t T 2 D:1 C:SELECT_1 Z:I");
            assert_eq!(answer[1].parameter_types(), [oid]);
            assert_eq!(answer[2].column_types()[0].1, oid);
        }
    }

    /// EDGE-15.
    fn name_of_a_failed_parse_is_unknown(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().parse("bad", "selec 1").sync());
            client.expect("E:42601 Z:I");
            client.send(&Frames::new().run("bad").sync());
            client.expect("E:26000 Z:I");
            client.send(&Frames::new().describe_statement("bad").sync());
            client.expect("E:26000 Z:I");
            prepare(&mut client, "bad", "select 'now good'");
            assert_eq!(run(&mut client, "bad"), ["now good"]);
        });
    }

    /// EDGE-15.
    fn name_of_a_discarded_parse_is_unknown(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let failing = Frames::new().parse("before", "select 1").once(FAILING).parse("after", "select 2");
            client.send(&failing.run("after").sync());
            client.expect("1 1 2 E:22012 Z:I");
            client.send(&Frames::new().run("after").sync());
            client.expect("E:26000 Z:I");
            assert_eq!(run(&mut client, "before"), ["1"]);
            prepare(&mut client, "after", "select 3");
            assert_eq!(run(&mut client, "after"), ["3"]);
        });
    }

    /// EDGE-15: The messages behind the Sync are sent before the error shows that the Parse was discarded.
    fn pipeline_sees_statements_of_earlier_segments(fixture) {
        fixture.on_both_targets(|target| {
            let mut known = target.client();
            prepare(&mut known, "s", "select 15");
            let mut client = target.client();
            let discarded = Frames::new().once(FAILING).parse("s", "select 15").sync();
            client.send(&discarded.run("s").sync().parse("s", "select 16").run("s").sync());
            client.expect("1 2 E:22012 Z:I E:26000 Z:I 1 2 D:16 C:SELECT_1 Z:I");
            let discarded = Frames::new().once(FAILING).close_statement("s").sync();
            client.send(&discarded.run("s").sync());
            client.expect("1 2 E:22012 Z:I 2 D:16 C:SELECT_1 Z:I");
        });
    }

    /// EDGE-15: A discarded unnamed Parse must not restore the previous unnamed statement over the next one.
    fn unnamed_statement_is_the_last_one_parsed(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().parse("", "select 'old'").sync());
            client.expect("1 Z:I");
            let discarded = Frames::new().execute_portal("unknown", 0).parse("", "select 'discarded'").sync();
            client.send(&discarded.parse("", "select 'new'").sync());
            client.expect("E:34000 Z:I 1 Z:I");
            client.send(&Frames::new().run("").sync());
            client.expect("2 D:new C:SELECT_1 Z:I");
        });
    }

    /// EDGE-15.
    fn missing_unnamed_statement_is_an_error(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let parse_unnamed = |other: &mut RawClient| {
            other.send(&Frames::new().parse("", "select 'other'").bind("", &[]).describe_portal("").execute().sync());
            other.expect("1 2 T D:other C:SELECT_1 Z:I");
        };
        let assert_missing = |client: &mut RawClient, other: &mut RawClient| {
            for frames in [Frames::new().run(""), Frames::new().describe_statement("")] {
                parse_unnamed(other);
                client.send(&frames.sync());
                client.expect("E:26000 Z:I");
            }
        };
        assert_missing(&mut client, &mut other);
        client.send(&Frames::new().parse("", "selct").sync());
        client.expect("E:42601 Z:I");
        assert_missing(&mut client, &mut other);
        client.send(&Frames::new().parse("", "select 'own'").sync().query("select 1"));
        client.expect("1 Z:I T D:1 C:SELECT_1 Z:I");
        assert_missing(&mut client, &mut other);
        other.send(&Frames::new().run("").sync());
        other.expect("2 D:other C:SELECT_1 Z:I");
    }

    /// EDGE-15: The Parse of the first client fails on the server. The second client must not get ParseComplete
    /// for the text.
    fn failed_parse_is_not_shared(fixture) {
        let missing = fixture.name("missing");
        let sql = format!("select n from {missing}");
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 2);
        for client in &mut clients {
            client.send(&Frames::new().parse("s", &sql).run("s").sync());
            client.expect("E:42P01 Z:I");
        }
        fixture.server.sql(&format!("create table {missing} as select 15 as n"));
        for client in &mut clients {
            client.send(&Frames::new().parse("s", &sql).run("s").sync());
            client.expect("1 2 D:15 C:SELECT_1 Z:I");
        }
    }

    /// EDGE-16.
    fn second_parse_of_a_name_is_rejected(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "taken", "select 1");
            for sql in ["select 2", "select 1"] {
                client.send(&Frames::new().parse("taken", sql).run("taken").sync());
                client.expect("E:42P05 Z:I");
            }
            assert_eq!(run(&mut client, "taken"), ["1"]);
            client.send(&Frames::new().close_statement("taken").parse("taken", "select 3").run("taken").sync());
            client.expect("3 1 2 D:3 C:SELECT_1 Z:I");
        });
    }

    /// EDGE-16.
    fn second_parse_in_one_pipeline_is_rejected(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let twice = Frames::new().parse("twice", "select 1").parse("twice", "select 2");
            client.send(&twice.run("twice").sync());
            client.expect("1 E:42P05 Z:I");
            assert_eq!(run(&mut client, "twice"), ["1"]);
        });
    }

    /// EDGE-17.
    fn unnamed_statement_survives_sync(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "", "select 17");
            for _ in 0..2 {
                assert_eq!(run(&mut client, ""), ["17"]);
            }
            client.send(&Frames::new().describe_statement("").sync());
            client.expect("t T:?column? Z:I");
        });
    }

    /// EDGE-17.
    fn simple_query_drops_the_unnamed_statement(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "", "select 17");
            client.ok("select 18");
            client.send(&Frames::new().run("").sync());
            client.expect("E:26000 Z:I");
        });
    }

    /// EDGE-17.
    fn failed_parse_drops_the_unnamed_statement(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "", "select 17");
            client.send(&Frames::new().parse("", "selec").sync());
            client.expect("E:42601 Z:I");
            client.send(&Frames::new().run("").sync());
            client.expect("E:26000 Z:I");
        });
    }

    /// EDGE-17: The server never received the Parse: the unnamed statement is the previous one, or none.
    fn discarded_parse_keeps_the_unnamed_statement(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().execute_portal("none", 0).parse("", "select 1").sync());
            client.expect("E:34000 Z:I");
            client.send(&Frames::new().describe_statement("").sync());
            client.expect("E:26000 Z:I");
            prepare(&mut client, "", "select 'before'");
            client.send(&Frames::new().execute_portal("none", 0).parse("", "select 'discarded'").sync());
            client.expect("E:34000 Z:I");
            assert_eq!(run(&mut client, ""), ["before"]);
        });
    }

    /// EDGE-17: The server never received the Close.
    fn discarded_close_keeps_the_unnamed_statement(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "", "select 'before'");
            client.send(&Frames::new().execute_portal("none", 0).close_statement("").sync());
            client.expect("E:34000 Z:I");
            assert_eq!(run(&mut client, ""), ["before"]);
            let discarded = Frames::new().parse("", "select 'x'").execute_portal("none", 0).close_statement("").sync();
            client.send(&discarded.run("").sync());
            client.expect("1 E:34000 Z:I 2 D:x C:SELECT_1 Z:I");
            client.send(&Frames::new().close_statement("").sync().run("").sync());
            client.expect("3 Z:I E:26000 Z:I");
        });
    }

    /// EDGE-18.
    fn close_of_an_unknown_name_is_no_error(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().close_statement("never").close_portal("never").close_statement("").sync());
            client.expect("3 3 3 Z:I");
            client.send(&Frames::new().parse("bad", "selec").sync().close_statement("bad").sync());
            client.expect("E:42601 Z:I 3 Z:I");
            client.ok("select 1");
        });
    }

    /// EDGE-19.
    fn statements_above_the_limit_are_evicted(fixture) {
        let gateway = fixture.gateway("size = 1\nprepared_statements_per_server = 2\n");
        let mut client = gateway.client("postgres");
        for number in 0..6 {
            prepare(&mut client, &format!("s{number}"), &format!("select {number}"));
        }
        for number in [0, 5, 1, 4, 0, 0, 3, 2] {
            assert_eq!(run(&mut client, &format!("s{number}")), [number.to_string()]);
        }
        let held: u32 = client.value("select count(*) from pg_prepared_statements").parse().expect("a number");
        assert!(held <= 2, "{held} statements on a server that may hold 2");
    }

    /// EDGE-19.
    fn statements_above_the_limit_in_one_pipeline(fixture) {
        let gateway = fixture.gateway("size = 1\nprepared_statements_per_server = 2\n");
        let mut client = gateway.client("postgres");
        let mut frames = Frames::new();
        for number in 0..5 {
            frames = frames.parse(&format!("s{number}"), &format!("select {number}"));
        }
        for number in 0..5 {
            frames = frames.run(&format!("s{number}"));
        }
        client.send(&frames.sync());
        client.expect("1 1 1 1 1");
        for number in 0..5 {
            client.expect(&format!("2 D:{number} C:SELECT_1"));
        }
        client.expect("Z:I");
    }

    /// EDGE-19: The Close of the evicted statement may be in the part of the pipeline that the server discards.
    fn discarded_eviction_is_not_recorded(fixture) {
        let gateway = fixture.gateway("size = 1\nprepared_statements_per_server = 2\n");
        let mut client = gateway.client("postgres");
        prepare(&mut client, "a", "select 'a'");
        prepare(&mut client, "b", "select 'b'");
        run(&mut client, "a");
        run(&mut client, "b");
        let aborted = Frames::new().once(FAILING).parse("c", "select 'c'").run("c");
        client.send(&aborted.parse("d", "select 'd'").run("d").sync());
        client.expect("1 2 E:22012 Z:I");
        for name in ["a", "b", "a"] {
            assert_eq!(run(&mut client, name), [name]);
        }
        prepare(&mut client, "c", "select 'c'");
        assert_eq!(run(&mut client, "c"), ["c"]);
        let held: u32 = client.value("select count(*) from pg_prepared_statements").parse().expect("a number");
        assert!(held <= 2, "{held} statements on a server that may hold 2");
    }

    /// EDGE-20.
    fn describe_of_an_unknown_statement_is_an_error(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().describe_statement("unknown").parse("skipped", "select 1").sync());
            client.expect("E:26000 Z:I");
            client.send(&Frames::new().describe_portal("unknown").sync());
            client.expect("E:34000 Z:I");
            client.send(&Frames::new().execute_portal("unknown", 0).sync());
            client.expect("E:34000 Z:I");
            client.ok("begin");
            client.send(&Frames::new().bind("unknown", &[]).sync());
            client.expect("E:26000 Z:E");
            client.ok("rollback");
        });
    }

    /// EDGE-21.
    fn parse_and_bind_of_a_megabyte(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let comment = "x".repeat(1 << 20);
            let sql = format!("/* {comment} */ select length($1)");
            for _ in 0..2 {
                client.send(&Frames::new().parse("big", &sql).bind("big", &[&comment]).execute().sync());
                client.expect("1 2 D:1048576 C:SELECT_1 Z:I");
                client.send(&Frames::new().bind("big", &["abc"]).execute().close_statement("big").sync());
                client.expect("2 D:3 C:SELECT_1 3 Z:I");
            }
        });
    }

    /// EDGE-21: Each small message makes the gateway prepare a text that is a thousand times as long.
    fn long_statements_are_prepared_repeatedly(fixture) {
        let gateway = fixture.gateway("size = 1\nprepared_statements_per_server = 1\n");
        let mut client = gateway.client("postgres");
        let comment = "x".repeat(100_000);
        for name in ["a", "b"] {
            prepare(&mut client, name, &format!("select '{name}' /* {comment} */"));
        }
        let turns = |frames: Frames| (0..40).fold(frames, |frames, _| frames.run("a").run("b"));
        client.send(&turns(Frames::new()).sync().query("select 'behind'"));
        for _ in 0..40 {
            client.expect("2 D:a C:SELECT_1 2 D:b C:SELECT_1");
        }
        client.expect("Z:I T D:behind C:SELECT_1 Z:I");
    }

    /// EDGE-21.
    fn messages_split_at_every_byte(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let frames = Frames::new().parse("s", "select $1").bind("s", &["21"]).describe_portal("").execute();
            let frames = frames.close_statement("s").sync();
            for cut in 1..frames.bytes().len() {
                client.send_bytes(&frames.bytes()[..cut]);
                client.send_bytes(&frames.bytes()[cut..]);
                client.expect("1 2 T D:21 C:SELECT_1 3 Z:I");
            }
            for byte in frames.bytes() {
                client.send_bytes(&[*byte]);
            }
            client.expect("1 2 T D:21 C:SELECT_1 3 Z:I");
        });
    }

    /// EDGE-21.
    fn statement_name_longer_than_a_buffer(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let name = "n".repeat(40_000);
            client.send(&Frames::new().parse(&name, "select 1").run(&name).sync());
            client.expect("1 2 D:1 C:SELECT_1 Z:I");
            assert_eq!(run(&mut client, &name), ["1"]);
            // Postgres closes on a Describe or Close of more than 10,000 bytes.
            let name = "m".repeat(9_000);
            prepare(&mut client, &name, "select 2");
            client.send(&Frames::new().describe_statement(&name).close_statement(&name).sync());
            client.expect("t T 3 Z:I");
        });
    }

    /// EDGE-13: The name on the server is visible in `pg_prepared_statements`.
    fn statements_of_other_clients_are_not_accessible(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 2);
        prepare(&mut clients[0], "secret", "select 1313");
        for _ in 0..2 {
            assert_eq!(run(&mut clients[0], "secret"), ["1313"]);
            let name = clients[1].value("select name from pg_prepared_statements where statement = 'select 1313'");
            clients[1].send(&Frames::new().run(&name).sync());
            assert_eq!(clients[1].until_ready().code(), "26000");
            assert_eq!(run(&mut clients[0], "secret"), ["1313"]);
            clients[1].send(&Frames::new().describe_statement(&name).sync());
            assert_eq!(clients[1].until_ready().code(), "26000");
            assert_eq!(run(&mut clients[0], "secret"), ["1313"]);
            clients[1].ok(&format!("deallocate {name}"));
        }
    }

    /// EDGE-16.
    fn second_parse_with_a_syntax_error_reports_it(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "taken", "select 1");
            client.send(&Frames::new().parse("taken", "selec").sync());
            client.expect("E:42601 Z:I");
            assert_eq!(run(&mut client, "taken"), ["1"]);
        });
    }

    /// EDGE-25.
    fn known_statement_fails_in_a_failed_transaction(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "before", "select 2525");
            client.ok("begin");
            client.query("select 1/0");
            client.send(&Frames::new().parse("again", "select 2525").run("again").sync());
            client.expect("E:25P02 Z:E");
            client.send(&Frames::new().parse("end", "rollback").run("end").sync());
            client.expect("1 2 C:ROLLBACK Z:I");
            client.send(&Frames::new().run("again").sync());
            client.expect("E:26000 Z:I");
        });
    }

    /// EDGE-17: The server already has the second text, and the gateway sends it a Parse all the same.
    fn named_parse_keeps_the_unnamed_statement(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            prepare(&mut client, "before", "select 1717");
            client.send(&Frames::new().query("begin").parse("", "select 17").sync().parse("wrong", "selec").sync());
            client.expect("C:BEGIN Z:T 1 Z:T E:42601 Z:E");
            client.send(&Frames::new().parse("again", "select 1717").sync());
            client.expect("E:25P02 Z:E");
            // The error on the number of parameters shows that the statement exists.
            client.send(&Frames::new().bind("", &["1"]).execute().sync());
            client.expect("E:08P01 Z:E");
        });
    }

    /// EDGE-23: Postgres returns 0A000 on every execution. Through the gateway the statement works again after one
    /// error, as the client has not described it. Each client that had the old columns gets that error, since its driver
    /// may have cached them; a client that prepares again does not.
    fn changed_result_type_is_one_error_per_client(fixture) {
        let table = fixture.create_table("a int");
        fixture.server.sql(&format!("insert into {table} values (1)"));
        let star = format!("select * from {table}");
        let gateway = fixture.gateway("size = 2\n");
        let mut clients = clients(&gateway, 3);
        for client in &mut clients {
            prepare(client, "star", &star);
            assert_eq!(run(client, "star"), ["1"]);
        }
        // Both servers have the statement.
        clients[0].ok("begin");
        assert_eq!(run(&mut clients[1], "star"), ["1"]);
        clients[0].send(&Frames::new().run("star").sync());
        clients[0].expect("2 D:1 C:SELECT_1 Z:T");
        clients[0].ok("commit");
        fixture.server.sql(&format!("alter table {table} add b int default 2"));
        for client in &mut clients {
            client.send(&Frames::new().run("star").sync());
            let outcome = client.until_ready();
            assert_eq!(outcome.error.expect("an error").message, "cached plan must not change result type");
        }
        for client in &mut clients {
            assert_eq!(run(client, "star"), ["1", "2"]);
        }
        let mut late = gateway.client("postgres");
        prepare(&mut late, "star", &star);
        late.ok("begin");
        assert_eq!(run(&mut clients[0], "star"), ["1", "2"]);
        late.send(&Frames::new().run("star").sync());
        late.expect("2 D C:SELECT_1 Z:T");
    }

    /// EDGE-23: Describe may be the first message that finds the change.
    fn changed_result_type_found_by_describe(fixture) {
        let table = fixture.create_table("a int");
        fixture.server.sql(&format!("insert into {table} values (1)"));
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 2);
        for client in &mut clients {
            prepare(client, "star", &format!("select * from {table}"));
            assert_eq!(run(client, "star"), ["1"]);
        }
        fixture.server.sql(&format!("alter table {table} add b int default 2"));
        clients[0].send(&Frames::new().describe_statement("star").sync());
        clients[0].expect("t E:0A000 Z:I");
        clients[1].send(&Frames::new().run("star").sync());
        clients[1].expect("E:0A000 Z:I");
        for client in &mut clients {
            assert_eq!(run(client, "star"), ["1", "2"]);
        }
    }

    /// EDGE-23.
    fn changed_result_type_in_a_transaction(fixture) {
        let table = fixture.create_table("a int");
        fixture.server.sql(&format!("insert into {table} values (1)"));
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        prepare(&mut client, "star", &format!("select * from {table}"));
        run(&mut client, "star");
        fixture.server.sql(&format!("alter table {table} add b int default 2"));
        client.ok("begin");
        client.send(&Frames::new().run("star").sync());
        let outcome = client.until_ready();
        assert!(outcome.error.is_none() || outcome.code() == "0A000", "{outcome:?}");
        client.ok("rollback");
        assert_eq!(run(&mut client, "star"), ["1", "2"]);
    }

    /// EDGE-24: The same text under two search paths reads tables of different shapes.
    fn statements_are_not_shared_across_search_paths(fixture) {
        let (left, right) = (fixture.name("s"), fixture.name("s"));
        fixture.server.sql(&format!("create schema {left}; create table {left}.t as select 1 as a"));
        fixture.server.sql(&format!("create schema {right}; create table {right}.t as select 'x' as b, 2.5 as c"));
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 2);
        clients[0].ok(&format!("set search_path to {left}"));
        clients[1].ok(&format!("set search_path to {right}"));
        for client in &mut clients {
            prepare(client, "s", "select * from t");
        }
        for _ in 0..3 {
            assert_eq!(run(&mut clients[0], "s"), ["1"]);
            assert_eq!(run(&mut clients[1], "s"), ["x", "2.5"]);
        }
    }

    /// EDGE-26: The health check is a simple query, which drops the unnamed statement on the server but not for
    /// the client.
    fn unnamed_statement_survives_a_health_check(fixture) {
        let checks = fixture.create_table("n int");
        let check = format!("server_check = \"insert into {checks} values (1)\"\nserver_check_after = \"0s\"\n");
        let gateway = fixture.gateway(&format!("size = 1\n[pool]\n{check}"));
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        let count = |fixture: &Fixture| fixture.server.value(&format!("select count(*) from {checks}"));
        let before: u32 = count(fixture).parse().expect("a count");
        client.send(&Frames::new().parse("", "select 'of the client'").sync());
        client.expect("1 Z:I");
        for round in 1..=3 {
            client.send(&Frames::new().describe_statement("").run("").sync());
            client.expect("t T 2 D:of_the_client C:SELECT_1 Z:I");
            assert_eq!(count(fixture).parse::<u32>().expect("a count"), before + 1 + round, "a health check ran in between");
        }
    }

    /// EDGE-26.
    fn unnamed_statements_are_local_to_each_client(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 4);
        for (number, client) in clients.iter_mut().enumerate() {
            prepare(client, "", &format!("select {number}"));
        }
        for _ in 0..2 {
            for (number, client) in clients.iter_mut().enumerate() {
                assert_eq!(run(client, ""), [number.to_string()]);
            }
        }
        clients[0].ok("select 'ends its own unnamed statement'");
        clients[0].send(&Frames::new().run("").sync());
        clients[0].expect("E:26000 Z:I");
        assert_eq!(run(&mut clients[1], ""), ["1"]);
    }
}

/// The analysis of a text on the server may be older than the Parse of the client.
#[test]
fn every_parse_of_a_client_reaches_a_server() {
    let server = FaultyServer::answering();
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    for round in 0..5 {
        let name = format!("s{round}");
        let known = Frames::new().parse(&name, "select 25").run(&name).run(&name).close_statement(&name);
        client.send(&known.sync());
        client.expect("1 2 C:SELECT_0 2 C:SELECT_0 3 Z:I");
    }
    assert_eq!(server.count(b'P'), 5);
    assert_eq!(server.count(b'B'), 10);
}
