//! Subjects: the subscription, and other designs.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use tidegate_lanes::source::MemorySource;
use tidegate_lanes::{BlockingThreads, Bounds, Epoch, Lane, Record, Subscription};
use tokio::sync::{Semaphore, mpsc};

use crate::floor::{SLEEPERS, TOKIO_SLEEPERS, sleep_all};
use crate::load::{Check, Load, handle, handle_blocking};
use crate::usage::Usage;

pub(crate) const OURS: &str = "lanes";
pub(crate) const OURS_THREADS: &str = "lanes, threads";
pub(crate) const OURS_CORES: &str = "lanes, own threads";
pub(crate) const BARE: &str = "bare tasks (no order)";
pub(crate) const BARE_CORES: &str = "bare, runtime per core";
pub(crate) const BARE_THREADS: &str = "bare threads (no order)";
pub(crate) const BUFFERED: &str = "buffer_unordered (no order)";
pub(crate) const HASHED: &str = "1000 hashed channels";
pub(crate) const TASK_PER_KEY: &str = "task + channel per key";

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    pub(crate) cpu_us: f64,
    pub(crate) memory_mib: f64,
    pub(crate) violations: f64,
}

impl Figures {
    pub(crate) fn to_line(&self) -> String {
        format!("{} {} {} {}", self.per_second, self.cpu_us, self.memory_mib, self.violations)
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let values: Vec<f64> = line.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let &[per_second, cpu_us, memory_mib, violations] = &values[..] else { return None };
        Some(Self { per_second, cpu_us, memory_mib, violations })
    }
}

/// Runs one subject.
pub(crate) async fn run(subject: &str, load: Load) -> Figures {
    let check = Arc::new(Check::new(load.key_count(&load.keys())));
    let (source, feed) = MemorySource::new();
    let epoch = feed.assign(Lane(0));
    let records = load.records(if subject.starts_with(OURS) { epoch } else { Epoch(1) });
    let is_ours = subject.starts_with(OURS);
    let ours = is_ours.then(|| {
        feed.extend(records.iter().cloned());
        feed.end();
        match subject {
            OURS_THREADS => threaded(source, load, &check),
            _ => subscription(source, load, &check, subject == OURS_CORES),
        }
    });
    // The subscription has the only copy, like the other subjects.
    let records = if is_ours { drop_all(records) } else { records };
    let began = Usage::now();
    match (subject, ours) {
        (_, Some(subscription)) => {
            let done = subscription.run().await.expect("subscription failed").done;
            assert_eq!(done, u64::from(load.records), "records were lost");
        }
        (BARE, _) => bare(records, load, &check).await,
        (BARE_CORES, _) => bare_cores(records, load, &check),
        (BARE_THREADS, _) => bare_threads(records, load, &check),
        (SLEEPERS | TOKIO_SLEEPERS, _) => sleep_all(subject, load).await,
        (BUFFERED, _) => buffered(records, load, &check).await,
        (HASHED, _) => hashed(records, load, &check).await,
        _ => task_per_key(records, load, &check).await,
    }
    let used = began.until_now();
    Figures {
        per_second: f64::from(load.records) / used.wall.as_secs_f64(),
        cpu_us: used.cpu.as_secs_f64() * 1e6 / f64::from(load.records),
        memory_mib: used.peak_mib,
        violations: check.violations() as f64,
    }
}

fn drop_all(_: Vec<Record>) -> Vec<Record> {
    Vec::new()
}

fn bounds(load: Load) -> Bounds {
    // As many queued as running records, so that a free permit finds a record.
    let most = 2 * load.in_flight;
    Bounds { records_max: most, lane_records_max: most, ..Bounds::default() }
}

fn subscription(source: MemorySource, load: Load, check: &Arc<Check>, has_own_threads: bool) -> Subscription {
    let check = Arc::clone(check);
    let mut builder = Subscription::builder("bench").source(source).concurrency(load.in_flight).bounds(bounds(load));
    if has_own_threads {
        builder = builder.own_threads();
    }
    let handler = move |delivery: tidegate_lanes::Delivery| {
        let check = Arc::clone(&check);
        async move {
            handle(load.handler, &check, &delivery.record).await;
            delivery.finish();
        }
    };
    builder.handler(handler).expect("valid settings")
}

fn threaded(source: MemorySource, load: Load, check: &Arc<Check>) -> Subscription {
    let check = Arc::clone(check);
    let builder = Subscription::builder("bench").source(source).runtime(BlockingThreads(load.in_flight));
    let handler = move |delivery: tidegate_lanes::Delivery| {
        handle_blocking(load.handler, &check, &delivery.record);
        delivery.finish();
    };
    builder.handler(handler).expect("valid settings")
}

/// A task per record behind a semaphore: the capacity of the machine without order.
async fn bare(records: Vec<Record>, load: Load, check: &Arc<Check>) {
    let permits = Arc::new(Semaphore::new(load.in_flight));
    for record in records {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
        let check = Arc::clone(check);
        tokio::spawn(async move {
            handle(load.handler, &check, &record).await;
            drop(permit);
        });
    }
    drop(permits.acquire_many(load.in_flight as u32).await);
}

/// Like [`bare`], with one runtime per core, so that no task and no timer is shared.
fn bare_cores(records: Vec<Record>, load: Load, check: &Arc<Check>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut parts: Vec<Vec<Record>> = (0..cores).map(|_| Vec::new()).collect();
    records.into_iter().enumerate().for_each(|(at, record)| parts[at % cores].push(record));
    let part = Load { in_flight: load.in_flight / cores, ..load };
    let on_core = |records| {
        let check = Arc::clone(check);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            runtime.block_on(bare(records, part, &check));
        })
    };
    let threads: Vec<_> = parts.into_iter().map(on_core).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("benchmark panicked"));
}

/// A pool of threads that take the next record.
fn bare_threads(records: Vec<Record>, load: Load, check: &Arc<Check>) {
    let records = Arc::new(std::sync::Mutex::new(records.into_iter()));
    let take = |_| {
        let (records, check) = (Arc::clone(&records), Arc::clone(check));
        std::thread::spawn(move || {
            let next = || records.lock().expect("not poisoned").next();
            while let Some(record) = next() {
                handle_blocking(load.handler, &check, &record);
            }
        })
    };
    let threads: Vec<_> = (0..load.in_flight).map(take).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("benchmark panicked"));
}

async fn buffered(records: Vec<Record>, load: Load, check: &Arc<Check>) {
    let run = |record| async move { handle(load.handler, check, &record).await };
    stream::iter(records).map(run).buffer_unordered(load.in_flight).for_each(|()| async {}).await;
}

/// A fixed number of tasks with a channel each; keys are assigned by hash.
async fn hashed(records: Vec<Record>, load: Load, check: &Arc<Check>) {
    let mut lanes = Vec::new();
    let mut tasks = Vec::new();
    for _ in 0..1000 {
        let (sender, receiver) = mpsc::channel((load.in_flight / 1000).max(16));
        lanes.push(sender);
        tasks.push(tokio::spawn(work_off(receiver, load, Arc::clone(check))));
    }
    for record in records {
        let lane = fold(&record) as usize % lanes.len();
        lanes[lane].send(record).await.expect("receiver alive");
    }
    drop(lanes);
    for task in tasks {
        task.await.expect("benchmark panicked");
    }
}

fn fold(record: &Record) -> u64 {
    let key: [u8; 8] = record.key().and_then(|key| key.try_into().ok()).expect("key of eight bytes");
    u64::from_be_bytes(key)
}

/// A task and a channel per key ever seen, because the end of a key is unknown.
async fn task_per_key(records: Vec<Record>, load: Load, check: &Arc<Check>) {
    let permits = Arc::new(Semaphore::new(load.in_flight));
    let mut keys: HashMap<u64, mpsc::UnboundedSender<(Record, tokio::sync::OwnedSemaphorePermit)>> = HashMap::new();
    let mut tasks = Vec::new();
    for record in records {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
        let channel = keys.entry(fold(&record)).or_insert_with(|| {
            let (sender, mut receiver) = mpsc::unbounded_channel::<(Record, tokio::sync::OwnedSemaphorePermit)>();
            let check = Arc::clone(check);
            tasks.push(tokio::spawn(async move {
                while let Some((record, permit)) = receiver.recv().await {
                    handle(load.handler, &check, &record).await;
                    drop(permit);
                }
            }));
            sender
        });
        channel.send((record, permit)).expect("receiver alive");
    }
    drop(keys);
    for task in tasks {
        task.await.expect("benchmark panicked");
    }
}

async fn work_off(mut channel: mpsc::Receiver<Record>, load: Load, check: Arc<Check>) {
    while let Some(record) = channel.recv().await {
        handle(load.handler, &check, &record).await;
    }
}
