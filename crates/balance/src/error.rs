//! Why a pick has no result.

use crate::endpoint::Cause;

/// Why a pick has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickError {
    /// Nobody has said yet what there is to choose from, or it was said that there is nothing.
    #[error("no endpoints are known: wait for an update that has some, or look why there is none")]
    Empty,
    /// There are endpoints, but none can be used now. The source is what happened last to one of them.
    #[error("none of {known} endpoints is ready{}: wait for one, or fail the call", last(.cause))]
    NotReady {
        /// How many are known.
        known: usize,
        /// What happened last to one of them.
        #[source]
        cause: Option<Cause>,
    },
    /// Endpoints are ready, but the pick's filter refuses all of them.
    #[error("{ready} endpoints are ready, but the filter of this pick allows none")]
    NoMatch {
        /// How many are ready.
        ready: usize,
    },
    /// As many callers wait as may.
    #[error("{waiting} callers wait for an endpoint already, which is the limit: fail the call")]
    Crowded {
        /// How many wait.
        waiting: usize,
    },
    /// The balancer was closed.
    #[error("the balancer was closed")]
    Closed,
}

fn last(cause: &Option<Cause>) -> String {
    cause.as_ref().map_or_else(String::new, |cause| format!(" (last: {cause})"))
}
