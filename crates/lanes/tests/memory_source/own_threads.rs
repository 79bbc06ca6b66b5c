//! Shards with their own threads.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::{Completion, Delivery, OverdueAction, RecordFailure, RecordRetryPolicy, Subscription};
use tokio::sync::oneshot;

use crate::checker::{MS, until};
use crate::fixtures::{filled, whole};

#[tokio::test]
async fn order_holds_on_the_threads_of_the_shards() {
    let (source, _, checker) = whole(20_000, |at| at % 300);
    let watch = checker.clone();
    let handler = move |delivery: Delivery| {
        let watch = watch.clone();
        async move {
            watch.begin(&delivery);
            let number = delivery.position().0;
            if number.is_multiple_of(3) {
                tokio::time::sleep(MS).await;
            }
            let thread = std::thread::current();
            assert!(thread.name().is_some_and(|name| name.starts_with("apart-shard-")), "{thread:?}");
            if number.is_multiple_of(100) && delivery.attempt == 1 {
                watch.fail(&delivery);
                return delivery.fail(RecordFailure::new("retry"));
            }
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let retry = RecordRetryPolicy { wait_min: MS, ..RecordRetryPolicy::default() };
    let builder = Subscription::builder("apart").source(source).shards(3).own_threads().retry(retry);
    let counters = builder.handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(20_000);
    assert_eq!((counters.done, counters.retried), (20_000, 200));
}

#[tokio::test]
async fn deadline_and_moved_completion_work_on_own_threads() {
    let (source, _, _) = whole(2, |at| at);
    let kept: Arc<Mutex<Vec<Completion>>> = Arc::default();
    let theirs = Arc::clone(&kept);
    let handler = move |delivery: Delivery| {
        let kept = Arc::clone(&theirs);
        async move {
            if delivery.position().0 == 0 && delivery.attempt == 1 {
                std::future::pending::<()>().await;
            }
            kept.lock().unwrap().push(delivery.completion);
        }
    };
    let builder = Subscription::builder("apart").source(source).own_threads();
    let subscription = builder.deadline(200 * MS, OverdueAction::Retry).handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("one overdue", || handle.metrics().counters.overdue > 0).await;
    while !running.is_finished() {
        kept.lock().unwrap().drain(..).for_each(Completion::finish);
        tokio::time::sleep(MS).await;
    }
    assert_eq!(running.await.unwrap().unwrap().done, 2);
}

#[tokio::test]
async fn spawned_tasks_end_with_the_subscription() {
    for is_dropped in [false, true] {
        let (source, _, _) = filled(1, |at| at);
        let (left, gone) = oneshot::channel::<()>();
        let left = Mutex::new(Some(left));
        let handler = move |delivery: Delivery| {
            let left = left.lock().unwrap().take();
            tokio::spawn(async move {
                let _left = left;
                std::future::pending::<()>().await;
            });
            delivery.finish();
            std::future::ready(())
        };
        let builder = Subscription::builder("apart").source(source).own_threads();
        let subscription = builder.handler(handler).unwrap();
        // A handle does not keep the threads alive.
        let handle = subscription.handle();
        let running = tokio::spawn(subscription.run());
        until("finished", || handle.metrics().counters.done == 1).await;
        if is_dropped {
            running.abort();
        } else {
            handle.stop(Duration::ZERO);
        }
        assert!(gone.await.is_err(), "task was not dropped");
    }
}
