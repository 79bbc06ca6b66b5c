//! A topic: what the producer sends again by itself is in the topic once, and a record is done when all replicas in sync
//! have it.

use futures_util::future::join_all;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tidegate_lanes::{Failure, Record};

use crate::config::stream::{StreamKeys, Topics};
use crate::stream::error::StreamError;
use crate::stream::source::kafka::client;

pub(in crate::stream) struct Topic {
    producer: FutureProducer,
    topic: String,
}

impl Topic {
    pub(super) fn new(topics: &Topics, keys: &StreamKeys) -> Result<Self, StreamError> {
        let mut config = client(&topics.brokers, keys);
        // A delivery that is given up by the stream must not be in the topic later, behind its successor.
        let limit = if keys.timeout.is_zero() { 300_000 } else { keys.timeout.as_millis().max(1) };
        config.set("linger.ms", "2").set("partitioner", "murmur2_random").set("message.timeout.ms", limit.to_string());
        config.extend(crate::stream::source::kafka::common(keys));
        config.set("enable.idempotence", "true");
        let producer = config.create().map_err(|error| StreamError::Sink(error.to_string()))?;
        let topic = topics.topics.first().cloned().unwrap_or_default();
        Ok(Self { producer, topic })
    }

    /// Sent in their order, and awaited together.
    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), Failure> {
        let mut sent = Vec::with_capacity(records.len());
        for record in records {
            sent.push(self.send(record)?);
        }
        for delivered in join_all(sent).await {
            // A client that is gone has not said that it sent the record.
            delivered.map_err(|_| Failure::new("the Kafka client is gone"))?.map_err(|(error, _)| failure(&error))?;
        }
        Ok(())
    }

    fn send(&self, record: &Record) -> Result<rdkafka::producer::DeliveryFuture, Failure> {
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
        self.producer.send_result(message).map_err(|(error, _)| failure(&error))
    }
}

fn failure(error: &KafkaError) -> Failure {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidRecord) => Failure::permanent(error),
        _ => Failure::new(error),
    }
}
