//! What a waiting record and a live key cost, and that they cost nothing when they are gone. A process of its own: the
//! counting allocator sees everything.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is a test that fails")]

use std::alloc::System;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_lanes::source::{Memory, MemoryHandle};
use tidegate_lanes::{Bounds, Epoch, Handle, Lane, Position, Record, Subscription};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LANE: Lane = Lane(0);
const LIVE: u64 = 300_000;
const KEY_AND_PAYLOAD: usize = 8 + 100;

fn feed(handle: &MemoryHandle, epoch: Epoch, from: u64, count: u64) {
    for at in from..from + count {
        handle.push(Record::new(LANE, epoch, Position(at), Some(&at.to_be_bytes()), Some(&[b'x'; 100])));
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn live(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

fn subscription(source: Memory) -> Subscription {
    let bounds = Bounds {
        records_max: LIVE as usize + 1,
        bytes_max: usize::MAX,
        lane_records_max: usize::MAX,
        lane_span_max: usize::MAX,
        ready_max: usize::MAX,
    };
    let builder = Subscription::builder("test").source(source).bounds(bounds).rate(0.0).shards(2);
    builder.process(|_| async { Ok::<(), String>(()) }).unwrap()
}

/// Churns keys that are used once, in small portions.
async fn churn(source: &MemoryHandle, handle: &Handle, epoch: Epoch, from: u64, count: u64) {
    for portion in 0..count / 1000 {
        feed(source, epoch, from + portion * 1000, 1000);
        until(|| handle.metrics().tally.done >= from + (portion + 1) * 1000).await;
    }
}

#[tokio::test]
async fn la_07_a_live_key_with_one_record_costs_150_bytes_and_nothing_when_it_is_gone() {
    let (source, handle_of_source) = Memory::new();
    let epoch = handle_of_source.assign(LANE);
    let subscription = subscription(source);
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until(|| handle.metrics().lanes.len() == 1).await;

    let region = Region::new(ALLOCATOR);
    for portion in 0..LIVE / 1000 {
        // In portions, so that the source's own queue stays small.
        feed(&handle_of_source, epoch, portion * 1000, 1000);
        until(|| handle_of_source.queued() == 0).await;
    }
    until(|| handle.metrics().tally.keys as u64 == LIVE).await;
    let per_key = live(&region) as f64 / LIVE as f64 - KEY_AND_PAYLOAD as f64;
    println!("{per_key:.1} bytes of ours per live key");
    assert!(per_key <= 150.0, "{per_key:.1} bytes per live key");

    handle.set_rate(None);
    until(|| handle.metrics().tally.done == LIVE).await;
    churn(&handle_of_source, &handle, epoch, LIVE, 20_000).await;
    let before = live(&region);
    churn(&handle_of_source, &handle, epoch, LIVE + 20_000, 200_000).await;
    let after = live(&region);
    assert!(after < before + (256 << 10), "{before} bytes grew to {after} while 200,000 keys came and went");
    assert!(after < LIVE as usize * 20, "{after} bytes are left of {LIVE} keys that are gone");
    handle_of_source.end();
    running.await.unwrap().unwrap();
}
