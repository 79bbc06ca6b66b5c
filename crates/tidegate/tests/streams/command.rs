//! A command as the sink: replies, failures, hangs and exits.

use std::path::Path;

use crate::process::{Stream, StreamOutput, TempFolder, assert_each_once_in_order, eventually, numbers};

fn run(folder: &TempFolder, sink: &str, more: &[&str]) -> StreamOutput {
    let file = folder.path("in.ndjson");
    let arguments = ["--from", &file, "--key", "/k", "--to", sink, "--retry-wait", "1ms"];
    Stream::start_in(Path::new(&folder.path("")), arguments.iter().chain(more)).wait()
}

fn out(folder: &TempFolder) -> Vec<String> {
    folder.read("out").lines().map(str::to_owned).collect()
}

#[test]
fn one_line_per_record_and_per_reply() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..500, 7));
    let sink = folder.script("sink.sh", "while read -r line; do echo \"$line\" >> out; echo ok; done\n");
    run(&folder, &sink, &["--processes", "3"]).expect(0);
    assert_each_once_in_order(&out(&folder), 0..500);
}

#[test]
fn records_of_a_key_never_overlap() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..200, 3));
    // `mkdir` fails if another process has the folder of the key.
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
fn failed_record_is_retried_before_its_key_continues() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..60, 3));
    // Every record fails in its first attempt.
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
fn rejected_record_is_not_retried() {
    let folder = TempFolder::new();
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
fn exit_of_a_command_fails_one_record() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..50, 5));
    // Record 20 ends the command in its first two attempts.
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
fn exit_status_of_a_command_is_reported() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..3, 1));
    let ended = run(&folder, "command:exit 9", &["--attempts", "3"]).expect(1);
    assert!(ended.errors.contains("the command ended (exit status: 9)"), "{}", ended.errors);
}

#[test]
fn timeout_kills_the_process_group_of_a_command() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..5, 1));
    // The first command waits for a child that never ends. The child holds standard error, so that the test would hang
    // if the child survived.
    let sink = folder.script(
        "sink.sh",
        "while read -r line; do mkdir hung 2>/dev/null && { sleep 100000 & wait; }\n\
         echo \"$line\" >> out; echo ok; done\n",
    );
    run(&folder, &sink, &["--processes", "1", "--timeout", "1s", "--attempts", "0"]).expect(0);
    // A record that takes a second on a busy machine is delivered again.
    let mut seen = out(&folder);
    seen.dedup();
    assert_each_once_in_order(&seen, 0..5);
}

#[test]
fn invalid_reply_is_an_error() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..1, 1));
    let ended = run(&folder, "command:cat", &["--attempts", "2"]).expect(1);
    assert!(ended.errors.contains("an answer is a line `ok`"), "{}", ended.errors);
}

/// The reply must not be counted for the next record, which the command has not read yet.
#[test]
fn invalid_reply_before_the_record_is_read() {
    let folder = TempFolder::new();
    // The record exceeds the buffer of a pipe.
    folder.write("in.ndjson", &format!("{{\"v\":\"{}\"}}\n", "x".repeat(200_000)));
    let ended = run(&folder, "command:echo hello; exec sleep 1000", &["--attempts", "1", "--timeout", "60s"]).expect(1);
    // The reply may arrive before the record is sent.
    let reasons = ["the command answered `hello`", "the command gave more answers than it had records"];
    assert!(reasons.iter().any(|reason| ended.errors.contains(reason)), "{}", ended.errors);
}

#[test]
fn excess_reply_is_an_error() {
    let folder = TempFolder::new();
    let (file, checkpoint) = (folder.write("in.ndjson", &numbers(0..1, 1)), folder.path("done"));
    let gate = folder.pipe("go");
    let script = "read -r line; echo ok; read -r go < go; echo ok; touch twice; while read -r line; do :; done\n";
    let sink = folder.script("sink.sh", script);
    let arguments = ["--from", &file, "--follow", "--checkpoint", &checkpoint, "--key", "/k", "--to", &sink];
    let more = ["--processes", "1", "--attempts", "1"];
    let stream = Stream::start_in(Path::new(&folder.path("")), arguments.iter().chain(&more));
    eventually("the first record is done", || !folder.read("done").trim().is_empty());
    std::fs::write(gate, "go\n").unwrap();
    eventually("the command has replied twice", || Path::new(&folder.path("twice")).exists());
    folder.append("in.ndjson", &numbers(1..2, 1));
    let ended = stream.wait().expect(1);
    assert!(ended.errors.contains("more answers than it had records"), "{}", ended.errors);
}

#[test]
fn batch_has_records_of_one_key() {
    let folder = TempFolder::new();
    folder.write("in.ndjson", &numbers(0..300, 3));
    let sink = folder.script("sink.sh", "while read -r line; do echo \"$line\" >> out; echo ok; done\n");
    run(&folder, &sink, &["--processes", "2", "--batch", "50"]).expect(0);
    assert_each_once_in_order(&out(&folder), 0..300);
}
