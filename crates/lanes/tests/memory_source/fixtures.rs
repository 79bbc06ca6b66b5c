//! Watched lanes with records, and handlers that report to the checker.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::source::MemorySourceHandle;
use tidegate_lanes::{DeadLetter, Delivery, Record, RecordRetryPolicy, SendFuture};
use tokio::sync::Semaphore;

use crate::checker::{Checker, LANE, MS, Watched, records, watched};

/// The future of a handler.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source with `count` records in [`LANE`] at 0, 1, 2 ..., with keys from `key`. More may follow.
pub(crate) fn filled(count: u64, key: impl Fn(u64) -> u64) -> (Watched, MemorySourceHandle, Checker) {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, count, key));
    (source, feed, checker)
}

/// Like [`filled`]; the source ends after these records.
pub(crate) fn whole(count: u64, key: impl Fn(u64) -> u64) -> (Watched, MemorySourceHandle, Checker) {
    let (source, feed, checker) = filled(count, key);
    feed.end();
    (source, feed, checker)
}

/// A handler that awaits the future returned by `work` and then finishes.
pub(crate) fn working<W, F>(checker: &Checker, work: W) -> impl Fn(Delivery) -> Work + use<W, F>
where
    W: Fn(&Record) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let checker = checker.clone();
    move |delivery| {
        let checker = checker.clone();
        checker.begin(&delivery);
        let working = work(&delivery);
        Box::pin(async move {
            working.await;
            checker.done(&delivery);
            delivery.finish();
        })
    }
}

/// A handler that waits for a permit and then finishes.
pub(crate) fn gated(checker: &Checker, gate: &Arc<Semaphore>) -> impl Fn(Delivery) -> Work + use<> {
    let gate = Arc::clone(gate);
    working(checker, move |_| {
        let gate = Arc::clone(&gate);
        async move { gate.acquire().await.unwrap().forget() }
    })
}

/// A handler that finishes everything immediately, except what `fate` handles.
pub(crate) fn but<T>(checker: &Checker, fate: T) -> impl Fn(Delivery) -> Work + use<T>
where
    T: Fn(Delivery) -> Option<Delivery> + Send + Sync + 'static,
{
    let checker = checker.clone();
    move |delivery| {
        checker.begin(&delivery);
        checker.fail(&delivery);
        if let Some(delivery) = fate(delivery) {
            checker.done(&delivery);
            delivery.finish();
        }
        Box::pin(ready(()))
    }
}

/// A handler for `process` that finishes every record immediately.
pub(crate) fn doing(
    checker: &Checker,
) -> impl Fn(Record) -> std::future::Ready<Result<(), String>> + Send + Sync + use<> {
    let checker = checker.clone();
    move |record| {
        checker.begin(&record);
        checker.done(&record);
        ready(Ok(()))
    }
}

pub(crate) fn retry(wait_min: Duration, attempts: u32) -> RecordRetryPolicy {
    RecordRetryPolicy { wait_min, attempts_max: Some(attempts), jitter: 0.0, ..RecordRetryPolicy::default() }
}

/// A dead-letter queue that stores or refuses.
#[derive(Clone, Default)]
pub(crate) struct Letters {
    pub(crate) kept: Arc<Mutex<Vec<DeadLetter>>>,
    /// How many letters are still refused.
    pub(crate) refuses: Arc<AtomicU64>,
    checker: Checker,
}

impl Letters {
    pub(crate) fn of(checker: &Checker) -> Self {
        Self { checker: checker.clone(), ..Self::default() }
    }

    pub(crate) fn take(&self) -> impl Fn(DeadLetter) -> SendFuture + Send + Sync + use<> {
        let letters = self.clone();
        move |letter: DeadLetter| -> SendFuture {
            let letters = letters.clone();
            Box::pin(async move {
                tokio::time::sleep(50 * MS).await;
                let refused = letters.refuses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                if refused {
                    return Err("topic does not exist".into());
                }
                letters.checker.done(&letter.record);
                letters.kept.lock().unwrap().push(letter);
                Ok(())
            })
        }
    }
}
