//! Quotas, batches, compaction, and `release_key`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::{
    Batch, BlockingThreads, BuildError, Delivery, Quota, Record, RecordFailure, RecordRetryPolicy, Subscription,
};
use tokio::time::Instant;

use crate::checker::{LANE, MS, SECOND, key_number, record, until, watched};
use crate::fixtures::{doing, filled, whole, working};

#[tokio::test(start_paused = true)]
async fn key_above_its_quota_waits_alone() {
    // Key 0 has 50 records, the other keys have one each.
    let (source, _, checker) = whole(100, |at| if at % 2 == 0 { 0 } else { at });
    let began = Instant::now();
    let times: Arc<Mutex<Vec<(u64, Duration)>>> = Arc::default();
    let noted = Arc::clone(&times);
    let handler = working(&checker, move |record| {
        noted.lock().unwrap().push((key_number(record), began.elapsed()));
        std::future::ready(())
    });
    let quota = Quota { records: 10, window: SECOND };
    let subscription = Subscription::builder("test").source(source).quota(quota).handler(handler).unwrap();
    let counters = subscription.run().await.unwrap();
    checker.assert_all_done(100);
    assert_eq!(counters.throttled, 4);
    let times = times.lock().unwrap();
    assert!(times.iter().filter(|(key, _)| *key != 0).all(|(_, time)| *time < 100 * MS));
    let hot: Vec<u64> = times.iter().filter(|(key, _)| *key == 0).map(|(_, time)| time.as_secs()).collect();
    assert_eq!(hot, (0..50).map(|at| at / 10).collect::<Vec<u64>>());
}

#[tokio::test(start_paused = true)]
async fn quota_counts_records_that_arrive_one_by_one() {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    let began = Instant::now();
    let quota = Quota { records: 2, window: SECOND };
    let builder = Subscription::builder("test").source(source).quota(quota);
    let subscription = builder.process(doing(&checker)).unwrap();
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    for at in 0..6 {
        feed.push(record(LANE, epoch, at, 1));
        until("finished", || checker.count_done() == at as usize + 1).await;
    }
    assert!((2 * SECOND..3 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());
    until("key freed", || handle.metrics().counters.keys == 0).await;
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(6);
}

#[tokio::test(start_paused = true)]
async fn quota_counts_records_of_batches() {
    let (source, _, checker) = whole(50, |_| 7);
    let began = Instant::now();
    let times: Arc<Mutex<Vec<(usize, u64)>>> = Arc::default();
    let (noted, watch) = (Arc::clone(&times), checker.clone());
    let handler = move |batch: Batch| {
        noted.lock().unwrap().push((batch.records.len(), began.elapsed().as_secs()));
        batch.records.iter().for_each(|record| watch.done(record));
        batch.finish();
        std::future::ready(())
    };
    let quota = Quota { records: 10, window: SECOND };
    let subscription = Subscription::builder("test").source(source).quota(quota).batches(7, handler).unwrap();
    subscription.run().await.unwrap();
    checker.assert_all_done(50);
    let expected: Vec<(usize, u64)> = (0..5).flat_map(|second| [(7, second), (3, second)]).collect();
    assert_eq!(*times.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn failed_batch_is_retried_record_by_record() {
    let (source, _, checker) = whole(100, |at| at % 2);
    let sizes: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (noted, watch) = (Arc::clone(&sizes), checker.clone());
    let handler = move |batch: Batch| {
        let (watch, noted) = (watch.clone(), Arc::clone(&noted));
        async move {
            let has_poison = batch.records.iter().any(|record| record.position().0 == 8);
            noted.lock().unwrap().push(batch.records.len());
            if has_poison && batch.attempt < 2 {
                return batch.fail(RecordFailure::new("one of the records failed"));
            }
            for record in &batch.records {
                watch.begin(record);
                watch.done(record);
            }
            batch.finish();
        }
    };
    let subscription = Subscription::builder("test").source(source).batches(10, handler).unwrap();
    let counters = subscription.run().await.unwrap();
    checker.assert_all_done(100);
    assert_eq!((counters.done, counters.failed), (100, 1));
    let sizes = sizes.lock().unwrap();
    assert!(sizes.contains(&10) && sizes.iter().filter(|size| **size == 1).count() >= 5, "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn compaction_keeps_the_newest_queued_record() {
    let (source, feed, _) = whole(1000, |at| at % 2);
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let noted = Arc::clone(&seen);
    let process = move |record: Record| {
        noted.lock().unwrap().push(record.position().0);
        async {
            tokio::time::sleep(SECOND).await;
            Ok::<(), String>(())
        }
    };
    let subscription = Subscription::builder("test").source(source).compact().process(process).unwrap();
    let counters = subscription.run().await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(counters.done + counters.compacted, 1000);
    assert!(seen.ends_with(&[998, 999]) || seen.ends_with(&[999, 998]), "{seen:?}");
    assert!(seen.len() <= 6, "{seen:?}");
    assert_eq!(feed.committed(LANE).map(|through| through.0), Some(999));
}

#[tokio::test(start_paused = true)]
async fn released_key_continues_and_holds_back_commits() {
    let (source, feed, checker) = filled(3, |_| 1);
    let first: Arc<Mutex<Option<Delivery>>> = Arc::default();
    let (hidden, watch) = (Arc::clone(&first), checker.clone());
    let handler = move |delivery: Delivery| {
        if delivery.position().0 == 0 && delivery.attempt == 1 {
            delivery.completion.release_key();
            delivery.completion.release_key();
            *hidden.lock().unwrap() = Some(delivery);
        } else {
            watch.done(&delivery);
            delivery.finish();
        }
        std::future::ready(())
    };
    let retry = RecordRetryPolicy { wait_min: MS, ..RecordRetryPolicy::default() };
    let subscription =
        Subscription::builder("test").source(source).retry(retry).commit_every(MS).handler(handler).unwrap();
    let running = tokio::spawn(subscription.run());
    until("others finished", || checker.count_done() == 2).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(feed.committed(LANE), None);
    let delivery = first.lock().unwrap().take().unwrap();
    delivery.fail(RecordFailure::new("again"));
    feed.end();
    running.await.unwrap().unwrap();
    checker.assert_all_done(3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_handlers_keep_the_guarantees() {
    let (source, _, checker) = whole(20_000, |at| at % 300);
    let watch = checker.clone();
    let handler = move |delivery: Delivery| {
        watch.begin(&delivery);
        if delivery.position().0 % 1000 == 7 && delivery.attempt == 1 {
            watch.fail(&delivery);
            panic!("once");
        }
        std::thread::yield_now();
        watch.done(&delivery);
        delivery.finish();
    };
    let retry = RecordRetryPolicy { wait_min: MS, ..RecordRetryPolicy::default() };
    let builder = Subscription::builder("test").source(source).retry(retry).runtime(BlockingThreads(16));
    let counters = builder.handler(handler).unwrap().run().await.unwrap();
    checker.assert_all_done(20_000);
    assert_eq!((counters.panicked, counters.done), (20, 20_000));
}

#[test]
fn builder_requires_a_runtime_and_nonzero_numbers() {
    let (source, ..) = watched();
    let built = Subscription::builder("test").source(source).handler(|delivery| async { delivery.finish() });
    assert_eq!(built.unwrap_err(), BuildError::NoRuntime);
    let (source, ..) = watched();
    let built = Subscription::builder("test")
        .source(source)
        .concurrency(0)
        .runtime(BlockingThreads(1))
        .handler(Delivery::finish);
    assert_eq!(built.unwrap_err(), BuildError::Zero("concurrency"));
}
