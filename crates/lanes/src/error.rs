//! Why a subscription ended otherwise than by being asked to.

use std::error::Error as StdError;

use crate::failure::Failure;
use crate::record::Position;

/// Why a subscription ended otherwise than by being asked to, or by the end of its source. What was done until then has been
/// committed if the source let it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The source cannot go on.
    #[error("the source failed; start again when it is back")]
    Source(#[source] Box<dyn StdError + Send + Sync>),
    /// A record cannot be done, and the subscription was told to stop then.
    #[error(
        "record {position} of lane {lane} cannot be done: {failure}; mend the handler or the record, or choose what else is to \
         become of such records (`exhausted`), and start again"
    )]
    Exhausted {
        /// The lane, as the source calls it.
        lane: String,
        /// Where the record stands; it was not committed.
        position: Position,
        /// The last failure.
        failure: Failure,
    },
    /// The source came to its end, but records are held back: parked, or in lanes that were halted.
    #[error("the source ended, but {records} records are parked or in halted lanes; they were not committed")]
    HeldBack {
        /// So many.
        records: usize,
    },
    /// A part of the subscription itself panicked: a defect of this library.
    #[error("a part of the subscription panicked; please report it")]
    Broken,
}

/// Why a subscription cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Records may go to the dead-letter, but there is none.
    #[error("records may go to a dead-letter, but there is none: give one with `dead_letter`")]
    NoDeadLetter,
    /// A number that must be at least one is zero.
    #[error("`{0}` must be at least 1")]
    Zero(&'static str),
    /// The system did not give so many threads.
    #[error("the system did not give {0} threads: ask for fewer, or raise its limit")]
    NoThreads(usize),
    /// It was built outside of a tokio runtime.
    #[error("build the subscription inside of a tokio runtime: it starts its tasks there")]
    NoRuntime,
}
