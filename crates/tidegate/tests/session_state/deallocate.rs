//! DEALLOCATE and DISCARD ALL in both query protocols.

use tidegate_testkit::{Frames, on_each_postgres};

use crate::prepared_statements::{clients, prepare, run, statements_on_server};

on_each_postgres! {
    /// EDGE-22.
    fn deallocate_all_and_discard_all_drop_statements(fixture) {
        fixture.on_both_targets(|target| {
            for drop_all in ["deallocate all", "discard all", "DEALLOCATE PREPARE ALL"] {
                let mut client = target.client();
                prepare(&mut client, "s", "select 1");
                assert_eq!(run(&mut client, "s"), ["1"]);
                client.ok(drop_all);
                client.send(&Frames::new().run("s").sync());
                client.expect("E:26000 Z:I");
                prepare(&mut client, "s", "select 2");
                assert_eq!(run(&mut client, "s"), ["2"]);
            }
        });
    }

    /// EDGE-22: DEALLOCATE ALL does not affect statements behind it in the pipeline, whether the server already
    /// had the text or not.
    fn parse_after_deallocate_all_in_a_pipeline(fixture) {
        fixture.on_both_targets(|target| {
            for drop_all in ["deallocate all", "discard all"] {
                let mut client = target.client();
                for _ in 0..2 {
                    client.send(&Frames::new().once(drop_all).sync().parse("c", "select 2222").run("c").sync());
                    client.expect("1 2 C Z:I 1 2 D:2222 C:SELECT_1 Z:I");
                    assert_eq!(run(&mut client, "c"), ["2222"]);
                    client.send(&Frames::new().close_statement("c").parse("c", "select 2222").run("c").sync());
                    client.expect("3 1 2 D:2222 C:SELECT_1 Z:I");
                }
            }
        });
    }

    /// EDGE-22.
    fn deallocate_all_among_other_statements(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            for _ in 0..2 {
                let next = Frames::new().parse("c", "select 2222").run("c").sync().run("c").sync();
                client.send(&Frames::new().query("deallocate all; select 1").then(&next));
                client.expect("C:DEALLOCATE_ALL T D:1 C:SELECT_1 Z:I 1 2 D:2222 C:SELECT_1 Z:I 2 D:2222 C:SELECT_1 Z:I");
            }
            client.send(&Frames::new().query("deallocate all; select 1/0").describe_statement("c").sync());
            client.expect("C:DEALLOCATE_ALL E:22012 Z:I E:26000 Z:I");
        });
    }

    /// EDGE-22: The second DEALLOCATE ALL fails, and the Parse between them is kept.
    fn deallocate_all_twice_in_one_pipeline(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let drop_all = Frames::new().parse("", "deallocate all").bind_portal("p", "", &[]).execute_portal("p", 0);
            client.send(&drop_all.parse("x", "select 2323").execute_portal("p", 0).sync().describe_statement("x").sync());
            let codes: Vec<_> = (0..2).map(|_| client.until_ready().code().to_owned()).collect();
            assert_eq!(codes, ["55000", ""]);
            assert_eq!(run(&mut client, "x"), ["2323"]);
        });
    }

    /// EDGE-22: PHP and Rails prepare by the protocol and deallocate by SQL.
    fn deallocate_drops_a_statement_of_the_protocol(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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

    /// EDGE-22.
    fn deallocate_of_a_name_in_a_transaction(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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
            // A rollback does not undo DEALLOCATE.
            client.send(&Frames::new().run("within").sync());
            client.expect("E:26000 Z:I");
            assert_eq!(run(&mut client, "failed"), ["failed"]);
        });
    }

    /// EDGE-22.
    fn deallocate_of_a_name_in_a_pipeline(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let frames = Frames::new().parse("p", "select 1").sync().query("deallocate p").query("select 2");
            client.send(&frames.query("deallocate p").parse("p", "select 3").run("p").sync());
            client.expect("1 Z:I C:DEALLOCATE Z:I T D:2 C Z:I E:26000 Z:I 1 2 D:3 C Z:I");
            // The Parse of the first name has failed, that of the second has not.
            client.send(&Frames::new().parse("q", "selec").sync().query("deallocate q").query("deallocate p"));
            client.expect("E:42601 Z:I E:26000 Z:I C:DEALLOCATE Z:I");
            prepare(&mut client, "r", "select 4");
            client.send(&Frames::new().query("select 5").query("deallocate r").query("deallocate r"));
            client.expect("T D:5 C Z:I C:DEALLOCATE Z:I E:26000 Z:I");
        });
    }

    /// EDGE-22: psycopg deallocates in pipeline mode with a libpq before 17.
    fn deallocate_of_a_name_by_the_extended_protocol(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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
            // The Parse of the first name has failed, that of the second has not.
            let frames = Frames::new().parse("q", "selec").sync().once("deallocate q").sync();
            client.send(&frames.parse("r", "select 1").sync().once("deallocate r").once("deallocate c").sync());
            client.expect("E:42601 Z:I 1 2 E:26000 Z:I 1 Z:I 1 2 C:DEALLOCATE 1 2 C:DEALLOCATE Z:I");
            // A skipped DEALLOCATE drops nothing.
            client.send(&Frames::new().once("select 1 / 0").once("deallocate \"Kept\"").sync());
            client.expect("1 E:22012 Z:I");
            assert_eq!(run(&mut client, "Kept"), ["Kept"]);
            prepare(&mut client, "drop", "deallocate prepare \"Kept\"");
            client.send(&Frames::new().run("drop").sync().run("Kept").sync());
            client.expect("2 C:DEALLOCATE Z:I E:26000 Z:I");
        });
    }

    /// EDGE-22.
    fn extended_deallocate_in_a_transaction(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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
            // A rollback does not undo DEALLOCATE.
            client.send(&Frames::new().run("within").sync());
            client.expect("E:26000 Z:I");
            assert_eq!(run(&mut client, "failed"), ["failed"]);
        });
    }

    /// EDGE-22: The server stays open: the other client uses it in between.
    fn deallocate_of_a_name_keeps_statements_of_others(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 2);
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

    /// EDGE-22.
    fn deallocate_all_keeps_statements_of_others(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut clients = clients(&gateway, 2);
        for drop_all in ["deallocate all", "discard all"] {
            prepare(&mut clients[1], drop_all, "select 22");
            clients[0].ok(drop_all);
            assert_eq!(run(&mut clients[1], drop_all), ["22"]);
        }
        clients[0].send(&Frames::new().once("deallocate all").sync());
        clients[0].expect("1 2 C:DEALLOCATE_ALL Z:I");
        assert_eq!(run(&mut clients[1], "discard all"), ["22"]);
    }
}
