//! The NDJSON source.

use std::collections::BTreeMap;
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tidegate_lanes::source::{NdjsonError, NdjsonFormat, NdjsonSource};
use tidegate_lanes::{
    ExhaustedAction, Record, RecordFailure, RecordRetryPolicy, RunError, Source, Subscription, SubscriptionCounters,
};

use crate::checker::SECOND;

type Seen = BTreeMap<Option<String>, Vec<String>>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Processes all lines and fails those that contain `bad`. Returns the finished lines by key.
async fn run(
    source: impl Source,
    exhausted: ExhaustedAction,
    bad: &'static str,
) -> (Result<SubscriptionCounters, RunError>, Seen) {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let noted = Arc::clone(&seen);
    let process = move |record: Record| {
        let line = record.payload().map(text).unwrap();
        let is_bad = !bad.is_empty() && line.contains(bad);
        if !is_bad {
            noted.lock().unwrap().entry(record.key().map(text)).or_default().push(line);
        }
        async move { if is_bad { Err(RecordFailure::new("bad")) } else { Ok(()) } }
    };
    let builder = Subscription::builder("test")
        .source(source)
        .retry(RecordRetryPolicy::never())
        .exhausted(exhausted)
        .drain(SECOND);
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
async fn lines_are_ordered_records_with_keys() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [r#"{"u":"a","n":1}"#, "", r#"{"u":"b","n":2}"#, r#"  {"u":"a","n":3}  "#, r#"{"n":4}"#];
    let path = file(folder.path(), &lines);
    let (result, seen) =
        run(NdjsonSource::open(path, NdjsonFormat::keyed_by("/u")).unwrap(), ExhaustedAction::Stop, "").await;
    assert_eq!(result.unwrap().done, 4);
    assert_eq!(seen[&Some("a".to_owned())], [lines[0], lines[3].trim()]);
    assert_eq!((seen[&Some("b".to_owned())].len(), seen[&None].len()), (1, 1));
}

/// LA-16: invalid json takes the exhausted action.
#[tokio::test]
async fn invalid_json_takes_the_exhausted_action() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &[r#"{"u":1}"#, "not json", r#"{"u":2}"#]);
    let (result, _) =
        run(NdjsonSource::open(&path, NdjsonFormat::keyed_by("/u")).unwrap(), ExhaustedAction::Skip, "").await;
    let counters = result.unwrap();
    assert_eq!((counters.done, counters.skipped, counters.undecodable), (2, 1, 1));
    let (result, _) =
        run(NdjsonSource::open(&path, NdjsonFormat::keyed_by("/u")).unwrap(), ExhaustedAction::Stop, "").await;
    let message = result.unwrap_err().to_string();
    assert!(message.contains("in.ndjson") && message.contains("not JSON"), "{message}");
}

/// Some editors and exports write a byte order mark at the start of a file.
#[tokio::test]
async fn byte_order_mark_is_not_part_of_the_first_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["\u{feff}{\"u\":1}", "\u{feff}{\"u\":2}"]);
    let (result, seen) =
        run(NdjsonSource::open(&path, NdjsonFormat::keyed_by("/u")).unwrap(), ExhaustedAction::Skip, "").await;
    assert_eq!(result.unwrap().undecodable, 1, "byte order mark inside a file was accepted");
    assert_eq!(seen[&Some("1".to_owned())], ["{\"u\":1}"]);
}

#[tokio::test]
async fn long_line_is_truncated_and_skipped() {
    let long = "x".repeat(100_000);
    let input = format!("one\n{long}\nthree\n");
    let format = NdjsonFormat { line_bytes_max: 1000, ..NdjsonFormat::default() };
    let source = NdjsonSource::reader("lines", io::Cursor::new(input), format).unwrap();
    let (result, seen) = run(source, ExhaustedAction::Skip, "").await;
    let counters = result.unwrap();
    assert_eq!((counters.done, counters.undecodable), (2, 1));
    assert_eq!(seen[&None].len(), 2);
}

#[tokio::test]
async fn second_run_resumes_after_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..1000).map(|number| format!(r#"{{"id":{number}}}"#)).collect();
    let path = file(folder.path(), &lines.iter().map(String::as_str).collect::<Vec<_>>());
    let checkpoint = folder.path().join("done");
    let format = NdjsonFormat::keyed_by("/none");
    let first = NdjsonSource::resume(&path, &checkpoint, format.clone()).unwrap();
    let (result, _) = run(first, ExhaustedAction::Stop, r#":500}"#).await;
    assert!(matches!(result, Err(RunError::Exhausted { .. })), "{result:?}");
    let (result, seen) =
        run(NdjsonSource::resume(&path, &checkpoint, format.clone()).unwrap(), ExhaustedAction::Stop, "").await;
    assert_eq!(result.unwrap().done, 500, "resumed at another line");
    assert!(seen[&None].contains(&lines[500]) && !seen[&None].contains(&lines[499]));
    let (result, _) = run(NdjsonSource::resume(&path, &checkpoint, format).unwrap(), ExhaustedAction::Stop, "").await;
    assert_eq!(result.unwrap().done, 0);
}

/// The writer was in the middle of a line when the first run reached the end.
#[tokio::test]
async fn incomplete_line_is_read_whole_in_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let (path, checkpoint) = (folder.path().join("in.ndjson"), folder.path().join("done"));
    let long = "x".repeat(200_000);
    let next = async |text: &str| {
        std::fs::write(&path, text).unwrap();
        let source = NdjsonSource::resume(&path, &checkpoint, NdjsonFormat::default()).unwrap();
        run(source, ExhaustedAction::Stop, "").await.1.remove(&None).unwrap_or_default()
    };
    assert_eq!(next("one\ntw").await, ["one", "tw"]);
    assert_eq!(next("one\ntwo\nthree").await, ["two", "three"], "grown line and new line");
    assert!(next("one\ntwo\nthree\n").await.is_empty(), "line was complete except for its newline");
    assert_eq!(next(&format!("one\ntwo\nthree\n{long}")).await, [long.as_str()]);
    assert_eq!(next(&format!("one\ntwo\nthree\n{long}y\r\nlast")).await, [format!("{long}y"), "last".to_owned()]);
}

/// Two streams may keep their checkpoints in one directory, next to their input.
#[tokio::test]
async fn checkpoint_write_touches_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.new");
    std::fs::write(&path, "{}\n{}\n").unwrap();
    let checkpoints = ["orders.http", "orders.pg"].map(|name| folder.path().join(name));
    for checkpoint in &checkpoints {
        let (result, _) =
            run(NdjsonSource::resume(&path, checkpoint, NdjsonFormat::default()).unwrap(), ExhaustedAction::Stop, "")
                .await;
        assert_eq!(result.unwrap().done, 2);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n{}\n");
    for checkpoint in &checkpoints {
        assert!(std::fs::read_to_string(checkpoint).unwrap().starts_with("6 6 "));
    }
}

#[tokio::test]
async fn checkpoint_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["1"]);
    let checkpoint = folder.path().join("done");
    let first = NdjsonSource::resume(&path, &checkpoint, NdjsonFormat::default()).unwrap();
    let error = NdjsonSource::resume(&path, &checkpoint, NdjsonFormat::default()).unwrap_err();
    assert!(matches!(error, NdjsonError::CheckpointInUse { .. }), "{error}");
    drop(first);
    let (result, _) =
        run(NdjsonSource::resume(&path, &checkpoint, NdjsonFormat::default()).unwrap(), ExhaustedAction::Stop, "")
            .await;
    assert_eq!(result.unwrap().done, 1);
}

/// Naming the data file as the checkpoint by mistake must not destroy data.
#[tokio::test]
async fn data_file_is_not_overwritten_as_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["1"]);
    let other = folder.path().join("numbers");
    for text in ["123456789012345678901234567890\n", "{}\n", "7\n8\n"] {
        std::fs::write(&other, text).unwrap();
        let error = NdjsonSource::resume(&path, &other, NdjsonFormat::default()).unwrap_err();
        assert!(matches!(error, NdjsonError::ForeignCheckpoint { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), text);
    }
}

#[tokio::test]
async fn checkpoint_of_another_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &["1"]);
    let checkpoint = folder.path().join("done");
    for foreign in ["none", "9000"] {
        std::fs::write(&checkpoint, foreign).unwrap();
        let error = NdjsonSource::resume(&path, &checkpoint, NdjsonFormat::default()).unwrap_err();
        assert!(matches!(error, NdjsonError::ForeignCheckpoint { .. }), "{error}");
    }
}

/// A pipe cannot be read again, and opening it would wait for a writer.
#[tokio::test]
async fn pipe_has_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, done) = (folder.path().join("in"), folder.path().join("done"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = NdjsonSource::resume(&pipe, done, NdjsonFormat::default()).unwrap_err();
    assert!(matches!(error, NdjsonError::Read { .. }), "{error}");
}

/// Returns a line and then an error.
struct Failing(bool);

impl Read for Failing {
    fn read(&mut self, mut buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.0, true) {
            return Err(io::Error::other("disk error"));
        }
        buffer.write(b"one\n")
    }
}

#[tokio::test]
async fn input_error_ends_the_run() {
    let source = NdjsonSource::reader("lines", Failing(false), NdjsonFormat::default()).unwrap();
    let (result, _) = run(source, ExhaustedAction::Stop, "").await;
    let RunError::Source(error) = result.unwrap_err() else { panic!("unexpected error") };
    assert_eq!(error.to_string(), "cannot read lines");
}

struct PanickingInput;

impl Read for PanickingInput {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        panic!("test panic")
    }
}

#[tokio::test]
async fn panic_of_the_input_ends_the_run() {
    let source = NdjsonSource::reader("lines", PanickingInput, NdjsonFormat::default()).unwrap();
    let (result, _) = run(source, ExhaustedAction::Stop, "").await;
    let RunError::Source(error) = result.unwrap_err() else { panic!("unexpected error") };
    assert_eq!(error.source().unwrap().to_string(), "the input panicked");
}

#[tokio::test]
async fn limits_may_be_the_largest_numbers() {
    let format =
        NdjsonFormat { line_bytes_max: usize::MAX, read_ahead_bytes_max: usize::MAX, ..NdjsonFormat::default() };
    let source = NdjsonSource::reader("lines", &b"one\ntwo"[..], format).unwrap();
    let (result, _) = run(source, ExhaustedAction::Stop, "").await;
    assert_eq!(result.unwrap().done, 2);
}

#[test]
fn key_that_is_no_json_pointer_is_refused() {
    for pointer in ["user", "user/id", "$.user"] {
        let error = NdjsonSource::reader("lines", io::empty(), NdjsonFormat::keyed_by(pointer)).unwrap_err();
        assert!(matches!(&error, NdjsonError::KeyPointer { pointer: found } if found == pointer), "{error}");
    }
    NdjsonSource::reader("lines", io::empty(), NdjsonFormat::keyed_by("")).unwrap();
}
