//! Follows a name: looks when it is due, and tells what it found.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::{self, sleep_until};

use super::schedule::{Asking, ResolveRules, Schedule};
use super::{MakeResolver, Resolution, Resolve, ResolveError};
use crate::address::Resolved;
use crate::caught::caught;

/// Asks for a look soon, from anywhere. Asked a thousand times, it is one look.
#[derive(Clone, Debug, Default)]
pub struct ResolveNow(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    notify: Notify,
    /// By somebody who does not want to wait for the pause after a failure.
    now: AtomicBool,
}

impl ResolveNow {
    /// Asks. The look happens as soon as [`ResolveRules::interval_min`] has passed since the last one.
    pub fn ask(&self) {
        self.0.now.store(true, Ordering::Release);
        self.0.notify.notify_one();
    }

    /// Says that the set may have changed: an endpoint was lost. Like [`ask`](Self::ask), unless the last look failed:
    /// whoever loses its endpoints and its name service together must not ask the latter again and again, so the pauses
    /// of [`ResolveRules::backoff`] stand.
    pub fn hint(&self) {
        self.0.notify.notify_one();
    }

    async fn asked(&self) -> Asking {
        self.0.notify.notified().await;
        if self.0.now.swap(false, Ordering::AcqRel) { Asking::Now } else { Asking::Hint }
    }
}

/// What happened to a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ResolveEvent {
    /// The set as it was answered. It may be the same as before.
    Set(Vec<Resolved>),
    /// No answer, or an empty one. What was known stays.
    Failed(ResolveError),
    /// The last answer is older than [`ResolveRules::max_stale`]: nothing is known any more.
    Stale,
}

/// Follows a name until it is dropped.
///
/// One look at a time, with a time-out. A resolver that panics is made anew in its place.
#[must_use = "a follower does nothing unless it is run"]
pub struct Follow {
    make: MakeResolver,
    resolver: Option<Box<dyn Resolve>>,
    schedule: Schedule,
    timeout: std::time::Duration,
    asked: ResolveNow,
    random: fastrand::Rng,
}

impl Follow {
    /// Nothing is made or looked up yet.
    pub fn new(make: MakeResolver, rules: ResolveRules, asked: ResolveNow, seed: u64) -> Self {
        let timeout = rules.timeout;
        let schedule = Schedule::new(rules, now());
        Self { make, resolver: None, schedule, timeout, asked, random: fastrand::Rng::with_seed(seed) }
    }

    /// Runs for ever. `tell` is called with each event; it must not wait.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it stops, in the middle of a look as well.
    pub async fn run(mut self, mut tell: impl FnMut(ResolveEvent)) {
        loop {
            self.wait(&mut tell).await;
            self.schedule.begin(now());
            let result = self.look().await;
            let random = self.random.f64();
            match result {
                Ok(Resolution { found, ttl }) => {
                    self.schedule.succeed(now(), ttl, random);
                    tell(ResolveEvent::Set(found));
                }
                Err(error) => {
                    self.schedule.fail(now(), random);
                    tell(ResolveEvent::Failed(error));
                }
            }
        }
    }

    /// Until a look is due; sooner, if somebody asks.
    async fn wait(&mut self, tell: &mut impl FnMut(ResolveEvent)) {
        loop {
            let due = self.schedule.due();
            let next = self.schedule.stale_at().map_or(due, |stale| stale.min(due));
            tokio::select! {
                asking = self.asked.asked() => self.schedule.ask(now(), asking),
                () = sleep_until(next.into()) => {
                    if self.schedule.stale_at().is_some_and(|stale| stale <= now()) {
                        self.schedule.forget();
                        tell(ResolveEvent::Stale);
                    }
                    if due <= now() {
                        return;
                    }
                }
            }
        }
    }

    async fn look(&mut self) -> Result<Resolution, ResolveError> {
        let resolver = match &mut self.resolver {
            Some(resolver) => resolver,
            none => none.insert(make(&mut self.make)?),
        };
        let looked = time::timeout(self.timeout, caught(|| resolver.resolve())).await;
        let looked = looked.map(|looked| looked.unwrap_or(Err(ResolveError::Panicked)));
        let result = looked.unwrap_or(Err(ResolveError::TimedOut(self.timeout)));
        if matches!(result, Err(ResolveError::Panicked)) {
            self.resolver = None;
        }
        match result {
            Ok(resolution) if resolution.found.is_empty() => {
                Err(ResolveError::NoAddresses { name: "the target".to_owned() })
            }
            other => other,
        }
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

/// Of tokio's clock, which tests may stop.
fn now() -> Instant {
    time::Instant::now().into_std()
}

fn make(make: &mut MakeResolver) -> Result<Box<dyn Resolve>, ResolveError> {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(ResolveError::Panicked))
}
