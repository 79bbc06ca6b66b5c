//! State and counters of one stream at one moment.

use std::time::Duration;

use super::capture::CaptureSnapshot;
use super::copy_progress::CopyProgress;

/// State of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamState {
    /// Opens its source and sink.
    Starting,
    /// Delivers records.
    Running,
    /// Starts no deliveries until it is resumed.
    Paused,
    /// Ends after the deliveries in flight.
    Draining,
    /// Failed, and restarts soon.
    Waiting,
    /// Stopped by an operator.
    Stopped,
    /// The source has ended.
    Ended,
    /// Failed permanently.
    Failed,
}

impl StreamState {
    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }

    /// Whether nothing of the stream runs.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Waiting | Self::Stopped | Self::Ended | Self::Failed)
    }
}

/// State and counters of a stream at one moment.
#[derive(Debug, Clone)]
pub struct StreamSnapshot {
    /// Name.
    pub name: String,
    /// Source.
    pub from: String,
    /// Sink.
    pub to: String,
    /// State.
    pub state: StreamState,
    /// Records done since the start of the process.
    pub done: u64,
    /// Records done per second.
    pub rate: u64,
    /// Lag in records (of a file: bytes), if known.
    pub lag: Option<u64>,
    /// Records read and not done.
    pub pending: usize,
    /// Deliveries in flight.
    pub in_flight: usize,
    /// Age of the oldest pending record.
    pub oldest: Option<Duration>,
    /// Failed attempts that were repeated.
    pub retried: u64,
    /// Records in the dead-letter queue.
    pub dead_lettered: u64,
    /// Skipped records.
    pub skipped: u64,
    /// Records of parked keys.
    pub parked: usize,
    /// The copy of tables, while it runs.
    pub copy: Option<CopyProgress>,
    /// Number of restarts.
    pub restarts: u64,
    /// Number of times that changes of Postgres were lost.
    pub gaps: u64,
    /// The last error of a delivery or of the stream.
    pub last_error: String,
    /// The change capture, if the source is a database.
    pub capture: Option<CaptureSnapshot>,
}
