//! Errors of streams.

use std::error::Error as StdError;
use std::fmt::Write as _;

use tidegate_lanes::{BuildError, Position, RecordFailure, RunError};

/// Reason why a stream cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Built without the feature `kafka`.
    #[error("this build of tidegate lacks Kafka: install a package, or build it with `--features kafka`")]
    NoKafka,
    /// The source cannot be opened.
    #[error("cannot open the source")]
    Source(#[source] Box<dyn StdError + Send + Sync>),
    /// The changes of a database cannot be read.
    #[error("cannot read the changes")]
    Changes(#[source] tidegate_changes::ChangeStreamError),
    /// The tables cannot be copied.
    #[error("cannot copy the tables: {0}")]
    Copy(String),
    /// The sink cannot be opened.
    #[error("cannot open the sink: {0}")]
    Sink(String),
    /// The sink cannot be reached at present.
    #[error("cannot open the sink: {0}")]
    SinkAway(String),
    /// The sink accepts nothing any more.
    #[error("{0}; records that were not written are delivered again by the next run")]
    SinkGone(String),
    /// The dead-letter queue cannot be opened.
    #[error("cannot open the dead-letter queue: {0}")]
    DeadLetter(String),
    /// The stream would read what it writes.
    #[error("the stream would read its own output: it reads and writes {0}; name another one")]
    OwnOutput(String),
    /// The settings contradict each other.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A record failed, and `exhausted` is `stop`.
    #[error("record {position} of {lane} failed: {failure}; {}", record_remedy(failure))]
    Record {
        /// The partition, the file or the slot.
        lane: String,
        /// The position of the record, which was not committed.
        position: Position,
        /// The last failure.
        failure: RecordFailure,
    },
    /// The stream failed.
    #[error(transparent)]
    Run(RunError),
    /// Aborted, or its runtime is gone.
    #[error("stopped before all deliveries had ended; uncommitted records are delivered again")]
    Aborted,
}

impl From<RunError> for StreamError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Exhausted { lane, position, failure } => Self::Record { lane, position, failure },
            other => Self::Run(other),
        }
    }
}

/// The remedy for a record that has failed.
const fn record_remedy(failure: &RecordFailure) -> &'static str {
    if failure.is_permanent() {
        "correct the sink or the record, or choose with `exhausted` what happens to failed records, and start the stream again"
    } else {
        "its attempts are used up: correct the sink or the record, and start the stream again; `attempts = 0` waits for a sink \
         that is away, and `exhausted` chooses what happens to failed records"
    }
}

impl StreamError {
    /// Whether a restart with the same settings may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Source(_) | Self::Sink(_) | Self::SinkAway(_) | Self::DeadLetter(_) => true,
            // A change source connects again by itself, so most of its errors do not go away.
            Self::Run(RunError::Source(error)) => crate::source::postgres::is_transient(&**error),
            Self::Changes(error) => error.class() == tidegate_changes::ErrorClass::Retry,
            Self::Run(_) | Self::Record { .. } => false,
            Self::NoKafka | Self::Copy(_) | Self::OwnOutput(_) | Self::SinkGone(_) | Self::Build(_) | Self::Aborted => {
                false
            }
        }
    }

    /// The error and its sources in one line.
    pub(super) fn error_chain(&self) -> String {
        error_chain(self)
    }
}

/// Joins an error and its sources into one line.
pub(super) fn error_chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let _ = write!(text, ": {source}");
        next = source.source();
    }
    text
}
