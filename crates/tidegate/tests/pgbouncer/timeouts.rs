//! Timeouts: the client gets the message of PgBouncer, and the log has the reason.

use std::{io, sync::mpsc};

use tidegate_testkit::{FaultyServer, Frames, RawClient};

use crate::ini_gateway::IniGateway;

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=1\n[pgbouncer]\n";

fn with(lines: &str) -> IniGateway {
    IniGateway::start(&format!("{SHOP}{lines}"))
}

/// Asserts that the client gets this FATAL error and that the log has it.
fn expect_timeout(gateway: &IniGateway, client: &mut RawClient, text: &str) {
    let error = client.expect_fatal("08P01");
    assert_eq!(error.message, text);
    gateway.wait_for_log(&format!("closing because: {text} (age="));
    gateway.wait_for_log(&format!("pooler error: {text}"));
}

#[test]
fn query_timeout() {
    let gateway = with("query_timeout = 1\n");
    let mut client = gateway.client("shop");
    client.send(&Frames::new().query("select pg_sleep(600)"));
    client.expect("T*");
    expect_timeout(&gateway, &mut client, "query timeout");
    gateway.wait_for_pool("shop", "sv_active", 0);
}

/// A pool that another client uses, a server that accepts and does not reply, and the same at login.
#[test]
fn query_timeout_bounds_the_wait_for_a_server() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let gateway = IniGateway::start(&format!(
        "[databases]\nsilent = host=127.0.0.1 port={port}\nsession = host=127.0.0.1 port={port} pool_mode=session\n\
         {SHOP}query_timeout = 1\nquery_wait_timeout = 600\nserver_connect_timeout = 600\n"
    ));
    let mut owner = gateway.client("shop");
    owner.ok("begin");
    let mut client = gateway.client("shop");
    client.send(&Frames::new().query("select 1"));
    expect_timeout(&gateway, &mut client, "query_timeout");
    owner.ok("commit");
    for database in ["silent", "session"] {
        assert_eq!(gateway.startup(database).refused().message, "query_timeout", "{database}");
    }
}

#[test]
fn query_wait_timeout_of_a_user_takes_precedence() {
    let gateway = IniGateway::start(&format!(
        "[users]\npostgres = query_wait_timeout=5\n{SHOP}query_wait_timeout = 600\nquery_wait_notify = 0\n"
    ));
    let mut owner = gateway.client("shop");
    owner.ok("begin");
    let mut client = gateway.client("shop");
    client.send(&Frames::new().query("select 1"));
    expect_timeout(&gateway, &mut client, "query_wait_timeout");
    owner.ok("commit");
}

#[test]
fn query_wait_timeout_of_a_database_takes_precedence() {
    let gateway = IniGateway::start(
        "[databases]\nshop = $PG dbname=postgres pool_size=1 query_wait_timeout=0.5\n[pgbouncer]\nquery_wait_timeout = 600\n",
    );
    let mut owner = gateway.client("shop");
    owner.ok("begin");
    let mut client = gateway.client("shop");
    client.send(&Frames::new().query("select 1"));
    expect_timeout(&gateway, &mut client, "query_wait_timeout");
}

#[test]
fn timeouts_of_a_user_take_precedence() {
    for (key, sql, text) in [
        ("query_timeout", "select pg_sleep(600)", "query timeout"),
        ("transaction_timeout", "begin; select pg_sleep(600)", "transaction timeout"),
        ("idle_transaction_timeout", "begin", "idle transaction timeout"),
        ("client_idle_timeout", "select 1", "client_idle_timeout"),
    ] {
        let gateway = IniGateway::start(&format!("[users]\npostgres = {key}=1\n{SHOP}{key} = 600\n"));
        let mut client = gateway.client("shop");
        client.send(&Frames::new().query(sql));
        while client.recv().tag != b'E' {}
        gateway.wait_for_log(&format!("closing because: {text} (age="));
    }
}

#[test]
fn server_connect_timeout() {
    // The kernel accepts the connection, and no server answers.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host=127.0.0.1 port={port} dbname=postgres\n[pgbouncer]\nserver_connect_timeout = 0.3\n\
         server_login_retry = 0.1\nquery_wait_timeout = 2\n"
    ));
    assert_eq!(gateway.startup("shop").refused().message, "query_wait_timeout");
    gateway.wait_for_log("closing because: connect timeout (age=0s)");
}

#[test]
fn server_lifetime_0_closes_a_server_after_one_use() {
    for (database, general) in [("", "server_lifetime = 0\n"), ("server_lifetime=0", "")] {
        let gateway =
            IniGateway::start(&format!("[databases]\nshop = $PG dbname=postgres {database}\n[pgbouncer]\n{general}"));
        let mut client = gateway.client("shop");
        assert_ne!(client.backend(), client.backend(), "{database}{general}");
        // The login, which needs a server for its parameters, is no use.
        assert_eq!(gateway.log().matches("new connection to server").count(), 2, "{}", gateway.log());
        gateway.wait_for_log("closing because: server lifetime over");
    }
}

#[test]
fn averages_of_each_period_are_logged() {
    let gateway = with("stats_period = 1\n");
    gateway.client("shop").ok("select 1");
    gateway.wait_for_log("stats: ");
    gateway.wait_for_log(" client parses/s, ");
}

#[test]
fn waiting_client_gets_a_notice() {
    let gateway = with("query_wait_notify = 1\n");
    let mut owner = gateway.client("shop");
    owner.ok("begin");
    let mut client = gateway.client("shop");
    client.send(&Frames::new().query("select 'served'"));
    let notice = client.recv();
    assert_eq!(notice.tag, b'N');
    assert!(notice.error().message.contains("client being queued"), "{notice:?}");
    owner.ok("commit");
    assert_eq!(client.until_ready().value(), "served");
}

#[test]
fn idle_transaction_timeout() {
    let gateway = with("idle_transaction_timeout = 0.5\n");
    let mut client = gateway.client("shop");
    client.ok("begin");
    expect_timeout(&gateway, &mut client, "idle transaction timeout");
}

#[test]
fn transaction_timeout() {
    let gateway = with("transaction_timeout = 2\n");
    let mut client = gateway.client("shop");
    client.ok("begin");
    client.send(&Frames::new().query("select pg_sleep(600)"));
    client.expect("T*");
    expect_timeout(&gateway, &mut client, "transaction timeout");
}

#[test]
fn client_idle_timeout() {
    let gateway = with("client_idle_timeout = 0.5\n");
    let mut client = gateway.client("shop");
    expect_timeout(&gateway, &mut client, "client_idle_timeout");
}

#[test]
fn client_login_timeout() {
    let gateway = with("client_login_timeout = 1\n");
    let mut client = gateway.startup("shop").open();
    let error = client.recv();
    assert_eq!((error.error().code.as_str(), error.error().message.as_str()), ("08P01", "client_login_timeout"));
    gateway.wait_for_log("closing because: client_login_timeout");
}

#[test]
fn client_disconnect_is_logged_like_pgbouncer() {
    let gateway = with("");
    let mut client = gateway.client("shop");
    client.ok("select 1");
    gateway.wait_for_log("login attempt: db=shop user=postgres tls=no");
    client.send(&Frames::new().terminate());
    gateway.wait_for_log("closing because: client close request (age=");
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
                return connection.discard_input();
            }
            connection.answer(&message)?;
        }
    });
    server.ignore_cancels();
    let (host, port) = (server.address().ip(), server.address().port());
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host={host} port={port} dbname=postgres\n[pgbouncer]\ncancel_wait_timeout = 1\n"
    ));
    let mut client = gateway.client("shop");
    client.send(&Frames::new().query("until cancelled"));
    is_running.recv().expect("the query reaches the server");
    client.cancel();
    gateway.wait_for_log("cancel request not delivered in time");
}
