//! The journal against disks that fail, processes that die, and producers that are too many. Each test bears the number
//! of a point of the list in the crate's README.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

mod bounds;
mod checker;
mod concurrency;
mod crash;
mod damage;
mod disk_errors;
mod disk_full;
mod faults;
mod kill;
mod lifecycle;
mod order;
mod policies;
mod readers;
mod recovery;
mod retention;
mod stress;
#[cfg(feature = "tracing")]
mod traced;

use std::{
    path::Path,
    pin::pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use tidegate_journal::{AtEnd, Class, ClassConfig, Config, Entry, Note, Overload, Producer, Reader, Start};

/// Long enough that only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);
const ONE: Class = Class::new(0);
const BLOCK: Overload = Overload::Block { deadline: LONG };

/// A small journal: 64 KiB of memory in chunks of 8 KiB, and it does not wait long for more.
fn small(folder: &Path) -> Config {
    let mut config = Config::new(folder);
    config.bytes_max = 64 << 10;
    config.record_bytes_max = 4 << 10;
    config.linger = Duration::from_millis(1);
    config.classes = vec![ClassConfig::new("one").overload(BLOCK)];
    config
}

fn note(payload: &[u8]) -> Note<'_> {
    Note::new(ONE, payload)
}

/// The disk hangs, and there is no room for half a KiB any more. What the writer hangs with is taken first: it would make room
/// later. How many records are in; one was refused.
fn fill(disk: &faults::Faulty, producer: &Producer) -> usize {
    disk.stall();
    producer.offer(note(b"x")).unwrap();
    disk.wait_for_stall();
    let mut records = 1;
    while producer.offer(note(&[b'x'; 500])).is_ok() {
        records += 1;
    }
    // Who waits in line may be given room in which no more than that fits.
    let mut context = Context::from_waker(Waker::noop());
    while pin!(producer.append(note(&[b'x'; 500]))).poll(&mut context).is_ready() {
        records += 1;
    }
    records
}

/// The payloads of all records, in the order of the reader.
fn payloads(folder: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(folder, &Start::Beginning, AtEnd::Stop).unwrap();
    let mut found = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        if let Entry::Record(record) = entry {
            found.push(record.payload.to_vec());
        }
    }
    found
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Waits for something that other threads bring about.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}

/// The files of segments, in order.
fn segments(folder: &Path) -> Vec<std::path::PathBuf> {
    let is_segment = |path: &std::path::PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        [".tgj", ".tgj.zst", ".jsonl", ".jsonl.zst", ".log"].iter().any(|extension| name.ends_with(extension))
    };
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.filter(is_segment).collect();
    paths.sort();
    paths
}

fn seed() -> u64 {
    let seed = std::env::var("TIDEGATE_SEED").ok().map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    // Shown when the test fails.
    println!("TIDEGATE_SEED={seed}");
    seed
}

/// How often a long test repeats itself, unless the environment says otherwise.
fn rounds(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().map_or(usual, |rounds| rounds.parse().unwrap())
}
