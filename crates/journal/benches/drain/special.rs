//! Cases that only the journal covers: durable group commits, and appends that the disk does not delay.

use std::{
    fs::File,
    hint,
    io::{self, Write},
    path::Path,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tidegate_journal::{
    Ack, Class, ClassConfig, FileStorage, Journal, JournalConfig, OverloadPolicy, Producer, ProducerRecord,
    SegmentFile, SegmentPolicy, Storage,
};

use tidegate_figures::median;

use crate::{load::nanos, process};

pub(crate) const PAYLOAD: [u8; 100] = [b'x'; 100];
const RING_SEGMENTS: u32 = 2;
const RING_SEGMENT_BYTES: u64 = 32 << 20;
const RING_PAYLOAD_BYTES: usize = 256 << 10;

/// Producers that each have one durable append outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commits {
    pub(crate) producers: usize,
    /// The number of producers in each task.
    pub(crate) per_task: usize,
    /// The number of records that each producer commits.
    pub(crate) records: usize,
    pub(crate) stripes: usize,
    /// Segments are the preallocated files of a ring.
    pub(crate) ring: bool,
    /// The least duration of a sync, to emulate a slower disk.
    pub(crate) sync: Duration,
}

/// Returns records per second, seconds per sync of an equally large batch (measured before and after on the same file
/// system), and records per sync.
pub(crate) fn durable(folder: &Path, commits: Commits) -> (f64, f64, f64) {
    let Commits { producers, per_task, records, stripes, ring, sync } = commits;
    let before = sync_seconds(folder, producers, sync);
    let mut config = JournalConfig { stripes, ..JournalConfig::new(folder) };
    if ring {
        (config.segment_policy, config.segment_bytes) =
            (SegmentPolicy::Ring { segments: RING_SEGMENTS }, RING_SEGMENT_BYTES);
    }
    let (journal, _) =
        Journal::open_with(config, Arc::new(SlowDisk { gate: None, sync }), |_| ()).expect("open the journal");
    if ring {
        fill_ring(&journal, stripes);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    // Each stripe opens a segment before the clock starts.
    (0..stripes).for_each(|_| runtime.block_on(commit(journal.producer(), 1)));
    let begun = Instant::now();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..producers / per_task {
            if per_task == 1 {
                tasks.push(tokio::spawn(commit(journal.producer(), records)));
                continue;
            }
            let mut commits: FuturesUnordered<_> = (0..per_task).map(|_| commit(journal.producer(), records)).collect();
            tasks.push(tokio::spawn(async move { while commits.next().await.is_some() {} }));
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    let rate = (producers * records) as f64 / begun.elapsed().as_secs_f64();
    let shared = (producers * records) as f64 / journal.stats().syncs as f64;
    drop(journal);
    (rate, f64::midpoint(before, sync_seconds(folder, producers, sync)), shared)
}

/// Writes each file of the ring once.
fn fill_ring(journal: &Journal, stripes: usize) {
    let payload = vec![b'x'; RING_PAYLOAD_BYTES];
    for stripe in 0..stripes {
        let producer = journal.producer_for(stripe);
        for _ in 0..=RING_SEGMENTS as usize * (RING_SEGMENT_BYTES as usize / RING_PAYLOAD_BYTES) {
            producer.append_blocking(ProducerRecord::new(Class::new(0), &payload)).expect("room before the deadline");
        }
    }
    assert_eq!(journal.flush(Ack::Durable, Duration::from_secs(60)), Ok(true));
}

async fn commit(producer: Producer, records: usize) {
    for _ in 0..records {
        let record = ProducerRecord::new(Class::new(0), &PAYLOAD).ack(Ack::Durable);
        producer.commit(record).await.expect("commit the record");
    }
}

/// The time to make a batch of one record per producer durable, without other work.
pub(crate) fn sync_seconds(folder: &Path, producers: usize, least: Duration) -> f64 {
    let mut file = File::create(folder.join("syncs")).expect("create the file");
    let batch = vec![b'x'; producers * (PAYLOAD.len() + 24)];
    let turn = |file: &mut File| {
        file.write_all(&batch).expect("write the file");
        let begun = Instant::now();
        at_least(least, || file.sync_data()).expect("sync the file");
        begun.elapsed().as_secs_f64()
    };
    median((0..50).map(|_| turn(&mut file)).collect())
}

/// Runs `sync` and waits until `least` has passed.
fn at_least<T>(least: Duration, sync: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = sync();
    thread::sleep(least.saturating_sub(begun.elapsed()));
    result
}

/// The p99 in nanoseconds, and the memory over the idle process in KiB.
pub(crate) struct Latency {
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) memory_kib: f64,
}

/// Appends of two threads at a rate that the disk can follow: one in some microseconds.
pub(crate) fn unblocked(folder: &Path, records: usize) -> Latency {
    let (journal, _) = Journal::open(JournalConfig::new(folder)).expect("open the journal");
    paced(&journal, records)
}

/// The same while the disk hangs, until the bound is reached; and the memory then.
pub(crate) fn stalled(folder: &Path) -> Latency {
    let classes = vec![ClassConfig::new("a").overload(OverloadPolicy::DropNewest)];
    let config = JournalConfig { classes, ..JournalConfig::new(folder) };
    let gate = Arc::new(Gate::default());
    let (journal, _) = Journal::open_with(
        config.clone(),
        Arc::new(SlowDisk { gate: Some(Arc::clone(&gate)), sync: Duration::ZERO }),
        |_| (),
    )
    .expect("open the journal");
    let records = config.bytes_max / 124 * 9 / 10;
    let idle = process::resident_kib();
    process::forget_peak();
    let mut latency = paced(&journal, records);
    let producer = journal.producer();
    // Continue beyond the bound.
    for _ in 0..records {
        let _ = producer.offer(ProducerRecord::new(Class::new(0), &PAYLOAD));
    }
    assert!(journal.stats().classes[0].lost_total() > 0, "the bound is reached");
    latency.memory_kib = process::peak_kib() - idle;
    gate.open();
    latency
}

fn paced(journal: &Journal, records: usize) -> Latency {
    let timestamps = Mutex::new(Vec::with_capacity(records));
    let idle = process::resident_kib();
    process::forget_peak();
    thread::scope(|scope| {
        for _ in 0..2 {
            let (producer, timestamps) = (journal.producer(), &timestamps);
            scope.spawn(move || {
                let mut timed = Vec::with_capacity(records / 2);
                for _ in 0..records / 2 {
                    let begun = Instant::now();
                    producer.offer(ProducerRecord::new(Class::new(0), &PAYLOAD)).expect("there is room");
                    timed.push(nanos(begun));
                    while begun.elapsed() < Duration::from_micros(4) {
                        hint::spin_loop();
                    }
                }
                timestamps.lock().expect("no thread panics").extend(timed);
            });
        }
    });
    let mut timestamps = timestamps.into_inner().expect("no thread panics");
    timestamps.sort_unstable();
    let at = |share: f64| f64::from(timestamps[((timestamps.len() - 1) as f64 * share) as usize]);
    Latency { p50_ns: at(0.5), p99_ns: at(0.99), memory_kib: process::peak_kib() - idle }
}

#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().expect("no thread panics") = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().expect("no thread panics");
        drop(self.opened.wait_while(open, |open| !*open));
    }
}

/// A disk whose writes hang until the gate opens, if there is one, and whose syncs take at least a given time.
#[derive(Clone, Debug)]
struct SlowDisk {
    gate: Option<Arc<Gate>>,
    sync: Duration,
}

#[derive(Debug)]
struct SlowFile(Box<dyn SegmentFile>, SlowDisk);

impl Storage for SlowDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(SlowFile(FileStorage.create(path)?, self.clone())))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(SlowFile(FileStorage.open(path)?, self.clone())))
    }

    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(SlowFile(FileStorage.recycle(from, to)?, self.clone())))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        FileStorage.remove(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        FileStorage.sync_folder(folder)
    }
}

impl SegmentFile for SlowFile {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.1.gate.iter().for_each(|gate| gate.pass());
        self.0.write_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        let Self(file, odd) = self;
        at_least(odd.sync, || file.sync())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        self.0.allocate(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.0.is_at(path)
    }
}
