//! A file or standard input to standard output, without any server.

use std::io::Write as _;
use std::path::Path;

use rustix::process::Signal;

use crate::process::{Stream, TempFolder, assert_each_once_in_order, eventually, numbers};

#[test]
fn file_is_delivered_in_order_per_key() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", &numbers(0..20_000, 50));
    let ended = Stream::run(["--from", &file, "--key", "/k", "--to", "-"]).expect(0);
    assert_each_once_in_order(&ended.lines, 0..20_000);
    assert!(ended.errors.contains("stream ended") && ended.errors.contains("done=20000"), "{}", ended.errors);
}

#[test]
fn wrong_key_pointer_is_reported_once() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", &numbers(0..20, 5));
    let ended = Stream::run(["--from", &file, "--key", "/key", "--to", "-"]).expect(0);
    assert_eq!(ended.lines.len(), 20);
    assert_eq!(ended.errors.matches("no value at the key /key").count(), 1, "{}", ended.errors);
}

#[test]
fn unreachable_sink_is_reported_once() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", &numbers(0..60, 60));
    let ended = Stream::run(["--from", &file, "--to", "http://127.0.0.1:1/", "--attempts", "1"]).expect(1);
    assert_eq!(ended.errors.matches("record failed").count(), 1, "{}", ended.errors);
    assert!(ended.errors.contains("Connection refused"), "{}", ended.errors);
}

#[test]
fn standard_input_is_a_source() {
    let mut stream = Stream::start(["--from", "-", "--key", "/k", "--to", "-", "-q"]);
    let mut input = stream.input.take().unwrap();
    input.write_all(numbers(0..10, 2).as_bytes()).unwrap();
    eventually("the lines arrive before the input ends", || stream.lines().len() == 10);
    input.write_all(numbers(10..20, 2).as_bytes()).unwrap();
    drop(input);
    let ended = stream.wait().expect(0);
    assert_each_once_in_order(&ended.lines, 0..20);
    assert_eq!(ended.errors, "");
}

#[test]
fn next_run_continues_at_the_checkpoint() {
    let folder = TempFolder::new();
    let (file, checkpoint) = (folder.write("in.ndjson", &numbers(0..100, 5)), folder.path("done"));
    let run = || Stream::run(["--from", &file, "--checkpoint", &checkpoint, "--key", "/k", "--to", "-"]).expect(0);
    assert_each_once_in_order(&run().lines, 0..100);
    assert_eq!(run().lines, [""; 0]);
    folder.append("in.ndjson", &numbers(100..150, 5));
    assert_each_once_in_order(&run().lines, 100..150);
}

#[test]
fn growing_file_is_followed_until_sigterm() {
    let folder = TempFolder::new();
    let (file, checkpoint) = (folder.write("in.ndjson", &numbers(0..10, 5)), folder.path("done"));
    let arguments = ["--from", &file, "--follow", "--checkpoint", &checkpoint, "--key", "/k", "--to", "-"];
    let stream = Stream::start(arguments);
    eventually("the existing lines arrive", || stream.lines().len() == 10);
    // A partial line is not a record.
    folder.append("in.ndjson", "{\"k\":\"k0\",");
    folder.append("in.ndjson", "\"n\":10}\n");
    eventually("the added line arrives", || stream.lines().len() == 11);
    stream.signal(Signal::TERM);
    let ended = stream.wait().expect(0);
    assert_each_once_in_order(&ended.lines, 0..11);
    folder.append("in.ndjson", &numbers(11..20, 5));
    let next = Stream::run(["--from", &file, "--checkpoint", &checkpoint, "--key", "/k", "--to", "-"]).expect(0);
    assert_each_once_in_order(&next.lines, 11..20);
}

#[test]
fn pipe_is_followed_across_writers() {
    let folder = TempFolder::new();
    let pipe = folder.pipe("in");
    let stream = Stream::start(["--from", &pipe, "--follow", "--key", "/k", "--to", "-"]);
    folder.append("in", &numbers(0..10, 5));
    eventually("the lines of the first writer arrive", || stream.lines().len() == 10);
    folder.append("in", &numbers(10..20, 5));
    eventually("the lines of the second writer arrive", || stream.lines().len() == 20);
    stream.signal(Signal::TERM);
    assert_each_once_in_order(&stream.wait().expect(0).lines, 0..20);
}

#[test]
fn pipe_without_a_writer_does_not_delay_shutdown() {
    let folder = TempFolder::new();
    let stream = Stream::start(["--from", &folder.pipe("in"), "--key", "/k", "--to", "-"]);
    eventually("the stream has started", || stream.errors().contains("stream starts"));
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

/// A float would keep only 17 digits.
#[test]
fn numbers_of_many_digits_keep_all_digits() {
    let folder = TempFolder::new();
    let numbers = ["12345678901234567890123", "12345678901234567890124", "0.1234567890123456789012"];
    let lines: String = numbers.iter().map(|number| format!("{{\"k\":{number}}}\n")).collect();
    let file = folder.write("in.ndjson", &lines);
    let ended = Stream::run(["--from", &file, "--key", "/k", "--to", "-", "--form", "envelope"]).expect(0);
    for number in numbers {
        let member = format!("\"key\":\"{number}\",\"value\":{{\"k\":{number}}}}}");
        assert!(ended.lines.iter().any(|line| line.ends_with(&member)), "{member} in {:?}", ended.lines);
    }
}

#[test]
fn envelope_contains_file_and_position() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", "{\"k\":\"a\"}\n");
    let ended = Stream::run(["--from", &file, "--key", "/k", "--to", "-", "--form", "envelope"]).expect(0);
    let envelope: serde_json::Value = serde_json::from_str(&ended.lines[0]).unwrap();
    assert_eq!((&envelope["file"], &envelope["key"]), (&file.as_str().into(), &"a".into()));
    assert_eq!((&envelope["value"]["k"], &envelope["position"]), (&"a".into(), &10.into()));
}

#[test]
fn invalid_json_is_dead_lettered() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", "{\"k\":\"a\",\"n\":0}\nno json\n{\"k\":\"a\",\"n\":1}\n");
    let dead = folder.path("dead.ndjson");
    let arguments = ["--from", &file, "--key", "/k", "--to", "-", "--dead-letter", &dead, "--name", "orders"];
    let ended = Stream::run(arguments).expect(3);
    assert_each_once_in_order(&ended.lines, 0..2);
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead.ndjson").trim()).unwrap();
    assert_eq!((&letter["stream"], &letter["cause"]), (&"orders".into(), &"undecodable".into()));
    assert_eq!((&letter["value"], &letter["attempts"]), (&"no json".into(), &0.into()));
    assert!(letter["error"].as_str().unwrap().contains("not JSON"), "{letter}");
}

/// A full disk or a crash may have left a partial line.
#[test]
fn dead_letter_starts_a_line_after_a_partial_one() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", "no json\nnor this\n");
    let dead = folder.write("dead.ndjson", "{\"stream\":\"ord");
    Stream::run(["--from", &file, "--key", "/k", "--to", "-", "--dead-letter", &dead]).expect(3);
    let text = folder.read("dead.ndjson");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "{\"stream\":\"ord"));
    let letter = |line: &&str| serde_json::from_str::<serde_json::Value>(line).unwrap()["value"].to_string();
    let mut values: Vec<String> = lines[1..].iter().map(letter).collect();
    values.sort_unstable();
    assert_eq!(values, ["\"no json\"", "\"nor this\""]);
}

/// The file was moved away to be processed, or was deleted.
#[test]
fn removed_dead_letter_file_is_created_again() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", "no json\n");
    let dead = folder.path("dead.ndjson");
    let stream =
        Stream::start(["--from", &file, "--follow", "--key", "/k", "--to", "-", "--dead-letter", &dead, "--name", "a"]);
    let has = |part: &str| std::fs::read_to_string(&dead).is_ok_and(|text| text.ends_with('\n') && text.contains(part));
    eventually("the dead letter is written", || has("no json"));
    std::fs::remove_file(&dead).unwrap();
    folder.append("in.ndjson", "nor this\n");
    eventually("the next dead letter is written", || has("nor this"));
    stream.signal(Signal::TERM);
    stream.wait().expect(3);
}

#[test]
fn invalid_line_without_a_dead_letter_is_an_error() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", "{\"k\":\"a\",\"n\":0}\nno json\n");
    let ended = Stream::run(["--from", &file, "--key", "/k", "--to", "-"]).expect(1);
    assert!(ended.errors.contains("record 24 of ") && ended.errors.contains("not JSON"), "{}", ended.errors);
    let skipping = ["--from", &file, "--key", "/k", "--to", "-", "--exhausted", "skip"];
    assert_each_once_in_order(&Stream::run(skipping).expect(3).lines, 0..1);
}

/// `tidegate stream ... | head -1`: records that could not be written are not dead-lettered, because no attempt failed.
#[test]
fn closed_output_pipe_dead_letters_nothing() {
    let folder = TempFolder::new();
    let (file, dead) = (folder.write("in.ndjson", &numbers(0..100_000, 5)), folder.path("dead.ndjson"));
    let line = format!(
        "'{}' stream --from {file} --key /k --to - --dead-letter {dead}; echo status $? >&2",
        crate::process::binary().display()
    );
    let output = std::process::Command::new("sh").args(["-c", &format!("{{ {line}; }} | head -1")]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("standard output failed") && errors.contains("status 1"), "{errors}");
    assert_eq!(folder.read("dead.ndjson"), "");
}

/// A closed descriptor is replaced by `/dev/null`, which accepts everything, so that the checkpoint would advance.
#[test]
fn closed_standard_output_advances_no_checkpoint() {
    let folder = TempFolder::new();
    let (file, checkpoint) = (folder.write("in.ndjson", &numbers(0..10, 5)), folder.path("done"));
    let run = |to: &str| {
        let binary = crate::process::binary();
        let line =
            format!("'{}' stream --from {file} --checkpoint {checkpoint} --key /k --to - {to}", binary.display());
        std::process::Command::new("sh").args(["-c", &line]).output().unwrap()
    };
    let ended = run(">&-");
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(1) && errors.contains("standard output is closed"), "{errors}");
    assert_eq!(folder.read("done"), "");
    // An explicit `/dev/null` is a valid sink.
    assert_eq!(run("> /dev/null").status.code(), Some(0));
    let checkpoint = folder.read("done");
    assert_eq!(checkpoint.split(' ').next(), Some(std::fs::metadata(&file).unwrap().len().to_string().as_str()));
}

#[test]
fn compaction_delivers_the_newest_of_each_key() {
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", &numbers(0..1_000, 4));
    // A single process with a concurrency of 1: while it has the first record, all others wait.
    let sink = folder.script("slow.sh", "while read -r line; do echo \"$line\" >> out; echo ok; done\n");
    let arguments = ["--from", &file, "--key", "/k", "--to", &sink, "--compact", "--concurrency", "1"];
    Stream::start_in(Path::new(&folder.path("")), arguments).wait().expect(0);
    let seen: Vec<(String, u64)> = folder.read("out").lines().map(crate::process::number).collect();
    for key in 0..4 {
        let name = format!("k{key}");
        let last = seen.iter().rfind(|(seen, _)| *seen == name).map(|(_, n)| *n);
        assert_eq!(last, Some(996 + key));
    }
}

/// The first example of docs/src/guide/streams.md.
#[test]
fn documented_example_runs_without_a_server() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = TempFolder::new();
    let dead = folder.path("dead.ndjson");
    let sink = "command:exec sh examples/streams/ship.sh";
    let arguments =
        ["--from", "examples/streams/orders.ndjson", "--key", "/customer", "--to", sink, "--dead-letter", &dead];
    let ended = Stream::start_in(&root, arguments).wait().expect(3);
    assert!(ended.errors.contains("dead_lettered=1"), "{}", ended.errors);
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead.ndjson").trim()).unwrap();
    assert_eq!(letter["error"], "an order needs an amount");
    let docs = std::fs::read_to_string(root.join("docs/src/guide/streams.md")).unwrap();
    assert!(docs.contains(sink), "the guide does not contain this example");
}
