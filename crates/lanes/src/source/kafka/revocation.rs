//! Lanes that the group wants back: they come to rest, are committed, and only then are given up.
//!
//! A core: it is told what happened and what time it is, and says what is to be done.

use std::mem;
use std::time::{Duration, Instant};

use crate::record::{Epoch, Lane, Position};
use crate::source::Mark;

/// Beyond the time that the subscription was given: it keeps to it, so this is for a subscription that hangs.
const GRACE: Duration = Duration::from_secs(2);
/// How long the last commit of the lanes may take before they are given up without it.
const COMMIT_LIMIT: Duration = Duration::from_secs(5);
/// Between two tries of it.
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Wait,
    Commit(Vec<Mark>),
    /// Everything that could be done was done.
    GiveUp,
}

#[derive(Debug)]
pub(super) struct Revocation {
    lanes: Vec<(Lane, Epoch)>,
    /// Lanes that still run something.
    restless: Vec<(Lane, Epoch)>,
    /// When they are not waited for any more; then, when their commit is not.
    until: Instant,
    phase: Phase,
    /// To be committed, or being committed.
    marks: Vec<Mark>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Resting,
    /// The marks are sent then.
    Sending(Instant),
    Sent,
}

impl Revocation {
    pub(super) fn new(lanes: Vec<(Lane, Epoch)>, within: Duration, now: Instant) -> Self {
        let restless = lanes.clone();
        Self { lanes, restless, until: now + within + GRACE, phase: Phase::Resting, marks: Vec::new() }
    }

    /// A mark of a lane that is on its way out is committed with the others, unless a later one comes. One of any other
    /// lane comes back.
    pub(super) fn want(&mut self, mark: Mark) -> Option<Mark> {
        if !self.lanes.contains(&(mark.lane, mark.epoch)) {
            return Some(mark);
        }
        if self.phase == Phase::Resting {
            self.marks.retain(|earlier| earlier.lane != mark.lane);
            self.marks.push(mark);
        }
        None
    }

    /// A mark that was sent before its lane was on its way out was not committed. It is sent again, unless a later one is.
    /// `false` if the lane is none of ours.
    pub(super) fn want_again(&mut self, mark: Mark, now: Instant) -> bool {
        let is_ours = self.lanes.contains(&(mark.lane, mark.epoch));
        if is_ours && self.marks.iter().all(|other| other.lane != mark.lane) {
            self.marks.push(mark);
            if self.phase != Phase::Resting {
                self.phase = Phase::Sending(now + COMMIT_PAUSE);
            }
        }
        is_ours
    }

    /// A lane has come to rest.
    pub(super) fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        let before = self.restless.len();
        self.restless.retain(|restless| *restless != (lane, epoch));
        if let Some(through) = through
            && self.restless.len() < before
        {
            self.want(Mark { lane, epoch, through });
        }
    }

    /// No lane is waited for any more.
    pub(super) fn hurry(&mut self) {
        self.restless.clear();
    }

    /// The answer to a commit of a mark. `false` if it was not one of ours.
    pub(super) fn committed(&mut self, mark: Mark, is_done: bool, now: Instant) -> bool {
        if !self.marks.contains(&mark) {
            return false;
        }
        if is_done {
            self.marks.retain(|ours| *ours != mark);
        } else {
            self.phase = Phase::Sending(now + COMMIT_PAUSE);
        }
        true
    }

    pub(super) fn step(&mut self, now: Instant) -> Step {
        match self.phase {
            Phase::Resting if !self.restless.is_empty() && now < self.until => Step::Wait,
            Phase::Resting => {
                self.until = now + COMMIT_LIMIT;
                self.phase = Phase::Sending(now);
                self.step(now)
            }
            _ if self.marks.is_empty() || now >= self.until => Step::GiveUp,
            Phase::Sending(at) if at <= now => {
                self.phase = Phase::Sent;
                Step::Commit(self.marks.clone())
            }
            Phase::Sending(_) | Phase::Sent => Step::Wait,
        }
    }

    /// What could not be committed.
    pub(super) fn left_over(&mut self) -> Vec<Mark> {
        mem::take(&mut self.marks)
    }

    /// Lanes that never came to rest.
    pub(super) fn restless(&self) -> &[(Lane, Epoch)] {
        &self.restless
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: [(Lane, Epoch); 2] = [(Lane(0), Epoch(1)), (Lane(1), Epoch(4))];

    fn mark(lane: usize, through: u64) -> Mark {
        Mark { lane: LANES[lane].0, epoch: LANES[lane].1, through: Position(through) }
    }

    fn begun(now: Instant) -> Revocation {
        Revocation::new(LANES.to_vec(), Duration::from_secs(10), now)
    }

    #[test]
    fn all_lanes_rest_are_committed_and_given_up() {
        let now = Instant::now();
        let mut revocation = begun(now);
        revocation.release(Lane(0), Epoch(1), Some(Position(7)));
        revocation.release(Lane(1), Epoch(3), Some(Position(9)));
        assert_eq!(revocation.step(now), Step::Wait, "the other one was of an epoch that is over");
        revocation.release(Lane(1), Epoch(4), None);
        assert_eq!(revocation.step(now), Step::Commit(vec![mark(0, 7)]));
        assert_eq!(revocation.step(now), Step::Wait);
        assert!(!revocation.committed(mark(0, 6), true, now), "an earlier commit");
        assert!(revocation.committed(mark(0, 7), true, now));
        assert_eq!(revocation.step(now), Step::GiveUp);
    }

    #[test]
    fn nobody_is_waited_for_without_end() {
        let now = Instant::now();
        let mut revocation = begun(now);
        revocation.release(Lane(0), Epoch(1), Some(Position(7)));
        let late = now + Duration::from_secs(12);
        assert_eq!(revocation.step(late - Duration::from_millis(1)), Step::Wait);
        assert_eq!(revocation.step(late), Step::Commit(vec![mark(0, 7)]));
        assert_eq!(revocation.step(late + COMMIT_LIMIT), Step::GiveUp);
        assert_eq!((revocation.left_over(), revocation.restless()), (vec![mark(0, 7)], &LANES[1..]));
    }

    #[test]
    fn a_commit_that_fails_is_tried_again_after_a_pause() {
        let now = Instant::now();
        let mut revocation = begun(now);
        revocation.release(Lane(0), Epoch(1), Some(Position(7)));
        revocation.hurry();
        assert_eq!(revocation.step(now), Step::Commit(vec![mark(0, 7)]));
        assert!(revocation.committed(mark(0, 7), false, now));
        assert_eq!(revocation.step(now), Step::Wait);
        assert_eq!(revocation.step(now + COMMIT_PAUSE), Step::Commit(vec![mark(0, 7)]));
    }

    #[test]
    fn what_was_wanted_before_a_lane_left_is_committed_with_it() {
        let now = Instant::now();
        let mut revocation = begun(now);
        let foreign = Mark { lane: Lane(7), epoch: Epoch(1), through: Position(1) };
        assert_eq!(revocation.want(foreign), Some(foreign));
        assert_eq!((revocation.want(mark(0, 3)), revocation.want(mark(1, 5))), (None, None));
        revocation.release(Lane(0), Epoch(1), Some(Position(4)));
        revocation.release(Lane(1), Epoch(4), None);
        assert_eq!(revocation.step(now), Step::Commit(vec![mark(1, 5), mark(0, 4)]));
    }

    #[test]
    fn what_was_on_its_way_as_a_lane_left_and_failed_is_sent_again_unless_more_is() {
        let now = Instant::now();
        let mut revocation = begun(now);
        assert_eq!(revocation.want(mark(0, 5)), None);
        assert!(revocation.want_again(mark(0, 3), now) && revocation.want_again(mark(1, 2), now));
        assert!(!revocation.want_again(Mark { epoch: Epoch(9), ..mark(0, 3) }, now), "of an assignment that is over");
        revocation.hurry();
        assert_eq!(revocation.step(now), Step::Commit(vec![mark(0, 5), mark(1, 2)]));
        assert!(revocation.committed(mark(1, 2), true, now) && revocation.committed(mark(0, 5), true, now));
        assert!(revocation.want_again(mark(1, 3), now));
        assert_eq!(revocation.step(now + COMMIT_PAUSE), Step::Commit(vec![mark(1, 3)]));
    }

    #[test]
    fn lanes_that_did_nothing_are_given_up_at_once() {
        let now = Instant::now();
        let mut revocation = begun(now);
        LANES.iter().for_each(|(lane, epoch)| revocation.release(*lane, *epoch, None));
        assert_eq!(revocation.step(now), Step::GiveUp);
    }
}
