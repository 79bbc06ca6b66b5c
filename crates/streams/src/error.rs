//! Why a stream cannot begin, or cannot go on.

use std::error::Error as StdError;
use std::fmt::Write as _;

use tidegate_lanes::{BuildError, RunError};

/// Why a stream cannot begin, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// This program was built without Kafka.
    #[error("this build of tidegate has no Kafka: build it with `--features kafka`, which is a default feature")]
    NoKafka,
    /// The source cannot be opened.
    #[error("cannot open the source")]
    Source(#[source] Box<dyn StdError + Send + Sync>),
    /// The sink cannot be opened.
    #[error("cannot open the sink: {0}")]
    Sink(String),
    /// The sink has said that it will take nothing any more.
    #[error("{0}; what was not written comes again with the next run")]
    SinkGone(String),
    /// The dead-letter cannot be opened.
    #[error("cannot open the dead-letter: {0}")]
    Letters(String),
    /// The settings do not fit together.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It cannot go on.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It was told to end now, or its runtime is gone.
    #[error("stopped before everything under way had ended; what was not committed comes again")]
    Aborted,
}

impl StreamError {
    /// Whether it may work when it is started again as it is.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Source(_) | Self::Sink(_) | Self::Letters(_) => true,
            Self::Run(error) => matches!(error, RunError::Source(_)),
            Self::NoKafka | Self::SinkGone(_) | Self::Build(_) | Self::Aborted => false,
        }
    }

    /// In one line, with what it comes from.
    pub(super) fn whole(&self) -> String {
        whole(self)
    }
}

/// An error and its sources, in one line.
pub(super) fn whole(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let _ = write!(text, ": {source}");
        next = source.source();
    }
    text
}
