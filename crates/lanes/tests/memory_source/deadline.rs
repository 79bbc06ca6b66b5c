//! Deadlines: LA-14 and LA-15.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tidegate_lanes::{Completion, Delivery, Lane, OverdueAction, Position, Record, RunError, Subscription};
use tokio::time::Instant;

use crate::checker::{Checker, MS, SECOND, records, until, watched};
use crate::fixtures::{Letters, but, retry, whole};

/// LA-14: forgotten completions end within one deadline.
#[tokio::test(start_paused = true)]
async fn forgotten_completions_end_within_one_deadline() {
    let (source, _, checker) = whole(10_000, |at| at);
    let forgotten: Arc<Mutex<Vec<Completion>>> = Arc::default();
    let hidden = Arc::clone(&forgotten);
    let handler = but(&checker, move |delivery| {
        if delivery.attempt > 1 {
            return Some(delivery);
        }
        hidden.lock().unwrap().push(delivery.completion);
        None
    });
    let began = Instant::now();
    let builder = Subscription::builder("test").source(source).retry(retry(MS, 3));
    let subscription = builder.deadline(SECOND, OverdueAction::Retry).handler(handler).unwrap();
    let counters = subscription.run().await.unwrap();
    checker.assert_all_done(10_000);
    assert_eq!((counters.overdue, counters.done), (10_000, 10_000));
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
}

/// LA-14: handler is aborted before the next attempt.
#[tokio::test(start_paused = true)]
async fn handler_is_aborted_before_the_next_attempt() {
    let (source, _, checker) = whole(2, |_| 1);
    let watch = checker.clone();
    let ended = Arc::new(AtomicBool::new(false));
    let handler = move |delivery: Delivery| {
        let (watch, ended) = (watch.clone(), Arc::clone(&ended));
        async move {
            struct Ended(Arc<AtomicBool>, Checker, Record);
            impl Drop for Ended {
                fn drop(&mut self) {
                    self.0.store(true, SeqCst);
                    self.1.fail(&self.2);
                }
            }
            watch.begin(&delivery);
            if delivery.position() == Position(0) && delivery.attempt == 1 {
                let _ended = Ended(ended, watch, delivery.record.clone());
                pending::<()>().await;
            } else {
                assert!(ended.load(SeqCst), "first attempt still running");
                watch.done(&delivery);
                delivery.finish();
            }
        }
    };
    let builder = Subscription::builder("test").source(source).deadline(SECOND, OverdueAction::Retry);
    let counters = builder.handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(2);
    assert_eq!((counters.overdue, counters.dropped, counters.failed), (1, 0, 1));
}

/// LA-14: overdue action extends dead letters or halts.
#[tokio::test(start_paused = true)]
async fn overdue_action_extends_dead_letters_or_halts() {
    for overdue in [OverdueAction::Extend, OverdueAction::DeadLetter, OverdueAction::HaltLane] {
        let (source, feed, checker) = watched();
        for lane in [Lane(0), Lane(1)] {
            let epoch = feed.assign(lane);
            feed.extend(records(lane, epoch, 3, |_| 1));
        }
        feed.end();
        let letters = Letters::of(&checker);
        let kept: Arc<Mutex<Vec<Delivery>>> = Arc::default();
        let hidden = Arc::clone(&kept);
        let handler = but(&checker, move |delivery| {
            if delivery.lane() == Lane(0) && delivery.position() == Position(1) {
                hidden.lock().unwrap().push(delivery);
                return None;
            }
            Some(delivery)
        });
        let builder = Subscription::builder("test").source(source).deadline(SECOND, overdue);
        let subscription = builder.dead_letter_queue(letters.take()).handler(handler).unwrap();
        let handle = subscription.handle();
        let running = tokio::spawn(subscription.run());
        until("deadline passed", || handle.metrics().counters.overdue > 0).await;
        if overdue == OverdueAction::Extend {
            let delivery = kept.lock().unwrap().pop().unwrap();
            checker.done(&delivery);
            delivery.finish();
        }
        let result = running.await.unwrap();
        checker.assert_order();
        assert_eq!(feed.committed(Lane(1)), Some(Position(2)));
        if overdue == OverdueAction::HaltLane {
            assert!(matches!(result, Err(RunError::Unfinished { records: 2 })), "{result:?}");
            assert_eq!(feed.committed(Lane(0)), Some(Position(0)));
        } else {
            assert_eq!(feed.committed(Lane(0)), Some(Position(2)));
            assert_eq!(letters.kept.lock().unwrap().len(), usize::from(overdue == OverdueAction::DeadLetter));
        }
    }
}

/// LA-15: late completion has no effect.
#[tokio::test(start_paused = true)]
async fn late_completion_has_no_effect() {
    let (source, _, checker) = whole(3, |_| 1);
    let late: Arc<Mutex<Option<Delivery>>> = Arc::default();
    let hidden = Arc::clone(&late);
    let handler = but(&checker, move |delivery| {
        if delivery.position() == Position(0) && delivery.attempt == 1 {
            *hidden.lock().unwrap() = Some(delivery);
            return None;
        }
        let hidden = hidden.lock().unwrap().take();
        hidden.into_iter().for_each(Delivery::finish);
        Some(delivery)
    });
    let builder = Subscription::builder("test").source(source).deadline(SECOND, OverdueAction::Retry);
    let counters = builder.handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(3);
    assert_eq!((counters.late, counters.done, checker.begun()), (1, 3, 4));
}
