//! What can be asked and changed while a subscription runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::Bounds;
use crate::crew;
use crate::intake::Request;
use crate::observe::Metrics;
use crate::shard::Order;
use crate::worker::Shared;

/// Steers a subscription that runs. Clones steer the same one; when it is over, they have no effect.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Ends the subscription: what runs has `within` to end, then what is done is committed. Nothing more begins but what
    /// stands before something that has begun, in half of that time, since what is done behind it could not be committed. Of
    /// several stops, and of lanes that are being taken away, the nearest deadline counts.
    pub fn stop(&self, within: Duration) {
        self.request(Request::Stop(within));
    }

    /// Ends the subscription as if its source had come to its end: nothing more is taken, everything that was taken is done,
    /// and it ends with the same results. [`stop`](Self::stop) after it sets a deadline.
    ///
    /// A `stop` alone drops the rest.
    pub fn finish(&self) {
        self.request(Request::Finish);
    }

    /// Changes the bounds from now on. What is above a lower one is worked off.
    pub fn set_bounds(&self, bounds: Bounds) {
        self.request(Request::SetBounds(bounds));
    }

    /// Changes how many handlers may be under way. Handlers on threads have their threads for a limit besides.
    pub fn set_concurrency(&self, concurrency: usize) {
        let permits = crew::permits(concurrency, self.shared.threads);
        self.shared.gate.set_limit(permits, |shard| self.shared.nudge(shard));
    }

    /// Changes how many starts of a handler there may be in a second: none with 0, which is a pause; any number with `None`.
    pub fn set_rate(&self, per_second: Option<f64>) {
        let now = self.shared.clock.now();
        self.shared.gate.set_rate(per_second, now, |shard| self.shared.nudge(shard));
    }

    /// Lets the parked keys of this name go on, in all lanes. Their first record gets all its attempts again.
    pub fn unpark(&self, key: &[u8]) {
        self.order(|| Order::Unpark(Some(key.into())));
    }

    /// Lets all parked keys go on.
    pub fn unpark_all(&self) {
        self.order(|| Order::Unpark(None));
    }

    /// What it has counted and what it holds, as of the last turn of each of its parts.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.shared.board.read(self.shared.clock.now(), self.shared.gate.used())
    }

    fn request(&self, request: Request) {
        self.shared.intake.post(|mail| mail.requests.push(request));
    }

    fn order(&self, order: impl Fn() -> Order) {
        for shard in &self.shared.shards {
            shard.post(|mail| mail.orders.push(order()));
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("subscription", &self.shared.policy.subscription).finish_non_exhaustive()
    }
}
