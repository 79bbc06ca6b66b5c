//! Pipelines, and when a server returns to the pool.

use std::io::Write;
use std::thread;
use std::time::Duration;

use tidegate_testkit::{FaultyServer, Frames, RawClient, gateway_for, on_each_postgres, reply};

/// Fails in execution, not in planning.
const FAILING: &str = "select 1 / (random() * 0)::int";

on_each_postgres! {
    /// EDGE-1: The second segment is on its way to the server when the first ReadyForQuery arrives. A client that
    /// got the server at that moment would read the reply to the second segment.
    fn server_is_released_after_the_last_of_two_syncs(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut pipelined = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        let first = Frames::new().once("select 'first', pg_sleep(0.1)").sync();
        pipelined.send(&first.once("select 'second'").sync());
        waiting.send(&Frames::new().query("select 'other'"));
        pipelined.expect("1 2 D:first, C:SELECT_1 Z:I 1 2 D:second C:SELECT_1 Z:I");
        waiting.expect("T D:other C:SELECT_1 Z:I");
    }

    /// EDGE-1.
    fn pending_sync_keeps_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut pipelined = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        pipelined.send(&Frames::new().once("select 1").sync().once("select 2").flush());
        pipelined.expect("1 2 D:1 C:SELECT_1 Z:I 1 2 D:2 C:SELECT_1");
        waiting.send(&Frames::new().query("select 3"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        assert!(!waiting.has_input());
        pipelined.send(&Frames::new().sync());
        pipelined.expect("Z:I");
        waiting.expect("T D:3 C:SELECT_1 Z:I");
    }

    /// EDGE-2.
    fn messages_after_an_error_are_discarded_up_to_sync(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let failing = Frames::new().once("select 1").once(FAILING).once("select 3");
            client.send(&failing.sync().once("select 4").sync());
            client.expect("1 2 D:1 C:SELECT_1 1 2 E:22012 Z:I 1 2 D:4 C:SELECT_1 Z:I");
        });
    }

    /// EDGE-2.
    fn messages_sent_after_the_error_are_discarded(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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

    /// EDGE-2: The error has been received and its Sync has not been sent. Messages behind the Sync in the same
    /// write are answered.
    fn request_after_a_late_sync_is_answered(fixture) {
        fixture.on_both_targets(|target| {
            for late in [Frames::new(), Frames::new().copy_fail("stray"), Frames::new().once("select 'discarded'")] {
                let mut client = target.client();
                let mut other = target.client();
                client.send(&Frames::new().once(FAILING).flush());
                client.expect("1 2 E:22012");
                client.send(&late.sync().query("select 'behind', pg_sleep(0.05)").once("select 'last'").sync());
                other.send(&Frames::new().query("select 'other'"));
                client.expect("Z:I T D:behind, C:SELECT_1 Z:I 1 2 D:last C:SELECT_1 Z:I");
                other.expect("T D:other C:SELECT_1 Z:I");
            }
        });
    }

    /// EDGE-2.
    fn error_without_sync_keeps_the_server(fixture) {
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

    /// EDGE-3.
    fn flush_without_sync_is_answered_immediately(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let described = Frames::new().parse("", "select 7 as n").bind("", &[]).describe_portal("");
            client.send(&described.execute().flush());
            client.expect("1 2 T:n D:7 C:SELECT_1");
            assert!(!client.has_input());
            client.send(&Frames::new().sync());
            client.expect("Z:I");
        });
    }

    /// EDGE-3.
    fn flush_keeps_the_server_until_sync(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut flushed = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        flushed.send(&Frames::new().once("select 1").flush());
        flushed.expect("1 2 D:1 C:SELECT_1");
        waiting.send(&Frames::new().query("select 2"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        flushed.send(&Frames::new().once("select 3").flush());
        flushed.expect("1 2 D:3 C:SELECT_1");
        assert!(!waiting.has_input());
        flushed.send(&Frames::new().sync());
        flushed.expect("Z:I");
        waiting.expect("T D:2 C:SELECT_1 Z:I");
    }

    /// EDGE-4.
    fn parse_flush_and_bind_use_one_backend(fixture) {
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

    /// EDGE-5.
    fn pipeline_of_many_executes_is_answered_in_order(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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

    /// EDGE-6.
    fn partial_pipeline_is_rolled_back_on_disconnect(fixture) {
        let table = fixture.create_table("n int");
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.send(&Frames::new().once(&format!("insert into {table} values (1)")).flush());
        client.expect("1 2 C:INSERT_0_1");
        client.disconnect(false);
        let mut next = gateway.client("postgres");
        next.send(&Frames::new().once(&format!("select count(*) from {table}")).sync());
        next.expect("1 2 D:0 C:SELECT_1 Z:I");
    }

    /// EDGE-6.
    fn partial_message_is_discarded_on_disconnect(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        for cut in [1, 3, 5, 9, 30] {
            let mut client = gateway.client("postgres");
            let frames = Frames::new().once("select 1").bind("", &["an unfinished value"]);
            let whole = Frames::new().once("select 1").bytes().len();
            client.send_bytes(&frames.bytes()[..whole + cut]);
            client.disconnect(cut == 3);
            let mut next = gateway.client("postgres");
            assert_eq!(next.value("select 'clean'"), "clean");
        }
    }

    /// EDGE-7.
    fn large_pipelines_in_both_directions_do_not_deadlock(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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
            writing.join().expect("the writer does not panic").expect("all bytes are written");
        });
    }

    /// EDGE-7: The server buffers its replies until a Sync or a Flush. A gateway that stops reading the client
    /// before would wait for ever.
    fn pipeline_without_sync_may_have_any_length(fixture) {
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
        // The gateway answers all but the first itself, each in its turn.
        let mut known = Frames::new().parse("", "select 2");
        for _ in 0..10_000 {
            known = known.parse("again", "select 1").close_statement("again");
        }
        for (frames, reply, replies) in [(runs, b'C', 20_000), (texts.run(""), b'1', 300), (known, b'3', 10_000)] {
            let (mut writer, bytes) = (client.writer(), frames.sync().bytes().to_vec());
            let writing = thread::spawn(move || writer.write_all(&bytes));
            let outcome = client.until_ready();
            writing.join().expect("the writer does not panic").expect("all bytes are written");
            assert!(outcome.error.is_none(), "{:?}", outcome.error);
            assert_eq!(outcome.messages.iter().filter(|message| message.tag == reply).count(), replies);
        }
    }

    /// EDGE-7: The gateway stops reading when its send queue is full.
    fn client_that_does_not_read_rows_is_throttled(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.startup("postgres").receive_buffer_bytes(4_096).connect();
        let query = Frames::new().query(&format!("select repeat('x', 20000) /* {} */", "y".repeat(20_000)));
        let accepted = bytes_accepted_without_reading(&client, query.bytes());
        assert!(accepted < ACCEPTED_BYTES_MAX, "{accepted} bytes were accepted");
        // The client reads after all, and no reply is missing.
        for _ in 0..accepted / query.bytes().len() {
            assert_eq!(client.until_ready().rows[0][0].len(), 20_000);
        }
    }

    /// EDGE-8.
    fn replies_of_the_gateway_are_in_order(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().parse("one", "select 1").sync());
            client.expect("1 Z:I");
            let known = Frames::new().run("one").parse("again", "select 1").run("again");
            let closed = known.close_statement("again").run("one").parse("again", "select 1").close_statement("one");
            client.send(&closed.run("again").sync());
            client.expect("2 D:1 C:SELECT_1 1 2 D:1 C:SELECT_1 3 2 D:1 C:SELECT_1 1 3 2 D:1 C:SELECT_1 Z:I");
        });
    }

    /// EDGE-8.
    fn parse_and_close_without_execute_are_answered(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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

    /// EDGE-9.
    fn simple_query_after_parse_without_sync(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.send(&Frames::new().parse("kept", "select 5").query("select 6").run("kept").sync());
            client.expect("1 T D:6 C:SELECT_1 Z:I 2 D:5 C:SELECT_1 Z:I");
        });
    }

    /// EDGE-9.
    fn simple_query_after_execute_without_sync(fixture) {
        let table = fixture.create_table("n int");
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.ok(&format!("truncate {table}"));
            let insert = format!("insert into {table} values (1)");
            client.send(&Frames::new().once(&insert).query(&format!("select count(*) from {table}")));
            // Later versions keep the transaction of the pipeline open up to its Sync.
            client.expect("1 2 C:INSERT_0_1 T D:1 C:SELECT_1 Z");
            client.send(&Frames::new().sync());
            client.expect("Z:I");
            let mut client = target.client();
            client.send(&Frames::new().once(FAILING).query("select 'discarded'").sync());
            client.expect("1 2 E:22012 Z:I");
        });
    }

    /// EDGE-9: The server discards the Query and waits for a Sync. It must not go to another client before.
    fn discarded_query_keeps_the_server(fixture) {
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

    /// EDGE-9: Postgres 18 is in an inconsistent state afterwards: its next extended query fails with an internal
    /// error (XX000).
    fn server_is_closed_after_a_mixed_pipeline(fixture) {
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

    /// asyncpg prepares with Parse, Describe and Flush, and begins a transaction with a simple query.
    fn simple_query_after_parse_and_flush_keeps_server(fixture) {
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

    fn simple_query_after_failed_parse_is_discarded(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
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

    /// EDGE-10.
    fn open_or_failed_transaction_keeps_the_server(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut owner = gateway.client("postgres");
        let mut waiting = gateway.client("postgres");
        assert_eq!(owner.ok("begin").status, 'T');
        waiting.send(&Frames::new().query("select 'other'"));
        gateway.wait_for_pool("postgres", "cl_waiting", 1);
        assert_eq!(owner.query(FAILING).status, 'E');
        assert_eq!(owner.query("select 1").code(), "25P02");
        assert!(!waiting.has_input());
        assert_eq!(owner.ok("rollback").status, 'I');
        waiting.expect("T D:other C:SELECT_1 Z:I");
    }

    /// EDGE-10.
    fn statement_mode_rejects_begin_and_keeps_client(fixture) {
        let table = fixture.create_table("n int");
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

    /// EDGE-11.
    fn transaction_status_decides_in_multi_statements(fixture) {
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
}

/// Limit of the bytes accepted from a client. It includes the socket buffers between client, gateway and server.
const ACCEPTED_BYTES_MAX: usize = 64 << 20;

/// Sends one message repeatedly without reading. Returns the number of bytes that were accepted before a write timed
/// out, at most four times the limit.
fn bytes_accepted_without_reading(client: &RawClient, message: &[u8]) -> usize {
    let mut writer = client.writer();
    writer.set_write_timeout(Some(Duration::from_secs(2))).expect("a socket has timeouts");
    let many = message.repeat((1 << 20) / message.len() + 1);
    let mut accepted = 0;
    while accepted < 4 * ACCEPTED_BYTES_MAX {
        match writer.write(&many[accepted % message.len()..]) {
            Ok(bytes) => accepted += bytes,
            Err(_) => break,
        }
    }
    accepted
}

/// EDGE-7: All kinds of messages. The gateway keeps state for some of them after it has forwarded them.
#[test]
fn client_of_an_unresponsive_server_is_throttled() {
    let text = format!("select 1 /* {} */", "x".repeat(10_000));
    let cases = [
        ("unnamed", Frames::new().parse("", &text)),
        ("closed", Frames::new().parse("", &text).close_statement("")),
        ("named", Frames::new().parse("a", &text).close_statement("a")),
        ("small", Frames::new().execute()),
        ("synced", Frames::new().once("select 1").sync()),
        ("simple", Frames::new().query(&text)),
    ];
    for (case, frames) in cases {
        let server = FaultyServer::start(|connection| {
            connection.log_in()?;
            connection.discard_input()
        });
        let gateway = gateway_for!(&server, "size = 1\n");
        let client = gateway.client("postgres");
        let before = gateway.memory_bytes();
        let accepted = bytes_accepted_without_reading(&client, frames.bytes());
        let memory = gateway.memory_bytes().saturating_sub(before);
        // The gateway keeps little more than one expected reply for a simple query.
        let accepted_max = if case == "simple" { 4 * ACCEPTED_BYTES_MAX } else { ACCEPTED_BYTES_MAX };
        assert!(accepted < accepted_max, "{case}: {accepted} bytes were accepted");
        assert!(memory < ACCEPTED_BYTES_MAX, "{case}: {memory} bytes of memory");
    }
}

/// EDGE-7: The gateway answers an idle client without a server, and stops reading when its replies are not read.
#[test]
fn client_that_does_not_read_replies_is_throttled() {
    let server = FaultyServer::answering();
    let gateway = gateway_for!(&server, "size = 1\n");
    let client = gateway.startup("postgres").receive_buffer_bytes(4_096).connect();
    let accepted = bytes_accepted_without_reading(&client, Frames::new().sync().bytes());
    assert!(accepted < ACCEPTED_BYTES_MAX, "{accepted} bytes were accepted");
}

/// EDGE-8: The replies of the gateway come before or after a message of the server, however that message is
/// fragmented.
#[test]
fn reply_of_the_gateway_never_splits_a_notification() {
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
                // The part has arrived when the query is answered, because it is sent in the same write.
                Some(at) => {
                    let answer = [reply::complete("SELECT 0"), reply::ready(b'I'), whole[..at].to_vec()].concat();
                    connection.send(&answer)?;
                    rest = whole[at..].to_vec();
                }
                None => connection.answer(&message)?,
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
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
        let received = client.expect("A:channel C:SELECT_0 Z:I");
        assert_eq!(received[0].notification().2, "a payload", "cut at {at}");
    }
    assert_eq!(server.connections(), 1);
}

/// EDGE-5: A gateway that waited for a reply between two Executes would never forward the Sync, and the server
/// would not reply.
#[test]
fn pipeline_reaches_the_server_without_round_trips() {
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        loop {
            let mut messages = Vec::new();
            while messages.last().is_none_or(|message: &tidegate_testkit::Message| !b"SQ".contains(&message.tag)) {
                messages.push(connection.read()?);
            }
            for message in &messages {
                connection.answer(message)?;
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    let mut frames = Frames::new().parse("one", "select 1");
    for _ in 0..10 {
        frames = frames.run("one");
    }
    client.send(&frames.sync());
    let outcome = client.until_ready();
    assert_eq!(outcome.tags.len(), 10);
}
