//! From opening to closing, in good order and in bad.

use std::{
    fs, panic,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, ClassConfig, Config, Disk, Event, Format, Journal, OpenError, Overload, Pack, Retention, Space,
};

use crate::{
    LONG,
    faults::{Answer, Call, Faulty},
    note, payloads, segments, small, until,
};

#[test]
fn jo_38_a_panic_in_a_producer_harms_nobody_else() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    let unlucky = producer.clone();
    let panicked = thread::spawn(move || {
        unlucky.append_blocking(note(b"before")).unwrap();
        let payload: Vec<u8> = panic::catch_unwind(|| panic!("in the formatter")).unwrap_or_default();
        unlucky.append_blocking(note(&payload)).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    producer.append_blocking(note(b"after")).unwrap();
    assert!(journal.close(LONG).is_complete());
    assert_eq!(payloads(folder.path()), [b"before".as_slice(), b"", b"after"]);
}

#[test]
fn jo_39_a_close_that_the_disk_does_not_let_finish_says_exactly_what_is_missing() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    for _ in 0..10 {
        producer.commit_blocking(note(b"written").ack(Ack::Written)).unwrap();
    }
    disk.stall();
    let mut queued = 0;
    while producer.offer(note(&[b'x'; 500])).is_ok() {
        queued += 1;
    }
    disk.wait_for_stall();
    let report = journal.close(Duration::from_millis(100));
    assert_eq!((report.written, report.unwritten, report.lost), (10, queued, 1), "{report:?}");
    assert!(!report.is_complete());
    assert!(matches!(Journal::open(small(folder.path())), Err(OpenError::Owned(_))), "the writer may still write");
    disk.go();
    until("the writer has ended", || Journal::open(small(folder.path())).is_ok());
    // What the disk did take in the end is there, whole.
    let found = payloads(folder.path());
    assert!(found.len() >= 10 && found.len() <= 10 + usize::try_from(queued).unwrap() + 1);
}

#[test]
fn jo_39_a_close_in_time_writes_all_that_is_queued() {
    let folder = TempDir::new().unwrap();
    let config = Config { linger: LONG, bytes_max: 8 << 20, ..small(folder.path()) };
    let (journal, _) = Journal::open(config).unwrap();
    let producer = journal.producer();
    for _ in 0..10_000 {
        producer.offer(note(&[b'x'; 500])).unwrap();
    }
    let report = journal.close(LONG);
    assert_eq!((report.numbered, report.written, report.unwritten), (10_000, 10_000, 0));
    assert_eq!(payloads(folder.path()).len(), 10_000);
}

#[test]
fn jo_40_a_runtime_that_ends_before_the_journal() {
    let folder = TempDir::new().unwrap();
    let disk = Faulty::sound();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    disk.stall();
    let mut accepted = 0;
    while producer.offer(note(&[b'x'; 500])).is_ok() {
        accepted += 1;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for _ in 0..50 {
        let producer = producer.clone();
        runtime.spawn(async move { producer.append(note(&[b'x'; 500])).await });
    }
    until("all wait", || journal.stats().blocked == 50);
    drop(runtime);
    assert_eq!(journal.stats().blocked, 0);
    disk.go();
    assert!(journal.close(LONG).is_complete());
    // The one that was refused at the end is told of.
    assert_eq!(payloads(folder.path()).len(), accepted);
}

#[test]
fn jo_41_from_plain_threads_and_from_a_runtime_of_one_thread() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    thread::scope(|scope| {
        scope.spawn(|| producer.commit_blocking(note(b"a").ack(Ack::Durable)).unwrap());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for _ in 0..1000 {
            producer.append(note(&[b'b'; 300])).await.unwrap();
        }
        producer.commit(note(b"c").ack(Ack::Durable)).await.unwrap();
    });
    // Blocking inside of a runtime works too, as no executor is needed to be woken.
    runtime.block_on(async { producer.commit_blocking(note(b"d").ack(Ack::Written)).unwrap() });
    drop(journal);
    assert_eq!(payloads(folder.path()).len(), 1003);
}

#[test]
fn jo_42_a_listener_that_writes_to_the_journal_does_not_hang_it() {
    let folder = TempDir::new().unwrap();
    let cell: Arc<std::sync::OnceLock<tidegate_journal::Producer>> = Arc::default();
    let (own, mut failures) = (Arc::clone(&cell), 3);
    let disk = Faulty::new(move |call| match call {
        Call::Write(_) if failures > 0 => {
            failures -= 1;
            Answer::Fail(0, rustix::io::Errno::IO.into())
        }
        _ => Answer::Do,
    });
    let classes = vec![ClassConfig::new("one").overload(Overload::DropNewest)];
    let listener = move |event: &Event| {
        if let Some(producer) = own.get() {
            let _ = producer.offer(note(event.to_string().as_bytes()));
        }
    };
    let (journal, _) =
        Journal::open_with(Config { classes, ..small(folder.path()) }, disk.storage(), listener).unwrap();
    cell.set(journal.producer()).unwrap();
    journal.producer().commit_blocking(note(b"a").ack(Ack::Written)).unwrap();
    assert!(journal.close(LONG).is_complete());
    assert!(payloads(folder.path()).len() > 1, "what the listener wrote is there as well");
}

#[test]
fn contradictions_are_refused_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let good = small(folder.path());
    let lossy = |one_in| vec![ClassConfig::new("a").overload(Overload::Sample { one_in })];
    let segments = |pack| Space::Segments { retention: Retention::default(), pack };
    let bad = [
        ("name", Config { name: "Query Log".into(), ..good.clone() }),
        ("stripes", Config { stripes: 0, ..good.clone() }),
        ("stripes", Config { stripes: 2, format: Format::Json, bytes_max: 1 << 20, ..good.clone() }),
        ("bytes_max", Config { stripes: 8, ..good.clone() }),
        ("record_bytes_max", Config { record_bytes_max: 1 << 20, ..good.clone() }),
        ("segment_bytes", Config { segment_bytes: 100, ..good.clone() }),
        ("classes", Config { classes: Vec::new(), ..good.clone() }),
        ("classes", Config { classes: lossy(0), ..good.clone() }),
        ("space", Config { space: Space::Ring { segments: 1 }, ..good.clone() }),
        ("space", Config { space: Space::Ring { segments: 4 }, format: Format::Text, ..good.clone() }),
        ("space", Config { space: segments(Pack::Zstd(99)), ..good.clone() }),
    ];
    for (key, config) in bad {
        match Journal::open(config) {
            Err(OpenError::Config(advice)) => assert!(advice.starts_with(key), "{advice}"),
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn a_journal_that_is_opened_and_closed_leaves_no_segment() {
    let folder = TempDir::new().unwrap();
    for _ in 0..3 {
        let (journal, recovery) = Journal::open_with(small(folder.path()), Arc::new(Disk), |_| ()).unwrap();
        assert!(recovery.is_clean() && journal.class("one").is_some() && journal.class("two").is_none());
        drop(journal);
    }
    assert!(segments(folder.path()).is_empty());
}

/// With the disk, or with whoever listens.
#[test]
fn jo_39_upkeep_that_hangs_does_not_hold_up_the_end() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("journal");
    let ((hang, hangs), (go, going)) = (mpsc::channel(), mpsc::channel::<()>());
    let (going, of_folder) = (Mutex::new(going), format!("{}: ", path.display()));
    let listener = move |event: &Event| match event {
        Event::Upkeep { error } if error.starts_with(&of_folder) => {
            let _ = hang.send(());
            let _ = going.lock().unwrap().recv();
        }
        _ => {}
    };
    let (journal, _) = Journal::open_with(small(&path), Arc::new(Disk), listener).unwrap();
    journal.producer().commit_blocking(note(b"a").ack(Ack::Written)).unwrap();
    fs::remove_dir_all(&path).unwrap();
    journal.reopen();
    hangs.recv_timeout(LONG).expect("a folder that is gone cannot be looked at");
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(journal.close(Duration::from_millis(100))));
    let report = ended.recv_timeout(LONG).expect("it ends");
    assert!(report.is_complete(), "{report:?}");
    drop(go);
}
