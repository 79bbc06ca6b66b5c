//! Appends, rotations, reopening and closing at the same time.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use tempfile::TempDir;
use tidegate_journal::{Ack, CommitError, Config, Journal, Refused, Ticket, verify};

use crate::{
    LONG,
    checker::{Promises, name},
    faults::{Answer, Call, Faulty},
    note, payloads, segments, small, until,
};

/// Threads append and commit until they are refused or have done enough, while `meanwhile` happens.
fn under_load(folder: &TempDir, config: Config, each: usize, meanwhile: impl FnOnce(Journal)) -> usize {
    let (journal, _) = Journal::open(config).unwrap();
    let promises = Mutex::new(Promises::default());
    std::thread::scope(|scope| {
        for producer in 0..4 {
            let (handle, promises) = (journal.producer(), &promises);
            scope.spawn(move || {
                for number in 0..each {
                    let record = name(producer, number);
                    promises.lock().unwrap().offer(&record);
                    let ack = if number % 8 == 0 { Ack::Written } else { Ack::Accepted };
                    match handle.commit_blocking(note(record.as_bytes()).ack(ack)) {
                        Ok(_) => promises.lock().unwrap().tell(&record, Ack::Written),
                        Err(error) => return assert_eq!(error, Refused::Closed.into()),
                    }
                }
            });
        }
        meanwhile(journal);
    });
    let found = payloads(folder.path());
    // The journal was closed in order, so accepted is as good as written.
    promises.into_inner().unwrap().check(&found, Ack::Written).unwrap();
    let verdict = verify(folder.path()).unwrap();
    assert!(verdict.is_whole() && verdict.damage.is_empty(), "{verdict:?}");
    found.len()
}

#[test]
fn jo_31_closing_and_dropping_while_producers_append() {
    for round in 0..20 {
        let folder = TempDir::new().unwrap();
        under_load(&folder, small(folder.path()), usize::MAX, |journal| {
            crate::until("it runs", || journal.stats().written > 100);
            if round % 2 == 0 {
                assert!(journal.close(LONG).is_complete());
            } else {
                drop(journal);
            }
        });
    }
}

/// The disk hangs, so nobody but the closing itself can send them home: also those that come to the line while it closes.
#[test]
fn jo_31_nobody_waits_for_a_journal_that_closes_meanwhile() {
    for round in 0..200 {
        let folder = TempDir::new().unwrap();
        let disk = crate::faults::Faulty::sound();
        let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
        let producer = journal.producer();
        crate::fill(&disk, &producer);
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for turns in 0..3 {
                let (producer, begun, ended) = (&producer, &begun, &ended);
                scope.spawn(move || {
                    begun.fetch_add(1, SeqCst);
                    // Each comes at another time, and at another one in each round.
                    (0..turns * round).for_each(|_| std::hint::spin_loop());
                    // In a task: who may block helps to write, and hangs with the disk.
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let result = runtime.block_on(producer.append(note(&[b'x'; 500])));
                    ended.fetch_add(1, SeqCst);
                    assert!(matches!(result, Ok(_) | Err(Refused::Closed)), "{result:?}");
                });
            }
            crate::until("all come", || begun.load(SeqCst) == 3);
            scope.spawn(|| journal.close(std::time::Duration::ZERO));
            crate::until("all are sent home", || ended.load(SeqCst) == 3);
            disk.go();
        });
    }
}

#[test]
fn jo_32_rotation_under_load() {
    let folder = TempDir::new().unwrap();
    let mut config = small(folder.path());
    (config.segment_bytes, config.record_bytes_max) = (32 << 10, 1 << 10);
    let found = under_load(&folder, config, 5_000, |journal| {
        crate::until("all is in", || journal.stats().numbered == 20_000);
        assert!(journal.close(LONG).is_complete());
    });
    assert_eq!(found, 20_000);
    assert!(segments(folder.path()).len() > 15, "{}", segments(folder.path()).len());
    let largest = segments(folder.path()).iter().map(|path| path.metadata().unwrap().len()).max();
    assert!(largest <= Some(32 << 10), "{largest:?}");
}

#[test]
fn jo_33_reopening_while_it_is_written() {
    let folder = TempDir::new().unwrap();
    let found = under_load(&folder, small(folder.path()), 3_000, |journal| {
        while journal.stats().numbered < 12_000 {
            journal.reopen();
            std::thread::yield_now();
        }
        assert!(journal.close(LONG).is_complete());
    });
    assert_eq!(found, 12_000);
    assert!(segments(folder.path()).len() > 2);
}

#[test]
fn jo_31_a_closed_journal_refuses() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = Journal::open(small(folder.path())).unwrap();
    let producer = journal.producer();
    journal.close(LONG);
    assert_eq!(producer.offer(note(b"x")), Err(Refused::Closed));
    assert_eq!(producer.append_blocking(note(b"x")), Err(Refused::Closed));
    assert!(payloads(folder.path()).is_empty());
}

#[test]
fn jo_31_producers_in_line_are_sent_home_when_it_closes() {
    let folder = TempDir::new().unwrap();
    let disk = crate::faults::Faulty::sound();
    let (journal, _) = Journal::open_with(small(folder.path()), disk.storage(), |_| ()).unwrap();
    let producer = journal.producer();
    crate::fill(&disk, &producer);
    let (refused, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                assert_eq!(runtime.block_on(producer.append(note(&[b'x'; 500]))), Err(Refused::Closed));
                refused.fetch_add(1, SeqCst);
            });
        }
        crate::until("all wait", || journal.stats().blocked == 4);
        scope.spawn(|| {
            journal.close(std::time::Duration::ZERO);
            done.store(true, SeqCst);
        });
        crate::until("all are sent home", || refused.load(SeqCst) == 4 && done.load(SeqCst));
        disk.go();
    });
}

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

type Commit<'a> = Pin<Box<dyn Future<Output = Result<Ticket, CommitError>> + 'a>>;

/// Those who are told tell the others. Here none of them comes to run, while the next sync hangs.
#[test]
fn jo_28_all_are_told_though_those_who_were_told_first_do_not_come() {
    let folder = TempDir::new().unwrap();
    // How many syncs have begun, and how many may end.
    let (begun, allowed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begins, allows) = (Arc::clone(&begun), Arc::clone(&allowed));
    let disk = Faulty::new(move |call| {
        if call == Call::Sync {
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
        let mut commit: Commit<'_> = Box::pin(producer.commit(note(b"x").ack(Ack::Durable)));
        assert!(commit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        commit
    };
    let first = commit();
    until("the first sync", || begun.load(SeqCst) == 1);
    let second: Vec<Commit<'_>> = (0..200).map(|_| commit()).collect();
    allowed.store(1, SeqCst);
    until("the second sync", || begun.load(SeqCst) == 2);
    // Which makes the writer go on before it has told all.
    let third = commit();
    allowed.store(2, SeqCst);
    until("all are told", || count.0.load(SeqCst) == 1 + second.len());
    until("the third sync", || begun.load(SeqCst) == 3);
    for mut commit in second {
        assert!(matches!(commit.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
    }
    allowed.store(usize::MAX, SeqCst);
    drop((first, third));
    assert!(journal.close(LONG).is_complete());
}
