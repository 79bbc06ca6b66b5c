//! Queues commits: at most one is in flight, a later commit of a lane replaces an earlier one, and a failure delays the
//! next.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::error::KafkaSourceError;
use crate::record::Lane;
use crate::source::interface::LaneCommit;

/// The delay after a failed commit.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct CommitQueue {
    queued: Vec<LaneCommit>,
    /// Commits sent and not answered.
    in_flight: usize,
    last_failure: Option<String>,
    /// Earliest time of the next commit request.
    pause_until: Option<Instant>,
    /// A commit was abandoned that will not be requested again.
    has_abandoned: bool,
}

impl CommitQueue {
    pub(super) fn push(&mut self, commits: impl IntoIterator<Item = LaneCommit>) {
        for commit in commits {
            match self.queued.iter_mut().find(|earlier| earlier.lane == commit.lane) {
                Some(earlier) if (earlier.epoch, earlier.through) > (commit.epoch, commit.through) => {}
                Some(earlier) => *earlier = commit,
                None => self.queued.push(commit),
            }
        }
    }

    /// Removes and returns the queued commit of the lane.
    pub(super) fn remove(&mut self, lane: Lane) -> Option<LaneCommit> {
        let at = self.queued.iter().position(|commit| commit.lane == lane)?;
        Some(self.queued.swap_remove(at))
    }

    /// The commits to send now: none while one is in flight or during the delay after a failure.
    pub(super) fn take(&mut self, now: Instant) -> Vec<LaneCommit> {
        let has_to_wait = self.in_flight > 0 || self.pause_until.is_some_and(|until| now < until);
        if has_to_wait { Vec::new() } else { std::mem::take(&mut self.queued) }
    }

    pub(super) fn on_sent(&mut self) {
        self.in_flight += 1;
    }

    pub(super) fn on_answered(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(super) fn on_failed(&mut self, error: &KafkaError, now: Instant) {
        self.last_failure = Some(error.to_string());
        self.pause_until = Some(now + PAUSE);
    }

    /// Notes that a commit is abandoned. The reason is kept unless a commit failed before.
    pub(super) fn abandon(&mut self, reason: &str) {
        self.has_abandoned = true;
        self.last_failure.get_or_insert_with(|| reason.to_owned());
    }

    /// Whether nothing is queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.in_flight == 0
    }

    /// Whether all requested commits succeeded.
    pub(super) fn result(&self) -> Result<(), KafkaSourceError> {
        if self.is_idle() && !self.has_abandoned {
            return Ok(());
        }
        let reason = self.last_failure.clone();
        Err(KafkaSourceError::NotCommitted(reason.unwrap_or_else(|| "the broker did not answer in time".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::error::RDKafkaErrorCode;

    use super::*;
    use crate::record::{Epoch, Position};

    fn commit(lane: u32, through: u64) -> LaneCommit {
        LaneCommit { lane: Lane(lane), epoch: Epoch(1), through: Position(through) }
    }

    #[test]
    fn latest_commits_are_sent_after_the_answer() {
        let (mut queue, now) = (CommitQueue::default(), Instant::now());
        queue.push([commit(0, 1)]);
        assert_eq!(queue.take(now), [commit(0, 1)]);
        queue.on_sent();
        queue.push([commit(0, 2), commit(1, 1)]);
        queue.push([commit(0, 5)]);
        assert_eq!(queue.take(now), []);
        queue.on_answered();
        queue.push([commit(0, 4)]);
        assert_eq!(queue.take(now), [commit(0, 5), commit(1, 1)]);
    }

    #[test]
    fn failed_commit_delays_the_next_one() {
        let (mut queue, now) = (CommitQueue::default(), Instant::now());
        queue.push([commit(0, 1)]);
        queue.on_failed(&KafkaError::ConsumerCommit(RDKafkaErrorCode::NotCoordinator), now);
        assert_eq!(queue.take(now), []);
        assert_eq!(queue.take(now + PAUSE), [commit(0, 1)]);
    }

    #[test]
    fn last_failure_is_the_reason_of_the_error() {
        let mut queue = CommitQueue::default();
        assert!(queue.result().is_ok());
        queue.push([commit(0, 1)]);
        queue.on_failed(&KafkaError::ConsumerCommit(RDKafkaErrorCode::RequestTimedOut), Instant::now());
        assert!(matches!(queue.result(), Err(KafkaSourceError::NotCommitted(reason)) if reason.contains("timed out")));
        assert_eq!(queue.remove(Lane(0)), Some(commit(0, 1)));
        assert!(queue.result().is_ok());
        queue.abandon("lane revoked");
        assert!(queue.result().is_err(), "last commit of the lane was abandoned");
    }
}
