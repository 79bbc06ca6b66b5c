//! What is known of each stream: for `SHOW STREAMS`, the progress line and the log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_lanes::{Failure, Handle, Interceptor, Record, Tally};
use tokio::sync::Notify;

use crate::config::Stream;

/// All streams of a process, in the order of the configuration.
#[derive(Clone, Default)]
pub struct Board(Arc<[Arc<Status>]>);

/// What a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It opens its ends.
    Starting,
    /// Records flow.
    Running,
    /// It was told to stop, and lets what runs end.
    Draining,
    /// It failed, and is started again soon.
    Waiting,
    /// It has come to its end, or was stopped.
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
            Self::Draining => "draining",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// Figures of one stream at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
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

/// What a stream writes down of itself.
pub(super) struct Status {
    name: String,
    from: String,
    to: String,
    // Locked when the stream changes its state, and by those who look.
    inner: Mutex<Inner>,
    rate: AtomicU64,
    lag: AtomicU64,
    restarts: AtomicU64,
    is_stopping: AtomicBool,
    /// Told once, when it is to stop.
    stopping: Notify,
    last_error: Mutex<String>,
}

struct Inner {
    state: State,
    handle: Option<Handle>,
    /// Of runs that are over.
    past: Sum,
}

/// What of a tally lasts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) done: u64,
    pub(super) retried: u64,
    pub(super) dead_lettered: u64,
    pub(super) skipped: u64,
}

impl Sum {
    fn with(self, tally: &Tally) -> Self {
        Self {
            done: self.done + tally.done + tally.compacted,
            retried: self.retried + tally.retried,
            dead_lettered: self.dead_lettered + tally.dead_lettered,
            skipped: self.skipped + tally.skipped,
        }
    }
}

const UNKNOWN: u64 = u64::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(super) fn new(streams: &[Stream]) -> Self {
        Self(streams.iter().map(|stream| Arc::new(Status::new(stream))).collect())
    }

    pub(super) fn statuses(&self) -> &[Arc<Status>] {
        &self.0
    }

    /// Tells all to end: what runs may end, within the `drain` of each, and what is done is committed.
    pub fn stop(&self) {
        self.0.iter().for_each(|status| status.stop());
    }

    /// Every stream as it is now.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.0.iter().map(|status| status.snapshot()).collect()
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|status| &status.name)).finish()
    }
}

impl Status {
    fn new(stream: &Stream) -> Self {
        let (from, to) = stream.ends();
        Self {
            name: stream.keys.name.clone(),
            from,
            to,
            inner: Mutex::new(Inner { state: State::Starting, handle: None, past: Sum::default() }),
            rate: AtomicU64::new(0),
            lag: AtomicU64::new(UNKNOWN),
            restarts: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            stopping: Notify::new(),
            last_error: Mutex::default(),
        }
    }

    /// A run begins.
    pub(super) fn begin(&self, handle: Handle) {
        let mut inner = lock(&self.inner);
        inner.state = if self.is_stopping() { State::Draining } else { State::Running };
        inner.handle = Some(handle);
    }

    /// The run is over.
    pub(super) fn end(&self, state: State) {
        let mut inner = lock(&self.inner);
        if let Some(handle) = inner.handle.take() {
            inner.past = inner.past.with(&handle.metrics().tally);
        }
        inner.state = state;
        self.rate.store(0, Ordering::Relaxed);
    }

    pub(super) fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
        lock(&self.inner).state = State::Starting;
    }

    /// Tells the run, if there is one, or the next one, to come to its end.
    pub(super) fn stop(&self) {
        let mut inner = lock(&self.inner);
        self.is_stopping.store(true, Ordering::Relaxed);
        self.stopping.notify_one();
        if inner.state == State::Running {
            inner.state = State::Draining;
        }
    }

    /// Completes once, when the stream is told to stop.
    pub(super) async fn told_to_stop(&self) {
        self.stopping.notified().await;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    pub(super) fn note_rate(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    pub(super) fn note_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(super) fn note_error(&self, reason: String) {
        *lock(&self.last_error) = reason;
    }

    /// What was done in all runs.
    pub(super) fn sum(&self) -> Sum {
        let inner = lock(&self.inner);
        inner.handle.as_ref().map_or(inner.past, |handle| inner.past.with(&handle.metrics().tally))
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let inner = lock(&self.inner);
        let metrics = inner.handle.as_ref().map(Handle::metrics).unwrap_or_default();
        let sum = inner.past.with(&metrics.tally);
        let lag = self.lag.load(Ordering::Relaxed);
        Snapshot {
            name: self.name.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            state: inner.state,
            done: sum.done,
            rate: self.rate.load(Ordering::Relaxed),
            lag: (lag != UNKNOWN).then_some(lag),
            pending: metrics.pending,
            in_flight: metrics.in_flight,
            oldest: metrics.oldest_age,
            retried: sum.retried,
            dead_lettered: sum.dead_lettered,
            skipped: sum.skipped,
            parked: metrics.tally.records_parked,
            restarts: self.restarts.load(Ordering::Relaxed),
            last_error: lock(&self.last_error).clone(),
        }
    }
}

/// Keeps the reason of the last failure. What succeeds costs one call.
pub(super) struct Ear(pub(super) Arc<Status>);

impl Interceptor for Ear {
    fn after(&self, record: &Record, result: Result<(), &Failure>) {
        if let Err(failure) = result {
            let stream = &self.0.name;
            tracing::debug!(stream, position = %record.position(), %failure, "a delivery failed");
            self.0.note_error(failure.to_string());
        }
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
