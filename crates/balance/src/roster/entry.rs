//! One endpoint's life: connecting, ready, failed, ejected, leaving.

use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::{Cause, Endpoint, EndpointId, Key};
use crate::outlier::Ejection;

/// The connectivity of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody tries to connect to it.
    Idle,
    /// Somebody does.
    Connecting,
    /// It can be chosen.
    Ready,
    /// It could not be connected, or it was lost.
    Failed {
        /// When it is to be tried again.
        retry_at: Instant,
    },
}

/// What is known of an endpoint, for people.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its name within the balancer.
    pub id: EndpointId,
    /// Its identity.
    pub key: Key,
    /// Its connectivity.
    pub state: State,
    /// As the last update said.
    pub weight: u32,
    /// As the last update said.
    pub tier: u16,
    /// Leases that are held.
    pub in_flight: u32,
    /// Removed: it stays until its replacement is ready, or until the last lease ends.
    pub leaving: bool,
    /// It is ejected until then.
    pub ejected_until: Option<Instant>,
    /// How often it was ejected, ever.
    pub ejections: u64,
    /// How often in a row it could not be connected or was lost.
    pub failures: u32,
    /// Why, the last time.
    pub cause: Option<Cause>,
}

pub(crate) struct Entry<T> {
    pub(crate) endpoint: Arc<Endpoint<T>>,
    pub(crate) weight: u32,
    pub(crate) tier: u16,
    pub(crate) rank: usize,
    pub(crate) state: State,
    /// It was ready or failed once since it was added.
    pub(crate) settled: bool,
    pub(crate) ready_since: Option<Instant>,
    /// Its share in its slow start, as last published.
    pub(crate) ramp: u32,
    pub(crate) failures: u32,
    pub(crate) cause: Option<Cause>,
    pub(crate) failed_at: Option<Instant>,
    pub(crate) ejection: Ejection,
    /// Removed; it stays in use until then at most.
    pub(crate) leaving: Option<Instant>,
    /// The owner knows that it departed.
    pub(crate) handed_over: bool,
}

impl<T> Entry<T> {
    pub(crate) fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// May it be chosen, ejections aside?
    pub(crate) fn in_use(&self, hold: bool, now: Instant) -> bool {
        self.is_ready() && self.leaving.is_none_or(|until| hold && now < until)
    }

    pub(crate) fn enter(&mut self, state: State, now: Instant) {
        match state {
            State::Ready if self.state != State::Ready => {
                self.ready_since = Some(now);
                self.failures = 0;
                self.settled = true;
                // What was held against a former connection does not count against this one.
                self.endpoint.load.forgive();
            }
            State::Failed { .. } => {
                self.failed_at = Some(now);
                self.settled = true;
            }
            State::Idle | State::Connecting | State::Ready => (),
        }
        self.state = state;
    }

    /// Departed, and closed; or its owner dropped it without waiting for the end of its drain.
    pub(crate) fn is_over(&self) -> bool {
        self.handed_over && (self.endpoint.load.slot.is_closed() || Arc::strong_count(&self.endpoint) == 1)
    }

    /// Wanted again before it was closed; `anew` if it became ready by that.
    pub(crate) fn returned(mut self, anew: Option<Instant>) -> Self {
        (self.leaving, self.handed_over) = (None, false);
        self.ready_since = anew.or(self.ready_since);
        self
    }

    pub(crate) fn status(&self, departing: bool) -> Status {
        Status {
            id: self.endpoint.id,
            key: self.endpoint.key.clone(),
            state: self.state,
            weight: self.weight,
            tier: self.tier,
            in_flight: self.endpoint.load.in_flight(),
            leaving: departing || self.leaving.is_some(),
            ejected_until: self.ejection.until,
            ejections: self.ejection.total,
            failures: self.failures,
            cause: self.cause.clone(),
        }
    }
}
