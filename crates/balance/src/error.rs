//! Why a pick returned no endpoint.

use crate::endpoint::SharedError;

/// Why a pick returned no endpoint.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickError {
    /// The set is not known yet, or it is empty.
    #[error("no endpoints are known: wait for an update with endpoints, or check why there is none")]
    Empty,
    /// The set has endpoints, but none is usable now. The source is the last error of one of them.
    #[error("none of {known} endpoints is ready{}: wait for one, or fail the call", last(.cause))]
    NotReady {
        /// Number of endpoints in the set.
        known: usize,
        /// Last error of one of them.
        #[source]
        cause: Option<SharedError>,
    },
    /// Endpoints are ready, but the pick's filter refuses all of them.
    #[error("{ready} endpoints are ready, but the filter of this pick allows none")]
    NoMatch {
        /// Number of ready endpoints.
        ready: usize,
    },
    /// [`BalancerSettings::waiters_max`](crate::BalancerSettings::waiters_max) callers wait already.
    #[error("{waiting} callers wait for an endpoint already, which is the limit: fail the call")]
    TooManyWaiters {
        /// Number of waiting callers.
        waiting: usize,
    },
    /// The balancer was closed.
    #[error("the balancer was closed")]
    Closed,
}

fn last(cause: &Option<SharedError>) -> String {
    cause.as_ref().map_or_else(String::new, |cause| format!(" (last: {cause})"))
}
