//! Opening and closing, in order and with failures.

use std::{
    fs, panic,
    pin::pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, ClassConfig, Compression, FileStorage, Journal, JournalConfig, JournalEvent, OpenError, OverloadPolicy,
    Producer, RecordId, RecordLost, RecordObserver, Retention, SegmentFormat, SegmentPolicy,
};

use crate::{
    LONG,
    faults::{Answer, FaultyDisk, StorageCall},
    new_record, payloads, segments, small, until,
};

/// JO-38: panic in a producer does not affect others.
#[test]
fn panic_in_a_producer_does_not_affect_others() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let unlucky = producer.clone();
    let panicked = thread::spawn(move || {
        unlucky.append_blocking(new_record(b"before")).unwrap();
        let payload: Vec<u8> = panic::catch_unwind(|| panic!("panic in a formatter")).unwrap_or_default();
        unlucky.append_blocking(new_record(&payload)).unwrap();
        panic!("test panic");
    });
    assert!(panicked.join().is_err());
    producer.append_blocking(new_record(b"after")).unwrap();
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()), [b"before".as_slice(), b"", b"after"]);
}

/// JO-39: incomplete close reports exact counts.
#[test]
fn incomplete_close_reports_exact_counts() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for _ in 0..10 {
        producer.commit_blocking(new_record(b"written").ack(Ack::Written)).unwrap();
    }
    disk.stall();
    let mut queued = 0;
    while producer.offer(new_record(&[b'x'; 500])).is_ok() {
        queued += 1;
    }
    disk.wait_for_stall();
    let report = journal.close(Duration::from_millis(100));
    assert_eq!((report.written, report.unwritten, report.lost), (10, queued, 1), "{report:?}");
    assert!(!report.is_complete());
    assert!(matches!(Journal::open(small(folder.path())), Err(OpenError::InUse(_))), "the writer may still write");
    disk.resume();
    until("the writer has ended", || Journal::open(small(folder.path())).is_ok());
    // The records that the disk took in the end are intact.
    let found = payloads(folder.path());
    assert!(found.len() >= 10 && found.len() <= 10 + usize::try_from(queued).unwrap() + 1);
}

/// JO-39: close writes all queued records.
#[test]
fn close_writes_all_queued_records() {
    let folder = TempDir::new().unwrap();
    let config = JournalConfig { linger: LONG, bytes_max: 8 << 20, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let producer = journal.producer();
    for _ in 0..10_000 {
        producer.offer(new_record(&[b'x'; 500])).unwrap();
    }
    let report = journal.close(LONG);
    assert_eq!((report.numbered, report.written, report.unwritten), (10_000, 10_000, 0));
    assert_eq!(payloads(folder.path()).len(), 10_000);
}

/// JO-40: runtime shutdown before close.
#[test]
fn runtime_shutdown_before_close() {
    let folder = TempDir::new().unwrap();
    let disk = FaultyDisk::healthy();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    let mut accepted = 0;
    while producer.offer(new_record(&[b'x'; 500])).is_ok() {
        accepted += 1;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for _ in 0..50 {
        let producer = producer.clone();
        runtime.spawn(async move { producer.append(new_record(&[b'x'; 500])).await });
    }
    until("all producers wait", || journal.stats().blocked == 50);
    drop(runtime);
    assert_eq!(journal.stats().blocked, 0);
    disk.resume();
    assert!(journal.close(LONG).is_complete());
    // The append that was rejected last is counted.
    assert_eq!(payloads(folder.path()).len(), accepted);
}

/// JO-41: works without and inside a runtime.
#[test]
fn works_without_and_inside_a_runtime() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    thread::scope(|scope| {
        scope.spawn(|| producer.commit_blocking(new_record(b"a").ack(Ack::Durable)).unwrap());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for _ in 0..1000 {
            producer.append(new_record(&[b'b'; 300])).await.unwrap();
        }
        producer.commit(new_record(b"c").ack(Ack::Durable)).await.unwrap();
    });
    // Blocking inside a runtime works too, since no executor has to be woken.
    runtime.block_on(async { producer.commit_blocking(new_record(b"d").ack(Ack::Written)).unwrap() });
    drop(journal);
    assert_eq!(payloads(folder.path()).len(), 1003);
}

/// JO-42: listener may write to the journal.
#[test]
fn listener_may_write_to_the_journal() {
    let folder = TempDir::new().unwrap();
    let cell: Arc<std::sync::OnceLock<tidegate_journal::Producer>> = Arc::default();
    let (own, mut failures) = (Arc::clone(&cell), 3);
    let disk = FaultyDisk::new(move |call| match call {
        StorageCall::Write(_) if failures > 0 => {
            failures -= 1;
            Answer::Fail(0, rustix::io::Errno::IO.into())
        }
        _ => Answer::Do,
    });
    let classes = vec![ClassConfig::new("one").overload(OverloadPolicy::DropNewest)];
    let listener = move |event: &JournalEvent| {
        if let Some(producer) = own.get() {
            let _ = producer.offer(new_record(event.to_string().as_bytes()));
        }
    };
    let (journal, _) =
        Journal::open_with(JournalConfig { classes, ..small(folder.path()) }, disk.storage(), listener).unwrap();
    cell.set(journal.producer()).unwrap();
    journal.producer().commit_blocking(new_record(b"a").ack(Ack::Written)).unwrap();
    assert!(journal.close(LONG).is_complete());
    assert!(payloads(folder.path()).len() > 1, "the listener's records are written");
}

#[test]
fn invalid_config_is_rejected_with_a_correction() {
    let folder = TempDir::new().unwrap();
    let good = small(folder.path());
    let lossy = |one_in| vec![ClassConfig::new("a").overload(OverloadPolicy::Sample { one_in })];
    let segments = |compression| SegmentPolicy::Rolling { retention: Retention::default(), compression };
    let bad = [
        ("name", JournalConfig { name: "Query Log".into(), ..good.clone() }),
        ("name", JournalConfig { name: "q".repeat(201), ..good.clone() }),
        ("stripes", JournalConfig { stripes: 0, ..good.clone() }),
        ("stripes", JournalConfig { stripes: 2, format: SegmentFormat::Json, bytes_max: 1 << 20, ..good.clone() }),
        ("bytes_max", JournalConfig { stripes: 8, ..good.clone() }),
        ("record_bytes_max", JournalConfig { record_bytes_max: 1 << 20, ..good.clone() }),
        ("record_bytes_max", JournalConfig { record_bytes_max: usize::MAX, ..good.clone() }),
        ("segment_bytes", JournalConfig { segment_bytes: 100, ..good.clone() }),
        ("classes", JournalConfig { classes: Vec::new(), ..good.clone() }),
        ("classes", JournalConfig { classes: lossy(0), ..good.clone() }),
        ("segment_policy", JournalConfig { segment_policy: SegmentPolicy::Ring { segments: 1 }, ..good.clone() }),
        (
            "segment_policy",
            JournalConfig {
                segment_policy: SegmentPolicy::Ring { segments: 4 },
                format: SegmentFormat::Text,
                ..good.clone()
            },
        ),
        ("segment_policy", JournalConfig { segment_policy: segments(Compression::Zstd(99)), ..good.clone() }),
    ];
    for (key, config) in bad {
        match Journal::open(config) {
            Err(OpenError::Config(advice)) => assert!(advice.starts_with(key), "{advice}"),
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn unused_journal_leaves_no_segment() {
    let folder = TempDir::new().unwrap();
    for _ in 0..3 {
        let (journal, recovery) = Journal::open_with(small(folder.path()), Arc::new(FileStorage), |_| ()).unwrap();
        assert!(recovery.is_clean() && journal.class("one").is_some() && journal.class("two").is_none());
        drop(journal);
    }
    assert!(segments(folder.path()).is_empty());
}

/// JO-39: a maintenance thread that hangs, on the disk or in the listener, does not delay closing.
#[test]
fn hanging_maintenance_does_not_delay_close() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let ((hang, hangs), (go, going)) = (mpsc::channel(), mpsc::channel::<()>());
    let (going, of_folder) = (Mutex::new(going), format!("{}: ", path.display()));
    let listener = move |event: &JournalEvent| match event {
        JournalEvent::MaintenanceFailed { error } if error.starts_with(&of_folder) => {
            let _ = hang.send(());
            let _ = going.lock().unwrap().recv();
        }
        _ => {}
    };
    let (journal, _) = Journal::open_with(small(&path), Arc::new(FileStorage), listener).unwrap();
    journal.producer().commit_blocking(new_record(b"a").ack(Ack::Written)).unwrap();
    fs::remove_dir_all(&path).unwrap();
    journal.reopen();
    hangs.recv_timeout(LONG).expect("the missing folder is reported");
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(journal.close(Duration::from_millis(100))));
    let report = ended.recv_timeout(LONG).expect("close returns");
    assert!(report.is_complete(), "{report:?}");
    drop(go);
}

fn poll_durable(producer: &Producer, record_id: RecordId) -> Poll<Result<(), RecordLost>> {
    pin!(producer.wait(record_id, Ack::Durable)).poll(&mut Context::from_waker(Waker::noop()))
}

/// No sync follows a close, so each wait has its result by then.
#[test]
fn wait_after_a_close_has_its_result() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let record_id = producer.offer(new_record(b"accepted")).unwrap();
    assert!(journal.close(LONG).is_complete());
    assert_eq!(poll_durable(&producer, record_id), Poll::Ready(Ok(())));

    let disk = FaultyDisk::new(|call| match call {
        StorageCall::Sync => Answer::Fail(0, rustix::io::Errno::IO.into()),
        _ => Answer::Do,
    });
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    let record_id = producer.append_blocking(new_record(b"written")).unwrap();
    assert!(journal.close(LONG).is_complete());
    assert_eq!(poll_durable(&producer, record_id), Poll::Ready(Err(RecordLost)));
}

struct PanickingObserver;

impl RecordObserver for PanickingObserver {
    fn on_record(&self, payload: &[u8]) {
        assert_ne!(payload, b"one", "test panic");
    }
}

#[test]
fn panic_of_an_observer_does_not_end_the_writer() {
    let folder = TempDir::new().unwrap();
    let observer: Arc<dyn RecordObserver> = Arc::new(PanickingObserver);
    let storage = Arc::new(FileStorage);
    let (journal, _) =
        Journal::open_observed(small(folder.path()), storage, |_| (), Some(Arc::clone(&observer))).unwrap();
    for journal in [journal, Journal::in_memory(small(folder.path()), observer).unwrap()] {
        let producer = journal.producer();
        for payload in [b"one".as_slice(), b"two"] {
            producer.commit_blocking(new_record(payload).ack(Ack::Written)).unwrap();
        }
        assert!(journal.close(LONG).is_complete());
    }
    assert_eq!(payloads(folder.path()), [b"one", b"two"]);
}
