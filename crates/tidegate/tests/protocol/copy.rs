//! COPY in both directions, with errors and disconnects.

use tidegate_testkit::{Frames, RawClient, on_each_postgres};

/// Starts COPY FROM STDIN by either protocol and waits until the server accepts data.
#[track_caller]
fn begin_copy(client: &mut RawClient, table: &str, extended: bool) {
    let sql = format!("copy {table} from stdin");
    if extended {
        client.send(&Frames::new().once(&sql).flush());
        client.expect("1 2 G");
    } else {
        client.send(&Frames::new().query(&sql));
        client.expect("G");
    }
}

on_each_postgres! {
    /// EDGE-27.
    fn copy_in_and_copy_out_pass_through(fixture) {
        let table = fixture.create_table("n int, t text");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.ok(&format!("truncate {table}"));
            begin_copy(&mut client, &table, false);
            client.send(&Frames::new().copy_data(b"1\tone\n2\t").copy_data(b"two\n").copy_done());
            client.expect("C:COPY_2 Z:I");
            begin_copy(&mut client, &table, true);
            client.send(&Frames::new().copy_data(b"3\tthree\n").copy_done().sync());
            client.expect("C:COPY_1 Z:I");
            client.send(&Frames::new().query(&format!("copy {table} to stdout")));
            client.expect("H d:1_one d:2_two d:3_three c C:COPY_3 Z:I");
            client.send(&Frames::new().once(&format!("copy {table} to stdout")).sync());
            client.expect("1 2 H d:1_one d:2_two d:3_three c C:COPY_3 Z:I");
        });
    }

    /// EDGE-27.
    fn copy_data_sent_with_the_query(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let copy = Frames::new().query(&format!("copy {table} from stdin"));
            client.send(&copy.copy_data(b"1\n").copy_done().query("select 'next'"));
            client.expect("G C:COPY_1 Z:I T D:next C:SELECT_1 Z:I");
        });
    }

    /// EDGE-27.
    fn bad_data_in_simple_copy_discards_the_rest(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            begin_copy(&mut client, &table, false);
            client.send(&Frames::new().copy_data(b"1\nnot a number\n"));
            client.send(&Frames::new().copy_data(b"2\n").copy_data(b"3\n").copy_done());
            client.expect("E:22P02 Z:I");
            client.send(&Frames::new().copy_data(b"late\n").copy_fail("too late").query("select 'next'"));
            client.expect("T D:next C:SELECT_1 Z:I");
            assert_eq!(client.value(&format!("select count(*) from {table}")), "0");
        });
    }

    /// EDGE-27.
    fn bad_data_in_extended_copy_discards_up_to_sync(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            begin_copy(&mut client, &table, true);
            client.send(&Frames::new().copy_data(b"not a number\n").copy_data(b"1\n").copy_done());
            client.expect("E:22P02");
            client.send(&Frames::new().once("select 'discarded'").copy_fail("too late").sync());
            client.expect("Z:I");
            client.send(&Frames::new().once("select 'next'").sync());
            client.expect("1 2 D:next C:SELECT_1 Z:I");
        });
    }

    /// EDGE-27: A Sync that arrives while data is expected ends nothing: the transaction stays open and keeps its
    /// server.
    fn sync_ignored_by_copy_keeps_the_server(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        let copy = || Frames::new().once(&format!("copy {table} from stdin"));
        let count = Frames::new().query(&format!("select count(*) from {table}"));
        let insert = Frames::new().once(&format!("insert into {table} values (1)"));
        let failed = copy().sync().copy_fail("on purpose").sync().then(&insert).flush();
        let completed = copy().sync().copy_data(b"2\n").sync().copy_done().flush();
        for (frames, answer, before) in [
            (failed, "1 2 G E:57014 Z:I 1 2 C:INSERT_0_1", "1"),
            (completed, "1 2 G C:COPY_1", "2"),
        ] {
            client.send(&frames);
            client.expect(answer);
            other.send(&count);
            gateway.wait_for_pool("postgres", "cl_waiting", 1);
            client.send(&Frames::new().sync());
            client.expect("Z:I");
            other.expect(&format!("T D:{before} C:SELECT_1 Z:I"));
        }
    }

    /// EDGE-27.
    fn sync_in_second_copy_of_a_query_frees_the_server(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query(&format!("copy {table} from stdin; copy {table} from stdin")));
        client.expect("G");
        client.send(&Frames::new().copy_data(b"1\n").copy_done());
        client.expect("C:COPY_1 G");
        client.send(&Frames::new().copy_data(b"2\n").sync().copy_done());
        client.expect("C:COPY_1 Z:I");
        assert_eq!(gateway.client("postgres").value(&format!("select count(*) from {table}")), "2");
    }

    /// EDGE-27: COPY has ignored a Sync, which shows only with the next request.
    fn error_after_bad_data_has_the_name_of_the_client(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        let copy = Frames::new().parse("a", "select 1").once(&format!("copy {table} from stdin"));
        let data = copy.copy_data(b"1\n").sync().copy_data(b"not a number\n").sync();
        client.send(&data.parse("a", "select 2").sync());
        client.expect("1 1 2 G E:22P02 Z:I");
        assert_eq!(client.recv().error().message, "prepared statement \"a\" already exists");
        client.expect("Z:I");
    }

    /// EDGE-27.
    fn bad_data_in_a_prepared_copy(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().parse("copy", &format!("copy {table} from stdin")).sync());
            client.expect("1 Z:I");
            client.send(&Frames::new().run("copy").copy_data(b"x\n").copy_done().sync());
            client.expect("2 G E:22P02 Z:I");
            client.send(&Frames::new().run("copy").copy_data(b"27\n").copy_done().sync());
            client.expect("2 G C:COPY_1 Z:I");
            assert_eq!(client.value(&format!("delete from {table} returning n")), "27");
        });
    }

    /// EDGE-27.
    fn bad_data_fails_the_transaction(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.ok("begin");
            begin_copy(&mut client, &table, false);
            client.send(&Frames::new().copy_data(b"x\n").copy_done());
            client.expect("E:22P02 Z:E");
            assert_eq!(client.query("select 1").code(), "25P02");
            assert_eq!(client.ok("rollback").status, 'I');
        });
    }

    /// EDGE-27.
    fn copy_fail_returns_an_error(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            for extended in [false, true] {
                begin_copy(&mut client, &table, extended);
                client.send(&Frames::new().copy_data(b"1\n").copy_fail("changed my mind"));
                client.expect("E:57014");
                if extended {
                    client.send(&Frames::new().sync());
                }
                client.expect("Z:I");
            }
        });
    }

    /// EDGE-27.
    fn data_of_a_rejected_copy_is_discarded(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let copy = Frames::new().query("copy no_such_table from stdin").copy_data(b"1\n").copy_done();
            client.send(&copy.query("select 'next'"));
            client.expect("E:42P01 Z:I T D:next C:SELECT_1 Z:I");
        });
    }

    /// EDGE-27.
    fn query_instead_of_copy_data_ends_the_copy(fixture) {
        let table = fixture.create_table("n int");
        fixture.direct().client().ok(&format!("truncate {table}"));
        // Postgres reports lost synchronization and closes the connection.
        let mut direct = fixture.direct().client();
        begin_copy(&mut direct, &table, false);
        direct.send(&Frames::new().query("select 1"));
        direct.expect("E:08P01");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        begin_copy(&mut client, &table, false);
        client.send(&Frames::new().query("select 1"));
        client.expect("E:08P01");
        let mut next = gateway.client("postgres");
        assert_eq!(next.value(&format!("select count(*) from {table}")), "0");
    }

    /// EDGE-28.
    fn sync_in_copy_in_gets_no_ready_for_query(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().once(&format!("copy {table} from stdin")).sync());
            client.expect("1 2 G");
            client.send(&Frames::new().copy_data(b"1\n").flush().sync().copy_done().sync());
            client.expect("C:COPY_1 Z:I");
            client.send(&Frames::new().query("select 'next'"));
            client.expect("T D:next C:SELECT_1 Z:I");
        });
    }

    /// EDGE-28: The Sync is sent before CopyInResponse shows that the query is a COPY.
    fn sync_after_simple_copy_gets_no_reply(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let copy = Frames::new().query(&format!("copy {table} from stdin")).sync().copy_data(b"1\n").copy_done();
            client.send(&copy.close_statement("none").sync());
            client.expect("G C:COPY_1 Z:I 3 Z:I");
            target.client().ok("select 'the server is free'");
        });
    }

    /// EDGE-28.
    fn error_in_copy_after_an_ignored_sync(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().once(&format!("copy {table} from stdin")).sync());
            client.expect("1 2 G");
            client.send(&Frames::new().copy_data(b"x\n").copy_done().sync());
            client.expect("E:22P02 Z:I");
            client.send(&Frames::new().query("select 'next'"));
            client.expect("T D:next C:SELECT_1 Z:I");
        });
    }

    /// EDGE-29.
    fn disconnect_in_copy_in_rolls_back(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        for (extended, reset) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut client = gateway.client("postgres");
            begin_copy(&mut client, &table, extended);
            client.send(&Frames::new().copy_data(b"1\n2\n"));
            client.disconnect(reset);
            let mut next = gateway.client("postgres");
            assert_eq!(next.value(&format!("select count(*) from {table}")), "0");
        }
    }

    /// EDGE-29.
    fn disconnect_in_copy_out_frees_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().query("copy (select repeat('x', 1000) from generate_series(1, 100000)) to stdout"));
        client.expect("H d");
        client.disconnect(true);
        let mut next = gateway.client("postgres");
        assert_eq!(next.value("select 'served'"), "served");
    }
}
