//! Replicas that lag, are removed, crash or hang.

use std::sync::atomic::Ordering;

use tidegate_sandbox::Cluster;
use tidegate_testkit::{FaultyServer, Frames, Gateway, Signal, reply};
use toml::Value;

use crate::cluster::{
    TIMEOUT, connect, current_server, database, eventually, exclusive_cluster, gateway, host_column, hosts,
    index_of_port, log_in, servers_of, shared_cluster, sql, value, wait_for, wait_until_all_up,
};
use crate::load::{Load, Work};

/// A gateway in front of the replicas, with clients that read.
fn read_load(cluster: &Cluster) -> (Gateway, Load) {
    let gateway = gateway(&[database(cluster, "ro", "route = \"replica\"")]);
    let startup = gateway.startup("ro");
    log_in(&startup).ok("select 1");
    wait_until_all_up(&gateway, cluster, "ro");
    let load = Load::start(&startup, 6, Work::Read);
    (gateway, load)
}

#[test]
fn lagging_replica_is_not_used() {
    let cluster = exclusive_cluster();
    let sections = [
        database(&cluster, "ro", "route = \"replica\"\nlag_bytes_max = 1000"),
        database(&cluster, "prefer", "route = \"prefer-replica\"\nlag_bytes_max = 1000"),
    ];
    let gateway = gateway(&sections);
    let (mut ro, mut prefer) = (connect(&gateway, "ro"), connect(&gateway, "prefer"));
    wait_until_all_up(&gateway, &cluster, "ro");
    wait_until_all_up(&gateway, &cluster, "prefer");
    let write = || sql(cluster.primary(), "insert into t (v) select repeat('x', 1000) from generate_series(1, 20)");
    cluster.pause_replay(1).expect("replay can be paused");
    write();
    wait_for(&gateway, &cluster, "ro", 1, "state", "lagging");
    let lag: u64 = host_column(&gateway, &cluster, "ro", 1, "lag_bytes").parse().expect("a number");
    assert!(lag > 1000, "{lag}");
    assert!(servers_of(&cluster, &mut ro, 6).into_iter().eq([2]));
    cluster.pause_replay(2).expect("replay can be paused");
    write();
    wait_for(&gateway, &cluster, "prefer", 2, "state", "lagging");
    eventually("the primary is used instead", || servers_of(&cluster, &mut prefer, 4).into_iter().eq([0]));
    for index in [1, 2] {
        cluster.resume_replay(index).expect("replay can be resumed");
        wait_for(&gateway, &cluster, "ro", index, "state", "up");
    }
    // Background writes of the primary may make a replica lag for a moment.
    eventually("both are used again", || servers_of(&cluster, &mut ro, 6).into_iter().eq([1, 2]));
}

#[test]
fn writes_rejected_by_a_replica_need_no_new_login() {
    let (cluster, _) = shared_cluster();
    sql(cluster.primary(), "create database counted");
    [1, 2].iter().for_each(|index| cluster.catch_up(*index).expect("replicas stream"));
    let section = database(cluster, "db", "route = \"replica\"").replace("\"postgres\"", "\"counted\"");
    let gateway = gateway(&[section.replace("probe_interval = \"50ms\"", "probe_interval = \"60s\"")]);
    let mut client = connect(&gateway, "db");
    wait_until_all_up(&gateway, cluster, "db");
    for _ in 0..6000 {
        assert_eq!(client.query("create table x ()").code(), "25006");
    }
    let sessions = "select sum(sessions) from pg_stat_database where datname = 'counted'";
    for index in [1, 2] {
        let logins: u32 = value(cluster.server(index), sessions).parse().expect("a number");
        // The delay doubles each time, so that more logins would take longer than a test may.
        assert!(logins < 20, "{logins} logins to server {index}");
    }
}

#[test]
fn client_gets_an_error_when_all_replicas_lag() {
    let cluster = exclusive_cluster();
    let section = database(&cluster, "ro", "route = \"replica\"\nlag_bytes_max = 1000")
        .replace("failover_wait = \"120s\"", "failover_wait = \"100ms\"");
    let gateway = gateway(&[section, database(&cluster, "app", "")]);
    let mut client = connect(&gateway, "app");
    wait_until_all_up(&gateway, &cluster, "app");
    client.ok("select 1");
    let mut ro = connect(&gateway, "ro");
    wait_until_all_up(&gateway, &cluster, "ro");
    for index in [1, 2] {
        cluster.pause_replay(index).expect("replay can be paused");
    }
    sql(cluster.primary(), "insert into t (v) select repeat('x', 1000) from generate_series(1, 20)");
    for index in [1, 2] {
        wait_for(&gateway, &cluster, "ro", index, "state", "lagging");
    }
    ro.send(&Frames::new().query("select 1"));
    let fields = ro.expect_fatal("57P03");
    assert!(fields.message.contains("a replica that is fresh enough"), "{}", fields.message);
    for index in [1, 2] {
        cluster.resume_replay(index).expect("replay can be resumed");
        wait_for(&gateway, &cluster, "ro", index, "state", "up");
    }
}

/// The client used to get the error of the last connect, with another SQLSTATE.
#[test]
fn loss_of_last_server_during_login_is_reported() {
    let has_failed = std::sync::atomic::AtomicBool::new(false);
    // The server rejects probes, so that it counts as up until its first client. From then on it closes every
    // connection.
    let server = FaultyServer::start(move |connection| {
        let is_probe = connection.startup().windows(14).any(|part| part == b"tidegate probe");
        if !is_probe || has_failed.load(Ordering::SeqCst) {
            has_failed.store(true, Ordering::SeqCst);
            return Ok(());
        }
        connection.send(&reply::fatal("28000", "no probes here"))
    });
    let keys = "route = \"any\"\nsslmode = \"disable\"\nprobe_interval = \"60s\"\nfailover_wait = \"2s\"";
    let section = format!("[databases.db]\nhosts = [\"{}\"]\n{keys}\n", server.address());
    let gateway = gateway(&[section]);
    let mut client = gateway.startup("db").open();
    client.set_timeout(TIMEOUT);
    client.send_bytes(&client.startup().packet());
    let error = client.expect_fatal("57P03");
    assert!(error.message.contains("no server of database \"db\" can be used"), "{}", error.message);
    let rows = gateway.show("HOSTS");
    assert!(rows[0]["state"] == "down" && rows[0]["last_error"].contains("during login"), "{rows:?}");
}

#[test]
fn reload_drains_a_replica_without_failures() {
    let cluster = exclusive_cluster();
    let (mut gateway, load) = read_load(&cluster);
    // An open transaction ends on its server.
    let mut open = connect(&gateway, "ro");
    eventually("a transaction begins on server 1", || {
        open.ok("begin");
        let is_on_server_1 = current_server(&cluster, &mut open) == 1;
        if !is_on_server_1 {
            open.ok("commit");
        }
        is_on_server_1
    });
    gateway.set_config("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 2])));
    gateway.signal(Signal::HUP);
    wait_for(&gateway, &cluster, "ro", 1, "state", "gone");
    let remaining =
        "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
    eventually("only the open transaction remains on server 1", || value(cluster.server(1), remaining) == "1");
    load.wait_for_progress();
    assert_eq!(current_server(&cluster, &mut open), 1);
    open.ok("commit");
    eventually("no connection remains on server 1", || value(cluster.server(1), remaining) == "0");
    assert_eq!(current_server(&cluster, &mut open), 2);
    gateway.set_config("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 1, 2])));
    gateway.signal(Signal::HUP);
    wait_for(&gateway, &cluster, "ro", 1, "state", "up");
    eventually("server 1 is used again", || servers_of(&cluster, &mut open, 4).contains(&1));
    load.wait_for_progress();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn repeatedly_removed_server_keeps_no_connection() {
    let cluster = exclusive_cluster();
    let (mut gateway, load) = read_load(&cluster);
    let all = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
    for _ in 0..15 {
        gateway.set_config("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 1, 2])));
        gateway.signal(Signal::HUP);
        wait_for(&gateway, &cluster, "ro", 1, "state", "up");
        eventually("server 1 is used", || value(cluster.server(1), all) != "0");
        gateway.set_config("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 2])));
        gateway.signal(Signal::HUP);
        wait_for(&gateway, &cluster, "ro", 1, "state", "gone");
        eventually("no connection remains on server 1", || value(cluster.server(1), all) == "0");
    }
    load.wait_for_progress();
    // Queries on the removed server stay in the counts.
    let (done, stats) = (load.done(), gateway.show("STATS"));
    let counted = stats.iter().find(|row| row["database"] == "ro").expect("the database has a row");
    assert!(counted["total_query_count"].parse::<u64>().expect("a number") >= done, "{done}: {counted:?}");
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn smart_shutdown_of_a_replica_causes_no_failures() {
    let mut cluster = exclusive_cluster();
    let (gateway, load) = read_load(&cluster);
    // The server ends when the last session has left, so that the gateway has to close its connections.
    cluster.server(1).begin_shutdown(tidegate_sandbox::ShutdownMode::Smart);
    cluster.server_mut(1).wait_for_shutdown().expect("the gateway closes its connections");
    load.wait_for_progress();
    cluster.server_mut(1).restart().expect("the server starts again");
    wait_for(&gateway, &cluster, "ro", 1, "state", "up");
    load.wait_for_progress();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

/// SQLSTATEs that a client may get when its server is killed.
const CRASHED: [&str; 3] = ["08006", "57P01", "57P02"];

#[test]
fn crash_of_a_replica_fails_only_its_transactions() {
    let mut cluster = exclusive_cluster();
    let gateway = gateway(&[database(&cluster, "ro", "route = \"replica\"")]);
    let startup = gateway.startup("ro");
    let mut idle = log_in(&startup);
    wait_until_all_up(&gateway, &cluster, "ro");
    let mut inside = log_in(&startup);
    inside.ok("begin");
    let killed = current_server(&cluster, &mut inside);
    assert_ne!(killed, 0);
    let load = Load::start(&startup, 6, Work::Read);
    cluster.server_mut(killed).kill9().expect("the server can be killed");
    // The error of the gateway for the closed connection, or that of the backend whose postmaster is gone.
    inside.send(&Frames::new().query("select 1"));
    let code = inside.expect("N* E")[0].error().code;
    assert!(CRASHED.contains(&code.as_str()), "{code}");
    load.wait_for_progress();
    wait_for(&gateway, &cluster, "ro", killed, "state", "down");
    // A client between transactions is not affected.
    let other = 3 - killed;
    assert!(servers_of(&cluster, &mut idle, 4).into_iter().eq([other]));
    cluster.server_mut(killed).restart().expect("the server starts again");
    wait_for(&gateway, &cluster, "ro", killed, "state", "up");
    eventually("the server is used again", || servers_of(&cluster, &mut idle, 4).contains(&killed));
    load.wait_for_progress();
    let (_, failed) = load.end();
    // The crash may fail the transaction in progress of each client, with one of these codes.
    let count: usize = failed.values().sum();
    assert!(count <= 6 && failed.keys().all(|code| CRASHED.contains(&code.as_str())), "{failed:?}");
}

#[test]
fn clients_wait_until_crashed_servers_return() {
    let mut cluster = exclusive_cluster();
    let gateway = gateway(&[database(&cluster, "app", "route = \"any\"")]);
    let startup = gateway.startup("app");
    let mut idle = log_in(&startup);
    wait_until_all_up(&gateway, &cluster, "app");
    let load = Load::start(&startup, 6, Work::Read);
    for server in 0..3 {
        cluster.server_mut(server).kill9().expect("the server can be killed");
    }
    for server in 0..3 {
        wait_for(&gateway, &cluster, "app", server, "state", "down");
    }
    idle.send(&Frames::new().query("select 1"));
    for server in 0..3 {
        cluster.server_mut(server).restart().expect("the server starts again");
    }
    assert_eq!(idle.until_ready().value(), "1", "a client between transactions is not affected");
    wait_until_all_up(&gateway, &cluster, "app");
    eventually("all are used again", || servers_of(&cluster, &mut idle, 6).len() == 3);
    load.wait_for_progress();
    let (_, failed) = load.end();
    // The crash of each server may fail one transaction of each client.
    let count: usize = failed.values().sum();
    assert!(count <= 18 && failed.keys().all(|code| CRASHED.contains(&code.as_str())), "{failed:?}");
}

#[test]
fn hanging_replica_is_not_used() {
    let cluster = exclusive_cluster();
    let section =
        database(&cluster, "ro", "route = \"replica\"").replace("probe_timeout = \"15s\"", "probe_timeout = \"2s\"");
    let gateway = gateway(&[section]);
    let mut client = connect(&gateway, "ro");
    wait_for(&gateway, &cluster, "ro", 2, "role", "replica");
    cluster.server(1).suspend();
    wait_for(&gateway, &cluster, "ro", 1, "state", "silent");
    // New transactions use the other replica, which a busy machine may make look silent for a moment.
    eventually("the other replica is used", || {
        host_column(&gateway, &cluster, "ro", 2, "state") == "up" && current_server(&cluster, &mut client) == 2
    });
    cluster.server(1).resume();
    wait_for(&gateway, &cluster, "ro", 1, "state", "up");
    eventually("the server is used again", || servers_of(&cluster, &mut client, 4).contains(&1));
}

#[test]
fn all_ejected_servers_are_used() {
    let cluster = exclusive_cluster();
    let section = database(&cluster, "ro", "route = \"replica\"\neject_after = 2");
    let gateway = gateway(&[section.replace("eject_time = \"1s\"", "eject_time = \"1h\"")]);
    connect(&gateway, "ro").ok("select 1");
    wait_until_all_up(&gateway, &cluster, "ro");
    // A success resets the count, so that no other query runs meanwhile.
    let mut failures = [0, 0, 0];
    for _ in 0..40 {
        let mut client = connect(&gateway, "ro");
        client.ok("begin");
        let backend = client.backend();
        let server = index_of_port(&cluster, &client.value("select inet_server_port()"));
        sql(cluster.server(server), &format!("select pg_terminate_backend({backend}, 10000)"));
        client.expect_fatal("57P01");
        failures[server] += 1;
        if [1, 2].iter().all(|index| host_column(&gateway, &cluster, "ro", *index, "ejections") != "0") {
            break;
        }
    }
    for index in [1, 2] {
        assert_ne!(host_column(&gateway, &cluster, "ro", index, "ejections"), "0", "{failures:?}");
        assert_eq!(host_column(&gateway, &cluster, "ro", index, "state"), "ejected", "{failures:?}");
    }
    let mut client = connect(&gateway, "ro");
    assert!(servers_of(&cluster, &mut client, 6).into_iter().eq([1, 2]));
}
