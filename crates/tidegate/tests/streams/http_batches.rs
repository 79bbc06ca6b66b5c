//! Batches over HTTP: what is repeated, what is split, and batches across keys.

use std::collections::{BTreeMap, BTreeSet};

use crate::http_server::{HttpServer, ReceivedRequest, Reply};
use crate::process::{Stream, StreamOutput, TempFolder, assert_each_once_in_order, number, numbers};

fn run(folder: &TempFolder, server: &HttpServer, more: &[&str]) -> StreamOutput {
    let (file, url) = (folder.path("in.ndjson"), server.url("/"));
    let arguments = ["--from", &file, "--key", "/k", "--to", &url, "--retry-wait", "1ms"];
    Stream::run(arguments.iter().chain(more))
}

fn lines(requests: &[ReceivedRequest]) -> Vec<String> {
    requests.iter().flat_map(|request| request.body.lines()).map(str::to_owned).collect()
}

/// A server in trouble must not get more requests than it refuses.
#[test]
fn failing_server_gets_the_same_batches_again() {
    let server = HttpServer::start(|request| Reply::Status(if request.earlier < 3 { 503 } else { 200 }));
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..400, 4));
    run(&folder, &server, &["--batch", "50"]).expect(0);
    let mut by_body = BTreeMap::<String, Vec<ReceivedRequest>>::new();
    for request in server.requests() {
        by_body.entry(request.body.clone()).or_default().push(request);
    }
    for (body, requests) in &by_body {
        assert_eq!(requests.len(), 4, "{body}");
        let keys: BTreeSet<&str> = requests.iter().map(|request| request.header("idempotency-key")).collect();
        assert_eq!(keys.len(), 1, "{keys:?} of {body}");
    }
    assert!(by_body.len() < 100, "{} batches", by_body.len());
    let accepted: Vec<ReceivedRequest> = by_body.into_values().map(|mut requests| requests.swap_remove(3)).collect();
    let mut accepted = lines(&accepted);
    accepted.sort_by_key(|line| number(line).1);
    assert_each_once_in_order(&accepted, 0..400);
}

#[test]
fn exhausted_batch_costs_its_attempts_only() {
    let server = HttpServer::start(|_| Reply::Status(503));
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..100, 1));
    let dead = folder.path("dead");
    run(&folder, &server, &["--batch", "100", "--attempts", "3", "--dead-letter", &dead]).expect(3);
    let bodies: BTreeSet<String> = server.bodies().into_iter().collect();
    assert_eq!((server.requests().len(), folder.read("dead").lines().count()), (3 * bodies.len(), 100));
}

#[test]
fn rejected_batch_is_split_to_find_the_record() {
    let server = HttpServer::start(|request| Reply::Status(if request.body.contains("\"n\":70}") { 422 } else { 200 }));
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..200, 2));
    let dead = folder.path("dead");
    run(&folder, &server, &["--batch", "100", "--dead-letter", &dead]).expect(3);
    let letters = folder.read("dead");
    assert!(letters.lines().count() == 1 && letters.contains("\"n\":70}"), "{letters}");
    let accepted: Vec<ReceivedRequest> =
        server.requests().into_iter().filter(|request| !request.body.contains("\"n\":70}")).collect();
    let mut expected: Vec<u64> = (0..200).filter(|n| *n != 70).collect();
    let mut delivered: Vec<u64> = lines(&accepted).iter().map(|line| number(line).1).collect();
    expected.sort_unstable();
    delivered.sort_unstable();
    assert_eq!(delivered, expected);
}

#[test]
fn batch_by_lane_has_records_of_many_keys() {
    let server = HttpServer::start(|request| Reply::Status(if request.earlier == 0 { 503 } else { 200 }));
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..3_000, 1_000));
    run(&folder, &server, &["--batch", "200", "--batch-by", "lane", "--concurrency", "2"]).expect(0);
    let requests = server.requests();
    assert!(requests.len() < 1_000, "{} requests for 3,000 records", requests.len());
    assert!(requests.iter().any(|request| request.body.lines().count() > 20), "no batch across keys");
    let keys: BTreeSet<&str> = requests.iter().map(|request| request.header("idempotency-key")).collect();
    let bodies: BTreeSet<&str> = requests.iter().map(|request| request.body.as_str()).collect();
    assert_eq!((keys.len(), requests.len()), (bodies.len(), 2 * bodies.len()), "each body has a key and is sent twice");
    let accepted: Vec<ReceivedRequest> = requests.into_iter().filter(|request| request.earlier == 1).collect();
    assert_each_once_in_order(&lines(&accepted), 0..3_000);
}

/// Some servers answer a POST without a length with 411.
#[test]
fn empty_body_has_a_content_length() {
    let server = HttpServer::start(|_| Reply::Status(200));
    let folder = TempFolder::new();
    let file = folder.write("dead", "{\"attempts\":1,\"key\":\"k\",\"value\":null}\n");
    Stream::run(["--from", &file, "--redrive", "--to", &server.url("/")]).expect(0);
    let requests = server.requests();
    assert_eq!((requests[0].body.as_str(), requests[0].header("content-length")), ("", "0"));
}

#[test]
fn client_certificate_is_presented() {
    let (folder, authority) = (TempFolder::new(), tidegate_testkit::Authority::new());
    let server =
        HttpServer::start_tls_for_clients(&authority.issue(&["localhost"]), &authority.ca(), |_| Reply::Status(200));
    let file = folder.write("in.ndjson", &numbers(0..20, 4));
    let (ca, url) = (authority.ca(), format!("https://localhost:{}/", server.port));
    let client = authority.issue(&["orders"]);
    let (cert, key, ca) = (client.cert.to_str().unwrap(), client.key.to_str().unwrap(), ca.to_str().unwrap());
    let arguments = ["--from", &file, "--key", "/k", "--to", &url, "--attempts", "1", "--http-ca-file", ca];
    Stream::run(arguments).expect(1);
    assert_eq!(server.requests().len(), 0, "without a certificate");
    Stream::run(arguments.iter().chain(&["--http-cert-file", cert, "--http-key-file", key])).expect(0);
    assert_each_once_in_order(&server.bodies(), 0..20);
}
