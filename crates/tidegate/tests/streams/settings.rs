//! What `[[streams]]` says about how records are tried, each through a file of its own.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{Ended, Folder, Stream, assert_each_once_in_order, eventually, number, numbers};
use crate::web::{Answer, Web};

/// A configuration file with one stream, from the file `in` of the folder.
fn config(folder: &Folder, to: &str, more: &str) -> String {
    let from = folder.path("in");
    let text = format!(
        "[[streams]]\nname = \"orders\"\nfrom = \"{from}\"\nto = \"{to}\"\nkey = \"/k\"\nretry_wait = \"1ms\"\n{more}\n"
    );
    folder.write("tidegate.toml", &text)
}

fn run(folder: &Folder, to: &str, more: &str) -> Ended {
    Stream::run(["-c", &config(folder, to, more)])
}

/// One that refuses (for good, or for now) number 3, and takes all others.
fn but_three(status: u16) -> Web {
    Web::start(move |seen| Answer::Status(if number(&seen.body).1 == 3 { status } else { 200 }))
}

fn letter(folder: &Folder) -> serde_json::Value {
    serde_json::from_str(folder.read("dead").trim()).unwrap()
}

#[test]
fn a_key_above_its_quota_waits_and_no_other_does() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    folder.write("in", &numbers(0..50, 5));
    // The window is longer than any test.
    let more = "follow = true\nquota = 2\nquota_window = \"1h\"\ndrain = \"200ms\"";
    let stream = Stream::start(["-c", &config(&folder, &web.url("/"), more)]);
    eventually("two of each key arrive", || web.seen().len() == 10);
    // Whatever comes behind them of other keys does not wait.
    folder.append("in", "{\"k\":\"late\",\"n\":50}\n");
    eventually("another key goes on", || web.seen().len() == 11);
    let mut numbers: Vec<u64> = web.bodies().iter().map(|body| number(body).1).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50]);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

/// A bound from below: load makes a stream slower, never faster.
#[test]
fn no_more_begin_in_a_second_than_the_rate_says() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    folder.write("in", &numbers(0..40, 40));
    let began = Instant::now();
    run(&folder, &web.url("/"), "rate = 20").expect(0);
    // A tenth of a second's worth may pile up.
    assert!(began.elapsed() >= Duration::from_millis(38 * 1_000 / 20), "{:?}", began.elapsed());
    assert_each_once_in_order(&web.bodies(), 0..40);
}

#[test]
fn a_record_that_is_too_old_goes_to_the_dead_letter_whatever_attempts_it_has_left() {
    let (folder, web) = (Folder::new(), but_three(503));
    folder.write("in", &numbers(0..10, 2));
    let dead = folder.path("dead");
    run(&folder, &web.url("/"), &format!("attempts = 0\nage_max = \"300ms\"\ndead_letter = \"{dead}\"")).expect(3);
    assert_eq!(letter(&folder)["value"]["n"], 3);
    assert!(letter(&folder)["error"].as_str().unwrap().contains("503"), "{}", letter(&folder));
    let others: Vec<u64> = web.bodies().iter().map(|body| number(body).1).filter(|n| *n != 3).collect();
    assert_eq!(others.len(), 9);
}

#[test]
fn attempts_are_counted_and_then_the_dead_letter_has_it() {
    let (folder, web) = (Folder::new(), but_three(503));
    folder.write("in", &numbers(0..10, 2));
    let dead = folder.path("dead");
    run(&folder, &web.url("/"), &format!("attempts = 4\ndead_letter = \"{dead}\"")).expect(3);
    assert_eq!((&letter(&folder)["attempts"], &letter(&folder)["cause"]), (&4.into(), &"sink".into()));
    assert_eq!(web.seen().len(), 9 + 4);
}

#[test]
fn a_skipped_record_counts_as_done_and_the_status_says_so() {
    let (folder, web) = (Folder::new(), but_three(500));
    folder.write("in", &numbers(0..10, 2));
    let checkpoint = folder.path("done");
    let more = format!("attempts = 2\nexhausted = \"skip\"\ncheckpoint = \"{checkpoint}\"");
    let ended = run(&folder, &web.url("/"), &more).expect(3);
    assert!(ended.errors.contains("skipped=1") && ended.errors.contains("it is skipped"), "{}", ended.errors);
    assert_eq!(web.seen().len(), 9 + 2);
    // Done is done.
    run(&folder, &web.url("/"), &more).expect(0);
    assert_eq!(web.seen().len(), 9 + 2);
}

#[test]
fn where_all_are_skipped_the_log_tells_of_some_and_how_many_more() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(422)));
    folder.write("in", &numbers(0..500, 20));
    let errors = run(&folder, &web.url("/"), "exhausted = \"skip\"").expect(3).errors;
    let told = errors.matches("it is skipped").count();
    let more = errors.lines().filter(|line| line.contains("they are skipped")).map(|line| {
        let (_, count) = line.split_once("records=").unwrap();
        count.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    });
    assert!((10..500).contains(&told) && told + more.sum::<usize>() == 500, "{told}: {errors}");
}

#[test]
fn a_halted_lane_ends_the_stream_with_what_was_done_before_the_record() {
    let (folder, web) = (Folder::new(), but_three(422));
    folder.write("in", &numbers(0..10, 1));
    let checkpoint = folder.path("done");
    let more = format!("exhausted = \"halt_lane\"\ncheckpoint = \"{checkpoint}\"");
    let ended = run(&folder, &web.url("/"), &more).expect(1);
    assert!(ended.errors.contains("its lane is halted"), "{}", ended.errors);
    assert!(ended.errors.contains("7 records are parked or in halted lanes"), "{}", ended.errors);
    // Where the third line ends.
    assert_eq!(folder.read("done").trim(), numbers(0..3, 1).len().to_string());
    let good = Web::start(|_| Answer::Status(200));
    run(&folder, &good.url("/"), &more).expect(0);
    assert_each_once_in_order(&good.bodies(), 3..10);
}

#[test]
fn parked_records_are_not_committed_and_come_again() {
    let (folder, web) = (Folder::new(), but_three(422));
    folder.write("in", &numbers(0..10, 2));
    let checkpoint = folder.path("done");
    let more = format!("exhausted = \"park\"\ncheckpoint = \"{checkpoint}\"");
    // Its source ends, and it cannot do what is left.
    run(&folder, &web.url("/"), &more).expect(1);
    assert_eq!(folder.read("done").trim(), numbers(0..3, 2).len().to_string());
    let good = Web::start(|_| Answer::Status(200));
    run(&folder, &good.url("/"), &more).expect(0);
    assert_each_once_in_order(&good.bodies(), 3..10);
}

#[test]
fn what_the_dead_letter_does_not_take_is_not_committed() {
    let (folder, web) = (Folder::new(), but_three(422));
    folder.write("in", &numbers(0..8, 2));
    let checkpoint = folder.path("done");
    let more = format!("checkpoint = \"{checkpoint}\"\ndrain = \"200ms\"\n");
    // Whatever is written there finds no room.
    let full = format!("{more}dead_letter = \"/dev/full\"");
    let stream = Stream::start(["-c", &config(&folder, &web.url("/"), &full)]);
    eventually("it is refused", || stream.errors().contains("the dead-letter did not take it"));
    eventually("the other key goes on", || web.bodies().iter().filter(|body| number(body).0 == "k0").count() == 4);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    // The followers of the record have waited, and nothing is committed beyond it.
    let of_its_key: Vec<u64> = web.bodies().iter().map(|body| number(body).1).filter(|n| n % 2 == 1).collect();
    assert_eq!(of_its_key, [1, 3]);
    assert_eq!(folder.read("done").trim(), numbers(0..3, 2).len().to_string());
    let dead = folder.path("dead");
    run(&folder, &web.url("/"), &format!("{more}dead_letter = \"{dead}\"")).expect(3);
    assert_eq!(letter(&folder)["value"]["n"], 3);
    let of_its_key: Vec<u64> = web.bodies().iter().map(|body| number(body).1).filter(|n| n % 2 == 1).collect();
    assert_eq!(of_its_key, [1, 3, 3, 5, 7]);
}

#[test]
fn records_without_a_key_are_in_order_if_their_lane_is_their_key() {
    let (folder, web) = (Folder::new(), Web::start(|_| Answer::Status(200)));
    folder.write("in", &numbers(0..100, 100));
    let text = std::fs::read_to_string(config(&folder, &web.url("/"), "keyless = \"lane\"")).unwrap();
    let file = folder.write("tidegate.toml", &text.replace("key = \"/k\"\n", ""));
    Stream::run(["-c", &file]).expect(0);
    let numbers: Vec<u64> = web.bodies().iter().map(|body| number(body).1).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}
