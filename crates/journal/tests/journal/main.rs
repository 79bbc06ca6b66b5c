//! The journal against failing disks, dying processes and too many producers. The codes in the docs of the tests
//! (`JO-nn`) are items of the list in the crate's README.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

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
mod overload;
mod readers;
mod recovery;
mod released;
mod retention;
mod stress;
#[cfg(feature = "tracing")]
mod tracing;

use std::{
    path::Path,
    pin::pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use tidegate_journal::{
    AtEnd, Class, ClassConfig, Journal, JournalConfig, JournalEntry, JournalReader, OverloadPolicy, ProducerRecord,
    ReadFrom,
};

/// Reached only by a hang.
const LONG: Duration = Duration::from_secs(60);
const ONE: Class = Class::new(0);
const BLOCK: OverloadPolicy = OverloadPolicy::Block { deadline: LONG };

/// A small journal: 64 KiB of memory in chunks of 8 KiB, and a short linger.
fn small(folder: &Path) -> JournalConfig {
    let mut config = JournalConfig::new(folder);
    config.bytes_max = 64 << 10;
    config.record_bytes_max = 4 << 10;
    config.linger = Duration::from_millis(1);
    config.classes = vec![ClassConfig::new("one").overload(BLOCK)];
    config
}

fn new_record(payload: &[u8]) -> ProducerRecord<'_> {
    ProducerRecord::new(ONE, payload)
}

/// Fills the memory of a journal whose disk hangs, until there is no room for half a KiB. The writer takes the first
/// record before it hangs; otherwise it would free memory later. Returns the number of accepted records; one more was
/// rejected.
fn fill(disk: &faults::FaultyDisk, journal: &Journal) -> usize {
    let producer = journal.producer();
    disk.stall();
    producer.offer(new_record(b"x")).unwrap();
    disk.wait_for_stall();
    let mut records = 1;
    while producer.offer(new_record(&[b'x'; 500])).is_ok() {
        records += 1;
    }
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if pin!(producer.append(new_record(&[b'x'; 500]))).poll(&mut context).is_ready() {
            records += 1;
        } else if journal.stats().reserved_bytes >= journal.config().bytes_max {
            return records;
        } else {
            // The timer thread counts the spare buffer as held before it is in the pool. Until then, appends find no
            // room although the bound is not reached.
            std::thread::yield_now();
        }
    }
}

/// The payloads of all records, in the order of the reader.
fn payloads(folder: &Path) -> Vec<Vec<u8>> {
    let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, AtEnd::Stop).unwrap();
    let mut found = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        if let JournalEntry::Record(record) = entry {
            found.push(record.payload.to_vec());
        }
    }
    found
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Waits for a condition that other threads bring about.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}

/// The segment files, in order.
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
    // Shown if the test fails.
    println!("TIDEGATE_SEED={seed}");
    seed
}

/// The number of rounds of a long test, from the environment or the default.
fn rounds(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().map_or(usual, |rounds| rounds.parse().unwrap())
}
