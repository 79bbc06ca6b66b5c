//! Prepared statements whose client and server do not know each other.

use crate::gateway_before;
use tidegate_testkit::{FaultyServer, Fixture, Frames, Gateway, RawClient};

/// How many statements with this text the gateway's only server holds.
fn statements_on_server(client: &mut RawClient, text: &str) -> String {
    client.value(&format!("select count(*) from pg_prepared_statements where statement = '{text}'"))
}

#[track_caller]
fn prepare(client: &mut RawClient, name: &str, sql: &str) {
    client.send(&Frames::new().parse(name, sql).sync());
    client.expect("1 Z:I");
}

#[track_caller]
fn run(client: &mut RawClient, name: &str) -> Vec<String> {
    client.send(&Frames::new().run(name).sync());
    client.expect("2 D C:SELECT_1 Z:I")[1].texts()
}

fn crowd(gateway: &Gateway, count: usize) -> Vec<RawClient> {
    (0..count).map(|_| gateway.client("postgres")).collect()
}

/// Fails when it runs, not when it is planned.
const FAILING: &str = "select 1 / (random() * 0)::int";

on_each_postgres! {
    /// A reset of one's own may leave statements and roles where they are.
    fn edge_22_a_reset_that_forgets_nothing(fixture) {
        let role = fixture.own_role("x", "");
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

    /// What a literal means is decided when its statement is prepared: nobody gets it as another client has it.
    fn edge_24_a_literal_means_what_it_does_for_its_client(fixture) {
        let sql = "select extract(month from '01/02/2020'::date)::int";
        let month = |client: &mut RawClient, name: &str| {
            client.send(&Frames::new().bind(name, &[]).execute().sync());
            client.until_ready().value()
        };
        // The server knows one statement, and is taught the first again by a client that has changed its mind.
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
        // It is prepared in one breath with what changes it.
        let set = "set datestyle = 'SQL, DMY'";
        for behind in [Frames::new().query(set), Frames::new().once(set)] {
            let gateway = fixture.gateway("size = 1\n");
            let (mut changed, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
            let is_query = behind.bytes()[0] == b'Q';
            changed.send(&behind.parse("one", sql).bind("one", &[]).execute().sync());
            if is_query {
                changed.until_ready();
            }
            assert_eq!(changed.until_ready().value(), "2");
            other.send(&Frames::new().parse("same", sql).sync());
            other.until_ready();
            assert_eq!(month(&mut other, "same"), "1");
        }
    }

    fn edge_13_one_name_means_another_text_for_each_client(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 5);
        for (number, client) in clients.iter_mut().enumerate() {
            prepare(client, "same", &format!("select {number}"));
        }
        for _ in 0..3 {
            for (number, client) in clients.iter_mut().enumerate() {
                assert_eq!(run(client, "same"), [number.to_string()]);
            }
        }
    }

    fn edge_13_one_text_is_prepared_once_for_all_clients(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 5);
        for (number, client) in clients.iter_mut().enumerate() {
            prepare(client, &format!("name{number}"), "select 131313");
            assert_eq!(run(client, &format!("name{number}")), ["131313"]);
        }
        assert_eq!(statements_on_server(&mut clients[0], "select 131313"), "1");
    }

    /// As pgbench does, whose clients of one thread wait together for what one of them prepares.
    fn edge_13_what_others_have_prepared_is_prepared_while_all_servers_are_taken(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 8);
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

    /// What the last server has refused is asked again.
    fn edge_13_a_statement_that_has_gone_bad_is_refused_when_it_is_prepared(fixture) {
        let table = fixture.own_table("n int");
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

    fn edge_13_a_statement_is_there_on_every_server(fixture) {
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

    fn edge_14_the_parameter_types_are_part_of_the_statement(fixture) {
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

    fn edge_15_a_name_whose_parse_failed_is_unknown(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_15_a_parse_discarded_in_a_failed_pipeline_is_unknown(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    /// What stands behind the Sync was sent before anyone knew that the Parse would be discarded.
    fn edge_15_a_pipeline_finds_what_its_earlier_flights_left(fixture) {
        fixture.at_both_doors(|door| {
            let mut known = door.client();
            prepare(&mut known, "s", "select 15");
            let mut client = door.client();
            let discarded = Frames::new().once(FAILING).parse("s", "select 15").sync();
            client.send(&discarded.run("s").sync().parse("s", "select 16").run("s").sync());
            client.expect("1 2 E:22012 Z:I E:26000 Z:I 1 2 D:16 C:SELECT_1 Z:I");
            let discarded = Frames::new().once(FAILING).close_statement("s").sync();
            client.send(&discarded.run("s").sync());
            client.expect("1 2 E:22012 Z:I 2 D:16 C:SELECT_1 Z:I");
        });
    }

    /// A discarded Parse of the unnamed statement does not bring the one before it back over the one behind it.
    fn edge_15_the_unnamed_statement_is_the_last_that_was_parsed(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().parse("", "select 'old'").sync());
            client.expect("1 Z:I");
            let discarded = Frames::new().execute_portal("unknown", 0).parse("", "select 'discarded'").sync();
            client.send(&discarded.parse("", "select 'new'").sync());
            client.expect("E:34000 Z:I 1 Z:I");
            client.send(&Frames::new().run("").sync());
            client.expect("2 D:new C:SELECT_1 Z:I");
        });
    }

    fn edge_15_who_has_no_unnamed_statement_gets_nobody_elses(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let leave_one = |other: &mut RawClient| {
            other.send(&Frames::new().parse("", "select 'other'").bind("", &[]).describe_portal("").execute().sync());
            other.expect("1 2 T D:other C:SELECT_1 Z:I");
        };
        let without = |client: &mut RawClient, other: &mut RawClient| {
            for frames in [Frames::new().run(""), Frames::new().describe_statement("")] {
                leave_one(other);
                client.send(&frames.sync());
                client.expect("E:26000 Z:I");
            }
        };
        without(&mut client, &mut other);
        client.send(&Frames::new().parse("", "selct").sync());
        client.expect("E:42601 Z:I");
        without(&mut client, &mut other);
        client.send(&Frames::new().parse("", "select 'own'").sync().query("select 1"));
        client.expect("1 Z:I T D:1 C:SELECT_1 Z:I");
        without(&mut client, &mut other);
        other.send(&Frames::new().run("").sync());
        other.expect("2 D:other C:SELECT_1 Z:I");
    }

    /// The first client's Parse fails on the server; the second must not be told that the text is known.
    fn edge_15_a_failed_parse_is_not_shared(fixture) {
        let missing = fixture.name("missing");
        let sql = format!("select n from {missing}");
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 2);
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

    fn edge_16_a_second_parse_of_a_name_is_refused_and_the_client_lives(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_16_a_second_parse_within_one_pipeline_is_refused(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let twice = Frames::new().parse("twice", "select 1").parse("twice", "select 2");
            client.send(&twice.run("twice").sync());
            client.expect("1 E:42P05 Z:I");
            assert_eq!(run(&mut client, "twice"), ["1"]);
        });
    }

    fn edge_17_the_unnamed_statement_lives_across_syncs(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            prepare(&mut client, "", "select 17");
            for _ in 0..2 {
                assert_eq!(run(&mut client, ""), ["17"]);
            }
            client.send(&Frames::new().describe_statement("").sync());
            client.expect("t T:?column? Z:I");
        });
    }

    fn edge_17_a_simple_query_ends_the_unnamed_statement(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            prepare(&mut client, "", "select 17");
            client.ok("select 18");
            client.send(&Frames::new().run("").sync());
            client.expect("E:26000 Z:I");
        });
    }

    fn edge_17_a_failed_parse_ends_the_unnamed_statement(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            prepare(&mut client, "", "select 17");
            client.send(&Frames::new().parse("", "selec").sync());
            client.expect("E:42601 Z:I");
            client.send(&Frames::new().run("").sync());
            client.expect("E:26000 Z:I");
        });
    }

    /// The server never saw the Parse: the unnamed statement is the one from before, or none.
    fn edge_17_a_discarded_parse_does_not_replace_the_unnamed_statement(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    /// Nor did it see a Close.
    fn edge_17_a_discarded_close_does_not_end_the_unnamed_statement(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_18_close_of_an_unknown_name_is_no_error(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().close_statement("never").close_portal("never").close_statement("").sync());
            client.expect("3 3 3 Z:I");
            client.send(&Frames::new().parse("bad", "selec").sync().close_statement("bad").sync());
            client.expect("E:42601 Z:I 3 Z:I");
            client.ok("select 1");
        });
    }

    fn edge_19_more_statements_than_the_limit_work_and_the_server_is_tidied(fixture) {
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

    fn edge_19_more_statements_than_the_limit_in_one_pipeline(fixture) {
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

    /// The Close that makes room may stand in the part of the pipeline that the server discards.
    fn edge_19_an_eviction_in_an_aborted_pipeline_is_not_believed(fixture) {
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

    fn edge_20_describe_of_an_unknown_statement_is_an_error_and_no_more(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_21_a_parse_and_a_bind_of_a_megabyte(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    /// Each of the small messages has the server taught a text that is a thousand times as long.
    fn edge_21_a_long_statement_that_has_to_be_prepared_again_and_again(fixture) {
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

    fn edge_21_messages_split_at_every_byte(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_21_a_statement_name_longer_than_a_buffer(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_22_deallocate_all_and_discard_all_forget_the_clients_statements(fixture) {
        fixture.at_both_doors(|door| {
            for forget in ["deallocate all", "discard all", "DEALLOCATE PREPARE ALL"] {
                let mut client = door.client();
                prepare(&mut client, "s", "select 1");
                assert_eq!(run(&mut client, "s"), ["1"]);
                client.ok(forget);
                client.send(&Frames::new().run("s").sync());
                client.expect("E:26000 Z:I");
                prepare(&mut client, "s", "select 2");
                assert_eq!(run(&mut client, "s"), ["2"]);
            }
        });
    }

    /// What stands behind it in the same pipeline is not forgotten by it, whether the server knew the text before or not.
    fn edge_22_a_parse_behind_deallocate_all_in_one_pipeline_stays(fixture) {
        fixture.at_both_doors(|door| {
            for forget in ["deallocate all", "discard all"] {
                let mut client = door.client();
                for _ in 0..2 {
                    client.send(&Frames::new().once(forget).sync().parse("c", "select 2222").run("c").sync());
                    client.expect("1 2 C Z:I 1 2 D:2222 C:SELECT_1 Z:I");
                    assert_eq!(run(&mut client, "c"), ["2222"]);
                    client.send(&Frames::new().close_statement("c").parse("c", "select 2222").run("c").sync());
                    client.expect("3 1 2 D:2222 C:SELECT_1 Z:I");
                }
            }
        });
    }

    fn edge_22_deallocate_all_among_other_statements(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for _ in 0..2 {
                let behind = Frames::new().parse("c", "select 2222").run("c").sync().run("c").sync();
                client.send(&Frames::new().query("deallocate all; select 1").then(&behind));
                client.expect("C:DEALLOCATE_ALL T D:1 C:SELECT_1 Z:I 1 2 D:2222 C:SELECT_1 Z:I 2 D:2222 C:SELECT_1 Z:I");
            }
            client.send(&Frames::new().query("deallocate all; select 1/0").describe_statement("c").sync());
            client.expect("C:DEALLOCATE_ALL E:22012 Z:I E:26000 Z:I");
        });
    }

    /// A second one that fails does not undo what stands between them.
    fn edge_22_two_that_forget_in_one_pipeline(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let forget = Frames::new().parse("", "deallocate all").bind_portal("p", "", &[]).execute_portal("p", 0);
            client.send(&forget.parse("x", "select 2323").execute_portal("p", 0).sync().describe_statement("x").sync());
            let codes: Vec<_> = (0..2).map(|_| client.until_ready().code().to_owned()).collect();
            assert_eq!(codes, ["55000", ""]);
            assert_eq!(run(&mut client, "x"), ["2323"]);
        });
    }

    /// As PHP and Rails give up what they have prepared by the protocol: by its name, in SQL.
    fn edge_22_deallocate_gives_up_a_statement_of_the_protocol(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for (name, deallocate) in [
                ("pdo_stmt_00000001", "DEALLOCATE pdo_stmt_00000001"),
                ("a1", "deallocate prepare A1;"),
                ("S_1", "deallocate \"S_1\""),
            ] {
                prepare(&mut client, name, "select 1");
                assert_eq!(run(&mut client, name), ["1"]);
                client.send(&Frames::new().query(deallocate));
                client.expect("C:DEALLOCATE Z:I");
                client.send(&Frames::new().run(name).sync());
                client.expect("E:26000 Z:I");
                assert_eq!(client.query(deallocate).code(), "26000");
                prepare(&mut client, name, "select 2");
                assert_eq!(run(&mut client, name), ["2"]);
            }
        });
    }

    fn edge_22_deallocate_of_a_name_in_a_transaction(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            prepare(&mut client, "within", "select 'within'");
            prepare(&mut client, "failed", "select 'failed'");
            client.ok("begin");
            client.send(&Frames::new().query("deallocate within"));
            client.expect("C:DEALLOCATE Z:T");
            assert_eq!(client.value("select 'still open'"), "still open");
            client.query("select 1 / 0");
            client.send(&Frames::new().query("deallocate failed"));
            client.expect("E:25P02 Z:E");
            client.ok("rollback");
            // What DEALLOCATE does no rollback undoes.
            client.send(&Frames::new().run("within").sync());
            client.expect("E:26000 Z:I");
            assert_eq!(run(&mut client, "failed"), ["failed"]);
        });
    }

    fn edge_22_deallocate_of_a_name_in_a_pipeline(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let frames = Frames::new().parse("p", "select 1").sync().query("deallocate p").query("select 2");
            client.send(&frames.query("deallocate p").parse("p", "select 3").run("p").sync());
            client.expect("1 Z:I C:DEALLOCATE Z:I T D:2 C Z:I E:26000 Z:I 1 2 D:3 C Z:I");
            // The first has failed by then, and the second has not.
            client.send(&Frames::new().parse("q", "selec").sync().query("deallocate q").query("deallocate p"));
            client.expect("E:42601 Z:I E:26000 Z:I C:DEALLOCATE Z:I");
            prepare(&mut client, "r", "select 4");
            client.send(&Frames::new().query("select 5").query("deallocate r").query("deallocate r"));
            client.expect("T D:5 C Z:I C:DEALLOCATE Z:I E:26000 Z:I");
        });
    }

    /// As psycopg gives up what it has prepared when it is in pipeline mode, over a libpq before 17.
    fn edge_22_deallocate_of_a_name_by_the_extended_protocol(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for name in ["a", "b", "c", "Kept"] {
                prepare(&mut client, name, &format!("select '{name}'"));
            }
            client.send(&Frames::new().once("deallocate a").sync());
            client.expect("1 2 C:DEALLOCATE Z:I");
            client.send(&Frames::new().run("a").sync().once("deallocate a").sync());
            client.expect("E:26000 Z:I 1 2 E:26000 Z:I");
            let frames = Frames::new().run("b").once("deallocate b").parse("b", "select 'new'").run("b");
            client.send(&frames.sync());
            client.expect("2 D:b C 1 2 C:DEALLOCATE 1 2 D:new C Z:I");
            // The first has failed by then, and the second has not.
            let frames = Frames::new().parse("q", "selec").sync().once("deallocate q").sync();
            client.send(&frames.parse("r", "select 1").sync().once("deallocate r").once("deallocate c").sync());
            client.expect("E:42601 Z:I 1 2 E:26000 Z:I 1 Z:I 1 2 C:DEALLOCATE 1 2 C:DEALLOCATE Z:I");
            // What is skipped gives up nothing.
            client.send(&Frames::new().once("select 1 / 0").once("deallocate \"Kept\"").sync());
            client.expect("1 E:22012 Z:I");
            assert_eq!(run(&mut client, "Kept"), ["Kept"]);
            prepare(&mut client, "give_up", "deallocate prepare \"Kept\"");
            client.send(&Frames::new().run("give_up").sync().run("Kept").sync());
            client.expect("2 C:DEALLOCATE Z:I E:26000 Z:I");
        });
    }

    fn edge_22_deallocate_by_the_extended_protocol_in_a_transaction(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for name in ["within", "failed"] {
                prepare(&mut client, name, &format!("select '{name}'"));
            }
            client.ok("begin");
            client.send(&Frames::new().once("deallocate within").sync());
            client.expect("1 2 C:DEALLOCATE Z:T");
            client.query("select 1 / 0");
            client.send(&Frames::new().once("deallocate failed").sync());
            client.expect("E:25P02 Z:E");
            client.ok("rollback");
            // What DEALLOCATE does no rollback undoes.
            client.send(&Frames::new().run("within").sync());
            client.expect("E:26000 Z:I");
            assert_eq!(run(&mut client, "failed"), ["failed"]);
        });
    }

    /// Nor does it cost a server: the other client has the only one in between.
    fn edge_22_deallocate_of_a_name_does_not_hurt_another_client(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 2);
        for client in &mut clients {
            prepare(client, "shared", "select 2222");
        }
        for _ in 0..3 {
            clients[0].ok("deallocate shared");
            assert_eq!(run(&mut clients[1], "shared"), ["2222"]);
            prepare(&mut clients[0], "shared", "select 2222");
        }
        assert_eq!(statements_on_server(&mut clients[0], "select 2222"), "1");
        clients[0].send(&Frames::new().once("deallocate shared").sync());
        clients[0].expect("1 2 C:DEALLOCATE Z:I");
        assert_eq!(run(&mut clients[1], "shared"), ["2222"]);
        assert_eq!(clients[0].value("select count(*) from pg_prepared_statements where name = 'shared'"), "0");
        clients[0].ok("prepare own as select 1");
        assert_eq!(clients[0].query("deallocate own; select 1").value(), "1");
        assert_eq!(clients[0].query("deallocate own").code(), "26000");
    }

    /// By the name that servers know it by, which `pg_prepared_statements` shows.
    fn edge_13_nobody_runs_what_another_client_has_prepared(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 2);
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

    fn edge_16_a_second_parse_with_an_error_of_its_own_says_so(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            prepare(&mut client, "taken", "select 1");
            client.send(&Frames::new().parse("taken", "selec").sync());
            client.expect("E:42601 Z:I");
            assert_eq!(run(&mut client, "taken"), ["1"]);
        });
    }

    fn edge_25_a_known_statement_is_refused_in_a_failed_transaction(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    /// The server knows the second text already, and is asked whether it would take it now.
    fn edge_17_a_named_parse_in_a_failed_transaction_leaves_the_unnamed_statement(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            prepare(&mut client, "before", "select 1717");
            client.send(&Frames::new().query("begin").parse("", "select 17").sync().parse("wrong", "selec").sync());
            client.expect("C:BEGIN Z:T 1 Z:T E:42601 Z:E");
            client.send(&Frames::new().parse("again", "select 1717").sync());
            client.expect("E:25P02 Z:E");
            // Too many parameters for it: that there is one shows in the error.
            client.send(&Frames::new().bind("", &["1"]).execute().sync());
            client.expect("E:08P01 Z:E");
        });
    }

    fn edge_22_deallocate_all_of_one_client_does_not_hurt_another(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 2);
        for forget in ["deallocate all", "discard all"] {
            prepare(&mut clients[1], forget, "select 22");
            clients[0].ok(forget);
            assert_eq!(run(&mut clients[1], forget), ["22"]);
        }
        clients[0].send(&Frames::new().once("deallocate all").sync());
        clients[0].expect("1 2 C:DEALLOCATE_ALL Z:I");
        assert_eq!(run(&mut clients[1], "discard all"), ["22"]);
    }

    /// Postgres answers 0A000 for ever; through the gateway the statement works again after one error. Each client that
    /// knew the old columns gets that error, since its driver may have kept them; one that prepares anew does not.
    fn edge_23_a_changed_result_type_is_told_once_to_those_who_knew_another(fixture) {
        let table = fixture.own_table("a int");
        fixture.server.sql(&format!("insert into {table} values (1)"));
        let star = format!("select * from {table}");
        let gateway = fixture.gateway("size = 2\n");
        let mut clients = crowd(&gateway, 3);
        for client in &mut clients {
            prepare(client, "star", &star);
            assert_eq!(run(client, "star"), ["1"]);
        }
        // Both servers know the statement.
        clients[0].ok("begin");
        assert_eq!(run(&mut clients[1], "star"), ["1"]);
        clients[0].send(&Frames::new().run("star").sync());
        clients[0].expect("2 D:1 C:SELECT_1 Z:T");
        clients[0].ok("commit");
        fixture.server.sql(&format!("alter table {table} add b int default 2"));
        for client in &mut clients {
            client.send(&Frames::new().run("star").sync());
            let told = client.until_ready();
            assert_eq!(told.error.expect("an error").message, "cached plan must not change result type");
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

    /// Who hears of it first may do so by asking what the statement gives.
    fn edge_23_a_changed_result_type_that_a_describe_has_found(fixture) {
        let table = fixture.own_table("a int");
        fixture.server.sql(&format!("insert into {table} values (1)"));
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 2);
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

    fn edge_23_a_changed_result_type_in_a_transaction_is_an_error_once(fixture) {
        let table = fixture.own_table("a int");
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

    /// One text, two search paths, tables of different shapes.
    fn edge_24_a_statement_is_not_shared_between_search_paths(fixture) {
        let (left, right) = (fixture.name("s"), fixture.name("s"));
        fixture.server.sql(&format!("create schema {left}; create table {left}.t as select 1 as a"));
        fixture.server.sql(&format!("create schema {right}; create table {right}.t as select 'x' as b, 2.5 as c"));
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 2);
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

    /// A check is a simple query, which ends the unnamed statement on the server, but not for the client.
    fn edge_26_the_unnamed_statement_is_not_that_of_a_check(fixture) {
        let checks = fixture.own_table("n int");
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
            assert_eq!(count(fixture).parse::<u32>().expect("a count"), before + 1 + round, "it was checked in between");
        }
    }

    fn edge_26_the_unnamed_statement_is_not_that_of_another_client(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = crowd(&gateway, 4);
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

/// A server's analysis of a text may be older than the client's Parse.
#[test]
fn each_parse_of_a_client_reaches_a_server() {
    let server = FaultyServer::obliging();
    let gateway = gateway_before(&server, "size = 1\n");
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
