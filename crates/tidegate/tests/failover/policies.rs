//! Policies that choose one of several eligible servers.

use std::collections::BTreeSet;

use tidegate_sandbox::Cluster;
use tidegate_testkit::{Gateway, RawClient};

use crate::cluster::{
    connect, current_server, database, eventually, exclusive_cluster, gateway, hosts, index_of_port, servers_of,
    shared_cluster, sql, wait_for, wait_until_all_up,
};

/// A gateway with this policy for replicas, and a client of it. All servers are up.
fn replicas(cluster: &Cluster, policy: &str) -> (Gateway, RawClient) {
    let gateway = gateway(&[database(cluster, "ro", &format!("route = \"replica\"\npolicy = \"{policy}\""))]);
    let client = connect(&gateway, "ro");
    wait_until_all_up(&gateway, cluster, "ro");
    (gateway, client)
}

/// The number of transactions that each server ran.
fn counts(cluster: &Cluster, client: &mut RawClient, transactions: usize) -> [usize; 3] {
    let mut counts = [0; 3];
    (0..transactions).for_each(|_| counts[current_server(cluster, client)] += 1);
    counts
}

/// T63.
#[test]
fn round_robin_distributes_evenly() {
    let (cluster, _) = shared_cluster();
    let (_gateway, mut client) = replicas(cluster, "round_robin");
    let [primary, one, other] = counts(cluster, &mut client, 300);
    assert!(primary == 0 && one.abs_diff(other) <= 2, "{one} {other}");
}

/// Each thread of the gateway picks in turn on its own.
#[test]
fn new_connections_are_spread_over_servers() {
    let (cluster, _) = shared_cluster();
    let gateway = gateway(&[database(cluster, "any", "route = \"any\"")]);
    let first = connect(&gateway, "any");
    wait_until_all_up(&gateway, cluster, "any");
    let mut clients: Vec<RawClient> = (0..8).map(|_| connect(&gateway, "any")).chain([first]).collect();
    let mut counts = [0; 3];
    for client in &mut clients {
        client.ok("begin");
        counts[current_server(cluster, client)] += 1;
    }
    assert_eq!(counts, [3; 3]);
}

/// T59.
#[test]
fn weights_are_shares_of_the_transactions() {
    let (cluster, _) = shared_cluster();
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let [a, b, c] = [0, 1, 2].map(|index| cluster.server(index).port());
    let list = format!(
        "hosts = [{{ host = \"127.0.0.1:{a}\" }}, {{ host = \"127.0.0.1:{b}\", weight = 4 }}, \
         {{ host = \"127.0.0.1:{c}\" }}]"
    );
    // A policy by load chooses the heavier one of two idle servers.
    for (policy, shares) in [("round_robin", [0, 200, 50]), ("least_request", [0, 250, 0])] {
        let keys = format!("route = \"replica\"\npolicy = \"{policy}\"");
        let gateway = gateway(&[database(cluster, "ro", &keys).replace(&plain, &list)]);
        let mut client = connect(&gateway, "ro");
        wait_until_all_up(&gateway, cluster, "ro");
        let counts = counts(cluster, &mut client, 250);
        assert!((0..3).all(|index| counts[index].abs_diff(shares[index]) <= 5), "{policy}: {counts:?}");
    }
}

/// T63.
#[test]
fn least_request_avoids_a_busy_server() {
    let (cluster, _) = shared_cluster();
    let (gateway, mut client) = replicas(cluster, "least_request");
    let mut held: Vec<(usize, RawClient)> = Vec::new();
    for _ in 0..6 {
        let mut holder = connect(&gateway, "ro");
        holder.ok("begin");
        held.push((current_server(cluster, &mut holder), holder));
    }
    for server in [1, 2] {
        assert_eq!(held.iter().filter(|(index, _)| *index == server).count(), 3, "both have the same load");
    }
    for (_, holder) in held.iter_mut().filter(|(index, _)| *index == 2) {
        holder.ok("commit");
    }
    wait_for(&gateway, cluster, "ro", 2, "in_flight", "0");
    // The policy samples two servers, which are all of them here.
    assert_eq!(counts(cluster, &mut client, 100), [0, 0, 100]);
    for (_, holder) in held.iter_mut().filter(|(index, _)| *index == 1) {
        holder.ok("commit");
    }
    eventually("both are used again", || servers_of(cluster, &mut client, 10).into_iter().eq([1, 2]));
}

/// T63.
#[test]
fn peak_ewma_avoids_a_slow_server() {
    let (cluster, _) = shared_cluster();
    let (_gateway, mut client) = replicas(cluster, "peak_ewma");
    let slow = cluster.server(1).port();
    let mut counts = [0; 3];
    for _ in 0..60 {
        let port = client.value(&format!(
            "select inet_server_port()::text || pg_sleep(case inet_server_port() when {slow} then 0.5 else 0 end)::text"
        ));
        counts[index_of_port(cluster, &port)] += 1;
    }
    assert!(counts[0] == 0 && counts[1] < counts[2], "{counts:?}");
}

/// T63.
#[test]
fn pick_first_uses_one_server() {
    let (cluster, _) = shared_cluster();
    let (_gateway, mut client) = replicas(cluster, "pick_first");
    assert_eq!(counts(cluster, &mut client, 50), [0, 50, 0]);
}

/// T58.
#[test]
fn slow_start_of_a_recovered_server() {
    let mut cluster = exclusive_cluster();
    let gateway = gateway(&[database(&cluster, "ro", "route = \"replica\"\nslow_start = \"4s\"")]);
    let mut client = connect(&gateway, "ro");
    wait_until_all_up(&gateway, &cluster, "ro");
    // Server 1 reaches its full share in the first rounds. A machine under load may miss a slow start as a whole; the
    // next round has another one.
    eventually("server 2 gets less than its share after a start", || {
        cluster.server_mut(2).restart().expect("the server starts again");
        wait_for(&gateway, &cluster, "ro", 2, "state", "up");
        eventually("both are used", || servers_of(&cluster, &mut client, 12).into_iter().eq([1, 2]));
        let [_, one, other] = counts(&cluster, &mut client, 60);
        other * 2 < one
    });
    eventually("server 2 gets its full share", || {
        let [_, one, other] = counts(&cluster, &mut client, 60);
        one.abs_diff(other) <= 2
    });
}

#[test]
fn servers_of_the_own_zone_are_preferred() {
    let cluster = exclusive_cluster();
    let [a, b, c] = [0, 1, 2].map(|index| cluster.server(index).port());
    let list = format!(
        "hosts = [{{ host = \"127.0.0.1:{a}\", zone = \"x\" }}, {{ host = \"127.0.0.1:{b}\", zone = \"y\" }}, \
         {{ host = \"127.0.0.1:{c}\", zone = \"z\" }}]"
    );
    let plain = format!("hosts = {:?}", hosts(&cluster, &[0, 1, 2]));
    let section = |policy: &str| {
        let keys = format!("route = \"replica\"\nzone = \"z\"\nlag_bytes_max = 1000\npolicy = \"{policy}\"");
        database(&cluster, policy, &keys).replace(&plain, &list)
    };
    let policies = ["round_robin", "least_request", "peak_ewma", "pick_first"];
    let gateway = gateway(&policies.map(section));
    let mut clients = policies.map(|policy| connect(&gateway, policy));
    let mut all_at = |server: usize| {
        for (policy, client) in policies.iter().zip(&mut clients) {
            eventually(&format!("{policy}: server {server} is used"), || {
                servers_of(&cluster, client, 6) == BTreeSet::from([server])
            });
        }
    };
    policies.iter().for_each(|policy| wait_until_all_up(&gateway, &cluster, policy));
    all_at(2);
    cluster.pause_replay(2).expect("replay can be paused");
    sql(cluster.primary(), "insert into t (v) select repeat('x', 1000) from generate_series(1, 20)");
    all_at(1);
    cluster.resume_replay(2).expect("replay can be resumed");
    all_at(2);
}
