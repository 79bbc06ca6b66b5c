//! Streams of a gateway under the orders of its console, and under a reload. No Postgres is asked for anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_testkit::{Frames, Gateway};

use crate::process::{Folder, assert_each_once_in_order, eventually, number, numbers};
use crate::web::{Answer, Web};

/// A gateway with these streams, and a database that nobody asks for.
fn gateway(streams: &str) -> Gateway {
    let base = "[auth]\nmethod = \"trust\"\n[admin]\nusers = [\"postgres\"]\n\
                [databases.none]\nhost = \"127.0.0.1\"\nport = 1\n";
    Gateway::start(env!("CARGO_BIN_EXE_tidegate"), &format!("{base}{streams}"))
}

/// Puts other streams into its file; it is not told.
fn rewrite(gateway: &Gateway, streams: &str) {
    let file = gateway.config_file();
    let mut config: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    let mut written: toml::Table = streams.parse().unwrap();
    config.remove("streams");
    config.extend(written.remove("streams").map(|streams| ("streams".to_owned(), streams)));
    std::fs::write(file, config.to_string()).unwrap();
}

/// `[[streams]]` of a file that is followed.
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
fn becomes(gateway: &Gateway, name: &str, column: &str, value: &str) {
    eventually(&format!("{column} of {name} becomes {value}"), || row(gateway, name)[column] == value);
}

#[track_caller]
fn setting(gateway: &Gateway, key: &str) -> String {
    let rows = gateway.show("CONFIG");
    rows.iter().find(|row| row["key"] == key).map(|row| row["value"].clone()).unwrap_or_default()
}

#[test]
fn a_paused_stream_begins_nothing_until_it_is_resumed() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    let gateway = gateway(&section("orders", &file, &web.url("/"), ""));
    becomes(&gateway, "orders", "done", "10");
    let mut console = gateway.console();
    assert_eq!(console.ok("STREAM PAUSE orders").tags, ["STREAM"]);
    assert_eq!(row(&gateway, "orders")["state"], "paused");
    folder.append("in", &numbers(10..20, 3));
    // It is read all the same.
    becomes(&gateway, "orders", "pending", "10");
    assert_eq!((web.seen().len(), row(&gateway, "orders")["in_flight"].as_str()), (10, "0"));
    console.ok("STREAM RESUME orders");
    becomes(&gateway, "orders", "done", "20");
    assert_eq!(row(&gateway, "orders")["state"], "running");
    assert_each_once_in_order(&web.bodies(), 0..20);
}

#[test]
fn a_pause_returns_when_nothing_is_under_way() {
    let folder = Folder::new();
    let file = folder.write("in", &numbers(0..5, 1));
    // Each record waits until it may.
    let sink = folder.script(
        "sink.sh",
        "cd \"$(dirname \"$0\")\"; while read -r line; do echo begun >> begun\n\
         while [ ! -e go ]; do sleep 0.02; done; echo \"$line\" >> out; echo ok; done\n",
    );
    let gateway = gateway(&section("orders", &file, &sink, "processes = 1"));
    eventually("a record is under way", || folder.read("begun") == "begun\n");
    let mut console = gateway.console();
    console.send(&Frames::new().query("STREAM PAUSE orders"));
    becomes(&gateway, "orders", "state", "paused");
    assert!(!console.anything_arrived());
    folder.write("go", "");
    console.expect("C:STREAM Z:I");
    // The one that was under way, and no other.
    assert_eq!(folder.read("out").lines().count(), 1);
    becomes(&gateway, "orders", "pending", "4");
    console.ok("STREAM RESUME");
    becomes(&gateway, "orders", "done", "5");
}

#[test]
fn a_stopped_stream_has_committed_what_it_did_and_goes_on_from_there() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    let file = folder.write("in", &numbers(0..300, 7));
    let checkpoint = format!("checkpoint = \"{}\"", folder.path("done"));
    let gateway = gateway(&section("orders", &file, &web.url("/"), &checkpoint));
    eventually("some arrive", || web.seen().len() > 20);
    let mut console = gateway.console();
    console.ok("STREAM STOP orders");
    assert_eq!(row(&gateway, "orders")["state"], "stopped");
    let seen = web.seen().len();
    folder.append("in", &numbers(300..320, 7));
    // A reload does not start what an operator has stopped.
    console.ok("RELOAD; STREAM STOP orders");
    assert_eq!((web.seen().len(), row(&gateway, "orders")["state"].as_str()), (seen, "stopped"));
    // Once started, to start it again changes nothing.
    console.ok("STREAM START orders; STREAM START orders");
    becomes(&gateway, "orders", "done", "320");
    console.ok("STREAM START");
    assert_eq!(row(&gateway, "orders")["restarts"], "1");
    assert_each_once_in_order(&web.bodies(), 0..320);
}

#[test]
fn a_stream_that_has_ended_is_started_again_by_an_order() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    let mut gateway = gateway(&section("orders", &file, &web.url("/"), "").replace("follow = true", "follow = false"));
    becomes(&gateway, "orders", "state", "ended");
    gateway.console().ok("STREAM START orders");
    becomes(&gateway, "orders", "done", "20");
    becomes(&gateway, "orders", "state", "ended");
    // It does not hold up the end.
    gateway.signal(tidegate_testkit::Signal::TERM);
    assert!(gateway.wait().success(), "{}", gateway.log());
}

#[test]
fn a_stream_that_waits_to_be_started_again_is_stopped_at_once() {
    let folder = Folder::new();
    let file = folder.write("in", &numbers(0..10, 3));
    let more = "sql = \"insert into t values ($1)\"\nparams = [\"/n\"]";
    let gateway = gateway(&section("orders", &file, "postgres://me@127.0.0.1:1/x", more));
    becomes(&gateway, "orders", "state", "waiting");
    let mut console = gateway.console();
    console.ok("STREAM STOP orders");
    assert_eq!(row(&gateway, "orders")["state"], "stopped");
    let restarts: u64 = row(&gateway, "orders")["restarts"].parse().unwrap();
    console.ok("STREAM START orders");
    eventually("it was started", || row(&gateway, "orders")["restarts"].parse::<u64>().unwrap() > restarts);
    assert!(row(&gateway, "orders")["last_error"].contains("127.0.0.1:1"));
}

#[test]
fn parked_records_go_on_when_their_key_is_unparked() {
    let (folder, is_mended) = (Folder::new(), Arc::new(AtomicBool::new(false)));
    let mended = Arc::clone(&is_mended);
    let web = Web::start(move |seen| {
        let is_good = number(&seen.body).0 != "k1" || mended.load(Ordering::SeqCst);
        if is_good { Answer::Status(200) } else { Answer::With(503, &[], "k1 is down") }
    });
    let file = folder.write("in", &numbers(0..30, 3));
    let more = "attempts = 2\nexhausted = \"park\"";
    let gateway = gateway(&section("orders", &file, &web.url("/"), more));
    // All other keys go on, whatever comes behind it waits.
    becomes(&gateway, "orders", "parked", "10");
    becomes(&gateway, "orders", "done", "20");
    assert!(row(&gateway, "orders")["last_error"].contains("k1 is down"));
    eventually("the log names the key", || {
        let log = gateway.log();
        log.contains("its key is parked") && log.contains("key=k1")
    });
    is_mended.store(true, Ordering::SeqCst);
    let mut console = gateway.console();
    let tried = || web.bodies().iter().filter(|body| number(body).1 == 1).count();
    assert_eq!(tried(), 2);
    console.ok("STREAM UNPARK orders k2");
    console.ok("STREAM UNPARK orders 'k1'");
    becomes(&gateway, "orders", "done", "30");
    becomes(&gateway, "orders", "parked", "0");
    let mut last: Vec<String> = web.bodies();
    last.reverse();
    let mut seen = std::collections::BTreeSet::new();
    last.retain(|body| seen.insert(body.clone()));
    last.reverse();
    assert_each_once_in_order(&last, 0..30);
    assert_eq!(console.query("STREAM STOP orders; STREAM UNPARK orders").code(), "55000");
}

#[test]
fn all_parked_keys_go_on_together() {
    let (folder, is_mended) = (Folder::new(), Arc::new(AtomicBool::new(false)));
    let mended = Arc::clone(&is_mended);
    let status = move || if mended.load(Ordering::SeqCst) { 200 } else { 500 };
    let web = Web::start(move |_| Answer::Status(status()));
    let file = folder.write("in", &numbers(0..30, 3));
    let gateway = gateway(&section("orders", &file, &web.url("/"), "attempts = 1\nexhausted = \"park\""));
    becomes(&gateway, "orders", "parked", "30");
    is_mended.store(true, Ordering::SeqCst);
    gateway.console().ok("STREAM UNPARK orders");
    becomes(&gateway, "orders", "done", "30");
    // Whoever stops a stream expects its parked records to come again.
    is_mended.store(false, Ordering::SeqCst);
    folder.append("in", &numbers(30..33, 3));
    becomes(&gateway, "orders", "parked", "3");
    gateway.console().ok("STREAM STOP orders");
    assert_eq!(row(&gateway, "orders")["state"], "stopped");
}

#[test]
fn limits_change_while_a_stream_runs() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Silence));
    let file = folder.write("in", &numbers(0..20, 20));
    let gateway = gateway(&section("orders", &file, &web.url("/"), "concurrency = 1\ndrain = \"100ms\""));
    becomes(&gateway, "orders", "in_flight", "1");
    let mut console = gateway.console();
    console.ok("SET streams.orders.concurrency = 3");
    becomes(&gateway, "orders", "in_flight", "3");
    console.ok("SET streams.orders.concurrency = 20; SET streams.orders.rate = 1000");
    becomes(&gateway, "orders", "in_flight", "20");
    let now = |key: &str| setting(&gateway, &format!("streams.orders.{key}"));
    assert_eq!((now("concurrency").as_str(), now("rate").as_str()), ("20", "1000"));
    console.ok("RELOAD");
    assert_eq!((now("concurrency").as_str(), now("rate").as_str()), ("1", ""));
    assert_eq!(row(&gateway, "orders")["restarts"], "0");
    for (order, words) in [
        ("SET streams.orders.concurrency = 0", "write a number from 1"),
        ("SET streams.orders.to = '-'", "SET changes rate, concurrency"),
        ("SET streams.others.rate = 1", "there is no stream others"),
    ] {
        let error = console.query(order).error.unwrap();
        assert!(error.message.contains(words), "{order}: {error:?}");
    }
}

#[test]
fn a_reload_starts_ends_and_changes_streams() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    let seen_at = |path: &str| -> Vec<String> {
        web.seen().into_iter().filter(|seen| seen.path == path).map(|seen| seen.body).collect()
    };
    let files = ["a", "b", "c"].map(|name| folder.write(name, &numbers(0..10, 3)));
    let stream = |name: &str, file: &str, path: &str, more: &str| {
        let checkpoint = format!("checkpoint = \"{}\"\n{more}", folder.path(&format!("{name}-done")));
        section(name, file, &web.url(path), &checkpoint)
    };
    let gateway = gateway(&format!("{}{}", stream("a", &files[0], "/a", ""), stream("b", &files[1], "/b", "")));
    becomes(&gateway, "a", "done", "10");
    becomes(&gateway, "b", "done", "10");
    // One goes elsewhere, one gets another limit, one is new.
    let changed = [
        stream("a", &files[0], "/elsewhere", ""),
        stream("b", &files[1], "/b", "concurrency = 2\n"),
        stream("c", &files[2], "/c", ""),
    ];
    rewrite(&gateway, &changed.concat());
    gateway.console().ok("RELOAD");
    becomes(&gateway, "c", "done", "10");
    becomes(&gateway, "a", "restarts", "1");
    becomes(&gateway, "a", "state", "running");
    for name in ["a", "b"] {
        folder.append(name, &numbers(10..20, 3));
        becomes(&gateway, name, "done", "20");
    }
    assert_eq!(row(&gateway, "b")["restarts"], "0");
    assert_each_once_in_order(&seen_at("/a"), 0..10);
    assert_each_once_in_order(&seen_at("/elsewhere"), 10..20);
    assert_each_once_in_order(&seen_at("/b"), 0..20);
    // None is left; one comes back, and goes on where it was.
    rewrite(&gateway, "");
    gateway.console().ok("RELOAD");
    eventually("all are gone", || gateway.show("STREAMS").is_empty());
    folder.append("a", &numbers(20..30, 3));
    rewrite(&gateway, &stream("a", &files[0], "/back", ""));
    gateway.console().ok("RELOAD");
    becomes(&gateway, "a", "done", "30");
    assert_each_once_in_order(&seen_at("/back"), 20..30);
    assert!(!gateway.log().contains("needs a restart"), "{}", gateway.log());
}

#[test]
fn a_gateway_without_streams_gets_its_first_one_by_a_reload() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    let mut gateway = gateway("");
    assert!(gateway.show("STREAMS").is_empty());
    rewrite(&gateway, &section("orders", &file, &web.url("/"), ""));
    gateway.signal(tidegate_testkit::Signal::HUP);
    eventually("they arrive", || web.seen().len() == 10);
    // What cannot run beside a gateway changes nothing.
    rewrite(&gateway, &section("orders", "-", "-", "").replace("follow = true\n", ""));
    let error = gateway.console().query("RELOAD").error.unwrap();
    assert!(error.code == "F0000" && error.message.contains("reads standard input"), "{error:?}");
    assert_eq!(row(&gateway, "orders")["state"], "running");
    gateway.signal(tidegate_testkit::Signal::TERM);
    assert!(gateway.wait().success(), "{}", gateway.log());
}

#[test]
fn a_stream_that_failed_is_tried_again_when_its_description_has_changed() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(422)));
    let file = folder.write("in", &numbers(0..10, 3));
    let gateway = gateway(&section("orders", &file, &web.url("/"), ""));
    becomes(&gateway, "orders", "state", "failed");
    gateway.console().ok("RELOAD");
    assert_eq!(row(&gateway, "orders")["state"], "failed");
    rewrite(&gateway, &section("orders", &file, &web.url("/"), "exhausted = \"skip\""));
    gateway.console().ok("RELOAD");
    becomes(&gateway, "orders", "skipped", "10");
    becomes(&gateway, "orders", "state", "running");
}

#[test]
fn an_order_names_a_stream_that_there_is() {
    let gateway = gateway("");
    let mut console = gateway.console();
    for order in ["STREAM STOP orders", "STREAM UNPARK orders k", "STREAM PAUSE 'no such'"] {
        let error = console.query(order).error.unwrap();
        assert_eq!(error.code, "42704", "{order}: {error:?}");
    }
    // For all of them is for none.
    console.ok("STREAM STOP; STREAM START; STREAM PAUSE; STREAM RESUME");
}

#[test]
fn figures_of_streams_are_among_the_metrics() {
    use std::io::{Read as _, Write as _};
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    let file = folder.write("in", &numbers(0..10, 3));
    // A range of its own: nobody but this test takes ports there.
    let address = tidegate_testkit::free_address(9_100..10_000);
    let metrics = format!("[metrics]\naddresses = [\"{address}\"]\n{}", section("orders", &file, &web.url("/"), ""));
    let gateway = gateway(&metrics);
    becomes(&gateway, "orders", "done", "10");
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    write!(socket, "GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    for line in [
        "tidegate_stream_state{name=\"orders\",state=\"running\"} 1",
        "# TYPE tidegate_stream_done_total counter",
        "tidegate_stream_done_total{name=\"orders\"} 10",
        "tidegate_stream_restarts_total{name=\"orders\"} 0",
    ] {
        assert!(page.lines().any(|known| known == line), "no {line}:\n{page}");
    }
}
