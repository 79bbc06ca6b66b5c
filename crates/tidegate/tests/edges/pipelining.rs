//! Pipelines, and the moment at which a server is free again.

use std::io::Write;
use std::thread;
use std::time::Duration;

use crate::gateway_before;
use tidegate_testkit::{FaultyServer, Frames, RawClient, eventually, reply};

/// Fails when it runs, not when it is planned.
const FAILING: &str = "select 1 / (random() * 0)::int";

on_each_postgres! {
    /// The second segment is on its way to the server when the first ReadyForQuery comes: whoever is lent the server
    /// at that moment reads the second segment's reply.
    fn edge_01_two_syncs_in_flight_release_after_the_last(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut pipelined = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        let first = Frames::new().once("select 'first', pg_sleep(0.1)").sync();
        pipelined.send(&first.once("select 'second'").sync());
        waiting.send(&Frames::new().query("select 'other'"));
        pipelined.expect("1 2 D:first, C:SELECT_1 Z:I 1 2 D:second C:SELECT_1 Z:I");
        waiting.expect("T D:other C:SELECT_1 Z:I");
    }

    fn edge_01_a_pause_before_the_last_sync_keeps_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut pipelined = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        pipelined.send(&Frames::new().once("select 1").sync().once("select 2").flush());
        pipelined.expect("1 2 D:1 C:SELECT_1 Z:I 1 2 D:2 C:SELECT_1");
        waiting.send(&Frames::new().query("select 3"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        assert!(!waiting.anything_arrived());
        pipelined.send(&Frames::new().sync());
        pipelined.expect("Z:I");
        waiting.expect("T D:3 C:SELECT_1 Z:I");
    }

    fn edge_02_after_an_error_everything_up_to_sync_is_discarded(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let failing = Frames::new().once("select 1").once(FAILING).once("select 3");
            client.send(&failing.sync().once("select 4").sync());
            client.expect("1 2 D:1 C:SELECT_1 1 2 E:22012 Z:I 1 2 D:4 C:SELECT_1 Z:I");
        });
    }

    fn edge_02_the_discarded_part_may_come_after_the_error_was_read(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().once(FAILING).flush());
            client.expect("1 2 E:22012");
            client.send(&Frames::new().parse("late", "select 2").run("late").flush());
            client.send(&Frames::new().query("select 'a simple query is discarded as well'"));
            client.send(&Frames::new().sync());
            client.expect("Z:I");
            client.send(&Frames::new().bind("late", &[]).sync());
            client.expect("E:26000 Z:I");
            client.ok("select 3");
        });
    }

    /// The error is known, its Sync is not: what stands behind the Sync in the same write is a request like any other.
    fn edge_02_a_request_behind_the_late_sync_is_answered(fixture) {
        fixture.at_both_doors(|door| {
            for late in [Frames::new(), Frames::new().copy_fail("stray"), Frames::new().once("select 'discarded'")] {
                let mut client = door.client();
                let mut other = door.client();
                client.send(&Frames::new().once(FAILING).flush());
                client.expect("1 2 E:22012");
                client.send(&late.sync().query("select 'behind', pg_sleep(0.05)").once("select 'last'").sync());
                other.send(&Frames::new().query("select 'other'"));
                client.expect("Z:I T D:behind, C:SELECT_1 Z:I 1 2 D:last C:SELECT_1 Z:I");
                other.expect("T D:other C:SELECT_1 Z:I");
            }
        });
    }

    fn edge_02_an_error_that_waits_for_its_sync_keeps_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut failed = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        failed.send(&Frames::new().once(FAILING).flush());
        failed.expect("1 2 E:22012");
        waiting.send(&Frames::new().query("select 'other'"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        failed.send(&Frames::new().sync());
        failed.expect("Z:I");
        waiting.expect("T D:other C:SELECT_1 Z:I");
    }

    fn edge_03_flush_without_sync_is_answered_at_once(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let described = Frames::new().parse("", "select 7 as n").bind("", &[]).describe_portal("");
            client.send(&described.execute().flush());
            client.expect("1 2 T:n D:7 C:SELECT_1");
            assert!(!client.anything_arrived());
            client.send(&Frames::new().sync());
            client.expect("Z:I");
        });
    }

    fn edge_03_flush_keeps_the_server_until_sync(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut flushed = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        flushed.send(&Frames::new().once("select 1").flush());
        flushed.expect("1 2 D:1 C:SELECT_1");
        waiting.send(&Frames::new().query("select 2"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        flushed.send(&Frames::new().once("select 3").flush());
        flushed.expect("1 2 D:3 C:SELECT_1");
        assert!(!waiting.anything_arrived());
        flushed.send(&Frames::new().sync());
        flushed.expect("Z:I");
        waiting.expect("T D:2 C:SELECT_1 Z:I");
    }

    fn edge_04_parse_then_flush_then_bind_stays_on_one_backend(fixture) {
        let gateway = fixture.gateway("size = 3\n");
        let mut client = gateway.client("postgres");
        let mut others: Vec<_> = (0..2).map(|_| gateway.client("postgres")).collect();
        client.send(&Frames::new().parse("pid", "select pg_backend_pid()").describe_statement("pid").flush());
        client.expect("1 t T:pg_backend_pid");
        others.iter_mut().for_each(|other| drop(other.backend()));
        client.send(&Frames::new().run("pid").flush());
        let first = client.expect("2 D C:SELECT_1")[1].texts();
        others.iter_mut().for_each(|other| drop(other.backend()));
        client.send(&Frames::new().run("pid").sync());
        let second = client.expect("2 D C:SELECT_1 Z:I")[1].texts();
        assert_eq!(first, second);
    }

    fn edge_05_a_pipeline_of_many_executes_is_answered_in_order(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let mut frames = Frames::new().parse("n", "select $1");
            for number in 0..500 {
                frames = frames.bind("n", &[&number.to_string()]).execute();
            }
            client.send(&frames.sync());
            client.expect("1");
            for number in 0..500 {
                client.expect(&format!("2 D:{number} C:SELECT_1"));
            }
            client.expect("Z:I");
        });
    }

    fn edge_06_a_partial_pipeline_of_a_vanished_client_leaves_no_trace(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut vanishing = gateway.client("postgres");
        vanishing.send(&Frames::new().once(&format!("insert into {table} values (1)")).flush());
        vanishing.expect("1 2 C:INSERT_0_1");
        vanishing.vanish(false);
        let mut next = gateway.client("postgres");
        next.send(&Frames::new().once(&format!("select count(*) from {table}")).sync());
        next.expect("1 2 D:0 C:SELECT_1 Z:I");
    }

    fn edge_06_half_a_message_of_a_vanished_client_leaves_no_trace(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for cut in [1, 3, 5, 9, 30] {
            let mut vanishing = gateway.client("postgres");
            let frames = Frames::new().once("select 1").bind("", &["an unfinished value"]);
            let whole = Frames::new().once("select 1").bytes().len();
            vanishing.send_bytes(&frames.bytes()[..whole + cut]);
            vanishing.vanish(cut == 3);
            let mut next = gateway.client("postgres");
            assert_eq!(next.value("select 'clean'"), "clean");
        }
    }

    fn edge_07_big_pipelines_in_both_directions_do_not_deadlock(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            let value = "x".repeat(20_000);
            let mut frames = Frames::new().parse("echo", "select $1::text || $1::text");
            for _ in 0..500 {
                frames = frames.bind("echo", &[&value]).execute();
            }
            let frames = frames.sync();
            let mut writer = client.writer();
            let writing = thread::spawn(move || writer.write_all(frames.bytes()));
            client.expect("1");
            for _ in 0..500 {
                let row = &client.expect("2 D C:SELECT_1")[1];
                assert_eq!(row.values()[0].as_ref().map(Vec::len), Some(40_000));
            }
            client.expect("Z:I");
            writing.join().expect("the writer does not panic").expect("all is written");
        });
    }

    /// Without a Sync or a Flush the server keeps its replies back, and whoever stops reading the client before it has sent one
    /// waits for ever.
    fn edge_07_a_pipeline_of_any_length_may_come_without_a_sync(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().parse("one", "select 1").sync());
        client.expect("1 Z:I");
        let mut runs = Frames::new();
        for _ in 0..20_000 {
            runs = runs.run("one");
        }
        let mut texts = Frames::new();
        let padding = "x".repeat(100_000);
        for number in 0..300 {
            texts = texts.parse("", &format!("select {number} /* {padding} */"));
        }
        // All but the first are answered by the gateway, each in its turn.
        let mut known = Frames::new().parse("", "select 2");
        for _ in 0..10_000 {
            known = known.parse("again", "select 1").close_statement("again");
        }
        for (frames, reply, replies) in [(runs, b'C', 20_000), (texts.run(""), b'1', 300), (known, b'3', 10_000)] {
            let (mut writer, bytes) = (client.writer(), frames.sync().bytes().to_vec());
            let writing = thread::spawn(move || writer.write_all(&bytes));
            let outcome = client.until_ready();
            writing.join().expect("the writer does not panic").expect("all is written");
            assert!(outcome.error.is_none(), "{:?}", outcome.error);
            assert_eq!(outcome.messages.iter().filter(|message| message.tag == reply).count(), replies);
        }
    }

    /// The gateway takes no more from it than the queues hold.
    fn edge_07_a_client_that_does_not_read_its_rows_is_held_back(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.startup("postgres").receive_buffer_bytes(4_096).connect();
        let query = Frames::new().query(&format!("select repeat('x', 20000) /* {} */", "y".repeat(20_000)));
        let taken = taken_of_a_client_that_does_not_read(&client, query.bytes());
        assert!(taken < TAKEN_BYTES_MAX, "{taken} bytes were taken");
        // It reads after all, and nothing is lost.
        for _ in 0..taken / query.bytes().len() {
            assert_eq!(client.until_ready().rows[0][0].len(), 20_000);
        }
    }

    fn edge_08_answers_made_by_the_gateway_come_in_order(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().parse("one", "select 1").sync());
            client.expect("1 Z:I");
            let known = Frames::new().run("one").parse("again", "select 1").run("again");
            let closed = known.close_statement("again").run("one").parse("again", "select 1").close_statement("one");
            client.send(&closed.run("again").sync());
            client.expect("2 D:1 C:SELECT_1 1 2 D:1 C:SELECT_1 3 2 D:1 C:SELECT_1 1 3 2 D:1 C:SELECT_1 Z:I");
        });
    }

    fn edge_08_parse_and_close_alone_are_answered(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for _ in 0..3 {
                client.send(&Frames::new().parse("only", "select 1").flush());
                client.expect("1");
                client.send(&Frames::new().close_statement("only").flush());
                client.expect("3");
                client.send(&Frames::new().sync().sync());
                client.expect("Z:I Z:I");
            }
        });
    }

    fn edge_09_a_simple_query_may_follow_an_unsynced_parse(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.send(&Frames::new().parse("kept", "select 5").query("select 6").run("kept").sync());
            client.expect("1 T D:6 C:SELECT_1 Z:I 2 D:5 C:SELECT_1 Z:I");
        });
    }

    fn edge_09_a_simple_query_may_follow_an_unsynced_execute(fixture) {
        let table = fixture.own_table("n int");
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            client.ok(&format!("truncate {table}"));
            let insert = format!("insert into {table} values (1)");
            client.send(&Frames::new().once(&insert).query(&format!("select count(*) from {table}")));
            // Later versions keep the pipeline's transaction open up to its Sync.
            client.expect("1 2 C:INSERT_0_1 T D:1 C:SELECT_1 Z");
            client.send(&Frames::new().sync());
            client.expect("Z:I");
            let mut client = door.client();
            client.send(&Frames::new().once(FAILING).query("select 'discarded'").sync());
            client.expect("1 2 E:22012 Z:I");
        });
    }

    /// The Query is discarded with the rest: the server waits for a Sync, and must not go to anybody else before.
    fn edge_09_a_query_discarded_after_an_error_does_not_free_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut failing = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        failing.send(&Frames::new().describe_portal("unknown").query("select 'discarded'"));
        failing.expect("E:34000");
        other.send(&Frames::new().query("select 'other'"));
        failing.send(&Frames::new().sync().query("select 'behind'"));
        failing.expect("Z:I T D:behind C:SELECT_1 Z:I");
        other.expect("T D:other C:SELECT_1 Z:I");
    }

    /// Postgres 18 is confused after this: its next extended query fails with an internal error (XX000).
    fn edge_09_a_server_confused_by_a_mixed_pipeline_is_not_given_to_the_next_client(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut mixing = gateway.client("postgres");
        mixing.send(&Frames::new().once("select 1").query("select 2"));
        mixing.expect("1 2 D:1 C:SELECT_1 T D:2 C:SELECT_1 Z");
        mixing.send(&Frames::new().sync());
        mixing.expect("Z:I");
        let mut next = gateway.client("postgres");
        next.send(&Frames::new().once("select 3").sync());
        next.expect("1 2 D:3 C:SELECT_1 Z:I");
    }

    /// asyncpg prepares by Parse, Describe and Flush, and begins a transaction by a Query.
    fn a_query_behind_parse_and_flush_keeps_the_server_usable(fixture) {
        for mode in ["transaction", "session"] {
            let gateway = fixture.gateway(&format!("mode = \"{mode}\"\nsize = 1\n"));
            let backends: Vec<_> = (0..5).map(|round| {
                let mut client = gateway.client("postgres");
                client.send(&Frames::new().parse("s", "select $1::int").describe_statement("s").flush());
                client.expect("1 t T");
                client.ok("begin");
                client.send(&Frames::new().parse("", "select 1").bind("", &[]).describe_portal("").flush());
                client.expect("1 2 T");
                client.ok("commit");
                client.send(&Frames::new().close_statement("unknown").bind("s", &[&round.to_string()]).flush());
                client.expect("3 2");
                client.backend()
            }).collect();
            assert!(backends.iter().all(|backend| *backend == backends[0]), "{mode}: {backends:?}");
        }
    }

    fn a_query_behind_a_failed_parse_is_discarded(fixture) {
        fixture.at_both_doors(|door| {
            let mut client = door.client();
            for flush in [true, false] {
                let parse = Frames::new().parse("s", "selec");
                client.send(&if flush { parse.flush() } else { parse });
                if flush {
                    client.expect("E:42601");
                }
                client.send(&Frames::new().query("select 'discarded'").sync().query("select 'behind'"));
                if !flush {
                    client.expect("E:42601");
                }
                client.expect("Z:I T D:behind C:SELECT_1 Z:I");
            }
        });
    }

    fn a_client_that_leaves_behind_parse_keeps_the_server(fixture) {
        for mode in ["transaction", "session"] {
            let gateway = fixture.gateway(&format!("mode = \"{mode}\"\nsize = 1\n"));
            let backend = gateway.client("postgres").backend();
            for (begins, text, answer) in
                [(false, "select 1", "1 t T"), (true, "select 1", "1 t T"), (false, "selec", "E"), (true, "selec", "E")]
            {
                let mut leaving = gateway.client("postgres");
                if begins {
                    leaving.ok("begin");
                }
                leaving.send(&Frames::new().parse("", text).describe_statement("").flush());
                leaving.expect(answer);
                leaving.vanish(false);
                let mut next = gateway.client("postgres");
                assert_eq!(next.backend(), backend, "{mode}: {text} in a transaction: {begins}");
            }
        }
    }

    fn edge_10_an_open_or_failed_transaction_keeps_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        assert_eq!(owner.ok("begin").status, 'T');
        waiting.send(&Frames::new().query("select 'other'"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        assert_eq!(owner.query(FAILING).status, 'E');
        assert_eq!(owner.query("select 1").code(), "25P02");
        assert!(!waiting.anything_arrived());
        assert_eq!(owner.ok("rollback").status, 'I');
        waiting.expect("T D:other C:SELECT_1 Z:I");
    }

    fn edge_10_statement_mode_refuses_begin_and_keeps_the_client(fixture) {
        let table = fixture.own_table("n int");
        let gateway = fixture.gateway("mode = \"statement\"\nsize = 1\n");
        let mut client = gateway.client("postgres");
        for begin in ["begin", "BEGIN; insert into TABLE values (1)", "start transaction"] {
            let outcome = client.query(&begin.replace("TABLE", &table));
            assert_eq!(outcome.code(), "0A000", "{begin}: {outcome:?}");
            assert_eq!(outcome.status, 'I', "{begin}");
        }
        client.send(&Frames::new().once("begin").sync());
        assert_eq!(client.until_ready().code(), "0A000");
        assert_eq!(client.value(&format!("select count(*) from {table}")), "0");
    }

    fn edge_11_only_the_status_decides_not_the_words_of_a_multi_statement(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        assert_eq!(client.ok("begin; select 1; commit").status, 'I');
        assert_eq!(client.ok("select 1; begin; select 2").status, 'T');
        let pid = client.backend();
        assert_ne!(other.backend(), pid);
        assert_eq!(client.ok("commit; begin").status, 'T');
        assert_eq!(client.backend(), pid);
        assert_eq!(client.query("select 'commit'; select 1/0; commit").status, 'E');
        assert_eq!(client.ok("rollback; select 'begin'").status, 'I');
        gateway.wait_for_pool("postgres", "sv_active", 0);
    }

    fn edge_12_pause_waits_for_the_transaction(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut client = gateway.client("postgres");
        let mut other = gateway.client("postgres");
        let mut console = gateway.console();
        client.ok("begin");
        console.send(&Frames::new().query("PAUSE postgres"));
        eventually("new work is held", || gateway.show("DATABASES").iter().any(|row| {
            row["name"] == "postgres" && row["paused"] == "1"
        }));
        other.send(&Frames::new().query("select 'other'"));
        assert_eq!(client.value("select 1"), "1");
        assert!(!console.anything_arrived());
        assert!(!other.anything_arrived());
        client.ok("commit");
        console.expect("C:PAUSE Z:I");
        assert!(!other.anything_arrived());
        console.ok("RESUME postgres");
        other.expect("T D:other C:SELECT_1 Z:I");
    }

    fn edge_12_reconnect_waits_for_the_transaction(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let before = client.backend();
        gateway.console().ok("RECONNECT postgres");
        assert_eq!(client.backend(), before);
        client.ok("commit");
        assert_ne!(client.backend(), before);
    }

    fn edge_12_reload_does_not_disturb_a_transaction(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let before = client.backend();
        gateway.rewrite("databases.postgres.size", 2);
        gateway.console().ok("RELOAD");
        assert_eq!(client.backend(), before);
        assert_eq!(client.ok("commit").status, 'I');
        let mut others: Vec<_> = (0..2).map(|_| gateway.client("postgres")).collect();
        others.iter_mut().for_each(|other| drop(other.ok("begin")));
    }
}

/// What the sockets of this machine hold between a client, the gateway and a server is a part of it.
const TAKEN_BYTES_MAX: usize = 64 << 20;

/// Sends one message over and over, and reads nothing. How many bytes of four times as many as there may be are taken before
/// none are.
fn taken_of_a_client_that_does_not_read(client: &RawClient, message: &[u8]) -> usize {
    let mut writer = client.writer();
    writer.set_write_timeout(Some(Duration::from_secs(2))).expect("a socket has timeouts");
    let many = message.repeat((1 << 20) / message.len() + 1);
    let mut taken = 0;
    while taken < 4 * TAKEN_BYTES_MAX {
        match writer.write(&many[taken % message.len()..]) {
            Ok(bytes) => taken += bytes,
            Err(_) => break,
        }
    }
    taken
}

/// Whatever it sends; of some messages the gateway keeps more than it passes on.
#[test]
fn edge_07_a_client_whose_server_does_not_answer_is_held_back() {
    let text = format!("select 1 /* {} */", "x".repeat(10_000));
    let cases = [
        ("unnamed", Frames::new().parse("", &text)),
        ("closed", Frames::new().parse("", &text).close_statement("")),
        ("named", Frames::new().parse("a", &text).close_statement("a")),
        ("small", Frames::new().execute()),
        ("synced", Frames::new().once("select 1").sync()),
        ("simple", Frames::new().query(&text)),
    ];
    for (what, frames) in cases {
        let server = FaultyServer::start(|connection| {
            connection.log_in()?;
            connection.stay_silent()
        });
        let gateway = gateway_before(&server, "size = 1\n");
        let client = gateway.client("postgres");
        let before = gateway.memory_bytes();
        let taken = taken_of_a_client_that_does_not_read(&client, frames.bytes());
        let kept = gateway.memory_bytes().saturating_sub(before);
        // A simple query leaves next to nothing behind but that it is owed an answer.
        let taken_max = if what == "simple" { 4 * TAKEN_BYTES_MAX } else { TAKEN_BYTES_MAX };
        assert!(taken < taken_max, "{what}: {taken} bytes were taken");
        assert!(kept < TAKEN_BYTES_MAX, "{what}: {kept} bytes are kept");
    }
}

/// Who is idle is answered by the gateway alone, and held back by what it has not read of that.
#[test]
fn edge_07_a_client_that_does_not_read_the_answers_of_the_gateway_is_held_back() {
    let server = FaultyServer::obliging();
    let gateway = gateway_before(&server, "size = 1\n");
    let client = gateway.startup("postgres").receive_buffer_bytes(4_096).connect();
    let taken = taken_of_a_client_that_does_not_read(&client, Frames::new().sync().bytes());
    assert!(taken < TAKEN_BYTES_MAX, "{taken} bytes were taken");
}

/// The gateway's own answers stand before a message of the server or behind it, in however many pieces that comes.
#[test]
fn edge_08_answers_made_by_the_gateway_do_not_stand_within_a_notification() {
    let whole = reply::notification(7, "channel", "a payload");
    let length = whole.len();
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        let mut rest = Vec::new();
        loop {
            let message = connection.read()?;
            let half = message.text().strip_prefix("half ").and_then(|at| at.parse::<usize>().ok());
            if message.tag == b'Q' {
                connection.send(&std::mem::take(&mut rest))?;
            }
            match half.filter(|_| message.tag == b'Q') {
                // In one write, so that it is there when the query is answered.
                Some(at) => {
                    let answer = [reply::complete("SELECT 0"), reply::ready(b'I'), whole[..at].to_vec()].concat();
                    connection.send(&answer)?;
                    rest = whole[at..].to_vec();
                }
                None => connection.answer(&message)?,
            }
        }
    });
    let gateway = gateway_before(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    client.ok("listen channel");
    for at in 1..length {
        client.send(&Frames::new().parse("a", "select 1").parse("b", "select 1").sync());
        client.expect("1 1 Z:I");
        client.send(&Frames::new().query(&format!("half {at}")));
        client.expect("C Z:I");
        client.send(&Frames::new().close_statement("a").flush());
        client.expect("3");
        client.send(&Frames::new().query("deallocate b"));
        client.expect("C:DEALLOCATE Z:I");
        client.send(&Frames::new().query("select 'the rest'"));
        let heard = client.expect("A:channel C:SELECT_0 Z:I");
        assert_eq!(heard[0].notification().2, "a payload", "cut at {at}");
    }
    assert_eq!(server.connections(), 1);
}

/// A gateway that waits for a reply between two Executes never shows the server the Sync, and nothing is ever answered.
#[test]
fn edge_05_a_pipeline_reaches_the_server_in_one_flight() {
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        loop {
            let mut asked = Vec::new();
            while asked.last().is_none_or(|message: &tidegate_testkit::Message| !b"SQ".contains(&message.tag)) {
                asked.push(connection.read()?);
            }
            for message in &asked {
                connection.answer(message)?;
            }
        }
    });
    let gateway = gateway_before(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    let mut frames = Frames::new().parse("one", "select 1");
    for _ in 0..10 {
        frames = frames.run("one");
    }
    client.send(&frames.sync());
    let outcome = client.until_ready();
    assert_eq!(outcome.tags.len(), 10);
}
