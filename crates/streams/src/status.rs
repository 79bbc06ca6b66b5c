//! State of one stream: requested, current, and done so far.
//!
//! Operators and the configuration request a goal, at any time and from any thread. The task of the stream reads it between two
//! runs and is notified when its run has to end. Requests may arrive in any order and number; the last one holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_lanes::{SubscriptionCounters, SubscriptionHandle};
use tokio::sync::{mpsc, oneshot, watch};

use super::capture::CaptureHandle;
use super::copy_progress::{CopyMeter, CopyProgress};
use super::limits::{StreamLimits, differ_in_limits_only};
use super::plan::StreamPlan;
use super::snapshot::{StreamSnapshot, StreamState};
use tidegate_changes::SnapshotState;
use tidegate_config::StreamConfig;

/// Requested goal of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Run with the current settings.
    Run,
    /// Stop, and wait for another goal.
    Stop,
    /// Stop permanently.
    Shutdown,
}

/// A requested goal with its generation. A run of an older generation is outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    goal: Goal,
    generation: u64,
}

/// State of one stream, shared by operators and the task of the stream.
pub struct StreamStatus {
    name: String,
    // Locked for changes of state or settings, and for reading. Requests change only under this lock.
    inner: Mutex<StatusInner>,
    request: watch::Sender<Request>,
    rate: AtomicU64,
    lag: AtomicU64,
    restarts: AtomicU64,
    /// Losses of changes.
    gaps: AtomicU64,
    last_error: Mutex<String>,
    /// The change capture of the last run.
    capture: Mutex<Option<CaptureHandle>>,
    /// The copy of tables that runs.
    copy: Mutex<Option<CopyMeter>>,
    /// Takes requests of the run, if its source copies tables.
    backfills: Mutex<Option<mpsc::Sender<BackfillRequest>>>,
}

/// A request to copy a table again.
#[derive(Debug)]
pub(super) struct BackfillRequest {
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) reply: oneshot::Sender<Result<(), String>>,
}

/// The reply of a stream that did not answer.
const ENDED: &str = "the stream has ended";

/// The reply to a request to copy a table again.
#[derive(Debug)]
pub struct BackfillReply(oneshot::Receiver<Result<(), String>>);

impl BackfillReply {
    /// Takes the reply: whether the copy has begun, or why not; `None` as long as there is none.
    pub fn poll(&mut self) -> Option<Result<(), String>> {
        match self.0.try_recv() {
            Ok(reply) => Some(reply),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(ENDED.to_owned())),
        }
    }

    /// Waits for the reply.
    pub(super) async fn wait(self) -> Result<(), String> {
        self.0.await.unwrap_or_else(|_| Err(ENDED.to_owned()))
    }
}

struct StatusInner {
    plan: StreamPlan,
    state: StreamState,
    is_paused: bool,
    /// Removed from the configuration.
    is_removed: bool,
    run: Option<SubscriptionHandle>,
    /// Totals of ended runs.
    earlier_totals: RunTotals,
}

/// Counters that survive a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunTotals {
    pub(super) done: u64,
    pub(super) retried: u64,
    pub(super) dead_lettered: u64,
    pub(super) skipped: u64,
}

impl RunTotals {
    fn with(self, counters: &SubscriptionCounters) -> Self {
        Self {
            done: self.done + counters.done + counters.compacted,
            retried: self.retried + counters.retried,
            dead_lettered: self.dead_lettered + counters.dead_lettered,
            skipped: self.skipped + counters.skipped,
        }
    }
}

/// Outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunOutcome {
    /// Ended without an error.
    Done,
    /// Failed with a transient error; another run is tried.
    Transient,
    /// Failed.
    Failed,
}

const UNKNOWN: u64 = u64::MAX;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StatusInner {
    /// Applies the limits of the settings to the current run.
    fn apply_limits(&self) {
        if let Some(handle) = &self.run {
            // A pause does not hold up a run that ends.
            let is_paused = self.is_paused && self.state != StreamState::Draining;
            StreamLimits::of(&self.plan.stream).apply(handle, is_paused);
        }
    }

    /// Updates the state after a request to stop.
    fn on_stop_requested(&mut self) {
        self.state = match self.state {
            StreamState::Running | StreamState::Paused => StreamState::Draining,
            StreamState::Waiting => StreamState::Stopped,
            other => other,
        };
    }
}

/// Operations of operators.
impl StreamStatus {
    /// Name of the stream.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Current state.
    #[must_use]
    pub fn state(&self) -> StreamState {
        lock(&self.inner).state
    }

    /// Starts no further deliveries in this run and later ones. Deliveries in flight continue.
    pub fn pause(&self) {
        let mut inner = lock(&self.inner);
        inner.is_paused = true;
        if inner.state == StreamState::Running {
            inner.state = StreamState::Paused;
        }
        inner.apply_limits();
    }

    /// Undoes [`Self::pause`].
    pub fn resume(&self) {
        let mut inner = lock(&self.inner);
        inner.is_paused = false;
        if inner.state == StreamState::Paused {
            inner.state = StreamState::Running;
        }
        inner.apply_limits();
    }

    /// Whether the stream is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        lock(&self.inner).is_paused
    }

    /// Whether the stream is requested to run.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.request.borrow().goal == Goal::Run
    }

    /// Deliveries in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        lock(&self.inner).run.as_ref().map_or(0, |handle| handle.metrics().in_flight)
    }

    /// Ends the current run within `drain`, and starts no other one until [`Self::start`].
    pub fn stop(&self) {
        self.request_goal(Goal::Stop);
    }

    /// Starts a stream that was stopped, has ended or failed, or waits for a restart. A running stream continues; an
    /// ending stream starts again afterwards.
    pub fn start(&self) {
        let mut inner = lock(&self.inner);
        let is_over = inner.state.is_over();
        let is_restarted = self.request.send_if_modified(|request| {
            let is_new = request.goal == Goal::Stop || (request.goal == Goal::Run && is_over);
            if is_new {
                *request = Request { goal: Goal::Run, generation: request.generation + 1 };
            }
            is_new
        });
        if is_restarted && is_over {
            inner.state = StreamState::Starting;
        }
    }

    /// Releases the parked records of a key, or of all keys. Returns `false` if the stream does not run, so that nothing is
    /// parked.
    #[must_use]
    pub fn unpark(&self, key: Option<&str>) -> bool {
        let inner = lock(&self.inner);
        let Some(handle) = &inner.run else { return false };
        match key {
            Some(key) => handle.unpark(key.as_bytes()),
            None => handle.unpark_all(),
        }
        true
    }
}

/// Copies of tables.
impl StreamStatus {
    /// Asks the stream to copy a table again. `None` if the stream does not run, does not read the changes of Postgres, or has
    /// too many requests.
    #[must_use]
    pub fn backfill(&self, schema: &str, table: &str) -> Option<BackfillReply> {
        let (reply, answer) = oneshot::channel();
        let request = BackfillRequest { schema: schema.to_owned(), table: table.to_owned(), reply };
        lock(&self.backfills).as_ref()?.try_send(request).ok()?;
        Some(BackfillReply(answer))
    }

    /// Where requests of the run go.
    pub(super) fn accept_backfills(&self, requests: mpsc::Sender<BackfillRequest>) {
        *lock(&self.backfills) = Some(requests);
    }

    pub(super) fn begin_copy(&self, state: &SnapshotState) {
        let (tables, rows) = (state.tables.len(), state.tables.iter().map(|table| table.rows).sum::<u64>());
        tracing::info!(stream = self.name, tables, rows_before = rows, "copy of tables begins");
        *lock(&self.copy) = Some(CopyMeter::new(state, Instant::now()));
    }

    pub(super) fn record_copy(&self, state: &SnapshotState) {
        let mut copy = lock(&self.copy);
        let Some(progress) = copy.as_mut().and_then(|meter| meter.update(state, Instant::now())) else { return };
        let CopyProgress { tables_done, tables, table, rows, bytes, percent, left } = progress;
        let left = left.map(|left| left.as_secs());
        tracing::info!(
            stream = self.name,
            table,
            tables_done,
            tables,
            rows,
            bytes,
            percent,
            left_s = left,
            "copying tables"
        );
    }

    pub(super) fn end_copy(&self, state: &SnapshotState) {
        let (rows, bytes) =
            state.tables.iter().fold((0, 0), |(rows, bytes), table| (rows + table.rows, bytes + table.bytes));
        // A copy that is stored nowhere has counted its rows only here.
        let measured = lock(&self.copy).take().map(|meter| meter.progress());
        let (rows, bytes) =
            measured.map_or((rows, bytes), |measured| (rows.max(measured.rows), bytes.max(measured.bytes)));
        tracing::info!(stream = self.name, tables = state.tables.len(), rows, bytes, "copy of tables is complete");
    }
}

/// Operations of the configuration.
impl StreamStatus {
    pub(super) fn new(plan: StreamPlan) -> Self {
        Self {
            name: plan.stream.keys.name.clone(),
            inner: Mutex::new(StatusInner {
                plan,
                state: StreamState::Starting,
                is_paused: false,
                is_removed: false,
                run: None,
                earlier_totals: RunTotals::default(),
            }),
            request: watch::Sender::new(Request { goal: Goal::Run, generation: 0 }),
            rate: AtomicU64::new(0),
            lag: AtomicU64::new(UNKNOWN),
            restarts: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            last_error: Mutex::default(),
            capture: Mutex::default(),
            copy: Mutex::default(),
            backfills: Mutex::default(),
        }
    }

    /// Replaces the settings. If only limits differ, they change in the current run; otherwise the run ends and another one
    /// starts. A stopped stream stays stopped.
    pub(super) fn apply(&self, plan: StreamPlan) {
        let mut inner = lock(&self.inner);
        let is_back = std::mem::replace(&mut inner.is_removed, false);
        let is_same = inner.plan.can_continue_as(&plan);
        inner.plan = plan;
        if is_same && !is_back {
            return inner.apply_limits();
        }
        let is_restarted = self.request.send_if_modified(|request| {
            let is_requested = request.goal == Goal::Run || (is_back && request.goal == Goal::Stop);
            if is_requested {
                *request = Request { goal: Goal::Run, generation: request.generation + 1 };
            }
            is_requested
        });
        // A stream that waits for a restart is woken by the new generation.
        if is_restarted && inner.state != StreamState::Waiting {
            inner.on_stop_requested();
        }
    }

    /// Replaces the limits.
    pub(super) fn set_limits(&self, stream: &StreamConfig) {
        let mut inner = lock(&self.inner);
        if differ_in_limits_only(&inner.plan.stream.keys, &stream.keys) {
            inner.plan.stream = stream.clone();
            inner.apply_limits();
        }
    }

    /// Removes the stream from the configuration: it ends, and is forgotten then.
    pub(super) fn remove(&self) {
        lock(&self.inner).is_removed = true;
        self.request_goal(Goal::Stop);
    }

    /// Ends the stream permanently.
    pub(super) fn shut_down(&self) {
        self.request_goal(Goal::Shutdown);
    }

    fn request_goal(&self, goal: Goal) {
        let mut inner = lock(&self.inner);
        self.request.send_modify(|request| {
            if request.goal != Goal::Shutdown {
                request.goal = goal;
            }
        });
        inner.on_stop_requested();
    }

    /// Whether the stream was removed and has ended.
    pub(super) fn is_gone(&self) -> bool {
        let inner = lock(&self.inner);
        inner.is_removed && inner.state.is_over()
    }
}

/// Operations of the stream's task.
impl StreamStatus {
    /// Waits until a run is requested, of another generation than the last one. Returns generation and settings; `None` if the
    /// stream ends permanently.
    ///
    /// # Cancel safety
    /// Safe: dropping the future changes nothing.
    pub(super) async fn next_run(&self, last_generation: Option<u64>) -> Option<(u64, StreamPlan)> {
        let mut requests = self.request.subscribe();
        let is_run_requested = |request: &Request| {
            request.goal == Goal::Shutdown || (request.goal == Goal::Run && last_generation != Some(request.generation))
        };
        requests.wait_for(is_run_requested).await.ok()?;
        let mut inner = lock(&self.inner);
        let request = *self.request.borrow();
        if request.goal == Goal::Shutdown {
            return None;
        }
        inner.state = StreamState::Starting;
        Some((request.generation, inner.plan.clone()))
    }

    /// Completes when the run of this generation has to end.
    ///
    /// # Cancel safety
    /// Safe: dropping the future changes nothing.
    pub(super) async fn stop_requested(&self, generation: u64) {
        // The sender is owned by `self`, so the wait cannot fail.
        let _ = self
            .request
            .subscribe()
            .wait_for(|request| request.goal != Goal::Run || request.generation != generation)
            .await;
    }

    /// Whether the run of this generation has to end.
    pub(super) fn is_stop_requested(&self, generation: u64) -> bool {
        let request = self.request.borrow();
        request.goal != Goal::Run || request.generation != generation
    }

    /// Records that deliveries start.
    pub(super) fn begin(&self, generation: u64, handle: SubscriptionHandle) {
        let mut inner = lock(&self.inner);
        // The changes follow a copy of the tables in the same run.
        if let Some(handle) = inner.run.take() {
            inner.earlier_totals = inner.earlier_totals.with(&handle.metrics().counters);
        }
        inner.state = match (self.is_stop_requested(generation), inner.is_paused) {
            (true, _) => StreamState::Draining,
            (false, true) => StreamState::Paused,
            (false, false) => StreamState::Running,
        };
        inner.run = Some(handle);
        // The limits may have changed since the settings were read.
        inner.apply_limits();
    }

    /// Records the end of the run of this generation.
    pub(super) fn end(&self, generation: u64, outcome: RunOutcome) {
        let mut inner = lock(&self.inner);
        if let Some(handle) = inner.run.take() {
            inner.earlier_totals = inner.earlier_totals.with(&handle.metrics().counters);
        }
        let request = *self.request.borrow();
        inner.state = match (request.goal, outcome) {
            (Goal::Run, _) if request.generation != generation => StreamState::Starting,
            (Goal::Run | Goal::Shutdown, RunOutcome::Done) => StreamState::Ended,
            (Goal::Run, RunOutcome::Transient) => StreamState::Waiting,
            (Goal::Stop, RunOutcome::Done | RunOutcome::Transient) => StreamState::Stopped,
            (Goal::Shutdown, RunOutcome::Transient) | (_, RunOutcome::Failed) => StreamState::Failed,
        };
        self.rate.store(0, Ordering::Relaxed);
        *lock(&self.copy) = None;
        *lock(&self.backfills) = None;
        lock(&self.capture).iter().for_each(CaptureHandle::record_end);
    }

    pub(super) fn record_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that changes are lost.
    pub(super) fn record_gap(&self) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
        if let Some(capture) = &*lock(&self.capture) {
            capture.record_loss();
        }
    }

    pub(super) fn record_rate(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    pub(super) fn record_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(super) fn set_capture(&self, capture: Option<CaptureHandle>) {
        *lock(&self.capture) = capture;
    }

    pub(super) fn record_error(&self, reason: String) {
        *lock(&self.last_error) = reason;
    }

    pub(super) fn last_error(&self) -> String {
        lock(&self.last_error).clone()
    }

    /// Totals of all runs.
    pub(super) fn totals(&self) -> RunTotals {
        let inner = lock(&self.inner);
        inner.run.as_ref().map_or(inner.earlier_totals, |handle| inner.earlier_totals.with(&handle.metrics().counters))
    }

    pub(super) fn snapshot(&self) -> StreamSnapshot {
        let inner = lock(&self.inner);
        let metrics = inner.run.as_ref().map(SubscriptionHandle::metrics).unwrap_or_default();
        let totals = inner.earlier_totals.with(&metrics.counters);
        let lag = self.lag.load(Ordering::Relaxed);
        let (from, to) = inner.plan.stream.endpoints();
        StreamSnapshot {
            name: self.name.clone(),
            from,
            to,
            state: inner.state,
            done: totals.done,
            rate: self.rate.load(Ordering::Relaxed),
            lag: (lag != UNKNOWN).then_some(lag),
            pending: metrics.pending,
            in_flight: metrics.in_flight,
            oldest: metrics.oldest_age,
            retried: totals.retried,
            dead_lettered: totals.dead_lettered,
            skipped: totals.skipped,
            parked: metrics.counters.records_parked,
            copy: lock(&self.copy).as_ref().map(CopyMeter::progress),
            restarts: self.restarts.load(Ordering::Relaxed),
            gaps: self.gaps.load(Ordering::Relaxed),
            last_error: self.last_error(),
            capture: lock(&self.capture).as_ref().map(CaptureHandle::snapshot),
        }
    }
}

impl std::fmt::Debug for StreamStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamStatus").field("name", &self.name).finish_non_exhaustive()
    }
}
