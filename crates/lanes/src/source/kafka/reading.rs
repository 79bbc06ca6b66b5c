//! One partition that is ours, and how far it has been read.

use std::sync::Arc;

use rdkafka::consumer::BaseConsumer;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::KafkaError;

use super::batch::{BatchQueue, Next};
use super::decode;
use super::ear::{Ear, log};
use super::handover::{Handover, PARCEL_RECORDS};
use super::reset::{Onward, Reset};
use super::roster::Partition;
use crate::record::{Epoch, Lane, Position, Record};

/// Messages taken out of the client's queue at once. With more, the first ones have left the caches when they are copied.
const TAKEN_MAX: usize = 32;
/// Why a parcel is not read on.
#[derive(Debug)]
pub(super) enum Stop {
    /// The client has no more now.
    Empty,
    /// The parcel is full.
    Full,
    /// The log was cut or made anew: the lane goes on below where it was. The first record of the next epoch.
    Backwards(Record),
    Error(KafkaError),
}

/// One assignment of a partition.
pub(super) struct Reading {
    pub(super) lane: Lane,
    pub(super) epoch: Epoch,
    pub(super) partition: Partition,
    /// Wakes the thread, as long as it lives.
    _queue: PartitionQueue<Ear>,
    messages: BatchQueue,
    /// The last record read, or the last gap behind one.
    last: Option<Position>,
    /// Bytes of the last record read: as the next ones are likely to be, so that no more is taken out of the client's
    /// queue, where it is counted, than the parcel takes.
    typical_bytes: usize,
    /// The end of the partition, if one was seen since this was asked last.
    ended_at: Option<u64>,
    reset: Reset,
}

impl Reading {
    /// Takes the queue of the partition out of the client's common one. `None` if the client does not know it.
    pub(super) fn new(
        consumer: &Arc<BaseConsumer<Ear>>,
        handover: &Arc<Handover>,
        (lane, epoch): (Lane, Epoch),
        partition: Partition,
    ) -> Option<Self> {
        let mut queue = consumer.split_partition_queue(&partition.topic, partition.number)?;
        let handover = Arc::clone(handover);
        queue.set_nonempty_callback(move || handover.wake_thread());
        let messages = BatchQueue::new(consumer, &partition.topic, partition.number)?;
        let (last, typical_bytes, ended_at, reset) = (None, 1024, None, Reset::default());
        Some(Self { lane, epoch, partition, _queue: queue, messages, last, typical_bytes, ended_at, reset })
    }

    /// The log does not hold this position, which was to be read next.
    pub(super) fn reset(&mut self, at: u64) {
        self.reset.begin(at);
    }

    /// Reads what the client has ready, until the parcel is full: a record more than `bytes_max` at most.
    pub(super) fn fill(&mut self, parcel: &mut Vec<Record>, bytes_max: usize) -> Stop {
        let mut bytes = 0;
        while parcel.len() < PARCEL_RECORDS && bytes < bytes_max {
            let next_epoch = self.next_epoch();
            let fitting = (bytes_max - bytes).div_ceil(self.typical_bytes.max(1));
            let message = match self.messages.next(fitting.min(TAKEN_MAX).min(PARCEL_RECORDS - parcel.len())) {
                None => return Stop::Empty,
                Some(Next::End(next)) => {
                    self.ended_at = u64::try_from(next).ok();
                    tell(&self.partition, self.ended_at.and_then(|next| self.reset.end(next)));
                    continue;
                }
                Some(Next::Error(error)) => return Stop::Error(error),
                Some(Next::Message(message)) => message,
            };
            tell(&self.partition, self.reset.read(self.last, decode::position(&message)));
            if self.last >= Some(decode::position(&message)) {
                return Stop::Backwards(decode::record(self.lane, next_epoch, &message));
            }
            let record = decode::record(self.lane, self.epoch, &message);
            self.last = Some(record.position());
            self.typical_bytes = record.size_bytes();
            bytes += self.typical_bytes;
            parcel.push(record);
        }
        Stop::Full
    }

    fn next_epoch(&self) -> Epoch {
        Epoch(self.epoch.0 + 1)
    }

    /// Begins anew with the first record of the next epoch.
    pub(super) fn begin_anew(&mut self, first: &Record) {
        self.epoch = first.epoch();
        self.last = Some(first.position());
        self.ended_at = None;
    }

    /// The end of markers and gaps behind the last record, if the end of the partition was seen since this was asked last,
    /// and there are any.
    pub(super) fn pass_gap(&mut self) -> Option<Position> {
        let through = self.ended_at.take()?.checked_sub(1).map(Position);
        let through = through.filter(|through| Some(*through) > self.last)?;
        self.last = Some(through);
        Some(through)
    }
}

/// Nobody else says how much was passed over.
fn tell(partition: &Partition, onward: Option<Onward>) {
    if let Some(onward) = onward {
        log::onward(&format!("{}/{}", partition.topic, partition.number), onward);
    }
}
