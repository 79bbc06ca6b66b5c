//! One commit at a time: what is wanted meanwhile waits, and the later mark of a lane replaces the earlier one. After one
//! that failed there is a pause.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::Error;
use crate::record::Lane;
use crate::source::Mark;

/// After a commit that failed.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Commits {
    wanted: Vec<Mark>,
    /// Commits that were not answered yet.
    open: usize,
    last_failure: Option<String>,
    /// Nothing is sent before.
    pause_until: Option<Instant>,
    /// Something was given up that nobody will wish again.
    has_given_up: bool,
}

impl Commits {
    pub(super) fn want(&mut self, marks: impl IntoIterator<Item = Mark>) {
        for mark in marks {
            match self.wanted.iter_mut().find(|earlier| earlier.lane == mark.lane) {
                Some(earlier) if (earlier.epoch, earlier.through) > (mark.epoch, mark.through) => {}
                Some(earlier) => *earlier = mark,
                None => self.wanted.push(mark),
            }
        }
    }

    /// Marks of the lane are not sent any more. What was wanted of it.
    pub(super) fn forget(&mut self, lane: Lane) -> Option<Mark> {
        let at = self.wanted.iter().position(|mark| mark.lane == lane)?;
        Some(self.wanted.swap_remove(at))
    }

    /// What is to be sent now: nothing while an answer is awaited, or soon after one that was bad.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Mark> {
        let has_to_wait = self.open > 0 || self.pause_until.is_some_and(|until| now < until);
        if has_to_wait { Vec::new() } else { std::mem::take(&mut self.wanted) }
    }

    pub(super) fn sent(&mut self) {
        self.open += 1;
    }

    pub(super) fn answered(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    pub(super) fn failed(&mut self, error: &KafkaError, now: Instant) {
        self.last_failure = Some(error.to_string());
        self.pause_until = Some(now + PAUSE);
    }

    /// A mark is given up for good, for this reason unless a commit has failed for another one.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.has_given_up = true;
        self.last_failure.get_or_insert_with(|| reason.to_owned());
    }

    /// Nothing is wanted, nothing under way.
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.open == 0
    }

    /// Was everything committed that was wanted?
    pub(super) fn result(&self) -> Result<(), Error> {
        if self.is_idle() && !self.has_given_up {
            return Ok(());
        }
        let reason = self.last_failure.clone();
        Err(Error::NotCommitted(reason.unwrap_or_else(|| "the broker did not answer in time".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::error::RDKafkaErrorCode;

    use super::*;
    use crate::record::{Epoch, Position};

    fn mark(lane: u32, through: u64) -> Mark {
        Mark { lane: Lane(lane), epoch: Epoch(1), through: Position(through) }
    }

    #[test]
    fn the_latest_marks_are_sent_when_the_last_commit_is_answered() {
        let (mut commits, now) = (Commits::default(), Instant::now());
        commits.want([mark(0, 1)]);
        assert_eq!(commits.take(now), [mark(0, 1)]);
        commits.sent();
        commits.want([mark(0, 2), mark(1, 1)]);
        commits.want([mark(0, 5)]);
        assert_eq!(commits.take(now), []);
        commits.answered();
        commits.want([mark(0, 4)]);
        assert_eq!(commits.take(now), [mark(0, 5), mark(1, 1)]);
    }

    #[test]
    fn after_a_commit_that_failed_the_broker_has_a_rest() {
        let (mut commits, now) = (Commits::default(), Instant::now());
        commits.want([mark(0, 1)]);
        commits.failed(&KafkaError::ConsumerCommit(RDKafkaErrorCode::NotCoordinator), now);
        assert_eq!(commits.take(now), []);
        assert_eq!(commits.take(now + PAUSE), [mark(0, 1)]);
    }

    #[test]
    fn the_last_failure_is_the_reason_for_what_is_left() {
        let mut commits = Commits::default();
        assert!(commits.result().is_ok());
        commits.want([mark(0, 1)]);
        commits.failed(&KafkaError::ConsumerCommit(RDKafkaErrorCode::RequestTimedOut), Instant::now());
        assert!(matches!(commits.result(), Err(Error::NotCommitted(reason)) if reason.contains("timed out")));
        assert_eq!(commits.forget(Lane(0)), Some(mark(0, 1)));
        assert!(commits.result().is_ok());
        commits.give_up("its lane is gone");
        assert!(commits.result().is_err(), "what a lane left with was not committed");
    }
}
