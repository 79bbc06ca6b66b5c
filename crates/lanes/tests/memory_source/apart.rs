//! Shards with threads of their own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::{Completion, Delivery, Failure, Overdue, Retry, Subscription};
use tokio::sync::oneshot;

use crate::checker::{MS, until};
use crate::stage::{filled, whole};

#[tokio::test]
async fn order_holds_and_handlers_run_on_the_threads_of_their_shards() {
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
                return delivery.fail(Failure::new("once more"));
            }
            watch.done(&delivery);
            delivery.finish();
        }
    };
    let retry = Retry { first_wait: MS, ..Retry::default() };
    let builder = Subscription::builder("apart").source(source).shards(3).own_threads().retry(retry);
    let tally = builder.handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(20_000);
    assert_eq!((tally.done, tally.retried), (20_000, 200));
}

#[tokio::test]
async fn a_deadline_ends_a_handler_there_and_a_completion_may_end_elsewhere() {
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
    let subscription = builder.deadline(200 * MS, Overdue::Retry).handler(handler).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    until("one is overdue", || handle.metrics().tally.overdue > 0).await;
    while !running.is_finished() {
        kept.lock().unwrap().drain(..).for_each(Completion::finish);
        tokio::time::sleep(MS).await;
    }
    assert_eq!(running.await.unwrap().unwrap().done, 2);
}

#[tokio::test]
async fn what_was_left_on_the_threads_ends_with_the_subscription_and_with_its_being_dropped() {
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
        // Whoever keeps a handle keeps no thread.
        let handle = subscription.handle();
        let running = tokio::spawn(subscription.run());
        until("it is done", || handle.metrics().tally.done == 1).await;
        if is_dropped {
            running.abort();
        } else {
            handle.stop(Duration::ZERO);
        }
        assert!(gone.await.is_err(), "it was dropped");
    }
}
