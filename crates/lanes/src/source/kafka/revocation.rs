//! Revokes lanes: waits until they drain, commits them, then lets the group take them.
//!
//! A pure core; its inputs are events and the time, its output is the next step.

use std::mem;
use std::time::{Duration, Instant};

use crate::record::{Epoch, Lane, Position};
use crate::source::interface::LaneCommit;

/// Extra time for a subscription that does not release lanes by its deadline.
const GRACE: Duration = Duration::from_secs(2);
/// How long the last commit may take before the lanes are given up without it.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay between two attempts of the last commit.
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

/// The next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RevocationStep {
    Wait,
    Commit(Vec<LaneCommit>),
    /// Acknowledge the revocation.
    GiveUp,
}

#[derive(Debug)]
pub(super) struct Revocation {
    lanes: Vec<(Lane, Epoch)>,
    /// Lanes that have not drained.
    undrained: Vec<(Lane, Epoch)>,
    /// The deadline of the drain, then of the last commit.
    until: Instant,
    phase: Phase,
    /// Commits to send, or in flight.
    commits: Vec<LaneCommit>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Draining,
    /// The commits are sent at this time.
    Sending(Instant),
    Sent,
}

impl Revocation {
    pub(super) fn new(lanes: Vec<(Lane, Epoch)>, within: Duration, now: Instant) -> Self {
        let undrained = lanes.clone();
        Self { lanes, undrained, until: now + within + GRACE, phase: Phase::Draining, commits: Vec::new() }
    }

    /// Adds a commit of a revoked lane, which replaces an earlier one. Returns a commit of any other lane.
    pub(super) fn add_commit(&mut self, commit: LaneCommit) -> Option<LaneCommit> {
        if !self.lanes.contains(&(commit.lane, commit.epoch)) {
            return Some(commit);
        }
        if self.phase == Phase::Draining {
            self.commits.retain(|earlier| earlier.lane != commit.lane);
            self.commits.push(commit);
        }
        None
    }

    /// Adds a failed commit that was sent before the revocation, unless there is a later one. `false` if the lane is not
    /// revoked.
    pub(super) fn retry_commit(&mut self, commit: LaneCommit, now: Instant) -> bool {
        let is_ours = self.lanes.contains(&(commit.lane, commit.epoch));
        if is_ours && self.commits.iter().all(|other| other.lane != commit.lane) {
            self.commits.push(commit);
            if self.phase != Phase::Draining {
                self.phase = Phase::Sending(now + COMMIT_PAUSE);
            }
        }
        is_ours
    }

    /// The lane has drained.
    pub(super) fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        let before = self.undrained.len();
        self.undrained.retain(|undrained| *undrained != (lane, epoch));
        if let Some(through) = through
            && self.undrained.len() < before
        {
            self.add_commit(LaneCommit { lane, epoch, through });
        }
    }

    /// Stops waiting for lanes to drain.
    pub(super) fn stop_waiting(&mut self) {
        self.undrained.clear();
    }

    /// Handles the result of a commit. `false` if it does not belong to this revocation.
    pub(super) fn committed(&mut self, commit: LaneCommit, is_done: bool, now: Instant) -> bool {
        if !self.commits.contains(&commit) {
            return false;
        }
        if is_done {
            self.commits.retain(|ours| *ours != commit);
        } else {
            self.phase = Phase::Sending(now + COMMIT_PAUSE);
        }
        true
    }

    pub(super) fn step(&mut self, now: Instant) -> RevocationStep {
        match self.phase {
            Phase::Draining if !self.undrained.is_empty() && now < self.until => RevocationStep::Wait,
            Phase::Draining => {
                self.until = now + COMMIT_TIMEOUT;
                self.phase = Phase::Sending(now);
                self.step(now)
            }
            _ if self.commits.is_empty() || now >= self.until => RevocationStep::GiveUp,
            Phase::Sending(at) if at <= now => {
                self.phase = Phase::Sent;
                RevocationStep::Commit(self.commits.clone())
            }
            Phase::Sending(_) | Phase::Sent => RevocationStep::Wait,
        }
    }

    /// Commits that did not succeed.
    pub(super) fn take_uncommitted(&mut self) -> Vec<LaneCommit> {
        mem::take(&mut self.commits)
    }

    /// Lanes that have not drained.
    pub(super) fn undrained(&self) -> &[(Lane, Epoch)] {
        &self.undrained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: [(Lane, Epoch); 2] = [(Lane(0), Epoch(1)), (Lane(1), Epoch(4))];

    fn commit(lane: usize, through: u64) -> LaneCommit {
        LaneCommit { lane: LANES[lane].0, epoch: LANES[lane].1, through: Position(through) }
    }

    fn begun(now: Instant) -> Revocation {
        Revocation::new(LANES.to_vec(), Duration::from_secs(10), now)
    }

    #[test]
    fn lanes_drain_commit_and_are_given_up() {
        let now = Instant::now();
        let mut revocation = begun(now);
        revocation.release(Lane(0), Epoch(1), Some(Position(7)));
        revocation.release(Lane(1), Epoch(3), Some(Position(9)));
        assert_eq!(revocation.step(now), RevocationStep::Wait, "release of an ended epoch");
        revocation.release(Lane(1), Epoch(4), None);
        assert_eq!(revocation.step(now), RevocationStep::Commit(vec![commit(0, 7)]));
        assert_eq!(revocation.step(now), RevocationStep::Wait);
        assert!(!revocation.committed(commit(0, 6), true, now), "commit sent before the revocation");
        assert!(revocation.committed(commit(0, 7), true, now));
        assert_eq!(revocation.step(now), RevocationStep::GiveUp);
    }

    #[test]
    fn drain_and_commit_have_deadlines() {
        let now = Instant::now();
        let mut revocation = begun(now);
        revocation.release(Lane(0), Epoch(1), Some(Position(7)));
        let late = now + Duration::from_secs(12);
        assert_eq!(revocation.step(late - Duration::from_millis(1)), RevocationStep::Wait);
        assert_eq!(revocation.step(late), RevocationStep::Commit(vec![commit(0, 7)]));
        assert_eq!(revocation.step(late + COMMIT_TIMEOUT), RevocationStep::GiveUp);
        assert_eq!((revocation.take_uncommitted(), revocation.undrained()), (vec![commit(0, 7)], &LANES[1..]));
    }

    #[test]
    fn failed_commit_is_retried_after_a_delay() {
        let now = Instant::now();
        let mut revocation = begun(now);
        revocation.release(Lane(0), Epoch(1), Some(Position(7)));
        revocation.stop_waiting();
        assert_eq!(revocation.step(now), RevocationStep::Commit(vec![commit(0, 7)]));
        assert!(revocation.committed(commit(0, 7), false, now));
        assert_eq!(revocation.step(now), RevocationStep::Wait);
        assert_eq!(revocation.step(now + COMMIT_PAUSE), RevocationStep::Commit(vec![commit(0, 7)]));
    }

    #[test]
    fn earlier_commits_of_the_lanes_are_included() {
        let now = Instant::now();
        let mut revocation = begun(now);
        let foreign = LaneCommit { lane: Lane(7), epoch: Epoch(1), through: Position(1) };
        assert_eq!(revocation.add_commit(foreign), Some(foreign));
        assert_eq!((revocation.add_commit(commit(0, 3)), revocation.add_commit(commit(1, 5))), (None, None));
        revocation.release(Lane(0), Epoch(1), Some(Position(4)));
        revocation.release(Lane(1), Epoch(4), None);
        assert_eq!(revocation.step(now), RevocationStep::Commit(vec![commit(1, 5), commit(0, 4)]));
    }

    #[test]
    fn failed_commit_in_flight_is_retried() {
        let now = Instant::now();
        let mut revocation = begun(now);
        assert_eq!(revocation.add_commit(commit(0, 5)), None);
        assert!(revocation.retry_commit(commit(0, 3), now) && revocation.retry_commit(commit(1, 2), now));
        assert!(!revocation.retry_commit(LaneCommit { epoch: Epoch(9), ..commit(0, 3) }, now), "ended assignment");
        revocation.stop_waiting();
        assert_eq!(revocation.step(now), RevocationStep::Commit(vec![commit(0, 5), commit(1, 2)]));
        assert!(revocation.committed(commit(1, 2), true, now) && revocation.committed(commit(0, 5), true, now));
        assert!(revocation.retry_commit(commit(1, 3), now));
        assert_eq!(revocation.step(now + COMMIT_PAUSE), RevocationStep::Commit(vec![commit(1, 3)]));
    }

    #[test]
    fn lanes_without_progress_are_given_up_immediately() {
        let now = Instant::now();
        let mut revocation = begun(now);
        LANES.iter().for_each(|(lane, epoch)| revocation.release(*lane, *epoch, None));
        assert_eq!(revocation.step(now), RevocationStep::GiveUp);
    }
}
