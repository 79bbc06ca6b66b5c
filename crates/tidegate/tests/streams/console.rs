//! STREAM commands on the console, and reloads. No test here needs Postgres.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_testkit::{Frames, Gateway};

use crate::http_server::{HttpServer, Reply};
use crate::process::{TempFolder, assert_each_once_in_order, eventually, http_get, number, numbers};

/// A gateway with these streams, and an unused database.
fn gateway(streams: &str) -> Gateway {
    let base = "[auth]\nmethod = \"trust\"\n[admin]\nusers = [\"postgres\"]\n\
                [databases.none]\nhost = \"127.0.0.1\"\nport = 1\n";
    Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &format!("{base}{streams}"))
}

/// Replaces the streams in the configuration file, without a reload.
fn rewrite(gateway: &Gateway, streams: &str) {
    let file = gateway.config_file();
    let mut config: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    let mut written: toml::Table = streams.parse().unwrap();
    config.remove("streams");
    config.extend(written.remove("streams").map(|streams| ("streams".to_owned(), streams)));
    std::fs::write(file, config.to_string()).unwrap();
}

/// A section `[[streams]]` that follows a file.
fn section(name: &str, file: &str, to: &str, more: &str) -> String {
    format!(
        "[[streams]]\nname = \"{name}\"\nfrom = \"{file}\"\nto = \"{to}\"\nkey = \"/k\"\nfollow = true\n\
         retry_wait = \"1ms\"\n{more}\n"
    )
}

fn row(gateway: &Gateway, name: &str) -> BTreeMap<String, String> {
    let streams = gateway.show("STREAMS");
    streams.into_iter().find(|stream| stream["name"] == name).unwrap_or_else(|| panic!("no stream {name}"))
}

#[track_caller]
fn wait_for(gateway: &Gateway, name: &str, column: &str, value: &str) {
    eventually(&format!("{column} of {name} becomes {value}"), || row(gateway, name)[column] == value);
}

#[track_caller]
fn setting(gateway: &Gateway, key: &str) -> String {
    let rows = gateway.show("CONFIG");
    rows.iter().find(|row| row["key"] == key).map(|row| row["value"].clone()).unwrap_or_default()
}

#[test]
fn paused_stream_starts_no_record() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    let gateway = gateway(&section("orders", &file, &server.url("/"), ""));
    wait_for(&gateway, "orders", "done", "10");
    let mut console = gateway.console();
    assert_eq!(console.ok("STREAM PAUSE orders").tags, ["STREAM"]);
    assert_eq!(row(&gateway, "orders")["state"], "paused");
    folder.append("in", &numbers(10..20, 3));
    // The source is still read.
    wait_for(&gateway, "orders", "pending", "10");
    assert_eq!((server.requests().len(), row(&gateway, "orders")["in_flight"].as_str()), (10, "0"));
    console.ok("STREAM RESUME orders");
    wait_for(&gateway, "orders", "done", "20");
    assert_eq!(row(&gateway, "orders")["state"], "running");
    assert_each_once_in_order(&server.bodies(), 0..20);
}

#[test]
fn pause_waits_for_records_in_flight() {
    let folder = TempFolder::new();
    let file = folder.write("in", &numbers(0..5, 1));
    // Each record waits until the file `go` exists.
    let sink = folder.script(
        "sink.sh",
        "cd \"$(dirname \"$0\")\"; while read -r line; do echo begun >> begun\n\
         while [ ! -e go ]; do sleep 0.02; done; echo \"$line\" >> out; echo ok; done\n",
    );
    let gateway = gateway(&section("orders", &file, &sink, "processes = 1"));
    eventually("a record is in flight", || folder.read("begun") == "begun\n");
    let mut console = gateway.console();
    console.send(&Frames::new().query("STREAM PAUSE orders"));
    wait_for(&gateway, "orders", "state", "paused");
    assert!(!console.has_input());
    folder.write("go", "");
    console.expect("C:STREAM Z:I");
    // Only the record in flight is delivered.
    assert_eq!(folder.read("out").lines().count(), 1);
    wait_for(&gateway, "orders", "pending", "4");
    console.ok("STREAM RESUME");
    wait_for(&gateway, "orders", "done", "5");
}

#[test]
fn stopped_stream_continues_at_its_commit() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    let file = folder.write("in", &numbers(0..300, 7));
    let checkpoint = format!("checkpoint = \"{}\"", folder.path("done"));
    let gateway = gateway(&section("orders", &file, &server.url("/"), &checkpoint));
    eventually("some records arrive", || server.requests().len() > 20);
    let mut console = gateway.console();
    console.ok("STREAM STOP orders");
    assert_eq!(row(&gateway, "orders")["state"], "stopped");
    let seen = server.requests().len();
    folder.append("in", &numbers(300..320, 7));
    // A reload does not start a stream that was stopped on the console.
    console.ok("RELOAD; STREAM STOP orders");
    assert_eq!((server.requests().len(), row(&gateway, "orders")["state"].as_str()), (seen, "stopped"));
    // The second START has no effect.
    console.ok("STREAM START orders; STREAM START orders");
    wait_for(&gateway, "orders", "done", "320");
    console.ok("STREAM START");
    assert_eq!(row(&gateway, "orders")["restarts"], "1");
    assert_each_once_in_order(&server.bodies(), 0..320);
}

#[test]
fn ended_stream_is_started_again() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    let mut gateway =
        gateway(&section("orders", &file, &server.url("/"), "").replace("follow = true", "follow = false"));
    wait_for(&gateway, "orders", "state", "ended");
    gateway.console().ok("STREAM START orders");
    wait_for(&gateway, "orders", "done", "20");
    wait_for(&gateway, "orders", "state", "ended");
    // An ended stream does not delay the shutdown.
    gateway.signal(tidegate_testkit::Signal::TERM);
    assert!(gateway.wait().success(), "{}", gateway.log());
}

#[test]
fn stream_in_restart_delay_is_stopped_immediately() {
    let folder = TempFolder::new();
    let file = folder.write("in", &numbers(0..10, 3));
    let more = "sql = \"insert into t values ($1)\"\nparams = [\"/n\"]";
    let gateway = gateway(&section("orders", &file, "postgres://me@127.0.0.1:1/x", more));
    wait_for(&gateway, "orders", "state", "waiting");
    let mut console = gateway.console();
    console.ok("STREAM STOP orders");
    assert_eq!(row(&gateway, "orders")["state"], "stopped");
    let restarts: u64 = row(&gateway, "orders")["restarts"].parse().unwrap();
    console.ok("STREAM START orders");
    eventually("the stream is started", || row(&gateway, "orders")["restarts"].parse::<u64>().unwrap() > restarts);
    assert!(row(&gateway, "orders")["last_error"].contains("127.0.0.1:1"));
}

#[test]
fn unpark_resumes_the_records_of_a_key() {
    let (folder, is_repaired) = (TempFolder::new(), Arc::new(AtomicBool::new(false)));
    let repaired = Arc::clone(&is_repaired);
    let server = HttpServer::start(move |request| {
        let is_good = number(&request.body).0 != "k1" || repaired.load(Ordering::SeqCst);
        if is_good { Reply::Status(200) } else { Reply::With(503, &[], "k1 is down") }
    });
    let file = folder.write("in", &numbers(0..30, 3));
    let more = "attempts = 2\nexhausted = \"park\"";
    let gateway = gateway(&section("orders", &file, &server.url("/"), more));
    // Other keys continue, and later records of the key wait.
    wait_for(&gateway, "orders", "parked", "10");
    wait_for(&gateway, "orders", "done", "20");
    assert!(row(&gateway, "orders")["last_error"].contains("k1 is down"));
    eventually("the log names the key", || {
        let log = gateway.log();
        log.contains("key parked") && log.contains("key=k1")
    });
    is_repaired.store(true, Ordering::SeqCst);
    let mut console = gateway.console();
    let attempts = || server.bodies().iter().filter(|body| number(body).1 == 1).count();
    assert_eq!(attempts(), 2);
    console.ok("STREAM UNPARK orders k2");
    console.ok("STREAM UNPARK orders 'k1'");
    wait_for(&gateway, "orders", "done", "30");
    wait_for(&gateway, "orders", "parked", "0");
    let mut last: Vec<String> = server.bodies();
    last.reverse();
    let mut seen = std::collections::BTreeSet::new();
    last.retain(|body| seen.insert(body.clone()));
    last.reverse();
    assert_each_once_in_order(&last, 0..30);
    assert_eq!(console.query("STREAM STOP orders; STREAM UNPARK orders").code(), "55000");
}

#[test]
fn unpark_without_a_key_resumes_all_keys() {
    let (folder, is_repaired) = (TempFolder::new(), Arc::new(AtomicBool::new(false)));
    let repaired = Arc::clone(&is_repaired);
    let status = move || if repaired.load(Ordering::SeqCst) { 200 } else { 500 };
    let server = HttpServer::start(move |_| Reply::Status(status()));
    let file = folder.write("in", &numbers(0..30, 3));
    let gateway = gateway(&section("orders", &file, &server.url("/"), "attempts = 1\nexhausted = \"park\""));
    wait_for(&gateway, "orders", "parked", "30");
    is_repaired.store(true, Ordering::SeqCst);
    gateway.console().ok("STREAM UNPARK orders");
    wait_for(&gateway, "orders", "done", "30");
    // A stop does not wait for parked records, which are delivered again after the next start.
    is_repaired.store(false, Ordering::SeqCst);
    folder.append("in", &numbers(30..33, 3));
    wait_for(&gateway, "orders", "parked", "3");
    gateway.console().ok("STREAM STOP orders");
    assert_eq!(row(&gateway, "orders")["state"], "stopped");
}

#[test]
fn set_changes_limits_of_a_running_stream() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Silence));
    let file = folder.write("in", &numbers(0..20, 20));
    let gateway = gateway(&section("orders", &file, &server.url("/"), "concurrency = 1\ndrain = \"100ms\""));
    wait_for(&gateway, "orders", "in_flight", "1");
    let mut console = gateway.console();
    console.ok("SET streams.orders.concurrency = 3");
    wait_for(&gateway, "orders", "in_flight", "3");
    console.ok("SET streams.orders.concurrency = 20; SET streams.orders.rate = 1000");
    wait_for(&gateway, "orders", "in_flight", "20");
    let now = |key: &str| setting(&gateway, &format!("streams.orders.{key}"));
    assert_eq!((now("concurrency").as_str(), now("rate").as_str()), ("20", "1000"));
    console.ok("RELOAD");
    assert_eq!((now("concurrency").as_str(), now("rate").as_str()), ("1", "0"));
    assert_eq!(row(&gateway, "orders")["restarts"], "0");
    for (command, text) in [
        ("SET streams.orders.concurrency = 0", "write a number from 1"),
        ("SET streams.orders.to = '-'", "SET changes only rate, concurrency"),
        ("SET streams.others.rate = 1", "there is no stream others"),
    ] {
        let error = console.query(command).error.unwrap();
        assert!(error.message.contains(text), "{command}: {error:?}");
    }
}

#[test]
fn reload_starts_stops_and_changes_streams() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    let seen_at = |path: &str| -> Vec<String> {
        server.requests().into_iter().filter(|request| request.path == path).map(|request| request.body).collect()
    };
    let files = ["a", "b", "c"].map(|name| folder.write(name, &numbers(0..10, 3)));
    let stream = |name: &str, file: &str, path: &str, more: &str| {
        let checkpoint = format!("checkpoint = \"{}\"\n{more}", folder.path(&format!("{name}-done")));
        section(name, file, &server.url(path), &checkpoint)
    };
    let gateway = gateway(&format!("{}{}", stream("a", &files[0], "/a", ""), stream("b", &files[1], "/b", "")));
    wait_for(&gateway, "a", "done", "10");
    wait_for(&gateway, "b", "done", "10");
    // Changes the sink of the first, a limit of the second, and adds the third.
    let changed = [
        stream("a", &files[0], "/elsewhere", ""),
        stream("b", &files[1], "/b", "concurrency = 2\n"),
        stream("c", &files[2], "/c", ""),
    ];
    rewrite(&gateway, &changed.concat());
    gateway.console().ok("RELOAD");
    wait_for(&gateway, "c", "done", "10");
    wait_for(&gateway, "a", "restarts", "1");
    wait_for(&gateway, "a", "state", "running");
    for name in ["a", "b"] {
        folder.append(name, &numbers(10..20, 3));
        wait_for(&gateway, name, "done", "20");
    }
    assert_eq!(row(&gateway, "b")["restarts"], "0");
    assert_each_once_in_order(&seen_at("/a"), 0..10);
    assert_each_once_in_order(&seen_at("/elsewhere"), 10..20);
    assert_each_once_in_order(&seen_at("/b"), 0..20);
    // Removes all streams and adds one again, which continues at its checkpoint.
    rewrite(&gateway, "");
    gateway.console().ok("RELOAD");
    eventually("all streams are removed", || gateway.show("STREAMS").is_empty());
    folder.append("a", &numbers(20..30, 3));
    rewrite(&gateway, &stream("a", &files[0], "/back", ""));
    gateway.console().ok("RELOAD");
    wait_for(&gateway, "a", "done", "30");
    assert_each_once_in_order(&seen_at("/back"), 20..30);
    assert!(!gateway.log().contains("needs a restart"), "{}", gateway.log());
}

#[test]
fn reload_adds_the_first_stream() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    let mut gateway = gateway("");
    assert!(gateway.show("STREAMS").is_empty());
    rewrite(&gateway, &section("orders", &file, &server.url("/"), ""));
    gateway.signal(tidegate_testkit::Signal::HUP);
    eventually("the records arrive", || server.requests().len() == 10);
    // A stream that cannot run in a gateway makes the reload fail.
    rewrite(&gateway, &section("orders", "-", "-", "").replace("follow = true\n", ""));
    let error = gateway.console().query("RELOAD").error.unwrap();
    assert!(error.code == "F0000" && error.message.contains("reads standard input"), "{error:?}");
    assert_eq!(row(&gateway, "orders")["state"], "running");
    gateway.signal(tidegate_testkit::Signal::TERM);
    assert!(gateway.wait().success(), "{}", gateway.log());
}

#[test]
fn reload_restarts_a_failed_stream_that_changed() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(422)));
    let file = folder.write("in", &numbers(0..10, 3));
    let gateway = gateway(&section("orders", &file, &server.url("/"), ""));
    wait_for(&gateway, "orders", "state", "failed");
    gateway.console().ok("RELOAD");
    assert_eq!(row(&gateway, "orders")["state"], "failed");
    rewrite(&gateway, &section("orders", &file, &server.url("/"), "exhausted = \"skip\""));
    gateway.console().ok("RELOAD");
    wait_for(&gateway, "orders", "skipped", "10");
    wait_for(&gateway, "orders", "state", "running");
}

#[test]
fn command_on_an_unknown_stream_is_an_error() {
    let gateway = gateway("");
    let mut console = gateway.console();
    for command in ["STREAM STOP orders", "STREAM UNPARK orders k", "STREAM PAUSE 'no such'"] {
        let error = console.query(command).error.unwrap();
        assert_eq!(error.code, "42704", "{command}: {error:?}");
    }
    // Commands on all streams succeed without streams.
    console.ok("STREAM STOP; STREAM START; STREAM PAUSE; STREAM RESUME");
}

#[test]
fn metrics_include_streams() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    // The range of ports is used by this test alone.
    let address = tidegate_testkit::free_address(9_100..10_000);
    let metrics = format!("[metrics]\naddresses = [\"{address}\"]\n{}", section("orders", &file, &server.url("/"), ""));
    let gateway = gateway(&metrics);
    wait_for(&gateway, "orders", "done", "10");
    let page = http_get(address, "/metrics");
    for line in [
        "tidegate_stream_state{name=\"orders\",state=\"running\"} 1",
        "# TYPE tidegate_stream_done_total counter",
        "tidegate_stream_done_total{name=\"orders\"} 10",
        "tidegate_stream_restarts_total{name=\"orders\"} 0",
    ] {
        assert!(page.lines().any(|known| known == line), "no {line}:\n{page}");
    }
}

/// An unwritable dead-letter queue is reported.
#[test]
fn refused_dead_letter_is_shown() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(422)));
    let file = folder.write("in", &numbers(0..1, 1));
    let gateway = gateway(&section("orders", &file, &server.url("/"), "dead_letter = \"/dev/full\""));
    eventually("the refusal is shown", || row(&gateway, "orders")["last_error"].contains("dead letter refuses"));
    let row = row(&gateway, "orders");
    assert_eq!((row["state"].as_str(), row["dead_lettered"].as_str(), row["done"].as_str()), ("running", "0", "0"));
}
