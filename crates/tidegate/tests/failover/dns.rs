//! Host names whose addresses change, and name servers that fail.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use tidegate_testkit::{Gateway, NameServer, Outage, RawClient, Signal};

use crate::cluster::{FAST_PROBES, connect, eventually, gateway, log_in, shared_cluster};
use crate::load::{Load, Work};

/// Addresses of this machine that the servers listen on.
static ADDRESSES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3), Ipv4Addr::new(127, 0, 0, 4)];

const POLICIES: [&str; 4] = ["round_robin", "least_request", "peak_ewma", "pick_first"];

/// A gateway with these databases that uses this name server.
fn gateway_with_dns(names: &NameServer, sections: &[String]) -> Gateway {
    // No grace period, because addresses of these tests are removed and added again.
    gateway_with_dns_keys(names, "rotation_grace = 0", sections)
}

fn gateway_with_dns_keys(names: &NameServer, keys: &str, sections: &[String]) -> Gateway {
    let server = names.address();
    let dns = format!("[dns]\nservers = [\"{server}\"]\nttl_min = \"50ms\"\nttl_max = \"500ms\"\n{keys}\n");
    gateway(&[std::slice::from_ref(&dns), sections].concat())
}

fn database(name: &str, host: &str, keys: &str) -> String {
    format!("[databases.{name}]\nhosts = [\"{host}\"]\ndbname = \"postgres\"\n{FAST_PROBES}{keys}\n")
}

fn texts(addresses: &[Ipv4Addr]) -> BTreeSet<String> {
    addresses.iter().map(Ipv4Addr::to_string).collect()
}

/// The addresses of the servers of a database that are up.
fn up(gateway: &Gateway, database: &str) -> BTreeSet<String> {
    let rows = gateway.show("HOSTS");
    let rows_up = rows.iter().filter(|row| row["database"] == database && row["state"] == "up");
    rows_up.map(|row| row["host"].clone()).collect()
}

#[track_caller]
fn wait_until_up(gateway: &Gateway, database: &str, addresses: &[Ipv4Addr]) {
    eventually(&format!("{database} is up at {addresses:?}"), || up(gateway, database) == texts(addresses));
}

fn address_of(client: &mut RawClient) -> String {
    client.value("select host(inet_server_addr())")
}

/// The addresses of the servers that run this number of transactions.
fn addresses_of(client: &mut RawClient, transactions: usize) -> BTreeSet<String> {
    (0..transactions).map(|_| address_of(client)).collect()
}

/// T23.
#[test]
fn address_changes_and_dns_outages_cause_no_failure() {
    let (cluster, _) = shared_cluster();
    let names = NameServer::start();
    names.set_addresses("db.test", &ADDRESSES[..2]);
    let host = format!("db.test:{}", cluster.server(1).port());
    let section = |policy: &&str| database(policy, &host, &format!("route = \"replica\"\npolicy = \"{policy}\""));
    let mut gateway = gateway_with_dns(&names, &POLICIES.each_ref().map(section));
    let loads = POLICIES.map(|policy| Load::start(&gateway.startup(policy), 2, Work::Read));
    let mut clients = POLICIES.map(|policy| connect(&gateway, policy));
    let mut wait_until_used = |gateway: &Gateway, addresses: &[Ipv4Addr]| {
        for (policy, client) in POLICIES.iter().zip(&mut clients) {
            wait_until_up(gateway, policy, addresses);
            let expected = texts(addresses);
            eventually(&format!("{policy} uses {addresses:?} alone"), || {
                let found = addresses_of(client, 6);
                if *policy == "round_robin" { found == expected } else { found.is_subset(&expected) }
            });
        }
    };
    for addresses in [&ADDRESSES[1..], &ADDRESSES[..], &ADDRESSES[2..], &ADDRESSES[..2]] {
        names.set_addresses("db.test", addresses);
        wait_until_used(&gateway, addresses);
    }
    for outage in [Outage::ServFail, Outage::NxDomain, Outage::NoData, Outage::NoResponse] {
        names.set_outage(Some(outage));
        let before = names.queries();
        eventually(&format!("names are resolved during {outage:?}"), || names.queries() >= before + 8);
        loads.iter().for_each(Load::wait_for_progress);
        wait_until_used(&gateway, &ADDRESSES[..2]);
    }
    // A reload keeps the resolved addresses.
    gateway.set_config("databases.round_robin.lag_max", "1h");
    gateway.signal(Signal::HUP);
    eventually("the reload is applied", || {
        gateway.show("CONFIG").iter().any(|row| row["key"] == "databases.round_robin.lag_max")
    });
    loads.iter().for_each(Load::wait_for_progress);
    wait_until_used(&gateway, &ADDRESSES[..2]);
    for (policy, load) in POLICIES.iter().zip(loads) {
        let (_, failed) = load.end();
        assert!(failed.is_empty(), "{policy}: {failed:?}");
    }
}

#[test]
fn errors_name_the_address_of_a_host_name() {
    let names = NameServer::start();
    names.set_addresses("db.test", &ADDRESSES[..2]);
    let section = |name: &str, keys: &str| format!("[databases.{name}]\nhosts = [\"db.test:1\"]\n{keys}\n");
    let watched = section("app", "route = \"primary\"\nprobe_interval = \"50ms\"\nfailover_wait = \"1ms\"");
    let gateway =
        gateway_with_dns(&names, &["[timeouts]\ncheckout = \"1s\"\n".to_owned(), section("single", ""), watched]);
    let refused = gateway.startup("single").refused().message;
    assert!(ADDRESSES[..2].iter().any(|address| refused.contains(&format!("db.test:1 ({address})"))), "{refused}");
    gateway.startup("app").refused();
    eventually("each row has the address in its error", || {
        let rows: Vec<_> = gateway.show("HOSTS").into_iter().filter(|row| row["database"] == "app").collect();
        rows.len() == 2 && rows.iter().all(|row| row["last_error"].contains(&format!("db.test:1 ({})", row["host"])))
    });
}

/// Open pools of single servers in all threads: opened minus closed.
fn pools(gateway: &Gateway) -> usize {
    let log = gateway.log();
    log.matches("pool opened").count() - log.matches("pool closed").count()
}

/// T03.
#[test]
fn address_changes_leave_no_pool_or_descriptor() {
    const CYCLES: usize = 25;
    let (cluster, _) = shared_cluster();
    let names = NameServer::start();
    names.set_addresses("db.test", &ADDRESSES[..2]);
    let host = format!("db.test:{}", cluster.server(2).port());
    let mut gateway = gateway_with_dns(&names, &[database("app", &host, "route = \"replica\"")]);
    let startup = gateway.startup("app");
    // The client stays idle. The server that it used last must not be kept for it.
    let mut idle = log_in(&startup);
    idle.ok("select 1");
    wait_until_up(&gateway, "app", &ADDRESSES[..2]);
    let descriptors = |gateway: &Gateway| {
        let mut console = gateway.console();
        console.ok("PAUSE app");
        eventually("no server is connected", || gateway.pool_count("app", "sv_idle") == 0);
        let count = gateway.descriptors();
        console.ok("RESUME app");
        count
    };
    let before = descriptors(&gateway);
    let load = Load::start(&startup, 4, Work::Read);
    for cycle in 0..CYCLES {
        let addresses = if cycle % 2 == 0 { &ADDRESSES[1..] } else { &ADDRESSES[..2] };
        names.set_addresses("db.test", addresses);
        wait_until_up(&gateway, "app", addresses);
        load.wait_for_progress();
        if cycle % 6 == 5 {
            // Other rules: the watcher of the servers is replaced, and the connections stay.
            gateway.set_config("databases.app.lag_max", format!("{cycle}h"));
            gateway.signal(Signal::HUP);
        }
    }
    let counted = gateway.show("STATS");
    let done = load.done();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
    // Queries at removed addresses stay in the counts.
    let row = counted.iter().find(|row| row["database"] == "app").expect("the database has a row");
    let total: u64 = row["total_query_count"].parse().expect("a number");
    assert!(total >= 5 * 4 * CYCLES as u64, "{total} of {done}");
    // Two threads have at most two addresses each.
    eventually("pools of removed addresses are closed", || pools(&gateway) <= 4);
    let closed = gateway.log().matches("pool closed").count();
    assert!(closed >= CYCLES / 2, "{closed} pools closed");
    let known = texts(&ADDRESSES[1..]);
    eventually("no server of a removed address is listed", || {
        gateway.show("SERVERS").iter().all(|row| known.contains(&row["addr"]))
    });
    // The margin is for probes and DNS queries in progress.
    eventually("descriptors are closed", || descriptors(&gateway) <= before + 10);
    assert!(known.contains(&address_of(&mut idle)));
}

/// T36.
#[test]
fn srv_priorities_and_weights_change_under_load() {
    let (cluster, _) = shared_cluster();
    let names = NameServer::start();
    for (name, address) in ["a.test", "b.test", "c.test"].iter().zip(ADDRESSES) {
        names.set_addresses(name, &[address]);
    }
    let [one, other] = [1, 2].map(|index| cluster.server(index).port());
    let heavy = [(10, 3, one, "a.test."), (10, 1, other, "b.test."), (20, 1, one, "c.test.")];
    names.set_services("_pg._tcp.db.test", &heavy);
    let section = database("app", "srv:_pg._tcp.db.test", "route = \"replica\"");
    let gateway = gateway_with_dns(&names, &[section]);
    let mut client = connect(&gateway, "app");
    wait_until_up(&gateway, "app", &ADDRESSES);
    let mut counts = |count: usize| {
        let mut counts = [0; 3];
        for _ in 0..count {
            let address = address_of(&mut client);
            counts[ADDRESSES.iter().position(|known| known.to_string() == address).expect("a known address")] += 1;
        }
        counts
    };
    let [a, b, c] = counts(40);
    assert!(c == 0 && (28..=32).contains(&a), "{a} {b} {c}");
    // The weights of the last answer are used.
    names.set_services("_pg._tcp.db.test", &[(10, 1, one, "a.test."), (10, 3, other, "b.test."), heavy[2]]);
    eventually("the weights have changed", || {
        let [a, b, c] = counts(40);
        c == 0 && (28..=32).contains(&b) && a + b == 40
    });
    let load = Load::start(&gateway.startup("app"), 2, Work::Read);
    names.set_services("_pg._tcp.db.test", &heavy[2..]);
    wait_until_up(&gateway, "app", &ADDRESSES[2..]);
    eventually("the only remaining service is used", || counts(6) == [0, 0, 6]);
    load.wait_for_progress();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn single_host_is_resolved_by_the_configured_server() {
    let (cluster, _) = shared_cluster();
    let names = NameServer::start();
    names.set_addresses("db.test", &ADDRESSES[1..2]);
    let port = cluster.server(0).port();
    let sections =
        [database("app", &format!("db.test:{port}"), ""), database("gone", &format!("gone.test:{port}"), "")];
    let gateway = gateway_with_dns(&names, &sections);
    assert_eq!(address_of(&mut connect(&gateway, "app")), ADDRESSES[1].to_string());
    // Names in `/etc/hosts` are resolved as well.
    let local = gateway_with_dns(&names, &[database("local", &format!("localhost:{port}"), "")]);
    connect(&local, "local").ok("select 1");
    let refused = gateway.startup("gone").refused();
    assert!(refused.message.contains("gone.test"), "{}", refused.message);
}

/// T47.
#[test]
fn returning_address_with_an_open_transaction_is_used() {
    let (cluster, _) = shared_cluster();
    let names = NameServer::start();
    names.set_addresses("db.test", &ADDRESSES[..1]);
    let host = format!("db.test:{}", cluster.server(1).port());
    let gateway = gateway_with_dns(&names, &[database("app", &host, "route = \"replica\"")]);
    let mut open = connect(&gateway, "app");
    open.ok("begin");
    assert_eq!(address_of(&mut open), ADDRESSES[0].to_string());
    let mut client = connect(&gateway, "app");
    for addresses in [&ADDRESSES[1..2], &ADDRESSES[..1], &ADDRESSES[1..2], &ADDRESSES[..1]] {
        names.set_addresses("db.test", addresses);
        wait_until_up(&gateway, "app", addresses);
        let place_of = || addresses_of(&mut client, 1) == texts(addresses);
        eventually("the address is used despite the open transaction", place_of);
    }
    assert_eq!(address_of(&mut open), ADDRESSES[0].to_string());
    open.ok("commit");
    assert_eq!(address_of(&mut open), ADDRESSES[0].to_string());
}

#[test]
fn rotating_dns_answers_use_all_servers() {
    let (cluster, _) = shared_cluster();
    let names = NameServer::start();
    let section = database("app", &format!("db.test:{}", cluster.server(1).port()), "route = \"replica\"");
    names.set_addresses("db.test", &ADDRESSES[..1]);
    let mut gateway = gateway_with_dns_keys(&names, "", &[section]);
    let mut client = connect(&gateway, "app");
    let rotate = |gateway: &Gateway, rotate: usize| {
        let address = ADDRESSES[rotate % 3];
        names.set_addresses("db.test", &[address]);
        eventually("the answer is applied", || up(gateway, "app").contains(&address.to_string()));
        let before = names.queries();
        eventually("the name is resolved again", || names.queries() >= before + 8);
    };
    // The first rotation cannot show that an address will come back.
    (0..7).for_each(|number| rotate(&gateway, number));
    assert_eq!(up(&gateway, "app"), texts(&ADDRESSES));
    assert_eq!(addresses_of(&mut client, 6), texts(&ADDRESSES));
    let removed = || gateway.log().matches("host removed").count();
    let before = removed();
    (7..13).for_each(|number| rotate(&gateway, number));
    assert_eq!(removed(), before, "a rotating address was removed");
    // A reload keeps the servers and the fact that answers rotate.
    gateway.set_config("databases.app.lag_max", "1h");
    gateway.signal(Signal::HUP);
    eventually("the reload is applied", || {
        gateway.show("CONFIG").iter().any(|row| row["key"] == "databases.app.lag_max")
    });
    (13..16).for_each(|number| rotate(&gateway, number));
    assert_eq!(addresses_of(&mut client, 6), texts(&ADDRESSES));
}

#[test]
fn rotating_dns_answers_keep_connections() {
    let (cluster, _) = shared_cluster();
    let names = NameServer::start();
    names.set_addresses("db.test", &ADDRESSES[..1]);
    let port = cluster.server(0).port();
    let section = database("app", &format!("db.test:{port}"), "size = 1");
    let cache_keys = "cache_ttl = \"20ms\"\ncheck_period = \"20ms\"\n";
    let dns =
        format!("[dns]\nservers = [\"{}\"]\nttl_min = \"10ms\"\nttl_max = \"500ms\"\n{cache_keys}", names.address());
    let gateway = gateway(&[dns, section]);
    let mut client = connect(&gateway, "app");
    assert_eq!(address_of(&mut client), ADDRESSES[0].to_string());
    let answer_next = |turn: usize| {
        names.set_addresses("db.test", &ADDRESSES[turn % 2..=turn % 2]);
        let before = names.queries();
        // Both address families are queried, and one answer may be in flight when the next query is sent.
        eventually("the answer is applied", || names.queries() >= before + 8);
    };
    // The first change cannot show whether the old address will come back.
    answer_next(1);
    eventually("connections follow the name", || address_of(&mut client) == ADDRESSES[1].to_string());
    answer_next(2);
    let backend = client.backend();
    for turn in 3..9 {
        answer_next(turn);
        assert_eq!(client.backend(), backend, "turn {turn}");
    }
    assert_eq!(gateway.log().matches("a host name leads elsewhere").count(), 1);
}
