//! Names that come to mean other addresses, and name services that fail.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use tidegate_testkit::{Gateway, NameServer, Outage, RawClient, Signal};

use crate::load::{Load, Work};
use crate::stage::{QUICK, connect, eventually, gateway, log_in, steady};

/// The places of this machine that the servers listen on.
static PLACES: [Ipv4Addr; 3] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3), Ipv4Addr::new(127, 0, 0, 4)];

const POLICIES: [&str; 4] = ["round_robin", "least_request", "peak_ewma", "pick_first"];

/// A gateway with these databases, which asks this name server.
fn asking(names: &NameServer, sections: &[String]) -> Gateway {
    // Addresses of these tests come back although they were meant to be gone.
    asking_with(names, "rotation_grace = 0", sections)
}

fn asking_with(names: &NameServer, keys: &str, sections: &[String]) -> Gateway {
    let server = names.address();
    let dns = format!("[dns]\nservers = [\"{server}\"]\nttl_min = \"50ms\"\nttl_max = \"500ms\"\n{keys}\n");
    gateway(&[std::slice::from_ref(&dns), sections].concat())
}

fn database(name: &str, host: &str, keys: &str) -> String {
    format!("[databases.{name}]\nhosts = [\"{host}\"]\ndbname = \"postgres\"\n{QUICK}{keys}\n")
}

fn texts(places: &[Ipv4Addr]) -> BTreeSet<String> {
    places.iter().map(Ipv4Addr::to_string).collect()
}

/// Where the servers of a database are that are up.
fn up(gateway: &Gateway, database: &str) -> BTreeSet<String> {
    let rows = gateway.show("HOSTS");
    let own = rows.iter().filter(|row| row["database"] == database && row["state"] == "up");
    own.map(|row| row["host"].clone()).collect()
}

#[track_caller]
fn settled(gateway: &Gateway, database: &str, places: &[Ipv4Addr]) {
    eventually(&format!("{database} is served at {places:?}"), || up(gateway, database) == texts(places));
}

fn place(client: &mut RawClient) -> String {
    client.value("select host(inet_server_addr())")
}

/// The places that so many transactions run at.
fn places_of(client: &mut RawClient, transactions: usize) -> BTreeSet<String> {
    (0..transactions).map(|_| place(client)).collect()
}

#[test]
fn t23_addresses_come_and_go_and_look_ups_fail_and_no_policy_loses_a_transaction() {
    let (cluster, _) = steady();
    let names = NameServer::start();
    names.addresses("db.test", &PLACES[..2]);
    let host = format!("db.test:{}", cluster.server(1).port());
    let section = |policy: &&str| database(policy, &host, &format!("route = \"replica\"\npolicy = \"{policy}\""));
    let mut gateway = asking(&names, &POLICIES.each_ref().map(section));
    let loads = POLICIES.map(|policy| Load::start(&gateway.startup(policy), 2, Work::Read));
    let mut clients = POLICIES.map(|policy| connect(&gateway, policy));
    let mut serves_at = |gateway: &Gateway, places: &[Ipv4Addr]| {
        for (policy, client) in POLICIES.iter().zip(&mut clients) {
            settled(gateway, policy, places);
            let wanted = texts(places);
            eventually(&format!("{policy} uses {places:?} alone"), || {
                let found = places_of(client, 6);
                if *policy == "round_robin" { found == wanted } else { found.is_subset(&wanted) }
            });
        }
    };
    for places in [&PLACES[1..], &PLACES[..], &PLACES[2..], &PLACES[..2]] {
        names.addresses("db.test", places);
        serves_at(&gateway, places);
    }
    for outage in [Outage::ServFail, Outage::NxDomain, Outage::Empty, Outage::Silence] {
        names.fail(Some(outage));
        let before = names.asked();
        eventually(&format!("names are looked up during {outage:?}"), || names.asked() >= before + 8);
        loads.iter().for_each(Load::goes_on);
        serves_at(&gateway, &PLACES[..2]);
    }
    // A reload begins with what is known.
    gateway.rewrite("databases.round_robin.lag_max", "1h");
    gateway.signal(Signal::HUP);
    eventually("the reload is in force", || {
        gateway.show("CONFIG").iter().any(|row| row["key"] == "databases.round_robin.lag_max")
    });
    loads.iter().for_each(Load::goes_on);
    serves_at(&gateway, &PLACES[..2]);
    for (policy, load) in POLICIES.iter().zip(loads) {
        let (_, failed) = load.end();
        assert!(failed.is_empty(), "{policy}: {failed:?}");
    }
}

#[test]
fn what_failed_at_an_address_of_a_name_is_told_with_the_address() {
    let names = NameServer::start();
    names.addresses("db.test", &PLACES[..2]);
    let section = |name: &str, keys: &str| format!("[databases.{name}]\nhosts = [\"db.test:1\"]\n{keys}\n");
    let watched = section("app", "route = \"primary\"\nprobe_interval = \"50ms\"\nfailover_wait = \"1ms\"");
    let gateway = asking(&names, &["[timeouts]\ncheckout = \"1s\"\n".to_owned(), section("sole", ""), watched]);
    let refused = gateway.startup("sole").refused().message;
    assert!(PLACES[..2].iter().any(|place| refused.contains(&format!("db.test:1 ({place})"))), "{refused}");
    gateway.startup("app").refused();
    eventually("each row says where", || {
        let rows: Vec<_> = gateway.show("HOSTS").into_iter().filter(|row| row["database"] == "app").collect();
        rows.len() == 2 && rows.iter().all(|row| row["last_error"].contains(&format!("db.test:1 ({})", row["host"])))
    });
}

/// Pools of single servers that threads have: those opened without those closed.
fn pools(gateway: &Gateway) -> usize {
    let log = gateway.log();
    log.matches("pool opened").count() - log.matches("pool closed").count()
}

#[test]
fn t03_addresses_that_come_and_go_many_times_leave_no_pool_and_no_descriptor() {
    const CYCLES: usize = 25;
    let (cluster, _) = steady();
    let names = NameServer::start();
    names.addresses("db.test", &PLACES[..2]);
    let host = format!("db.test:{}", cluster.server(2).port());
    let mut gateway = asking(&names, &[database("app", &host, "route = \"replica\"")]);
    let startup = gateway.startup("app");
    // It stays for all of it, and does nothing: what it used last must not be kept for it.
    let mut idle = log_in(&startup);
    idle.ok("select 1");
    settled(&gateway, "app", &PLACES[..2]);
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
        let places = if cycle % 2 == 0 { &PLACES[1..] } else { &PLACES[..2] };
        names.addresses("db.test", places);
        settled(&gateway, "app", places);
        load.goes_on();
        if cycle % 6 == 5 {
            // Another set of rules: who knows the servers is made anew, and the connections stay.
            gateway.rewrite("databases.app.lag_max", format!("{cycle}h"));
            gateway.signal(Signal::HUP);
        }
    }
    let counted = gateway.show("STATS");
    let done = load.done();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
    // What was done at places that are gone stays counted.
    let row = counted.iter().find(|row| row["database"] == "app").expect("the database has a row");
    let total: u64 = row["total_query_count"].parse().expect("a number");
    assert!(total >= 5 * 4 * CYCLES as u64, "{total} of {done}");
    // Two threads, two places.
    eventually("pools of places that are gone are dropped", || pools(&gateway) <= 4);
    let closed = gateway.log().matches("pool closed").count();
    assert!(closed >= CYCLES / 2, "{closed} were used and are gone");
    let known = texts(&PLACES[1..]);
    eventually("no server of a place that is gone is shown", || {
        gateway.show("SERVERS").iter().all(|row| known.contains(&row["addr"]))
    });
    // Probes and look-ups come and go meanwhile.
    eventually("descriptors are closed", || descriptors(&gateway) <= before + 10);
    assert!(known.contains(&place(&mut idle)));
}

#[test]
fn t36_services_go_by_priority_and_weight_and_change_under_load() {
    let (cluster, _) = steady();
    let names = NameServer::start();
    for (name, place) in ["a.test", "b.test", "c.test"].iter().zip(PLACES) {
        names.addresses(name, &[place]);
    }
    let [one, other] = [1, 2].map(|index| cluster.server(index).port());
    let heavy = [(10, 3, one, "a.test."), (10, 1, other, "b.test."), (20, 1, one, "c.test.")];
    names.services("_pg._tcp.db.test", &heavy);
    let section = database("app", "srv:_pg._tcp.db.test", "route = \"replica\"");
    let gateway = asking(&names, &[section]);
    let mut here = connect(&gateway, "app");
    settled(&gateway, "app", &PLACES);
    let mut turns = |count: usize| {
        let mut turns = [0; 3];
        for _ in 0..count {
            let place = place(&mut here);
            turns[PLACES.iter().position(|known| known.to_string() == place).expect("a place of ours")] += 1;
        }
        turns
    };
    let [a, b, c] = turns(40);
    assert!(c == 0 && (28..=32).contains(&a), "{a} {b} {c}");
    // Weights are those of the last answer.
    names.services("_pg._tcp.db.test", &[(10, 1, one, "a.test."), (10, 3, other, "b.test."), heavy[2]]);
    eventually("the weights have changed", || {
        let [a, b, c] = turns(40);
        c == 0 && (28..=32).contains(&b) && a + b == 40
    });
    let load = Load::start(&gateway.startup("app"), 2, Work::Read);
    names.services("_pg._tcp.db.test", &heavy[2..]);
    settled(&gateway, "app", &PLACES[2..]);
    eventually("the only service that is left serves", || turns(6) == [0, 0, 6]);
    load.goes_on();
    let (_, failed) = load.end();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_single_host_is_looked_up_where_the_configuration_says() {
    let (cluster, _) = steady();
    let names = NameServer::start();
    names.addresses("db.test", &PLACES[1..2]);
    let port = cluster.server(0).port();
    let sections =
        [database("app", &format!("db.test:{port}"), ""), database("gone", &format!("gone.test:{port}"), "")];
    let gateway = asking(&names, &sections);
    assert_eq!(place(&mut connect(&gateway, "app")), PLACES[1].to_string());
    // Names of the system's own file are found as well.
    let local = asking(&names, &[database("local", &format!("localhost:{port}"), "")]);
    connect(&local, "local").ok("select 1");
    let refused = gateway.startup("gone").refused();
    assert!(refused.message.contains("gone.test"), "{}", refused.message);
}

#[test]
fn t47_an_address_that_comes_back_serves_while_a_transaction_there_is_still_open() {
    let (cluster, _) = steady();
    let names = NameServer::start();
    names.addresses("db.test", &PLACES[..1]);
    let host = format!("db.test:{}", cluster.server(1).port());
    let gateway = asking(&names, &[database("app", &host, "route = \"replica\"")]);
    let mut stays = connect(&gateway, "app");
    stays.ok("begin");
    assert_eq!(place(&mut stays), PLACES[0].to_string());
    let mut here = connect(&gateway, "app");
    for places in [&PLACES[1..2], &PLACES[..1], &PLACES[1..2], &PLACES[..1]] {
        names.addresses("db.test", places);
        settled(&gateway, "app", places);
        let place_of = || places_of(&mut here, 1) == texts(places);
        eventually("the address serves, whatever is left there", place_of);
    }
    assert_eq!(place(&mut stays), PLACES[0].to_string());
    stays.ok("commit");
    assert_eq!(place(&mut stays), PLACES[0].to_string());
}

#[test]
fn servers_whose_name_has_one_of_them_in_each_answer_are_all_used() {
    let (cluster, _) = steady();
    let names = NameServer::start();
    let section = database("app", &format!("db.test:{}", cluster.server(1).port()), "route = \"replica\"");
    names.addresses("db.test", &PLACES[..1]);
    let mut gateway = asking_with(&names, "", &[section]);
    let mut client = connect(&gateway, "app");
    let turn = |gateway: &Gateway, turn: usize| {
        let place = PLACES[turn % 3];
        names.addresses("db.test", &[place]);
        eventually("the answer is heard", || up(gateway, "app").contains(&place.to_string()));
        let before = names.asked();
        eventually("and once more", || names.asked() >= before + 8);
    };
    // That an address is back later cannot be known the first time.
    (0..7).for_each(|number| turn(&gateway, number));
    assert_eq!(up(&gateway, "app"), texts(&PLACES));
    assert_eq!(places_of(&mut client, 6), texts(&PLACES));
    let removed = || gateway.log().matches("host removed").count();
    let before = removed();
    (7..13).for_each(|number| turn(&gateway, number));
    assert_eq!(removed(), before, "nobody is left because another one is named");
    // A reload forgets neither the servers nor that they take turns.
    gateway.rewrite("databases.app.lag_max", "1h");
    gateway.signal(Signal::HUP);
    eventually("the reload is in force", || {
        gateway.show("CONFIG").iter().any(|row| row["key"] == "databases.app.lag_max")
    });
    (13..16).for_each(|number| turn(&gateway, number));
    assert_eq!(places_of(&mut client, 6), texts(&PLACES));
}

#[test]
fn a_name_whose_answers_take_turns_costs_no_connection_each_time() {
    let (cluster, _) = steady();
    let names = NameServer::start();
    names.addresses("db.test", &PLACES[..1]);
    let port = cluster.server(0).port();
    let section = database("app", &format!("db.test:{port}"), "size = 1");
    let kept = "cache_ttl = \"20ms\"\ncheck_period = \"20ms\"\n";
    let dns = format!("[dns]\nservers = [\"{}\"]\nttl_min = \"10ms\"\nttl_max = \"500ms\"\n{kept}", names.address());
    let gateway = gateway(&[dns, section]);
    let mut client = connect(&gateway, "app");
    assert_eq!(place(&mut client), PLACES[0].to_string());
    let answer = |turn: usize| {
        names.addresses("db.test", &PLACES[turn % 2..=turn % 2]);
        let before = names.asked();
        // Names of both families are asked for, and an answer is on its way when the next is asked for.
        eventually("the answer has been heard", || names.asked() >= before + 8);
    };
    // Whether a database has moved or will be back cannot be told the first time.
    answer(1);
    eventually("connections follow the name", || place(&mut client) == PLACES[1].to_string());
    answer(2);
    let backend = client.backend();
    for turn in 3..9 {
        answer(turn);
        assert_eq!(client.backend(), backend, "turn {turn}");
    }
    assert_eq!(gateway.log().matches("a host name leads elsewhere").count(), 1);
}
