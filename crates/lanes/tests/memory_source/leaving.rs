//! Lanes that are taken away, and the end: what of points 27 to 37 does not need a broker.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::source::MemoryHandle;
use tidegate_lanes::{Delivery, Event, Failure, Handle, Lane, Position, RunError, Subscription, Tally};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::checker::{Checker, LANE, MS, SECOND, record, records, seed, until, watched};
use crate::stage::filled;

const OTHER: Lane = Lane(1);

/// A subscription that runs.
type Ending = JoinHandle<Result<Tally, RunError>>;

/// Handlers that finish when they are let, and know how many of them run.
#[derive(Clone)]
struct Work {
    checker: Checker,
    gate: Arc<Semaphore>,
    running: Arc<AtomicUsize>,
}

impl Work {
    fn new(checker: &Checker) -> Self {
        Self { checker: checker.clone(), gate: Arc::new(Semaphore::new(0)), running: Arc::default() }
    }

    fn handler(&self) -> impl Fn(Delivery) -> Pin<Box<dyn Future<Output = ()> + Send>> + use<> {
        let work = self.clone();
        move |delivery| Box::pin(work.clone().run(delivery))
    }

    async fn run(self, delivery: Delivery) {
        struct Running(Arc<AtomicUsize>);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        self.running.fetch_add(1, SeqCst);
        let _running = Running(Arc::clone(&self.running));
        if delivery.lane() == LANE {
            self.gate.acquire().await.unwrap().forget();
        }
        self.checker.done(&delivery);
        delivery.finish();
    }
}

#[tokio::test(start_paused = true)]
async fn la_28_only_the_lanes_that_are_taken_away_drain() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 100, |at| at));
    let other = feed.assign(OTHER);
    let work = Work::new(&checker);
    let builder = Subscription::builder("test").source(source).concurrency(10).shards(1).commit_every(MS);
    let running = tokio::spawn(builder.handler(work.handler()).unwrap().run());
    until("ten run", || work.running.load(SeqCst) == 10).await;
    feed.revoke(&[LANE], 100 * SECOND);
    // While the one lane drains, it holds all permits but those it gives back.
    work.gate.add_permits(5);
    feed.extend(records(OTHER, other, 1000, |at| at));
    until("the other lane is done", || feed.committed(OTHER) == Some(Position(999))).await;
    assert_eq!((work.running.load(SeqCst), feed.releases().len()), (5, 0));
    work.gate.add_permits(5);
    until("the lane is released", || feed.releases().len() == 1).await;
    // What had not begun was dropped: what ran is exactly what is committed.
    let done = checker.count_done() - 1000;
    assert_eq!(done, 10);
    assert_eq!(feed.releases(), [(LANE, epoch, Some(Position(9)))]);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn la_29_what_does_not_end_in_time_is_aborted_and_not_committed() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 10, |at| at));
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).shards(1).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("ten run", || work.running.load(SeqCst) == 10).await;
    work.gate.add_permits(3);
    until("three are done", || checker.count_done() == 3).await;
    let began = Instant::now();
    feed.revoke(&[LANE], 10 * SECOND);
    until("the lane is released", || feed.releases().len() == 1).await;
    assert_eq!(feed.releases(), [(LANE, epoch, Some(Position(2)))]);
    assert!((10 * SECOND..11 * SECOND).contains(&began.elapsed()));
    until("they were aborted", || work.running.load(SeqCst) == 0).await;
    until("they are given up", || handle.metrics().tally.abandoned == 7 && handle.metrics().in_flight == 0).await;
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn la_29_of_several_deadlines_the_nearest_counts() {
    // A lane leaves with much time, then the subscription is told to stop, with much time, with little, and with much.
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 10, |at| at));
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).shards(1).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("ten run", || work.running.load(SeqCst) == 10).await;
    let began = Instant::now();
    feed.revoke(&[LANE], 1000 * SECOND);
    for seconds in [500, 10, 500] {
        handle.stop(seconds * SECOND);
        tokio::time::sleep(SECOND).await;
    }
    running.await.unwrap().unwrap();
    assert!((10 * SECOND..13 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(feed.releases(), [(LANE, epoch, None)], "who took it away hears of it");
}

#[tokio::test(start_paused = true)]
async fn la_30_a_lane_that_comes_back_is_another_assignment() {
    let (source, feed, checker) = watched();
    let first = feed.assign(LANE);
    feed.extend(records(LANE, first, 10, |_| 1));
    let late: Arc<Mutex<Option<Delivery>>> = Arc::default();
    let (watch, hidden) = (checker.clone(), Arc::clone(&late));
    let handler = move |delivery: Delivery| {
        if delivery.epoch() == first {
            *hidden.lock().unwrap() = Some(delivery);
        } else {
            watch.done(&delivery);
            delivery.finish();
        }
        std::future::ready(())
    };
    let subscription = Subscription::builder("test").source(source).handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("one is open", || late.lock().unwrap().is_some()).await;
    feed.revoke(&[LANE], SECOND);
    until("the lane is released", || feed.releases().len() == 1).await;
    assert_eq!(feed.releases(), [(LANE, first, None)]);
    let second = feed.assign(LANE);
    feed.extend(records(LANE, second, 10, |_| 1));
    late.lock().unwrap().take().unwrap().finish();
    until("all of the second are done", || feed.committed(LANE) == Some(Position(9))).await;
    assert_eq!(handle.metrics().tally.late, 1);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(10);
}

/// As where a subscription was held up for longer than its group waits.
#[tokio::test(start_paused = true)]
async fn la_30_a_lane_that_comes_back_before_it_was_given_back_does_not_wait_for_what_was_of_it() {
    let (source, feed, checker) = watched();
    let first = feed.assign(LANE);
    feed.extend(records(LANE, first, 10, |at| at % 2));
    let watch = checker.clone();
    let running = Arc::<AtomicUsize>::default();
    let began = Arc::clone(&running);
    let handler = move |delivery: Delivery| {
        let (watch, began) = (watch.clone(), Arc::clone(&began));
        async move {
            if delivery.epoch() == first {
                began.fetch_add(1, SeqCst);
                std::future::pending::<()>().await;
            }
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let subscription = Subscription::builder("test").source(source).concurrency(1).handler(handler).unwrap();
    let handle = subscription.handle();
    let ending = tokio::spawn(subscription.run());
    until("one runs", || running.load(SeqCst) == 1).await;
    feed.revoke(&[LANE], 1000 * SECOND);
    let second = feed.assign(LANE);
    feed.extend(records(LANE, second, 10, |at| at % 2));
    until("all of the second are done", || feed.committed(LANE) == Some(Position(9))).await;
    until("nothing of the first is left", || handle.metrics().pending == 0).await;
    feed.end();
    ending.await.unwrap().unwrap();
    checker.assert_all_done(10);
}

#[tokio::test(start_paused = true)]
async fn la_27_a_lane_that_is_lost_is_neither_committed_nor_released() {
    let (source, feed, checker) = filled(10, |at| at);
    let work = Work::new(&checker);
    let running = tokio::spawn(Subscription::builder("test").source(source).handler(work.handler()).unwrap().run());
    until("ten run", || work.running.load(SeqCst) == 10).await;
    feed.lose(&[LANE]);
    until("they were aborted", || work.running.load(SeqCst) == 0).await;
    feed.end();
    running.await.unwrap().unwrap();
    assert_eq!((feed.commits().len(), feed.releases().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn la_27_storms_of_assignments_lose_nothing() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (source, feed, checker) = watched();
    let watch = checker.clone();
    let handler = move |delivery: Delivery| {
        let watch = watch.clone();
        async move {
            if fastrand::bool() {
                tokio::time::sleep(MS).await;
            }
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let builder = Subscription::builder("test").source(source).commit_every(MS);
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    for revoked in 1..=100 {
        let lane = Lane(random.u32(..3));
        let epoch = feed.assign(lane);
        // Each owner begins where the one before has committed; here each lane begins anew.
        feed.extend(records(lane, epoch, 200, |at| at % 20));
        if random.bool() {
            tokio::time::sleep(MS * random.u32(..5)).await;
        }
        feed.revoke(&[lane], MS * random.u32(..10));
        until("it is released", || feed.releases().len() == revoked).await;
    }
    checker.assert_order();
    feed.end();
    running.await.unwrap().unwrap();
    assert_eq!((handle.metrics().pending, handle.metrics().in_flight), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn la_37_a_stop_commits_exactly_the_finished_prefix() {
    let (source, feed, checker) = filled(100, |at| at);
    let work = Work::new(&checker);
    let builder = Subscription::builder("test").source(source).concurrency(20).shards(1).commit_every(1000 * SECOND);
    let subscription = builder.handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("twenty run", || work.running.load(SeqCst) == 20).await;
    work.gate.add_permits(7);
    handle.stop(5 * SECOND);
    let tally = running.await.unwrap().unwrap();
    assert_eq!((tally.done, tally.abandoned), (7, 13));
    assert!(feed.is_closed());
    // Which of the twenty got a permit is the semaphore's choice: the first seven.
    assert_eq!(feed.committed(LANE), Some(Position(6)));
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_is_done_before_a_subscription_finishes() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 100, |at| at % 7));
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).concurrency(3).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all are taken", || handle.metrics().pending == 100).await;
    handle.finish();
    feed.extend((100..200).map(|at| record(LANE, epoch, at, at % 7)));
    work.gate.add_permits(200);
    let tally = running.await.unwrap().unwrap();
    assert_eq!((tally.done, tally.abandoned), (100, 0));
    assert_eq!(feed.committed(LANE), Some(Position(99)));
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn a_stop_sets_a_deadline_to_a_subscription_that_finishes() {
    let (source, feed, checker) = filled(10, |_| 0);
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    work.gate.add_permits(4);
    until("one waits for ever", || handle.metrics().pending == 6).await;
    handle.finish();
    handle.stop(SECOND);
    let tally = running.await.unwrap().unwrap();
    assert_eq!((tally.done, tally.abandoned), (4, 1));
    assert_eq!(feed.committed(LANE), Some(Position(3)));
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn la_31_a_commit_that_fails_is_repeated() {
    let (source, feed, checker) = filled(3, |at| at);
    let work = Work::new(&checker);
    work.gate.add_permits(3);
    let subscription = Subscription::builder("test").source(source).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("it was committed", || feed.commits().len() == 1).await;
    feed.say(Event::CommitFailed { mark: feed.commits()[0], reason: "REBALANCE_IN_PROGRESS".to_owned() });
    until("it was committed again", || feed.commits().len() == 2).await;
    assert_eq!((feed.commits()[1], handle.metrics().commits_failed), (feed.commits()[0], 1));
    feed.end();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_was_started_ends_when_the_run_is_dropped() {
    let (source, feed, checker) = filled(10, |at| at);
    let work = Work::new(&checker);
    let mut run = Box::pin(Subscription::builder("test").source(source).handler(work.handler()).unwrap().run());
    let timeout = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::select! {
            _ = &mut run => unreachable!("it is not asked to end"),
            () = until("ten run", || work.running.load(SeqCst) == 10) => {}
        }
    });
    timeout.await.unwrap();
    drop(run);
    until("all handlers are gone", || work.running.load(SeqCst) == 0).await;
    assert_eq!(feed.committed(LANE), None);
}

/// Records at 0, 1, 3 and 5 of one key, whose handlers wait; those at 2 and 4 of others are done at once.
async fn behind_a_busy_key(shards: usize) -> (Work, MemoryHandle, Checker, Handle, Ending) {
    let (source, feed, checker) = filled(6, |at| if [2, 4].contains(&at) { at } else { 0 });
    let work = Work::new(&checker);
    let (waiting, watch) = (work.handler(), checker.clone());
    let handler = move |delivery: Delivery| -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if delivery.key() == record(LANE, delivery.epoch(), 0, 0).key() {
            return waiting(delivery);
        }
        watch.done(&delivery);
        delivery.finish();
        Box::pin(std::future::ready(()))
    };
    let builder = Subscription::builder("test").source(source).shards(shards).commit_every(1000 * SECOND);
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("the others are done", || checker.count_done() == 2 && work.running.load(SeqCst) == 1).await;
    (work, feed, checker, handle, running)
}

#[tokio::test(start_paused = true)]
async fn la_28_what_stands_before_something_done_is_done_before_its_lane_leaves() {
    for shards in [1, 4] {
        let (work, feed, checker, _, running) = behind_a_busy_key(shards).await;
        feed.revoke(&[LANE], 100 * SECOND);
        work.gate.add_permits(10);
        until("the lane is released", || feed.releases().len() == 1).await;
        assert_eq!(feed.releases()[0].2, Some(Position(4)), "nothing that was done comes again");
        assert_eq!(checker.count_done(), 5, "what stands behind all that had begun does not begin");
        feed.end();
        running.await.unwrap().unwrap();
        checker.assert_order();
    }
}

#[tokio::test(start_paused = true)]
async fn la_37_what_stands_before_something_done_is_done_before_a_stop() {
    let (work, feed, checker, handle, running) = behind_a_busy_key(4).await;
    handle.stop(100 * SECOND);
    work.gate.add_permits(10);
    assert_eq!(running.await.unwrap().unwrap().done, 5);
    assert_eq!(feed.committed(LANE), Some(Position(4)));
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn la_37_a_stop_of_what_is_paused_waits_for_nothing_that_has_not_begun() {
    let (work, feed, checker, handle, running) = behind_a_busy_key(4).await;
    handle.set_rate(Some(0.0));
    let began = Instant::now();
    handle.stop(100 * SECOND);
    work.gate.add_permits(10);
    assert_eq!(running.await.unwrap().unwrap().done, 3);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(feed.committed(LANE), Some(Position(0)));
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn la_29_what_has_not_begun_in_half_of_the_time_is_dropped() {
    let (work, feed, checker, handle, running) = behind_a_busy_key(4).await;
    feed.revoke(&[LANE], 10 * SECOND);
    until("what waited is dropped", || handle.metrics().pending == 1).await;
    work.gate.add_permits(10);
    until("the lane is released", || feed.releases().len() == 1).await;
    assert_eq!((feed.releases()[0].2, checker.count_done()), (Some(Position(0)), 3));
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn la_29_what_waits_behind_a_record_that_fails_does_not_overtake_it() {
    let (source, feed, checker) = filled(4, |at| u64::from(at == 3));
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (watch, opened, seen) = (checker.clone(), Arc::clone(&gate), Arc::clone(&begun));
    let handler = move |delivery: Delivery| {
        let (watch, gate) = (watch.clone(), Arc::clone(&opened));
        seen.lock().unwrap().push(delivery.position().0);
        async move {
            if delivery.position() == Position(0) {
                gate.acquire().await.unwrap().forget();
                return delivery.fail(Failure::new("no"));
            }
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let subscription = Subscription::builder("test").source(source).shards(1).handler(handler).unwrap();
    let running = tokio::spawn(subscription.run());
    until("the other key is done", || checker.count_done() == 1).await;
    feed.revoke(&[LANE], 10 * SECOND);
    gate.add_permits(10);
    until("the lane is released", || feed.releases().len() == 1).await;
    assert_eq!((feed.releases()[0].2, begun.lock().unwrap().clone()), (None, vec![0, 3]));
    feed.end();
    running.await.unwrap().unwrap();
}
