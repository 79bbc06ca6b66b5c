//! Memory of a queued record and of a live key, and that it is freed. A process of its own, because the counting
//! allocator sees every allocation.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::alloc::System;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_lanes::source::{MemorySource, MemorySourceHandle};
use tidegate_lanes::{Bounds, Epoch, Lane, Position, Record, Subscription, SubscriptionHandle};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LANE: Lane = Lane(0);
const LIVE: u64 = 300_000;
const KEY_AND_PAYLOAD: usize = 8 + 100;

fn feed(handle: &MemorySourceHandle, epoch: Epoch, from: u64, count: u64) {
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

fn subscription(source: MemorySource) -> Subscription {
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

/// Processes keys that occur once, in small portions.
async fn churn(source: &MemorySourceHandle, handle: &SubscriptionHandle, epoch: Epoch, from: u64, count: u64) {
    for portion in 0..count / 1000 {
        feed(source, epoch, from + portion * 1000, 1000);
        until(|| handle.metrics().counters.done >= from + (portion + 1) * 1000).await;
    }
}

/// LA-07: live key costs 150 bytes until it is freed.
#[tokio::test]
async fn live_key_costs_150_bytes_until_it_is_freed() {
    let (source, handle_of_source) = MemorySource::new();
    let epoch = handle_of_source.assign(LANE);
    let subscription = subscription(source);
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until(|| handle.metrics().lanes.len() == 1).await;

    let region = Region::new(ALLOCATOR);
    for portion in 0..LIVE / 1000 {
        // Records come in portions, so that the queue of the source stays short.
        feed(&handle_of_source, epoch, portion * 1000, 1000);
        until(|| handle_of_source.queued() == 0).await;
    }
    until(|| handle.metrics().counters.keys as u64 == LIVE).await;
    let per_key = live(&region) as f64 / LIVE as f64 - KEY_AND_PAYLOAD as f64;
    println!("{per_key:.1} bytes of the library per live key");
    assert!(per_key <= 150.0, "{per_key:.1} bytes per live key");

    handle.set_rate(None);
    until(|| handle.metrics().counters.done == LIVE).await;
    churn(&handle_of_source, &handle, epoch, LIVE, 20_000).await;
    let before = live(&region);
    churn(&handle_of_source, &handle, epoch, LIVE + 20_000, 200_000).await;
    let after = live(&region);
    assert!(after < before + (256 << 10), "{before} bytes grew to {after} during 200,000 keys");
    assert!(after < LIVE as usize * 20, "{after} bytes are left after {LIVE} keys");
    handle_of_source.end();
    running.await.unwrap().unwrap();
}
