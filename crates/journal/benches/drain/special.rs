//! What only the journal promises: durable in groups, and appends that no disk holds up.

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
    Ack, Class, ClassConfig, Config, Disk, Journal, Note, Overload, Producer, SegmentFile, Space, Storage,
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
    /// So many of them are in each task.
    pub(crate) per_task: usize,
    /// What each commits.
    pub(crate) records: usize,
    pub(crate) stripes: usize,
    /// Segments are files that were written before, those of a ring.
    pub(crate) ring: bool,
    /// What a sync takes at least, on a disk that is slower than the one at hand.
    pub(crate) sync: Duration,
}

/// Returns records per second, seconds per sync of a batch as large as theirs, measured before and after on the same file
/// system, and how many records shared a sync.
pub(crate) fn durable(folder: &Path, commits: Commits) -> (f64, f64, f64) {
    let Commits { producers, per_task, records, stripes, ring, sync } = commits;
    let before = sync_seconds(folder, producers, sync);
    let mut config = Config { stripes, ..Config::new(folder) };
    if ring {
        (config.space, config.segment_bytes) = (Space::Ring { segments: RING_SEGMENTS }, RING_SEGMENT_BYTES);
    }
    let (journal, _) = Journal::open_with(config, Arc::new(Odd { gate: None, sync }), |_| ()).expect("it opens");
    if ring {
        go_round(&journal, stripes);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    // Each stripe has a segment before the clock runs.
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
            task.await.expect("it does not panic");
        }
    });
    let rate = (producers * records) as f64 / begun.elapsed().as_secs_f64();
    let shared = (producers * records) as f64 / journal.stats().syncs as f64;
    drop(journal);
    (rate, f64::midpoint(before, sync_seconds(folder, producers, sync)), shared)
}

/// Each file of the ring is written once.
fn go_round(journal: &Journal, stripes: usize) {
    let payload = vec![b'x'; RING_PAYLOAD_BYTES];
    for stripe in 0..stripes {
        let producer = journal.producer_for(stripe);
        for _ in 0..=RING_SEGMENTS as usize * (RING_SEGMENT_BYTES as usize / RING_PAYLOAD_BYTES) {
            producer.append_blocking(Note::new(Class::new(0), &payload)).expect("there is room in time");
        }
    }
    assert_eq!(journal.flush(Ack::Durable, Duration::from_secs(60)), Ok(true));
}

async fn commit(producer: Producer, records: usize) {
    for _ in 0..records {
        let note = Note::new(Class::new(0), &PAYLOAD).ack(Ack::Durable);
        producer.commit(note).await.expect("it is durable");
    }
}

/// How long it takes to make a batch of a record from each producer durable, with nothing else to do.
pub(crate) fn sync_seconds(folder: &Path, producers: usize, least: Duration) -> f64 {
    let mut file = File::create(folder.join("syncs")).expect("the folder can be written");
    let batch = vec![b'x'; producers * (PAYLOAD.len() + 24)];
    let turn = |file: &mut File| {
        file.write_all(&batch).expect("the file takes it");
        let begun = Instant::now();
        at_least(least, || file.sync_data()).expect("it is synced");
        begun.elapsed().as_secs_f64()
    };
    median((0..50).map(|_| turn(&mut file)).collect())
}

/// Takes so long.
fn at_least<T>(least: Duration, sync: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = sync();
    thread::sleep(least.saturating_sub(begun.elapsed()));
    result
}

/// A p99 in nanoseconds, and the memory that it took over the idle process, in KiB.
pub(crate) struct Latency {
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) memory_kib: f64,
}

/// Appends of two threads at a pace that a disk can follow: one in some microseconds.
pub(crate) fn unblocked(folder: &Path, records: usize) -> Latency {
    let (journal, _) = Journal::open(Config::new(folder)).expect("it opens");
    paced(&journal, records)
}

/// The same while the disk hangs, until the bound is reached; and the memory then.
pub(crate) fn stalled(folder: &Path) -> Latency {
    let classes = vec![ClassConfig::new("a").overload(Overload::DropNewest)];
    let config = Config { classes, ..Config::new(folder) };
    let gate = Arc::new(Gate::default());
    let (journal, _) = Journal::open_with(
        config.clone(),
        Arc::new(Odd { gate: Some(Arc::clone(&gate)), sync: Duration::ZERO }),
        |_| (),
    )
    .expect("it opens");
    let records = config.bytes_max / 124 * 9 / 10;
    let idle = process::resident_kib();
    process::forget_peak();
    let mut latency = paced(&journal, records);
    let producer = journal.producer();
    // And beyond the bound.
    for _ in 0..records {
        let _ = producer.offer(Note::new(Class::new(0), &PAYLOAD));
    }
    assert!(journal.stats().classes[0].lost_in_all() > 0, "the bound was reached");
    latency.memory_kib = process::peak_kib() - idle;
    gate.open();
    latency
}

fn paced(journal: &Journal, records: usize) -> Latency {
    let times = Mutex::new(Vec::with_capacity(records));
    let idle = process::resident_kib();
    process::forget_peak();
    thread::scope(|scope| {
        for _ in 0..2 {
            let (producer, times) = (journal.producer(), &times);
            scope.spawn(move || {
                let mut timed = Vec::with_capacity(records / 2);
                for _ in 0..records / 2 {
                    let begun = Instant::now();
                    producer.offer(Note::new(Class::new(0), &PAYLOAD)).expect("there is room");
                    timed.push(nanos(begun));
                    while begun.elapsed() < Duration::from_micros(4) {
                        hint::spin_loop();
                    }
                }
                times.lock().expect("nobody panics").extend(timed);
            });
        }
    });
    let mut times = times.into_inner().expect("nobody panics");
    times.sort_unstable();
    let at = |share: f64| f64::from(times[((times.len() - 1) as f64 * share) as usize]);
    Latency { p50_ns: at(0.5), p99_ns: at(0.99), memory_kib: process::peak_kib() - idle }
}

#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().expect("nobody panics") = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().expect("nobody panics");
        drop(self.opened.wait_while(open, |open| !*open));
    }
}

/// A disk on which every write hangs until the gate is opened, if there is one, and a sync takes so long at least.
#[derive(Clone, Debug)]
struct Odd {
    gate: Option<Arc<Gate>>,
    sync: Duration,
}

#[derive(Debug)]
struct OddFile(Box<dyn SegmentFile>, Odd);

impl Storage for Odd {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(OddFile(Disk.create(path)?, self.clone())))
    }

    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(OddFile(Disk.recycle(from, to)?, self.clone())))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        Disk.sync_folder(folder)
    }
}

impl SegmentFile for OddFile {
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
