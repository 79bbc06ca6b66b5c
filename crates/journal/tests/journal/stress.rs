//! A random mix: many producers of all classes and ack levels that cancel at any time, a disk that fails and recovers,
//! reopened segments, and a journal that is closed meanwhile. The counters balance, and nothing hangs.

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
    Ack, AppendError, Class, ClassConfig, CommitError, Journal, JournalConfig, JournalStats, LossCause, OverloadPolicy,
    Producer, ProducerRecord, verify,
};

use crate::{
    LONG,
    checker::{DurabilityChecker, name},
    faults::{Answer, FaultyDisk, StorageCall},
    payloads, rounds, seed, small,
};

const PRODUCERS: usize = 300;
const RECORDS: usize = 40;
/// The class of [`config`] whose records may be displaced.
const DROP_OLDEST_CLASS: u8 = 2;

fn config(folder: &std::path::Path, stripes: usize) -> JournalConfig {
    let block = OverloadPolicy::Block { deadline: Duration::from_millis(20) };
    let overloads = [
        block,
        OverloadPolicy::DropNewest,
        OverloadPolicy::DropOldest,
        OverloadPolicy::Sample { one_in: 3 },
        crate::BLOCK,
    ];
    let classes = overloads.map(|overload| ClassConfig::new("any").overload(overload)).into();
    JournalConfig { stripes, bytes_max: stripes * (64 << 10), segment_bytes: 32 << 10, classes, ..small(folder) }
}

/// A disk that is healthy, full, or failing at random, according to `state`.
fn disk(state: &Arc<AtomicU8>, mut random: fastrand::Rng) -> FaultyDisk {
    let state = Arc::clone(state);
    FaultyDisk::new(move |call| {
        let error = |errno: rustix::io::Errno| Answer::Fail(0, io::Error::from(errno));
        match (state.load(SeqCst), call) {
            (1, StorageCall::Write(bytes)) => Answer::Fail(bytes / 3, rustix::io::Errno::NOSPC.into()),
            (1, StorageCall::Create) => error(rustix::io::Errno::NOSPC),
            (2, StorageCall::Write(bytes)) if random.u8(..8) == 0 => {
                Answer::Fail(bytes / 2, rustix::io::Errno::IO.into())
            }
            (2, StorageCall::Write(bytes)) if random.u8(..4) == 0 => Answer::Incomplete(1 + bytes / 2),
            (2, _) if random.u8(..8) == 0 => error(rustix::io::Errno::IO),
            _ => Answer::Do,
        }
    })
}

/// Polls a future at most `polls` times, then drops it.
async fn poll_at_most<F: Future>(future: F, mut polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if polls == 0 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            // The future may also be dropped without ever having been woken.
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// Appends a record in a random way. `false`: the journal is closed.
async fn append(producer: &Producer, text: &str, random: &mut fastrand::Rng, checker: &mut DurabilityChecker) -> bool {
    let class = random.u8(..5);
    let ack = random.choice([Ack::Accepted, Ack::Written, Ack::Durable]).unwrap();
    let record = ProducerRecord::new(Class::new(class), text.as_bytes()).ack(ack);
    let polls = if random.bool() { random.usize(..30) } else { usize::MAX };
    let way = random.u8(..4);
    let stays = |ack| class != DROP_OLDEST_CLASS || ack > Ack::Accepted;
    let appended = match way {
        0 => Some(producer.offer(record)),
        1 => {
            checker.offer(text);
            return match poll_at_most(producer.commit(record), polls).await {
                Some(Ok(_)) => {
                    if stays(ack) {
                        checker.acked(text, ack);
                    }
                    true
                }
                None | Some(Err(CommitError::Lost(_))) => true,
                Some(Err(error)) => error != CommitError::Append(AppendError::Closed),
            };
        }
        _ => poll_at_most(producer.append(record), polls).await,
    };
    match appended {
        // Dropped before it was accepted: the record must not be found.
        None => true,
        Some(Err(rejected)) => rejected != AppendError::Closed,
        Some(Ok(record_id)) => {
            checker.offer(text);
            if stays(ack) {
                checker.acked(text, Ack::Accepted);
            }
            if way == 3 {
                let waited = random.choice([Ack::Accepted, Ack::Written, Ack::Durable]).unwrap();
                if let Some(Ok(())) = poll_at_most(producer.wait(record_id, waited), polls).await
                    && stays(waited)
                {
                    checker.acked(text, waited);
                }
            }
            true
        }
    }
}

async fn produce(producer: Producer, number: usize, mut random: fastrand::Rng) -> DurabilityChecker {
    let mut checker = DurabilityChecker::default();
    for record in 0..RECORDS {
        let text = format!("{} {}", name(number, record), "x".repeat(random.usize(..1500)));
        if !append(&producer, &text, &mut random, &mut checker).await {
            break;
        }
        tokio::task::yield_now().await;
    }
    checker
}

/// Injects faults: changes the state of the disk, reopens segments, flushes for a short time.
fn inject_faults(journal: &Journal, state: &AtomicU8, is_over: &AtomicBool, mut random: fastrand::Rng) {
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

/// Runs producers and faults. Returns the checker, and the statistics unless the journal was closed early.
fn run(folder: &TempDir, random: &mut fastrand::Rng) -> (DurabilityChecker, Option<JournalStats>) {
    let (state, is_over) = (Arc::new(AtomicU8::new(0)), AtomicBool::new(false));
    let disk = disk(&state, random.fork());
    let (journal, _) = Journal::open_with(config(folder.path(), random.usize(1..=8)), disk.storage(), |_| ()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let produced = |number| runtime.spawn(produce(journal.producer(), number, fastrand::Rng::with_seed(number as u64)));
    let tasks: Vec<_> = (0..PRODUCERS).map(produced).collect();
    let closes_early = random.bool();
    let few = if closes_early { random.usize(..PRODUCERS) } else { PRODUCERS };
    let mut tasks = tasks.into_iter();
    let join = |task: tokio::task::JoinHandle<DurabilityChecker>| runtime.block_on(task).unwrap();
    let mut checker: Vec<DurabilityChecker> = std::thread::scope(|scope| {
        let forked = random.fork();
        scope.spawn(|| inject_faults(&journal, &state, &is_over, forked));
        let first = tasks.by_ref().take(few).map(join).collect();
        is_over.store(true, SeqCst);
        first
    });
    let stats = (!closes_early).then(|| {
        // Losses from failed syncs are reported once.
        let _ = journal.flush(Ack::Durable, LONG);
        assert!(journal.flush(Ack::Written, LONG).unwrap());
        journal.stats()
    });
    let report = journal.close(LONG);
    checker.extend(tasks.map(join));
    assert!(report.is_complete(), "{report:?}");
    (checker.into_iter().fold(DurabilityChecker::default(), DurabilityChecker::merge), stats)
}

fn check_counters(folder: &TempDir, stats: &JournalStats) {
    let report = verify(folder.path()).unwrap();
    assert!(report.is_intact(), "{report:?}");
    assert_eq!((stats.reserved_bytes, stats.queued_bytes, stats.blocked), (0, 0, 0), "{stats:?}");
    let accepted: u64 = stats.classes.iter().map(|class| class.accepted - class.lost(LossCause::Oldest)).sum();
    assert_eq!(report.records, accepted, "{stats:?}");
    for (index, class) in stats.classes.iter().enumerate() {
        for cause in LossCause::ALL {
            let lost = report.gaps.iter().filter(|gap| usize::from(gap.class.index()) == index && gap.cause == cause);
            assert_eq!(lost.map(|gap| gap.records).sum::<u64>(), class.lost(cause), "{index} {cause:?}");
        }
    }
}

/// JO-19: counters balance under random faults.
#[test]
fn counters_balance_under_random_faults() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..rounds("TIDEGATE_JOURNAL_STRESSES", 6) {
        let folder = TempDir::new().unwrap();
        let (checker, stats) = run(&folder, &mut random);
        if let Some(stats) = stats {
            check_counters(&folder, &stats);
        }
        checker.check(&payloads(folder.path()), Ack::Accepted).unwrap();
    }
}
