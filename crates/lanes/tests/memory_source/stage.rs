//! What most tests begin with: a watched lane that holds records, and handlers that tell the checker.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_lanes::source::MemoryHandle;
use tidegate_lanes::{Delivery, Letter, Record, Retry, Taken};
use tokio::sync::Semaphore;

use crate::checker::{Checker, LANE, MS, Watched, records, watched};

/// What a handler does.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source with so many records in [`LANE`], at 0, 1, 2 ..., whose keys come from `key`. More may follow.
pub(crate) fn filled(count: u64, key: impl Fn(u64) -> u64) -> (Watched, MemoryHandle, Checker) {
    let (source, feed, checker) = watched();
    let epoch = feed.assign(LANE);
    feed.extend(records(LANE, epoch, count, key));
    (source, feed, checker)
}

/// As [`filled`], and that is all: the source ends with them.
pub(crate) fn whole(count: u64, key: impl Fn(u64) -> u64) -> (Watched, MemoryHandle, Checker) {
    let (source, feed, checker) = filled(count, key);
    feed.end();
    (source, feed, checker)
}

/// A handler that works for a while, told the record, and finishes.
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

/// A handler that waits for a permit before it finishes.
pub(crate) fn gated(checker: &Checker, gate: &Arc<Semaphore>) -> impl Fn(Delivery) -> Work + use<> {
    let gate = Arc::clone(gate);
    working(checker, move |_| {
        let gate = Arc::clone(&gate);
        async move { gate.acquire().await.unwrap().forget() }
    })
}

/// A handler that finishes at once all but what `fate` takes care of.
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

/// For `process`: every record is done at once.
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

pub(crate) fn retry(first_wait: Duration, attempts: u32) -> Retry {
    Retry { first_wait, attempts: Some(attempts), jitter: 0.0, ..Retry::default() }
}

/// Keeps letters, or refuses them.
#[derive(Clone, Default)]
pub(crate) struct Letters {
    pub(crate) kept: Arc<Mutex<Vec<Letter>>>,
    /// How many more are refused.
    pub(crate) refuses: Arc<AtomicU64>,
    checker: Checker,
}

impl Letters {
    pub(crate) fn of(checker: &Checker) -> Self {
        Self { checker: checker.clone(), ..Self::default() }
    }

    pub(crate) fn take(&self) -> impl Fn(Letter) -> Taken + Send + Sync + use<> {
        let letters = self.clone();
        move |letter: Letter| -> Taken {
            let letters = letters.clone();
            Box::pin(async move {
                tokio::time::sleep(50 * MS).await;
                let refused = letters.refuses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                if refused {
                    return Err("the topic is not there".into());
                }
                letters.checker.done(&letter.record);
                letters.kept.lock().unwrap().push(letter);
                Ok(())
            })
        }
    }
}
