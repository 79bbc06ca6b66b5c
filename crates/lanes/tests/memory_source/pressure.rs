//! Back-pressure and fairness: points 20 to 26.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tidegate_lanes::source::Memory;
use tidegate_lanes::{Batch, Bounds, Delivery, Lane, Position, Record, Subscription, Threads};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::checker::{Checker, LANE, MS, SECOND, key_number, record, records, until, watched};
use crate::stage::{doing, filled, gated, whole, working};

#[tokio::test]
async fn la_20_the_bound_of_bytes_holds_with_what_the_client_has_read_ahead() {
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
    until("it is full", || handle.metrics().is_full).await;
    let bytes = handle.metrics().pending_bytes;
    assert!((23 * MIB..=25 * MIB).contains(&bytes), "{bytes} and 8 MiB read ahead, of 32 MiB");
    gate.add_permits(100);
    running.await.unwrap().unwrap();
    checker.assert_all_done(100);
}

#[tokio::test]
async fn la_20_a_client_that_has_read_too_much_ahead_does_not_leave_one_record_at_a_time() {
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
    until("it is full", || handle.metrics().is_full).await;
    let bytes = handle.metrics().pending_bytes;
    assert!((7 * MIB..=9 * MIB).contains(&bytes), "{bytes}, and a quarter of 32 MiB is theirs");
    gate.add_permits(40);
    running.await.unwrap().unwrap();
    checker.assert_all_done(40);
}

#[tokio::test(start_paused = true)]
async fn la_21_a_lane_at_its_bound_does_not_flap() {
    let (source, feed, checker) = whole(10_000, |at| at);
    let handler = working(&checker, |_| tokio::time::sleep(MS));
    let bounds = Bounds { lane_records_max: 1000, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).concurrency(10).bounds(bounds);
    builder.handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(10_000);
    // From 700 back to the bound is 300 records and more: a pause for each of those at most.
    assert!((5..=35).contains(&feed.pauses()), "{}", feed.pauses());
}

#[tokio::test(start_paused = true)]
async fn la_21_a_bound_over_all_lanes_does_not_flap() {
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
        // As above: 300 records at least from one time to the next; and once at the end of the source.
        let closings = closings.load(SeqCst);
        assert!((5..=36).contains(&closings), "{closings} with {bounds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn la_22_a_hot_key_does_not_hold_up_the_cold_ones() {
    // Nine of ten records are of key 0.
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
    // A thousand cold records, ten at a time, each for two ticks of the timer at most.
    assert!(slowest < 250 * MS && began.elapsed() > 9 * SECOND, "{slowest:?} of {:?}", began.elapsed());
    let hot = handle.metrics().hot_keys;
    assert!(matches!(&hot[..], [hot] if *hot.key == 0_u64.to_be_bytes() && hot.share > 0.3), "{hot:?}");
}

#[tokio::test(start_paused = true)]
async fn la_22_a_hot_key_is_told_with_its_part_of_the_records_of_all_shards() {
    // Nine of ten records are of key 0, which is with one of the shards.
    let (source, _, checker) = whole(50_000, |at| if at % 10 == 0 { at } else { 0 });
    let subscription = Subscription::builder("test").source(source).shards(8).process(doing(&checker)).unwrap();
    let handle = subscription.handle();
    subscription.run().await.unwrap();
    let hot = handle.metrics().hot_keys;
    assert!(matches!(&hot[..], [hot] if (0.8..0.98).contains(&hot.share)), "{hot:?}");
}

#[tokio::test(start_paused = true)]
async fn la_23_a_slow_lane_does_not_starve_the_others() {
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
    until("the other lanes are done", || is_done(Lane(1)) && is_done(Lane(2))).await;
    assert_eq!(feed.committed(Lane(0)), None);
    gate.add_permits(3000);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(9000);
}

/// What blocked handlers wait for.
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

/// A handler that blocks its thread until the door is open, and counts those that came to it.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn la_24_two_hundred_blocked_handlers_do_not_stall_the_others() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 1000, |at| at % 400));
    feed.end();
    let door = Arc::new(Door::default());
    let blocked = Arc::new(AtomicUsize::new(0));
    let handler = blocked_by(&door, &checker, &blocked);
    let builder = Subscription::builder("blocking").source(source).runtime(Threads(200));
    let running = tokio::spawn(builder.handler(handler).unwrap().run());
    until("all threads are blocked", || blocked.load(SeqCst) == 200).await;
    let (other, other_feed) = Memory::new();
    let epoch = other_feed.assign(LANE);
    other_feed.extend(records(LANE, epoch, 10_000, |at| at % 100));
    other_feed.end();
    let builder = Subscription::builder("async").source(other);
    let process = |_| async {
        tokio::task::yield_now().await;
        Ok::<(), String>(())
    };
    assert_eq!(builder.process(process).unwrap().run().await.unwrap().done, 10_000);
    assert_eq!(blocked.load(SeqCst), 200, "no more than the threads run");
    door.open();
    running.await.unwrap().unwrap();
    checker.assert_all_done(1000);
}

#[tokio::test(start_paused = true)]
async fn la_25_the_rate_is_kept_can_be_changed_and_zero_is_a_pause() {
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

#[tokio::test(start_paused = true)]
async fn la_25_a_rate_that_is_set_again_and_again_is_kept() {
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
    assert_eq!(checker.begun(), paused, "what was saved up does not begin in a pause");
    handle.set_rate(None);
    running.await.unwrap().unwrap();
    checker.assert_all_done(1000);
}

#[tokio::test(start_paused = true)]
async fn la_26_concurrency_and_bounds_change_while_it_runs() {
    let (source, _, checker) = whole(10_000, |at| at);
    let gate = Arc::new(Semaphore::new(0));
    let bounds = Bounds { records_max: 100, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).concurrency(10).bounds(bounds);
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    let metrics = || (handle.metrics().tally.running, handle.metrics().pending);
    until("ten run", || metrics() == (10, 100)).await;
    handle.set_concurrency(50);
    until("fifty run", || metrics() == (50, 100)).await;
    handle.set_bounds(Bounds { records_max: 1000, ..Bounds::default() });
    until("a thousand are here", || metrics() == (50, 1000)).await;
    assert_eq!(checker.count_done(), 0, "nothing had to end for that");
    handle.set_concurrency(5);
    gate.add_permits(47);
    until("five run", || metrics().0 == 5 && checker.count_done() == 47).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(metrics().0, 5);
    gate.add_permits(10_000);
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
}

/// Of sixteen threads two more records wait in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn la_29_what_waits_for_a_thread_does_not_begin_when_its_lane_is_gone() {
    let (source, feed, checker) = filled(18, |at| at);
    let (door, came) = (Arc::new(Door::default()), Arc::new(AtomicUsize::new(0)));
    let builder = Subscription::builder("test").source(source).runtime(Threads(16));
    let subscription = builder.handler(blocked_by(&door, &checker, &came)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all threads are busy", || came.load(SeqCst) == 16 && handle.metrics().in_flight == 18).await;
    feed.revoke(&[LANE], MS);
    until("the lane is released", || feed.releases().len() == 1 && handle.metrics().in_flight == 0).await;
    door.open();
    let epoch = feed.assign(Lane(1));
    feed.push(record(Lane(1), epoch, 0, 0));
    // It stood behind them.
    until("another lane goes on", || feed.committed(Lane(1)).is_some()).await;
    assert_eq!(came.load(SeqCst), 17);
    feed.end();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_handlers_run_on_threads_than_may_and_than_there_are_threads() {
    let (source, _, checker) = whole(1000, |at| at);
    let door = Arc::new(Door::default());
    let inside = Arc::new(AtomicUsize::new(0));
    let handler = blocked_by(&door, &checker, &inside);
    let builder = Subscription::builder("test").source(source).concurrency(5).shards(1).runtime(Threads(16));
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("five run", || inside.load(SeqCst) == 5).await;
    until("the shard has counted", || handle.metrics().tally.running > 0).await;
    assert_eq!(handle.metrics().tally.running, 5, "and nothing waits for a thread");
    handle.set_concurrency(10_000);
    until("all threads are blocked", || inside.load(SeqCst) == 16).await;
    until("an eighth more is begun", || handle.metrics().tally.running == 18).await;
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
async fn no_more_is_taken_than_keys_can_begin() {
    let (source, _, checker) = whole(10_000, |at| at);
    let gate = Arc::new(Semaphore::new(0));
    let bounds = |ready_max| Bounds { ready_max, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).concurrency(10).shards(2).bounds(bounds(100));
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("ten run", || handle.metrics().tally.running == 10).await;
    tokio::time::sleep(SECOND).await;
    let taken = handle.metrics().pending;
    // What comes at once is at most a batch of 1,024.
    assert!((100..3000).contains(&taken), "{taken}");
    handle.set_bounds(bounds(usize::MAX));
    until("all is taken", || handle.metrics().pending == 10_000).await;
    handle.set_bounds(bounds(1));
    gate.add_permits(10_000);
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
}

#[tokio::test(start_paused = true)]
async fn records_behind_a_hot_key_are_reached_although_it_alone_is_ready() {
    // The others lie behind 5,000 records of one key.
    let (source, feed, checker) = filled(5_010, |at| at.saturating_sub(4_999));
    let gate = Arc::new(Semaphore::new(0));
    let bounds = Bounds { ready_max: 1, ..Bounds::default() };
    let builder = Subscription::builder("test").source(source).shards(1).bounds(bounds);
    let subscription = builder.handler(gated(&checker, &gate)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all keys run", || handle.metrics().tally.running == 11).await;
    gate.add_permits(10_000);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(5_010);
}

#[tokio::test(start_paused = true)]
async fn batches_find_many_records_of_a_key_whatever_is_ready() {
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
    until("all is taken", || handle.metrics().pending == 10_000).await;
    handle.set_rate(None);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
    assert_eq!(largest.load(SeqCst), 10);
}
