//! Order and watermark: points 1 to 8.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tidegate_lanes::{Delivery, Keyless, Lane, Position, Record, Subscription};

use crate::checker::{Checker, LANE, MS, record, records, seed, until, watched};
use crate::stage::{doing, filled, whole, working};

/// Waits for a random while: not at all, for a turn of the others, or for a time.
async fn dawdle() {
    match fastrand::u32(..10) {
        0..5 => {}
        5..9 => tokio::task::yield_now().await,
        _ => tokio::time::sleep(MS * fastrand::u32(..3)).await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn la_01_records_of_a_key_run_in_order_and_never_at_once() {
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
    let tally = subscription.run().await.unwrap();
    checker.assert_all_done(2 * count as usize);
    assert_eq!((tally.done, tally.failed, tally.late), (2 * count, 0, 0));
    assert_eq!(feed.committed(Lane(7)), Some(Position(count - 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn la_02_a_key_waits_for_a_completion_that_was_moved_away() {
    seed();
    let (source, _, checker) = whole(20_000, |at| at % 97);
    let (later, mut deliveries) = tokio::sync::mpsc::unbounded_channel::<Delivery>();
    let watch = checker.clone();
    let finisher = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(delivery) = deliveries.recv().await {
            held.push(delivery);
            while held.len() > 40 || (deliveries.is_empty() && !held.is_empty()) {
                // In any order.
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

#[tokio::test]
async fn la_02_twenty_deferred_records_of_one_key_are_open_one_at_a_time() {
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
        until("one is open", || !open.lock().unwrap().is_empty()).await;
        let delivery = open.lock().unwrap().pop().unwrap();
        assert_eq!((delivery.position(), open.lock().unwrap().len()), (Position(at), 0));
        delivery.finish();
    }
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn la_04_gaps_and_markers_at_the_end_are_committed() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    let positions = [0, 7, 8, 5_000_000_000, 5_000_000_001, 90_000_000_000];
    feed.extend(positions.map(|at| record(LANE, epoch, at, at)));
    let subscription = Subscription::builder("test").source(source).commit_every(MS).process(doing(&checker)).unwrap();
    let running = tokio::spawn(subscription.run());
    until("all are committed", || feed.committed(LANE) == Some(Position(90_000_000_000))).await;
    feed.pass(LANE, Position(90_000_000_003));
    until("the marker is committed", || feed.committed(LANE) == Some(Position(90_000_000_003))).await;
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(positions.len());
}

/// Runs records without a key until `most` of them run at once, and returns how many that were.
async fn most_at_once(keyless: Keyless, count: usize) -> usize {
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

#[tokio::test(start_paused = true)]
async fn la_05_records_without_a_key_run_beside_one_another_and_make_no_threads() {
    let before = threads();
    assert_eq!(most_at_once(Keyless::Unordered, 5000).await, 5000);
    // Other tests come and go with a few threads of their own.
    assert!(threads() < before + 100, "{before} threads became {}", threads());
}

#[tokio::test(start_paused = true)]
async fn la_05_records_without_a_key_are_in_order_if_their_lane_is_their_key() {
    assert_eq!(most_at_once(Keyless::InLane, 50).await, 1);
}

async fn churn(rounds: u64) -> Checker {
    let (source, feed, checker) = filled(rounds, |at| at);
    let subscription = Subscription::builder("test").source(source).process(doing(&checker)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all are done", || handle.metrics().tally.done == rounds).await;
    let tally = handle.metrics().tally;
    assert_eq!((tally.keys, tally.keys_ready, tally.running, handle.metrics().in_flight), (0, 0, 0, 0));
    feed.end();
    running.await.unwrap().unwrap();
    checker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn la_07_keys_that_have_no_records_are_gone() {
    churn(200_000).await.assert_all_done(200_000);
}
