//! Backpressure and fairness: LA-20 to LA-26.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tidegate_lanes::source::MemorySource;
use tidegate_lanes::{Batch, BlockingThreads, Bounds, Delivery, Lane, Position, Record, Subscription};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::checker::{Checker, LANE, MS, SECOND, key_number, record, records, until, watched};
use crate::fixtures::{doing, filled, gated, whole, working};

/// LA-20: bytes max includes prefetched bytes.
#[tokio::test]
async fn bytes_max_includes_prefetched_bytes() {
    const MIB: usize = 1 << 20;
    let (source, feed, checker) = watched();
    let buffered = source.buffered();
    buffered.store(8 * MIB, SeqCst);
    let epoch = feed.assign(LANE);
    let payload = vec![b'x'; MIB];
    feed.extend(
        (0..100).map(|at: u64| Record::new(LANE, epoch, Position(at), Some(&at.to_be_bytes()), Some(&payload))),
    );
    feed.end();
    let gate = Arc::new(Semaphore::new(0));
    let bounds = Bounds { bytes_max: 32 * MIB, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).bounds(bounds);
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("bound reached", || handle.metrics().is_full).await;
    let bytes = handle.metrics().pending_bytes;
    assert!((23 * MIB..=25 * MIB).contains(&bytes), "{bytes} taken and 8 MiB prefetched, of 32 MiB");
    gate.add_permits(100);
    running.await.unwrap().unwrap();
    checker.assert_all_done(100);
}

/// LA-20: a quarter of bytes max is left to taken records.
#[tokio::test]
async fn a_quarter_of_bytes_max_is_left_to_taken_records() {
    const MIB: usize = 1 << 20;
    let (source, feed, checker) = watched();
    source.buffered().store(100 * MIB, SeqCst);
    let epoch = feed.assign(LANE);
    let payload = vec![b'x'; MIB];
    feed.extend((0..40).map(|at: u64| Record::new(LANE, epoch, Position(at), Some(&at.to_be_bytes()), Some(&payload))));
    feed.end();
    let gate = Arc::new(Semaphore::new(0));
    let bounds = Bounds { bytes_max: 32 * MIB, ..Bounds::default() };
    let subscription =
        Subscription::builder("test").source(source).bounds(bounds).handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("bound reached", || handle.metrics().is_full).await;
    let bytes = handle.metrics().pending_bytes;
    assert!((7 * MIB..=9 * MIB).contains(&bytes), "{bytes} taken, of a quarter of 32 MiB");
    gate.add_permits(40);
    running.await.unwrap().unwrap();
    checker.assert_all_done(40);
}

/// LA-21: lane bound has hysteresis.
#[tokio::test(start_paused = true)]
async fn lane_bound_has_hysteresis() {
    let (source, feed, checker) = whole(10_000, |at| at);
    let handler = working(&checker, |_| tokio::time::sleep(MS));
    let bounds = Bounds { lane_records_max: 1000, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).concurrency(10).bounds(bounds);
    builder.handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(10_000);
    // The queue takes at least 300 records from 700 back to the bound, so at most one pause for each 300 records.
    assert!((5..=35).contains(&feed.pauses()), "{}", feed.pauses());
}

/// LA-21: global bounds have hysteresis.
#[tokio::test(start_paused = true)]
async fn global_bounds_have_hysteresis() {
    for bounds in [
        Bounds { records_max: 1000, ready_max: usize::MAX, ..Bounds::default() },
        Bounds { bytes_max: 1000 * 15, ready_max: usize::MAX, ..Bounds::default() },
    ] {
        let (source, _, checker) = whole(10_000, |at| at);
        let closings = source.closings();
        let handler = working(&checker, |_| tokio::time::sleep(MS));
        let builder = Subscription::builder("test").source(source).concurrency(10).bounds(bounds);
        builder.handler(handler).unwrap().run().await.unwrap();
        checker.assert_all_done(10_000);
        // As above: at least 300 records between two pauses, and one pause at the end of the source.
        let closings = closings.load(SeqCst);
        assert!((5..=36).contains(&closings), "{closings} pauses with {bounds:?}");
    }
}

/// LA-22: hot key does not delay cold keys.
#[tokio::test(start_paused = true)]
async fn hot_key_does_not_delay_cold_keys() {
    // Nine of ten records have key 0.
    let (source, _, checker) = whole(10_000, |at| if at % 10 == 0 { at } else { 0 });
    let began = Instant::now();
    let slowest = Arc::new(Mutex::new(Duration::ZERO));
    let cold = Arc::clone(&slowest);
    let handler = working(&checker, move |record| {
        if key_number(record) != 0 {
            let mut cold = cold.lock().unwrap();
            *cold = cold.max(began.elapsed());
        }
        tokio::time::sleep(MS)
    });
    let subscription = Subscription::builder("test").source(source).concurrency(11).handler(handler).unwrap();
    let handle = subscription.handle();
    subscription.run().await.unwrap();
    checker.assert_all_done(10_000);
    let slowest = *slowest.lock().unwrap();
    // A thousand cold records, ten at a time, each for at most two timer ticks.
    assert!(slowest < 250 * MS && began.elapsed() > 9 * SECOND, "{slowest:?} of {:?}", began.elapsed());
    let hot = handle.metrics().hot_keys;
    assert!(matches!(&hot[..], [hot] if *hot.key == 0_u64.to_be_bytes() && hot.share > 0.3), "{hot:?}");
}

/// LA-22: hot key is reported with its share.
#[tokio::test(start_paused = true)]
async fn hot_key_is_reported_with_its_share() {
    // Nine of ten records have key 0, which belongs to one shard.
    let (source, _, checker) = whole(50_000, |at| if at % 10 == 0 { at } else { 0 });
    let subscription = Subscription::builder("test").source(source).shards(8).process(doing(&checker)).unwrap();
    let handle = subscription.handle();
    subscription.run().await.unwrap();
    let hot = handle.metrics().hot_keys;
    assert!(matches!(&hot[..], [hot] if (0.8..0.98).contains(&hot.share)), "{hot:?}");
}

/// LA-23: slow lane does not starve other lanes.
#[tokio::test(start_paused = true)]
async fn slow_lane_does_not_starve_other_lanes() {
    let (source, feed, checker) = watched();
    for lane in [Lane(0), Lane(1), Lane(2)] {
        let epoch = feed.assign(lane);
        feed.extend(records(lane, epoch, 3000, |at| at % 50));
    }
    let gate = Arc::new(Semaphore::new(0));
    let (slow, watch) = (gated(&checker, &gate), checker.clone());
    let handler = move |delivery: Delivery| {
        if delivery.lane() == Lane(0) {
            return slow(delivery);
        }
        watch.begin(&delivery);
        watch.done(&delivery);
        delivery.finish();
        Box::pin(std::future::ready(()))
    };
    let bounds = Bounds { records_max: 2000, lane_records_max: 500, ..Bounds::default() };
    let subscription = Subscription::builder("test").source(source).bounds(bounds).handler(handler).unwrap();
    let running = tokio::spawn(subscription.run());
    let is_done = |lane| feed.committed(lane) == Some(Position(2999));
    until("other lanes are finished", || is_done(Lane(1)) && is_done(Lane(2))).await;
    assert_eq!(feed.committed(Lane(0)), None);
    gate.add_permits(3000);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(9000);
}

/// Blocks handlers until it opens.
#[derive(Default)]
struct Door {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Door {
    fn pass(&self) {
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// A handler that blocks its thread until the door opens, and counts calls.
fn blocked_by(door: &Arc<Door>, checker: &Checker, came: &Arc<AtomicUsize>) -> impl Fn(Delivery) + use<> {
    let (door, checker, came) = (Arc::clone(door), checker.clone(), Arc::clone(came));
    move |delivery| {
        checker.begin(&delivery);
        came.fetch_add(1, SeqCst);
        door.pass();
        checker.done(&delivery);
        delivery.finish();
    }
}

/// LA-24: blocked threads do not stall other handlers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_threads_do_not_stall_other_handlers() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 1000, |at| at % 400));
    feed.end();
    let door = Arc::new(Door::default());
    let blocked = Arc::new(AtomicUsize::new(0));
    let handler = blocked_by(&door, &checker, &blocked);
    let builder = Subscription::builder("blocking").source(source).runtime(BlockingThreads(200));
    let running = tokio::spawn(builder.handler(handler).unwrap().run());
    until("all threads blocked", || blocked.load(SeqCst) == 200).await;
    let (other, other_feed) = MemorySource::new();
    let epoch = other_feed.assign(LANE);
    other_feed.extend(records(LANE, epoch, 10_000, |at| at % 100));
    other_feed.end();
    let builder = Subscription::builder("async").source(other);
    let process = |_| async {
        tokio::task::yield_now().await;
        Ok::<(), String>(())
    };
    assert_eq!(builder.process(process).unwrap().run().await.unwrap().done, 10_000);
    assert_eq!(blocked.load(SeqCst), 200, "more handlers than threads");
    door.open();
    running.await.unwrap().unwrap();
    checker.assert_all_done(1000);
}

/// LA-25: rate is kept and zero pauses.
#[tokio::test(start_paused = true)]
async fn rate_is_kept_and_zero_pauses() {
    let (source, _, checker) = whole(10_000, |at| at);
    let gate = Arc::new(Semaphore::new(10_000));
    let builder = Subscription::builder("test").source(source).rate(100.0);
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    tokio::time::sleep(10 * SECOND).await;
    let at_100 = checker.begun();
    assert!((985..=1015).contains(&at_100), "{at_100} in 10 s at 100 a second");
    handle.set_rate(Some(0.0));
    tokio::time::sleep(SECOND).await;
    let paused = checker.begun();
    tokio::time::sleep(1000 * SECOND).await;
    assert_eq!(checker.begun(), paused);
    handle.set_rate(Some(500.0));
    tokio::time::sleep(10 * SECOND).await;
    let at_500 = checker.begun() - paused;
    assert!((4920..=5080).contains(&at_500), "{at_500} in 10 s at 500 a second");
    handle.set_rate(None);
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
}

/// LA-25: rate that changes often is kept.
#[tokio::test(start_paused = true)]
async fn rate_that_changes_often_is_kept() {
    let (source, _, checker) = whole(1000, |at| at);
    let subscription = Subscription::builder("test").source(source).rate(5.0).process(doing(&checker)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    for turn in 0..200_u32 {
        tokio::time::sleep(50 * MS).await;
        handle.set_rate(Some(if turn % 2 == 0 { 4.0 } else { 6.0 }));
    }
    assert!((45..=52).contains(&checker.begun()), "{} in 10 s at 5 a second", checker.begun());
    handle.set_rate(Some(0.0));
    tokio::time::sleep(SECOND).await;
    let paused = checker.begun();
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(checker.begun(), paused, "saved tokens were used during a pause");
    handle.set_rate(None);
    running.await.unwrap().unwrap();
    checker.assert_all_done(1000);
}

/// LA-26: limits change at run time.
#[tokio::test(start_paused = true)]
async fn limits_change_at_run_time() {
    let (source, _, checker) = whole(10_000, |at| at);
    let gate = Arc::new(Semaphore::new(0));
    let bounds = Bounds { records_max: 100, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).concurrency(10).bounds(bounds);
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    let metrics = || (handle.metrics().counters.running, handle.metrics().pending);
    until("ten running", || metrics() == (10, 100)).await;
    handle.set_concurrency(50);
    until("fifty running", || metrics() == (50, 100)).await;
    handle.set_bounds(Bounds { records_max: 1000, ..Bounds::default() });
    until("a thousand taken", || metrics() == (50, 1000)).await;
    assert_eq!(checker.count_done(), 0, "new limits wait for handlers to end");
    handle.set_concurrency(5);
    gate.add_permits(47);
    until("five running", || metrics().0 == 5 && checker.count_done() == 47).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(metrics().0, 5);
    gate.add_permits(10_000);
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
}

/// LA-29: with sixteen threads, two more records wait in the job queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_job_does_not_start_after_its_lane_is_gone() {
    let (source, feed, checker) = filled(18, |at| at);
    let (door, came) = (Arc::new(Door::default()), Arc::new(AtomicUsize::new(0)));
    let builder = Subscription::builder("test").source(source).runtime(BlockingThreads(16));
    let subscription = builder.handler(blocked_by(&door, &checker, &came)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all threads busy", || came.load(SeqCst) == 16 && handle.metrics().in_flight == 18).await;
    feed.revoke(&[LANE], MS);
    until("lane released", || feed.releases().len() == 1 && handle.metrics().in_flight == 0).await;
    door.open();
    let epoch = feed.assign(Lane(1));
    feed.push(record(Lane(1), epoch, 0, 0));
    // The record of this key was queued behind them.
    until("other lane continues", || feed.committed(Lane(1)).is_some()).await;
    assert_eq!(came.load(SeqCst), 17);
    feed.end();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_on_threads_respect_both_limits() {
    let (source, _, checker) = whole(1000, |at| at);
    let door = Arc::new(Door::default());
    let inside = Arc::new(AtomicUsize::new(0));
    let handler = blocked_by(&door, &checker, &inside);
    let builder = Subscription::builder("test").source(source).concurrency(5).shards(1).runtime(BlockingThreads(16));
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("five running", || inside.load(SeqCst) == 5).await;
    until("counters published", || handle.metrics().counters.running > 0).await;
    assert_eq!(handle.metrics().counters.running, 5, "no job is queued");
    handle.set_concurrency(10_000);
    until("all threads blocked", || inside.load(SeqCst) == 16).await;
    until("an eighth more queued", || handle.metrics().counters.running == 18).await;
    door.open();
    running.await.unwrap().unwrap();
    checker.assert_all_done(1000);
}

#[tokio::test(start_paused = true)]
async fn one_permit_is_shared_by_all_shards() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend((0..1000).map(|at| record(LANE, epoch, at, at)));
    feed.end();
    let gate = Arc::new(Semaphore::new(1000));
    let builder = Subscription::builder("test").source(source).concurrency(1).shards(8);
    builder.handler(gated(&checker, &gate)).unwrap().run().await.unwrap();
    checker.assert_all_done(1000);
}

#[tokio::test(start_paused = true)]
async fn intake_takes_no_more_than_keys_can_start() {
    let (source, _, checker) = whole(10_000, |at| at);
    let gate = Arc::new(Semaphore::new(0));
    let bounds = |ready_max| Bounds { ready_max, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).concurrency(10).shards(2).bounds(bounds(100));
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("ten running", || handle.metrics().counters.running == 10).await;
    tokio::time::sleep(SECOND).await;
    let taken = handle.metrics().pending;
    // A poll takes up to 1,024 records.
    assert!((100..3000).contains(&taken), "{taken}");
    handle.set_bounds(bounds(usize::MAX));
    until("all taken", || handle.metrics().pending == 10_000).await;
    handle.set_bounds(bounds(1));
    gate.add_permits(10_000);
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
}

#[tokio::test(start_paused = true)]
async fn records_behind_a_hot_key_are_taken() {
    // The other keys come after 5,000 records of one key.
    let (source, feed, checker) = filled(5_010, |at| at.saturating_sub(4_999));
    let gate = Arc::new(Semaphore::new(0));
    let bounds = Bounds { ready_max: 1, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).shards(1).bounds(bounds);
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all keys running", || handle.metrics().counters.running == 11).await;
    gate.add_permits(10_000);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(5_010);
}

#[tokio::test(start_paused = true)]
async fn batches_ignore_the_ready_limit() {
    let (source, feed, checker) = filled(10_000, |at| at % 1_000);
    let bounds = Bounds { ready_max: 1, ..Bounds::default() };
    let largest = Arc::new(AtomicUsize::new(0));
    let (seen, watch) = (Arc::clone(&largest), checker.clone());
    let handler = move |batch: Batch| {
        seen.fetch_max(batch.records.len(), SeqCst);
        for record in &batch.records {
            watch.begin(record);
            watch.done(record);
        }
        batch.finish();
        std::future::ready(())
    };
    let builder = Subscription::builder("test").source(source).rate(0.0).bounds(bounds);
    let subscription = builder.batches(10, handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all taken", || handle.metrics().pending == 10_000).await;
    handle.set_rate(None);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
    assert_eq!(largest.load(SeqCst), 10);
}
