//! How one of several servers that fit is chosen.

use std::collections::BTreeSet;

use tidegate_sandbox::Cluster;
use tidegate_testkit::{Gateway, RawClient};

use crate::stage::{
    connect, database, eventually, gateway, hosts, index_of, ours, servers_of, sql, steady, wait_for,
    wait_until_settled, whereabouts,
};

/// A gateway to replicas by this policy, and a client whose servers are known.
fn replicas(cluster: &Cluster, policy: &str) -> (Gateway, RawClient) {
    let gateway = gateway(&[database(cluster, "ro", &format!("route = \"replica\"\npolicy = \"{policy}\""))]);
    let client = connect(&gateway, "ro");
    wait_until_settled(&gateway, cluster, "ro");
    (gateway, client)
}

/// How many of so many transactions each server ran.
fn turns(cluster: &Cluster, client: &mut RawClient, transactions: usize) -> [usize; 3] {
    let mut turns = [0; 3];
    (0..transactions).for_each(|_| turns[whereabouts(cluster, client)] += 1);
    turns
}

#[test]
fn t63_round_robin_gives_every_replica_as_many_transactions() {
    let (cluster, _) = steady();
    let (_gateway, mut client) = replicas(cluster, "round_robin");
    let [primary, one, other] = turns(cluster, &mut client, 300);
    assert!(primary == 0 && one.abs_diff(other) <= 2, "{one} {other}");
}

#[test]
fn t59_weights_are_shares_of_the_transactions() {
    let (cluster, _) = steady();
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let [a, b, c] = [0, 1, 2].map(|index| cluster.server(index).port());
    let list = format!(
        "hosts = [{{ host = \"127.0.0.1:{a}\" }}, {{ host = \"127.0.0.1:{b}\", weight = 4 }}, \
         {{ host = \"127.0.0.1:{c}\" }}]"
    );
    // By load, of servers that have nothing to do the heavier one goes first.
    for (policy, shares) in [("round_robin", [0, 200, 50]), ("least_request", [0, 250, 0])] {
        let keys = format!("route = \"replica\"\npolicy = \"{policy}\"");
        let gateway = gateway(&[database(cluster, "ro", &keys).replace(&plain, &list)]);
        let mut client = connect(&gateway, "ro");
        wait_until_settled(&gateway, cluster, "ro");
        let turns = turns(cluster, &mut client, 250);
        assert!((0..3).all(|index| turns[index].abs_diff(shares[index]) <= 5), "{policy}: {turns:?}");
    }
}

#[test]
fn t63_least_request_spares_a_server_that_is_busy() {
    let (cluster, _) = steady();
    let (gateway, mut client) = replicas(cluster, "least_request");
    let mut held: Vec<(usize, RawClient)> = Vec::new();
    for _ in 0..6 {
        let mut holder = connect(&gateway, "ro");
        holder.ok("begin");
        held.push((whereabouts(cluster, &mut holder), holder));
    }
    for server in [1, 2] {
        assert_eq!(held.iter().filter(|(place, _)| *place == server).count(), 3, "each is as busy as the other");
    }
    for (_, holder) in held.iter_mut().filter(|(place, _)| *place == 2) {
        holder.ok("commit");
    }
    wait_for(&gateway, cluster, "ro", 2, "in_flight", "0");
    // Of two, the less busy one is always seen.
    assert_eq!(turns(cluster, &mut client, 100), [0, 0, 100]);
    for (_, holder) in held.iter_mut().filter(|(place, _)| *place == 1) {
        holder.ok("commit");
    }
    eventually("both serve again", || servers_of(cluster, &mut client, 10).into_iter().eq([1, 2]));
}

#[test]
fn t63_peak_ewma_spares_a_server_that_is_slow() {
    let (cluster, _) = steady();
    let (_gateway, mut client) = replicas(cluster, "peak_ewma");
    let slow = cluster.server(1).port();
    let mut turns = [0; 3];
    for _ in 0..60 {
        let port = client.value(&format!(
            "select inet_server_port()::text || pg_sleep(case inet_server_port() when {slow} then 0.5 else 0 end)::text"
        ));
        turns[index_of(cluster, &port)] += 1;
    }
    assert!(turns[0] == 0 && turns[1] < turns[2], "{turns:?}");
}

#[test]
fn t63_pick_first_stays_with_one_as_long_as_it_serves() {
    let (cluster, _) = steady();
    let (_gateway, mut client) = replicas(cluster, "pick_first");
    assert_eq!(turns(cluster, &mut client, 50), [0, 50, 0]);
}

#[test]
fn t58_a_server_that_comes_back_begins_with_less_than_its_share() {
    let mut cluster = ours();
    let gateway = gateway(&[database(&cluster, "ro", "route = \"replica\"\nslow_start = \"4s\"")]);
    let mut client = connect(&gateway, "ro");
    wait_until_settled(&gateway, &cluster, "ro");
    // Server 1 comes to its full share in the first rounds. A machine that stands still may miss all of a slow start; the
    // next round has another one.
    eventually("server 2 is spared after a start", || {
        cluster.server_mut(2).restart().expect("it starts again");
        wait_for(&gateway, &cluster, "ro", 2, "state", "up");
        eventually("both serve", || servers_of(&cluster, &mut client, 12).into_iter().eq([1, 2]));
        let [_, one, other] = turns(&cluster, &mut client, 60);
        other * 2 < one
    });
    eventually("it has its share in the end", || {
        let [_, one, other] = turns(&cluster, &mut client, 60);
        one.abs_diff(other) <= 2
    });
}

#[test]
fn servers_of_the_own_zone_serve_alone_as_long_as_one_fits() {
    let cluster = ours();
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
            eventually(&format!("{policy}: server {server} serves"), || {
                servers_of(&cluster, client, 6) == BTreeSet::from([server])
            });
        }
    };
    policies.iter().for_each(|policy| wait_until_settled(&gateway, &cluster, policy));
    all_at(2);
    cluster.pause_replay(2).expect("replay can be paused");
    sql(cluster.primary(), "insert into t (v) select repeat('x', 1000) from generate_series(1, 20)");
    all_at(1);
    cluster.resume_replay(2).expect("replay goes on");
    all_at(2);
}
