//! Cancel requests in the counts of the console, and when they complete.

use std::{
    io,
    sync::{Mutex, mpsc},
};

use tidegate_testkit::{FaultyServer, Frames, RawClient, eventually};

use crate::ini_gateway::IniGateway;

/// A server that answers a query on a signal, and never answers cancel requests.
fn server_without_cancel(signals: mpsc::Receiver<()>) -> FaultyServer {
    let signals = Mutex::new(signals);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text().contains("on a signal") {
                signals.lock().map_err(|_| io::Error::other("a test panicked"))?.recv().map_err(io::Error::other)?;
            }
            connection.answer(&message)?;
        }
    });
    server.ignore_cancels();
    server
}

/// Sends a cancel request for a client, and leaves its connection open.
fn send_cancel(client: &RawClient) -> RawClient {
    let mut request = client.startup().open();
    request.send_bytes(&client.key.request());
    request
}

#[test]
fn cancel_requests_in_flight_are_counted() {
    let (signal, signals) = mpsc::channel();
    let server = server_without_cancel(signals);
    let (host, port) = (server.address().ip(), server.address().port());
    let gateway = IniGateway::start(&format!("[databases]\nshop = host={host} port={port} dbname=postgres\n"));
    let mut client = gateway.client("shop");
    client.send(&Frames::new().query("on a signal"));
    gateway.wait_for_pool("shop", "sv_active", 1);
    let mut request = send_cancel(&client);
    for column in ["cl_active_cancel_req", "sv_active_cancel"] {
        gateway.wait_for_pool("shop", column, 1);
    }
    let count = |column: &str| gateway.pool_count("shop", column);
    assert_eq!((count("cl_waiting_cancel_req"), count("sv_being_canceled")), (0, 0));
    // The query ends first. Its server may be cancelled at any time and is not used for other clients.
    signal.send(()).expect("the server waits for the signal");
    client.until_ready();
    gateway.wait_for_pool("shop", "sv_being_canceled", 1);
    assert_eq!((count("sv_tested"), count("sv_active"), count("sv_idle")), (0, 0, 0));
    let states: Vec<_> = gateway.show("SERVERS").iter().map(|row| row["state"].clone()).collect();
    assert_eq!(states, ["being_canceled"]);
    // The request ends with the server.
    drop(server);
    request.expect_eof();
    for column in ["cl_active_cancel_req", "sv_active_cancel", "sv_being_canceled"] {
        gateway.wait_for_pool("shop", column, 0);
    }
}

/// EDGE-31: As with Postgres, the next query is safe when the connection of the cancel request has closed.
#[test]
fn cancel_request_closes_when_it_was_delivered() {
    let gateway = IniGateway::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\npool_mode = session\n");
    let mut client = gateway.client("shop");
    for round in 0..100 {
        client.send(&Frames::new().query("select 1"));
        // The request arrives when the query ends, or just after.
        client.cancel();
        let outcome = client.until_ready();
        assert!(outcome.error.is_none() || outcome.code() == "57014", "{outcome:?}");
        assert_eq!(client.value(&format!("select {round} from pg_sleep(0.001)")), round.to_string());
    }
}

#[test]
fn servers_due_for_a_check_are_counted_as_used() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nserver_check_delay = 0\nserver_check_query = select 1\n",
    );
    gateway.client("shop").ok("select 1");
    gateway.wait_for_pool("shop", "sv_used", 1);
    assert_eq!(gateway.pool_count("shop", "sv_idle"), 0);
    let states = |table: &str| {
        let rows = gateway.show(table);
        rows.iter().filter(|row| row["type"] == "S").map(|row| row["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((states("SERVERS"), states("SOCKETS")), (vec!["used".to_owned()], vec!["sv_used".to_owned()]));
    let mut client = gateway.client("shop");
    client.ok("begin");
    assert_eq!((gateway.pool_count("shop", "sv_used"), gateway.pool_count("shop", "sv_active")), (0, 1));
    client.ok("commit");
    gateway.console().ok("SET server_check_delay = 600");
    eventually("the server is idle", || gateway.pool_count("shop", "sv_idle") == 1);
    assert_eq!(gateway.pool_count("shop", "sv_used"), 0);
    gateway.console().ok("SET server_check_delay = 0");
    gateway.wait_for_pool("shop", "sv_used", 1);
    gateway.console().ok("SET server_check_query = ''");
    gateway.wait_for_pool("shop", "sv_used", 0);
}
