//! Everything at once, at random: many producers of all classes and acknowledgements who give up at any time, a disk that fails
//! and recovers, files that are let go, and a journal that is closed amid it. The books balance, and nothing hangs.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use tempfile::TempDir;
use tidegate_journal::{
    Ack, Cause, Class, ClassConfig, CommitError, Config, Journal, Note, Overload, Producer, Refused, Stats, verify,
};

use crate::{
    LONG,
    checker::{Promises, name},
    faults::{Answer, Call, Faulty},
    payloads, rounds, seed, small,
};

const PRODUCERS: usize = 300;
const RECORDS: usize = 40;
/// Of [`config`]: what it takes may be displaced.
const DISPLACED: u8 = 2;

fn config(folder: &std::path::Path, stripes: usize) -> Config {
    let block = Overload::Block { deadline: Duration::from_millis(20) };
    let overloads = [block, Overload::DropNewest, Overload::DropOldest, Overload::Sample { one_in: 3 }, crate::BLOCK];
    let classes = overloads.map(|overload| ClassConfig::new("any").overload(overload)).into();
    Config { stripes, bytes_max: stripes * (64 << 10), segment_bytes: 32 << 10, classes, ..small(folder) }
}

/// Sound, full, or failing as one call in eight comes, as somebody else says.
fn disk(state: &Arc<AtomicU8>, mut random: fastrand::Rng) -> Faulty {
    let state = Arc::clone(state);
    Faulty::new(move |call| {
        let error = |errno: rustix::io::Errno| Answer::Fail(0, io::Error::from(errno));
        match (state.load(SeqCst), call) {
            (1, Call::Write(bytes)) => Answer::Fail(bytes / 3, rustix::io::Errno::NOSPC.into()),
            (1, Call::Create) => error(rustix::io::Errno::NOSPC),
            (2, Call::Write(bytes)) if random.u8(..8) == 0 => Answer::Fail(bytes / 2, rustix::io::Errno::IO.into()),
            (2, Call::Write(bytes)) if random.u8(..4) == 0 => Answer::Short(1 + bytes / 2),
            (2, _) if random.u8(..8) == 0 => error(rustix::io::Errno::IO),
            _ => Answer::Do,
        }
    })
}

/// What comes of a future, unless it is not done after so many polls: then it is dropped.
async fn polled<F: Future>(future: F, mut polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if polls == 0 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            // It may as well be dropped without ever having been woken.
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// One more record, in some way. `false`: the journal is closed.
async fn append(producer: &Producer, text: &str, random: &mut fastrand::Rng, promises: &mut Promises) -> bool {
    let class = random.u8(..5);
    let ack = random.choice([Ack::Accepted, Ack::Written, Ack::Durable]).unwrap();
    let note = Note::new(Class::new(class), text.as_bytes()).ack(ack);
    let polls = if random.bool() { random.usize(..30) } else { usize::MAX };
    let way = random.u8(..4);
    let stays = |ack| class != DISPLACED || ack > Ack::Accepted;
    let appended = match way {
        0 => Some(producer.offer(note)),
        1 => {
            promises.offer(text);
            return match polled(producer.commit(note), polls).await {
                Some(Ok(_)) => {
                    if stays(ack) {
                        promises.tell(text, ack);
                    }
                    true
                }
                None | Some(Err(CommitError::Lost(_))) => true,
                Some(Err(error)) => error != CommitError::Refused(Refused::Closed),
            };
        }
        _ => polled(producer.append(note), polls).await,
    };
    match appended {
        // Dropped before it was taken: then it must not be found.
        None => true,
        Some(Err(refused)) => refused != Refused::Closed,
        Some(Ok(ticket)) => {
            promises.offer(text);
            if stays(ack) {
                promises.tell(text, Ack::Accepted);
            }
            if way == 3 {
                let waited = random.choice([Ack::Accepted, Ack::Written, Ack::Durable]).unwrap();
                if let Some(Ok(())) = polled(producer.wait(ticket, waited), polls).await
                    && stays(waited)
                {
                    promises.tell(text, waited);
                }
            }
            true
        }
    }
}

async fn produce(producer: Producer, number: usize, mut random: fastrand::Rng) -> Promises {
    let mut promises = Promises::default();
    for record in 0..RECORDS {
        let text = format!("{} {}", name(number, record), "x".repeat(random.usize(..1500)));
        if !append(&producer, &text, &mut random, &mut promises).await {
            break;
        }
        tokio::task::yield_now().await;
    }
    promises
}

/// Whoever makes trouble: the disk changes, files are let go of, somebody waits a little for all.
fn disturb(journal: &Journal, state: &AtomicU8, is_over: &AtomicBool, mut random: fastrand::Rng) {
    while !is_over.load(SeqCst) {
        match random.u8(..6) {
            0 => journal.reopen(),
            1 => drop(journal.flush(Ack::Durable, Duration::from_millis(random.u64(..3)))),
            change => state.store(change % 3, SeqCst),
        }
        assert!(journal.stats().reserved_bytes_max <= journal.config().bytes_max);
        std::thread::yield_now();
    }
    state.store(0, SeqCst);
}

/// What was promised, and the figures of the journal, if it was not closed meanwhile.
fn run(folder: &TempDir, random: &mut fastrand::Rng) -> (Promises, Option<Stats>) {
    let (state, is_over) = (Arc::new(AtomicU8::new(0)), AtomicBool::new(false));
    let disk = disk(&state, random.fork());
    let (journal, _) = Journal::open_with(config(folder.path(), random.usize(1..=8)), disk.storage(), |_| ()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let produced = |number| runtime.spawn(produce(journal.producer(), number, fastrand::Rng::with_seed(number as u64)));
    let tasks: Vec<_> = (0..PRODUCERS).map(produced).collect();
    let closes_early = random.bool();
    let few = if closes_early { random.usize(..PRODUCERS) } else { PRODUCERS };
    let mut tasks = tasks.into_iter();
    let join = |task: tokio::task::JoinHandle<Promises>| runtime.block_on(task).unwrap();
    let mut promises: Vec<Promises> = std::thread::scope(|scope| {
        let forked = random.fork();
        scope.spawn(|| disturb(&journal, &state, &is_over, forked));
        let first = tasks.by_ref().take(few).map(join).collect();
        is_over.store(true, SeqCst);
        first
    });
    let stats = (!closes_early).then(|| {
        // Those that were lost while a segment was synced are told once.
        let _ = journal.flush(Ack::Durable, LONG);
        assert!(journal.flush(Ack::Written, LONG).unwrap());
        journal.stats()
    });
    let report = journal.close(LONG);
    promises.extend(tasks.map(join));
    assert!(report.is_complete(), "{report:?}");
    (promises.into_iter().fold(Promises::default(), Promises::and), stats)
}

fn books_balance(folder: &TempDir, stats: &Stats) {
    let verdict = verify(folder.path()).unwrap();
    assert!(verdict.is_whole(), "{verdict:?}");
    assert_eq!((stats.reserved_bytes, stats.queued_bytes, stats.blocked), (0, 0, 0), "{stats:?}");
    let accepted: u64 = stats.classes.iter().map(|class| class.accepted - class.lost(Cause::Oldest)).sum();
    assert_eq!(verdict.records, accepted, "{stats:?}");
    for (index, class) in stats.classes.iter().enumerate() {
        for cause in Cause::ALL {
            let told = verdict.gaps.iter().filter(|gap| usize::from(gap.class.index()) == index && gap.cause == cause);
            assert_eq!(told.map(|gap| gap.records).sum::<u64>(), class.lost(cause), "{index} {cause:?}");
        }
    }
}

#[test]
fn jo_19_whatever_happens_at_once_the_books_balance() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..rounds("TIDEGATE_JOURNAL_STRESSES", 6) {
        let folder = TempDir::new().unwrap();
        let (promises, stats) = run(&folder, &mut random);
        if let Some(stats) = stats {
            books_balance(&folder, &stats);
        }
        promises.check(&payloads(folder.path()), Ack::Accepted).unwrap();
    }
}
