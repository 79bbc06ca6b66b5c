//! Takes records from the source, routes them to shards, and commits finished records.
//!
//! The intake owns the source and all frontiers. On shutdown it takes no more records, drains every lane as if it were
//! revoked, commits, and closes the source.

mod log;
mod phase;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::assignments::{Assignments, DrainReason, DrainRequest, FlowChange, LaneDrain};
use crate::backpressure::ShardLoads;
use crate::bounds::{Bounds, low};
use crate::error::RunError;
use crate::messages::{Arrival, FailureAction, FailureEvent, IntakeCommand, IntakeMessages, ShardCommand};
use crate::metrics::IntakeStatus;
use crate::monotonic_time::MonotonicTime;
use crate::policy::KeylessOrder;
use crate::record::{Epoch, Lane, Record};
use crate::source::{LaneCommit, PollLimit, Source, SourceEvent};
use crate::worker::SubscriptionContext;
use phase::IntakePhase;

/// Records taken from the source per poll.
const BATCH: usize = 1024;
/// Events per turn, after which the task yields.
const TURN_EVENTS: usize = 8;

pub(crate) struct Intake<S> {
    source: S,
    shared: Arc<SubscriptionContext>,
    assignments: Assignments,
    bounds: Bounds,
    commit_every: Duration,
    /// The drain time after an error.
    drain: Duration,
    phase: IntakePhase,
    /// Records and bytes that the shards hold.
    pending: usize,
    pending_bytes: usize,
    is_full: bool,
    loads: ShardLoads,
    hasher: RandomState,
    messages: IntakeMessages,
    batch: Vec<Record>,
    routed: Vec<Vec<Arrival>>,
    flow_changes: Vec<FlowChange>,
    commits_failed: u64,
    /// Limits the log messages about skipped records and about refused dead letters.
    skipped: log::LogLimiter,
    dead_letter_failed: log::LogLimiter,
    /// When the next commit is due.
    commit_at: Option<MonotonicTime>,
    sleep: Pin<Box<Sleep>>,
    sleep_until: MonotonicTime,
}

/// Settings of the intake.
pub(crate) struct IntakeSettings {
    pub(crate) bounds: Bounds,
    pub(crate) commit_every: Duration,
    pub(crate) drain: Duration,
}

impl<S: Source> Intake<S> {
    pub(crate) fn new(source: S, settings: &IntakeSettings, shared: Arc<SubscriptionContext>) -> Self {
        let shards = shared.shards.len();
        let sleep = Box::pin(tokio::time::sleep_until(shared.clock.instant(MonotonicTime(u64::MAX))));
        Self {
            source,
            shared,
            assignments: Assignments::default(),
            bounds: settings.bounds,
            commit_every: settings.commit_every,
            drain: settings.drain,
            phase: IntakePhase::Running,
            pending: 0,
            pending_bytes: 0,
            is_full: false,
            loads: ShardLoads::new(shards),
            hasher: RandomState::new(),
            messages: IntakeMessages::default(),
            batch: Vec::new(),
            routed: (0..shards).map(|_| Vec::new()).collect(),
            flow_changes: Vec::new(),
            commits_failed: 0,
            skipped: log::LogLimiter::default(),
            dead_letter_failed: log::LogLimiter::default(),
            commit_at: None,
            sleep,
            sleep_until: MonotonicTime(u64::MAX),
        }
    }

    /// Resolves once the source is closed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        for _ in 0..TURN_EVENTS {
            let now = self.shared.clock.now();
            let has_messages = self.read_messages(cx, now);
            let has_event = self.poll_source(cx, now);
            self.update_source(now);
            if let Poll::Ready(result) = self.poll_shutdown(cx, now) {
                self.log_suppressed(now, true);
                self.write_status();
                return Poll::Ready(result);
            }
            if !has_messages && !has_event && self.poll_timer(cx).is_pending() {
                self.write_status();
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn read_messages(&mut self, cx: &mut Context<'_>, now: MonotonicTime) -> bool {
        let mut messages = mem::take(&mut self.messages);
        let has_messages = self.shared.intake.poll_receive(cx, &mut messages).is_ready();
        for report in messages.reports.drain(..) {
            self.pending -= 1;
            self.pending_bytes -= report.bytes;
            self.assignments.report(&report);
        }
        for last_started in messages.last_started.drain(..) {
            if let Some(last) = self.assignments.on_last_started(last_started) {
                self.send_to_shards(|| ShardCommand::DropAfter(last_started.lane, last_started.epoch, last));
            }
        }
        for (shard, status) in messages.statuses.drain(..) {
            self.loads.update(shard, status);
        }
        for event in messages.failure_events.drain(..) {
            self.on_failure_event(event, now);
        }
        for command in messages.commands.drain(..) {
            match command {
                IntakeCommand::SetBounds(bounds) => {
                    self.bounds = bounds;
                    self.shared.ready_limit.set(bounds.ready_max);
                }
                IntakeCommand::Finish => self.phase.on_source_ended(),
                IntakeCommand::Stop(within) => self.begin_shutdown(None, now, now.after(within)),
            }
        }
        self.messages = messages;
        has_messages
    }

    /// Takes an event from the source, if there is one.
    fn poll_source(&mut self, cx: &mut Context<'_>, now: MonotonicTime) -> bool {
        if !self.phase.polls_source() {
            return false;
        }
        let poll_limit = self.poll_limit();
        match self.source.poll(cx, poll_limit, &mut self.batch) {
            Poll::Pending => return false,
            // A source may repeat `Ended` on every poll.
            Poll::Ready(Ok(SourceEvent::Ended)) if !self.phase.takes_records() => return false,
            Poll::Ready(Ok(event)) => self.on_event(event, now),
            Poll::Ready(Err(error)) => {
                self.begin_shutdown(Some(RunError::Source(Box::new(error))), now, now.after(self.drain));
            }
        }
        true
    }

    fn poll_limit(&self) -> PollLimit {
        if self.is_full || !self.phase.takes_records() || self.loads.has_enough_ready(&self.shared.ready_limit) {
            return PollLimit { records: 0, bytes: 0 };
        }
        let records = BATCH.min(self.bounds.records_max.saturating_sub(self.pending));
        let bytes = self.bounds.bytes_taken_max(self.source.buffered_bytes()).saturating_sub(self.pending_bytes);
        PollLimit { records, bytes: bytes.max(1) }
    }

    fn on_event(&mut self, event: SourceEvent, now: MonotonicTime) {
        match event {
            SourceEvent::Records => self.take_records(now),
            // A lane that is assigned during shutdown is ignored, because nothing would release it.
            SourceEvent::Assigned { lane, epoch } if self.phase.takes_records() => self.assign(lane, epoch),
            SourceEvent::Assigned { .. } => {}
            SourceEvent::Revoked { lanes, within } => {
                self.begin_drains(&lanes, now, now.after(within), DrainReason::Revoked);
            }
            SourceEvent::Lost { lanes } => self.on_lost(&lanes),
            SourceEvent::Gap { lane, epoch, through } => self.assignments.skip_gap(lane, epoch, through),
            SourceEvent::CommitFailed { commit, reason } => {
                self.commits_failed += 1;
                self.assignments.on_commit_failed(commit);
                let lane = self.source.lane_name(commit.lane);
                log::commit_failed(&self.shared.policy.subscription, &lane, commit, &reason);
            }
            SourceEvent::Ended => self.phase.on_source_ended(),
        }
    }

    fn assign(&mut self, lane: Lane, epoch: Epoch) {
        if !self.assignments.is_new(lane, epoch) {
            log::assignment_ignored(&self.shared.policy.subscription, &self.source.lane_name(lane), epoch);
            return;
        }
        // The earlier assignment was taken away without waiting for its release.
        if let Some(earlier) = self.assignments.epoch(lane) {
            self.on_lost(&[(lane, earlier)]);
        }
        self.assignments.assign(lane, epoch);
    }

    fn take_records(&mut self, now: MonotonicTime) {
        let mut batch = mem::take(&mut self.batch);
        let shards = self.routed.len() as u64;
        for record in batch.drain(..) {
            let Some(seq) = self.assignments.open_record(&record, now) else { continue };
            self.pending += 1;
            self.pending_bytes += record.size_bytes();
            let hash = self.hash(&record, seq);
            // The upper half of the hash selects the shard, because the shard's table uses the lower bits and a few of
            // the highest.
            let shard = (((hash >> 24) & 0xffff_ffff) * shards) >> 32;
            self.routed[shard as usize].push(Arrival { record, hash, seq });
        }
        self.batch = batch;
        for (shard, arrivals) in self.routed.iter_mut().enumerate().filter(|(_, arrivals)| !arrivals.is_empty()) {
            // The next batch has about the same size.
            let next = Vec::with_capacity(arrivals.len());
            let arrivals = mem::replace(arrivals, next);
            self.loads.on_sent(shard, arrivals.len());
            self.shared.shards[shard].post(|messages| messages.arrivals.push(arrivals));
        }
    }

    fn hash(&self, record: &Record, seq: u32) -> u64 {
        match record.key() {
            None if self.shared.policy.keyless == KeylessOrder::Unordered => {
                // Spread evenly: 2^64 divided by the golden ratio.
                u64::from(seq).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            }
            key => {
                let mut hasher = self.hasher.build_hasher();
                hasher.write_u32(record.lane().0);
                hasher.write(key.unwrap_or_default());
                hasher.finish()
            }
        }
    }

    /// Applies new state to the source: pauses, resumes, releases, commits.
    fn update_source(&mut self, now: MonotonicTime) {
        self.update_fullness();
        let mut flow_changes = mem::take(&mut self.flow_changes);
        self.assignments.flow_changes(&self.bounds, &mut flow_changes);
        for change in flow_changes.drain(..) {
            match change {
                FlowChange::Pause(lane, epoch) => self.source.pause(lane, epoch),
                FlowChange::Resume(lane, epoch) => self.source.resume(lane, epoch),
            }
        }
        self.flow_changes = flow_changes;
        self.release_drained(now);
        self.commit_when_due(now);
        self.log_suppressed(now, false);
    }

    fn update_fullness(&mut self) {
        let records_max = self.bounds.records_max;
        let bytes_max = self.bounds.bytes_taken_max(self.source.buffered_bytes());
        self.is_full = if self.is_full {
            self.pending > low(records_max) || self.pending_bytes > low(bytes_max)
        } else {
            self.pending >= records_max || (self.pending > 0 && self.pending_bytes >= bytes_max)
        };
    }

    fn commit_when_due(&mut self, now: MonotonicTime) {
        match self.commit_at {
            Some(at) if at <= now => {
                self.commit_at = None;
                let commits = self.assignments.commits();
                if !commits.is_empty() {
                    self.source.commit(&commits);
                }
            }
            None if self.assignments.has_commits() => self.commit_at = Some(now.after(self.commit_every)),
            _ => {}
        }
    }

    fn send_to_shards(&self, command: impl Fn() -> ShardCommand) {
        for shard in &self.shared.shards {
            shard.post(|messages| messages.commands.push(command()));
        }
    }

    /// Drains lanes until they are complete, at most until `deadline`.
    fn begin_drains(
        &mut self,
        lanes: &[(Lane, Epoch)],
        now: MonotonicTime,
        deadline: MonotonicTime,
        reason: DrainReason,
    ) {
        let drain =
            LaneDrain::new(now, deadline, reason, self.shared.shards.len()).blocked(self.shared.limiter.is_blocked());
        for (lane, epoch) in lanes.iter().copied() {
            match self.assignments.begin_drain(lane, epoch, drain) {
                Some(DrainRequest::Started) => self.send_to_shards(|| ShardCommand::BeginDrain(lane, epoch)),
                Some(DrainRequest::AlreadyDraining) => {}
                None => self.source.release(lane, epoch, None),
            }
        }
    }

    /// Drops queued records and abandons running handlers of a lane.
    fn abandon(&self, lane: Lane, epoch: Epoch) {
        self.send_to_shards(|| ShardCommand::DropAfter(lane, epoch, None));
        self.send_to_shards(|| ShardCommand::Abandon(lane, epoch));
    }

    fn on_lost(&mut self, lanes: &[(Lane, Epoch)]) {
        for (lane, epoch) in lanes.iter().copied() {
            self.assignments.remove(lane, epoch);
            self.abandon(lane, epoch);
        }
    }

    /// Ready if a timer has fired.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let suppressed = self.skipped.due().into_iter().chain(self.dead_letter_failed.due());
        let due = self
            .commit_at
            .into_iter()
            .chain(self.assignments.drain_due())
            .chain(suppressed)
            .min()
            .unwrap_or(MonotonicTime(u64::MAX));
        if due != self.sleep_until {
            self.sleep.as_mut().reset(self.shared.clock.instant(due));
            self.sleep_until = due;
        }
        if due == MonotonicTime(u64::MAX) { Poll::Pending } else { self.sleep.as_mut().poll(cx) }
    }

    fn write_status(&mut self) {
        let source = &self.source;
        self.shared.metrics.store_intake(IntakeStatus {
            pending: self.pending,
            pending_bytes: self.pending_bytes,
            oldest: self.assignments.oldest(),
            is_full: self.is_full,
            commits_failed: self.commits_failed,
            lanes: self.assignments.status(|lane| source.lane_name(lane)),
        });
    }

    /// Takes no more records and ends once every lane is drained, at most at `deadline`. The first error and the earliest
    /// deadline apply.
    fn begin_shutdown(&mut self, error: Option<RunError>, now: MonotonicTime, deadline: MonotonicTime) {
        self.assignments.shorten_drains(deadline);
        if matches!(self.phase, IntakePhase::Running | IntakePhase::Ended) {
            self.phase = IntakePhase::Draining(error);
            let lanes = self.assignments.active_lanes();
            self.begin_drains(&lanes, now, deadline, DrainReason::Shutdown);
        }
    }

    /// Applies a failure event and logs it.
    fn on_failure_event(&mut self, event: FailureEvent, now: MonotonicTime) {
        let lane = self.source.lane_name(event.lane);
        // If a sink is unavailable, every record fails for the same reason; only a few are logged.
        let is_logged = match event.kind {
            FailureAction::Stop => !self.phase.is_shutdown(),
            FailureAction::Skip => self.skipped.allow(now),
            FailureAction::RetryDeadLetter => self.dead_letter_failed.allow(now),
            FailureAction::HaltLane | FailureAction::ParkKey | FailureAction::ParkDeadLetter => true,
        };
        log::failure(&self.shared.policy.subscription, &lane, &event, is_logged);
        match event.kind {
            FailureAction::HaltLane => self.assignments.halt(event.lane, event.epoch),
            FailureAction::Stop => {
                let error = RunError::Exhausted { lane, position: event.position, failure: event.failure };
                self.begin_shutdown(Some(error), now, now.after(self.drain));
            }
            FailureAction::ParkKey
            | FailureAction::Skip
            | FailureAction::RetryDeadLetter
            | FailureAction::ParkDeadLetter => {}
        }
    }

    /// Logs the number of suppressed messages when the window or the subscription ends.
    fn log_suppressed(&mut self, now: MonotonicTime, is_shutdown: bool) {
        let subscription = &self.shared.policy.subscription;
        if let Some(records) = self.skipped.take_suppressed(now, is_shutdown) {
            log::suppressed(subscription, records, FailureAction::Skip);
        }
        if let Some(records) = self.dead_letter_failed.take_suppressed(now, is_shutdown) {
            log::suppressed(subscription, records, FailureAction::RetryDeadLetter);
        }
    }

    /// Ready once the source is closed.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>, now: MonotonicTime) -> Poll<Result<(), RunError>> {
        if matches!(self.phase, IntakePhase::Ended) && !self.shut_down_when_done(now) {
            return Poll::Pending;
        }
        if let IntakePhase::Draining(error) = &mut self.phase
            && self.assignments.is_empty()
        {
            self.phase = IntakePhase::Closing(error.take());
        }
        let IntakePhase::Closing(error) = &mut self.phase else { return Poll::Pending };
        let Poll::Ready(closed) = self.source.poll_close(cx) else { return Poll::Pending };
        let closed = closed.map_err(|error| RunError::Source(Box::new(error)));
        Poll::Ready(error.take().map_or(closed, Err))
    }

    /// After the end of the source: shuts down once only held records are left. `true` if so.
    fn shut_down_when_done(&mut self, now: MonotonicTime) -> bool {
        let held = self.loads.held_records();
        let is_done = self.pending <= held;
        if is_done {
            self.begin_shutdown((held > 0).then_some(RunError::Unfinished { records: held }), now, now);
            self.update_source(now);
        }
        is_done
    }

    /// Releases lanes that are drained or past their deadline.
    fn release_drained(&mut self, now: MonotonicTime) {
        for (lane, epoch) in self.assignments.take_expired(now) {
            self.send_to_shards(|| ShardCommand::DropAfter(lane, epoch, None));
        }
        while let Some(drained) = self.assignments.take_drained(now) {
            let (lane, epoch) = (drained.lane, drained.epoch);
            if !drained.is_complete {
                self.abandon(lane, epoch);
            }
            match (drained.reason, drained.through) {
                (DrainReason::Revoked, through) => self.source.release(lane, epoch, through),
                (DrainReason::Shutdown, Some(through)) => self.source.commit(&[LaneCommit { lane, epoch, through }]),
                (DrainReason::Shutdown, None) => {}
            }
        }
    }

    /// Ends the shards.
    pub(crate) fn stop_shards(&self) {
        self.send_to_shards(|| ShardCommand::Shutdown);
    }
}
