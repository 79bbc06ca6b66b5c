//! SUSPEND: all traffic stops, and continues with RESUME.

use tidegate_testkit::{Frames, RawClient, Signal, eventually};

use crate::ini_gateway::{IniGateway, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=3\n[pgbouncer]\n";

fn state(gateway: &IniGateway, key: &str) -> String {
    let rows = gateway.show("STATE");
    rows.iter().find(|row| row["key"] == key).expect("the key exists")["value"].clone()
}

/// The state and the query of a backend, after some traffic through the gateway, in which a query of the client would
/// have passed as well.
fn backend_activity(gateway: &IniGateway, backend: &str) -> String {
    for _ in 0..5 {
        gateway.show("CLIENTS");
    }
    server().value(&format!("select state || ': ' || query from pg_stat_activity where pid = {backend}"))
}

#[test]
fn suspended_transaction_continues_after_resume() {
    for mode in ["transaction", "session"] {
        let gateway = IniGateway::start(&format!("{SHOP}pool_mode = {mode}\n"));
        let mut client = gateway.client("shop");
        client.ok("begin");
        let backend = client.backend();
        let mut operator = gateway.console();
        operator.ok("SUSPEND");
        assert_eq!(state(&gateway, "suspended"), "yes");
        client.send(&Frames::new().query("select 'resumed'"));
        assert_eq!(backend_activity(&gateway, &backend), "idle in transaction: select pg_backend_pid()", "{mode}");
        operator.ok("RESUME");
        assert_eq!(client.until_ready().value(), "resumed");
        assert_eq!(client.backend(), backend, "{mode}: the transaction has moved");
        client.ok("commit");
        assert_eq!(state(&gateway, "suspended"), "no");
    }
}

/// Session mode is the default of PgBouncer.
#[test]
fn idle_session_keeps_its_server() {
    let gateway = IniGateway::start(&format!("{SHOP}pool_mode = session\nsuspend_timeout = 1\n"));
    let mut client = gateway.client("shop");
    client.ok("create temporary table kept (n int)");
    let mut operator = gateway.console();
    operator.ok("SUSPEND");
    operator.ok("RESUME");
    client.ok("insert into kept values (1)");
}

#[test]
fn suspended_queries_wait_and_servers_stay_open() {
    let gateway = IniGateway::start(&format!("{SHOP}query_wait_timeout = 1\nserver_idle_timeout = 1\n"));
    let mut client = gateway.client("shop");
    let backend = client.backend();
    let mut operator = gateway.console();
    operator.ok("SUSPEND");
    client.send(&Frames::new().query("select pg_backend_pid()"));
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    // The workload is the time: it exceeds the timeouts that would disconnect the client and close its server.
    server().value("select pg_sleep(2.5)");
    assert_eq!(server().value(&format!("select count(*) from pg_stat_activity where pid = {backend}")), "1");
    // New clients can log in, and their transactions begin after RESUME.
    let mut other = gateway.client("shop");
    other.send(&Frames::new().query("begin"));
    gateway.wait_for_pool("shop", "cl_waiting", 2);
    operator.ok("RESUME");
    assert!(client.try_query("select 1").is_ok() || state(&gateway, "active") == "yes");
    other.until_ready();
    other.ok("commit");
}

#[test]
fn reply_of_a_running_query_waits_for_resume() {
    let gateway = IniGateway::start(SHOP);
    let mut holder = server().client();
    holder.ok("select pg_advisory_lock(727)");
    let mut client = gateway.client("shop");
    let backend = client.backend();
    client.send(&Frames::new().query("select 'done' from (select pg_advisory_xact_lock(727)) as locked"));
    let is_waiting = format!("select count(*) from pg_stat_activity where pid = {backend} and wait_event = 'advisory'");
    eventually("the query runs", || server().value(&is_waiting) == "1");
    let mut operator = gateway.console();
    operator.ok("SUSPEND");
    holder.ok("select pg_advisory_unlock(727)");
    let is_idle = format!("select count(*) from pg_stat_activity where pid = {backend} and state = 'idle'");
    eventually("the query has ended", || server().value(&is_idle) == "1");
    gateway.wait_for_pool("shop", "sv_active", 1);
    operator.ok("RESUME");
    assert_eq!(client.until_ready().value(), "done");
}

/// Requests more rows than the socket buffers hold, without reading them.
fn flood(client: &mut RawClient) {
    client.send(&Frames::new().query("select repeat('x', 1000000) from generate_series(1, 100)"));
}

#[test]
fn suspend_timeout_disconnects_clients_not_reading() {
    let gateway = IniGateway::start(&format!("{SHOP}suspend_timeout = 0.3\n"));
    let (mut idle, mut client) = (gateway.client("shop"), gateway.client("shop"));
    idle.ok("begin");
    flood(&mut client);
    let mut operator = gateway.console();
    // There are moments without data in flight until the socket buffers are full.
    eventually("the client is disconnected", || {
        operator.ok("SUSPEND");
        operator.ok("RESUME");
        gateway.log().contains("closing because: suspend_timeout (age=")
    });
    idle.ok("commit");
}

#[test]
fn suspend_ends_with_its_console_or_a_cancel() {
    let gateway = IniGateway::start(&format!("{SHOP}suspend_timeout = 0\n"));
    let mut client = gateway.client("shop");
    let mut operator = gateway.console();
    operator.ok("SUSPEND");
    drop(operator);
    eventually("the gateway is resumed", || state(&gateway, "suspended") == "no");
    client.ok("select 1");
    flood(&mut client);
    let mut operator = gateway.console();
    eventually("SUSPEND waits and is cancelled", || {
        operator.send(&Frames::new().query("SUSPEND"));
        operator.cancel();
        let outcome = operator.until_ready();
        if outcome.error.is_none() {
            operator.ok("RESUME");
        }
        outcome.error.is_some_and(|error| error.code == "57014")
    });
    assert_eq!(state(&gateway, "suspended"), "no");
    assert_eq!(client.until_ready().rows.len(), 100);
}

#[test]
fn suspended_replication_continues_after_resume() {
    let gateway = IniGateway::start(SHOP);
    let mut replica = gateway.startup("shop").parameter("replication", "database").connect();
    let backend = replica.value("select pg_backend_pid()");
    let mut operator = gateway.console();
    operator.ok("SUSPEND");
    replica.send(&Frames::new().query("select 'resumed'"));
    assert_eq!(backend_activity(&gateway, &backend), "idle: select pg_backend_pid()");
    operator.ok("RESUME");
    assert_eq!(replica.until_ready().value(), "resumed");
}

/// A pause that waits for a transaction would wait for as long as the transaction is not read.
#[test]
fn suspend_ends_the_pause_of_one_database() {
    let gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("begin");
    let (mut pausing, mut operator) = (gateway.console(), gateway.console());
    pausing.send(&Frames::new().query("PAUSE shop"));
    eventually("the database is paused", || gateway.show("DATABASES").iter().any(|row| row["paused"] == "1"));
    operator.ok("SUSPEND");
    assert_eq!(pausing.until_ready().code(), "08P01");
    operator.ok("RESUME");
    client.ok("commit");
}

/// KILL_CLIENT and a shutdown work while the gateway is suspended.
#[test]
fn kill_client_and_shutdown_work_while_suspended() {
    let mut gateway = IniGateway::start(SHOP);
    let (mut first, mut second) = (gateway.client("shop"), gateway.client("shop"));
    first.ok("begin");
    second.ok("begin");
    let mut operator = gateway.console();
    operator.ok("SUSPEND");
    assert_eq!(operator.query("PAUSE shop").code(), "08P01", "PAUSE would wait for suspended clients");
    let clients = gateway.show("CLIENTS");
    let id = &clients.iter().find(|row| row["database"] == "shop").expect("the client is listed")["id"];
    operator.ok(&format!("KILL_CLIENT {id}"));
    assert_eq!(first.expect_fatal("08P01").message, "admin forced disconnect");
    gateway.signal(Signal::INT);
    // An open transaction is resumed and may end.
    second.ok("select 1");
    second.ok("commit");
    assert_eq!(second.expect_fatal("08P01").message, "server shutting down");
    assert!(gateway.wait().success());
}
