//! Keys of `[[streams]]` on quotas, rates, attempts and exhausted records, with a configuration file each.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::http_server::{HttpServer, Reply};
use crate::process::{Stream, StreamOutput, TempFolder, assert_each_once_in_order, eventually, number, numbers};

/// A configuration file with one stream, which reads the file `in` of the folder.
fn config(folder: &TempFolder, to: &str, more: &str) -> String {
    let from = folder.path("in");
    let text = format!(
        "[[streams]]\nname = \"orders\"\nfrom = \"{from}\"\nto = \"{to}\"\nkey = \"/k\"\nretry_wait = \"1ms\"\n{more}\n"
    );
    folder.write("tidegate.toml", &text)
}

fn run(folder: &TempFolder, to: &str, more: &str) -> StreamOutput {
    Stream::run(["-c", &config(folder, to, more)])
}

/// A server that answers number 3 with this status, and accepts all others.
fn server_failing_three(status: u16) -> HttpServer {
    HttpServer::start(move |request| Reply::Status(if number(&request.body).1 == 3 { status } else { 200 }))
}

fn letter(folder: &TempFolder) -> serde_json::Value {
    serde_json::from_str(folder.read("dead").trim()).unwrap()
}

#[test]
fn key_above_its_quota_waits_alone() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    folder.write("in", &numbers(0..50, 5));
    // The window is longer than the test.
    let more = "follow = true\nquota = 2\nquota_window = \"1h\"\ndrain = \"200ms\"";
    let stream = Stream::start(["-c", &config(&folder, &server.url("/"), more)]);
    eventually("two records of each key arrive", || server.requests().len() == 10);
    // Later records of other keys do not wait.
    folder.append("in", "{\"k\":\"late\",\"n\":50}\n");
    eventually("another key continues", || server.requests().len() == 11);
    let mut numbers: Vec<u64> = server.bodies().iter().map(|body| number(body).1).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50]);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

/// The assertion is a lower bound, because load makes a stream only slower.
#[test]
fn rate_limits_records_per_second() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    folder.write("in", &numbers(0..40, 40));
    let began = Instant::now();
    run(&folder, &server.url("/"), "rate = 20").expect(0);
    // The burst is a tenth of a second.
    assert!(began.elapsed() >= Duration::from_millis(38 * 1_000 / 20), "{:?}", began.elapsed());
    assert_each_once_in_order(&server.bodies(), 0..40);
}

#[test]
fn age_max_dead_letters_a_record() {
    let (folder, server) = (TempFolder::new(), server_failing_three(503));
    folder.write("in", &numbers(0..10, 2));
    let dead = folder.path("dead");
    run(&folder, &server.url("/"), &format!("attempts = 0\nage_max = \"300ms\"\ndead_letter = \"{dead}\"")).expect(3);
    assert_eq!(letter(&folder)["value"]["n"], 3);
    assert!(letter(&folder)["error"].as_str().unwrap().contains("503"), "{}", letter(&folder));
    let others: Vec<u64> = server.bodies().iter().map(|body| number(body).1).filter(|n| *n != 3).collect();
    assert_eq!(others.len(), 9);
}

#[test]
fn exhausted_attempts_dead_letter_a_record() {
    let (folder, server) = (TempFolder::new(), server_failing_three(503));
    folder.write("in", &numbers(0..10, 2));
    let dead = folder.path("dead");
    run(&folder, &server.url("/"), &format!("attempts = 4\ndead_letter = \"{dead}\"")).expect(3);
    assert_eq!((&letter(&folder)["attempts"], &letter(&folder)["cause"]), (&4.into(), &"sink".into()));
    assert_eq!(server.requests().len(), 9 + 4);
}

#[test]
fn skipped_record_is_committed() {
    let (folder, server) = (TempFolder::new(), server_failing_three(500));
    folder.write("in", &numbers(0..10, 2));
    let checkpoint = folder.path("done");
    let more = format!("attempts = 2\nexhausted = \"skip\"\ncheckpoint = \"{checkpoint}\"");
    let ended = run(&folder, &server.url("/"), &more).expect(3);
    assert!(ended.errors.contains("skipped=1") && ended.errors.contains("record skipped"), "{}", ended.errors);
    assert_eq!(server.requests().len(), 9 + 2);
    // The second run has no record left.
    run(&folder, &server.url("/"), &more).expect(0);
    assert_eq!(server.requests().len(), 9 + 2);
}

#[test]
fn skipped_records_are_summarised_in_the_log() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(422)));
    folder.write("in", &numbers(0..500, 20));
    let errors = run(&folder, &server.url("/"), "exhausted = \"skip\"").expect(3).errors;
    let logged = errors.matches("record failed").count();
    let more = errors.lines().filter(|line| line.contains("more records failed")).map(|line| {
        let (_, count) = line.split_once("records=").unwrap();
        count.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    });
    assert!((10..500).contains(&logged) && logged + more.sum::<usize>() == 500, "{logged}: {errors}");
}

#[test]
fn halted_lane_commits_the_records_before_it() {
    let (folder, server) = (TempFolder::new(), server_failing_three(422));
    folder.write("in", &numbers(0..10, 1));
    let checkpoint = folder.path("done");
    let more = format!("exhausted = \"halt_lane\"\ncheckpoint = \"{checkpoint}\"");
    let ended = run(&folder, &server.url("/"), &more).expect(1);
    assert!(ended.errors.contains("lane halted"), "{}", ended.errors);
    assert!(ended.errors.contains("7 uncommitted records that are parked or in halted lanes"), "{}", ended.errors);
    // The checkpoint is the end of the third line.
    assert_eq!(folder.read("done").split(' ').next(), Some(numbers(0..3, 1).len().to_string().as_str()));
    let accepting = HttpServer::start(|_| Reply::Status(200));
    run(&folder, &accepting.url("/"), &more).expect(0);
    assert_each_once_in_order(&accepting.bodies(), 3..10);
}

#[test]
fn parked_records_are_not_committed() {
    let (folder, server) = (TempFolder::new(), server_failing_three(422));
    folder.write("in", &numbers(0..10, 2));
    let checkpoint = folder.path("done");
    let more = format!("exhausted = \"park\"\ncheckpoint = \"{checkpoint}\"");
    // The source ends while records are parked.
    run(&folder, &server.url("/"), &more).expect(1);
    assert_eq!(folder.read("done").split(' ').next(), Some(numbers(0..3, 2).len().to_string().as_str()));
    let accepting = HttpServer::start(|_| Reply::Status(200));
    run(&folder, &accepting.url("/"), &more).expect(0);
    assert_each_once_in_order(&accepting.bodies(), 3..10);
}

#[test]
fn failed_dead_letter_is_not_committed() {
    let (folder, server) = (TempFolder::new(), server_failing_three(422));
    folder.write("in", &numbers(0..8, 2));
    let checkpoint = folder.path("done");
    let more = format!("checkpoint = \"{checkpoint}\"\ndrain = \"200ms\"\n");
    // Every write to `/dev/full` fails.
    let full = format!("{more}dead_letter = \"/dev/full\"");
    let stream = Stream::start(["-c", &config(&folder, &server.url("/"), &full)]);
    eventually("the dead letter fails", || stream.errors().contains("dead-letter queue refused the record"));
    eventually("the other key continues", || server.bodies().iter().filter(|body| number(body).0 == "k0").count() == 4);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    // Later records of the key have waited, and no later offset is committed.
    let of_its_key: Vec<u64> = server.bodies().iter().map(|body| number(body).1).filter(|n| n % 2 == 1).collect();
    assert_eq!(of_its_key, [1, 3]);
    assert_eq!(folder.read("done").split(' ').next(), Some(numbers(0..3, 2).len().to_string().as_str()));
    let dead = folder.path("dead");
    run(&folder, &server.url("/"), &format!("{more}dead_letter = \"{dead}\"")).expect(3);
    assert_eq!(letter(&folder)["value"]["n"], 3);
    let of_its_key: Vec<u64> = server.bodies().iter().map(|body| number(body).1).filter(|n| n % 2 == 1).collect();
    assert_eq!(of_its_key, [1, 3, 3, 5, 7]);
}

#[test]
fn keyless_records_are_ordered_by_lane() {
    let (folder, server) = (TempFolder::new(), HttpServer::start(|_| Reply::Status(200)));
    folder.write("in", &numbers(0..100, 100));
    let text = std::fs::read_to_string(config(&folder, &server.url("/"), "keyless = \"lane\"")).unwrap();
    let file = folder.write("tidegate.toml", &text.replace("key = \"/k\"\n", ""));
    Stream::run(["-c", &file]).expect(0);
    let numbers: Vec<u64> = server.bodies().iter().map(|body| number(body).1).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}
