//! A topic: what the producer sends again by itself is in the topic once, and a record is done when all replicas in sync
//! have it.

use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use tidegate_lanes::{Failure, Record};

use crate::config::stream::{StreamKeys, Topics};
use crate::stream::error::StreamError;
use crate::stream::source::kafka::client;

pub(in crate::stream) struct Topic {
    config: ClientConfig,
    // Locked for a look, and for the making of another one.
    producer: Mutex<FutureProducer>,
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
        let producer = config.create().map(Mutex::new).map_err(|error| StreamError::Sink(error.to_string()))?;
        let topic = topics.topics.first().cloned().unwrap_or_default();
        Ok(Self { config, producer, topic })
    }

    /// The producer. One that has lost track of what the broker has (as where the broker has lost it) takes nothing any more,
    /// and another one takes its place.
    fn producer(&self) -> Result<FutureProducer, Failure> {
        let mut producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if producer.client().fatal_error().is_some() {
            *producer = self.config.create().map_err(|error| failure(&error))?;
        }
        Ok(producer.clone())
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
        self.producer()?.send_result(message).map_err(|(error, _)| failure(&error))
    }
}

fn failure(error: &KafkaError) -> Failure {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidRecord) => Failure::permanent(error),
        _ => Failure::new(error),
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use tidegate_lanes::{Epoch, Lane, Position};

    use super::*;

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
