//! An HTTP server as the sink: success, errors, Retry-After, rejections and timeouts.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use tidegate_testkit::Authority;

use crate::http_server::{HttpServer, Reply};
use crate::process::{Stream, StreamOutput, TempFolder, assert_each_once_in_order, number, numbers};

fn run(folder: &TempFolder, url: &str, more: &[&str]) -> StreamOutput {
    let file = folder.path("in.ndjson");
    let arguments = ["--from", &file, "--key", "/k", "--to", url, "--retry-wait", "1ms"];
    Stream::run(arguments.iter().chain(more))
}

fn write_records(folder: &TempFolder, count: u64, keys: u64) {
    folder.write("in.ndjson", &numbers(0..count, keys));
}

#[test]
fn records_are_posted_in_order_per_key() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(204)));
    write_records(&folder, 1_000, 20);
    run(&folder, &server.url("/orders?x=1"), &["--concurrency", "8", "--header", "x-team=blue"]).expect(0);
    assert_each_once_in_order(&server.bodies(), 0..1_000);
    let requests = server.requests();
    assert_eq!((requests[0].method.as_str(), requests[0].path.as_str()), ("POST", "/orders"));
    assert_eq!((requests[0].header("content-type"), requests[0].header("x-team")), ("application/json", "blue"));
    let mut names: Vec<&str> = requests.iter().map(|request| request.header("idempotency-key")).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 1_000);
    assert!(server.connections() < 100, "{} connections", server.connections());
}

/// A server that remembers idempotency keys must not mistake the records of this run for those of the previous one.
#[test]
fn idempotency_keys_of_standard_input_are_unique() {
    let server = HttpServer::start(|_| Reply::Status(200));
    for _ in 0..2 {
        let mut stream = Stream::start(["--from", "-", "--key", "/k", "--to", &server.url("/")]);
        let mut input = stream.input.take().unwrap();
        std::io::Write::write_all(&mut input, numbers(0..5, 5).as_bytes()).unwrap();
        drop(input);
        stream.wait().expect(0);
    }
    let names: std::collections::BTreeSet<String> =
        server.requests().iter().map(|request| request.header("idempotency-key").to_owned()).collect();
    assert_eq!(names.len(), 10, "{names:?}");
}

#[test]
fn failed_record_is_posted_again_before_the_next() {
    let server = HttpServer::start(|request| Reply::Status(if request.earlier < 2 { 503 } else { 200 }));
    let folder = TempFolder::new();
    write_records(&folder, 60, 6);
    let ended = run(&folder, &server.url("/"), &[]).expect(0);
    assert!(ended.errors.contains("retried=120"), "{}", ended.errors);
    let done: Vec<String> =
        server.requests().into_iter().filter(|request| request.earlier == 2).map(|request| request.body).collect();
    assert_each_once_in_order(&done, 0..60);
    for body in &done {
        let names: Vec<_> = server.requests().into_iter().filter(|request| request.body == *body).collect();
        assert!(names.iter().all(|request| request.header("idempotency-key") == names[0].header("idempotency-key")));
    }
}

/// The retry delay of the stream is longer than the deadline of the test.
#[test]
fn retry_after_overrides_the_retry_delay() {
    const NOW: &[(&str, &str)] = &[("retry-after", "0")];
    let server = HttpServer::start(|request| match request.earlier {
        0 => Reply::With(429, NOW, "slow down"),
        _ => Reply::Status(200),
    });
    let folder = TempFolder::new();
    write_records(&folder, 5, 5);
    let file = folder.path("in.ndjson");
    Stream::run(["--from", &file, "--key", "/k", "--to", &server.url("/"), "--retry-wait", "1h"]).expect(0);
    assert_eq!(server.requests().len(), 10);
}

#[test]
fn rejected_record_is_dead_lettered_immediately() {
    let server = HttpServer::start(|request| match number(&request.body).1 {
        3 => Reply::With(422, &[], "no threes"),
        _ => Reply::Status(200),
    });
    let folder = TempFolder::new();
    write_records(&folder, 10, 2);
    let dead = folder.path("dead");
    run(&folder, &server.url("/"), &["--dead-letter", &dead]).expect(3);
    let mode = std::fs::metadata(&dead).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the file contains whole records");
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead").trim()).unwrap();
    assert_eq!(letter["attempts"], 1);
    assert!(letter["error"].as_str().unwrap().contains("422 Unprocessable Entity: no threes"), "{letter}");
    assert_eq!(server.requests().len(), 10);
}

#[test]
fn exhausted_attempts_stop_the_stream() {
    let server = HttpServer::start(|_| Reply::With(500, &[], "no disk"));
    let folder = TempFolder::new();
    write_records(&folder, 1, 1);
    let ended = run(&folder, &server.url("/"), &["--attempts", "3"]).expect(1);
    assert!(ended.errors.contains("500 Internal Server Error: no disk"), "{}", ended.errors);
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn request_timeout_is_retried() {
    let server = HttpServer::start(|request| if request.earlier == 0 { Reply::Silence } else { Reply::Status(200) });
    let folder = TempFolder::new();
    write_records(&folder, 4, 4);
    // A reply may be late on a busy machine, so that the number of attempts is not limited.
    run(&folder, &server.url("/"), &["--timeout", "1s", "--attempts", "0"]).expect(0);
    let mut answered: Vec<String> =
        server.requests().into_iter().filter(|request| request.earlier > 0).map(|request| request.body).collect();
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), 4);
}

/// Waiting for the end of the body would deliver the record repeatedly.
#[test]
fn status_decides_before_the_body_ends() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for socket in server.incoming() {
            let (mut socket, mut request) = (socket.unwrap(), Vec::new());
            while !request.ends_with(b"}") {
                let mut buffer = [0; 1024];
                let read = socket.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..read]);
            }
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").unwrap();
            open.push(socket);
        }
    });
    let folder = TempFolder::new();
    write_records(&folder, 1, 1);
    run(&folder, &url, &["--timeout", "30s", "--attempts", "1"]).expect(0);
}

#[test]
fn refused_connection_is_reported() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let folder = TempFolder::new();
    write_records(&folder, 3, 3);
    // The port is closed again.
    let ended = run(&folder, &format!("http://127.0.0.1:{port}/"), &["--attempts", "2"]).expect(1);
    assert!(ended.errors.contains("no answer") && ended.errors.contains("refused"), "{}", ended.errors);
}

#[test]
fn batch_has_records_of_one_key_in_order() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    write_records(&folder, 2_000, 4);
    run(&folder, &server.url("/"), &["--batch", "100", "--concurrency", "2"]).expect(0);
    let requests = server.requests();
    assert!(
        requests.len() < 2_000 && requests[0].header("content-type") == "application/x-ndjson",
        "{}",
        requests.len()
    );
    for request in &requests {
        let keys: std::collections::BTreeSet<String> = request.body.lines().map(|line| number(line).0).collect();
        assert_eq!(keys.len(), 1, "{}", request.body);
    }
    let lines: Vec<String> = requests.iter().flat_map(|request| request.body.lines()).map(str::to_owned).collect();
    assert_each_once_in_order(&lines, 0..2_000);
}

#[test]
fn credentials_in_the_url_become_a_header() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    write_records(&folder, 1, 1);
    run(&folder, &format!("http://me:pw@127.0.0.1:{}/", server.port), &[]).expect(0);
    assert_eq!(server.requests()[0].header("authorization"), "Basic bWU6cHc=");
}

#[test]
fn certificate_is_checked_with_the_system_roots() {
    let (folder, authority) = (TempFolder::new(), Authority::new());
    let server = HttpServer::start_tls(&authority.issue(&["localhost"]), |_| Reply::Status(200));
    write_records(&folder, 50, 5);
    let (file, url) = (folder.path("in.ndjson"), format!("https://localhost:{}/", server.port));
    let arguments = ["--from", &file, "--key", "/k", "--to", &url, "--retry-wait", "1ms", "--attempts", "3"];
    let ended = Stream::run(arguments).expect(1);
    assert!(ended.errors.contains("invalid peer certificate"), "{}", ended.errors);
    assert_eq!(server.requests().len(), 0);
    Stream::start_trusting(&authority.ca(), arguments).wait().expect(0);
    assert_each_once_in_order(&server.bodies(), 0..50);
}
