//! A Kafka topic as a sink. Internal retries of the producer cause no duplicates. A record is done when all in-sync replicas have
//! it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, ClientContext};
use tidegate_config::stream::{KafkaTopics, StreamKeys};
use tidegate_lanes::{Record, RecordFailure};

use crate::{
    change::{COMMIT_LSN, header},
    error::StreamError,
    source::kafka::{client, common, sink_properties},
};

pub(crate) struct KafkaSink {
    config: ClientConfig,
    // Locked for access, and to replace the producer.
    producer: Mutex<FutureProducer<LastClientError>>,
    /// Sends each message in a batch of its own; made when a batch was too large for the topic.
    alone: Mutex<Option<FutureProducer<LastClientError>>>,
    topic: String,
    last_error: LastClientError,
    /// Limit of a delivery.
    limit: Duration,
}

/// The last error of the client with its time. A delivery that times out does not report by itself that no broker answers, or
/// that all reject the client.
#[derive(Clone, Default)]
struct LastClientError(Arc<Mutex<Option<(Instant, String)>>>);

impl LastClientError {
    fn get(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for LastClientError {
    fn error(&self, error: KafkaError, reason: &str) {
        // AllBrokersDown follows the errors of the brokers.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.get() = Some((Instant::now(), reason.to_owned()));
        }
    }
}

/// Limit of a message in the client: its default is below that of brokers, and a record from a compressed batch may be larger
/// still. The broker decides.
const MESSAGE_BYTES_MAX: &str = "1000000000";
/// How long an unknown topic may be in creation, unless a delivery takes less. By default, the client waits for the whole
/// delivery, so a missing topic would never be reported.
const UNKNOWN_TOPIC_MAX: Duration = Duration::from_secs(5);
/// Interval at which the client repeats the same error.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

impl KafkaSink {
    pub(super) fn new(topics: &KafkaTopics, keys: &StreamKeys) -> Result<Self, StreamError> {
        let properties = sink_properties(keys);
        let mut config = client(&topics.brokers, properties);
        // A delivery that the stream has given up must not appear in the topic later, after its successor.
        let limit = if keys.timeout.is_zero() { Duration::from_secs(300) } else { keys.timeout };
        config
            .set("linger.ms", "2")
            .set("partitioner", "murmur2_random")
            .set("message.timeout.ms", limit.as_millis().max(1).to_string())
            .set("message.max.bytes", MESSAGE_BYTES_MAX)
            .set("topic.metadata.propagation.max.ms", UNKNOWN_TOPIC_MAX.min(limit / 2).as_millis().to_string());
        config.extend(common(properties));
        config.set("enable.idempotence", "true");
        let last_error = LastClientError::default();
        let producer = config.create_with_context(last_error.clone()).map(Mutex::new);
        let producer = producer.map_err(|error| StreamError::Sink(error.to_string()))?;
        let topic = topics.topics.first().cloned().unwrap_or_default();
        Ok(Self { config, producer, alone: Mutex::new(None), topic, last_error, limit })
    }

    /// Returns the producer. A producer that has lost its sequence with the broker accepts nothing any more and is replaced.
    fn producer(&self) -> Result<FutureProducer<LastClientError>, RecordFailure> {
        let mut producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if producer.client().fatal_error().is_some() {
            *producer =
                self.config.create_with_context(self.last_error.clone()).map_err(|error| self.failure(&error))?;
        }
        Ok(producer.clone())
    }

    /// Sends the records in order and awaits them together.
    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let mut sent = Vec::with_capacity(records.len());
        for record in records {
            sent.push(self.send(record)?);
        }
        for (index, delivered) in join_all(sent).await.into_iter().enumerate() {
            match delivered {
                Ok(Ok(_)) => {}
                // The limit of a topic is that of a batch: the records may fit one by one. Those after it are sent again, too, so
                // that they stay behind it.
                Ok(Err((error, _))) if is_too_large(&error) => {
                    return self.deliver_alone(&records[index..]).await;
                }
                Ok(Err((error, _))) => return Err(self.failure(&error)),
                // A client that is gone has not confirmed the record.
                Err(_) => return Err(RecordFailure::new("the Kafka client is gone").keep_batch()),
            }
        }
        Ok(())
    }

    async fn deliver_alone(&self, records: &[Record]) -> Result<(), RecordFailure> {
        for record in records {
            let sent = self.alone()?.send_result(self.message(record)).map_err(|(error, _)| self.failure(&error))?;
            let delivered = sent.await.map_err(|_| RecordFailure::new("the Kafka client is gone").keep_batch())?;
            delivered.map_err(|(error, _)| self.failure(&error))?;
        }
        Ok(())
    }

    /// The producer without batches.
    fn alone(&self) -> Result<FutureProducer<LastClientError>, RecordFailure> {
        let mut alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        match &*alone {
            Some(producer) if producer.client().fatal_error().is_none() => Ok(producer.clone()),
            _ => {
                let mut config = self.config.clone();
                config.set("batch.num.messages", "1");
                let made = config.create_with_context(self.last_error.clone()).map_err(|error| self.failure(&error))?;
                Ok(alone.insert(made).clone())
            }
        }
    }

    fn send(&self, record: &Record) -> Result<rdkafka::producer::DeliveryFuture, RecordFailure> {
        self.producer()?.send_result(self.message(record)).map_err(|(error, _)| self.failure(&error))
    }

    fn message<'a>(&'a self, record: &'a Record) -> FutureRecord<'a, [u8], [u8]> {
        let mut message = FutureRecord::<[u8], [u8]>::to(&self.topic);
        // The key of a row, whatever orders the changes.
        let is_change = header(record, COMMIT_LSN).is_some();
        message.key = if is_change { record.source_key() } else { record.key() };
        message.payload = record.payload();
        message.timestamp = (record.timestamp_ms() > 0).then(|| record.timestamp_ms());
        if !record.headers().is_empty() {
            let with = |headers: OwnedHeaders, header: &tidegate_lanes::Header| {
                headers.insert(Header { key: &header.name, value: header.value.as_deref() })
            };
            message.headers = Some(record.headers().iter().fold(OwnedHeaders::new(), with));
        }
        message
    }

    fn failure(&self, error: &KafkaError) -> RecordFailure {
        self.delivery_failure(error).keep_batch()
    }

    fn delivery_failure(&self, error: &KafkaError) -> RecordFailure {
        use RDKafkaErrorCode as Code;
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidRecord) => {
                RecordFailure::permanent(error)
            }
            Some(Code::UnknownTopic | Code::UnknownTopicOrPartition) => RecordFailure::new(format!(
                "the topic {} does not exist, or may not be written to: {error}",
                self.topic
            )),
            Some(Code::MessageTimedOut) => match &*self.last_error.get() {
                Some((at, reason)) if at.elapsed() <= self.limit + REPEAT_INTERVAL => {
                    RecordFailure::new(format!("{error}: {reason}"))
                }
                _ => RecordFailure::new(error),
            },
            _ => RecordFailure::new(error),
        }
    }
}

fn is_too_large(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(error.rdkafka_error_code(), Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize))
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use tidegate_lanes::{Epoch, Lane, Position};

    use super::*;

    #[tokio::test]
    async fn timed_out_delivery_reports_the_client_error() {
        let topics = KafkaTopics { brokers: "127.0.0.1:1".to_owned(), topics: vec!["out".to_owned()] };
        let keys = StreamKeys { timeout: Duration::from_millis(500), ..StreamKeys::default() };
        let topic = KafkaSink::new(&topics, &keys).expect("a producer");
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(b"v"));
        let failure = topic.deliver(std::slice::from_ref(&record)).await.expect_err("no broker");
        assert!(failure.reason().contains("Connection refused"), "{failure}");
    }

    #[tokio::test]
    async fn message_larger_than_the_client_default_is_sent() {
        let cluster = MockCluster::new(1).expect("a cluster");
        cluster.create_topic("out", 1, 1).expect("a topic");
        let topics = KafkaTopics { brokers: cluster.bootstrap_servers(), topics: vec!["out".to_owned()] };
        let topic = KafkaSink::new(&topics, &StreamKeys::default()).expect("a producer");
        // Default limits: 1,048,588 bytes in a broker, 1,000,000 in a client.
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(&[b'x'; 1_040_000]));
        assert_eq!(topic.deliver(std::slice::from_ref(&record)).await, Ok(()));
    }

    #[tokio::test]
    async fn failed_producer_is_replaced() {
        let cluster = MockCluster::new(1).expect("a cluster");
        cluster.create_topic("out", 1, 1).expect("a topic");
        let topics = KafkaTopics { brokers: cluster.bootstrap_servers(), topics: vec!["out".to_owned()] };
        let topic = KafkaSink::new(&topics, &StreamKeys::default()).expect("a producer");
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(b"v"));
        let deliver = || topic.deliver(std::slice::from_ref(&record));
        assert_eq!(deliver().await, Ok(()));
        let lost = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        cluster.request_errors(RDKafkaApiKey::Produce, &[lost]);
        deliver().await.expect_err("the broker rejects the sequence");
        assert_eq!(deliver().await, Ok(()), "the next attempt finds another producer");
    }
}
