//! Kafka topics as a source, optionally keyed by a part of the value; and the ends of their partitions.

use std::task::{Context, Poll};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tidegate_lanes::{
    Epoch, Lane, LaneCommit, LaneStatus, PollLimit, Position, Record, Source, SourceEvent,
    source::kafka::{KafkaSource, KafkaSourceError, Partition, PartitionMap, StartOffset as LanesStart},
};

use super::{OpenSource, with_key};
use tidegate_config::stream::{
    DeadLetterSink, KafkaTopics, OrderingKey, Properties, StartOffset, StreamKeys, StreamSink, StreamSource,
};

use crate::{error::StreamError, lane_names::LaneNames};

pub(super) fn open(topics: &KafkaTopics, keys: &StreamKeys) -> Result<OpenSource, StreamError> {
    // Records read ahead count towards the stream's limit; the other half is for records in flight.
    let prefetch = usize::try_from(keys.bytes_max / 2).unwrap_or(usize::MAX);
    let settings = KafkaSource::builder(&topics.brokers, &group(keys))
        .start(match keys.start {
            StartOffset::Earliest => LanesStart::Earliest,
            StartOffset::Latest => LanesStart::Latest,
            StartOffset::Fail => LanesStart::Fail,
        })
        .start_time(keys.start_time.timestamp_ms)
        .drain(keys.drain)
        .limit_prefetch_bytes(prefetch)
        .metadata(concat!("tidegate/", env!("CARGO_PKG_VERSION")));
    let settings = topics.topics.iter().fold(settings, |settings, topic| settings.topic(topic));
    let properties = keys.kafka_properties.0.iter();
    let settings = properties.fold(settings, |settings, (name, value)| settings.property(name, value));
    let source = settings.build().map_err(|error| StreamError::Source(Box::new(error)))?;
    let places = LaneNames::Kafka(source.partition_map());
    Ok(OpenSource::Topics(Box::new(KeyedKafka { source, key: keys.key.clone() }), places))
}

fn group(keys: &StreamKeys) -> String {
    if keys.group.is_empty() { format!("tidegate-{}", keys.name) } else { keys.group.clone() }
}

/// Configuration of a client outside of the consumer group, for watermarks and dead letters.
pub(crate) fn client(brokers: &str, properties: &Properties) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set_log_level(RDKafkaLogLevel::Warning);
    config.extend(common(properties));
    config
}

/// The properties of the client of the sink, which may be another cluster.
pub(crate) fn sink_properties(keys: &StreamKeys) -> &Properties {
    if keys.sink_kafka_properties.0.is_empty() { &keys.kafka_properties } else { &keys.sink_kafka_properties }
}

/// The properties of the client of the dead-letter topic.
pub(crate) fn dead_letter_properties(keys: &StreamKeys) -> &Properties {
    if keys.dead_letter_kafka_properties.0.is_empty() {
        &keys.kafka_properties
    } else {
        &keys.dead_letter_kafka_properties
    }
}

/// Refuses outputs that the source would read. The check of the configuration compares the names of brokers; a broker may have
/// several, so this one compares the identifiers of the clusters. May block for some seconds.
pub(crate) fn refuse_own_output(keys: &StreamKeys) -> Result<(), StreamError> {
    let StreamSource::Kafka(from) = &keys.from else { return Ok(()) };
    let mut outputs = Vec::new();
    if let StreamSink::Kafka(to) = &keys.to {
        outputs.push((to, sink_properties(keys)));
    }
    if let DeadLetterSink::Kafka(to) = &keys.dead_letter {
        outputs.push((to, dead_letter_properties(keys)));
    }
    let settings = KafkaSource::builder(&from.brokers, &group(keys));
    let settings = from.topics.iter().fold(settings, |settings, topic| settings.topic(topic));
    let cluster_of = |brokers: &str, properties: &Properties| {
        let client: BaseConsumer = client(brokers, properties).create().ok()?;
        client.client().fetch_cluster_id(ANSWER_LIMIT)
    };
    for (to, properties) in outputs {
        let Some(topic) = to.topics.iter().find(|topic| settings.subscribes_to(topic)) else { continue };
        let is_same = cluster_of(&to.brokers, properties)
            .is_some_and(|cluster| cluster_of(&from.brokers, &keys.kafka_properties) == Some(cluster));
        if is_same {
            return Err(StreamError::OwnOutput(format!("the topic {topic}")));
        }
    }
    Ok(())
}

/// The properties that do not concern the consumer group.
pub(crate) fn common(properties: &Properties) -> impl Iterator<Item = (String, String)> {
    const GROUP_PROPERTIES: [&str; 4] =
        ["partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"];
    let is_common = |name: &str| {
        !name.starts_with("group.")
            && !name.starts_with("fetch.")
            && !name.starts_with("queued.")
            && !GROUP_PROPERTIES.contains(&name)
    };
    properties.0.iter().filter(move |(name, _)| is_common(name)).cloned()
}

/// Topics whose records are ordered by a key from the value.
#[derive(Debug)]
pub(crate) struct KeyedKafka {
    source: KafkaSource,
    key: OrderingKey,
}

impl Source for KeyedKafka {
    type Error = KafkaSourceError;

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        limit: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, KafkaSourceError>> {
        let before = batch.len();
        let polled = self.source.poll(cx, limit, batch);
        if let OrderingKey::Pointer(pointer) = &self.key {
            let fresh: Vec<Record> = batch.drain(before..).collect();
            batch.extend(fresh.into_iter().map(|record| with_key(pointer, record)));
        }
        polled
    }

    fn pause(&mut self, lane: Lane, epoch: Epoch) {
        self.source.pause(lane, epoch);
    }

    fn resume(&mut self, lane: Lane, epoch: Epoch) {
        self.source.resume(lane, epoch);
    }

    fn commit(&mut self, commits: &[LaneCommit]) {
        self.source.commit(commits);
    }

    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        self.source.release(lane, epoch, through);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), KafkaSourceError>> {
        self.source.poll_close(cx)
    }

    fn buffered_bytes(&self) -> usize {
        self.source.buffered_bytes()
    }

    fn lane_name(&self, lane: Lane) -> String {
        self.source.lane_name(lane)
    }
}

/// Queries the end offsets of partitions.
pub(crate) struct Watermarks {
    client: BaseConsumer,
    partition_map: PartitionMap,
}

/// Limit of a query; beyond it, the lag is unknown for now.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

impl Watermarks {
    /// Returns `None` if the client rejects the settings; the source reports the error.
    pub(crate) fn new(topics: &KafkaTopics, keys: &StreamKeys, partition_map: PartitionMap) -> Option<Self> {
        // The group name is for committed offsets; this client does not join the group.
        let mut config = client(&topics.brokers, &keys.kafka_properties);
        // Otherwise the end would be that of the last closed transaction, and records behind an open one would not count.
        config.set("group.id", group(keys)).set("isolation.level", "read_uncommitted");
        let client = config.create().ok()?;
        Some(Self { client, partition_map })
    }

    /// Returns `None` without an assigned partition.
    pub(crate) fn lag(&self, lanes: &[LaneStatus]) -> Option<u64> {
        if lanes.is_empty() {
            return None;
        }
        lanes.iter().map(|lane| self.of(lane)).sum()
    }

    fn of(&self, lane: &LaneStatus) -> Option<u64> {
        let partition = self.partition_map.partition(lane.lane)?;
        let (low, high) = self.client.fetch_watermarks(&partition.topic, partition.number, ANSWER_LIMIT).ok()?;
        let next = match lane.done_through {
            Some(position) => i64::try_from(position.0).ok()? + 1,
            // No record finished since the start: use the committed offset of the group.
            None => self.committed(&partition)?.unwrap_or(low),
        };
        u64::try_from(high.saturating_sub(next.max(low))).ok()
    }

    fn committed(&self, partition: &Partition) -> Option<Option<i64>> {
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition(&partition.topic, partition.number);
        let answer = self.client.committed_offsets(partitions, ANSWER_LIMIT).ok()?;
        match answer.elements().first()?.offset() {
            Offset::Offset(offset) => Some(Some(offset)),
            _ => Some(None),
        }
    }
}
