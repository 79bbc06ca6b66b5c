//! One partition that is ours, and how far it has been read.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::BaseConsumer;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;

use super::decode;
use super::ear::Ear;
use super::handover::{Handover, PARCEL_RECORDS};
use super::roster::Partition;
use crate::record::{Epoch, Lane, Position, Record};

/// A parcel of larger records is closed when it has so many bytes.
const PARCEL_BYTES: usize = 256 << 10;

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
    queue: PartitionQueue<Ear>,
    /// The last record read, or the last gap behind one.
    last: Option<Position>,
    /// The client has come to the end of the partition since this was asked last.
    is_at_end: bool,
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
        Some(Self { lane, epoch, partition, queue, last: None, is_at_end: false })
    }

    /// Reads what the client has ready, until the parcel is full.
    pub(super) fn fill(&mut self, parcel: &mut Vec<Record>) -> Stop {
        let mut bytes = 0;
        while parcel.len() < PARCEL_RECORDS && bytes < PARCEL_BYTES {
            let record = match self.queue.poll(Duration::ZERO) {
                None => return Stop::Empty,
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    self.is_at_end = true;
                    continue;
                }
                Some(Err(error)) => return Stop::Error(error),
                Some(Ok(message)) if self.has_passed(&message) => {
                    return Stop::Backwards(decode::record(self.lane, self.next_epoch(), &message));
                }
                Some(Ok(message)) => decode::record(self.lane, self.epoch, &message),
            };
            self.last = Some(record.position());
            bytes += record.size_bytes();
            parcel.push(record);
        }
        Stop::Full
    }

    fn has_passed(&self, message: &BorrowedMessage<'_>) -> bool {
        self.last >= Some(decode::position(message))
    }

    fn next_epoch(&self) -> Epoch {
        Epoch(self.epoch.0 + 1)
    }

    /// Begins anew with the first record of the next epoch.
    pub(super) fn begin_anew(&mut self, first: &Record) {
        self.epoch = first.epoch();
        self.last = Some(first.position());
        self.is_at_end = false;
    }

    /// Itself, if the end of the partition was seen since this was asked last.
    pub(super) fn at_end(&mut self) -> Option<&mut Self> {
        std::mem::take(&mut self.is_at_end).then_some(self)
    }

    /// The client has taken everything before `next` out of the queue. If that is beyond the last record, what lies
    /// between are markers and gaps, and this is their end.
    pub(super) fn pass(&mut self, next: u64) -> Option<Position> {
        let through = next.checked_sub(1).map(Position).filter(|through| Some(*through) > self.last)?;
        self.last = Some(through);
        Some(through)
    }
}
