//! Dead letters that are delivered again, with URLs and headers from their records.

use crate::http_server::{HttpServer, Reply};
use crate::process::{Stream, TempFolder, numbers};

#[test]
fn dead_letters_are_delivered_again() {
    let (folder, refusing) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(422)));
    let (file, dead) = (folder.write("in.ndjson", &numbers(0..20, 4)), folder.path("dead"));
    let arguments = ["--from", &file, "--key", "/k", "--to", &refusing.url("/"), "--dead-letter", &dead];
    Stream::run(arguments).expect(3);
    assert_eq!(folder.read("dead").lines().count(), 20);
    let accepting = HttpServer::start(|_| Reply::Status(200));
    let (again, done) = (folder.path("dead-again"), folder.path("done"));
    let redrive = ["--from", &dead, "--redrive", "--key", "/k", "--to", &accepting.url("/"), "--dead-letter", &again];
    Stream::run(redrive.iter().chain(&["--checkpoint", &done])).expect(0);
    crate::process::assert_each_once_in_order(&sorted(accepting.bodies()), 0..20);
    let lines = Stream::run(["--from", &file, "--redrive", "--key", "/k", "--to", "-"]).expect(1);
    assert!(lines.errors.contains("not a dead letter"), "{}", lines.errors);
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_by_key(|line| crate::process::number(line).1);
    lines
}

#[test]
fn url_and_headers_come_from_the_record() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    let letter = |key: &str, headers: &str| {
        format!("{{\"attempts\":1,\"key\":\"{key}\",\"headers\":{headers},\"value\":{{\"n\":7}}}}\n")
    };
    let text = letter("a b", "[[\"trace\",\"1\"],[\"other\",\"2\"]]") + &letter("..", "[]");
    let (file, dead) = (folder.write("dead", &text), folder.path("again"));
    let url = server.url("/orders/{key}/{/n}");
    let arguments = ["--from", &file, "--redrive", "--to", &url, "--record-header", "Trace", "--dead-letter", &dead];
    Stream::run(arguments).expect(3);
    let requests = server.requests();
    assert_eq!(requests.len(), 1, "a key of two dots would change the path");
    assert_eq!((requests[0].path.as_str(), requests[0].header("trace")), ("/orders/a%20b/7", "1"));
    assert_eq!(requests[0].header("other"), "");
    assert!(folder.read("again").contains("its `key` cannot be a part of a URL"), "{}", folder.read("again"));
}
