//! Revocation and shutdown: the parts of LA-27 to LA-37 that need no broker.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::source::MemorySourceHandle;
use tidegate_lanes::{
    Delivery, Epoch, Lane, Position, RecordFailure, RunError, SourceEvent, Subscription, SubscriptionCounters,
    SubscriptionHandle,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::checker::{Checker, LANE, MS, SECOND, record, records, seed, until, watched};
use crate::fixtures::filled;

const OTHER: Lane = Lane(1);

/// A running subscription.
type Ending = JoinHandle<Result<SubscriptionCounters, RunError>>;

/// Handlers that wait for a permit, and a counter of running handlers.
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

/// LA-28: only revoked lanes drain.
#[tokio::test(start_paused = true)]
async fn only_revoked_lanes_drain() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 100, |at| at));
    let other = feed.assign(OTHER);
    let work = Work::new(&checker);
    let builder = Subscription::builder("test").source(source).concurrency(10).shards(1).commit_every(MS);
    let running = tokio::spawn(builder.handler(work.handler()).unwrap().run());
    until("ten running", || work.running.load(SeqCst) == 10).await;
    feed.revoke(&[LANE], 100 * SECOND);
    // While the lane drains, it holds all permits except those that it releases.
    work.gate.add_permits(5);
    feed.extend(records(OTHER, other, 1000, |at| at));
    until("other lane finished", || feed.committed(OTHER) == Some(Position(999))).await;
    assert_eq!((work.running.load(SeqCst), feed.releases().len()), (5, 0));
    work.gate.add_permits(5);
    until("lane released", || feed.releases().len() == 1).await;
    // Queued records were dropped, so exactly the running records are committed.
    let done = checker.count_done() - 1000;
    assert_eq!(done, 10);
    assert_eq!(feed.releases(), [(LANE, epoch, Some(Position(9)))]);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_order();
}

/// Reports of records that were taken under the same epoch would finish records of the new assignment.
#[tokio::test(start_paused = true)]
async fn assignment_with_an_old_epoch_is_ignored() {
    let (source, feed, checker) = watched();
    feed.assign(LANE);
    feed.lose(&[LANE]);
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 10, |at| at));
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).shards(1).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("ten running", || work.running.load(SeqCst) == 10).await;
    for epoch in [epoch, Epoch(epoch.0 - 1)] {
        feed.inject(SourceEvent::Assigned { lane: LANE, epoch });
    }
    feed.end();
    until("source ended", || handle.metrics().lanes.len() == 1).await;
    work.gate.add_permits(10);
    assert_eq!(running.await.unwrap().unwrap().done, 10);
    assert_eq!(feed.committed(LANE), Some(Position(9)));
}

/// LA-29: unfinished records are aborted at the deadline.
#[tokio::test(start_paused = true)]
async fn unfinished_records_are_aborted_at_the_deadline() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 10, |at| at));
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).shards(1).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("ten running", || work.running.load(SeqCst) == 10).await;
    work.gate.add_permits(3);
    until("three finished", || checker.count_done() == 3).await;
    let began = Instant::now();
    feed.revoke(&[LANE], 10 * SECOND);
    until("lane released", || feed.releases().len() == 1).await;
    assert_eq!(feed.releases(), [(LANE, epoch, Some(Position(2)))]);
    assert!((10 * SECOND..11 * SECOND).contains(&began.elapsed()));
    until("handlers aborted", || work.running.load(SeqCst) == 0).await;
    until("executions abandoned", || handle.metrics().counters.abandoned == 7 && handle.metrics().in_flight == 0).await;
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_order();
}

/// LA-29: earliest drain deadline applies.
#[tokio::test(start_paused = true)]
async fn earliest_drain_deadline_applies() {
    // A lane is revoked with a long deadline, then the subscription stops with a long, a short, and a long one.
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 10, |at| at));
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).shards(1).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("ten running", || work.running.load(SeqCst) == 10).await;
    let began = Instant::now();
    feed.revoke(&[LANE], 1000 * SECOND);
    for seconds in [500, 10, 500] {
        handle.stop(seconds * SECOND);
        tokio::time::sleep(SECOND).await;
    }
    running.await.unwrap().unwrap();
    assert!((10 * SECOND..13 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(feed.releases(), [(LANE, epoch, None)], "revoked lane was not released");
}

/// LA-30: reassigned lane ignores the old epoch.
#[tokio::test(start_paused = true)]
async fn reassigned_lane_ignores_the_old_epoch() {
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
    until("one open", || late.lock().unwrap().is_some()).await;
    feed.revoke(&[LANE], SECOND);
    until("lane released", || feed.releases().len() == 1).await;
    assert_eq!(feed.releases(), [(LANE, first, None)]);
    let second = feed.assign(LANE);
    feed.extend(records(LANE, second, 10, |_| 1));
    late.lock().unwrap().take().unwrap().finish();
    until("second epoch finished", || feed.committed(LANE) == Some(Position(9))).await;
    assert_eq!(handle.metrics().counters.late, 1);
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(10);
}

/// LA-30: as after a subscription was blocked for longer than its group waits.
#[tokio::test(start_paused = true)]
async fn reassignment_does_not_wait_for_the_old_epoch() {
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
    until("one running", || running.load(SeqCst) == 1).await;
    feed.revoke(&[LANE], 1000 * SECOND);
    let second = feed.assign(LANE);
    feed.extend(records(LANE, second, 10, |at| at % 2));
    until("second epoch finished", || feed.committed(LANE) == Some(Position(9))).await;
    until("first epoch gone", || handle.metrics().pending == 0).await;
    feed.end();
    ending.await.unwrap().unwrap();
    checker.assert_all_done(10);
}

/// LA-27: lost lane is neither committed nor released.
#[tokio::test(start_paused = true)]
async fn lost_lane_is_neither_committed_nor_released() {
    let (source, feed, checker) = filled(10, |at| at);
    let work = Work::new(&checker);
    let running = tokio::spawn(Subscription::builder("test").source(source).handler(work.handler()).unwrap().run());
    until("ten running", || work.running.load(SeqCst) == 10).await;
    feed.lose(&[LANE]);
    until("handlers aborted", || work.running.load(SeqCst) == 0).await;
    feed.end();
    running.await.unwrap().unwrap();
    assert_eq!((feed.commits().len(), feed.releases().len()), (0, 0));
}

/// LA-27: repeated reassignment loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn repeated_reassignment_loses_nothing() {
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
        // Consumers resume at the commit of the previous owner; here each lane starts over.
        feed.extend(records(lane, epoch, 200, |at| at % 20));
        if random.bool() {
            tokio::time::sleep(MS * random.u32(..5)).await;
        }
        feed.revoke(&[lane], MS * random.u32(..10));
        until("released", || feed.releases().len() == revoked).await;
    }
    checker.assert_order();
    feed.end();
    running.await.unwrap().unwrap();
    assert_eq!((handle.metrics().pending, handle.metrics().in_flight), (0, 0));
}

/// LA-37: stop commits exactly the finished prefix.
#[tokio::test(start_paused = true)]
async fn stop_commits_exactly_the_finished_prefix() {
    let (source, feed, checker) = filled(100, |at| at);
    let work = Work::new(&checker);
    let builder = Subscription::builder("test").source(source).concurrency(20).shards(1).commit_every(1000 * SECOND);
    let subscription = builder.handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("twenty running", || work.running.load(SeqCst) == 20).await;
    work.gate.add_permits(7);
    handle.stop(5 * SECOND);
    let counters = running.await.unwrap().unwrap();
    assert_eq!((counters.done, counters.abandoned), (7, 13));
    assert!(feed.is_closed());
    // The semaphore grants permits in order: the first seven records.
    assert_eq!(feed.committed(LANE), Some(Position(6)));
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn finish_processes_all_taken_records() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, 100, |at| at % 7));
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).concurrency(3).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("all taken", || handle.metrics().pending == 100).await;
    handle.finish();
    feed.extend((100..200).map(|at| record(LANE, epoch, at, at % 7)));
    work.gate.add_permits(200);
    let counters = running.await.unwrap().unwrap();
    assert_eq!((counters.done, counters.abandoned), (100, 0));
    assert_eq!(feed.committed(LANE), Some(Position(99)));
    checker.assert_order();
}

#[tokio::test(start_paused = true)]
async fn stop_sets_a_deadline_for_finish() {
    let (source, feed, checker) = filled(10, |_| 0);
    let work = Work::new(&checker);
    let subscription = Subscription::builder("test").source(source).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    work.gate.add_permits(4);
    until("one waits forever", || handle.metrics().pending == 6).await;
    handle.finish();
    handle.stop(SECOND);
    let counters = running.await.unwrap().unwrap();
    assert_eq!((counters.done, counters.abandoned), (4, 1));
    assert_eq!(feed.committed(LANE), Some(Position(3)));
    checker.assert_order();
}

/// LA-31: failed commit is retried.
#[tokio::test(start_paused = true)]
async fn failed_commit_is_retried() {
    let (source, feed, checker) = filled(3, |at| at);
    let work = Work::new(&checker);
    work.gate.add_permits(3);
    let subscription = Subscription::builder("test").source(source).handler(work.handler()).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("committed", || feed.commits().len() == 1).await;
    feed.inject(SourceEvent::CommitFailed { commit: feed.commits()[0], reason: "REBALANCE_IN_PROGRESS".to_owned() });
    until("committed again", || feed.commits().len() == 2).await;
    assert_eq!((feed.commits()[1], handle.metrics().commits_failed), (feed.commits()[0], 1));
    feed.end();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn dropping_run_aborts_handlers() {
    let (source, feed, checker) = filled(10, |at| at);
    let work = Work::new(&checker);
    let mut run = Box::pin(Subscription::builder("test").source(source).handler(work.handler()).unwrap().run());
    let timeout = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::select! {
            _ = &mut run => unreachable!("run ended without a stop"),
            () = until("ten running", || work.running.load(SeqCst) == 10) => {}
        }
    });
    timeout.await.unwrap();
    drop(run);
    until("all handlers gone", || work.running.load(SeqCst) == 0).await;
    assert_eq!(feed.committed(LANE), None);
}

/// Records at 0, 1, 3 and 5 of one key with waiting handlers; the records of other keys at 2 and 4 finish immediately.
async fn behind_a_busy_key(shards: usize) -> (Work, MemorySourceHandle, Checker, SubscriptionHandle, Ending) {
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
    until("others finished", || checker.count_done() == 2 && work.running.load(SeqCst) == 1).await;
    (work, feed, checker, handle, running)
}

/// LA-28: records before a finished one run before release.
#[tokio::test(start_paused = true)]
async fn records_before_a_finished_one_run_before_release() {
    for shards in [1, 4] {
        let (work, feed, checker, _, running) = behind_a_busy_key(shards).await;
        feed.revoke(&[LANE], 100 * SECOND);
        work.gate.add_permits(10);
        until("lane released", || feed.releases().len() == 1).await;
        assert_eq!(feed.releases()[0].2, Some(Position(4)), "finished record is not covered by the commit");
        assert_eq!(checker.count_done(), 5, "record beyond the last started one was started");
        feed.end();
        running.await.unwrap().unwrap();
        checker.assert_order();
    }
}

/// LA-37: records before a finished one run before stop.
#[tokio::test(start_paused = true)]
async fn records_before_a_finished_one_run_before_stop() {
    let (work, feed, checker, handle, running) = behind_a_busy_key(4).await;
    handle.stop(100 * SECOND);
    work.gate.add_permits(10);
    assert_eq!(running.await.unwrap().unwrap().done, 5);
    assert_eq!(feed.committed(LANE), Some(Position(4)));
    checker.assert_order();
}

/// LA-37: stop while paused does not wait for queued records.
#[tokio::test(start_paused = true)]
async fn stop_while_paused_does_not_wait_for_queued_records() {
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

/// LA-29: queued records are dropped at half time.
#[tokio::test(start_paused = true)]
async fn queued_records_are_dropped_at_half_time() {
    let (work, feed, checker, handle, running) = behind_a_busy_key(4).await;
    feed.revoke(&[LANE], 10 * SECOND);
    until("queued records dropped", || handle.metrics().pending == 1).await;
    work.gate.add_permits(10);
    until("lane released", || feed.releases().len() == 1).await;
    assert_eq!((feed.releases()[0].2, checker.count_done()), (Some(Position(0)), 3));
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_order();
}

/// LA-29: draining key is not overtaken after a failure.
#[tokio::test(start_paused = true)]
async fn draining_key_is_not_overtaken_after_a_failure() {
    let (source, feed, checker) = filled(4, |at| u64::from(at == 3));
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (watch, opened, seen) = (checker.clone(), Arc::clone(&gate), Arc::clone(&begun));
    let handler = move |delivery: Delivery| {
        let (watch, gate) = (watch.clone(), Arc::clone(&opened));
        seen.lock().unwrap().push(delivery.position().0);
        async move {
            if delivery.position() == Position(0) {
                gate.acquire().await.unwrap().forget();
                return delivery.fail(RecordFailure::new("no"));
            }
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let subscription = Subscription::builder("test").source(source).shards(1).handler(handler).unwrap();
    let running = tokio::spawn(subscription.run());
    until("other key finished", || checker.count_done() == 1).await;
    feed.revoke(&[LANE], 10 * SECOND);
    gate.add_permits(10);
    until("lane released", || feed.releases().len() == 1).await;
    assert_eq!((feed.releases()[0].2, begun.lock().unwrap().clone()), (None, vec![0, 3]));
    feed.end();
    running.await.unwrap().unwrap();
}
