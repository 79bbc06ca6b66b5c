//! The commit thread.
//!
//! The client can commit asynchronously, but the Rust wrapper then does not report the result. So a separate thread waits
//! for the broker while the member thread continues.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;

use super::channel::SourceChannel;
use super::context::KafkaContext;
use super::error::KafkaSourceError;
use crate::source::interface::LaneCommit;

/// The result of a commit. If the broker rejects only some of the offsets, librdkafka reports success; a later commit of
/// the same lanes, or their next assignment, corrects that.
#[derive(Debug)]
pub(super) struct CommitResult {
    pub(super) commits: Vec<LaneCommit>,
    pub(super) result: KafkaResult<()>,
}

#[derive(Debug)]
pub(super) struct Committer {
    // The queue has at most two requests: one for assigned lanes, one for revoked lanes.
    jobs: Sender<(Vec<LaneCommit>, TopicPartitionList)>,
    answers: Receiver<CommitResult>,
    thread: JoinHandle<()>,
}

impl Committer {
    pub(super) fn start(
        consumer: Arc<BaseConsumer<KafkaContext>>,
        channel: Arc<SourceChannel>,
    ) -> Result<Self, KafkaSourceError> {
        let (jobs, waiting) = mpsc::channel::<(Vec<LaneCommit>, TopicPartitionList)>();
        let (answering, answers) = mpsc::channel();
        let body = move || {
            for (commits, offsets) in waiting {
                let result = consumer.commit(&offsets, CommitMode::Sync);
                // The receiver is gone once the close timeout is over.
                let _ = answering.send(CommitResult { commits, result });
                channel.wake_thread();
            }
        };
        let thread = std::thread::Builder::new()
            .name("lanes-commit".to_owned())
            .spawn(body)
            .map_err(KafkaSourceError::Thread)?;
        Ok(Self { jobs, answers, thread })
    }

    pub(super) fn send(&self, commits: Vec<LaneCommit>, offsets: TopicPartitionList) {
        // The receiver ends only after this sender.
        let _ = self.jobs.send((commits, offsets));
    }

    pub(super) fn try_result(&self) -> Option<CommitResult> {
        self.answers.try_recv().ok()
    }

    /// Waits for the idle thread to end.
    pub(super) fn join(self) {
        drop(self.jobs);
        // A panic of the thread would leave nothing to clean up.
        let _ = self.thread.join();
    }
}
