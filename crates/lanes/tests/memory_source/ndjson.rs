//! Lines of JSON, from a file and from a reader.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tidegate_lanes::source::{Format, Ndjson, NdjsonError};
use tidegate_lanes::{Exhausted, Failure, Record, Retry, RunError, Source, Subscription, Tally};

use crate::checker::SECOND;

type Seen = BTreeMap<Option<String>, Vec<String>>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs all lines, failing at those that contain `bad`; what was done, by key.
async fn run(source: impl Source, exhausted: Exhausted, bad: &'static str) -> (Result<Tally, RunError>, Seen) {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let noted = Arc::clone(&seen);
    let process = move |record: Record| {
        let line = record.payload().map(text).unwrap();
        let is_bad = !bad.is_empty() && line.contains(bad);
        if !is_bad {
            noted.lock().unwrap().entry(record.key().map(text)).or_default().push(line);
        }
        async move { if is_bad { Err(Failure::new("bad")) } else { Ok(()) } }
    };
    let builder = Subscription::builder("test").source(source).retry(Retry::never()).exhausted(exhausted).drain(SECOND);
    let result = builder.process(process).unwrap().run().await;
    let seen = seen.lock().unwrap().clone();
    (result, seen)
}

fn file(folder: &Path, lines: &[&str]) -> std::path::PathBuf {
    let path = folder.join("in.ndjson");
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

#[tokio::test]
async fn lines_are_records_in_order_by_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [r#"{"u":"a","n":1}"#, "", r#"{"u":"b","n":2}"#, r#"  {"u":"a","n":3}  "#, r#"{"n":4}"#];
    let path = file(folder.path(), &lines);
    let (result, seen) = run(Ndjson::open(path, Format::keyed_by("/u")).unwrap(), Exhausted::Stop, "").await;
    assert_eq!(result.unwrap().done, 4);
    assert_eq!(seen[&Some("a".to_owned())], [lines[0], lines[3].trim()]);
    assert_eq!((seen[&Some("b".to_owned())].len(), seen[&None].len()), (1, 1));
}

#[tokio::test]
async fn la_16_a_line_that_is_not_json_goes_where_exhausted_records_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &[r#"{"u":1}"#, "not json", r#"{"u":2}"#]);
    let (result, _) = run(Ndjson::open(&path, Format::keyed_by("/u")).unwrap(), Exhausted::Skip, "").await;
    let tally = result.unwrap();
    assert_eq!((tally.done, tally.skipped, tally.undecodable), (2, 1, 1));
    let (result, _) = run(Ndjson::open(&path, Format::keyed_by("/u")).unwrap(), Exhausted::Stop, "").await;
    let message = result.unwrap_err().to_string();
    assert!(message.contains("in.ndjson") && message.contains("not JSON"), "{message}");
}

/// As some editors and exports begin a file.
#[tokio::test]
async fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["\u{feff}{\"u\":1}", "\u{feff}{\"u\":2}"]);
    let (result, seen) = run(Ndjson::open(&path, Format::keyed_by("/u")).unwrap(), Exhausted::Skip, "").await;
    assert_eq!(result.unwrap().undecodable, 1, "within a file it is no mark");
    assert_eq!(seen[&Some("1".to_owned())], ["{\"u\":1}"]);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_cut_off_and_the_next_one_is_read() {
    let long = "x".repeat(100_000);
    let input = format!("one\n{long}\nthree\n");
    let format = Format { line_max: 1000, ..Format::default() };
    let source = Ndjson::reader("lines", io::Cursor::new(input), format).unwrap();
    let (result, seen) = run(source, Exhausted::Skip, "").await;
    let tally = result.unwrap();
    assert_eq!((tally.done, tally.undecodable), (2, 1));
    assert_eq!(seen[&None].len(), 2);
}

#[tokio::test]
async fn a_second_run_begins_behind_what_the_first_has_done() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..1000).map(|number| format!(r#"{{"id":{number}}}"#)).collect();
    let path = file(folder.path(), &lines.iter().map(String::as_str).collect::<Vec<_>>());
    let checkpoint = folder.path().join("done");
    let format = Format::keyed_by("/none");
    let first = Ndjson::resume(&path, &checkpoint, format.clone()).unwrap();
    let (result, _) = run(first, Exhausted::Stop, r#":500}"#).await;
    assert!(matches!(result, Err(RunError::Exhausted { .. })), "{result:?}");
    let (result, seen) = run(Ndjson::resume(&path, &checkpoint, format.clone()).unwrap(), Exhausted::Stop, "").await;
    assert_eq!(result.unwrap().done, 500, "exactly from the line that failed");
    assert!(seen[&None].contains(&lines[500]) && !seen[&None].contains(&lines[499]));
    let (result, _) = run(Ndjson::resume(&path, &checkpoint, format).unwrap(), Exhausted::Stop, "").await;
    assert_eq!(result.unwrap().done, 0);
}

/// Whoever writes the file was in the middle of a line when the first run came to its end.
#[tokio::test]
async fn a_line_that_was_half_there_comes_whole_in_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let (path, checkpoint) = (folder.path().join("in.ndjson"), folder.path().join("done"));
    let long = "x".repeat(200_000);
    let next = async |text: &str| {
        std::fs::write(&path, text).unwrap();
        let source = Ndjson::resume(&path, &checkpoint, Format::default()).unwrap();
        run(source, Exhausted::Stop, "").await.1.remove(&None).unwrap_or_default()
    };
    assert_eq!(next("one\ntw").await, ["one", "tw"]);
    assert_eq!(next("one\ntwo\nthree").await, ["two", "three"], "the line that has grown, and what is new");
    assert!(next("one\ntwo\nthree\n").await.is_empty(), "it was whole, but for its end");
    assert_eq!(next(&format!("one\ntwo\nthree\n{long}")).await, [long.as_str()]);
    assert_eq!(next(&format!("one\ntwo\nthree\n{long}y\r\nlast")).await, [format!("{long}y"), "last".to_owned()]);
}

/// Two streams may keep theirs in one folder, beside what they read.
#[tokio::test]
async fn a_checkpoint_is_written_beside_others_and_touches_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.new");
    std::fs::write(&path, "{}\n{}\n").unwrap();
    let checkpoints = ["orders.http", "orders.pg"].map(|name| folder.path().join(name));
    for checkpoint in &checkpoints {
        let (result, _) = run(Ndjson::resume(&path, checkpoint, Format::default()).unwrap(), Exhausted::Stop, "").await;
        assert_eq!(result.unwrap().done, 2);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n{}\n");
    assert!(checkpoints.iter().all(|checkpoint| std::fs::read_to_string(checkpoint).unwrap().trim().parse() == Ok(6)));
}

#[tokio::test]
async fn a_checkpoint_has_one_owner_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["1"]);
    let checkpoint = folder.path().join("done");
    let first = Ndjson::resume(&path, &checkpoint, Format::default()).unwrap();
    let error = Ndjson::resume(&path, &checkpoint, Format::default()).unwrap_err();
    assert!(matches!(error, NdjsonError::CheckpointInUse { .. }), "{error}");
    drop(first);
    let (result, _) = run(Ndjson::resume(&path, &checkpoint, Format::default()).unwrap(), Exhausted::Stop, "").await;
    assert_eq!(result.unwrap().done, 1);
}

/// A slip that names the data as the checkpoint costs no data.
#[tokio::test]
async fn a_file_that_is_no_checkpoint_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["1"]);
    let other = folder.path().join("numbers");
    for text in ["123456789012345678901234567890\n", "{}\n", "7\n8\n"] {
        std::fs::write(&other, text).unwrap();
        let error = Ndjson::resume(&path, &other, Format::default()).unwrap_err();
        assert!(matches!(error, NdjsonError::ForeignCheckpoint { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), text);
    }
}

#[tokio::test]
async fn a_checkpoint_of_another_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["1"]);
    let checkpoint = folder.path().join("done");
    for foreign in ["none", "9000"] {
        std::fs::write(&checkpoint, foreign).unwrap();
        let error = Ndjson::resume(&path, &checkpoint, Format::default()).unwrap_err();
        assert!(matches!(error, NdjsonError::ForeignCheckpoint { .. }), "{error}");
    }
}

/// What is read of it cannot be read again; and to open it would wait for somebody who writes.
#[tokio::test]
async fn a_pipe_has_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, done) = (folder.path().join("in"), folder.path().join("done"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = Ndjson::resume(&pipe, done, Format::default()).unwrap_err();
    assert!(matches!(error, NdjsonError::Read { .. }), "{error}");
}

#[tokio::test]
async fn a_file_that_is_followed_has_no_end_and_may_not_become_shorter() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["one", "two", "thr"]);
    let format = Format { follow: true, ..Format::default() };
    let running = tokio::spawn(run(Ndjson::open(&path, format).unwrap(), Exhausted::Stop, "three"));
    let mut more = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    // The line that is whole now is the one that fails.
    more.write_all(b"ee\n").unwrap();
    let (result, seen) = running.await.unwrap();
    assert!(matches!(result, Err(RunError::Exhausted { .. })), "{result:?}");
    assert_eq!(seen[&None], ["one", "two"]);
    let checkpoint = folder.path().join("done");
    std::fs::write(&checkpoint, std::fs::metadata(&path).unwrap().len().to_string()).unwrap();
    let format = Format { follow: true, ..Format::default() };
    let running = tokio::spawn(run(Ndjson::resume(&path, &checkpoint, format).unwrap(), Exhausted::Stop, ""));
    std::fs::File::create(&path).unwrap();
    let error = running.await.unwrap().0.unwrap_err();
    let said = std::error::Error::source(&error).and_then(std::error::Error::source).unwrap().to_string();
    assert!(said.contains("became shorter"), "{said}");
}

/// Gives a line, and then an error.
struct Failing(bool);

impl Read for Failing {
    fn read(&mut self, mut buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.0, true) {
            return Err(io::Error::other("the disk is gone"));
        }
        buffer.write(b"one\n")
    }
}

#[tokio::test]
async fn an_error_of_the_input_ends_the_run_and_says_so() {
    let source = Ndjson::reader("lines", Failing(false), Format::default()).unwrap();
    let (result, _) = run(source, Exhausted::Stop, "").await;
    let RunError::Source(error) = result.unwrap_err() else { panic!("another error") };
    assert_eq!(error.to_string(), "cannot read lines");
}
