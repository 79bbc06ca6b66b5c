//! COPY in every direction, and everything that can interrupt it.

use tidegate_testkit::{Frames, RawClient};

/// Sends a COPY IN by either protocol and waits until the server is ready for data.
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
    fn edge_27_copy_in_and_out_pass_through(fixture) {
        let table = fixture.own_table("n int, t text");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_27_a_copy_whose_data_came_with_the_query(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let copy = Frames::new().query(&format!("copy {table} from stdin"));
            client.send(&copy.copy_data(b"1\n").copy_done().query("select 'next'"));
            client.expect("G C:COPY_1 Z:I T D:next C:SELECT_1 Z:I");
        });
    }

    fn edge_27_bad_data_ends_a_simple_copy_and_the_rest_is_swallowed(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            begin_copy(&mut client, &table, false);
            client.send(&Frames::new().copy_data(b"1\nnot a number\n"));
            client.send(&Frames::new().copy_data(b"2\n").copy_data(b"3\n").copy_done());
            client.expect("E:22P02 Z:I");
            client.send(&Frames::new().copy_data(b"late\n").copy_fail("too late").query("select 'next'"));
            client.expect("T D:next C:SELECT_1 Z:I");
            assert_eq!(client.value(&format!("select count(*) from {table}")), "0");
        });
    }

    fn edge_27_bad_data_ends_an_extended_copy_and_the_rest_is_swallowed_to_sync(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            begin_copy(&mut client, &table, true);
            client.send(&Frames::new().copy_data(b"not a number\n").copy_data(b"1\n").copy_done());
            client.expect("E:22P02");
            client.send(&Frames::new().once("select 'discarded'").copy_fail("too late").sync());
            client.expect("Z:I");
            client.send(&Frames::new().once("select 'next'").sync());
            client.expect("1 2 D:next C:SELECT_1 Z:I");
        });
    }

    /// A Sync that comes while data is expected ends nothing: the transaction stays open, and its server with the client.
    fn edge_27_a_sync_that_a_copy_ignores_does_not_give_the_server_away(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        let copy = || Frames::new().once(&format!("copy {table} from stdin"));
        let count = Frames::new().query(&format!("select count(*) from {table}"));
        let insert = Frames::new().once(&format!("insert into {table} values (1)"));
        let given_up = copy().sync().copy_fail("on purpose").sync().then(&insert).flush();
        let well_done = copy().sync().copy_data(b"2\n").sync().copy_done().flush();
        for (frames, answer, before) in [
            (given_up, "1 2 G E:57014 Z:I 1 2 C:INSERT_0_1", "1"),
            (well_done, "1 2 G C:COPY_1", "2"),
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

    fn edge_27_a_sync_in_the_second_copy_of_a_query_does_not_keep_the_server(fixture) {
        let table = fixture.own_table("n int");
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

    /// The copy has ignored a Sync, of which nothing is heard until more is asked.
    fn edge_27_an_error_behind_bad_data_names_what_the_client_knows(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        let copy = Frames::new().parse("a", "select 1").once(&format!("copy {table} from stdin"));
        let data = copy.copy_data(b"1\n").sync().copy_data(b"not a number\n").sync();
        client.send(&data.parse("a", "select 2").sync());
        client.expect("1 1 2 G E:22P02 Z:I");
        assert_eq!(client.recv().error().message, "prepared statement \"a\" already exists");
        client.expect("Z:I");
    }

    fn edge_27_bad_data_in_a_prepared_copy(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().parse("copy", &format!("copy {table} from stdin")).sync());
            client.expect("1 Z:I");
            client.send(&Frames::new().run("copy").copy_data(b"x\n").copy_done().sync());
            client.expect("2 G E:22P02 Z:I");
            client.send(&Frames::new().run("copy").copy_data(b"27\n").copy_done().sync());
            client.expect("2 G C:COPY_1 Z:I");
            assert_eq!(client.value(&format!("delete from {table} returning n")), "27");
        });
    }

    fn edge_27_bad_data_in_a_transaction_fails_it(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.ok("begin");
            begin_copy(&mut client, &table, false);
            client.send(&Frames::new().copy_data(b"x\n").copy_done());
            client.expect("E:22P02 Z:E");
            assert_eq!(client.query("select 1").code(), "25P02");
            assert_eq!(client.ok("rollback").status, 'I');
        });
    }

    fn edge_27_copy_fail_is_the_clients_own_error(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
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

    fn edge_27_a_copy_refused_at_once_swallows_its_data(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let copy = Frames::new().query("copy no_such_table from stdin").copy_data(b"1\n").copy_done();
            client.send(&copy.query("select 'next'"));
            client.expect("E:42P01 Z:I T D:next C:SELECT_1 Z:I");
        });
    }

    fn edge_27_a_query_in_place_of_copy_data_ends_the_copy(fixture) {
        let table = fixture.own_table("n int");
        fixture.direct().client().ok(&format!("truncate {table}"));
        // Postgres takes this for a lost synchronisation and closes the connection.
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

    fn edge_28_a_sync_during_copy_in_brings_no_ready_for_query(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().once(&format!("copy {table} from stdin")).sync());
            client.expect("1 2 G");
            client.send(&Frames::new().copy_data(b"1\n").flush().sync().copy_done().sync());
            client.expect("C:COPY_1 Z:I");
            client.send(&Frames::new().query("select 'next'"));
            client.expect("T D:next C:SELECT_1 Z:I");
        });
    }

    /// The Sync is on its way before anybody knows that the Query is a COPY.
    fn edge_28_a_sync_behind_a_simple_copy_is_not_counted(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let copy = Frames::new().query(&format!("copy {table} from stdin")).sync().copy_data(b"1\n").copy_done();
            client.send(&copy.close_statement("none").sync());
            client.expect("G C:COPY_1 Z:I 3 Z:I");
            door.client().ok("select 'the server is free'");
        });
    }

    fn edge_28_an_error_in_a_copy_with_a_swallowed_sync(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().once(&format!("copy {table} from stdin")).sync());
            client.expect("1 2 G");
            client.send(&Frames::new().copy_data(b"x\n").copy_done().sync());
            client.expect("E:22P02 Z:I");
            client.send(&Frames::new().query("select 'next'"));
            client.expect("T D:next C:SELECT_1 Z:I");
        });
    }

    fn edge_29_a_client_that_vanishes_in_copy_in_leaves_nothing(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        for (extended, reset) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut vanishing = gateway.client("postgres");
            begin_copy(&mut vanishing, &table, extended);
            vanishing.send(&Frames::new().copy_data(b"1\n2\n"));
            vanishing.vanish(reset);
            let mut next = gateway.client("postgres");
            assert_eq!(next.value(&format!("select count(*) from {table}")), "0");
        }
    }

    fn edge_29_a_client_that_vanishes_in_copy_out_does_not_hold_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut vanishing = gateway.client("postgres");
        vanishing.send(&Frames::new().query("copy (select repeat('x', 1000) from generate_series(1, 100000)) to stdout"));
        vanishing.expect("H d");
        vanishing.vanish(true);
        let mut next = gateway.client("postgres");
        assert_eq!(next.value("select 'served'"), "served");
    }

    fn edge_30_a_replication_stream_passes_both_ways(fixture) {
        let script = |startup: tidegate_testkit::Startup| {
            let mut client = startup.parameter("replication", "true").connect();
            let identity = client.ok("IDENTIFY_SYSTEM").rows.remove(0);
            client.send(&Frames::new().query(&format!("START_REPLICATION PHYSICAL {}", identity[2])));
            // Primary keepalives may come at any time.
            client.expect("W");
            client.send(&Frames::new().copy_data(&status_update()).copy_done());
            client.expect("d* c C C:START_REPLICATION Z:I");
            client.ok("IDENTIFY_SYSTEM");
        };
        script(fixture.server.startup());
        script(fixture.gateway("size = 2\n").startup("postgres"));
    }
}

/// A standby status update that asks for an answer.
fn status_update() -> Vec<u8> {
    let mut update = vec![b'r'];
    update.extend([0; 32]);
    update.push(1);
    update
}
