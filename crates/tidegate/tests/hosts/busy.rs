//! Servers whose connections are all taken: who waits, and where.

use tidegate_sandbox::Cluster;
use tidegate_testkit::{Frames, Gateway, RawClient, Startup};

use crate::stage::{
    connect, database, gateway, hosts, index_of, log_in, ours, shown, sql, steady, wait_for, wait_until_settled,
    whereabouts,
};

/// Policies by which servers share the work.
const SHARING: [&str; 3] = ["round_robin", "least_request", "peak_ewma"];

/// A gateway that opens so many connections to each server, and a client of it. All servers are known.
fn narrow(cluster: &Cluster, route: &str, policy: &str, size: usize) -> (Gateway, RawClient) {
    let keys = format!("route = \"{route}\"\npolicy = \"{policy}\"\nsize = {size}");
    let gateway = gateway(&[database(cluster, "db", &keys)]);
    let client = connect(&gateway, "db");
    wait_until_settled(&gateway, cluster, "db");
    (gateway, client)
}

/// Clients who each have a transaction open, and on which server.
fn hold(cluster: &Cluster, gateway: &Gateway, clients: usize) -> Vec<(usize, RawClient)> {
    let hold = |_| {
        let mut holder = connect(gateway, "db");
        holder.ok("begin");
        (whereabouts(cluster, &mut holder), holder)
    };
    (0..clients).map(hold).collect()
}

/// Ends the transactions that are open on a server.
fn release(held: &mut Vec<(usize, RawClient)>, server: usize) {
    for (_, mut holder) in held.extract_if(.., |(place, _)| *place == server) {
        holder.ok("commit");
    }
}

const WHERE: &str = "select inet_server_port()";

/// Asks where it is, and waits until the gateway shows it waiting.
fn wait_in_line(gateway: &Gateway, client: &mut RawClient) {
    client.send(&Frames::new().query(WHERE));
    gateway.wait_for_pool("db", "cl_waiting", 1);
}

/// The server that has answered.
fn answered(cluster: &Cluster, client: &mut RawClient) -> usize {
    index_of(cluster, &client.until_ready().value())
}

#[test]
fn t63_a_server_that_is_full_leaves_its_clients_to_one_that_is_free() {
    let (cluster, _) = steady();
    for policy in SHARING {
        let (gateway, mut client) = narrow(cluster, "replica", policy, 1);
        let mut held = hold(cluster, &gateway, 1);
        let full = held[0].0;
        for _ in 0..20 {
            assert_eq!(whereabouts(cluster, &mut client), 3 - full, "{policy}");
        }
        release(&mut held, full);
    }
}

#[test]
fn a_server_that_has_no_connection_for_a_user_leaves_it_to_the_others() {
    let (cluster, _) = steady();
    sql(cluster.primary(), "drop role if exists narrow; create role narrow login connection limit 2");
    [1, 2].iter().for_each(|index| cluster.catch_up(*index).expect("replicas stream"));
    let [a, b, c] = [0, 1, 2].map(|index| cluster.server(index).port());
    let zones = format!(
        "hosts = [\"127.0.0.1:{a}\", {{ host = \"127.0.0.1:{b}\", zone = \"near\" }}, {{ host = \"127.0.0.1:{c}\" }}]"
    );
    let plain = format!("hosts = {:?}", hosts(cluster, &[0, 1, 2]));
    let section = |keys: &str| database(cluster, "db", &format!("route = \"replica\"\n{keys}"));
    let address = ([127, 0, 0, 1], b).into();
    let direct = |_| log_in(&Startup::tcp(address, "narrow", "postgres"));
    let _taken: Vec<RawClient> = (0..2).map(direct).collect();
    // As one of equals, as the first of the list, and as the only one of the own zone.
    let near = section("zone = \"near\"").replace(&plain, &zones);
    for section in [section(""), section("policy = \"pick_first\""), near] {
        let gateway = gateway(&[section]);
        // Its login is one that the probes can use.
        connect(&gateway, "db").ok("select 1");
        wait_until_settled(&gateway, cluster, "db");
        let mut narrow = log_in(&gateway.startup("db").user("narrow"));
        for _ in 0..20 {
            assert_eq!(whereabouts(cluster, &mut narrow), 2);
        }
        assert_eq!(shown(&gateway, cluster, "db", 1, "state"), "up");
        assert_eq!(shown(&gateway, cluster, "db", 1, "ejections"), "0");
    }
}

#[test]
fn t63_who_waits_is_served_by_the_server_that_is_free_first() {
    let (cluster, _) = steady();
    for policy in SHARING {
        let (gateway, mut client) = narrow(cluster, "replica", policy, 1);
        for first in [1, 2, 1, 2] {
            let mut held = hold(cluster, &gateway, 2);
            wait_in_line(&gateway, &mut client);
            release(&mut held, first);
            assert_eq!(answered(cluster, &mut client), first, "{policy}");
            gateway.wait_for_pool("db", "cl_waiting", 0);
            release(&mut held, 3 - first);
        }
    }
}

#[test]
fn t63_who_leaves_while_it_waits_leaves_every_line() {
    let (cluster, _) = steady();
    let (gateway, mut client) = narrow(cluster, "replica", "round_robin", 1);
    let mut held = hold(cluster, &gateway, 2);
    for _ in 0..3 {
        let mut leaver = connect(&gateway, "db");
        wait_in_line(&gateway, &mut leaver);
        leaver.cancel();
        assert_eq!(leaver.until_ready().code(), "57014");
        wait_in_line(&gateway, &mut leaver);
        leaver.vanish(true);
        gateway.wait_for_pool("db", "cl_waiting", 0);
    }
    wait_in_line(&gateway, &mut client);
    release(&mut held, 2);
    assert_eq!(answered(cluster, &mut client), 2);
    release(&mut held, 1);
    for index in [1, 2] {
        wait_for(&gateway, cluster, "db", index, "in_flight", "0");
    }
}

#[test]
fn t63_pick_first_waits_for_the_first_however_full_it_is() {
    let (cluster, _) = steady();
    let (gateway, mut client) = narrow(cluster, "replica", "pick_first", 1);
    let mut held = hold(cluster, &gateway, 1);
    assert_eq!(held[0].0, 1);
    wait_in_line(&gateway, &mut client);
    release(&mut held, 1);
    assert_eq!(answered(cluster, &mut client), 1);
}

#[test]
fn t63_reads_that_prefer_replicas_wait_for_one_rather_than_go_to_the_primary() {
    let (cluster, _) = steady();
    for policy in SHARING {
        let (gateway, mut client) = narrow(cluster, "prefer-replica", policy, 1);
        let mut held = hold(cluster, &gateway, 2);
        wait_in_line(&gateway, &mut client);
        release(&mut held, 2);
        assert_eq!(answered(cluster, &mut client), 2, "{policy}");
        release(&mut held, 1);
    }
}

#[test]
fn a_server_that_comes_back_serves_those_who_wait_for_another() {
    let mut cluster = ours();
    let (gateway, mut client) = narrow(&cluster, "replica", "round_robin", 1);
    cluster.server_mut(2).kill9().expect("it can be killed");
    wait_for(&gateway, &cluster, "db", 2, "state", "down");
    let mut held = hold(&cluster, &gateway, 1);
    assert_eq!(held[0].0, 1);
    wait_in_line(&gateway, &mut client);
    cluster.server_mut(2).restart().expect("it starts again");
    assert_eq!(answered(&cluster, &mut client), 2);
    release(&mut held, 1);
    wait_for(&gateway, &cluster, "db", 2, "state", "up");
}

#[test]
fn every_server_has_a_pool_of_the_configured_size() {
    let (cluster, _) = steady();
    for policy in SHARING {
        let (gateway, mut client) = narrow(cluster, "any", policy, 2);
        let mut held = hold(cluster, &gateway, 6);
        for server in 0..3 {
            assert_eq!(held.iter().filter(|(place, _)| *place == server).count(), 2, "{policy}");
            assert_eq!(shown(&gateway, cluster, "db", server, "servers"), "2", "{policy}");
        }
        wait_in_line(&gateway, &mut client);
        release(&mut held, 0);
        assert_eq!(answered(cluster, &mut client), 0, "{policy}");
        (1..3).for_each(|server| release(&mut held, server));
    }
}
