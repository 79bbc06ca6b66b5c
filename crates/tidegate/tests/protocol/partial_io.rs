//! Partial reads and writes: slow peers, small buffers, and messages that arrive byte by byte.

use std::io;
use std::thread;
use std::time::Duration;

use tidegate_testkit::{FaultyServer, Frames, gateway_for, on_each_postgres, reply};

on_each_postgres! {
    /// EDGE-71.
    fn slow_reader_with_a_small_window_gets_all_rows(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut slow = gateway.startup("postgres").receive_buffer_bytes(2_048).connect();
        slow.send(&Frames::new().query("select repeat(n::text, 20000) from generate_series(1000, 1199) n"));
        // The server waits for this client. Other clients are served meanwhile.
        let mut other = gateway.client("postgres");
        assert_eq!(other.value("select 'meanwhile'"), "meanwhile");
        slow.expect("T");
        for number in 1000..1200 {
            let row = slow.recv();
            assert_eq!(row.values()[0].as_deref(), Some(number.to_string().repeat(20_000).as_bytes()));
        }
        slow.expect("C:SELECT_200 Z:I");
    }

    /// EDGE-71.
    fn slow_writer_sends_a_large_value(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        let value = "abcdefghij".repeat(30_000);
        let frames = Frames::new().parse("", "select md5($1), length($1)").bind("", &[&value]).execute().sync();
        let mut step = fastrand::Rng::with_seed(71);
        let mut rest = frames.bytes();
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(step.usize(1..5_000).min(rest.len()));
            client.send_bytes(piece);
            rest = tail;
        }
        let outcome = client.until_ready();
        assert_eq!(outcome.rows[0][1], "300000");
    }

    /// EDGE-71.
    fn large_result_arrives_unchanged(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let sums = client.ok("select repeat(md5(n::text), n % 300) from generate_series(1, 5000) n");
            assert_eq!(sums.rows.len(), 5_000);
            assert_eq!(sums.rows[298][0].len(), 32 * 299);
            let total: usize = sums.rows.iter().map(|row| row[0].len()).sum();
            let expected: usize = (1..=5_000).map(|n| 32 * (n % 300)).sum();
            assert_eq!(total, expected);
        });
    }
}

/// EDGE-71.
#[test]
fn server_sends_byte_by_byte() {
    let server = FaultyServer::start(|connection| {
        send_byte_by_byte(connection, &reply::login(1))?;
        loop {
            let message = connection.read()?;
            if message.tag == b'Q' {
                send_byte_by_byte(connection, &reply::one_value("byte by byte"))?;
            } else {
                connection.answer(&message)?;
            }
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut client = gateway.client("postgres");
    for _ in 0..2 {
        client.send(&Frames::new().query("select 1"));
        client.expect("T:value D:byte_by_byte C:SELECT_1 Z:I");
    }
}

/// EDGE-71: The last message of the server is half received when the server goes to a client of another thread.
#[test]
fn server_changes_threads_in_the_middle_of_a_notice() {
    let notice = reply::notice(&[(b'S', "NOTICE"), (b'V', "NOTICE"), (b'C', "00000"), (b'M', "not for any client")]);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        let (begin, end) = notice.split_at(9);
        let mut rest = &b""[..];
        loop {
            let message = connection.read_until(b"QX")?;
            if message.tag == b'X' {
                return Ok(());
            }
            connection.send(&[rest, &reply::one_value(&message.text()), begin].concat())?;
            rest = end;
        }
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let clients: Vec<_> = (0..8).map(|number| (number, gateway.client("postgres"))).collect();
    let run_queries = |(number, mut client): (u32, tidegate_testkit::RawClient)| {
        (0..40).for_each(|round| {
            let text = format!("{number}, {round}");
            assert_eq!(client.value(&text), text);
        });
    };
    let threads: Vec<_> = clients.into_iter().map(|client| thread::spawn(move || run_queries(client))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("every query is answered"));
}

fn send_byte_by_byte(connection: &mut tidegate_testkit::FaultyConnection, bytes: &[u8]) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| {
        connection.send(&[*byte])?;
        // The pause lets each byte arrive alone. It is the workload: the assertions hold without it.
        thread::sleep(Duration::from_micros(50));
        Ok(())
    })
}
