//! A web server as the sink: it takes, fails, asks for a wait, refuses, and is silent.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use tidegate_testkit::Authority;

use crate::process::{Ended, Folder, Stream, assert_each_once_in_order, number, numbers};
use crate::web::{Answer, Web};

fn run(folder: &Folder, url: &str, more: &[&str]) -> Ended {
    let file = folder.path("in.ndjson");
    let arguments = ["--from", &file, "--key", "/k", "--to", url, "--retry-wait", "1ms"];
    Stream::run(arguments.iter().chain(more))
}

fn first(folder: &Folder, count: u64, keys: u64) {
    folder.write("in.ndjson", &numbers(0..count, keys));
}

#[test]
fn every_record_is_posted_in_order_per_key_over_few_connections() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(204)));
    first(&folder, 1_000, 20);
    run(&folder, &web.url("/orders?x=1"), &["--concurrency", "8", "--header", "x-team=blue"]).expect(0);
    assert_each_once_in_order(&web.bodies(), 0..1_000);
    let seen = web.seen();
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("POST", "/orders"));
    assert_eq!((seen[0].header("content-type"), seen[0].header("x-team")), ("application/json", "blue"));
    let mut names: Vec<&str> = seen.iter().map(|seen| seen.header("idempotency-key")).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 1_000);
    assert!(web.connections() < 100, "{} connections", web.connections());
}

/// A server that knows the names of requests must not take the records of the next run for those of the last one.
#[test]
fn lines_of_standard_input_have_other_names_in_each_run() {
    let web = Web::start(|_| Answer::Status(200));
    for _ in 0..2 {
        let mut stream = Stream::start(["--from", "-", "--key", "/k", "--to", &web.url("/")]);
        let mut input = stream.input.take().unwrap();
        std::io::Write::write_all(&mut input, numbers(0..5, 5).as_bytes()).unwrap();
        drop(input);
        stream.wait().expect(0);
    }
    let names: std::collections::BTreeSet<String> =
        web.seen().iter().map(|seen| seen.header("idempotency-key").to_owned()).collect();
    assert_eq!(names.len(), 10, "{names:?}");
}

#[test]
fn a_record_that_failed_is_posted_again_before_its_successor() {
    let web = Web::start(|seen| Answer::Status(if seen.earlier < 2 { 503 } else { 200 }));
    let folder = Folder::new();
    first(&folder, 60, 6);
    let ended = run(&folder, &web.url("/"), &[]).expect(0);
    assert!(ended.errors.contains("retried=120"), "{}", ended.errors);
    let done: Vec<String> = web.seen().into_iter().filter(|seen| seen.earlier == 2).map(|seen| seen.body).collect();
    assert_each_once_in_order(&done, 0..60);
    for body in &done {
        let names: Vec<_> = web.seen().into_iter().filter(|seen| seen.body == *body).collect();
        assert!(names.iter().all(|seen| seen.header("idempotency-key") == names[0].header("idempotency-key")));
    }
}

/// The stream's own wait is so long that the test would not end in its time.
#[test]
fn the_wait_that_a_server_asks_for_goes_before_the_own() {
    const NOW: &[(&str, &str)] = &[("retry-after", "0")];
    let web = Web::start(|seen| match seen.earlier {
        0 => Answer::With(429, NOW, "slow down"),
        _ => Answer::Status(200),
    });
    let folder = Folder::new();
    first(&folder, 5, 5);
    let file = folder.path("in.ndjson");
    Stream::run(["--from", &file, "--key", "/k", "--to", &web.url("/"), "--retry-wait", "1h"]).expect(0);
    assert_eq!(web.seen().len(), 10);
}

#[test]
fn a_refused_record_goes_to_the_dead_letter_at_once_with_the_servers_words() {
    let web = Web::start(|seen| match number(&seen.body).1 {
        3 => Answer::With(422, &[], "no threes"),
        _ => Answer::Status(200),
    });
    let folder = Folder::new();
    first(&folder, 10, 2);
    let dead = folder.path("dead");
    run(&folder, &web.url("/"), &["--dead-letter", &dead]).expect(3);
    let mode = std::fs::metadata(&dead).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds whole records");
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead").trim()).unwrap();
    assert_eq!(letter["attempts"], 1);
    assert!(letter["error"].as_str().unwrap().contains("422 Unprocessable Entity: no threes"), "{letter}");
    assert_eq!(web.seen().len(), 10);
}

#[test]
fn attempts_end_and_the_stream_stops_with_the_reason() {
    let web = Web::start(|_| Answer::With(500, &[], "no disk"));
    let folder = Folder::new();
    first(&folder, 1, 1);
    let ended = run(&folder, &web.url("/"), &["--attempts", "3"]).expect(1);
    assert!(ended.errors.contains("500 Internal Server Error: no disk"), "{}", ended.errors);
    assert_eq!(web.seen().len(), 3);
}

#[test]
fn a_server_that_is_silent_is_given_up_and_asked_again() {
    let web = Web::start(|seen| if seen.earlier == 0 { Answer::Silence } else { Answer::Status(200) });
    let folder = Folder::new();
    first(&folder, 4, 4);
    // Under load an answer may come too late as well: it is asked again until one comes in time.
    run(&folder, &web.url("/"), &["--timeout", "1s", "--attempts", "0"]).expect(0);
    let mut answered: Vec<String> =
        web.seen().into_iter().filter(|seen| seen.earlier > 0).map(|seen| seen.body).collect();
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), 4);
}

/// Were its end waited for, the record would be sent again and again.
#[test]
fn a_status_decides_though_the_body_never_ends() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for socket in server.incoming() {
            let (mut socket, mut asked) = (socket.unwrap(), Vec::new());
            while !asked.ends_with(b"}") {
                let mut some = [0; 1024];
                let read = socket.read(&mut some).unwrap();
                asked.extend_from_slice(&some[..read]);
            }
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").unwrap();
            open.push(socket);
        }
    });
    let folder = Folder::new();
    first(&folder, 1, 1);
    run(&folder, &url, &["--timeout", "30s", "--attempts", "1"]).expect(0);
}

#[test]
fn a_server_that_is_not_there_is_said() {
    let port = {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        taken.local_addr().unwrap().port()
    };
    let folder = Folder::new();
    first(&folder, 3, 3);
    // Nobody listens on that port any more.
    let ended = run(&folder, &format!("http://127.0.0.1:{port}/"), &["--attempts", "2"]).expect(1);
    assert!(ended.errors.contains("no answer") && ended.errors.contains("refused"), "{}", ended.errors);
}

#[test]
fn a_batch_is_lines_of_one_key_in_their_order() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    first(&folder, 2_000, 4);
    run(&folder, &web.url("/"), &["--batch", "100", "--concurrency", "2"]).expect(0);
    let seen = web.seen();
    assert!(seen.len() < 2_000 && seen[0].header("content-type") == "application/x-ndjson", "{}", seen.len());
    for seen in &seen {
        let keys: std::collections::BTreeSet<String> = seen.body.lines().map(|line| number(line).0).collect();
        assert_eq!(keys.len(), 1, "{}", seen.body);
    }
    let lines: Vec<String> = seen.iter().flat_map(|seen| seen.body.lines()).map(str::to_owned).collect();
    assert_each_once_in_order(&lines, 0..2_000);
}

#[test]
fn a_login_in_the_url_becomes_a_header() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    first(&folder, 1, 1);
    run(&folder, &format!("http://me:pw@127.0.0.1:{}/", web.port), &[]).expect(0);
    assert_eq!(web.seen()[0].header("authorization"), "Basic bWU6cHc=");
}

#[test]
fn a_certificate_is_checked_against_the_authorities_of_the_machine() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let web = Web::start_tls(&authority.issue(&["localhost"]), |_| Answer::Status(200));
    first(&folder, 50, 5);
    let (file, url) = (folder.path("in.ndjson"), format!("https://localhost:{}/", web.port));
    let arguments = ["--from", &file, "--key", "/k", "--to", &url, "--retry-wait", "1ms", "--attempts", "3"];
    let ended = Stream::run(arguments).expect(1);
    assert!(ended.errors.contains("invalid peer certificate"), "{}", ended.errors);
    assert_eq!(web.seen().len(), 0);
    Stream::start_trusting(&authority.ca(), arguments).wait().expect(0);
    assert_each_once_in_order(&web.bodies(), 0..50);
}
