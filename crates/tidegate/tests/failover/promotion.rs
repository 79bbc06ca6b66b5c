//! Failover and switchover: another server becomes the primary.

use std::collections::BTreeSet;

use tidegate_sandbox::{Postgres, ShutdownMode};
use tidegate_testkit::Frames;

use crate::cluster::{
    connect, current_server, database, eventually, gateway, host_column, hosts, log_in, new_cluster, shared_cluster,
    sql, value, wait_for, wait_until_all_up,
};
use crate::load::{Load, Work};

#[test]
fn clean_switchover_then_a_crash() {
    let mut cluster = new_cluster();
    let gateway = gateway(&[database(&cluster, "app", ""), database(&cluster, "ro", "route = \"replica\"")]);
    let startup = gateway.startup("app");
    log_in(&startup).ok("select 1");
    wait_until_all_up(&gateway, &cluster, "app");

    // Clean: a smart shutdown accepts no connections and ends when all have left. The replicas get all of its writes.
    let load = Load::start(&startup, 6, Work::Write);
    let mut idle: Vec<_> = (0..10).map(|_| log_in(&startup)).collect();
    cluster.server(0).begin_shutdown(ShutdownMode::Smart);
    cluster.server_mut(0).wait_for_shutdown().expect("the gateway closes its connections");
    cluster.promote(1).expect("a replica can be promoted");
    load.wait_for_progress();
    wait_for(&gateway, &cluster, "app", 1, "role", "primary");
    for client in &mut idle {
        assert_eq!(current_server(&cluster, client), 1);
    }
    let (rows, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(value(cluster.primary(), "select count(*) from t"), rows.to_string(), "confirmed rows, each once");
    for index in [0, 2] {
        cluster.follow(index).expect("the server follows the new primary");
        cluster.catch_up(index).expect("the server catches up");
        wait_for(&gateway, &cluster, "app", index, "role", "replica");
        wait_for(&gateway, &cluster, "app", index, "state", "up");
    }

    // Crash: a client between transactions waits, and continues on the next primary.
    cluster.server_mut(1).kill9().expect("the server can be killed");
    wait_for(&gateway, &cluster, "app", 1, "state", "down");
    let is_warning =
        |line: &String| line.contains("WARN") && line.contains("no primary") && line.contains("databases=app");
    eventually("the missing primary is logged", || gateway.warnings().iter().any(is_warning));
    let mut waits = log_in(&startup);
    let waiting =
        std::thread::spawn(move || waits.value("insert into t (v) values ('waited') returning inet_server_port()"));
    cluster.promote(2).expect("a replica can be promoted");
    let served = waiting.join().expect("the client is served");
    assert_eq!(served, cluster.server(2).port().to_string());
    let (new, former) = (format!(":{}", cluster.server(2).port()), format!(":{}", cluster.server(1).port()));
    eventually("the log has the new primary beside the former one", || {
        let log = gateway.log();
        let mut primaries = log.lines().filter(|line| line.contains("INFO primary databases=app"));
        primaries.any(|line| {
            line.split_once("before=").is_some_and(|(line, before)| line.contains(&new) && before.contains(&former))
        })
    });
    for client in &mut idle {
        client.ok("insert into t (v) values ('idle')");
        assert_eq!(current_server(&cluster, client), 2);
    }
}

#[test]
fn switchover_in_a_pause_then_a_hanging_primary() {
    let mut cluster = new_cluster();
    let section = database(&cluster, "app", "").replace("probe_timeout = \"15s\"", "probe_timeout = \"2s\"");
    let gateway = gateway(&[section]);
    let startup = gateway.startup("app");
    log_in(&startup).ok("select 1");
    wait_until_all_up(&gateway, &cluster, "app");

    // PAUSE holds all transactions, so that the primary may be stopped with all its sessions.
    let load = Load::start(&startup, 6, Work::Write);
    let mut console = gateway.console();
    console.ok("PAUSE app");
    cluster.server(0).begin_shutdown(ShutdownMode::Fast);
    cluster.server_mut(0).wait_for_shutdown().expect("the server ends its sessions");
    cluster.promote(1).expect("a replica can be promoted");
    console.ok("RESUME app");
    load.wait_for_progress();
    let (rows, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(value(cluster.primary(), "select count(*) from t"), rows.to_string(), "confirmed rows, each once");
    cluster.follow(2).expect("the server follows the new primary");
    cluster.catch_up(2).expect("the server catches up");

    // The primary stops responding and its sessions stay open, so that clients cannot detect it.
    let mut idle: Vec<_> = (0..4).map(|_| log_in(&startup)).collect();
    let mut waits = log_in(&startup);
    let mut open = log_in(&startup);
    open.ok("begin");
    open.ok("insert into t (v) values ('lost')");
    assert_eq!(current_server(&cluster, &mut open), 1);
    cluster.server(1).suspend();
    open.send(&Frames::new().query("insert into t (v) values ('lost')"));
    wait_for(&gateway, &cluster, "app", 1, "state", "silent");
    let waiting =
        std::thread::spawn(move || waits.value("insert into t (v) values ('waited') returning inet_server_port()"));
    cluster.promote(2).expect("a replica can be promoted");
    wait_for(&gateway, &cluster, "app", 1, "state", "deposed");
    let error = open.expect_fatal("08006");
    assert!(error.message.contains("not the primary any more"), "{}", error.message);
    assert_eq!(waiting.join().expect("the client is served"), cluster.server(2).port().to_string());
    for client in &mut idle {
        client.ok("insert into t (v) values ('idle')");
        assert_eq!(current_server(&cluster, client), 2);
    }
    // The old primary resumes. Neither the open transaction nor a new one writes there.
    cluster.server(1).resume();
    let remaining = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() \
                and application_name <> 'tidegate probe'";
    eventually("connections to the old primary are closed", || value(cluster.server(1), remaining) == "0");
    for client in &mut idle {
        client.ok("insert into t (v) values ('idle')");
        assert_eq!(current_server(&cluster, client), 2);
    }
    assert_eq!(host_column(&gateway, &cluster, "app", 1, "state"), "deposed");
    assert_eq!(value(cluster.server(1), "select count(*) from t"), rows.to_string());
}

#[test]
fn latest_promoted_of_two_primaries_is_used() {
    let mut cluster = new_cluster();
    let gateway = gateway(&[database(&cluster, "app", "")]);
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, &cluster, "app");
    assert_eq!(current_server(&cluster, &mut client), 0);
    // The old primary is still running.
    cluster.promote(1).expect("a replica can be promoted");
    wait_for(&gateway, &cluster, "app", 0, "state", "deposed");
    eventually("the new primary gets the writes", || current_server(&cluster, &mut client) == 1);
    client.ok("insert into t (v) values ('new')");
    assert!(gateway.log().contains("two primaries"), "{}", gateway.log());
    let remaining = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() \
                and application_name <> 'tidegate probe'";
    eventually("connections to the old primary are closed", || value(cluster.server(0), remaining) == "0");
    // The old primary is not used after the new one is gone, because its writes would be lost.
    cluster.server_mut(1).kill9().expect("the server can be killed");
    wait_for(&gateway, &cluster, "app", 1, "state", "down");
    assert_eq!(host_column(&gateway, &cluster, "app", 0, "state"), "deposed");
}

#[test]
fn unrelated_servers_are_all_used_by_route_any() {
    let (cluster, _) = shared_cluster();
    let mut other = Postgres::builder().start().expect("an unrelated Postgres starts");
    sql(&other, "create table t (v text)");
    let list = format!("hosts = [\"127.0.0.1:{}\", \"127.0.0.1:{}\"]", cluster.server(0).port(), other.port());
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let section =
        |name: &str, route: &str| database(cluster, name, &format!("route = \"{route}\"")).replace(&plain, &list);
    let gateway = gateway(&[section("both", "any"), section("one", "primary")]);
    let port = "insert into t (v) values ('anywhere') returning inet_server_port()";
    let mut both = connect(&gateway, "both");
    let both_ports = BTreeSet::from([cluster.server(0).port().to_string(), other.port().to_string()]);
    eventually("both get writes", || (0..4).map(|_| both.value(port)).collect::<BTreeSet<_>>() == both_ports);
    // Route `primary` keeps writes on one server.
    let mut one = connect(&gateway, "one");
    let first = one.value(port);
    assert!((0..6).all(|_| one.value(port) == first));
    assert!(gateway.log().contains("two primaries of different systems"), "{}", gateway.log());
    // The other server remains when one is gone.
    other.kill9().expect("the server can be killed");
    eventually("the killed server is down", || {
        gateway.show("HOSTS").iter().any(|row| row["database"] == "both" && row["state"] == "down")
    });
    for _ in 0..4 {
        assert_eq!(both.value(port), cluster.server(0).port().to_string());
    }
}
