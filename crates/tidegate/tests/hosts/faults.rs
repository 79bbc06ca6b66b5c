//! Replicas that lag, leave, crash and hang.

use std::sync::atomic::Ordering;

use tidegate_sandbox::Cluster;
use tidegate_testkit::{FaultyServer, Frames, Gateway, Signal, reply};
use toml::Value;

use crate::load::{Load, Work};
use crate::stage::{
    PATIENCE, connect, database, eventually, gateway, hosts, index_of, log_in, ours, servers_of, shown, sql, steady,
    value, wait_for, wait_until_settled, whereabouts,
};

/// A gateway before replicas that are read from.
fn reading(cluster: &Cluster) -> (Gateway, Load) {
    let gateway = gateway(&[database(cluster, "ro", "route = \"replica\"")]);
    let startup = gateway.startup("ro");
    log_in(&startup).ok("select 1");
    wait_until_settled(&gateway, cluster, "ro");
    let load = Load::start(&startup, 6, Work::Read);
    (gateway, load)
}

#[test]
fn a_replica_that_lies_too_far_behind_is_not_used() {
    let cluster = ours();
    let sections = [
        database(&cluster, "ro", "route = \"replica\"\nlag_bytes_max = 1000"),
        database(&cluster, "prefer", "route = \"prefer-replica\"\nlag_bytes_max = 1000"),
    ];
    let gateway = gateway(&sections);
    let (mut ro, mut prefer) = (connect(&gateway, "ro"), connect(&gateway, "prefer"));
    wait_until_settled(&gateway, &cluster, "ro");
    wait_until_settled(&gateway, &cluster, "prefer");
    let write = || sql(cluster.primary(), "insert into t (v) select repeat('x', 1000) from generate_series(1, 20)");
    cluster.pause_replay(1).expect("replay can be paused");
    write();
    wait_for(&gateway, &cluster, "ro", 1, "state", "lagging");
    let lag: u64 = shown(&gateway, &cluster, "ro", 1, "lag_bytes").parse().expect("a number");
    assert!(lag > 1000, "{lag}");
    assert!(servers_of(&cluster, &mut ro, 6).into_iter().eq([2]));
    cluster.pause_replay(2).expect("replay can be paused");
    write();
    wait_for(&gateway, &cluster, "prefer", 2, "state", "lagging");
    eventually("the primary serves instead", || servers_of(&cluster, &mut prefer, 4).into_iter().eq([0]));
    for index in [1, 2] {
        cluster.resume_replay(index).expect("replay goes on");
        wait_for(&gateway, &cluster, "ro", index, "state", "up");
    }
    // Whatever the primary writes by itself may make one of them lag for a moment.
    eventually("both serve again", || servers_of(&cluster, &mut ro, 6).into_iter().eq([1, 2]));
}

#[test]
fn what_a_replica_refuses_to_write_has_nobody_log_in_each_time() {
    let (cluster, _) = steady();
    sql(cluster.primary(), "create database counted");
    [1, 2].iter().for_each(|index| cluster.catch_up(*index).expect("replicas stream"));
    let section = database(cluster, "db", "route = \"replica\"").replace("\"postgres\"", "\"counted\"");
    let gateway = gateway(&[section.replace("probe_interval = \"50ms\"", "probe_interval = \"60s\"")]);
    let mut client = connect(&gateway, "db");
    wait_until_settled(&gateway, cluster, "db");
    for _ in 0..6000 {
        assert_eq!(client.query("create table x ()").code(), "25006");
    }
    let sessions = "select sum(sessions) from pg_stat_database where datname = 'counted'";
    for index in [1, 2] {
        let logins: u32 = value(cluster.server(index), sessions).parse().expect("a number");
        // Each pause is twice the last one: this many would take longer than any test may.
        assert!(logins < 20, "{logins} logins to server {index}");
    }
}

#[test]
fn a_client_whose_servers_all_lag_is_told_after_a_while() {
    let cluster = ours();
    let section = database(&cluster, "ro", "route = \"replica\"\nlag_bytes_max = 1000")
        .replace("failover_wait = \"120s\"", "failover_wait = \"100ms\"");
    let gateway = gateway(&[section, database(&cluster, "app", "")]);
    let mut here = connect(&gateway, "app");
    wait_until_settled(&gateway, &cluster, "app");
    here.ok("select 1");
    let mut ro = connect(&gateway, "ro");
    wait_until_settled(&gateway, &cluster, "ro");
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
        cluster.resume_replay(index).expect("replay goes on");
        wait_for(&gateway, &cluster, "ro", index, "state", "up");
    }
}

/// It was told what the last of them had said when it could not be connected, by another code.
#[test]
fn a_client_under_whose_login_the_last_server_goes_is_told_that_none_is_left() {
    let met = std::sync::atomic::AtomicBool::new(false);
    // Probes are refused, so that it counts as up, until it has met a client: from then on it hangs up on everybody.
    let server = FaultyServer::start(move |connection| {
        let is_probe = connection.startup().windows(14).any(|part| part == b"tidegate probe");
        if !is_probe || met.load(Ordering::SeqCst) {
            met.store(true, Ordering::SeqCst);
            return Ok(());
        }
        connection.send(&reply::fatal("28000", "no probes here"))
    });
    let keys = "route = \"any\"\nsslmode = \"disable\"\nprobe_interval = \"60s\"\nfailover_wait = \"2s\"";
    let section = format!("[databases.db]\nhosts = [\"{}\"]\n{keys}\n", server.address());
    let gateway = gateway(&[section]);
    let mut client = gateway.startup("db").open();
    client.set_patience(PATIENCE);
    client.send_bytes(&client.startup().packet());
    let told = client.expect_fatal("57P03");
    assert!(told.message.contains("no server of database \"db\" can be used"), "{}", told.message);
    let rows = gateway.show("HOSTS");
    assert!(rows[0]["state"] == "down" && rows[0]["last_error"].contains("during login"), "{rows:?}");
}

#[test]
fn a_replica_is_drained_by_a_reload_without_a_failure() {
    let cluster = ours();
    let (mut gateway, load) = reading(&cluster);
    // A transaction that began there ends there.
    let mut stays = connect(&gateway, "ro");
    eventually("a transaction begins on server 1", || {
        stays.ok("begin");
        let there = whereabouts(&cluster, &mut stays) == 1;
        if !there {
            stays.ok("commit");
        }
        there
    });
    gateway.rewrite("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 2])));
    gateway.signal(Signal::HUP);
    wait_for(&gateway, &cluster, "ro", 1, "state", "gone");
    let left =
        "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
    eventually("only the open transaction is left on server 1", || value(cluster.server(1), left) == "1");
    load.goes_on();
    assert_eq!(whereabouts(&cluster, &mut stays), 1);
    stays.ok("commit");
    eventually("nothing is left on server 1", || value(cluster.server(1), left) == "0");
    assert_eq!(whereabouts(&cluster, &mut stays), 2);
    gateway.rewrite("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 1, 2])));
    gateway.signal(Signal::HUP);
    wait_for(&gateway, &cluster, "ro", 1, "state", "up");
    eventually("server 1 serves again", || servers_of(&cluster, &mut stays, 4).contains(&1));
    load.goes_on();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn nothing_is_left_on_a_server_that_reloads_take_out_again_and_again() {
    let cluster = ours();
    let (mut gateway, load) = reading(&cluster);
    let all = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
    for _ in 0..15 {
        gateway.rewrite("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 1, 2])));
        gateway.signal(Signal::HUP);
        wait_for(&gateway, &cluster, "ro", 1, "state", "up");
        eventually("server 1 serves", || value(cluster.server(1), all) != "0");
        gateway.rewrite("databases.ro.hosts", Value::from(hosts(&cluster, &[0, 2])));
        gateway.signal(Signal::HUP);
        wait_for(&gateway, &cluster, "ro", 1, "state", "gone");
        eventually("nothing is left on server 1", || value(cluster.server(1), all) == "0");
    }
    load.goes_on();
    // What was counted on the server stays counted.
    let (done, stats) = (load.done(), gateway.show("STATS"));
    let counted = stats.iter().find(|row| row["database"] == "ro").expect("the database has a row");
    assert!(counted["total_query_count"].parse::<u64>().expect("a number") >= done, "{done}: {counted:?}");
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_replica_that_is_shut_down_smartly_is_let_go_without_a_failure() {
    let mut cluster = ours();
    let (gateway, load) = reading(&cluster);
    // It ends when the last session has left: the gateway has to notice, and to go.
    cluster.server(1).begin_shutdown(tidegate_sandbox::ShutdownMode::Smart);
    cluster.server_mut(1).wait_for_shutdown().expect("the gateway lets go of it");
    load.goes_on();
    cluster.server_mut(1).restart().expect("it starts again");
    wait_for(&gateway, &cluster, "ro", 1, "state", "up");
    load.goes_on();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

/// What a client may be told whose server is killed under it.
const CRASHED: [&str; 3] = ["08006", "57P01", "57P02"];

#[test]
fn a_crash_of_a_replica_hits_only_what_ran_there() {
    let mut cluster = ours();
    let gateway = gateway(&[database(&cluster, "ro", "route = \"replica\"")]);
    let startup = gateway.startup("ro");
    let mut idle = log_in(&startup);
    wait_until_settled(&gateway, &cluster, "ro");
    let mut inside = log_in(&startup);
    inside.ok("begin");
    let struck = whereabouts(&cluster, &mut inside);
    assert_ne!(struck, 0);
    let load = Load::start(&startup, 6, Work::Read);
    cluster.server_mut(struck).kill9().expect("it can be killed");
    // The end of its connection, or what its session said when it found its master gone.
    inside.send(&Frames::new().query("select 1"));
    let said = inside.expect("N* E")[0].error().code;
    assert!(CRASHED.contains(&said.as_str()), "{said}");
    load.goes_on();
    wait_for(&gateway, &cluster, "ro", struck, "state", "down");
    // Who was between transactions has not noticed.
    let other = 3 - struck;
    assert!(servers_of(&cluster, &mut idle, 4).into_iter().eq([other]));
    cluster.server_mut(struck).restart().expect("it starts again");
    wait_for(&gateway, &cluster, "ro", struck, "state", "up");
    eventually("it serves again", || servers_of(&cluster, &mut idle, 4).contains(&struck));
    load.goes_on();
    let (_, failed) = load.end();
    // At most what each client had under way, and each with this code.
    let count: usize = failed.values().sum();
    assert!(count <= 6 && failed.keys().all(|code| CRASHED.contains(&code.as_str())), "{failed:?}");
}

#[test]
fn when_every_server_is_gone_clients_wait_until_they_are_back() {
    let mut cluster = ours();
    let gateway = gateway(&[database(&cluster, "app", "route = \"any\"")]);
    let startup = gateway.startup("app");
    let mut idle = log_in(&startup);
    wait_until_settled(&gateway, &cluster, "app");
    let load = Load::start(&startup, 6, Work::Read);
    for server in 0..3 {
        cluster.server_mut(server).kill9().expect("it can be killed");
    }
    for server in 0..3 {
        wait_for(&gateway, &cluster, "app", server, "state", "down");
    }
    idle.send(&Frames::new().query("select 1"));
    for server in 0..3 {
        cluster.server_mut(server).restart().expect("it starts again");
    }
    assert_eq!(idle.until_ready().value(), "1", "who was between transactions has not noticed");
    wait_until_settled(&gateway, &cluster, "app");
    eventually("all serve again", || servers_of(&cluster, &mut idle, 6).len() == 3);
    load.goes_on();
    let (_, failed) = load.end();
    // At most what each client had under way, at each server.
    let count: usize = failed.values().sum();
    assert!(count <= 18 && failed.keys().all(|code| CRASHED.contains(&code.as_str())), "{failed:?}");
}

#[test]
fn a_replica_that_hangs_is_left_alone() {
    let cluster = ours();
    let section =
        database(&cluster, "ro", "route = \"replica\"").replace("probe_timeout = \"15s\"", "probe_timeout = \"2s\"");
    let gateway = gateway(&[section]);
    let mut here = connect(&gateway, "ro");
    wait_for(&gateway, &cluster, "ro", 2, "role", "replica");
    cluster.server(1).suspend();
    wait_for(&gateway, &cluster, "ro", 1, "state", "silent");
    // Whoever comes now is served by the other one; a busy machine may make that one look silent for a moment.
    eventually("the other one serves", || {
        shown(&gateway, &cluster, "ro", 2, "state") == "up" && whereabouts(&cluster, &mut here) == 2
    });
    cluster.server(1).resume();
    wait_for(&gateway, &cluster, "ro", 1, "state", "up");
    eventually("it serves again", || servers_of(&cluster, &mut here, 4).contains(&1));
}

#[test]
fn when_all_are_ejected_all_are_used() {
    let cluster = ours();
    let section = database(&cluster, "ro", "route = \"replica\"\neject_after = 2");
    let gateway = gateway(&[section.replace("eject_time = \"1s\"", "eject_time = \"1h\"")]);
    connect(&gateway, "ro").ok("select 1");
    wait_until_settled(&gateway, &cluster, "ro");
    // A success in between begins the count anew, so nothing else is asked meanwhile.
    let mut broken = [0, 0, 0];
    for _ in 0..40 {
        let mut here = connect(&gateway, "ro");
        here.ok("begin");
        let backend = here.backend();
        let server = index_of(&cluster, &here.value("select inet_server_port()"));
        sql(cluster.server(server), &format!("select pg_terminate_backend({backend}, 10000)"));
        here.expect_fatal("57P01");
        broken[server] += 1;
        if [1, 2].iter().all(|index| shown(&gateway, &cluster, "ro", *index, "ejections") != "0") {
            break;
        }
    }
    for index in [1, 2] {
        assert_ne!(shown(&gateway, &cluster, "ro", index, "ejections"), "0", "{broken:?}");
        assert_eq!(shown(&gateway, &cluster, "ro", index, "state"), "ejected", "{broken:?}");
    }
    let mut here = connect(&gateway, "ro");
    assert!(servers_of(&cluster, &mut here, 6).into_iter().eq([1, 2]));
}
