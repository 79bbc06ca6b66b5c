//! What clients experience whose Postgres cannot be reached, or does not let the gateway in.

use std::thread;

use tidegate_testkit::{Frames, Server};

use crate::bouncer::{Bouncer, server};

/// A gateway before this server, with one server connection.
fn before(server: &Server, lines: &str) -> Bouncer {
    let (host, port) = (server.address().ip(), server.port());
    Bouncer::start(&format!(
        "[databases]\nshop = host={host} port={port} dbname=postgres pool_size=1\n[pgbouncer]\nserver_login_retry = 0.1\n\
         query_wait_notify = 0\n{lines}"
    ))
}

#[test]
fn who_comes_while_postgres_is_down_is_served_when_it_is_back() {
    let mut own = Server::start(18);
    own.postgres().kill9().expect("it can be killed");
    let bouncer = before(&own, "");
    let (early, leaving) = (bouncer.startup("shop"), bouncer.startup("shop"));
    let early = thread::spawn(move || early.connect().value("select 'served'"));
    bouncer.wait_for_pool("shop", "cl_waiting", 1);
    // Who gives up leaves the line.
    let mut leaving = leaving.open();
    leaving.send_bytes(&bouncer.startup("shop").packet());
    bouncer.wait_for_pool("shop", "cl_waiting", 2);
    drop(leaving);
    bouncer.wait_for_pool("shop", "cl_waiting", 1);
    bouncer.wait_for_log("closing because: connect failed (age=0s)");
    own.postgres().restart().expect("it starts again");
    assert_eq!(early.join().expect("it was let in"), "served");
    bouncer.wait_for_pool("shop", "cl_waiting", 0);
    bouncer.wait_for_log("new connection to server (from 127.0.0.1:");
}

#[test]
fn who_is_in_line_when_postgres_goes_down_is_served_when_it_is_back() {
    let mut own = Server::start(18);
    let bouncer = before(&own, "");
    let mut owner = bouncer.client("shop");
    owner.ok("begin");
    let mut waiting = bouncer.client("shop");
    waiting.send(&Frames::new().query("select 'first'"));
    bouncer.wait_for_pool("shop", "cl_waiting", 1);
    own.postgres().kill9().expect("it can be killed");
    assert_eq!(owner.recv().error().severity, "FATAL");
    bouncer.wait_for_log("server connection failed");
    // The pool is known: a client is let in at once, and waits when it asks for something.
    let mut late = bouncer.client("shop");
    late.send(&Frames::new().query("select 'second'"));
    bouncer.wait_for_pool("shop", "cl_waiting", 2);
    own.postgres().restart().expect("it starts again");
    assert_eq!(waiting.until_ready().value(), "first");
    assert_eq!(late.until_ready().value(), "second");
}

#[test]
fn query_wait_timeout_ends_the_wait_for_a_postgres_that_does_not_come_back() {
    let mut own = Server::start(18);
    let bouncer = before(&own, "query_wait_timeout = 0.5\n");
    let mut client = bouncer.client("shop");
    client.ok("select 1");
    own.postgres().kill9().expect("it can be killed");
    // Its children see it a moment later, and may answer until then.
    bouncer.wait_for_pool("shop", "sv_idle", 0);
    client.send(&Frames::new().query("select 2"));
    assert_eq!(client.expect_fatal("08P01").message, "query_wait_timeout");
    let never = Bouncer::start(
        "[databases]\nshop = host=127.0.0.1 port=1\n[pgbouncer]\nserver_login_retry = 0.1\nquery_wait_timeout = 0.5\n",
    );
    for _ in 0..2 {
        let refused = never.startup("shop").refused();
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("08P01", "query_wait_timeout"));
    }
}

#[test]
fn a_login_that_the_server_refuses_is_told_at_once() {
    server().sql("create role absent_login login password 'right' in role scram_login");
    let bouncer = Bouncer::start(
        "[databases]\nright = $PG dbname=postgres user=absent_login password=right\n\
         wrong = $PG dbname=postgres user=absent_login password=wrong\nnowhere = $PG dbname=absent_database\n",
    );
    assert_eq!(bouncer.client("right").value("select current_user"), "absent_login");
    // The second while the gateway must not try again yet.
    for _ in 0..2 {
        let refused = bouncer.startup("wrong").refused();
        let message = "password authentication failed for user \"absent_login\"";
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("28P01", message));
        let refused = bouncer.startup("nowhere").refused();
        let message = "database \"absent_database\" does not exist";
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("3D000", message));
    }
    bouncer.wait_for_log("closing because: database \"absent_database\" does not exist (age=0s)");
}
