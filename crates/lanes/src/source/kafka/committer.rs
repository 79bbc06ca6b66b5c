//! The thread that commits.
//!
//! The client can commit without waiting, but then this version of its Rust wrapper does not say what came of it. So a
//! thread of its own waits for the broker, and the member's thread goes on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;

use super::Error;
use super::ear::Ear;
use super::handover::Handover;
use crate::source::Mark;

/// What came of a commit. If the broker refused only some of the marks, the client counts them as committed; the next
/// ones of those lanes, or their next assignment, make that good.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) marks: Vec<Mark>,
    pub(super) result: KafkaResult<()>,
}

#[derive(Debug)]
pub(super) struct Committer {
    // Not more than two jobs at once: one of the lanes that stay, one of those that leave.
    jobs: Sender<(Vec<Mark>, TopicPartitionList)>,
    answers: Receiver<Answer>,
    thread: JoinHandle<()>,
}

impl Committer {
    pub(super) fn start(consumer: Arc<BaseConsumer<Ear>>, handover: Arc<Handover>) -> Result<Self, Error> {
        let (jobs, waiting) = channel::<(Vec<Mark>, TopicPartitionList)>();
        let (answering, answers) = channel();
        let body = move || {
            for (marks, offsets) in waiting {
                let result = consumer.commit(&offsets, CommitMode::Sync);
                // Nobody listens any more when the time to close is over.
                let _ = answering.send(Answer { marks, result });
                handover.wake_thread();
            }
        };
        let thread = std::thread::Builder::new().name("lanes-commit".to_owned()).spawn(body).map_err(Error::Thread)?;
        Ok(Self { jobs, answers, thread })
    }

    pub(super) fn send(&self, marks: Vec<Mark>, offsets: TopicPartitionList) {
        // It hangs up only when we do.
        let _ = self.jobs.send((marks, offsets));
    }

    pub(super) fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    /// Waits for the end of the thread, which has nothing to do any more.
    pub(super) fn join(self) {
        drop(self.jobs);
        // It does not panic; and if it did, there would be nothing left to save.
        let _ = self.thread.join();
    }
}
