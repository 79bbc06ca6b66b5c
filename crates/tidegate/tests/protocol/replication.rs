//! Replication connections: a dedicated server each, and streams that pass in both directions up to the last byte.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_testkit::{FaultyServer, Frames, Signal, eventually, gateway_for, on_each_postgres, reply};

on_each_postgres! {
    /// EDGE-30.
    fn replication_stream_passes_in_both_directions(fixture) {
        let script = |startup: tidegate_testkit::Startup| {
            let mut client = startup.parameter("replication", "true").connect();
            let identity = client.ok("IDENTIFY_SYSTEM").rows.remove(0);
            client.send(&Frames::new().query(&format!("START_REPLICATION PHYSICAL {}", identity[2])));
            // Primary keepalive messages may come at any time.
            client.expect("W");
            client.send(&Frames::new().copy_data(&status_update()).copy_done());
            client.expect("d* c C C:START_REPLICATION Z:I");
            client.ok("IDENTIFY_SYSTEM");
        };
        script(fixture.server.startup());
        script(fixture.gateway("size = 2\n").startup("postgres"));
    }

    /// EDGE-70.
    fn replication_login_gets_a_dedicated_server(fixture) {
        let gateway = fixture.gateway("size = 2\n");
        let mut normal = gateway.client("postgres");
        let backend = normal.backend();
        let mut logical = gateway.startup("postgres").parameter("replication", "database").connect();
        logical.ok("IDENTIFY_SYSTEM");
        let dedicated = logical.backend();
        assert_ne!(dedicated, backend);
        assert_eq!(logical.backend(), dedicated);
        assert_eq!(normal.backend(), backend);
        logical.send(&Frames::new().terminate());
        let mut observer = fixture.server.client();
        eventually("the server of the replication login is closed", || {
            observer.value(&format!("select count(*) from pg_stat_activity where pid = {dedicated}")) == "0"
        });
    }

    /// EDGE-70: Until it has a server, its socket is watched like that of any client that waits.
    fn waiting_replication_login_can_leave_or_be_killed(fixture) {
        let gateway = fixture.gateway("size = 2\n[pool]\nmax_per_user = 1\n[timeouts]\ncheckout = \"60s\"\n");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        let login = gateway.startup("postgres").parameter("replication", "database");
        let listed = || {
            let clients = gateway.show("CLIENTS");
            clients.into_iter().find(|row| row["replication"] == "logical").map(|row| row["id"].clone())
        };
        for is_killed in [false, true] {
            let mut waiting = login.open();
            waiting.send_bytes(&login.packet());
            eventually("the login waits", || listed().is_some());
            if is_killed {
                gateway.console().ok(&format!("KILL_CLIENT {}", listed().expect("the login waits")));
                waiting.expect_eof();
            } else {
                waiting.disconnect(false);
            }
            eventually("the client is gone", || listed().is_none());
        }
        busy.ok("commit");
    }

    /// EDGE-70: A replication stream has no transaction and does not end by itself.
    fn sigint_ends_replication_connections(fixture) {
        let mut gateway = fixture.gateway("size = 2\n");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        let mut replica = gateway.startup("postgres").parameter("replication", "database").connect();
        replica.ok("IDENTIFY_SYSTEM");
        gateway.signal(Signal::INT);
        replica.expect_eof();
        busy.ok("commit");
        gateway.wait();
    }
}

/// A standby status update that asks for an answer.
fn status_update() -> Vec<u8> {
    let mut update = vec![b'r'];
    update.extend([0; 32]);
    update.push(1);
    update
}

/// EDGE-70: The data exceeds the socket buffers, so that a part of it is still queued when the server has closed
/// already.
#[test]
fn slow_client_gets_all_data_of_a_closed_stream() {
    const PIECE: usize = 10_000;
    let server = FaultyServer::start(|connection| {
        connection.log_in()?;
        let pieces: usize = connection.read()?.text().parse().map_err(io::Error::other)?;
        (0..pieces).try_for_each(|_| connection.send(&reply::message(b'd', &[b'x'; PIECE])))
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let slow = gateway.startup("postgres").parameter("replication", "database").receive_buffer_bytes(4_096);
    for pieces in (20..400).step_by(20) {
        let mut client = slow.connect();
        client.send(&Frames::new().query(&pieces.to_string()));
        let mut received = 0;
        while let Ok(message) = client.try_recv() {
            received += usize::from(message.body.len() == PIECE);
        }
        assert_eq!(received, pieces);
    }
}

/// EDGE-70: A subscriber confirms its position when it leaves.
#[test]
fn slow_server_gets_all_data_of_a_closed_client() {
    let left = Arc::new(AtomicUsize::new(0));
    let sent_and_left = Arc::clone(&left);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        let pieces: usize = connection.read()?.text().parse().map_err(io::Error::other)?;
        eventually("the client has disconnected", || sent_and_left.load(Ordering::SeqCst) == pieces);
        connection.read_until(b"X").map(drop)
    });
    let gateway = gateway_for!(&server, "size = 1\n");
    let mut sent = 0;
    for pieces in (20..400).step_by(20) {
        let mut client = gateway.startup("postgres").parameter("replication", "database").connect();
        client.send(&Frames::new().query(&pieces.to_string()));
        let messages = (0..pieces).fold(Frames::new(), |frames, _| frames.copy_data(&[b'x'; 10_000]));
        client.send(&messages.terminate());
        client.disconnect(false);
        left.store(pieces, Ordering::SeqCst);
        sent += pieces;
        eventually("all messages have arrived", || server.count(b'd') == sent);
    }
}
