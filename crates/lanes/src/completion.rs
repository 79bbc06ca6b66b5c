//! The obligation to end an attempt, as a move-only value.

use std::fmt;
use std::thread;

use crate::failure::{FailureCause, RecordFailure};
use crate::mailbox::ShardMailbox;
use crate::messages::{ExecutionId, HandlerOutcome, OutcomeSender, ShardMessages};
use crate::panic;

/// The obligation to end the attempt of a record or a batch.
///
/// A completion ends in one of three ways: [`finish`](Self::finish), [`fail`](Self::fail), or drop, which counts as a
/// failure. The key of the record stays blocked until then. The completion may be moved to another task or thread and
/// ended long after the handler has returned. It has no effect after the deadline or after the lane was revoked.
#[must_use = "a completion that is dropped is a failure"]
pub struct Completion {
    /// `None` once the outcome is sent.
    sender: Option<OutcomeSender>,
}

impl Completion {
    pub(crate) fn new(mailbox: ShardMailbox<ShardMessages>, id: ExecutionId) -> Self {
        Self { sender: Some(OutcomeSender { mailbox, id }) }
    }

    /// Finishes the record.
    pub fn finish(self) {
        self.end(HandlerOutcome::Done);
    }

    /// Fails the attempt.
    pub fn fail(self, failure: RecordFailure) {
        self.end(HandlerOutcome::Failed(Box::new(failure)));
    }

    /// Lets the next record of the key start before this one is finished. This record still holds back commits. If it
    /// fails, it is retried concurrently with later records of the key. Further calls have no effect.
    pub fn release_key(&self) {
        if let Some(sender) = &self.sender {
            sender.send(HandlerOutcome::KeyReleased);
        }
    }

    fn end(mut self, outcome: HandlerOutcome) {
        if let Some(sender) = self.sender.take() {
            sender.send(outcome);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some(sender) = self.sender.take() else { return };
        let sender = if thread::panicking() { panic::defer(sender) } else { Some(sender) };
        if let Some(sender) = sender {
            let cause = if thread::panicking() { FailureCause::Panic } else { FailureCause::Dropped };
            sender.send(HandlerOutcome::Failed(Box::new(RecordFailure::of(cause, "completion dropped"))));
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Completion").field(&self.sender.as_ref().map(|sender| sender.id)).finish()
    }
}
