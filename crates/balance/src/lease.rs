//! An endpoint while a call uses it: counted in flight, and not closed meanwhile.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::Endpoint;

/// How a call ended, as far as its endpoint is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Success,
    /// The endpoint failed: counts towards its ejection.
    Failure,
    /// It says nothing of the endpoint's health: the caller gave up, or the endpoint was full. Saturated is not
    /// unhealthy.
    Neutral,
}

/// An endpoint while a call uses it. It counts as in flight, and a drain waits for it. Dropped, it ends the call as
/// [`Outcome::Neutral`] without a latency.
#[must_use = "dropping the lease ends the call"]
pub struct Lease<T: Send + Sync + 'static> {
    endpoint: Arc<Endpoint<T>>,
    began: Option<Instant>,
}

impl<T: Send + Sync + 'static> Lease<T> {
    /// `None` if the endpoint is being drained.
    #[inline]
    pub(crate) fn enter(endpoint: &Arc<Endpoint<T>>, began: Option<Instant>) -> Option<Self> {
        endpoint.load.slot.enter().then(|| Self { endpoint: Arc::clone(endpoint), began })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Arc<Endpoint<T>> {
        &self.endpoint
    }

    /// Ends the call and tells how. The latency counts if both this and the [pick](crate::Pick::at) were given a time.
    pub fn finish(self, now: Option<Instant>, outcome: Outcome) {
        self.report(now, outcome);
    }

    /// Tells how the call went without ending it, once: a stream whose first answer is there.
    pub fn report(&self, now: Option<Instant>, outcome: Outcome) {
        let load = &self.endpoint.load;
        match outcome {
            Outcome::Success => load.succeeded(),
            Outcome::Failure => self.failed(now),
            Outcome::Neutral => return,
        }
        if let (Some(began), Some(now)) = (self.began, now) {
            load.answered(began, now, outcome == Outcome::Success);
        }
    }

    fn failed(&self, now: Option<Instant>) {
        let streak = self.endpoint.load.failed();
        if let Some(owner) = self.endpoint.owner.upgrade() {
            owner.failed_in_a_row(self.endpoint.id, streak, now.or(self.began));
        }
    }
}

impl<T: Send + Sync + 'static> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.endpoint.value
    }
}

impl<T: Send + Sync + 'static> Drop for Lease<T> {
    fn drop(&mut self) {
        self.endpoint.load.slot.leave();
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.endpoint).finish()
    }
}
