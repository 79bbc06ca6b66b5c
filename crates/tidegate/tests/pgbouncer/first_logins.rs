//! Clients that log in at the same moment to a pool without a connection.

use std::{
    sync::{Arc, Barrier, Mutex},
    thread,
};

use tidegate_sandbox::Postgres;
use tidegate_testkit::{FaultyConnection, FaultyServer, Frames, reply};

use crate::ini_gateway::{IniGateway, server};

/// A server that goes on after each startup packet when the test unlocks the gate.
fn gated_server(
    gate: &Arc<Mutex<()>>,
    script: impl Fn(&mut FaultyConnection) -> std::io::Result<()> + Send + Sync + 'static,
) -> FaultyServer {
    let gate = gate.clone();
    FaultyServer::start(move |connection| {
        drop(gate.lock());
        script(connection)
    })
}

fn gateway_of(server: &FaultyServer) -> IniGateway {
    let (host, port) = (server.address().ip(), server.address().port());
    IniGateway::start(&format!("[databases]\nshop = host={host} port={port} dbname=postgres\n"))
}

#[test]
fn first_logins_share_one_server_connection() {
    let gate = Arc::default();
    let server = gated_server(&gate, |connection| {
        connection.log_in()?;
        connection.answer_all()
    });
    let gateway = gateway_of(&server);
    let startup = gateway.startup("shop").parameter("TimeZone", "Asia/Tokyo");
    let closed = gate.lock().expect("the server has not panicked");
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| startup.connect())).collect();
        gateway.wait_for_pool("shop", "cl_waiting", 4);
        drop(closed);
        clients.into_iter().for_each(|client| drop(client.join().expect("the login succeeds")));
    });
    assert_eq!(server.connections(), 1);
}

#[test]
fn first_logins_share_the_error_of_the_server() {
    let gate = Arc::default();
    let server = gated_server(&gate, |connection| connection.send(&reply::fatal("28P01", "no such user here")));
    let gateway = gateway_of(&server);
    let startup = gateway.startup("shop");
    let closed = gate.lock().expect("the server has not panicked");
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| startup.refused())).collect();
        gateway.wait_for_pool("shop", "cl_waiting", 4);
        drop(closed);
        for client in clients {
            assert_eq!(client.join().expect("an error is received").message, "no such user here");
        }
    });
    assert_eq!(server.connections(), 1);
}

#[test]
fn first_login_that_leaves_is_succeeded_by_another() {
    let gate = Arc::default();
    let server = gated_server(&gate, |connection| {
        connection.log_in()?;
        connection.answer_all()
    });
    let gateway = gateway_of(&server);
    let startup = gateway.startup("shop");
    let closed = gate.lock().expect("the server has not panicked");
    let mut first = startup.open();
    first.send_bytes(&startup.packet());
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    thread::scope(|scope| {
        let second = scope.spawn(|| startup.connect());
        gateway.wait_for_pool("shop", "cl_waiting", 2);
        drop(first);
        gateway.wait_for_pool("shop", "cl_waiting", 1);
        drop(closed);
        second.join().expect("the login succeeds").ok("select 1");
    });
}

/// The parameters of one client are no error of the server.
#[test]
fn refused_parameter_of_first_login_concerns_no_other() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres connect_query='select pg_advisory_xact_lock(1721)'\n",
    );
    let mut holder = server().client();
    holder.ok("select pg_advisory_lock(1721)");
    let startup = gateway.startup("shop");
    let mut first = startup.clone().parameter("TimeZone", "Nowhere/Nothing").open();
    first.send_bytes(&first.startup().packet());
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    thread::scope(|scope| {
        let second = scope.spawn(|| startup.connect());
        gateway.wait_for_pool("shop", "cl_waiting", 2);
        holder.ok("select pg_advisory_unlock(1721)");
        second.join().expect("the login succeeds").ok("select 1");
    });
    assert!(first.log_in(None).is_err(), "Postgres does not know the time zone");
}

/// The case of PgBouncer's suite: two clients at the same moment, and a host list of two addresses of one server.
#[test]
fn two_first_clients_use_both_hosts() {
    const ROUNDS: usize = 8;
    let postgres = Postgres::builder()
        .setting("listen_addresses", "127.0.0.1,127.0.0.2")
        .hba("local all all trust\nhost all all 127.0.0.0/8 trust")
        .start()
        .expect("Postgres starts");
    let databases: String = (0..ROUNDS)
        .map(|round| format!("shop{round} = host=127.0.0.1,127.0.0.2 port={} dbname=postgres\n", postgres.port()))
        .collect();
    let gateway = IniGateway::start(&format!("[databases]\n{databases}"));
    let mut connections = 0;
    for round in 0..ROUNDS {
        let startup = gateway.startup(&format!("shop{round}"));
        let barrier = Barrier::new(2);
        let transaction = || {
            barrier.wait();
            let mut client = startup.connect();
            client.send(&Frames::new().query("begin"));
            client.until_ready();
            client
        };
        let clients = thread::scope(|scope| {
            [scope.spawn(transaction), scope.spawn(transaction)].map(|client| client.join().expect("a transaction"))
        });
        for host in ["127.0.0.1", "127.0.0.2"] {
            let place = format!("shop{round}/postgres@{host}:{} new connection to server", postgres.port());
            let (log, before) = (gateway.log(), connections);
            connections += log.matches(&place).count();
            assert!(connections > before, "round {round}, {host}: {log}");
        }
        drop(clients);
    }
    // A connection that one client is about to get may be taken by the other one, on whose thread it is.
    assert!(connections <= 2 * ROUNDS + 1, "{connections}");
}
