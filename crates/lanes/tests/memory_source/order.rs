//! Order and frontier: LA-01 to LA-08.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tidegate_lanes::{Delivery, KeylessOrder, Lane, Position, Record, Subscription};

use crate::checker::{Checker, LANE, MS, record, records, seed, until, watched};
use crate::fixtures::{doing, filled, whole, working};

/// Waits randomly: not at all, for a yield, or for a time.
async fn dawdle() {
    match fastrand::u32(..10) {
        0..5 => {}
        5..9 => tokio::task::yield_now().await,
        _ => tokio::time::sleep(MS * fastrand::u32(..3)).await,
    }
}

/// LA-01: records of a key run in order without overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn records_of_a_key_run_in_order_without_overlap() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (source, feed, checker) = watched();
    let count = std::env::var("TIDEGATE_LANES_RECORDS").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000);
    for lane in [Lane(0), Lane(7)] {
        let epoch = feed.assign(lane);
        let keys: Vec<u64> = (0..count).map(|_| random.u64(..1 + random.clone().u64(..500))).collect();
        feed.extend(records(lane, epoch, count, |at| keys[at as usize]));
    }
    feed.end();
    let handler = working(&checker, |_| dawdle());
    let subscription = Subscription::builder("test").source(source).shards(3).handler(handler).unwrap();
    let counters = subscription.run().await.unwrap();
    checker.assert_all_done(2 * count as usize);
    assert_eq!((counters.done, counters.failed, counters.late), (2 * count, 0, 0));
    assert_eq!(feed.committed(Lane(7)), Some(Position(count - 1)));
}

/// LA-02: key waits for a moved completion.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn key_waits_for_a_moved_completion() {
    seed();
    let (source, _, checker) = whole(20_000, |at| at % 97);
    let (later, mut deliveries) = tokio::sync::mpsc::unbounded_channel::<Delivery>();
    let watch = checker.clone();
    let finisher = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(delivery) = deliveries.recv().await {
            held.push(delivery);
            while held.len() > 40 || (deliveries.is_empty() && !held.is_empty()) {
                // Finish in random order.
                let delivery = held.swap_remove(fastrand::usize(..held.len()));
                watch.done(&delivery);
                delivery.finish();
            }
        }
    });
    let watch = checker.clone();
    let handler = move |delivery: Delivery| {
        watch.begin(&delivery);
        later.send(delivery).unwrap();
        async {}
    };
    Subscription::builder("test").source(source).handler(handler).unwrap().run().await.unwrap();
    finisher.await.unwrap();
    checker.assert_all_done(20_000);
}

/// LA-02: deferred records of a key run one at a time.
#[tokio::test]
async fn deferred_records_of_a_key_run_one_at_a_time() {
    let (source, _, _) = whole(20, |_| 1);
    let open = Arc::new(Mutex::new(Vec::new()));
    let opened = Arc::clone(&open);
    let handler = move |delivery: Delivery| {
        opened.lock().unwrap().push(delivery);
        async {}
    };
    let subscription = Subscription::builder("test").source(source).handler(handler).unwrap();
    let running = tokio::spawn(subscription.run());
    for at in 0..20 {
        until("one open", || !open.lock().unwrap().is_empty()).await;
        let delivery = open.lock().unwrap().pop().unwrap();
        assert_eq!((delivery.position(), open.lock().unwrap().len()), (Position(at), 0));
        delivery.finish();
    }
    running.await.unwrap().unwrap();
}

/// LA-04: gaps at the end are committed.
#[tokio::test]
async fn gaps_at_the_end_are_committed() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    let positions = [0, 7, 8, 5_000_000_000, 5_000_000_001, 90_000_000_000];
    feed.extend(positions.map(|at| record(LANE, epoch, at, at)));
    let subscription = Subscription::builder("test").source(source).commit_every(MS).process(doing(&checker)).unwrap();
    let running = tokio::spawn(subscription.run());
    until("all committed", || feed.committed(LANE) == Some(Position(90_000_000_000))).await;
    feed.skip_to(LANE, Position(90_000_000_003));
    until("gap committed", || feed.committed(LANE) == Some(Position(90_000_000_003))).await;
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(positions.len());
}

/// Runs keyless records until `most` of them run concurrently, and returns the highest number.
async fn most_at_once(keyless: KeylessOrder, count: usize) -> usize {
    let (source, feed, _) = watched();
    let epoch = feed.assign(LANE);
    feed.extend((0..count).map(|at| Record::new(LANE, epoch, Position(at as u64), None, Some(b""))));
    feed.end();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let process = move |_| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&seen));
        async move {
            most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(MS).await;
            running.fetch_sub(1, SeqCst);
            Ok::<(), String>(())
        }
    };
    Subscription::builder("test").source(source).keyless(keyless).process(process).unwrap().run().await.unwrap();
    most.load(SeqCst)
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// LA-05: keyless records run concurrently on few threads.
#[tokio::test(start_paused = true)]
async fn keyless_records_run_concurrently_on_few_threads() {
    let before = threads();
    assert_eq!(most_at_once(KeylessOrder::Unordered, 5000).await, 5000);
    // Other tests start and end a few threads.
    assert!(threads() < before + 100, "{before} threads became {}", threads());
}

/// LA-05: keyless records are ordered per lane.
#[tokio::test(start_paused = true)]
async fn keyless_records_are_ordered_per_lane() {
    assert_eq!(most_at_once(KeylessOrder::PerLane, 50).await, 1);
}

async fn churn(rounds: u64) -> Checker {
    let (source, feed, checker) = filled(rounds, |at| at);
    let subscription = Subscription::builder("test").source(source).process(doing(&checker)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all finished", || handle.metrics().counters.done == rounds).await;
    let counters = handle.metrics().counters;
    assert_eq!((counters.keys, counters.keys_ready, counters.running, handle.metrics().in_flight), (0, 0, 0, 0));
    feed.end();
    running.await.unwrap().unwrap();
    checker
}

/// LA-07: keys without records are freed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_without_records_are_freed() {
    churn(200_000).await.assert_all_done(200_000);
}
