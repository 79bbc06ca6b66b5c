//! What the journal costs in memory while its disk hangs. A process of its own: the counting allocator sees everything.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

#[path = "journal/faults.rs"]
#[expect(dead_code, reason = "the other tests make use of all of it")]
mod faults;

use std::alloc::System;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_journal::{Class, ClassConfig, Config, Journal, Note, Overload};

use faults::Faulty;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// One test at a time: what is counted is the whole process.
static TURN: Mutex<()> = Mutex::new(());

const LONG: Duration = Duration::from_secs(60);
const BOUND: usize = 4 << 20;

fn live(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

fn journal(disk: &Faulty, overload: Overload) -> (tempfile::TempDir, Journal) {
    let folder = tempfile::tempdir().unwrap();
    let classes = vec![ClassConfig::new("one").overload(overload)];
    let record_bytes_max = 64 << 10;
    let config = Config { bytes_max: BOUND, record_bytes_max, classes, ..Config::new(folder.path()) };
    let (journal, _) = Journal::open_with(config, disk.storage(), |_| ()).unwrap();
    (folder, journal)
}

fn note(payload: &[u8]) -> Note<'_> {
    Note::new(Class::new(0), payload)
}

#[test]
fn jo_15_a_disk_that_hangs_costs_no_more_memory_than_the_bound() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let region = Region::new(ALLOCATOR);
    let disk = Faulty::sound();
    let (_folder, journal) = journal(&disk, Overload::DropNewest);
    let producer = journal.producer();
    disk.stall();
    // 24 MiB, with their heads.
    for _ in 0..200_000 {
        let _ = producer.offer(note(&[b'x'; 100]));
    }
    let stats = journal.stats();
    assert!(stats.reserved_bytes <= BOUND && stats.queued_bytes > BOUND / 4 * 3, "{stats:?}");
    let grown = live(&region);
    assert!(grown <= BOUND + (1 << 20), "{grown} bytes");
    disk.go();
    assert!(journal.close(LONG).is_complete());
}

#[test]
fn jo_18_ten_thousand_who_wait_cost_a_place_in_line_each() {
    const PRODUCERS: usize = 10_000;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let disk = Faulty::sound();
    let (_folder, journal) = journal(&disk, Overload::Block { deadline: LONG });
    let producers: Vec<_> = (0..PRODUCERS).map(|_| journal.producer()).collect();
    disk.stall();
    producers[0].offer(note(b"what the writer hangs with")).unwrap();
    disk.wait_for_stall();
    while producers[0].offer(note(&[b'x'; 1_000])).is_ok() {}
    let payload = [b'x'; 1_000];
    let mut waiting: Vec<_> = producers.iter().map(|producer| Box::pin(producer.append(note(&payload)))).collect();
    let region = Region::new(ALLOCATOR);
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..10 {
        for future in &mut waiting {
            assert!(future.as_mut().poll(&mut context).is_pending());
        }
        // 10 MB were in the queue otherwise; and asking again costs nothing.
        let grown = live(&region);
        assert!(grown <= PRODUCERS * 160, "{} bytes for each in round {round}", grown / PRODUCERS);
    }
    assert_eq!(journal.stats().blocked, PRODUCERS);
    drop(waiting);
    disk.go();
    assert!(journal.close(LONG).is_complete());
}
