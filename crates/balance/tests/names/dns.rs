//! DNS answers and the resulting addresses.

use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType::{A, AAAA, SRV};
use tidegate_balance::{DnsClient, Resolution, Resolve, ResolveError};

use crate::name_server::{Answer, NameServer, addresses, srv};

fn found(resolution: &Result<Resolution, ResolveError>) -> Vec<String> {
    let resolution = resolution.as_ref().expect("an answer");
    resolution.addresses.iter().map(|resolved| resolved.address.to_string()).collect()
}

async fn resolver() -> (NameServer, Box<dyn Resolve>) {
    let server = NameServer::start().await;
    let resolver = DnsClient::from_servers([server.address]).host("orders.test.", 80);
    (server, resolver)
}

#[tokio::test]
async fn families_alternate_with_the_shorter_ttl() {
    let (server, mut resolver) = resolver().await;
    server.set("orders.test", A, addresses(60, &["10.0.0.1", "10.0.0.2"]));
    server.set("orders.test", AAAA, addresses(30, &["fd00::1"]));
    let resolution = resolver.resolve().await;
    assert_eq!(found(&resolution), ["[fd00::1]:80", "10.0.0.1:80", "10.0.0.2:80"]);
    let ttl = resolution.unwrap().ttl.unwrap();
    assert!(ttl <= Duration::from_secs(30) && ttl > Duration::from_secs(25), "{ttl:?}");
}

/// BA-24.
#[tokio::test]
async fn failed_family_keeps_its_addresses() {
    let (server, mut resolver) = resolver().await;
    server.set("orders.test", A, addresses(60, &["10.0.0.1"]));
    server.set("orders.test", AAAA, addresses(60, &["fd00::1"]));
    resolver.resolve().await.unwrap();
    server.set("orders.test", A, addresses(60, &["10.0.0.2"]));
    server.set("orders.test", AAAA, Answer::Code(ResponseCode::ServFail));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::1]:80", "10.0.0.2:80"]);
    // An empty answer empties a family.
    server.set("orders.test", AAAA, Answer::Records(60, Vec::new()));
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.2:80"]);
    // Kept addresses survive an answer that the name does not exist.
    server.set("orders.test", A, Answer::Code(ResponseCode::NXDomain));
    assert!(matches!(resolver.resolve().await, Err(ResolveError::NoAddresses { .. })));
    server.set("orders.test", A, Answer::Code(ResponseCode::ServFail));
    server.set("orders.test", AAAA, addresses(60, &["fd00::9"]));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::9]:80", "10.0.0.2:80"]);
}

/// BA-24.
#[tokio::test]
async fn unanswered_family_does_not_delay_the_other() {
    let (server, mut resolver) = resolver().await;
    server.set("orders.test", A, addresses(60, &["10.0.0.1"]));
    server.set("orders.test", AAAA, Answer::None);
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:80"]);
    server.set("orders.test", A, Answer::None);
    server.set("orders.test", AAAA, addresses(60, &["fd00::1"]));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::1]:80", "10.0.0.1:80"]);
}

/// BA-24.
#[tokio::test]
async fn no_records_beside_a_failure_keep_addresses() {
    let (server, mut resolver) = resolver().await;
    server.set("orders.test", A, addresses(60, &["10.0.0.1"]));
    server.set("orders.test", AAAA, addresses(60, &["fd00::1"]));
    resolver.resolve().await.unwrap();
    server.set("orders.test", A, Answer::Code(ResponseCode::NXDomain));
    server.set("orders.test", AAAA, Answer::Code(ResponseCode::ServFail));
    assert!(resolver.resolve().await.is_err(), "an error, so that the set is kept");
    server.set("orders.test", A, addresses(60, &["10.0.0.1"]));
    assert_eq!(found(&resolver.resolve().await), ["[fd00::1]:80", "10.0.0.1:80"]);
}

/// BA-36.
#[tokio::test]
async fn srv_target_without_addresses_is_left_out() {
    let server = NameServer::start().await;
    let records = vec![srv(10, 1, 5001, "a.test."), srv(10, 1, 5002, "b.test.")];
    server.set("_pg._tcp.orders.test", SRV, Answer::Records(60, records));
    server.set("a.test", A, addresses(60, &["10.0.0.1"]));
    let mut resolver = DnsClient::from_servers([server.address]).srv("_pg._tcp.orders.test.");
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5001"]);
    server.set("b.test", A, addresses(60, &["10.0.0.2"]));
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5001", "10.0.0.2:5002"]);
    for gone in ["a.test", "b.test"] {
        server.set(gone, A, Answer::Code(ResponseCode::NXDomain));
    }
    assert!(
        matches!(resolver.resolve().await, Err(ResolveError::NoAddresses { .. })),
        "an error, so that the set is kept"
    );
}

/// BA-23.
#[tokio::test]
async fn lookup_error_differs_from_missing_name() {
    let (server, mut resolver) = resolver().await;
    let error = resolver.resolve().await.unwrap_err().to_string();
    assert!(error.contains("orders.test. has no addresses"), "{error}");
    server.set("orders.test", A, Answer::Code(ResponseCode::ServFail));
    server.set("orders.test", AAAA, Answer::Code(ResponseCode::ServFail));
    let error = resolver.resolve().await.unwrap_err().to_string();
    assert!(error.contains("cannot resolve orders.test."), "{error}");
}

/// BA-36.
#[tokio::test]
async fn srv_records_set_tiers_weights_and_ports() {
    let server = NameServer::start().await;
    let records = vec![srv(10, 3, 5001, "a.test."), srv(10, 0, 5002, "b.test."), srv(20, 1, 5003, "b.test.")];
    server.set("_pg._tcp.orders.test", SRV, Answer::Records(60, records));
    server.set("a.test", A, addresses(20, &["10.0.0.1", "10.0.0.2"]));
    server.set("b.test", A, addresses(60, &["10.0.0.3"]));
    let mut resolver = DnsClient::from_servers([server.address]).srv("_pg._tcp.orders.test.");
    let resolution = resolver.resolve().await.unwrap();
    let mut list: Vec<_> = resolution
        .addresses
        .iter()
        .map(|resolved| (resolved.address.to_string(), resolved.weight, resolved.tier))
        .collect();
    list.sort();
    let expected =
        [("10.0.0.1:5001", 300, 10), ("10.0.0.2:5001", 300, 10), ("10.0.0.3:5002", 1, 10), ("10.0.0.3:5003", 100, 20)];
    assert_eq!(list, expected.map(|(address, weight, tier)| (address.to_owned(), weight, tier)));
    assert!(resolution.ttl.unwrap() <= Duration::from_secs(20));
    // A failed target neither shrinks a known set, nor starts with a smaller one.
    server.set("b.test", A, Answer::Code(ResponseCode::ServFail));
    assert_eq!(resolver.resolve().await.unwrap().addresses, resolution.addresses);
    assert!(DnsClient::from_servers([server.address]).srv("_pg._tcp.orders.test.").resolve().await.is_err());
}

/// BA-24.
#[tokio::test]
async fn failed_family_of_a_target_keeps_its_addresses() {
    let server = NameServer::start().await;
    server.set("_pg._tcp.orders.test", SRV, Answer::Records(60, vec![srv(10, 3, 5001, "a.test.")]));
    server.set("a.test", A, addresses(60, &["10.0.0.1"]));
    server.set("a.test", AAAA, addresses(60, &["fd00::1"]));
    let mut resolver = DnsClient::from_servers([server.address]).srv("_pg._tcp.orders.test.");
    let mut look_up = async || found(&resolver.resolve().await);
    assert_eq!(look_up().await, ["[fd00::1]:5001", "10.0.0.1:5001"]);
    server.set("a.test", AAAA, Answer::Code(ResponseCode::ServFail));
    server.set("a.test", A, addresses(60, &["10.0.0.2"]));
    assert_eq!(look_up().await, ["[fd00::1]:5001", "10.0.0.2:5001"]);
    server.set("a.test", AAAA, Answer::Records(60, Vec::new()));
    assert_eq!(look_up().await, ["10.0.0.2:5001"]);
}

/// BA-37.
#[tokio::test]
async fn changed_files_are_read_again() {
    let folder = std::env::temp_dir().join(format!("tidegate-balance-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (resolv_conf, hosts) = (folder.join("resolv.conf"), folder.join("hosts"));
    std::fs::write(&resolv_conf, "nonsense\n").unwrap();
    std::fs::write(&hosts, "10.0.0.7 db\n").unwrap();
    let dns = DnsClient::from_files(&resolv_conf, &hosts);
    let mut resolver = dns.host("db", 5432);
    assert!(matches!(resolver.resolve().await, Err(ResolveError::Start(_))), "resolv.conf cannot be parsed");
    std::fs::write(&resolv_conf, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.7:5432"]);
    std::fs::write(&hosts, "10.0.0.8 db\n10.0.0.9 db\n").unwrap();
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.8:5432", "10.0.0.9:5432"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// BA-37.
#[tokio::test]
async fn changed_resolv_conf_changes_the_servers() {
    // resolv.conf has no ports, and port 53 needs a privilege: skipped without it.
    let [a, b] = (std::process::id() as u16).to_be_bytes();
    let at = |last| NameServer::start_at(([127, a | 1, b, last], 53).into());
    let (Ok(one), Ok(other)) = (at(1).await, at(2).await) else { return };
    one.set("orders.test", A, addresses(60, &["10.0.0.1"]));
    other.set("orders.test", A, addresses(60, &["10.0.0.2"]));
    let file = std::env::temp_dir().join(format!("tidegate-balance-resolv-{}", std::process::id()));
    let write = |server: &NameServer, more: &str| {
        std::fs::write(&file, format!("nameserver {}\n{more}", server.address.ip())).unwrap();
    };
    write(&one, "");
    let mut resolver = DnsClient::from_files(&file, "/nowhere").host("orders.test.", 5432);
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5432"]);
    write(&other, "options timeout:2\n");
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.2:5432"]);
    std::fs::remove_file(&file).unwrap();
    assert!(resolver.resolve().await.is_err(), "the file does not exist");
    write(&one, "");
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5432"]);
}

/// BA-37.
#[tokio::test]
async fn hosts_file_precedes_custom_servers() {
    let server = NameServer::start().await;
    server.set("db.test", A, addresses(60, &["10.0.0.1"]));
    let hosts = std::env::temp_dir().join(format!("tidegate-balance-hosts-{}", std::process::id()));
    // Comments can have another encoding.
    std::fs::write(&hosts, b"# B\xfcro\n10.0.0.7 db.test\n").unwrap();
    let mut resolver = DnsClient::from_servers_and_hosts([server.address], &hosts).host("db.test", 5432);
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.7:5432"]);
    std::fs::remove_file(&hosts).unwrap();
    assert_eq!(found(&resolver.resolve().await), ["10.0.0.1:5432"]);
}

/// BA-38.
#[tokio::test]
async fn concurrent_lookups_are_limited() {
    let server = NameServer::start().await;
    let dns = DnsClient::from_servers([server.address]);
    let mut lookups = tokio::task::JoinSet::new();
    for number in 0..500 {
        server.set(&format!("n{number}.test"), A, Answer::None);
        let mut resolver = dns.host(&format!("n{number}.test."), 80);
        lookups.spawn(async move { resolver.resolve().await.map(drop) });
    }
    while server.names() < 32 {
        tokio::task::yield_now().await;
    }
    // Queries of another client arrive after the queries that are already sent.
    server.set("ping.test", A, addresses(60, &["10.0.0.1"]));
    for _ in 0..20 {
        DnsClient::from_servers([server.address]).host("ping.test.", 80).resolve().await.unwrap();
    }
    assert!(server.names() <= 64 + 1, "{} concurrent lookups", server.names());
    lookups.shutdown().await;
}
