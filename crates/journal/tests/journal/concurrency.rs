//! Concurrent appends, rotations, reopening and closing.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use tempfile::TempDir;
use tidegate_journal::{Ack, AppendError, CommitError, Journal, JournalConfig, RecordId, verify};

use crate::{
    LONG,
    checker::{DurabilityChecker, name},
    faults::{Answer, FaultyDisk, StorageCall},
    new_record, payloads, segments, small, until,
};

/// Threads append and commit until they are rejected or done, while `meanwhile` runs.
fn under_load(folder: &TempDir, config: JournalConfig, each: usize, meanwhile: impl FnOnce(Journal)) -> usize {
    let (journal, _) = Journal::open(config).unwrap();
    let checker = Mutex::new(DurabilityChecker::default());
    std::thread::scope(|scope| {
        for producer in 0..4 {
            let (handle, checker) = (journal.producer(), &checker);
            scope.spawn(move || {
                for number in 0..each {
                    let record = name(producer, number);
                    checker.lock().unwrap().offer(&record);
                    let ack = if number % 8 == 0 { Ack::Written } else { Ack::Accepted };
                    match handle.commit_blocking(new_record(record.as_bytes()).ack(ack)) {
                        Ok(_) => checker.lock().unwrap().acked(&record, Ack::Written),
                        Err(error) => return assert_eq!(error, AppendError::Closed.into()),
                    }
                }
            });
        }
        meanwhile(journal);
    });
    let found = payloads(folder.path());
    // The journal was closed in order, so every accepted record is written.
    checker.into_inner().unwrap().check(&found, Ack::Written).unwrap();
    let report = verify(folder.path()).unwrap();
    assert!(report.is_intact() && report.damage.is_empty(), "{report:?}");
    found.len()
}

/// JO-31: close and drop while producers append.
#[test]
fn close_and_drop_while_producers_append() {
    for round in 0..20 {
        let folder = TempDir::new().unwrap();
        under_load(&folder, small(folder.path()), usize::MAX, |journal| {
            crate::until("records are written", || journal.stats().written > 100);
            if round % 2 == 0 {
                assert!(journal.close(LONG).is_complete());
            } else {
                drop(journal);
            }
        });
    }
}

/// JO-31: closing releases waiting producers. The disk hangs, so only closing can release them, including those that join
/// the queue while it closes.
#[test]
fn no_producer_waits_for_a_closing_journal() {
    for round in 0..200 {
        let folder = TempDir::new().unwrap();
        let disk = crate::faults::FaultyDisk::healthy();
        let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
        let producer = journal.producer();
        crate::fill(&disk, &journal);
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for turns in 0..3 {
                let (producer, begun, ended) = (&producer, &begun, &ended);
                scope.spawn(move || {
                    begun.fetch_add(1, SeqCst);
                    // The threads start at different times, and at other times in each round.
                    (0..turns * round).for_each(|_| std::hint::spin_loop());
                    // A task, as a thread that may block would write in place of the writer and hang with the disk.
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let result = runtime.block_on(producer.append(new_record(&[b'x'; 500])));
                    ended.fetch_add(1, SeqCst);
                    assert!(matches!(result, Ok(_) | Err(AppendError::Closed)), "{result:?}");
                });
            }
            crate::until("all threads started", || begun.load(SeqCst) == 3);
            scope.spawn(|| journal.close(std::time::Duration::ZERO));
            crate::until("all appends returned", || ended.load(SeqCst) == 3);
            disk.resume();
        });
    }
}

/// JO-32: rotation under load.
#[test]
fn rotation_under_load() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 1 << 10);
    let found = under_load(&folder, config, 5_000, |journal| {
        crate::until("all records are accepted", || journal.stats().numbered == 20_000);
        assert!(journal.close(LONG).is_complete());
    });
    assert_eq!(found, 20_000);
    assert!(segments(folder.path()).len() > 15, "{}", segments(folder.path()).len());
    let largest = segments(folder.path()).iter().map(|path| path.metadata().unwrap().len()).max();
    assert!(largest <= Some(32 << 10), "{largest:?}");
}

/// JO-33: reopen while writing.
#[test]
fn reopen_while_writing() {
    let folder = TempDir::new().unwrap();
    let found = under_load(&folder, small(folder.path()), 3_000, |journal| {
        while journal.stats().numbered < 12_000 {
            journal.reopen();
            std::thread::yield_now();
        }
        assert!(journal.close(LONG).is_complete());
    });
    assert_eq!(found, 12_000);
    assert_eq!(segments(folder.path()).len(), 1, "the segment was not renamed");
}

/// JO-31: closed journal rejects records.
#[test]
fn closed_journal_rejects_records() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    journal.close(LONG);
    assert_eq!(producer.offer(new_record(b"x")), Err(AppendError::Closed));
    assert_eq!(producer.append_blocking(new_record(b"x")), Err(AppendError::Closed));
    assert!(payloads(folder.path()).is_empty());
}

/// JO-31: waiting producers are rejected on close.
#[test]
fn waiting_producers_are_rejected_on_close() {
    let folder = TempDir::new().unwrap();
    let disk = crate::faults::FaultyDisk::healthy();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    crate::fill(&disk, &journal);
    let (rejected, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                assert_eq!(runtime.block_on(producer.append(new_record(&[b'x'; 500]))), Err(AppendError::Closed));
                rejected.fetch_add(1, SeqCst);
            });
        }
        crate::until("all producers wait", || journal.stats().blocked == 4);
        scope.spawn(|| {
            journal.close(std::time::Duration::ZERO);
            done.store(true, SeqCst);
        });
        crate::until("all producers are rejected", || rejected.load(SeqCst) == 4 && done.load(SeqCst));
        disk.resume();
    });
}

/// Counts wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

type Commit<'a> = Pin<Box<dyn Future<Output = Result<RecordId, CommitError>> + 'a>>;

/// JO-28: all waiters are woken although the first woken ones do not run. Woken waiters wake others; here none of them
/// runs, while the next sync hangs.
#[test]
fn all_waiters_are_woken_if_the_first_do_not_run() {
    let folder = TempDir::new().unwrap();
    // The number of syncs that have begun, and that may end.
    let (begun, allowed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begins, allows) = (Arc::clone(&begun), Arc::clone(&allowed));
    let disk = FaultyDisk::new(move |call| {
        if call == StorageCall::Sync {
            let number = begins.fetch_add(1, SeqCst) + 1;
            until("the sync may end", || allows.load(SeqCst) >= number);
        }
        Answer::Do
    });
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let commit = || {
        let mut commit: Commit<'_> = Box::pin(producer.commit(new_record(b"x").ack(Ack::Durable)));
        assert!(commit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        commit
    };
    let first = commit();
    until("the first sync", || begun.load(SeqCst) == 1);
    let second: Vec<Commit<'_>> = (0..200).map(|_| commit()).collect();
    allowed.store(1, SeqCst);
    until("the second sync", || begun.load(SeqCst) == 2);
    // This makes the writer continue before it has woken all.
    let third = commit();
    allowed.store(2, SeqCst);
    until("all waiters are woken", || count.0.load(SeqCst) == 1 + second.len());
    until("the third sync", || begun.load(SeqCst) == 3);
    for mut commit in second {
        assert!(matches!(commit.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
    }
    allowed.store(usize::MAX, SeqCst);
    drop((first, third));
    assert!(journal.close(LONG).is_complete());
}
