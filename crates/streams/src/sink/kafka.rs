//! A topic: what the producer sends again by itself is in the topic once, and a record is done when all replicas in sync
//! have it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, ClientContext};
use tidegate_config::stream::{StreamKeys, Topics};
use tidegate_lanes::{Record, RecordFailure};

use crate::{error::StreamError, source::kafka::client};

pub(crate) struct Topic {
    config: ClientConfig,
    // Locked for a look, and for the making of another one.
    producer: Mutex<FutureProducer<Ear>>,
    topic: String,
    ear: Ear,
    /// How long a delivery may take.
    limit: Duration,
}

/// What the client has complained of last, and when. A delivery that is given up says by itself that its time was over, and
/// not that no broker answers, or that none lets the client in.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Option<(Instant, String)>>>);

impl Ear {
    fn complaint(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Ear {
    fn error(&self, error: KafkaError, reason: &str) {
        // That all brokers are down is said after what is wrong with each.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.complaint() = Some((Instant::now(), reason.to_owned()));
        }
    }
}

/// The largest message that the client lets through: its own default is less than what brokers take, and what was read out of
/// a compressed batch may be larger still. The broker has the last word.
const MESSAGE_BYTES_MAX: &str = "1000000000";
/// How long a topic that the broker does not know may be about to be made, if a delivery may take longer. (By itself the
/// client waits for as long as a delivery, and that there is no such topic would never be said.)
const UNKNOWN_MAX: Duration = Duration::from_secs(5);
/// The client complains of the same no more often.
const QUIET: Duration = Duration::from_secs(30);

impl Topic {
    pub(super) fn new(topics: &Topics, keys: &StreamKeys) -> Result<Self, StreamError> {
        let mut config = client(&topics.brokers, keys);
        // A delivery that is given up by the stream must not be in the topic later, behind its successor.
        let limit = if keys.timeout.is_zero() { Duration::from_secs(300) } else { keys.timeout };
        config
            .set("linger.ms", "2")
            .set("partitioner", "murmur2_random")
            .set("message.timeout.ms", limit.as_millis().max(1).to_string())
            .set("message.max.bytes", MESSAGE_BYTES_MAX)
            .set("topic.metadata.propagation.max.ms", UNKNOWN_MAX.min(limit / 2).as_millis().to_string());
        config.extend(crate::source::kafka::common(keys));
        config.set("enable.idempotence", "true");
        let ear = Ear::default();
        let producer = config.create_with_context(ear.clone()).map(Mutex::new);
        let producer = producer.map_err(|error| StreamError::Sink(error.to_string()))?;
        let topic = topics.topics.first().cloned().unwrap_or_default();
        Ok(Self { config, producer, topic, ear, limit })
    }

    /// The producer. One that has lost track of what the broker has (as where the broker has lost it) takes nothing any more,
    /// and another one takes its place.
    fn producer(&self) -> Result<FutureProducer<Ear>, RecordFailure> {
        let mut producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if producer.client().fatal_error().is_some() {
            *producer = self.config.create_with_context(self.ear.clone()).map_err(|error| self.failure(&error))?;
        }
        Ok(producer.clone())
    }

    /// Sent in their order, and awaited together.
    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let mut sent = Vec::with_capacity(records.len());
        for record in records {
            sent.push(self.send(record)?);
        }
        for delivered in join_all(sent).await {
            // A client that is gone has not said that it sent the record.
            delivered
                .map_err(|_| RecordFailure::new("the Kafka client is gone"))?
                .map_err(|(error, _)| self.failure(&error))?;
        }
        Ok(())
    }

    fn send(&self, record: &Record) -> Result<rdkafka::producer::DeliveryFuture, RecordFailure> {
        let mut message = FutureRecord::<[u8], [u8]>::to(&self.topic);
        message.key = record.key();
        message.payload = record.payload();
        message.timestamp = (record.timestamp_ms() > 0).then(|| record.timestamp_ms());
        if !record.headers().is_empty() {
            let with = |headers: OwnedHeaders, header: &tidegate_lanes::Header| {
                headers.insert(Header { key: &header.name, value: header.value.as_deref() })
            };
            message.headers = Some(record.headers().iter().fold(OwnedHeaders::new(), with));
        }
        self.producer()?.send_result(message).map_err(|(error, _)| self.failure(&error))
    }

    fn failure(&self, error: &KafkaError) -> RecordFailure {
        use RDKafkaErrorCode as Code;
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidRecord) => {
                RecordFailure::permanent(error)
            }
            Some(Code::UnknownTopic | Code::UnknownTopicOrPartition) => RecordFailure::new(format!(
                "the topic {} does not exist, or may not be written to: {error}",
                self.topic
            )),
            Some(Code::MessageTimedOut) => match &*self.ear.complaint() {
                Some((at, reason)) if at.elapsed() <= self.limit + QUIET => {
                    RecordFailure::new(format!("{error}: {reason}"))
                }
                _ => RecordFailure::new(error),
            },
            _ => RecordFailure::new(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use tidegate_lanes::{Epoch, Lane, Position};

    use super::*;

    #[tokio::test]
    async fn a_delivery_that_was_given_up_says_what_the_client_complained_of() {
        let topics = Topics { brokers: "127.0.0.1:1".to_owned(), topics: vec!["out".to_owned()] };
        let keys = StreamKeys { timeout: Duration::from_millis(500), ..StreamKeys::default() };
        let topic = Topic::new(&topics, &keys).expect("a producer");
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(b"v"));
        let failure = topic.deliver(std::slice::from_ref(&record)).await.expect_err("nobody is there");
        assert!(failure.reason().contains("Connection refused"), "{failure}");
    }

    #[tokio::test]
    async fn what_brokers_take_is_not_too_large() {
        let cluster = MockCluster::new(1).expect("a cluster");
        cluster.create_topic("out", 1, 1).expect("a topic");
        let topics = Topics { brokers: cluster.bootstrap_servers(), topics: vec!["out".to_owned()] };
        let topic = Topic::new(&topics, &StreamKeys::default()).expect("a producer");
        // By default a broker takes 1,048,588 bytes, and a client sends 1,000,000.
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(&[b'x'; 1_040_000]));
        assert_eq!(topic.deliver(std::slice::from_ref(&record)).await, Ok(()));
    }

    #[tokio::test]
    async fn a_producer_that_has_lost_track_of_its_broker_is_replaced() {
        let cluster = MockCluster::new(1).expect("a cluster");
        cluster.create_topic("out", 1, 1).expect("a topic");
        let topics = Topics { brokers: cluster.bootstrap_servers(), topics: vec!["out".to_owned()] };
        let topic = Topic::new(&topics, &StreamKeys::default()).expect("a producer");
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(b"v"));
        let deliver = || topic.deliver(std::slice::from_ref(&record));
        assert_eq!(deliver().await, Ok(()));
        let lost = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        cluster.request_errors(RDKafkaApiKey::Produce, &[lost]);
        deliver().await.expect_err("the broker says so");
        assert_eq!(deliver().await, Ok(()), "the next attempt finds another producer");
    }
}
