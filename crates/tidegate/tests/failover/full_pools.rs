//! Servers whose pools are full: which clients wait, and for which server.

use tidegate_sandbox::Cluster;
use tidegate_testkit::{Frames, Gateway, RawClient, Startup};

use crate::cluster::{
    connect, current_server, database, exclusive_cluster, gateway, host_column, hosts, index_of_port, log_in,
    shared_cluster, sql, wait_for, wait_until_all_up,
};

/// Policies that distribute transactions over servers.
const BALANCING: [&str; 3] = ["round_robin", "least_request", "peak_ewma"];

/// A gateway with this pool size per server, and a client of it. All servers are up.
fn gateway_with_size(cluster: &Cluster, route: &str, policy: &str, size: usize) -> (Gateway, RawClient) {
    let keys = format!("route = \"{route}\"\npolicy = \"{policy}\"\nsize = {size}");
    let gateway = gateway(&[database(cluster, "db", &keys)]);
    let client = connect(&gateway, "db");
    wait_until_all_up(&gateway, cluster, "db");
    (gateway, client)
}

/// Clients that each hold a server in a transaction, with the index of the server.
fn hold(cluster: &Cluster, gateway: &Gateway, clients: usize) -> Vec<(usize, RawClient)> {
    let hold = |_| {
        let mut holder = connect(gateway, "db");
        holder.ok("begin");
        (current_server(cluster, &mut holder), holder)
    };
    (0..clients).map(hold).collect()
}

/// Ends the open transactions of a server.
fn release(held: &mut Vec<(usize, RawClient)>, server: usize) {
    for (_, mut holder) in held.extract_if(.., |(index, _)| *index == server) {
        holder.ok("commit");
    }
}

const SELECT_PORT: &str = "select inet_server_port()";

/// Sends a query, and waits until the gateway shows the client as waiting.
fn enqueue(gateway: &Gateway, client: &mut RawClient) {
    client.send(&Frames::new().query(SELECT_PORT));
    gateway.wait_for_pool("db", "cl_waiting", 1);
}

/// The index of the server that has run the query.
fn serving_server(cluster: &Cluster, client: &mut RawClient) -> usize {
    index_of_port(cluster, &client.until_ready().value())
}

/// T63.
#[test]
fn full_server_is_skipped() {
    let (cluster, _) = shared_cluster();
    for policy in BALANCING {
        let (gateway, mut client) = gateway_with_size(cluster, "replica", policy, 1);
        let mut held = hold(cluster, &gateway, 1);
        let full = held[0].0;
        for _ in 0..20 {
            assert_eq!(current_server(cluster, &mut client), 3 - full, "{policy}");
        }
        release(&mut held, full);
    }
}

#[test]
fn server_at_the_user_connection_limit_is_skipped() {
    let (cluster, _) = shared_cluster();
    sql(cluster.primary(), "drop role if exists limited; create role limited login connection limit 2");
    [1, 2].iter().for_each(|index| cluster.catch_up(*index).expect("replicas stream"));
    let [a, b, c] = [0, 1, 2].map(|index| cluster.server(index).port());
    let zones = format!(
        "hosts = [\"127.0.0.1:{a}\", {{ host = \"127.0.0.1:{b}\", zone = \"near\" }}, {{ host = \"127.0.0.1:{c}\" }}]"
    );
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let section = |keys: &str| database(cluster, "db", &format!("route = \"replica\"\n{keys}"));
    let address = ([127, 0, 0, 1], b).into();
    let direct = |_| log_in(&Startup::tcp(address, "limited", "postgres"));
    let _occupied: Vec<RawClient> = (0..2).map(direct).collect();
    // The server is one of several, the first of the list, and the only one of its zone.
    let near = section("zone = \"near\"").replace(&plain, &zones);
    for section in [section(""), section("policy = \"pick_first\""), near] {
        let gateway = gateway(&[section]);
        // The probes use the login of this client.
        connect(&gateway, "db").ok("select 1");
        wait_until_all_up(&gateway, cluster, "db");
        let mut limited = log_in(&gateway.startup("db").user("limited"));
        for _ in 0..20 {
            assert_eq!(current_server(cluster, &mut limited), 2);
        }
        assert_eq!(host_column(&gateway, cluster, "db", 1, "state"), "up");
        assert_eq!(host_column(&gateway, cluster, "db", 1, "ejections"), "0");
    }
}

/// T63.
#[test]
fn waiting_client_gets_the_first_free_server() {
    let (cluster, _) = shared_cluster();
    for policy in BALANCING {
        let (gateway, mut client) = gateway_with_size(cluster, "replica", policy, 1);
        for first in [1, 2, 1, 2] {
            let mut held = hold(cluster, &gateway, 2);
            enqueue(&gateway, &mut client);
            release(&mut held, first);
            assert_eq!(serving_server(cluster, &mut client), first, "{policy}");
            gateway.wait_for_pool("db", "cl_waiting", 0);
            release(&mut held, 3 - first);
        }
    }
}

/// T63.
#[test]
fn waiting_client_leaves_every_queue() {
    let (cluster, _) = shared_cluster();
    let (gateway, mut client) = gateway_with_size(cluster, "replica", "round_robin", 1);
    let mut held = hold(cluster, &gateway, 2);
    for _ in 0..3 {
        let mut leaving = connect(&gateway, "db");
        enqueue(&gateway, &mut leaving);
        leaving.cancel();
        assert_eq!(leaving.until_ready().code(), "57014");
        enqueue(&gateway, &mut leaving);
        leaving.disconnect(true);
        gateway.wait_for_pool("db", "cl_waiting", 0);
    }
    enqueue(&gateway, &mut client);
    release(&mut held, 2);
    assert_eq!(serving_server(cluster, &mut client), 2);
    release(&mut held, 1);
    for index in [1, 2] {
        wait_for(&gateway, cluster, "db", index, "in_flight", "0");
    }
}

/// T63.
#[test]
fn pick_first_waits_for_a_full_first_server() {
    let (cluster, _) = shared_cluster();
    let (gateway, mut client) = gateway_with_size(cluster, "replica", "pick_first", 1);
    let mut held = hold(cluster, &gateway, 1);
    assert_eq!(held[0].0, 1);
    enqueue(&gateway, &mut client);
    release(&mut held, 1);
    assert_eq!(serving_server(cluster, &mut client), 1);
}

/// T63.
#[test]
fn prefer_replica_waits_for_a_full_replica() {
    let (cluster, _) = shared_cluster();
    for policy in BALANCING {
        let (gateway, mut client) = gateway_with_size(cluster, "prefer-replica", policy, 1);
        let mut held = hold(cluster, &gateway, 2);
        enqueue(&gateway, &mut client);
        release(&mut held, 2);
        assert_eq!(serving_server(cluster, &mut client), 2, "{policy}");
        release(&mut held, 1);
    }
}

#[test]
fn recovered_server_serves_waiting_clients() {
    let mut cluster = exclusive_cluster();
    let (gateway, mut client) = gateway_with_size(&cluster, "replica", "round_robin", 1);
    cluster.server_mut(2).kill9().expect("the server can be killed");
    wait_for(&gateway, &cluster, "db", 2, "state", "down");
    let mut held = hold(&cluster, &gateway, 1);
    assert_eq!(held[0].0, 1);
    enqueue(&gateway, &mut client);
    cluster.server_mut(2).restart().expect("the server starts again");
    assert_eq!(serving_server(&cluster, &mut client), 2);
    release(&mut held, 1);
    wait_for(&gateway, &cluster, "db", 2, "state", "up");
}

#[test]
fn every_server_has_a_pool_of_the_configured_size() {
    let (cluster, _) = shared_cluster();
    for policy in BALANCING {
        let (gateway, mut client) = gateway_with_size(cluster, "any", policy, 2);
        let mut held = hold(cluster, &gateway, 6);
        for server in 0..3 {
            assert_eq!(held.iter().filter(|(index, _)| *index == server).count(), 2, "{policy}");
            assert_eq!(host_column(&gateway, cluster, "db", server, "servers"), "2", "{policy}");
        }
        enqueue(&gateway, &mut client);
        release(&mut held, 0);
        assert_eq!(serving_server(cluster, &mut client), 0, "{policy}");
        (1..3).for_each(|server| release(&mut held, server));
    }
}
