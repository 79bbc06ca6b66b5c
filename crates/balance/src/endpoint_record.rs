//! The balancer's record of an endpoint: connectivity, ejection, removal.

use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::{Endpoint, EndpointId, EndpointKey, SharedError};
use crate::outlier::EjectionState;

/// Connectivity of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectivityState {
    /// Not connected, and no connect is in progress.
    Idle,
    /// A connect is in progress.
    Connecting,
    /// Can be picked.
    Ready,
    /// The connect failed.
    Failed {
        /// When the next connect is due.
        retry_at: Instant,
    },
}

/// State of an endpoint, for display.
#[derive(Clone, Debug)]
pub struct EndpointStatus {
    /// Number within the balancer.
    pub id: EndpointId,
    /// Identity.
    pub key: EndpointKey,
    /// Connectivity.
    pub state: ConnectivityState,
    /// Weight, as of the last update.
    pub weight: u32,
    /// Tier, as of the last update.
    pub tier: u16,
    /// Number of leases.
    pub in_flight: u32,
    /// Whether the endpoint was removed. It stays until its replacement is ready, or until its last lease ends.
    pub leaving: bool,
    /// End of the current ejection.
    pub ejected_until: Option<Instant>,
    /// Number of ejections since it was added.
    pub ejections: u64,
    /// Number of consecutive failed connects.
    pub failures: u32,
    /// Last error.
    pub cause: Option<SharedError>,
}

pub(crate) struct EndpointRecord<T> {
    pub(crate) endpoint: Arc<Endpoint<T>>,
    pub(crate) weight: u32,
    pub(crate) tier: u16,
    pub(crate) rank: usize,
    pub(crate) state: ConnectivityState,
    /// Has been ready or failed since it was added.
    pub(crate) settled: bool,
    pub(crate) ready_since: Option<Instant>,
    /// Share in the slow start, as last published.
    pub(crate) ramp: u32,
    pub(crate) failures: u32,
    pub(crate) cause: Option<SharedError>,
    pub(crate) failed_at: Option<Instant>,
    pub(crate) ejection: EjectionState,
    /// Removed; stays in use until this time at most.
    pub(crate) leaving: Option<Instant>,
    /// Returned by [`Balancer::take_departed`](crate::Balancer::take_departed).
    pub(crate) handed_over: bool,
}

impl<T> EndpointRecord<T> {
    pub(crate) fn is_ready(&self) -> bool {
        self.state == ConnectivityState::Ready
    }

    /// Returns whether the endpoint can be picked, regardless of ejections.
    pub(crate) fn in_use(&self, hold: bool, now: Instant) -> bool {
        self.is_ready() && self.leaving.is_none_or(|until| hold && now < until)
    }

    pub(crate) fn enter(&mut self, state: ConnectivityState, now: Instant) {
        match state {
            ConnectivityState::Ready if self.state != ConnectivityState::Ready => {
                self.ready_since = Some(now);
                self.failures = 0;
                self.settled = true;
                // Failures of the previous connection do not count against the new one.
                self.endpoint.load.reset_streak();
            }
            ConnectivityState::Failed { .. } => {
                self.failed_at = Some(now);
                self.settled = true;
            }
            ConnectivityState::Idle | ConnectivityState::Connecting | ConnectivityState::Ready => (),
        }
        self.state = state;
    }

    /// Returns whether the endpoint departed and was closed, or its owner dropped it before its drain ended.
    pub(crate) fn is_over(&self) -> bool {
        self.handed_over && (self.endpoint.load.in_flight.is_closed() || Arc::strong_count(&self.endpoint) == 1)
    }

    /// The record of an endpoint that was added again before it was closed. `ready_since` is set if it became ready by that.
    pub(crate) fn revived(mut self, ready_since: Option<Instant>) -> Self {
        (self.leaving, self.handed_over) = (None, false);
        self.ready_since = ready_since.or(self.ready_since);
        self
    }

    pub(crate) fn status(&self, departing: bool) -> EndpointStatus {
        EndpointStatus {
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
