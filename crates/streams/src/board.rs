//! What is known of all streams of a process: for the console, the progress line and the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::status::Status;
use tidegate_config::Stream;

/// All streams of a process, in the order of the configuration; those that it does not name any more come last, until they
/// have ended.
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<Vec<Arc<Status>>>>);

/// What a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It opens its ends.
    Starting,
    /// Records flow.
    Running,
    /// It begins no delivery until it is resumed.
    Paused,
    /// It was told to come to its end, and lets what runs end.
    Draining,
    /// It failed, and is started again soon.
    Waiting,
    /// An operator has stopped it.
    Stopped,
    /// Its source has come to its end.
    Ended,
    /// It failed, and stays so.
    Failed,
}

impl State {
    /// Its name in tables.
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

    /// Whether nothing of it runs.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Waiting | Self::Stopped | Self::Ended | Self::Failed)
    }
}

/// Figures of one stream at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// Where its records come from.
    pub from: String,
    /// Where they go.
    pub to: String,
    /// What it does.
    pub state: State,
    /// Records done since the start of the process.
    pub done: u64,
    /// Records done in the last second.
    pub rate: u64,
    /// Records (of a file: bytes) behind what is done, if known.
    pub lag: Option<u64>,
    /// Records that were read and are not done.
    pub pending: usize,
    /// Deliveries under way.
    pub in_flight: usize,
    /// For how long the oldest of the pending records has been here.
    pub oldest: Option<Duration>,
    /// Attempts that failed and were followed by another.
    pub retried: u64,
    /// Records that the dead-letter has.
    pub dead_lettered: u64,
    /// Records that were skipped.
    pub skipped: u64,
    /// Records of keys that are parked.
    pub parked: usize,
    /// How often it was started again.
    pub restarts: u64,
    /// Why a delivery, or the stream itself, failed last.
    pub last_error: String,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Status>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<Status>> {
        self.lock().clone()
    }

    pub(super) fn replace(&self, statuses: Vec<Arc<Status>>) {
        *self.lock() = statuses;
    }

    /// The streams that there are.
    #[must_use]
    pub fn streams(&self) -> Vec<Arc<Status>> {
        let mut streams = self.all();
        streams.retain(|status| !status.is_forgotten());
        streams
    }

    /// Tells all to end for good: what runs may end, within the `drain` of each, and what is done is committed.
    pub fn stop(&self) {
        self.lock().iter().for_each(|status| status.end_for_good());
    }

    /// Puts the limits of these settings in force: how much may be under way, and at which rate. Nothing else of them.
    pub fn limit(&self, streams: &[Stream]) {
        for status in self.all() {
            let named = streams.iter().find(|stream| stream.keys.name == status.name());
            named.into_iter().for_each(|stream| status.limit(stream));
        }
    }

    /// Every stream as it is now.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.streams().iter().map(|status| status.snapshot()).collect()
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.lock().iter().map(|status| status.name().to_owned())).finish()
    }
}

/// How much was done per second since it was asked last.
pub(super) struct Pace {
    at: Instant,
    done: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { at: Instant::now(), done: 0 }
    }

    pub(super) fn rate(&mut self, done: u64) -> u64 {
        let (now, before) = (Instant::now(), std::mem::replace(&mut self.done, done));
        let seconds = now.duration_since(std::mem::replace(&mut self.at, now)).as_secs_f64();
        if seconds > 0.0 { (done.saturating_sub(before) as f64 / seconds).round() as u64 } else { 0 }
    }
}
