//! Clients whose Postgres is unreachable or rejects the login.

use std::thread;

use tidegate_testkit::{Frames, Server};

use crate::ini_gateway::{IniGateway, server};

/// A gateway in front of this server, with a pool size of 1.
fn gateway_for(server: &Server, lines: &str) -> IniGateway {
    let (host, port) = (server.address().ip(), server.port());
    IniGateway::start(&format!(
        "[databases]\nshop = host={host} port={port} dbname=postgres pool_size=1\n[pgbouncer]\nserver_login_retry = 0.1\n\
         query_wait_notify = 0\n{lines}"
    ))
}

#[test]
fn login_while_postgres_is_down_waits_for_it() {
    let mut server = Server::start(18);
    server.postgres().kill9().expect("the server can be killed");
    let gateway = gateway_for(&server, "");
    let (early, leaving) = (gateway.startup("shop"), gateway.startup("shop"));
    let early = thread::spawn(move || early.connect().value("select 'served'"));
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    // A client that disconnects leaves the queue.
    let mut leaving = leaving.open();
    leaving.send_bytes(&gateway.startup("shop").packet());
    gateway.wait_for_pool("shop", "cl_waiting", 2);
    drop(leaving);
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    gateway.wait_for_log("closing because: connect failed (age=0s)");
    server.postgres().restart().expect("the server starts again");
    assert_eq!(early.join().expect("the login succeeds"), "served");
    gateway.wait_for_pool("shop", "cl_waiting", 0);
    gateway.wait_for_log("new connection to server (from 127.0.0.1:");
}

#[test]
fn queued_clients_wait_for_a_restarted_postgres() {
    let mut server = Server::start(18);
    let gateway = gateway_for(&server, "");
    let mut owner = gateway.client("shop");
    owner.ok("begin");
    let mut waiting = gateway.client("shop");
    waiting.send(&Frames::new().query("select 'first'"));
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    server.postgres().kill9().expect("the server can be killed");
    assert_eq!(owner.recv().error().severity, "FATAL");
    gateway.wait_for_log("server connection failed");
    // The pool has had a server: the login succeeds immediately, and the first query waits.
    let mut late = gateway.client("shop");
    late.send(&Frames::new().query("select 'second'"));
    gateway.wait_for_pool("shop", "cl_waiting", 2);
    server.postgres().restart().expect("the server starts again");
    assert_eq!(waiting.until_ready().value(), "first");
    assert_eq!(late.until_ready().value(), "second");
}

#[test]
fn query_wait_timeout_applies_without_a_server() {
    let mut server = Server::start(18);
    let gateway = gateway_for(&server, "query_wait_timeout = 0.5\n");
    let mut client = gateway.client("shop");
    client.ok("select 1");
    server.postgres().kill9().expect("the server can be killed");
    // Backends detect the death of the postmaster a moment later, and may answer until then.
    gateway.wait_for_pool("shop", "sv_idle", 0);
    client.send(&Frames::new().query("select 2"));
    assert_eq!(client.expect_fatal("08P01").message, "query_wait_timeout");
    let unreachable = IniGateway::start(
        "[databases]\nshop = host=127.0.0.1 port=1\n[pgbouncer]\nserver_login_retry = 0.1\nquery_wait_timeout = 0.5\n",
    );
    for _ in 0..2 {
        let refused = unreachable.startup("shop").refused();
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("08P01", "query_wait_timeout"));
    }
}

#[test]
fn rejected_server_login_is_reported_immediately() {
    server().sql("create role absent_login login password 'right' in role scram_login");
    let gateway = IniGateway::start(
        "[databases]\nright = $PG dbname=postgres user=absent_login password=right\n\
         wrong = $PG dbname=postgres user=absent_login password=wrong\nmissing = $PG dbname=absent_database\n",
    );
    assert_eq!(gateway.client("right").value("select current_user"), "absent_login");
    // The second attempt falls into the retry delay.
    for _ in 0..2 {
        let refused = gateway.startup("wrong").refused();
        let message = "password authentication failed for user \"absent_login\"";
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("28P01", message));
        let refused = gateway.startup("missing").refused();
        let message = "database \"absent_database\" does not exist";
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("3D000", message));
    }
    gateway.wait_for_log("closing because: password authentication failed for user \"absent_login\" (age=0s)");
}
