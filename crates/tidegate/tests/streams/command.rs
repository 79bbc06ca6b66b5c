//! A command as the sink: it answers, fails, hangs and dies.

use std::path::Path;

use crate::process::{Ended, Folder, Stream, assert_each_once_in_order, eventually, numbers};

fn run(folder: &Folder, sink: &str, more: &[&str]) -> Ended {
    let file = folder.path("in.ndjson");
    let arguments = ["--from", &file, "--key", "/k", "--to", sink, "--retry-wait", "1ms"];
    Stream::start_in(Path::new(&folder.path("")), arguments.iter().chain(more)).wait()
}

fn out(folder: &Folder) -> Vec<String> {
    folder.read("out").lines().map(str::to_owned).collect()
}

#[test]
fn every_record_is_a_line_and_every_answer_a_line() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..500, 7));
    let sink = folder.script("sink.sh", "while read -r line; do echo \"$line\" >> out; echo ok; done\n");
    run(&folder, &sink, &["--processes", "3"]).expect(0);
    assert_each_once_in_order(&out(&folder), 0..500);
}

#[test]
fn records_of_a_key_never_overlap() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..200, 3));
    // A folder can be made once: whoever finds that of its key is not alone with the key.
    let sink = folder.script(
        "sink.sh",
        "while read -r line; do key=${line#*:}; key=${key%%,*}\n\
         mkdir \"lock-$key\" || echo \"$line\" >> overlap\n\
         echo \"$line\" >> out; rmdir \"lock-$key\"; echo ok; done\n",
    );
    run(&folder, &sink, &["--processes", "8"]).expect(0);
    assert_eq!(folder.read("overlap"), "");
    assert_each_once_in_order(&out(&folder), 0..200);
}

#[test]
fn a_failed_record_is_tried_again_and_its_key_waits() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..60, 3));
    // Every record fails at its first attempt.
    let sink = folder.script(
        "sink.sh",
        "while read -r line; do name=seen-${line##*:}; name=${name%\\}}\n\
         if mkdir \"$name\" 2>/dev/null; then echo 'failed not yet'; else echo \"$line\" >> out; echo ok; fi; done\n",
    );
    let ended = run(&folder, &sink, &["--processes", "4"]).expect(0);
    assert_each_once_in_order(&out(&folder), 0..60);
    assert!(ended.errors.contains("retried=60"), "{}", ended.errors);
}

#[test]
fn a_rejected_record_is_not_tried_again() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..10, 2));
    let sink = folder.script(
        "sink.sh",
        "while read -r line; do case $line in *'\"n\":4}') echo 'rejected no fours';; *) echo ok;; esac; done\n",
    );
    let dead = folder.path("dead");
    let ended = run(&folder, &sink, &["--dead-letter", &dead]).expect(3);
    assert!(ended.errors.contains("retried=0"), "{}", ended.errors);
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead").trim()).unwrap();
    assert_eq!((&letter["error"], &letter["value"]["n"]), (&"no fours".into(), &4.into()));
}

#[test]
fn a_command_that_dies_is_started_again_and_only_the_record_it_had_has_failed() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..50, 5));
    // Number 20 kills it, the first two times.
    let sink = folder.script(
        "sink.sh",
        "while read -r line; do\n\
         case $line in *'\"n\":20}') mkdir one 2>/dev/null && exit 7; mkdir two 2>/dev/null && kill -9 $$;; esac\n\
         echo \"$line\" >> out; echo ok; done\n",
    );
    let ended = run(&folder, &sink, &["--processes", "2"]).expect(0);
    assert_each_once_in_order(&out(&folder), 0..50);
    assert!(ended.errors.contains("retried=2"), "{}", ended.errors);
}

#[test]
fn a_command_that_cannot_live_stops_the_stream_and_says_how_it_ended() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..3, 1));
    let ended = run(&folder, "command:exit 9", &["--attempts", "3"]).expect(1);
    assert!(ended.errors.contains("the command ended (exit status: 9)"), "{}", ended.errors);
}

#[test]
fn a_command_that_gives_no_answer_is_killed_with_what_it_started() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..5, 1));
    // The first one waits for a child that waits for ever. The child holds our standard error: were it left alone, the
    // test would not end.
    let sink = folder.script(
        "sink.sh",
        "while read -r line; do mkdir hung 2>/dev/null && { sleep 100000 & wait; }\n\
         echo \"$line\" >> out; echo ok; done\n",
    );
    run(&folder, &sink, &["--processes", "1", "--timeout", "1s", "--attempts", "0"]).expect(0);
    // Whoever is slow for a second has its record again: at least once.
    let mut seen = out(&folder);
    seen.dedup();
    assert_each_once_in_order(&seen, 0..5);
}

#[test]
fn what_is_no_answer_is_said() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..1, 1));
    let ended = run(&folder, "command:cat", &["--attempts", "2"]).expect(1);
    assert!(ended.errors.contains("an answer is a line `ok`"), "{}", ended.errors);
}

/// Taken for the answer to the next record, it would have that done which nobody has seen yet.
#[test]
fn what_is_no_answer_is_said_though_the_record_is_not_read() {
    let folder = Folder::new();
    // More than a pipe holds.
    folder.write("in.ndjson", &format!("{{\"v\":\"{}\"}}\n", "x".repeat(200_000)));
    let ended = run(&folder, "command:echo hello; exec sleep 1000", &["--attempts", "1", "--timeout", "60s"]).expect(1);
    assert!(ended.errors.contains("the command answered `hello`"), "{}", ended.errors);
}

#[test]
fn an_answer_too_many_is_that_of_no_record() {
    let folder = Folder::new();
    let (file, checkpoint) = (folder.write("in.ndjson", &numbers(0..1, 1)), folder.path("done"));
    let go = folder.pipe("go");
    let script = "read -r line; echo ok; read -r go < go; echo ok; touch twice; while read -r line; do :; done\n";
    let sink = folder.script("sink.sh", script);
    let arguments = ["--from", &file, "--follow", "--checkpoint", &checkpoint, "--key", "/k", "--to", &sink];
    let more = ["--processes", "1", "--attempts", "1"];
    let stream = Stream::start_in(Path::new(&folder.path("")), arguments.iter().chain(&more));
    eventually("the first is done", || !folder.read("done").trim().is_empty());
    std::fs::write(go, "go\n").unwrap();
    eventually("it has answered twice", || Path::new(&folder.path("twice")).exists());
    folder.append("in.ndjson", &numbers(1..2, 1));
    let ended = stream.wait().expect(1);
    assert!(ended.errors.contains("more answers than it had records"), "{}", ended.errors);
}

#[test]
fn a_batch_is_lines_of_one_key() {
    let folder = Folder::new();
    folder.write("in.ndjson", &numbers(0..300, 3));
    let sink = folder.script("sink.sh", "while read -r line; do echo \"$line\" >> out; echo ok; done\n");
    run(&folder, &sink, &["--processes", "2", "--batch", "50"]).expect(0);
    assert_each_once_in_order(&out(&folder), 0..300);
}
