//! Events of `tracing`.

use std::{
    cell::RefCell,
    fmt,
    sync::{Arc, mpsc},
    thread,
};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_journal::{
    Class, ClassConfig, Journal, JournalConfig, JournalEvent, OverloadPolicy,
    trace::{AppendMode, JournalLayer, JournalWriter},
};
use tracing::{Dispatch, Level, dispatcher, error, info, info_span, subscriber::with_default};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::{
    LONG,
    faults::{Answer, FaultyDisk, StorageCall},
    payloads, small,
};

#[test]
fn events_are_objects_with_fields_and_spans() {
    let folder = TempDir::new().unwrap();
    let config =
        JournalConfig { classes: vec![ClassConfig::new("info"), ClassConfig::new("error")], ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let layer = JournalLayer::new(journal.producer()).class(Level::ERROR, Class::new(1)).mode(AppendMode::Block);
    with_default(tracing_subscriber::registry().with(layer), || {
        let outer = info_span!("connection", id = 7, user = tracing::field::Empty);
        outer.record("user", "ann \"a\" \u{1}");
        let _outer = outer.entered();
        let _inner = info_span!("query").entered();
        info!(rows = 3, ratio = 0.5, odd = f64::NAN, ok = true, "done in\n{} ms", 2);
        error!(target: "elsewhere", "bad");
    });
    assert!(journal.close(LONG).is_complete());
    let events: Vec<Value> = payloads(folder.path()).iter().map(|line| serde_json::from_slice(line).unwrap()).collect();
    let [first, second] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&first["message"], &first["rows"], &first["ok"]), (&"done in\n2 ms".into(), &3.into(), &true.into()));
    assert_eq!((&first["level"], &first["ratio"], &first["odd"]), (&"INFO".into(), &0.5.into(), &"NaN".into()));
    let spans = serde_json::json!([{ "name": "connection", "id": 7, "user": "ann \"a\" \u{1}" }, { "name": "query" }]);
    assert_eq!(first["spans"], spans);
    assert_eq!((&second["target"], &second["level"]), (&"elsewhere".into(), &"ERROR".into()));
}

/// Fields with reserved names are renamed: JSON readers keep one of two values of the same key, and differ in which.
#[test]
fn fields_with_reserved_names_are_renamed() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let layer = JournalLayer::new(journal.producer()).mode(AppendMode::Block);
    with_default(tracing_subscriber::registry().with(layer), || {
        let _span = info_span!("task", name = "mine", level = 1).entered();
        info!(level = 7, target = "x", spans = ?[1], time_ns = 0.5, name = true, "done");
    });
    assert!(journal.close(LONG).is_complete());
    let lines = payloads(folder.path());
    let text = String::from_utf8(lines[0].clone()).unwrap();
    for key in ["time_ns", "level", "target", "spans", "name"] {
        let at_most = if key == "level" || key == "name" { 2 } else { 1 };
        assert_eq!(text.matches(&format!("\"{key}\":")).count(), at_most, "{key}: {text}");
    }
    let event: Value = serde_json::from_slice(&lines[0]).unwrap();
    assert_eq!(
        (&event["level"], &event["field.level"], &event["field.target"]),
        (&"INFO".into(), &7.into(), &"x".into())
    );
    assert_eq!(
        (&event["field.spans"], &event["field.time_ns"], &event["name"]),
        (&"[1]".into(), &0.5.into(), &true.into())
    );
    let spans = serde_json::json!([{ "name": "task", "field.name": "mine", "level": 1 }]);
    assert_eq!(event["spans"], spans);
}

/// A span field that is recorded again, with two layers that are both called for each record.
#[test]
fn rerecorded_field_has_its_last_value_once() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let [one, other] = folders.each_ref().map(|folder| Journal::open(small(folder.path())).unwrap().0);
    let layer = |journal: &Journal| JournalLayer::new(journal.producer()).mode(AppendMode::Block);
    with_default(tracing_subscriber::registry().with(layer(&one)).with(layer(&other)), || {
        let span = info_span!("request", attempt = 1, peer = "a,\"b\":", status = tracing::field::Empty).entered();
        span.record("status", 503);
        span.record("attempt", 2).record("status", 200);
        info!("done");
        span.record("peer", "c");
        info!("gone");
    });
    let spans = [
        r#"[{"name":"request","peer":"a,\"b\":","attempt":2,"status":200}]"#,
        r#"[{"name":"request","attempt":2,"status":200,"peer":"c"}]"#,
    ];
    for (journal, folder) in [one, other].into_iter().zip(&folders) {
        assert!(journal.close(LONG).is_complete());
        let lines = payloads(folder.path());
        let lines: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
        assert_eq!(lines.len(), 2);
        for (line, spans) in lines.iter().zip(spans) {
            assert!(line.ends_with(&format!("\"spans\":{spans}}}")), "{line}");
        }
    }
}

#[test]
fn lines_of_any_formatter_are_records() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let writer = JournalWriter::new(journal.producer()).class(Class::new(0)).mode(AppendMode::Block);
    let formatter = tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(writer).finish();
    with_default(formatter, || (0..100).for_each(|number| info!(number, "hello")));
    assert!(journal.close(LONG).is_complete());
    let lines = payloads(folder.path());
    assert_eq!(lines.len(), 100);
    assert!(lines[42].ends_with(b"hello number=42"), "{:?}", String::from_utf8_lossy(&lines[42]));
}

/// Logs while it is formatted.
struct LogsInDebug;

impl fmt::Debug for LogsInDebug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        info!("from a Debug implementation");
        f.write_str("chatty")
    }
}

/// JO-42: events inside the journal are ignored.
#[test]
fn events_inside_the_journal_are_ignored() {
    let folder = TempDir::new().unwrap();
    let mut failures = 2;
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Write(_) if failures > 0 => {
            failures -= 1;
            Answer::Fail(0, rustix::io::Errno::IO.into())
        }
        _ => Answer::Do,
    });
    let classes = vec![ClassConfig::new("one").overload(OverloadPolicy::DropNewest)];
    let events = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&events);
    // The listener logs to the global subscriber, which is this journal.
    let listener = move |event: &JournalEvent| {
        counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        error!("{event}");
    };
    let (journal, _) =
        Journal::open_with(JournalConfig { classes, ..small(folder.path()) }, disk.storage(), listener).unwrap();
    let layer = JournalLayer::new(journal.producer());
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    info!(value = ?LogsInDebug, "hello");
    assert!(journal.flush(tidegate_journal::Ack::Written, LONG).unwrap());
    drop(journal);
    assert!(events.load(std::sync::atomic::Ordering::SeqCst) > 0);
    let lines = payloads(folder.path());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(String::from_utf8_lossy(&lines[0]).contains(r#""value":"chatty""#));
}

/// Logs when its thread ends, and the thread-locals of the thread with it.
struct LogsOnDrop(Dispatch);

impl Drop for LogsOnDrop {
    fn drop(&mut self) {
        dispatcher::with_default(&self.0, || info!("thread end"));
    }
}

thread_local! {
    static LAST: RefCell<Option<LogsOnDrop>> = const { RefCell::new(None) };
}

#[test]
fn events_at_thread_end_are_written() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let layer = JournalLayer::new(journal.producer()).mode(AppendMode::Block);
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(layer));
    let thread = std::thread::spawn(move || {
        // Thread-locals are dropped in reverse order: those of `tracing`, of the logging value, then of the layer.
        dispatcher::with_default(&dispatch, || ());
        LAST.set(Some(LogsOnDrop(dispatch.clone())));
        dispatcher::with_default(&dispatch, || info!("hello"));
    });
    thread.join().unwrap();
    assert!(journal.close(LONG).is_complete());
    let lines = payloads(folder.path());
    assert!(lines.len() == 2 && String::from_utf8_lossy(&lines[1]).contains("thread end"), "{lines:?}");
}

/// A value that logs while it is formatted.
struct SpanValueThatLogs;

impl fmt::Debug for SpanValueThatLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        info!("formatted");
        f.write_str("talks")
    }
}

/// JO-42: span value may log while recorded.
#[test]
fn span_value_may_log_while_recorded() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let layer = JournalLayer::new(journal.producer()).mode(AppendMode::Block);
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        with_default(tracing_subscriber::registry().with(layer), || {
            let span = info_span!("query", rows = 1, value = tracing::field::Empty).entered();
            span.record("value", tracing::field::debug(SpanValueThatLogs));
            info!("after");
        });
        done.send(())
    });
    is_done.recv_timeout(LONG).expect("recording does not deadlock");
    assert!(journal.close(LONG).is_complete());
    let records: Vec<Value> =
        payloads(folder.path()).iter().map(|record| serde_json::from_slice(record).unwrap()).collect();
    let messages: Vec<&Value> = records.iter().map(|record| &record["message"]).collect();
    assert_eq!(messages, ["formatted", "after"]);
    let span = &records[1]["spans"][0];
    assert_eq!((&span["rows"], &span["value"]), (&1.into(), &"talks".into()));
}
