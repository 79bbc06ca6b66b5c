//! Failures: LA-09 to LA-13 and LA-16 to LA-19.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::source::MemorySource;
use tidegate_lanes::{
    BlockingThreads, BuildError, Delivery, ExhaustedAction, FailureCause, Interceptor, KeylessOrder, Lane,
    OverdueAction, Position, Record, RecordFailure, RecordRetryPolicy, RunError, Subscription,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::checker::{LANE, MS, SECOND, key_number, record, records, until, watched};
use crate::fixtures::{Letters, but, filled, gated, retry, whole};

/// LA-09: failed record is retried and blocks only its key.
#[tokio::test(start_paused = true)]
async fn failed_record_is_retried_and_blocks_only_its_key() {
    // Key 0 fails twice; each key has three records.
    let (source, _, checker) = whole(30, |at| at % 10);
    let began = Instant::now();
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let handler = but(&checker, move |delivery| {
        noted.lock().unwrap().push((delivery.position().0, began.elapsed().as_millis()));
        if delivery.position() == Position(0) && delivery.attempt < 3 {
            delivery.fail(RecordFailure::new("not yet"));
            return None;
        }
        Some(delivery)
    });
    let subscription = Subscription::builder("test").source(source).retry(retry(100 * MS, 5)).handler(handler).unwrap();
    let counters = subscription.run().await.unwrap();
    checker.assert_all_done(30);
    assert_eq!((counters.done, counters.failed, counters.retried), (30, 2, 2));
    let times = times.lock().unwrap();
    let of = |at: u64| times.iter().filter(|(other, _)| *other == at).map(|(_, time)| *time).collect::<Vec<_>>();
    assert_eq!(of(0).len(), 3);
    assert!(of(0)[1] >= 100 && of(0)[2] >= 300 && of(0)[2] < 350, "{:?}", of(0));
    assert!(of(10)[0] >= 300 && of(20)[0] >= 300, "later records of the key did not wait");
    assert!((0..30).filter(|at| at % 10 != 0).all(|at| of(at)[0] < 5), "other keys were delayed: {times:?}");
}

/// LA-10: dead letter is stored before the commit.
#[tokio::test(start_paused = true)]
async fn dead_letter_is_stored_before_the_commit() {
    let (source, _, checker) = whole(20, |at| at % 5);
    let letters = Letters::of(&checker);
    let handler = but(&checker, |delivery| {
        if key_number(&delivery) == 3 {
            delivery.fail(RecordFailure::new("never"));
            return None;
        }
        Some(delivery)
    });
    let builder =
        Subscription::builder("orders").source(source).retry(retry(MS, 3)).exhausted(ExhaustedAction::DeadLetter);
    let subscription = builder.commit_every(MS).dead_letter_queue(letters.take()).handler(handler).unwrap();
    let counters = subscription.run().await.unwrap();
    // The checker marks a record as finished once its dead letter is stored; no commit may pass it before.
    checker.assert_all_done(20);
    assert_eq!((counters.done, counters.dead_lettered, counters.failed), (16, 4, 12));
    let kept = letters.kept.lock().unwrap();
    let positions: Vec<u64> = kept.iter().map(|letter| letter.record.position().0).collect();
    assert_eq!(positions, [3, 8, 13, 18]);
    let letter = &kept[0];
    assert_eq!((letter.attempts, letter.failure.reason(), &*letter.subscription), (3, "never", "orders"));
}

/// A source with three keys and no checker.
fn three() -> MemorySource {
    let (source, feed) = MemorySource::new();
    feed.extend(records(LANE, feed.assign(LANE), 3, |at| at));
    feed.end();
    source
}

/// LA-09: otherwise `Retry-After` and permanent failures would be lost with the error type.
#[tokio::test(start_paused = true)]
async fn returned_failure_keeps_its_properties() {
    let source = three();
    let process = |record: Record| async move {
        match record.position().0 {
            0 => Err(RecordFailure::permanent("permanent")),
            1 => Err(RecordFailure::new("transient").retry_after(3600 * SECOND)),
            _ => Ok(()),
        }
    };
    let builder = Subscription::builder("test").source(source).retry(retry(MS, 2)).exhausted(ExhaustedAction::Skip);
    let began = Instant::now();
    let counters = builder.process(process).unwrap().run().await.unwrap();
    assert_eq!((counters.done, counters.skipped, counters.failed), (1, 2, 3), "permanent fails once, transient twice");
    assert!(began.elapsed() >= 3600 * SECOND, "did not wait for retry_after");
}

/// LA-09: returned failure of blocking handler is kept.
#[tokio::test]
async fn returned_failure_of_blocking_handler_is_kept() {
    let source = three();
    let process = |record: Record| match record.position().0 {
        0 => Err(RecordFailure::permanent("permanent")),
        1 => Err(RecordFailure::new("transient")),
        _ => Ok(()),
    };
    let builder = Subscription::builder("test").source(source).retry(retry(MS, 2)).exhausted(ExhaustedAction::Skip);
    let counters = builder.runtime(BlockingThreads(2)).process(process).unwrap().run().await.unwrap();
    assert_eq!((counters.done, counters.skipped, counters.failed), (1, 2, 3), "permanent fails once, transient twice");
}

/// LA-10: attempt limit above 65535 is reached.
#[tokio::test(start_paused = true)]
async fn attempt_limit_above_65535_is_reached() {
    let (source, _, checker) = whole(1, |at| at);
    let handler = but(&checker, |delivery| {
        delivery.fail(RecordFailure::new("never"));
        None
    });
    let builder = Subscription::builder("test").source(source).retry(retry(Duration::ZERO, 100_000));
    let subscription = builder.exhausted(ExhaustedAction::Skip).handler(handler).unwrap();
    let counters = subscription.run().await.unwrap();
    assert_eq!((counters.skipped, counters.failed), (1, 65_535));
}

/// LA-11: refused dead letter holds back the commit.
#[tokio::test(start_paused = true)]
async fn refused_dead_letter_holds_back_the_commit() {
    let (source, feed, checker) = filled(10, |at| at % 2);
    let letters = Letters::of(&checker);
    letters.refuses.store(4, SeqCst);
    let handler = but(&checker, |delivery| {
        if delivery.position() == Position(4) {
            delivery.fail(RecordFailure::permanent("never"));
            return None;
        }
        Some(delivery)
    });
    let builder =
        Subscription::builder("test").source(source).retry(retry(SECOND, 3)).exhausted(ExhaustedAction::DeadLetter);
    let subscription = builder.commit_every(MS).dead_letter_queue(letters.take()).handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("refused three times", || handle.metrics().counters.dead_letter_failures == 3).await;
    assert_eq!(feed.committed(LANE), Some(Position(3)));
    assert_eq!(checker.count_done(), 4 + 3, "records 6 and 8 wait, the other key continues");
    feed.end();
    let counters = running.await.unwrap().unwrap();
    assert_eq!((counters.dead_lettered, counters.dead_letter_failures, counters.failed), (1, 4, 1));
    checker.assert_all_done(10);
}

/// LA-11: missing dead letter queue is a build error.
#[tokio::test]
async fn missing_dead_letter_queue_is_a_build_error() {
    let (source, ..) = watched();
    let builder = Subscription::builder("test").source(source).exhausted(ExhaustedAction::DeadLetter);
    assert_eq!(builder.handler(|delivery| async { delivery.finish() }).unwrap_err(), BuildError::NoDeadLetterQueue);
}

/// LA-12: panic is a failure with its message.
#[tokio::test]
async fn panic_is_a_failure_with_its_message() {
    let (source, _, checker) = whole(4, |at| at);
    let letters = Letters::of(&checker);
    let watch = checker.clone();
    let handler = move |delivery: Delivery| {
        assert!(delivery.position() != Position(1), "immediately");
        let watch = watch.clone();
        async move {
            assert!(delivery.position() != Position(2), "at the first poll");
            tokio::task::yield_now().await;
            assert!(delivery.position() != Position(3), "later");
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let builder = Subscription::builder("test")
        .source(source)
        .retry(RecordRetryPolicy::never())
        .exhausted(ExhaustedAction::DeadLetter);
    let counters = builder.dead_letter_queue(letters.take()).handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(4);
    assert_eq!((counters.done, counters.panicked, counters.dead_lettered), (1, 3, 3));
    let mut kept = letters.kept.lock().unwrap().clone();
    kept.sort_by_key(|letter| letter.record.position());
    let messages: Vec<&str> = kept.iter().map(|letter| letter.failure.reason()).collect();
    assert_eq!(messages, ["immediately", "at the first poll", "later"]);
    assert!(kept.iter().all(|letter| letter.failure.cause() == FailureCause::Panic));
}

/// LA-13: dropped completion is a failure.
#[tokio::test(start_paused = true)]
async fn dropped_completion_is_a_failure() {
    let (source, _, checker) = whole(100, |at| at % 10);
    let handler = but(&checker, |delivery| (delivery.attempt > 1).then_some(delivery));
    let subscription = Subscription::builder("test").source(source).handler(handler).unwrap();
    let counters = subscription.run().await.unwrap();
    checker.assert_all_done(100);
    assert_eq!((counters.dropped, counters.done), (100, 100));
}

/// LA-16: undecodable record takes the exhausted action.
#[tokio::test(start_paused = true)]
async fn undecodable_record_takes_the_exhausted_action() {
    for exhausted in [ExhaustedAction::DeadLetter, ExhaustedAction::Skip, ExhaustedAction::Stop] {
        let (source, feed, checker) = watched();
        let epoch = feed.assign(LANE);
        feed.extend((0..5).map(|at| {
            let record = record(LANE, epoch, at, 1);
            if at == 2 { record.undecodable("unknown schema") } else { record }
        }));
        feed.end();
        let letters = Letters::of(&checker);
        let handler = but(&checker, |delivery| {
            assert!(delivery.decode_error().is_none());
            Some(delivery)
        });
        let builder =
            Subscription::builder("test").source(source).exhausted(exhausted).dead_letter_queue(letters.take());
        let result = builder.handler(handler).unwrap().run().await;
        match exhausted {
            ExhaustedAction::Stop => {
                let error = result.unwrap_err();
                assert!(error.to_string().contains("record 2 of lane 0"), "{error}");
                assert!(error.to_string().contains("unknown schema"), "{error}");
                assert_eq!(feed.committed(LANE), Some(Position(1)));
            }
            ExhaustedAction::Skip => {
                assert_eq!((result.unwrap().skipped, feed.committed(LANE)), (1, Some(Position(4))));
            }
            _ => {
                checker.assert_all_done(5);
                assert_eq!(result.unwrap().undecodable, 1);
                assert_eq!(letters.kept.lock().unwrap()[0].failure.cause(), FailureCause::Undecodable);
            }
        }
    }
}

/// How long healthy keys take next to keys that always fail.
async fn healthy_beside(poisoned: u64) -> Duration {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    let keys = 100 + poisoned;
    feed.extend(records(LANE, epoch, 20 * keys, |at| at % keys));
    let watch = checker.clone();
    let healthy = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&healthy);
    let handler = move |delivery: Delivery| {
        let (watch, healthy) = (watch.clone(), Arc::clone(&count));
        async move {
            watch.begin(&delivery);
            watch.fail(&delivery);
            if key_number(&delivery) >= 100 {
                return delivery.fail(RecordFailure::new("poison"));
            }
            tokio::time::sleep(10 * MS).await;
            watch.done(&delivery);
            delivery.finish();
            healthy.fetch_add(1, SeqCst);
        }
    };
    let for_ever = RecordRetryPolicy { attempts_max: None, wait_min: 20 * MS, ..RecordRetryPolicy::default() };
    let builder = Subscription::builder("test").source(source).concurrency(100).retry(for_ever);
    let subscription = builder.handler(handler).unwrap();
    let began = Instant::now();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("healthy keys finished", || healthy.load(SeqCst) == 2000).await;
    let took = began.elapsed();
    handle.stop(Duration::ZERO);
    running.await.unwrap().unwrap();
    checker.assert_order();
    took
}

/// LA-17: failing keys do not slow down healthy keys.
#[tokio::test(start_paused = true)]
async fn failing_keys_do_not_slow_down_healthy_keys() {
    let (alone, beside) = (healthy_beside(0).await, healthy_beside(100).await);
    assert!(beside.mul_f64(0.95) <= alone, "{alone:?} alone, {beside:?} next to as many failing keys");
}

/// LA-18: blocked record pauses its lane at the span.
#[tokio::test(start_paused = true)]
async fn blocked_record_pauses_its_lane_at_the_span() {
    let (source, feed, checker) = watched();
    for lane in [Lane(0), Lane(1)] {
        let epoch = feed.assign(lane);
        feed.extend(records(lane, epoch, 5000, |at| at));
    }
    let blocked: Arc<Mutex<Option<Delivery>>> = Arc::default();
    let hidden = Arc::clone(&blocked);
    let handler = but(&checker, move |delivery| {
        if delivery.lane() == Lane(0) && delivery.position() == Position(0) {
            *hidden.lock().unwrap() = Some(delivery);
            return None;
        }
        Some(delivery)
    });
    let bounds = tidegate_lanes::Bounds { lane_span_max: 1000, ..Default::default() };
    let builder =
        Subscription::builder("test").source(source).bounds(bounds).deadline(3600 * SECOND, OverdueAction::Retry);
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("other lane finished", || feed.committed(Lane(1)) == Some(Position(4999))).await;
    let status = handle.metrics().lanes.into_iter().find(|lane| lane.lane == Lane(0)).unwrap();
    assert!(status.is_paused && status.pending == 1, "{status:?}");
    assert!((1000..=2024).contains(&status.span), "more than a batch above the bound: {status:?}");
    assert!(feed.queued() > 2000);
    tokio::time::sleep(600 * SECOND).await;
    assert!(handle.metrics().oldest_age.unwrap() > 599 * SECOND);
    let delivery = blocked.lock().unwrap().take().unwrap();
    checker.done(&delivery);
    delivery.finish();
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(10_000);
}

/// An interceptor that panics.
struct Broken(Arc<AtomicU64>);

impl Interceptor for Broken {
    fn before(&self, _: &Record, _: u32) {
        self.0.fetch_add(1, SeqCst);
        panic!("before");
    }

    fn after(&self, _: &Record, _: Result<(), &RecordFailure>) {
        self.0.fetch_add(1, SeqCst);
        panic!("after");
    }
}

/// LA-19: panicking interceptor loses no record.
#[tokio::test]
async fn panicking_interceptor_loses_no_record() {
    let (source, _, checker) = whole(100, |at| at % 7);
    let calls = Arc::new(AtomicU64::new(0));
    let builder = Subscription::builder("test").source(source).interceptor(Broken(Arc::clone(&calls)));
    builder.handler(but(&checker, Some)).unwrap().run().await.unwrap();
    checker.assert_all_done(100);
    assert_eq!(calls.load(SeqCst), 200);
}

/// A tracing subscriber that panics in every third call.
#[cfg(feature = "tracing")]
struct BrokenListener(Arc<AtomicU64>);

#[cfg(feature = "tracing")]
impl BrokenListener {
    fn stumble(&self) -> u64 {
        let call = self.0.fetch_add(1, SeqCst) + 1;
        assert!(!call.is_multiple_of(3), "test panic");
        call
    }
}

#[cfg(feature = "tracing")]
impl tracing::Subscriber for BrokenListener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(self.stumble())
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {
        self.stumble();
    }

    fn exit(&self, _: &tracing::span::Id) {
        self.stumble();
    }
}

/// LA-19: panicking tracing subscriber loses no record.
#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn panicking_tracing_subscriber_loses_no_record() {
    let calls = Arc::new(AtomicU64::new(0));
    // If the process has one subscriber, the first thread at a callsite caches whether anyone is interested, and that
    // may be the thread of another test. With two subscribers, every call asks both.
    let _another = tracing::Dispatch::new(BrokenListener(Arc::default()));
    // This thread is the only one of the runtime.
    let _listening = tracing::subscriber::set_default(BrokenListener(Arc::clone(&calls)));
    let (source, _, checker) = whole(100, |at| at % 7);
    let builder = Subscription::builder("test").source(source);
    builder.handler(but(&checker, Some)).unwrap().run().await.unwrap();
    checker.assert_all_done(100);
    assert!(calls.load(SeqCst) > 200, "no tracing calls");
}

/// Records the outcome of each attempt.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashMap<u64, Vec<String>>>>);

impl Seen {
    fn of(&self, position: u64) -> Vec<String> {
        self.0.lock().unwrap().get(&position).cloned().unwrap_or_default()
    }
}

impl Interceptor for Seen {
    fn before(&self, record: &Record, attempt: u32) {
        self.0.lock().unwrap().entry(record.position().0).or_default().push(format!("attempt {attempt}"));
    }

    fn after(&self, record: &Record, result: Result<(), &RecordFailure>) {
        let text = result.map_or_else(ToString::to_string, |()| "done".to_owned());
        self.0.lock().unwrap().entry(record.position().0).or_default().push(text);
    }
}

/// LA-19: interceptor sees every attempt.
#[tokio::test(start_paused = true)]
async fn interceptor_sees_every_attempt() {
    let (source, _, checker) = whole(2, |at| at);
    let seen = Seen::default();
    let handler = but(&checker, |delivery| {
        if delivery.position() == Position(1) && delivery.attempt == 1 {
            delivery.fail(RecordFailure::new("no").retry_after(9 * SECOND));
            return None;
        }
        Some(delivery)
    });
    let began = Instant::now();
    let builder = Subscription::builder("test").source(source).interceptor(seen.clone()).keyless(KeylessOrder::PerLane);
    builder.handler(handler).unwrap().run().await.unwrap();
    assert_eq!(seen.of(0), ["attempt 1", "done"]);
    assert_eq!(seen.of(1), ["attempt 1", "no", "attempt 2", "done"]);
    assert!(began.elapsed() >= 9 * SECOND, "did not wait for retry_after");
}

/// LA-19: interceptor sees overdue attempts only.
#[tokio::test(start_paused = true)]
async fn interceptor_sees_overdue_attempts_only() {
    // 0 fails, the completion of 1 is kept, 2 never ends.
    let (source, _feed, checker) = filled(3, |at| at);
    let (seen, letters) = (Seen::default(), Letters::of(&checker));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let handler = move |delivery: Delivery| {
        let keep = Arc::clone(&keep);
        async move {
            match delivery.position().0 {
                0 => delivery.fail(RecordFailure::permanent("no")),
                1 => keep.lock().unwrap().push(delivery),
                _ => std::future::pending().await,
            }
        }
    };
    let builder =
        Subscription::builder("test").source(source).interceptor(seen.clone()).dead_letter_queue(letters.take());
    let builder = builder.exhausted(ExhaustedAction::DeadLetter).retry(RecordRetryPolicy::never());
    let builder = builder.deadline(10 * SECOND, OverdueAction::DeadLetter).concurrency(3);
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("one dead letter, two running", || handle.metrics().counters.dead_lettered == 1).await;
    assert_eq!(seen.of(0), ["attempt 1", "no"]);
    until("three dead letters", || handle.metrics().counters.dead_lettered == 3).await;
    for position in [1, 2] {
        assert_eq!(seen.of(position), ["attempt 1", "overdue: not finished within 10s"], "{position}");
    }
    handle.stop(SECOND);
    running.await.unwrap().unwrap();
}

/// LA-19: interceptor sees abandoned attempts.
#[tokio::test(start_paused = true)]
async fn interceptor_sees_abandoned_attempts() {
    let (source, _feed, checker) = filled(1, |at| at);
    let seen = Seen::default();
    let builder = Subscription::builder("test").source(source).interceptor(seen.clone());
    let subscription = builder.handler(gated(&checker, &Arc::new(Semaphore::new(0)))).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("running", || checker.begun() == 1).await;
    handle.stop(SECOND);
    running.await.unwrap().unwrap();
    assert_eq!(seen.of(0), ["attempt 1", "abandoned: lane revoked"]);
}

#[tokio::test(start_paused = true)]
async fn parked_keys_and_halted_lanes_wait() {
    for exhausted in [ExhaustedAction::Park, ExhaustedAction::HaltLane] {
        let (source, feed, checker) = filled(30, |at| at % 3);
        let mended = Arc::new(AtomicBool::new(false));
        let is_mended = Arc::clone(&mended);
        let handler = but(&checker, move |delivery| {
            if key_number(&delivery) == 1 && !is_mended.load(SeqCst) {
                delivery.fail(RecordFailure::new("broken"));
                return None;
            }
            Some(delivery)
        });
        let builder = Subscription::builder("test").source(source).retry(retry(MS, 2)).exhausted(exhausted);
        let subscription = builder.shards(1).commit_every(MS).handler(handler).unwrap();
        let handle = subscription.handle();
        let running = tokio::spawn(subscription.run());
        until("key parked", || handle.metrics().counters.keys_parked > 0).await;
        mended.store(true, SeqCst);
        if exhausted == ExhaustedAction::HaltLane {
            feed.end();
            let result = running.await.unwrap();
            assert!(matches!(result, Err(RunError::Unfinished { .. })), "{result:?}");
            assert_eq!(feed.committed(LANE), Some(Position(0)));
            continue;
        }
        until("others finished", || checker.count_done() == 20).await;
        assert_eq!((feed.committed(LANE), handle.metrics().counters.records_parked), (Some(Position(0)), 10));
        handle.unpark(&1_u64.to_be_bytes());
        feed.end();
        running.await.unwrap().unwrap();
        checker.assert_all_done(30);
    }
}

#[tokio::test(start_paused = true)]
async fn record_above_age_max_is_not_retried() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.push(record(LANE, epoch, 0, 1));
    feed.end();
    let handler = but(&checker, |delivery| {
        delivery.fail(RecordFailure::new("no"));
        None
    });
    let retry = RecordRetryPolicy {
        attempts_max: None,
        age_max: Some(10 * SECOND),
        wait_min: SECOND,
        jitter: 0.0,
        ..RecordRetryPolicy::default()
    };
    let builder = Subscription::builder("test").source(source).retry(retry).exhausted(ExhaustedAction::Skip);
    let counters = builder.handler(handler).unwrap().run().await.unwrap();
    assert_eq!((counters.skipped, counters.failed), (1, 4), "attempts at 0, 1, 3 and 7 s, not at 15 s");
}
