//! What DNS answers, and what is made of it.

use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType::{A, AAAA, SRV};
use tidegate_balance::{Dns, Resolution, Resolve, ResolveError};

use crate::server::{Answer, NameServer, addresses, srv};

fn found(resolution: &Result<Resolution, ResolveError>) -> Vec<String> {
    let resolution = resolution.as_ref().expect("an answer");
    resolution.found.iter().map(|found| found.address.to_string()).collect()
}

async fn resolver() -> (NameServer, Box<dyn Resolve>) {
    let server = NameServer::start().await;
    let resolver = Dns::from_servers([server.address]).name("orders.test.", 80);
    (server, resolver)
}

#[tokio::test]
async fn both_families_are_found_in_turn_with_the_shorter_time_to_live() {
    let (server, mut resolver) = resolver().await;
    server.tell("orders.test", A, addresses(60, &["10.0.0.1", "10.0.0.2"]));
    server.tell("orders.test", AAAA, addresses(30, &["fd00::1"]));
    let resolution = resolver.resolve().await;
    assert_eq!(found(&resolution), ["[fd00::1]:80", "10.0.0.1:80", "10.0.0.2:80"]);
    let ttl = resolution.unwrap().ttl.unwrap();
    assert!(ttl <= Duration::from_secs(30) && ttl > Duration::from_secs(25), "{ttl:?}");
}

#[tokio::test]
async fn t24_when_one_family_fails_its_last_addresses_stand() {
    let (server, mut resolver) = resolver().await;
    server.tell("orders.test", A, addresses(60, &["10.0.0.1"]));
    server.tell("orders.test", AAAA, addresses(60, &["fd00::1"]));
    resolver.resolve().await.unwrap();
    server.tell("orders.test", A, addresses(60, &["10.0.0.2"]));
    server.tell("orders.test", AAAA, Answer::Code(ResponseCode::ServFail));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::1]:80", "10.0.0.2:80"]);
    // A family that is answered to be empty is empty.
    server.tell("orders.test", AAAA, Answer::Records(60, Vec::new()));
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.2:80"]);
    // And what is kept outlives an answer that nothing exists.
    server.tell("orders.test", A, Answer::Code(ResponseCode::NXDomain));
    assert!(matches!(resolver.resolve().await, Err(ResolveError::NoAddresses { .. })));
    server.tell("orders.test", A, Answer::Code(ResponseCode::ServFail));
    server.tell("orders.test", AAAA, addresses(60, &["fd00::9"]));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::9]:80", "10.0.0.2:80"]);
}

#[tokio::test]
async fn t24_a_family_that_is_never_answered_costs_the_other_one_nothing() {
    let (server, mut resolver) = resolver().await;
    server.tell("orders.test", A, addresses(60, &["10.0.0.1"]));
    server.tell("orders.test", AAAA, Answer::Silence);
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:80"]);
    server.tell("orders.test", A, Answer::Silence);
    server.tell("orders.test", AAAA, addresses(60, &["fd00::1"]));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::1]:80", "10.0.0.1:80"]);
}

#[tokio::test]
async fn t24_nothing_of_one_family_beside_a_failure_of_the_other_clears_nothing() {
    let (server, mut resolver) = resolver().await;
    server.tell("orders.test", A, addresses(60, &["10.0.0.1"]));
    server.tell("orders.test", AAAA, addresses(60, &["fd00::1"]));
    resolver.resolve().await.unwrap();
    server.tell("orders.test", A, Answer::Code(ResponseCode::NXDomain));
    server.tell("orders.test", AAAA, Answer::Code(ResponseCode::ServFail));
    assert!(resolver.resolve().await.is_err(), "the schedule keeps the set");
    server.tell("orders.test", A, addresses(60, &["10.0.0.1"]));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::1]:80", "10.0.0.1:80"]);
}

#[tokio::test]
async fn t36_a_target_that_is_listed_and_gone_is_left_out() {
    let server = NameServer::start().await;
    let records = vec![srv(10, 1, 5001, "a.test."), srv(10, 1, 5002, "b.test.")];
    server.tell("_pg._tcp.orders.test", SRV, Answer::Records(60, records));
    server.tell("a.test", A, addresses(60, &["10.0.0.1"]));
    let mut resolver = Dns::from_servers([server.address]).srv("_pg._tcp.orders.test.");
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5001"]);
    server.tell("b.test", A, addresses(60, &["10.0.0.2"]));
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5001", "10.0.0.2:5002"]);
    for gone in ["a.test", "b.test"] {
        server.tell(gone, A, Answer::Code(ResponseCode::NXDomain));
    }
    assert!(matches!(resolver.resolve().await, Err(ResolveError::NoAddresses { .. })), "that is no answer");
}

#[tokio::test]
async fn t23_an_error_and_a_name_that_does_not_exist_are_told_apart() {
    let (server, mut resolver) = resolver().await;
    let told = resolver.resolve().await.unwrap_err().to_string();
    assert!(told.contains("orders.test. has no addresses"), "{told}");
    server.tell("orders.test", A, Answer::Code(ResponseCode::ServFail));
    server.tell("orders.test", AAAA, Answer::Code(ResponseCode::ServFail));
    let told = resolver.resolve().await.unwrap_err().to_string();
    assert!(told.contains("cannot resolve orders.test."), "{told}");
}

#[tokio::test]
async fn t36_srv_records_give_tiers_weights_and_ports() {
    let server = NameServer::start().await;
    let records = vec![srv(10, 3, 5001, "a.test."), srv(10, 0, 5002, "b.test."), srv(20, 1, 5003, "b.test.")];
    server.tell("_pg._tcp.orders.test", SRV, Answer::Records(60, records));
    server.tell("a.test", A, addresses(20, &["10.0.0.1", "10.0.0.2"]));
    server.tell("b.test", A, addresses(60, &["10.0.0.3"]));
    let mut resolver = Dns::from_servers([server.address]).srv("_pg._tcp.orders.test.");
    let resolution = resolver.resolve().await.unwrap();
    let mut list: Vec<_> =
        resolution.found.iter().map(|found| (found.address.to_string(), found.weight, found.tier)).collect();
    list.sort();
    let expected =
        [("10.0.0.1:5001", 300, 10), ("10.0.0.2:5001", 300, 10), ("10.0.0.3:5002", 1, 10), ("10.0.0.3:5003", 100, 20)];
    assert_eq!(list, expected.map(|(address, weight, tier)| (address.to_owned(), weight, tier)));
    assert!(resolution.ttl.unwrap() <= Duration::from_secs(20));
    // A target that fails must not shrink the set, nor begin with less.
    server.tell("b.test", A, Answer::Code(ResponseCode::ServFail));
    assert_eq!(resolver.resolve().await.unwrap().found, resolution.found);
    assert!(Dns::from_servers([server.address]).srv("_pg._tcp.orders.test.").resolve().await.is_err());
}

#[tokio::test]
async fn t24_when_one_family_of_a_target_fails_its_last_addresses_stand() {
    let server = NameServer::start().await;
    server.tell("_pg._tcp.orders.test", SRV, Answer::Records(60, vec![srv(10, 3, 5001, "a.test.")]));
    server.tell("a.test", A, addresses(60, &["10.0.0.1"]));
    server.tell("a.test", AAAA, addresses(60, &["fd00::1"]));
    let mut resolver = Dns::from_servers([server.address]).srv("_pg._tcp.orders.test.");
    let mut look = async || found(&resolver.resolve().await);
    assert_eq!(look().await, ["[fd00::1]:5001", "10.0.0.1:5001"]);
    server.tell("a.test", AAAA, Answer::Code(ResponseCode::ServFail));
    server.tell("a.test", A, addresses(60, &["10.0.0.2"]));
    assert_eq!(look().await, ["[fd00::1]:5001", "10.0.0.2:5001"]);
    server.tell("a.test", AAAA, Answer::Records(60, Vec::new()));
    assert_eq!(look().await, ["10.0.0.2:5001"]);
}

#[tokio::test]
async fn t37_changes_of_the_hosts_file_and_of_resolv_conf_are_picked_up() {
    let folder = std::env::temp_dir().join(format!("tidegate-balance-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (resolv_conf, hosts) = (folder.join("resolv.conf"), folder.join("hosts"));
    std::fs::write(&resolv_conf, "nonsense\n").unwrap();
    std::fs::write(&hosts, "10.0.0.7 db\n").unwrap();
    let dns = Dns::from_files(&resolv_conf, &hosts);
    let mut resolver = dns.name("db", 5432);
    assert!(matches!(resolver.resolve().await, Err(ResolveError::Start(_))), "a resolv.conf that cannot be read");
    std::fs::write(&resolv_conf, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.7:5432"]);
    std::fs::write(&hosts, "10.0.0.8 db\n10.0.0.9 db\n").unwrap();
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.8:5432", "10.0.0.9:5432"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn t37_other_servers_in_resolv_conf_are_asked_from_the_next_look_on() {
    // The file names no port, and the usual one is for those alone who have the privilege.
    let [a, b] = (std::process::id() as u16).to_be_bytes();
    let at = |last| NameServer::start_at(([127, a | 1, b, last], 53).into());
    let (Ok(one), Ok(other)) = (at(1).await, at(2).await) else { return };
    one.tell("orders.test", A, addresses(60, &["10.0.0.1"]));
    other.tell("orders.test", A, addresses(60, &["10.0.0.2"]));
    let file = std::env::temp_dir().join(format!("tidegate-balance-resolv-{}", std::process::id()));
    let write = |server: &NameServer, more: &str| {
        std::fs::write(&file, format!("nameserver {}\n{more}", server.address.ip())).unwrap();
    };
    write(&one, "");
    let mut resolver = Dns::from_files(&file, "/nowhere").name("orders.test.", 5432);
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5432"]);
    write(&other, "options timeout:2\n");
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.2:5432"]);
    std::fs::remove_file(&file).unwrap();
    assert!(resolver.resolve().await.is_err(), "a file that is gone names nobody");
    write(&one, "");
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5432"]);
}

#[tokio::test]
async fn t37_a_hosts_file_goes_before_name_servers_of_one_s_own() {
    let server = NameServer::start().await;
    server.tell("db.test", A, addresses(60, &["10.0.0.1"]));
    let hosts = std::env::temp_dir().join(format!("tidegate-balance-hosts-{}", std::process::id()));
    // Its comments may be in another encoding.
    std::fs::write(&hosts, b"# B\xfcro\n10.0.0.7 db.test\n").unwrap();
    let mut resolver = Dns::from_servers_and_hosts([server.address], &hosts).name("db.test", 5432);
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.7:5432"]);
    std::fs::remove_file(&hosts).unwrap();
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5432"]);
}

#[tokio::test]
async fn t38_look_ups_under_way_are_bounded() {
    let server = NameServer::start().await;
    let dns = Dns::from_servers([server.address]);
    let mut looking = tokio::task::JoinSet::new();
    for number in 0..500 {
        server.tell(&format!("n{number}.test"), A, Answer::Silence);
        let mut resolver = dns.name(&format!("n{number}.test."), 80);
        looking.spawn(async move { resolver.resolve().await.map(drop) });
    }
    while server.names() < 32 {
        tokio::task::yield_now().await;
    }
    // Questions of another client come after those that are on their way already.
    server.tell("ping.test", A, addresses(60, &["10.0.0.1"]));
    for _ in 0..20 {
        Dns::from_servers([server.address]).name("ping.test.", 80).resolve().await.unwrap();
    }
    assert!(server.names() <= 64 + 1, "{} names at once", server.names());
    looking.shutdown().await;
}
