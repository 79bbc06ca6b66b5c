//! SUSPEND: everything stands still where it is, and goes on with RESUME.

use tidegate_testkit::{Frames, RawClient, Signal, eventually};

use crate::bouncer::{Bouncer, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres pool_size=3\n[pgbouncer]\n";

fn state(bouncer: &Bouncer, key: &str) -> String {
    let rows = bouncer.show("STATE");
    rows.iter().find(|row| row["key"] == key).expect("it is listed")["value"].clone()
}

/// What Postgres says that a backend does, or did last, after so much has gone through the gateway that a query would have, too.
fn seen(bouncer: &Bouncer, backend: &str) -> String {
    for _ in 0..5 {
        bouncer.show("CLIENTS");
    }
    server().value(&format!("select state || ': ' || query from pg_stat_activity where pid = {backend}"))
}

#[test]
fn a_transaction_stands_still_and_goes_on() {
    for mode in ["transaction", "session"] {
        let bouncer = Bouncer::start(&format!("{SHOP}pool_mode = {mode}\n"));
        let mut client = bouncer.client("shop");
        client.ok("begin");
        let backend = client.backend();
        let mut operator = bouncer.console();
        operator.ok("SUSPEND");
        assert_eq!(state(&bouncer, "suspended"), "yes");
        client.send(&Frames::new().query("select 'is read'"));
        assert_eq!(seen(&bouncer, &backend), "idle in transaction: select pg_backend_pid()", "{mode}");
        operator.ok("RESUME");
        assert_eq!(client.until_ready().value(), "is read");
        assert_eq!(client.backend(), backend, "{mode}: it is in its transaction still");
        client.ok("commit");
        assert_eq!(state(&bouncer, "suspended"), "no");
    }
}

/// Most of those who are pooled by PgBouncer are: session mode is its default.
#[test]
fn a_session_that_is_idle_keeps_its_server() {
    let bouncer = Bouncer::start(&format!("{SHOP}pool_mode = session\nsuspend_timeout = 1\n"));
    let mut client = bouncer.client("shop");
    client.ok("create temporary table kept (n int)");
    let mut operator = bouncer.console();
    operator.ok("SUSPEND");
    operator.ok("RESUME");
    client.ok("insert into kept values (1)");
}

#[test]
fn what_is_asked_meanwhile_waits_and_servers_stay_open() {
    let bouncer = Bouncer::start(&format!("{SHOP}query_wait_timeout = 1\nserver_idle_timeout = 1\n"));
    let mut client = bouncer.client("shop");
    let backend = client.backend();
    let mut operator = bouncer.console();
    operator.ok("SUSPEND");
    client.send(&Frames::new().query("select pg_backend_pid()"));
    bouncer.wait_for_pool("shop", "cl_waiting", 1);
    // Time in which the client would be sent away, and its server closed.
    server().value("select pg_sleep(2.5)");
    assert_eq!(server().value(&format!("select count(*) from pg_stat_activity where pid = {backend}")), "1");
    // Who comes meanwhile is let in, and a transaction that begins does so later.
    let mut other = bouncer.client("shop");
    other.send(&Frames::new().query("begin"));
    bouncer.wait_for_pool("shop", "cl_waiting", 2);
    operator.ok("RESUME");
    assert!(client.try_query("select 1").is_ok() || state(&bouncer, "active") == "yes");
    other.until_ready();
    other.ok("commit");
}

#[test]
fn a_query_ends_but_its_answer_waits() {
    let bouncer = Bouncer::start(SHOP);
    let mut holder = server().client();
    holder.ok("select pg_advisory_lock(727)");
    let mut client = bouncer.client("shop");
    let backend = client.backend();
    client.send(&Frames::new().query("select 'done' from (select pg_advisory_xact_lock(727)) as locked"));
    let waits = format!("select count(*) from pg_stat_activity where pid = {backend} and wait_event = 'advisory'");
    eventually("the query runs", || server().value(&waits) == "1");
    let mut operator = bouncer.console();
    operator.ok("SUSPEND");
    holder.ok("select pg_advisory_unlock(727)");
    let rests = format!("select count(*) from pg_stat_activity where pid = {backend} and state = 'idle'");
    eventually("the query has ended", || server().value(&rests) == "1");
    bouncer.wait_for_pool("shop", "sv_active", 1);
    operator.ok("RESUME");
    assert_eq!(client.until_ready().value(), "done");
}

/// Asks for more than fits between the two, and reads none of it.
fn flood(client: &mut RawClient) {
    client.send(&Frames::new().query("select repeat('x', 1000000) from generate_series(1, 100)"));
}

#[test]
fn who_does_not_read_is_waited_for_and_then_sent_away() {
    let bouncer = Bouncer::start(&format!("{SHOP}suspend_timeout = 0.3\n"));
    let (mut still, mut client) = (bouncer.client("shop"), bouncer.client("shop"));
    still.ok("begin");
    flood(&mut client);
    let mut operator = bouncer.console();
    // Until nothing more fits, there are moments in which nothing is under way.
    eventually("it is sent away", || {
        operator.ok("SUSPEND");
        operator.ok("RESUME");
        bouncer.log().contains("closing because: suspend_timeout (age=")
    });
    still.ok("commit");
}

#[test]
fn it_is_over_when_it_is_cancelled_or_its_console_has_gone() {
    let bouncer = Bouncer::start(&format!("{SHOP}suspend_timeout = 0\n"));
    let mut client = bouncer.client("shop");
    let mut operator = bouncer.console();
    operator.ok("SUSPEND");
    drop(operator);
    eventually("it goes on", || state(&bouncer, "suspended") == "no");
    client.ok("select 1");
    flood(&mut client);
    let mut operator = bouncer.console();
    eventually("it waits until it is cancelled", || {
        operator.send(&Frames::new().query("SUSPEND"));
        operator.cancel();
        let outcome = operator.until_ready();
        if outcome.error.is_none() {
            operator.ok("RESUME");
        }
        outcome.error.is_some_and(|error| error.code == "57014")
    });
    assert_eq!(state(&bouncer, "suspended"), "no");
    assert_eq!(client.until_ready().rows.len(), 100);
}

#[test]
fn replication_stands_still_and_goes_on() {
    let bouncer = Bouncer::start(SHOP);
    let mut replica = bouncer.startup("shop").parameter("replication", "database").connect();
    let backend = replica.value("select pg_backend_pid()");
    let mut operator = bouncer.console();
    operator.ok("SUSPEND");
    replica.send(&Frames::new().query("select 'is read'"));
    assert_eq!(seen(&bouncer, &backend), "idle: select pg_backend_pid()");
    operator.ok("RESUME");
    assert_eq!(replica.until_ready().value(), "is read");
}

/// A client can be sent away from where it stands, and a stop ends everything.
#[test]
fn nobody_is_held_against_an_operator() {
    let mut bouncer = Bouncer::start(SHOP);
    let (mut first, mut second) = (bouncer.client("shop"), bouncer.client("shop"));
    first.ok("begin");
    second.ok("begin");
    let mut operator = bouncer.console();
    operator.ok("SUSPEND");
    assert_eq!(operator.query("PAUSE shop").code(), "55000", "it would wait for what stands still");
    let clients = bouncer.show("CLIENTS");
    let id = &clients.iter().find(|row| row["database"] == "shop").expect("it is listed")["id"];
    operator.ok(&format!("KILL_CLIENT {id}"));
    assert_eq!(first.expect_fatal("08P01").message, "admin forced disconnect");
    bouncer.signal(Signal::INT);
    // What stands in a transaction is let go, to its end.
    second.ok("select 1");
    second.ok("commit");
    assert_eq!(second.expect_fatal("08P01").message, "server shutting down");
    assert!(bouncer.wait().success());
}
