//! Timeouts: the client gets PgBouncer's words, and the log the reason.

use std::{io, sync::mpsc};

use tidegate_testkit::{FaultyServer, Frames, RawClient};

use crate::bouncer::Bouncer;

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\n";

fn with(lines: &str) -> Bouncer {
    Bouncer::start(&format!("{SHOP}{lines}"))
}

/// The client's last words, which must be these, and what the log says of them.
fn ends(bouncer: &Bouncer, client: &mut RawClient, words: &str) {
    let error = client.expect_fatal("08P01");
    assert_eq!(error.message, words);
    bouncer.wait_for_log(&format!("closing because: {words} (age="));
    bouncer.wait_for_log(&format!("pooler error: {words}"));
}

#[test]
fn query_timeout() {
    let bouncer = with("query_timeout = 1\n");
    let mut client = bouncer.client("shop");
    client.send(&Frames::new().query("select pg_sleep(600)"));
    client.expect("T*");
    ends(&bouncer, &mut client, "query timeout");
    bouncer.wait_for_pool("shop", "sv_active", 0);
}

#[test]
fn query_wait_timeout_of_a_user_goes_before_that_of_all() {
    let bouncer = Bouncer::start(&format!(
        "[users]\npostgres = query_wait_timeout=5\n{SHOP}query_wait_timeout = 600\nquery_wait_notify = 0\n"
    ));
    let mut owner = bouncer.client("shop");
    owner.ok("begin");
    let mut client = bouncer.client("shop");
    client.send(&Frames::new().query("select 1"));
    ends(&bouncer, &mut client, "query_wait_timeout");
    owner.ok("commit");
}

#[test]
fn query_wait_timeout_of_a_database_goes_before_that_of_all() {
    let bouncer = Bouncer::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1 query_wait_timeout=0.5\n[pgbouncer]\nquery_wait_timeout = 600\n",
    );
    let mut owner = bouncer.client("shop");
    owner.ok("begin");
    let mut client = bouncer.client("shop");
    client.send(&Frames::new().query("select 1"));
    ends(&bouncer, &mut client, "query_wait_timeout");
}

#[test]
fn timeouts_of_a_user_go_before_those_of_all() {
    for (key, sql, words) in [
        ("query_timeout", "select pg_sleep(600)", "query timeout"),
        ("transaction_timeout", "begin; select pg_sleep(600)", "transaction timeout"),
        ("idle_transaction_timeout", "begin", "idle transaction timeout"),
        ("client_idle_timeout", "select 1", "client_idle_timeout"),
    ] {
        let bouncer = Bouncer::start(&format!("[users]\npostgres = {key}=1\n{SHOP}{key} = 600\n"));
        let mut client = bouncer.client("shop");
        client.send(&Frames::new().query(sql));
        while client.recv().tag != b'E' {}
        bouncer.wait_for_log(&format!("closing because: {words} (age="));
    }
}

#[test]
fn server_connect_timeout() {
    // It accepts, by the kernel's hand, and says nothing.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let bouncer = Bouncer::start(&format!(
        "[databases]\nshop = host=127.0.0.1 port={port} dbname=postgres\n[pgbouncer]\nserver_connect_timeout = 0.3\n\
         server_login_retry = 0.1\nquery_wait_timeout = 2\n"
    ));
    assert_eq!(bouncer.startup("shop").refused().message, "query_wait_timeout");
    bouncer.wait_for_log("closing because: connect timeout (age=0s)");
}

#[test]
fn server_lifetime_of_none_closes_a_server_after_its_first_use() {
    for (database, general) in [("", "server_lifetime = 0\n"), ("server_lifetime=0", "")] {
        let bouncer =
            Bouncer::start(&format!("[databases]\nshop = $PG dbname=postgres {database}\n[pgbouncer]\n{general}"));
        let mut client = bouncer.client("shop");
        assert_ne!(client.backend(), client.backend(), "{database}{general}");
    }
}

#[test]
fn the_log_is_told_the_averages_of_each_period() {
    let bouncer = with("stats_period = 1\n");
    bouncer.client("shop").ok("select 1");
    bouncer.wait_for_log("stats: ");
    bouncer.wait_for_log(" client parses/s, ");
}

#[test]
fn who_waits_is_told_so_by_a_notice() {
    let bouncer = with("query_wait_notify = 1\n");
    let mut owner = bouncer.client("shop");
    owner.ok("begin");
    let mut client = bouncer.client("shop");
    client.send(&Frames::new().query("select 'served'"));
    let notice = client.recv();
    assert_eq!(notice.tag, b'N');
    assert!(notice.error().message.contains("client being queued"), "{notice:?}");
    owner.ok("commit");
    assert_eq!(client.until_ready().value(), "served");
}

#[test]
fn idle_transaction_timeout() {
    let bouncer = with("idle_transaction_timeout = 0.5\n");
    let mut client = bouncer.client("shop");
    client.ok("begin");
    ends(&bouncer, &mut client, "idle transaction timeout");
}

#[test]
fn transaction_timeout() {
    let bouncer = with("transaction_timeout = 2\n");
    let mut client = bouncer.client("shop");
    client.ok("begin");
    client.send(&Frames::new().query("select pg_sleep(600)"));
    client.expect("T*");
    ends(&bouncer, &mut client, "transaction timeout");
}

#[test]
fn client_idle_timeout() {
    let bouncer = with("client_idle_timeout = 0.5\n");
    let mut client = bouncer.client("shop");
    ends(&bouncer, &mut client, "client_idle_timeout");
}

#[test]
fn client_login_timeout() {
    let bouncer = with("client_login_timeout = 1\n");
    let mut client = bouncer.startup("shop").open();
    let error = client.recv();
    assert_eq!((error.error().code.as_str(), error.error().message.as_str()), ("08P01", "client_login_timeout"));
    bouncer.wait_for_log("closing because: client_login_timeout");
}

#[test]
fn a_client_that_leaves_is_logged_as_pgbouncer_does() {
    let bouncer = with("");
    let mut client = bouncer.client("shop");
    client.ok("select 1");
    bouncer.wait_for_log("login attempt: db=shop user=postgres tls=no");
    client.send(&Frames::new().terminate());
    bouncer.wait_for_log("closing because: client close request (age=");
}

#[test]
fn cancel_wait_timeout() {
    let (running, is_running) = mpsc::channel();
    let server = FaultyServer::start(move |connection| {
        connection.log_in()?;
        loop {
            let message = connection.read()?;
            if message.text().contains("until cancelled") {
                running.send(()).map_err(io::Error::other)?;
                return connection.stay_silent();
            }
            connection.answer(&message)?;
        }
    });
    server.mute_cancels();
    let (host, port) = (server.address().ip(), server.address().port());
    let bouncer = Bouncer::start(&format!(
        "[databases]\nshop = host={host} port={port} dbname=postgres\n[pgbouncer]\ncancel_wait_timeout = 1\n"
    ));
    let mut client = bouncer.client("shop");
    client.send(&Frames::new().query("until cancelled"));
    is_running.recv().expect("the query reaches the server");
    client.cancel();
    bouncer.wait_for_log("cancel request not delivered in time");
}
