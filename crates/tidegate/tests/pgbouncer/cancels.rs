//! Cancel requests as the console counts them, and when they are over.

use std::{
    io,
    sync::{Mutex, mpsc},
};

use tidegate_testkit::{FaultyServer, Frames, RawClient, eventually};

use crate::bouncer::Bouncer;

/// A server that answers a query when it is told to, and cancel requests never.
fn deaf(answers: mpsc::Receiver<()>) -> FaultyServer {
    let answers = Mutex::new(answers);
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text().contains("when told to") {
                answers.lock().map_err(|_| io::Error::other("a test panicked"))?.recv().map_err(io::Error::other)?;
            }
            connection.answer(&message)?;
        }
    });
    server.mute_cancels();
    server
}

/// Sends a cancel request of a client, and leaves the connection open.
fn ask(client: &RawClient) -> RawClient {
    let mut asking = client.startup().open();
    asking.send_bytes(&client.key.request());
    asking
}

#[test]
fn requests_under_way_and_servers_that_wait_for_them_are_counted() {
    let (answer, answers) = mpsc::channel();
    let server = deaf(answers);
    let (host, port) = (server.address().ip(), server.address().port());
    let bouncer = Bouncer::start(&format!("[databases]\nshop = host={host} port={port} dbname=postgres\n"));
    let mut client = bouncer.client("shop");
    client.send(&Frames::new().query("when told to"));
    bouncer.wait_for_pool("shop", "sv_active", 1);
    let mut asking = ask(&client);
    for column in ["cl_active_cancel_req", "sv_active_cancel"] {
        bouncer.wait_for_pool("shop", column, 1);
    }
    let count = |column: &str| bouncer.pool_count("shop", column);
    assert_eq!((count("cl_waiting_cancel_req"), count("sv_being_canceled")), (0, 0));
    // The query ends first: its server may be hit at any time, and goes to nobody.
    answer.send(()).expect("the server waits for it");
    client.until_ready();
    bouncer.wait_for_pool("shop", "sv_being_canceled", 1);
    assert_eq!((count("sv_tested"), count("sv_active"), count("sv_idle")), (0, 0, 0));
    let states: Vec<_> = bouncer.show("SERVERS").iter().map(|row| row["state"].clone()).collect();
    assert_eq!(states, ["being_canceled"]);
    // When the server is gone, so is the request.
    drop(server);
    asking.expect_eof();
    for column in ["cl_active_cancel_req", "sv_active_cancel", "sv_being_canceled"] {
        bouncer.wait_for_pool("shop", column, 0);
    }
}

/// As with Postgres: whoever sees its request closed may ask the next thing.
#[test]
fn edge_31_a_request_is_over_when_the_server_has_had_it() {
    let bouncer = Bouncer::start("[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\npool_mode = session\n");
    let mut client = bouncer.client("shop");
    for round in 0..100 {
        client.send(&Frames::new().query("select 1"));
        // Comes to its end together with the query, or a moment later.
        client.cancel();
        let outcome = client.until_ready();
        assert!(outcome.error.is_none() || outcome.code() == "57014", "{outcome:?}");
        assert_eq!(client.value(&format!("select {round} from pg_sleep(0.001)")), round.to_string());
    }
}

#[test]
fn servers_that_will_be_checked_are_used_ones() {
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres\n[pgbouncer]\nserver_check_delay = 0\nserver_check_query = select 1\n",
    );
    bouncer.client("shop").ok("select 1");
    bouncer.wait_for_pool("shop", "sv_used", 1);
    assert_eq!(bouncer.pool_count("shop", "sv_idle"), 0);
    let states = |table: &str| {
        let rows = bouncer.show(table);
        rows.iter().filter(|row| row["type"] == "S").map(|row| row["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((states("SERVERS"), states("SOCKETS")), (vec!["used".to_owned()], vec!["sv_used".to_owned()]));
    let mut client = bouncer.client("shop");
    client.ok("begin");
    assert_eq!((bouncer.pool_count("shop", "sv_used"), bouncer.pool_count("shop", "sv_active")), (0, 1));
    client.ok("commit");
    bouncer.console().ok("SET server_check_delay = 600");
    eventually("it is as good as new", || bouncer.pool_count("shop", "sv_idle") == 1);
    assert_eq!(bouncer.pool_count("shop", "sv_used"), 0);
    bouncer.console().ok("SET server_check_delay = 0");
    bouncer.wait_for_pool("shop", "sv_used", 1);
    bouncer.console().ok("SET server_check_query = ''");
    bouncer.wait_for_pool("shop", "sv_used", 0);
}
