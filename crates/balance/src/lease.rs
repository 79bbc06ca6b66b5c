//! An endpoint while a call uses it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::Endpoint;

/// Result of a call, as far as its endpoint is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The endpoint answered.
    Success,
    /// The endpoint failed: counts towards its ejection.
    Failure,
    /// No statement about the health of the endpoint: the caller gave up, or the endpoint was saturated.
    Neutral,
}

/// An endpoint while a call uses it. The call counts as in flight, and a drain waits for it. Dropping the lease ends the call as
/// [`CallOutcome::Neutral`], without a latency.
#[must_use = "dropping the lease ends the call"]
pub struct EndpointLease<T: Send + Sync + 'static> {
    endpoint: Arc<Endpoint<T>>,
    began: Option<Instant>,
}

impl<T: Send + Sync + 'static> EndpointLease<T> {
    /// `None` if the endpoint drains.
    #[inline]
    pub(crate) fn enter(endpoint: &Arc<Endpoint<T>>, began: Option<Instant>) -> Option<Self> {
        endpoint.load.in_flight.enter().then(|| Self { endpoint: Arc::clone(endpoint), began })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Arc<Endpoint<T>> {
        &self.endpoint
    }

    /// Ends the call with its outcome. Measures a latency if both `now` and [`Pick::at`](crate::Pick::at) are given.
    pub fn finish(self, now: Option<Instant>, outcome: CallOutcome) {
        self.record(now, outcome);
    }

    /// Records the outcome without ending the call, for a stream whose first answer arrived. Call it once per call.
    pub fn record(&self, now: Option<Instant>, outcome: CallOutcome) {
        let load = &self.endpoint.load;
        match outcome {
            CallOutcome::Success => load.succeeded(),
            CallOutcome::Failure => self.failed(now),
            CallOutcome::Neutral => return,
        }
        if let (Some(began), Some(now)) = (self.began, now) {
            load.answered(began, now, outcome == CallOutcome::Success);
        }
    }

    fn failed(&self, now: Option<Instant>) {
        let streak = self.endpoint.load.failed();
        if let Some(observer) = self.endpoint.observer.upgrade() {
            observer.on_failure_streak(self.endpoint.id, streak, now.or(self.began));
        }
    }
}

impl<T: Send + Sync + 'static> Deref for EndpointLease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.endpoint.value
    }
}

impl<T: Send + Sync + 'static> Drop for EndpointLease<T> {
    fn drop(&mut self) {
        self.endpoint.load.in_flight.leave();
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for EndpointLease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EndpointLease").field(&self.endpoint).finish()
    }
}
