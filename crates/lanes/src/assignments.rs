//! The assigned lanes and their progress.
//!
//! A pure core: its inputs are assignments, records and outcomes; its outputs are the lanes to pause, commit and release.

use std::collections::{BTreeMap, VecDeque};

use crate::bounds::{Bounds, low};
use crate::frontier::{Frontier, is_later};
use crate::messages::{LastStarted, RecordReport};
use crate::monotonic_time::MonotonicTime;
use crate::record::{Epoch, Lane, Position, Record};
use crate::source::LaneCommit;

/// An assignment of a lane.
#[derive(Debug)]
pub(crate) struct LaneAssignment {
    pub(crate) epoch: Epoch,
    frontier: Frontier,
    /// Unfinished records that the shards hold.
    open: usize,
    /// The highest finished sequence number.
    done: Option<u32>,
    /// Arrival times, each with the first sequence number that it applies to.
    arrivals: VecDeque<(u32, MonotonicTime)>,
    committed: Option<Position>,
    flow: Flow,
    drain: Option<LaneDrain>,
    is_halted: bool,
}

/// The drain of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneDrain {
    since: MonotonicTime,
    /// The deadline.
    by: MonotonicTime,
    reason: DrainReason,
    phase: DrainPhase,
    /// The limiter lets nothing start.
    is_blocked: bool,
}

/// How far queued records may still start: only those that precede a started record, while there is time.
#[derive(Clone, Copy, Debug)]
enum DrainPhase {
    /// Waits for this many shards to report their last started record; the highest so far.
    Collecting { shards: usize, last: Option<u32> },
    /// The shards know up to which record they may start.
    Bounded,
    /// The shards have dropped all queued records.
    Dropped,
}

impl LaneDrain {
    /// A drain that still has to collect reports of all `shards`.
    pub(crate) fn new(since: MonotonicTime, by: MonotonicTime, reason: DrainReason, shards: usize) -> Self {
        Self { since, by, reason, phase: DrainPhase::Collecting { shards, last: None }, is_blocked: false }
    }

    /// A blocked limiter makes it useless to wait for queued records.
    pub(crate) fn blocked(self, is_blocked: bool) -> Self {
        Self { is_blocked, ..self }
    }

    /// When queued records are dropped, so that running handlers have half of the time.
    fn drop_at(&self) -> MonotonicTime {
        if self.is_blocked { self.since } else { self.since.after(self.by.since(self.since) / 2) }
    }

    /// When the next step is due.
    fn due(&self) -> MonotonicTime {
        if matches!(self.phase, DrainPhase::Dropped) { self.by } else { self.drop_at().min(self.by) }
    }
}

/// Whether the drain was new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DrainRequest {
    Started,
    AlreadyDraining,
}

/// Why a lane drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DrainReason {
    Revoked,
    Shutdown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    Open,
    Paused,
}

/// A change of a lane's flow, for the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlowChange {
    Pause(Lane, Epoch),
    Resume(Lane, Epoch),
}

/// The status of a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LaneStatus {
    /// The lane.
    pub lane: Lane,
    /// The name that the source gives the lane.
    pub name: String,
    /// The epoch of the assignment.
    pub epoch: Epoch,
    /// Records taken and not finished.
    pub pending: usize,
    /// Records from the first unfinished one to the last one taken.
    pub span: usize,
    /// The last position such that it and all positions before it are finished.
    pub done_through: Option<Position>,
    /// The last position sent to the source for commit.
    pub committed: Option<Position>,
    /// No records are taken because a bound is reached or the lane is halted.
    pub is_paused: bool,
    /// No records start because a record failed with [`ExhaustedAction::HaltLane`](crate::ExhaustedAction::HaltLane).
    pub is_halted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Assignments {
    lanes: BTreeMap<Lane, LaneAssignment>,
    /// The epoch of the last assignment of each lane, over or not.
    epochs: BTreeMap<Lane, Epoch>,
}

impl Assignments {
    /// Whether the epoch is greater than at any earlier assignment of the lane. With an equal one, reports of the earlier
    /// assignment would finish records of the new one.
    pub(crate) fn is_new(&self, lane: Lane, epoch: Epoch) -> bool {
        self.epochs.get(&lane).is_none_or(|last| epoch > *last)
    }

    pub(crate) fn assign(&mut self, lane: Lane, epoch: Epoch) {
        self.epochs.insert(lane, epoch);
        let assignment = LaneAssignment {
            epoch,
            frontier: Frontier::new(),
            open: 0,
            done: None,
            arrivals: VecDeque::new(),
            committed: None,
            flow: Flow::Open,
            drain: None,
            is_halted: false,
        };
        self.lanes.insert(lane, assignment);
    }

    /// The epoch of the lane's assignment.
    pub(crate) fn epoch(&self, lane: Lane) -> Option<Epoch> {
        self.lanes.get(&lane).map(|assignment| assignment.epoch)
    }

    fn of(&mut self, lane: Lane, epoch: Epoch) -> Option<&mut LaneAssignment> {
        self.lanes.get_mut(&lane).filter(|assignment| assignment.epoch == epoch)
    }

    /// Admits a record and returns its sequence number; `None` if its assignment is over or drains.
    pub(crate) fn open_record(&mut self, record: &Record, now: MonotonicTime) -> Option<u32> {
        let assignment = self.of(record.lane(), record.epoch()).filter(|assignment| assignment.drain.is_none())?;
        let seq = assignment.frontier.open(record.position());
        assignment.open += 1;
        if assignment.arrivals.back().is_none_or(|(_, at)| *at < now) {
            assignment.arrivals.push_back((seq, now));
        }
        Some(seq)
    }

    pub(crate) fn skip_gap(&mut self, lane: Lane, epoch: Epoch, through: Position) {
        let assignment = self.of(lane, epoch).filter(|assignment| assignment.drain.is_none());
        assignment.into_iter().for_each(|assignment| assignment.frontier.skip_to(through));
    }

    /// Applies the report of a record; ignored if its assignment is over.
    pub(crate) fn report(&mut self, report: &RecordReport) {
        let Some(assignment) = self.of(report.lane, report.epoch) else { return };
        assignment.open -= 1;
        if report.is_done {
            assignment.frontier.close(report.seq);
            assignment.done = Some(latest(assignment.done, report.seq));
        }
    }

    /// Collects lanes that crossed a bound, and marks them as paused or resumed.
    pub(crate) fn flow_changes(&mut self, bounds: &Bounds, flow_changes: &mut Vec<FlowChange>) {
        for (lane, assignment) in &mut self.lanes {
            let (open, span) = (assignment.open, assignment.frontier.span());
            let is_full = open >= bounds.lane_records_max || span >= bounds.lane_span_max;
            let is_low = open <= low(bounds.lane_records_max) && span <= low(bounds.lane_span_max);
            match assignment.flow {
                Flow::Open if is_full || assignment.is_halted => {
                    assignment.flow = Flow::Paused;
                    flow_changes.push(FlowChange::Pause(*lane, assignment.epoch));
                }
                Flow::Paused if is_low && !assignment.is_halted && assignment.drain.is_none() => {
                    assignment.flow = Flow::Open;
                    flow_changes.push(FlowChange::Resume(*lane, assignment.epoch));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn halt(&mut self, lane: Lane, epoch: Epoch) {
        self.of(lane, epoch).into_iter().for_each(|assignment| assignment.is_halted = true);
    }

    /// Takes the commits of lanes that progressed since the last call, or whose commit failed.
    pub(crate) fn commits(&mut self) -> Vec<LaneCommit> {
        let mut commits = Vec::new();
        for (lane, assignment) in self.lanes.iter_mut() {
            let through = assignment.frontier.through();
            if through > assignment.committed {
                assignment.committed = through;
                commits.extend(through.map(|through| LaneCommit { lane: *lane, epoch: assignment.epoch, through }));
            }
        }
        commits
    }

    pub(crate) fn has_commits(&self) -> bool {
        self.lanes.values().any(|assignment| assignment.frontier.through() > assignment.committed)
    }

    /// The commit failed and will be among the [`commits`](Self::commits) again.
    pub(crate) fn on_commit_failed(&mut self, commit: LaneCommit) {
        let assignment = self.of(commit.lane, commit.epoch);
        assignment.into_iter().for_each(|assignment| assignment.committed = None);
    }

    /// Starts to drain the lane; a second drain keeps the earlier deadline. `None` if the lane is not assigned.
    pub(crate) fn begin_drain(&mut self, lane: Lane, epoch: Epoch, new: LaneDrain) -> Option<DrainRequest> {
        let drain = &mut self.of(lane, epoch)?.drain;
        let Some(drain) = drain else {
            *drain = Some(new);
            return Some(DrainRequest::Started);
        };
        (drain.by, drain.reason) = (drain.by.min(new.by), new.reason);
        Some(DrainRequest::AlreadyDraining)
    }

    /// Applies the report of a shard. Once all shards have reported, returns the last started sequence number of the
    /// lane, if any.
    pub(crate) fn on_last_started(&mut self, last_started: LastStarted) -> Option<Option<u32>> {
        let assignment = self.of(last_started.lane, last_started.epoch)?;
        let DrainPhase::Collecting { shards, last } = &mut assignment.drain.as_mut()?.phase else { return None };
        *shards -= 1;
        *last = last_started.last.map(|seq| latest(*last, seq)).or(*last);
        if *shards > 0 {
            return None;
        }
        // A halted lane commits nothing beyond the record that halted it.
        let last = last.filter(|_| !assignment.is_halted);
        let last = assignment.done.filter(|_| !assignment.is_halted).map(|seq| latest(last, seq)).or(last);
        assignment.drain.as_mut()?.phase = DrainPhase::Bounded;
        Some(last)
    }

    /// Draining lanes whose time for queued records is over, each once.
    pub(crate) fn take_expired(&mut self, now: MonotonicTime) -> Vec<(Lane, Epoch)> {
        let mut expired = Vec::new();
        for (lane, assignment) in &mut self.lanes {
            let Some(drain) = &mut assignment.drain else { continue };
            if !matches!(drain.phase, DrainPhase::Dropped) && drain.drop_at() <= now {
                drain.phase = DrainPhase::Dropped;
                expired.push((*lane, assignment.epoch));
            }
        }
        expired
    }

    /// Moves the deadline of all draining lanes to `by`, if it is earlier.
    pub(crate) fn shorten_drains(&mut self, by: MonotonicTime) {
        let drain = self.lanes.values_mut().filter_map(|assignment| assignment.drain.as_mut());
        drain.for_each(|drain| drain.by = drain.by.min(by));
    }

    pub(crate) fn remove(&mut self, lane: Lane, epoch: Epoch) {
        if self.of(lane, epoch).is_some() {
            self.lanes.remove(&lane);
        }
    }

    /// Removes a draining lane that is complete or past its deadline.
    pub(crate) fn take_drained(&mut self, now: MonotonicTime) -> Option<DrainedLane> {
        let has_left = |(lane, assignment): (&Lane, &LaneAssignment)| {
            let drain = assignment.drain?;
            (assignment.open == 0 || drain.by <= now).then_some((*lane, drain.reason))
        };
        let (lane, reason) = self.lanes.iter().find_map(has_left)?;
        let assignment = self.lanes.remove(&lane)?;
        let through = assignment.frontier.through();
        Some(DrainedLane { lane, epoch: assignment.epoch, through, is_complete: assignment.open == 0, reason })
    }

    /// When the next draining lane runs out of time, for queued records or for running handlers.
    pub(crate) fn drain_due(&self) -> Option<MonotonicTime> {
        self.lanes.values().filter_map(|assignment| assignment.drain).map(|drain| drain.due()).min()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Lanes that do not drain.
    pub(crate) fn active_lanes(&self) -> Vec<(Lane, Epoch)> {
        let stays = |(_, assignment): &(&Lane, &LaneAssignment)| assignment.drain.is_none();
        self.lanes.iter().filter(stays).map(|(lane, assignment)| (*lane, assignment.epoch)).collect()
    }

    /// The arrival time of the oldest unfinished record.
    pub(crate) fn oldest(&mut self) -> Option<MonotonicTime> {
        self.lanes.values_mut().filter_map(LaneAssignment::oldest).min()
    }

    pub(crate) fn status(&self, name: impl Fn(Lane) -> String) -> Vec<LaneStatus> {
        let status = |(lane, assignment): (&Lane, &LaneAssignment)| LaneStatus {
            lane: *lane,
            name: name(*lane),
            epoch: assignment.epoch,
            pending: assignment.open,
            span: assignment.frontier.span(),
            done_through: assignment.frontier.through(),
            committed: assignment.committed,
            is_paused: assignment.flow == Flow::Paused,
            is_halted: assignment.is_halted,
        };
        self.lanes.iter().map(status).collect()
    }
}

/// A lane that can be released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DrainedLane {
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) through: Option<Position>,
    pub(crate) is_complete: bool,
    pub(crate) reason: DrainReason,
}

/// The later of two sequence numbers.
fn latest(known: Option<u32>, seq: u32) -> u32 {
    known.filter(|known| is_later(*known, seq)).unwrap_or(seq)
}

impl LaneAssignment {
    fn oldest(&mut self) -> Option<MonotonicTime> {
        let head = self.frontier.head_seq();
        // The batch that contains the head is the last with a start at or before it.
        while self.arrivals.get(1).is_some_and(|(seq, _)| head.wrapping_sub(*seq) as i32 >= 0) {
            self.arrivals.pop_front();
        }
        if self.frontier.open_count() == 0 {
            self.arrivals.clear();
        }
        self.arrivals.front().map(|(_, at)| *at)
    }
}
