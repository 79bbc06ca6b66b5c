//! Resolves a name again and again, and reports each result.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::time::{self, sleep_until};

use super::resolver::{Resolution, Resolve, ResolveError, ResolverFactory};
use super::schedule::{ResolveSchedule, ResolveSettings, ResolveTrigger};
use crate::address::ResolvedAddress;

/// Requests a lookup, from any thread. Any number of requests before the lookup cause one lookup.
#[derive(Clone, Debug, Default)]
pub struct ResolveNow(Arc<ResolveRequest>);

#[derive(Debug, Default)]
struct ResolveRequest {
    notify: Notify,
    /// Requested by [`ResolveNow::request`].
    now: AtomicBool,
}

impl ResolveNow {
    /// Requests a lookup, as soon as [`ResolveSettings::interval_min`] has passed since the last one.
    pub fn request(&self) {
        self.0.now.store(true, Ordering::Release);
        self.0.notify.notify_one();
    }

    /// Reports that the set may have changed: an endpoint was lost. Like [`request`](Self::request), unless the last lookup
    /// failed; the delay of [`ResolveSettings::backoff`] then holds, because a client that loses its endpoints and its name
    /// service together must not query the latter in a loop.
    pub fn hint(&self) {
        self.0.notify.notify_one();
    }

    async fn requested(&self) -> ResolveTrigger {
        self.0.notify.notified().await;
        if self.0.now.swap(false, Ordering::AcqRel) { ResolveTrigger::Now } else { ResolveTrigger::Hint }
    }
}

/// Result of a lookup.
#[derive(Clone, Debug)]
pub enum ResolveEvent {
    /// The set of the answer, which can be the same as before.
    Set(Vec<ResolvedAddress>),
    /// No answer, or an empty one. The previous set is still valid.
    Failed(ResolveError),
    /// The last answer is older than [`ResolveSettings::max_stale`]: no set is known any more.
    Stale,
}

/// Resolves a name until it is dropped: one lookup at a time, with a timeout. A resolver that panics is created again.
#[must_use = "a name watcher does nothing unless it is run"]
pub struct NameWatcher {
    factory: ResolverFactory,
    resolver: Option<Box<dyn Resolve>>,
    schedule: ResolveSchedule,
    timeout: Duration,
    requests: ResolveNow,
    random: fastrand::Rng,
}

impl NameWatcher {
    /// Creates a watcher. The resolver is created in [`run`](Self::run). `seed` is for the jitter.
    pub fn new(factory: ResolverFactory, settings: ResolveSettings, requests: ResolveNow, seed: u64) -> Self {
        let timeout = settings.timeout;
        let schedule = ResolveSchedule::new(settings, now());
        Self { factory, resolver: None, schedule, timeout, requests, random: fastrand::Rng::with_seed(seed) }
    }

    /// Runs without end, and calls `on_event` with each event; `on_event` must not block.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping it stops the watcher, in the middle of a lookup as well.
    pub async fn run(mut self, mut on_event: impl FnMut(ResolveEvent)) {
        loop {
            self.wait(&mut on_event).await;
            self.schedule.started(now());
            let result = self.look_up().await;
            let random = self.random.f64();
            match result {
                Ok(Resolution { addresses, ttl }) => {
                    self.schedule.succeeded(now(), ttl, random);
                    on_event(ResolveEvent::Set(addresses));
                }
                Err(error) => {
                    self.schedule.failed(now(), random);
                    on_event(ResolveEvent::Failed(error));
                }
            }
        }
    }

    /// Waits until a lookup is due or requested.
    async fn wait(&mut self, on_event: &mut impl FnMut(ResolveEvent)) {
        loop {
            let due = self.schedule.due();
            let next = self.schedule.stale_at().map_or(due, |stale| stale.min(due));
            tokio::select! {
                trigger = self.requests.requested() => self.schedule.request(now(), trigger),
                () = sleep_until(next.into()) => {
                    if self.schedule.stale_at().is_some_and(|stale| stale <= now()) {
                        self.schedule.set_discarded();
                        on_event(ResolveEvent::Stale);
                    }
                    if due <= now() {
                        return;
                    }
                }
            }
        }
    }

    async fn look_up(&mut self) -> Result<Resolution, ResolveError> {
        let resolver = match &mut self.resolver {
            Some(resolver) => resolver,
            none => none.insert(create(&mut self.factory)?),
        };
        // The call itself can panic, so it happens in the first poll.
        let lookup = AssertUnwindSafe(async { resolver.resolve().await }).catch_unwind();
        let looked_up = time::timeout(self.timeout, lookup).await;
        let result = looked_up
            .map(|looked_up| looked_up.unwrap_or(Err(ResolveError::Panicked)))
            .unwrap_or(Err(ResolveError::TimedOut(self.timeout)));
        if matches!(result, Err(ResolveError::Panicked)) {
            self.resolver = None;
        }
        match result {
            Ok(resolution) if resolution.addresses.is_empty() => {
                Err(ResolveError::NoAddresses { name: "the target".to_owned() })
            }
            other => other,
        }
    }
}

impl fmt::Debug for NameWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameWatcher").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

/// The time of tokio's clock, which tests can pause.
fn now() -> Instant {
    time::Instant::now().into_std()
}

fn create(factory: &mut ResolverFactory) -> Result<Box<dyn Resolve>, ResolveError> {
    catch_unwind(AssertUnwindSafe(factory)).unwrap_or(Err(ResolveError::Panicked))
}
