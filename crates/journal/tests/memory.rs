//! The memory use of a journal whose disk hangs. A process of its own, as the counting allocator sees all threads.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "journal/faults.rs"]
#[expect(dead_code, reason = "the other tests use all of it")]
mod faults;

use std::alloc::System;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_journal::{Class, ClassConfig, Journal, JournalConfig, OverloadPolicy, ProducerRecord};

use faults::FaultyDisk;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Serialises the tests: the counters cover the whole process.
static TURN: Mutex<()> = Mutex::new(());

const LONG: Duration = Duration::from_secs(60);
const BOUND: usize = 4 << 20;

fn live(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

fn journal(disk: &FaultyDisk, overload: OverloadPolicy) -> (tempfile::TempDir, Journal) {
    let folder = tempfile::tempdir().unwrap();
    let classes = vec![ClassConfig::new("one").overload(overload)];
    let record_bytes_max = 64 << 10;
    let config = JournalConfig { bytes_max: BOUND, record_bytes_max, classes, ..JournalConfig::new(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    (folder, journal)
}

fn new_record(payload: &[u8]) -> ProducerRecord<'_> {
    ProducerRecord::new(Class::new(0), payload)
}

/// JO-15: hanging disk stays within the bound.
#[test]
fn hanging_disk_stays_within_the_bound() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let region = Region::new(ALLOCATOR);
    let disk = FaultyDisk::healthy();
    let (_folder, journal) = journal(&disk, OverloadPolicy::DropNewest);
    let producer = journal.producer();
    disk.stall();
    // 24 MiB with headers.
    for _ in 0..200_000 {
        let _ = producer.offer(new_record(&[b'x'; 100]));
    }
    let stats = journal.stats();
    assert!(stats.reserved_bytes <= BOUND && stats.queued_bytes > BOUND / 4 * 3, "{stats:?}");
    let grown = live(&region);
    assert!(grown <= BOUND + (1 << 20), "{grown} bytes");
    disk.resume();
    assert!(journal.close(LONG).is_complete());
}

/// JO-18: waiting producers cost one queue entry each.
#[test]
fn waiting_producers_cost_one_queue_entry_each() {
    const PRODUCERS: usize = 10_000;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let disk = FaultyDisk::healthy();
    let (_folder, journal) = journal(&disk, OverloadPolicy::Block { deadline: LONG });
    let producers: Vec<_> = (0..PRODUCERS).map(|_| journal.producer()).collect();
    disk.stall();
    producers[0].offer(new_record(b"the record that hangs")).unwrap();
    disk.wait_for_stall();
    let payload = [b'x'; 1_000];
    // The timer thread may add its spare buffer after the first refusal.
    while producers[0].offer(new_record(&payload)).is_ok()
        || pin!(producers[0].append(new_record(&payload))).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        || journal.stats().reserved_bytes < journal.config().bytes_max
    {
        std::thread::yield_now();
    }
    let mut waiting: Vec<_> =
        producers.iter().map(|producer| Box::pin(producer.append(new_record(&payload)))).collect();
    let region = Region::new(ALLOCATOR);
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..10 {
        for future in &mut waiting {
            assert!(future.as_mut().poll(&mut context).is_pending());
        }
        // Otherwise 10 MB would be in the queue; polling again costs nothing.
        let grown = live(&region);
        assert!(grown <= PRODUCERS * 160, "{} bytes for each in round {round}", grown / PRODUCERS);
    }
    assert_eq!(journal.stats().blocked, PRODUCERS);
    drop(waiting);
    disk.resume();
    assert!(journal.close(LONG).is_complete());
}
