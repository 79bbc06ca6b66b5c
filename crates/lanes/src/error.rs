//! Errors of a subscription.

use std::error::Error as StdError;

use crate::failure::RecordFailure;
use crate::record::Position;

/// Why a subscription ended, other than by [`stop`](crate::SubscriptionHandle::stop) or the end of its source. Records
/// finished until then are committed if the source allows it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The source failed permanently.
    #[error("source failed; restart when it is available again")]
    Source(#[source] Box<dyn StdError + Send + Sync>),
    /// A record failed permanently and [`ExhaustedAction::Stop`](crate::ExhaustedAction::Stop) applies.
    #[error(
        "record {position} of lane {lane} failed: {failure}; fix the handler or the record, or choose another action for \
         failed records (`exhausted`), and restart"
    )]
    Exhausted {
        /// The name of the lane.
        lane: String,
        /// The position of the record, which was not committed.
        position: Position,
        /// The last failure.
        failure: RecordFailure,
    },
    /// The source ended while records were parked or in halted lanes.
    #[error("source ended with {records} uncommitted records that are parked or in halted lanes")]
    Unfinished {
        /// The number of records.
        records: usize,
    },
    /// A component of the subscription panicked: a bug in this library.
    #[error("a component of the subscription panicked; please report this bug")]
    Internal,
}

/// Why a subscription cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A policy sends records to a dead-letter queue, but none is configured.
    #[error("a policy sends records to a dead-letter queue, but none is configured; set one with `dead_letter_queue`")]
    NoDeadLetterQueue,
    /// A setting that must be at least 1 is 0.
    #[error("`{0}` must be at least 1")]
    Zero(&'static str),
    /// The system refused the requested number of threads.
    #[error("cannot start {0} threads; request fewer or raise the system's limit")]
    NoThreads(usize),
    /// There is no tokio runtime.
    #[error("no tokio runtime; build the subscription inside one")]
    NoRuntime,
}
