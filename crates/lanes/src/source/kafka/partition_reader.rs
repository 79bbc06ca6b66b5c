//! Reads one assigned partition.

use std::sync::Arc;

use rdkafka::consumer::BaseConsumer;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::KafkaError;

use super::batch::{BatchQueue, QueueItem};
use super::channel::{CHUNK_RECORDS, SourceChannel};
use super::context::KafkaContext;
use super::decode;
use super::log;
use super::offset_reset::{OffsetJump, OffsetResetTracker};
use super::partition_map::Partition;
use crate::record::{Epoch, Lane, Position, Record};

/// Messages taken per batch. With more, the first ones have left the CPU caches before they are copied.
const BATCH_MAX: usize = 32;
/// Why filling a chunk stopped.
#[derive(Debug)]
pub(super) enum FillStop {
    /// The client has no more messages now.
    Empty,
    /// The chunk is full.
    Full,
    /// The log was truncated or recreated: the first record of the next epoch.
    OffsetWentBack(Record),
    Error(KafkaError),
}

/// An assignment of a partition.
pub(super) struct PartitionReader {
    pub(super) lane: Lane,
    pub(super) epoch: Epoch,
    pub(super) partition: Partition,
    /// Keeps the callback that wakes the member thread.
    _queue: PartitionQueue<KafkaContext>,
    messages: BatchQueue,
    /// The last position read or skipped.
    last: Option<Position>,
    /// The size of the last record, as an estimate for the next ones. Limits how many messages leave the client's queue,
    /// where they are accounted.
    typical_bytes: usize,
    /// The end of the partition, if it was reached since the last [`pass_gap`](Self::pass_gap).
    ended_at: Option<u64>,
    reset: OffsetResetTracker,
}

impl PartitionReader {
    /// Splits the queue of the partition from the client's main queue. `None` if the client does not know the partition.
    pub(super) fn new(
        consumer: &Arc<BaseConsumer<KafkaContext>>,
        channel: &Arc<SourceChannel>,
        (lane, epoch): (Lane, Epoch),
        partition: Partition,
    ) -> Option<Self> {
        let mut queue = consumer.split_partition_queue(&partition.topic, partition.number)?;
        let channel = Arc::clone(channel);
        queue.set_nonempty_callback(move || channel.wake_thread());
        let messages = BatchQueue::new(consumer, &partition.topic, partition.number)?;
        let (last, typical_bytes, ended_at, reset) = (None, 1024, None, OffsetResetTracker::default());
        Some(Self { lane, epoch, partition, _queue: queue, messages, last, typical_bytes, ended_at, reset })
    }

    /// The next offset `at` is not in the log.
    pub(super) fn reset(&mut self, at: u64) {
        self.reset.on_reset(at);
    }

    /// Reads available messages until the chunk is full. The last record may exceed `bytes_max`.
    pub(super) fn fill(&mut self, chunk: &mut Vec<Record>, bytes_max: usize) -> FillStop {
        let mut bytes = 0;
        while chunk.len() < CHUNK_RECORDS && bytes < bytes_max {
            let next_epoch = self.next_epoch();
            let fitting = (bytes_max - bytes).div_ceil(self.typical_bytes.max(1));
            let message = match self.messages.next(fitting.min(BATCH_MAX).min(CHUNK_RECORDS - chunk.len())) {
                None => return FillStop::Empty,
                Some(QueueItem::End(next)) => {
                    self.ended_at = u64::try_from(next).ok();
                    log_jump(&self.partition, self.ended_at.and_then(|next| self.reset.on_end(next)));
                    continue;
                }
                Some(QueueItem::Error(error)) => return FillStop::Error(error),
                Some(QueueItem::Message(message)) => message,
            };
            log_jump(&self.partition, self.reset.on_record(self.last, decode::position(&message)));
            if self.last >= Some(decode::position(&message)) {
                return FillStop::OffsetWentBack(decode::record(self.lane, next_epoch, &message));
            }
            let record = decode::record(self.lane, self.epoch, &message);
            self.last = Some(record.position());
            self.typical_bytes = record.size_bytes();
            bytes += self.typical_bytes;
            chunk.push(record);
        }
        FillStop::Full
    }

    fn next_epoch(&self) -> Epoch {
        Epoch(self.epoch.0 + 1)
    }

    /// Restarts with the first record of the next epoch.
    pub(super) fn restart(&mut self, first: &Record) {
        self.epoch = first.epoch();
        self.last = Some(first.position());
        self.ended_at = None;
    }

    /// The end of a gap behind the last record, if the end of the partition was reached since the last call.
    pub(super) fn pass_gap(&mut self) -> Option<Position> {
        let through = self.ended_at.take()?.checked_sub(1).map(Position);
        let through = through.filter(|through| Some(*through) > self.last)?;
        self.last = Some(through);
        Some(through)
    }
}

/// Logs a jump, which librdkafka reports only with less detail.
fn log_jump(partition: &Partition, jump: Option<OffsetJump>) {
    if let Some(jump) = jump {
        log::offset_jump(&format!("{}/{}", partition.topic, partition.number), jump);
    }
}
