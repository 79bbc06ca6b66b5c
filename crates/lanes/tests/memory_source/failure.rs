//! Failure: points 9 to 13, and 16 to 19.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::source::Memory;
use tidegate_lanes::{
    BuildError, Cause, Delivery, Exhausted, Failure, Interceptor, Keyless, Lane, Overdue, Position, Record, Retry,
    RunError, Subscription, Threads,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::checker::{LANE, MS, SECOND, key_number, record, records, until, watched};
use crate::stage::{Letters, but, filled, gated, retry, whole};

#[tokio::test(start_paused = true)]
async fn la_09_a_failed_record_is_tried_again_and_only_its_key_waits() {
    // Key 0 fails twice; each key has three records.
    let (source, _, checker) = whole(30, |at| at % 10);
    let began = Instant::now();
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let handler = but(&checker, move |delivery| {
        noted.lock().unwrap().push((delivery.position().0, began.elapsed().as_millis()));
        if delivery.position() == Position(0) && delivery.attempt < 3 {
            delivery.fail(Failure::new("not yet"));
            return None;
        }
        Some(delivery)
    });
    let subscription = Subscription::builder("test").source(source).retry(retry(100 * MS, 5)).handler(handler).unwrap();
    let tally = subscription.run().await.unwrap();
    checker.assert_all_done(30);
    assert_eq!((tally.done, tally.failed, tally.retried), (30, 2, 2));
    let times = times.lock().unwrap();
    let of = |at: u64| times.iter().filter(|(other, _)| *other == at).map(|(_, time)| *time).collect::<Vec<_>>();
    assert_eq!(of(0).len(), 3);
    assert!(of(0)[1] >= 100 && of(0)[2] >= 300 && of(0)[2] < 350, "{:?}", of(0));
    assert!(of(10)[0] >= 300 && of(20)[0] >= 300, "followers wait");
    assert!((0..30).filter(|at| at % 10 != 0).all(|at| of(at)[0] < 5), "other keys go on: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn la_10_exhausted_records_are_in_the_dead_letter_before_they_are_committed() {
    let (source, _, checker) = whole(20, |at| at % 5);
    let letters = Letters::of(&checker);
    let handler = but(&checker, |delivery| {
        if key_number(&delivery) == 3 {
            delivery.fail(Failure::new("never"));
            return None;
        }
        Some(delivery)
    });
    let builder = Subscription::builder("orders").source(source).retry(retry(MS, 3)).exhausted(Exhausted::DeadLetter);
    let subscription = builder.commit_every(MS).dead_letter(letters.take()).handler(handler).unwrap();
    let tally = subscription.run().await.unwrap();
    // The checker knows a letter as done only once it is kept, and no commit may pass it before.
    checker.assert_all_done(20);
    assert_eq!((tally.done, tally.dead_lettered, tally.failed), (16, 4, 12));
    let kept = letters.kept.lock().unwrap();
    let positions: Vec<u64> = kept.iter().map(|letter| letter.record.position().0).collect();
    assert_eq!(positions, [3, 8, 13, 18]);
    let letter = &kept[0];
    assert_eq!((letter.attempts, letter.failure.reason(), &*letter.subscription), (3, "never", "orders"));
}

/// Of three keys; nobody watches them.
fn three() -> Memory {
    let (source, feed) = Memory::new();
    feed.extend(records(LANE, feed.assign(LANE), 3, |at| at));
    feed.end();
    source
}

/// Else what a server asked for, or that trying again is in vain, would be lost with the type.
#[tokio::test(start_paused = true)]
async fn la_09_a_failure_that_a_function_returns_is_what_it_says() {
    let source = three();
    let process = |record: Record| async move {
        match record.position().0 {
            0 => Err(Failure::permanent("not ours")),
            1 => Err(Failure::new("not now").retry_after(3600 * SECOND)),
            _ => Ok(()),
        }
    };
    let builder = Subscription::builder("test").source(source).retry(retry(MS, 2)).exhausted(Exhausted::Skip);
    let began = Instant::now();
    let tally = builder.process(process).unwrap().run().await.unwrap();
    assert_eq!((tally.done, tally.skipped, tally.failed), (1, 2, 3), "one is tried once, one twice");
    assert!(began.elapsed() >= 3600 * SECOND, "on a clock that is set forward");
}

#[tokio::test]
async fn la_09_a_failure_that_a_function_that_blocks_returns_is_what_it_says() {
    let source = three();
    let process = |record: Record| match record.position().0 {
        0 => Err(Failure::permanent("not ours")),
        1 => Err(Failure::new("not now")),
        _ => Ok(()),
    };
    let builder = Subscription::builder("test").source(source).retry(retry(MS, 2)).exhausted(Exhausted::Skip);
    let tally = builder.runtime(Threads(2)).process(process).unwrap().run().await.unwrap();
    assert_eq!((tally.done, tally.skipped, tally.failed), (1, 2, 3), "one is tried once, one twice");
}

#[tokio::test(start_paused = true)]
async fn la_10_more_attempts_than_are_counted_end_as_well() {
    let (source, _, checker) = whole(1, |at| at);
    let handler = but(&checker, |delivery| {
        delivery.fail(Failure::new("never"));
        None
    });
    let builder = Subscription::builder("test").source(source).retry(retry(Duration::ZERO, 100_000));
    let subscription = builder.exhausted(Exhausted::Skip).handler(handler).unwrap();
    let tally = subscription.run().await.unwrap();
    assert_eq!((tally.skipped, tally.failed), (1, 65_535));
}

#[tokio::test(start_paused = true)]
async fn la_11_while_the_dead_letter_fails_nothing_is_committed_past_the_record() {
    let (source, feed, checker) = filled(10, |at| at % 2);
    let letters = Letters::of(&checker);
    letters.refuses.store(4, SeqCst);
    let handler = but(&checker, |delivery| {
        if delivery.position() == Position(4) {
            delivery.fail(Failure::permanent("never"));
            return None;
        }
        Some(delivery)
    });
    let builder = Subscription::builder("test").source(source).retry(retry(SECOND, 3)).exhausted(Exhausted::DeadLetter);
    let subscription = builder.commit_every(MS).dead_letter(letters.take()).handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("it failed three times", || handle.metrics().tally.not_dead_lettered == 3).await;
    assert_eq!(feed.committed(LANE), Some(Position(3)));
    assert_eq!(checker.count_done(), 4 + 3, "the followers 6 and 8 wait, the other key went on");
    feed.end();
    let tally = running.await.unwrap().unwrap();
    assert_eq!((tally.dead_lettered, tally.not_dead_lettered, tally.failed), (1, 4, 1));
    checker.assert_all_done(10);
}

#[tokio::test]
async fn la_11_a_dead_letter_that_is_needed_must_be_there() {
    let (source, ..) = watched();
    let builder = Subscription::builder("test").source(source).exhausted(Exhausted::DeadLetter);
    assert_eq!(builder.handler(|delivery| async { delivery.finish() }).unwrap_err(), BuildError::NoDeadLetter);
}

#[tokio::test]
async fn la_12_a_panic_is_a_failure_with_its_words() {
    let (source, _, checker) = whole(4, |at| at);
    let letters = Letters::of(&checker);
    let watch = checker.clone();
    let handler = move |delivery: Delivery| {
        assert!(delivery.position() != Position(1), "at once");
        let watch = watch.clone();
        async move {
            assert!(delivery.position() != Position(2), "at the first poll");
            tokio::task::yield_now().await;
            assert!(delivery.position() != Position(3), "later");
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let builder = Subscription::builder("test").source(source).retry(Retry::never()).exhausted(Exhausted::DeadLetter);
    let tally = builder.dead_letter(letters.take()).handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(4);
    assert_eq!((tally.done, tally.panicked, tally.dead_lettered), (1, 3, 3));
    let mut kept = letters.kept.lock().unwrap().clone();
    kept.sort_by_key(|letter| letter.record.position());
    let words: Vec<&str> = kept.iter().map(|letter| letter.failure.reason()).collect();
    assert_eq!(words, ["at once", "at the first poll", "later"]);
    assert!(kept.iter().all(|letter| letter.failure.cause() == Cause::Panic));
}

#[tokio::test(start_paused = true)]
async fn la_13_a_dropped_completion_is_a_failure() {
    let (source, _, checker) = whole(100, |at| at % 10);
    let handler = but(&checker, |delivery| (delivery.attempt > 1).then_some(delivery));
    let subscription = Subscription::builder("test").source(source).handler(handler).unwrap();
    let tally = subscription.run().await.unwrap();
    checker.assert_all_done(100);
    assert_eq!((tally.dropped, tally.done), (100, 100));
}

#[tokio::test(start_paused = true)]
async fn la_16_an_undecodable_record_goes_where_exhausted_ones_go() {
    for exhausted in [Exhausted::DeadLetter, Exhausted::Skip, Exhausted::Stop] {
        let (source, feed, checker) = watched();
        let epoch = feed.assign(LANE);
        feed.extend((0..5).map(|at| {
            let record = record(LANE, epoch, at, 1);
            if at == 2 { record.undecodable("no such schema") } else { record }
        }));
        feed.end();
        let letters = Letters::of(&checker);
        let handler = but(&checker, |delivery| {
            assert!(delivery.damage().is_none());
            Some(delivery)
        });
        let builder = Subscription::builder("test").source(source).exhausted(exhausted).dead_letter(letters.take());
        let result = builder.handler(handler).unwrap().run().await;
        match exhausted {
            Exhausted::Stop => {
                let error = result.unwrap_err();
                assert!(error.to_string().contains("record 2 of lane 0"), "{error}");
                assert!(error.to_string().contains("no such schema"), "{error}");
                assert_eq!(feed.committed(LANE), Some(Position(1)));
            }
            Exhausted::Skip => assert_eq!((result.unwrap().skipped, feed.committed(LANE)), (1, Some(Position(4)))),
            _ => {
                checker.assert_all_done(5);
                assert_eq!(result.unwrap().undecodable, 1);
                assert_eq!(letters.kept.lock().unwrap()[0].failure.cause(), Cause::Undecodable);
            }
        }
    }
}

/// How long healthy keys take beside poisoned ones that fail for ever.
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
                return delivery.fail(Failure::new("poison"));
            }
            tokio::time::sleep(10 * MS).await;
            watch.done(&delivery);
            delivery.finish();
            healthy.fetch_add(1, SeqCst);
        }
    };
    let for_ever = Retry { attempts: None, first_wait: 20 * MS, ..Retry::default() };
    let builder = Subscription::builder("test").source(source).concurrency(100).retry(for_ever);
    let subscription = builder.handler(handler).unwrap();
    let began = Instant::now();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("the healthy ones are done", || healthy.load(SeqCst) == 2000).await;
    let took = began.elapsed();
    handle.stop(Duration::ZERO);
    running.await.unwrap().unwrap();
    checker.assert_order();
    took
}

#[tokio::test(start_paused = true)]
async fn la_17_poisoned_keys_do_not_slow_the_healthy_ones_down() {
    let (alone, beside) = (healthy_beside(0).await, healthy_beside(100).await);
    assert!(beside.mul_f64(0.95) <= alone, "{alone:?} alone, {beside:?} beside as many poisoned keys");
}

#[tokio::test(start_paused = true)]
async fn la_18_one_blocked_record_pauses_its_lane_at_the_span_and_no_other() {
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
    let builder = Subscription::builder("test").source(source).bounds(bounds).deadline(3600 * SECOND, Overdue::Retry);
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("the other lane is done", || feed.committed(Lane(1)) == Some(Position(4999))).await;
    let status = handle.metrics().lanes.into_iter().find(|lane| lane.lane == Lane(0)).unwrap();
    assert!(status.is_paused && status.pending == 1, "{status:?}");
    assert!((1000..=2024).contains(&status.span), "a batch more than the bound: {status:?}");
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

/// An interceptor that is out of order.
struct Broken(Arc<AtomicU64>);

impl Interceptor for Broken {
    fn before(&self, _: &Record, _: u32) {
        self.0.fetch_add(1, SeqCst);
        panic!("before");
    }

    fn after(&self, _: &Record, _: Result<(), &Failure>) {
        self.0.fetch_add(1, SeqCst);
        panic!("after");
    }
}

#[tokio::test]
async fn la_19_an_interceptor_that_panics_loses_no_record() {
    let (source, _, checker) = whole(100, |at| at % 7);
    let told = Arc::new(AtomicU64::new(0));
    let builder = Subscription::builder("test").source(source).interceptor(Broken(Arc::clone(&told)));
    builder.handler(but(&checker, Some)).unwrap().run().await.unwrap();
    checker.assert_all_done(100);
    assert_eq!(told.load(SeqCst), 200);
}

/// Listens to spans, and is out of order in every third of its calls.
#[cfg(feature = "tracing")]
struct BrokenListener(Arc<AtomicU64>);

#[cfg(feature = "tracing")]
impl BrokenListener {
    fn stumble(&self) -> u64 {
        let call = self.0.fetch_add(1, SeqCst) + 1;
        assert!(!call.is_multiple_of(3), "the listener is out of order");
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

#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn la_19_a_listener_to_spans_that_panics_loses_no_record() {
    let calls = Arc::new(AtomicU64::new(0));
    // With one listener in the process, the thread that comes by a place first decides whether anybody listens there, and it
    // may be that of another test. With two, all are asked.
    let _another = tracing::Dispatch::new(BrokenListener(Arc::default()));
    // Of this thread, which is the only one of the runtime.
    let _listening = tracing::subscriber::set_default(BrokenListener(Arc::clone(&calls)));
    let (source, _, checker) = whole(100, |at| at % 7);
    let builder = Subscription::builder("test").source(source);
    builder.handler(but(&checker, Some)).unwrap().run().await.unwrap();
    checker.assert_all_done(100);
    assert!(calls.load(SeqCst) > 200, "nobody listened");
}

/// Sees what became of each attempt.
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

    fn after(&self, record: &Record, result: Result<(), &Failure>) {
        let text = result.map_or_else(ToString::to_string, |()| "done".to_owned());
        self.0.lock().unwrap().entry(record.position().0).or_default().push(text);
    }
}

#[tokio::test(start_paused = true)]
async fn la_19_an_interceptor_is_told_of_every_attempt() {
    let (source, _, checker) = whole(2, |at| at);
    let seen = Seen::default();
    let handler = but(&checker, |delivery| {
        if delivery.position() == Position(1) && delivery.attempt == 1 {
            delivery.fail(Failure::new("no").retry_after(9 * SECOND));
            return None;
        }
        Some(delivery)
    });
    let began = Instant::now();
    let builder = Subscription::builder("test").source(source).interceptor(seen.clone()).keyless(Keyless::InLane);
    builder.handler(handler).unwrap().run().await.unwrap();
    assert_eq!(seen.of(0), ["attempt 1", "done"]);
    assert_eq!(seen.of(1), ["attempt 1", "no", "attempt 2", "done"]);
    assert!(began.elapsed() >= 9 * SECOND, "a wait that the handler asked for counts");
}

#[tokio::test(start_paused = true)]
async fn la_19_an_interceptor_is_told_of_what_was_given_up_and_not_of_the_dead_letter() {
    // 0 fails, 1 is kept by somebody, 2 never ends.
    let (source, _feed, checker) = filled(3, |at| at);
    let (seen, letters) = (Seen::default(), Letters::of(&checker));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let handler = move |delivery: Delivery| {
        let keep = Arc::clone(&keep);
        async move {
            match delivery.position().0 {
                0 => delivery.fail(Failure::permanent("no")),
                1 => keep.lock().unwrap().push(delivery),
                _ => std::future::pending().await,
            }
        }
    };
    let builder = Subscription::builder("test").source(source).interceptor(seen.clone()).dead_letter(letters.take());
    let builder = builder.exhausted(Exhausted::DeadLetter).retry(Retry::never());
    let builder = builder.deadline(10 * SECOND, Overdue::DeadLetter).concurrency(3);
    let subscription = builder.handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("one is buried and two run", || handle.metrics().tally.dead_lettered == 1).await;
    assert_eq!(seen.of(0), ["attempt 1", "no"]);
    until("all are buried", || handle.metrics().tally.dead_lettered == 3).await;
    for position in [1, 2] {
        assert_eq!(seen.of(position), ["attempt 1", "overdue: not finished within 10s"], "{position}");
    }
    handle.stop(SECOND);
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn la_19_an_interceptor_is_told_of_what_was_abandoned() {
    let (source, _feed, checker) = filled(1, |at| at);
    let seen = Seen::default();
    let builder = Subscription::builder("test").source(source).interceptor(seen.clone());
    let subscription = builder.handler(gated(&checker, &Arc::new(Semaphore::new(0)))).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("it runs", || checker.begun() == 1).await;
    handle.stop(SECOND);
    running.await.unwrap().unwrap();
    assert_eq!(seen.of(0), ["attempt 1", "abandoned: its lane was given back"]);
}

#[tokio::test(start_paused = true)]
async fn parked_keys_wait_for_somebody_and_halted_lanes_stop() {
    for exhausted in [Exhausted::Park, Exhausted::HaltLane] {
        let (source, feed, checker) = filled(30, |at| at % 3);
        let mended = Arc::new(AtomicBool::new(false));
        let is_mended = Arc::clone(&mended);
        let handler = but(&checker, move |delivery| {
            if key_number(&delivery) == 1 && !is_mended.load(SeqCst) {
                delivery.fail(Failure::new("broken"));
                return None;
            }
            Some(delivery)
        });
        let builder = Subscription::builder("test").source(source).retry(retry(MS, 2)).exhausted(exhausted);
        let subscription = builder.shards(1).commit_every(MS).handler(handler).unwrap();
        let handle = subscription.handle();
        let running = tokio::spawn(subscription.run());
        until("it is parked", || handle.metrics().tally.keys_parked > 0).await;
        mended.store(true, SeqCst);
        if exhausted == Exhausted::HaltLane {
            feed.end();
            let result = running.await.unwrap();
            assert!(matches!(result, Err(RunError::HeldBack { .. })), "{result:?}");
            assert_eq!(feed.committed(LANE), Some(Position(0)));
            continue;
        }
        until("the others are done", || checker.count_done() == 20).await;
        assert_eq!((feed.committed(LANE), handle.metrics().tally.records_parked), (Some(Position(0)), 10));
        handle.unpark(&1_u64.to_be_bytes());
        feed.end();
        running.await.unwrap().unwrap();
        checker.assert_all_done(30);
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_too_old_is_not_tried_again() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.push(record(LANE, epoch, 0, 1));
    feed.end();
    let handler = but(&checker, |delivery| {
        delivery.fail(Failure::new("no"));
        None
    });
    let retry =
        Retry { attempts: None, age_max: Some(10 * SECOND), first_wait: SECOND, jitter: 0.0, ..Retry::default() };
    let builder = Subscription::builder("test").source(source).retry(retry).exhausted(Exhausted::Skip);
    let tally = builder.handler(handler).unwrap().run().await.unwrap();
    assert_eq!((tally.skipped, tally.failed), (1, 4), "at 0, 1, 3 and 7 s, and not at 15 s");
}
