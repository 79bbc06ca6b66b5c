//! The client that fetches the assigned partitions.
//!
//! It is not the group member. During a rebalance librdkafka pauses all partitions of a member and discards their
//! prefetched records. This client is not in the group, so partitions that stay assigned continue.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};

use super::builder::{KafkaSourceBuilder, StartOffset};
use super::channel::{LANE_CHUNKS_MAX, SourceChannel};
use super::client_log::ClientLogEventKind;
use super::context::KafkaContext;
use super::error::KafkaSourceError;
use super::partition_map::Partition;
use super::partition_reader::{FillStop, PartitionReader};
use crate::record::{Epoch, Lane, Record};
use crate::source::interface::SourceEvent;

/// Events of the client's main queue per turn. Events are rare, and partitions are read in between.
const TURN_EVENTS: usize = 4;
/// Larger chunks gain nothing; smaller ones cost more for the lock and the wake-up than for their records.
const CHUNK_BYTES: RangeInclusive<usize> = 16 << 10..=256 << 10;

/// Limit of a question to the brokers before the start of partitions.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Brokers remove the committed offsets of a deleted topic a moment after the topic itself.
const REMOVAL_LIMIT: Duration = Duration::from_secs(5);
/// Limit of a question for the offsets of deleted topics. Other partitions are not read meanwhile.
const REMOVAL_LOOKUP_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two questions for the offsets of deleted topics.
const REMOVAL_INTERVAL: Duration = Duration::from_millis(100);

/// A partition of a deleted topic, which is assigned again once its committed offset is gone.
struct DeletedPartition {
    lane: Lane,
    epoch: Epoch,
    partition: Partition,
    /// When it is assigned again even with a committed offset: the topic may be missing for another reason.
    until: Instant,
}

pub(super) struct Fetcher {
    // Dropped before the client, which closes only after its queues.
    readers: Vec<PartitionReader>,
    client: Arc<BaseConsumer<KafkaContext>>,
    channel: Arc<SourceChannel>,
    chunk: Vec<Record>,
    /// Lanes whose topic did not exist at the last check.
    missing: BTreeSet<Lane>,
    deleted: Vec<DeletedPartition>,
    next_removal_lookup: Instant,
    /// The limit of all chunks of all lanes, unless that is below the minimum per lane.
    chunks_bytes_max: usize,
    start: StartOffset,
}

/// An event found while fetching.
#[derive(Debug)]
pub(super) enum FetchEvent {
    /// The log was truncated or recreated: the first record of the lane's next epoch.
    Restarted(Record),
    /// The topic of the lane does not exist.
    TopicMissing(Lane),
    /// An error, of a lane if known.
    Failed(Option<Lane>, KafkaError),
    /// A record on the main queue, which must not happen.
    UnexpectedRecord,
}

impl Fetcher {
    /// Creates the client for at most `lanes_max` lanes.
    pub(super) fn new(
        settings: &KafkaSourceBuilder,
        lanes_max: usize,
        channel: &Arc<SourceChannel>,
    ) -> Result<Self, KafkaSourceError> {
        let context = KafkaContext::new(Arc::clone(channel));
        // The client is not in a group, so it has no rebalances.
        context.stop_callbacks();
        let mut client: BaseConsumer<KafkaContext> =
            settings.fetcher_config(lanes_max).create_with_context(context).map_err(KafkaSourceError::Settings)?;
        let waking = Arc::clone(channel);
        client.set_nonempty_callback(move || waking.wake_thread());
        let (client, channel) = (Arc::new(client), Arc::clone(channel));
        // The client may hold all of the prefetch; chunks may hold half as much in addition.
        let chunks_bytes_max = settings.prefetch_bytes / 2;
        let (readers, chunk, missing) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (deleted, next_removal_lookup, start) = (Vec::new(), Instant::now(), settings.start);
        Ok(Self { readers, client, channel, chunk, missing, deleted, next_removal_lookup, chunks_bytes_max, start })
    }

    /// Starts to read partitions at the committed offsets of the group.
    pub(super) fn add(&mut self, lanes: Vec<(Lane, Epoch, Partition)>) -> Result<(), KafkaSourceError> {
        let mut partitions = TopicPartitionList::with_capacity(lanes.len());
        for (lane, epoch, partition) in lanes {
            partitions.add_partition(&partition.topic, partition.number);
            // Before the assignment, so that no record reaches the main queue.
            let reader = PartitionReader::new(&self.client, &self.channel, (lane, epoch), partition)
                .ok_or(KafkaSourceError::Internal)?;
            self.readers.push(reader);
            self.channel.open(lane, epoch);
        }
        if let StartOffset::Timestamp(timestamp_ms) = self.start {
            self.start_at(timestamp_ms, &mut partitions).map_err(KafkaSourceError::Assign)?;
        }
        self.client.incremental_assign(&partitions).map_err(KafkaSourceError::Assign)
    }

    /// Sets where to start partitions without a committed offset.
    fn start_at(&self, timestamp_ms: i64, partitions: &mut TopicPartitionList) -> KafkaResult<()> {
        let committed = self.client.committed_offsets(partitions.clone(), LOOKUP_TIMEOUT)?;
        let mut times = TopicPartitionList::new();
        for partition in committed.elements() {
            if !matches!(partition.offset(), Offset::Offset(_)) {
                times.add_partition_offset(partition.topic(), partition.partition(), Offset::Offset(timestamp_ms))?;
            }
        }
        if times.count() == 0 {
            return Ok(());
        }
        for partition in self.client.offsets_for_times(times, LOOKUP_TIMEOUT)?.elements() {
            partition.error()?;
            let offset = match partition.offset() {
                found @ Offset::Offset(_) => found,
                // All records are older.
                _ => Offset::End,
            };
            partitions.set_partition_offset(partition.topic(), partition.partition(), offset)?;
        }
        Ok(())
    }

    /// Stops reading lanes and returns those that were read.
    pub(super) fn remove(&mut self, lanes: &[Lane]) -> Result<Vec<(Lane, Epoch)>, KafkaSourceError> {
        let mut partitions = TopicPartitionList::new();
        let mut removed = Vec::new();
        self.deleted.retain(|deleted| !lanes.contains(&deleted.lane));
        for reader in self.readers.extract_if(.., |reader| lanes.contains(&reader.lane)) {
            partitions.add_partition(&reader.partition.topic, reader.partition.number);
            removed.push((reader.lane, reader.epoch));
            self.missing.remove(&reader.lane);
        }
        if !removed.is_empty() {
            self.client.incremental_unassign(&partitions).map_err(KafkaSourceError::Assign)?;
        }
        Ok(removed)
    }

    /// Whether the lane is read, in this epoch.
    pub(super) fn is_reading(&self, lane: Lane, epoch: Epoch) -> bool {
        self.readers.iter().any(|reader| (reader.lane, reader.epoch) == (lane, epoch))
    }

    /// Stops reading a lane whose topic is missing until [`Self::restart_deleted`] assigns it again.
    pub(super) fn wait_for(&mut self, lane: Lane, epoch: Epoch, partition: Partition) -> Result<(), KafkaSourceError> {
        let removed = self.remove(&[lane])?;
        self.channel.close_lanes(&removed, SourceEvent::Lost { lanes: removed.clone() });
        let until = Instant::now() + REMOVAL_LIMIT;
        self.deleted.push(DeletedPartition { lane, epoch, partition, until });
        Ok(())
    }

    /// Restarts lanes of deleted topics, as new assignments: a recreated topic is another log. Before the committed
    /// offset is gone, the client would read a recreated topic from that offset. Returns the restarted lanes.
    pub(super) fn restart_deleted(&mut self, now: Instant) -> Result<Vec<Lane>, KafkaSourceError> {
        if self.deleted.is_empty() || now < self.next_removal_lookup {
            return Ok(Vec::new());
        }
        self.next_removal_lookup = now + REMOVAL_INTERVAL;
        let mut partitions = TopicPartitionList::new();
        for deleted in &self.deleted {
            partitions.add_partition(&deleted.partition.topic, deleted.partition.number);
        }
        let committed = self.client.committed_offsets(partitions, REMOVAL_LOOKUP_TIMEOUT).ok();
        let is_removed = |partition: &Partition| {
            let found = committed.as_ref()?.find_partition(&partition.topic, partition.number)?;
            Some(!matches!(found.offset(), Offset::Offset(_)))
        };
        let is_ready =
            |deleted: &mut DeletedPartition| now >= deleted.until || is_removed(&deleted.partition) == Some(true);
        let ready: Vec<DeletedPartition> = self.deleted.extract_if(.., is_ready).collect();
        let lanes: Vec<Lane> = ready.iter().map(|deleted| deleted.lane).collect();
        if !ready.is_empty() {
            self.add(ready.into_iter().map(|deleted| (deleted.lane, deleted.epoch, deleted.partition)).collect())?;
            self.missing.extend(&lanes);
        }
        Ok(lanes)
    }

    /// Serves the client's main queue (errors, statistics) and the log events of partitions.
    pub(super) fn poll_client(&mut self, events: &mut Vec<FetchEvent>) {
        for _ in 0..TURN_EVENTS {
            match self.client.poll(Duration::ZERO) {
                None => {}
                Some(Err(error)) => events.push(FetchEvent::Failed(None, error)),
                Some(Ok(_)) => events.push(FetchEvent::UnexpectedRecord),
            }
        }
        for event in self.client.context().log_events() {
            let matches = |reader: &&mut PartitionReader| {
                (&*reader.partition.topic, reader.partition.number) == (&*event.topic, event.number)
            };
            let Some(reader) = self.readers.iter_mut().find(matches) else { continue };
            match event.what {
                ClientLogEventKind::OffsetReset(at) => reader.reset(at),
                ClientLogEventKind::TopicMissing if self.missing.contains(&reader.lane) => {}
                ClientLogEventKind::TopicMissing => events.push(FetchEvent::TopicMissing(reader.lane)),
            }
        }
    }

    /// Fills a chunk for each lane that has room. `true` if anything was read.
    pub(super) fn read(&mut self, events: &mut Vec<FetchEvent>) -> bool {
        let mut has_read = false;
        let bytes_max = self.chunk_bytes_max();
        for reader in &mut self.readers {
            if !self.channel.has_room(reader.lane) {
                continue;
            }
            let stop = reader.fill(&mut self.chunk, bytes_max);
            has_read |= !matches!(stop, FillStop::Empty) || !self.chunk.is_empty();
            if !self.chunk.is_empty() {
                self.missing.remove(&reader.lane);
                let chunk = std::mem::replace(&mut self.chunk, self.channel.spare_buffer());
                self.channel.push_records(reader.lane, chunk);
            }
            match stop {
                FillStop::Empty | FillStop::Full => {}
                FillStop::OffsetWentBack(first) => {
                    restart(&self.channel, reader, &first);
                    events.push(FetchEvent::Restarted(first));
                }
                FillStop::Error(error) => events.push(FetchEvent::Failed(Some(reader.lane), error)),
            }
        }
        has_read
    }

    /// The size limit of a chunk. All lanes share the total, because a paused lane keeps its chunks.
    fn chunk_bytes_max(&self) -> usize {
        let share = self.chunks_bytes_max / (self.readers.len().max(1) * LANE_CHUNKS_MAX);
        share.clamp(*CHUNK_BYTES.start(), *CHUNK_BYTES.end())
    }

    /// Delivers gaps behind the last record of lanes that were read to their end.
    pub(super) fn pass_gaps(&mut self) {
        for reader in &mut self.readers {
            if let Some(through) = reader.pass_gap() {
                self.channel.push_gap(reader.lane, through);
            }
        }
    }
}

/// Restarts the lane as a new assignment, because positions increase within an epoch.
fn restart(channel: &SourceChannel, reader: &mut PartitionReader, first: &Record) {
    let removed = vec![(reader.lane, reader.epoch)];
    reader.restart(first);
    channel.close_lanes(&removed, SourceEvent::Lost { lanes: removed.clone() });
    channel.open(reader.lane, reader.epoch);
    channel.push_records(reader.lane, vec![first.clone()]);
}
