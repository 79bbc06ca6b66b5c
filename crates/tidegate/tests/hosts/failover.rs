//! The primary moves.

use std::collections::BTreeSet;

use tidegate_sandbox::{Postgres, ShutdownMode};
use tidegate_testkit::Frames;

use crate::load::{Load, Work};
use crate::stage::{
    connect, database, eventually, fresh, gateway, hosts, log_in, shown, sql, steady, value, wait_for,
    wait_until_settled, whereabouts,
};

#[test]
fn a_clean_switch_over_and_then_a_crash() {
    let mut cluster = fresh();
    let gateway = gateway(&[database(&cluster, "app", ""), database(&cluster, "ro", "route = \"replica\"")]);
    let startup = gateway.startup("app");
    log_in(&startup).ok("select 1");
    wait_until_settled(&gateway, &cluster, "app");

    // Clean: the primary lets nobody in any more and ends when all have left; what it wrote reaches the replicas.
    let load = Load::start(&startup, 6, Work::Write);
    let mut idle: Vec<_> = (0..10).map(|_| log_in(&startup)).collect();
    cluster.server(0).begin_shutdown(ShutdownMode::Smart);
    cluster.server_mut(0).wait_for_shutdown().expect("the gateway lets go of it");
    cluster.promote(1).expect("a replica can be promoted");
    load.goes_on();
    wait_for(&gateway, &cluster, "app", 1, "role", "primary");
    for client in &mut idle {
        assert_eq!(whereabouts(&cluster, client), 1);
    }
    let (rows, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(value(cluster.primary(), "select count(*) from t"), rows.to_string(), "confirmed rows, each once");
    for index in [0, 2] {
        cluster.follow(index).expect("it follows the new primary");
        cluster.catch_up(index).expect("it catches up");
        wait_for(&gateway, &cluster, "app", index, "role", "replica");
        wait_for(&gateway, &cluster, "app", index, "state", "up");
    }

    // A crash: whoever was between transactions waits, and goes on at the next primary.
    cluster.server_mut(1).kill9().expect("it can be killed");
    wait_for(&gateway, &cluster, "app", 1, "state", "down");
    let loud = |line: &String| line.contains("WARN") && line.contains("no primary");
    eventually("it is said aloud that nobody takes writes", || gateway.complaints().iter().any(loud));
    let mut waits = log_in(&startup);
    let waiting =
        std::thread::spawn(move || waits.value("insert into t (v) values ('waited') returning inet_server_port()"));
    cluster.promote(2).expect("a replica can be promoted");
    let served = waiting.join().expect("the client goes on");
    assert_eq!(served, cluster.server(2).port().to_string());
    for client in &mut idle {
        client.ok("insert into t (v) values ('idle')");
        assert_eq!(whereabouts(&cluster, client), 2);
    }
}

#[test]
fn a_switch_over_in_a_pause_and_then_a_primary_that_hangs() {
    let mut cluster = fresh();
    let section = database(&cluster, "app", "").replace("probe_timeout = \"15s\"", "probe_timeout = \"2s\"");
    let gateway = gateway(&[section]);
    let startup = gateway.startup("app");
    log_in(&startup).ok("select 1");
    wait_until_settled(&gateway, &cluster, "app");

    // A pause holds all transactions back, so that the primary may be stopped with all its sessions.
    let load = Load::start(&startup, 6, Work::Write);
    let mut console = gateway.console();
    console.ok("PAUSE app");
    cluster.server(0).begin_shutdown(ShutdownMode::Fast);
    cluster.server_mut(0).wait_for_shutdown().expect("it ends its sessions");
    cluster.promote(1).expect("a replica can be promoted");
    console.ok("RESUME app");
    load.goes_on();
    let (rows, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(value(cluster.primary(), "select count(*) from t"), rows.to_string(), "confirmed rows, each once");
    cluster.follow(2).expect("it follows the new primary");
    cluster.catch_up(2).expect("it catches up");

    // It says nothing any more, and its sessions stay open: nobody who has one can know.
    let mut idle: Vec<_> = (0..4).map(|_| log_in(&startup)).collect();
    let mut waits = log_in(&startup);
    let mut cut = log_in(&startup);
    cut.ok("begin");
    cut.ok("insert into t (v) values ('lost')");
    assert_eq!(whereabouts(&cluster, &mut cut), 1);
    cluster.server(1).suspend();
    cut.send(&Frames::new().query("insert into t (v) values ('lost')"));
    wait_for(&gateway, &cluster, "app", 1, "state", "silent");
    let waiting =
        std::thread::spawn(move || waits.value("insert into t (v) values ('waited') returning inet_server_port()"));
    cluster.promote(2).expect("a replica can be promoted");
    wait_for(&gateway, &cluster, "app", 1, "state", "deposed");
    let told = cut.expect_fatal("08006");
    assert!(told.message.contains("not the primary any more"), "{}", told.message);
    assert_eq!(waiting.join().expect("the client goes on"), cluster.server(2).port().to_string());
    for client in &mut idle {
        client.ok("insert into t (v) values ('idle')");
        assert_eq!(whereabouts(&cluster, client), 2);
    }
    // It wakes up, and nothing is written there, neither what was begun nor anything new.
    cluster.server(1).resume();
    let left = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() \
                and application_name <> 'tidegate probe'";
    eventually("connections to the old one are closed", || value(cluster.server(1), left) == "0");
    for client in &mut idle {
        client.ok("insert into t (v) values ('idle')");
        assert_eq!(whereabouts(&cluster, client), 2);
    }
    assert_eq!(shown(&gateway, &cluster, "app", 1, "state"), "deposed");
    assert_eq!(value(cluster.server(1), "select count(*) from t"), rows.to_string());
}

#[test]
fn of_two_primaries_the_one_that_was_promoted_last_is_believed() {
    let mut cluster = fresh();
    let gateway = gateway(&[database(&cluster, "app", "")]);
    let mut here = connect(&gateway, "app");
    wait_until_settled(&gateway, &cluster, "app");
    assert_eq!(whereabouts(&cluster, &mut here), 0);
    // Nobody has stopped the old one.
    cluster.promote(1).expect("a replica can be promoted");
    wait_for(&gateway, &cluster, "app", 0, "state", "deposed");
    eventually("the new one takes the writes", || whereabouts(&cluster, &mut here) == 1);
    here.ok("insert into t (v) values ('new')");
    assert!(gateway.log().contains("two primaries"), "{}", gateway.log());
    let left = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() \
                and application_name <> 'tidegate probe'";
    eventually("connections to the old one are closed", || value(cluster.server(0), left) == "0");
    // It is not believed either when the new one is gone: what it took would be lost.
    cluster.server_mut(1).kill9().expect("it can be killed");
    wait_for(&gateway, &cluster, "app", 1, "state", "down");
    assert_eq!(shown(&gateway, &cluster, "app", 0, "state"), "deposed");
}

#[test]
fn servers_that_have_nothing_to_do_with_each_other_are_all_used_by_route_any() {
    let (cluster, _) = steady();
    let mut other = Postgres::builder().start().expect("a Postgres of its own starts");
    sql(&other, "create table t (v text)");
    let list = format!("hosts = [\"127.0.0.1:{}\", \"127.0.0.1:{}\"]", cluster.server(0).port(), other.port());
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let section =
        |name: &str, route: &str| database(cluster, name, &format!("route = \"{route}\"")).replace(&plain, &list);
    let gateway = gateway(&[section("both", "any"), section("one", "primary")]);
    let port = "insert into t (v) values ('anywhere') returning inet_server_port()";
    let mut both = connect(&gateway, "both");
    let known = BTreeSet::from([cluster.server(0).port().to_string(), other.port().to_string()]);
    eventually("both take writes", || (0..4).map(|_| both.value(port)).collect::<BTreeSet<_>>() == known);
    // Writes of one database stay where they are.
    let mut one = connect(&gateway, "one");
    let first = one.value(port);
    assert!((0..6).all(|_| one.value(port) == first));
    assert!(gateway.log().contains("nothing to do with each other"), "{}", gateway.log());
    // One that goes leaves the other.
    other.kill9().expect("it can be killed");
    eventually("the other one is left", || {
        gateway.show("HOSTS").iter().any(|row| row["database"] == "both" && row["state"] == "down")
    });
    for _ in 0..4 {
        assert_eq!(both.value(port), cluster.server(0).port().to_string());
    }
}
