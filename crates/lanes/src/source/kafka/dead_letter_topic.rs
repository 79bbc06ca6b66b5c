//! A Kafka topic as a dead-letter queue.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, ClientContext};

use super::error::KafkaSourceError;
use super::log::{self, ErrorLogLimiter};
use super::partition_map::PartitionMap;
use crate::dead_letter::{DeadLetter, DeadLetterQueue, SendFuture};
use crate::failure::{FailureCause, RecordFailure};
use crate::record::Record;
use crate::sync::{Mutex, lock};

/// The length limit of the header with the error text.
const REASON_BYTES_MAX: usize = 1_000;

/// The prefix of the added headers.
const PREFIX: &str = "tidegate-";
/// Headers with the origin of a record; kept when the record passes through several topics.
const ORIGIN: [&str; 4] = ["tidegate-topic", "tidegate-partition", "tidegate-offset", "tidegate-timestamp-ms"];

/// A Kafka topic as a dead-letter queue. If a subscription reads it again, it is a retry topic, which breaks the order of
/// a key.
///
/// A dead letter has the key, the payload and the headers of its record. Added headers state the origin of the record
/// (`tidegate-topic`, `-partition`, `-offset`, `-timestamp-ms`), the subscription (`tidegate-subscription`) and the
/// failure (`tidegate-attempts`, `-cause`, `-error`). A record that is too large for the topic with them is stored without
/// them; a letter that is still too large is refused for good. A letter counts as accepted once all in-sync replicas have it. The
/// producer is idempotent, so its own retries store the letter once.
pub struct DeadLetterTopic {
    producer: Arc<LetterProducer>,
    topic: String,
    partition_map: PartitionMap,
}

/// The producer, which is replaced after a fatal error.
struct LetterProducer {
    config: ClientConfig,
    // Locked for a check and for replacing the producer.
    current: Mutex<FutureProducer<ProducerContext>>,
    /// Sends each message in a batch of its own; made when a batch was too large for the topic.
    alone: Mutex<Option<FutureProducer<ProducerContext>>>,
}

/// Logs client errors; a failed delivery itself only reports a timeout.
#[derive(Default)]
struct ProducerContext(ErrorLogLimiter);

impl ClientContext for ProducerContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log::client(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.log(&error, reason);
    }
}

impl DeadLetterTopic {
    /// Creates the producer. `brokers` is the value of `bootstrap.servers`; `partition_map` belongs to the source of the
    /// records.
    ///
    /// # Errors
    /// Returns [`KafkaSourceError::Settings`] if librdkafka rejects the settings.
    pub fn new(brokers: &str, topic: &str, partition_map: PartitionMap) -> Result<Self, KafkaSourceError> {
        Self::with_properties(brokers, topic, partition_map, [])
    }

    /// Like [`new`](Self::new), with librdkafka properties such as `security.protocol`.
    ///
    /// # Errors
    /// Returns [`KafkaSourceError::Settings`] if librdkafka rejects a property.
    pub fn with_properties<'a>(
        brokers: &str,
        topic: &str,
        partition_map: PartitionMap,
        properties: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, KafkaSourceError> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("linger.ms", "5")
            // The default partitioner of the Java client.
            .set("partitioner", "murmur2_random")
            // After this time the subscription retries with its own back-off.
            .set("message.timeout.ms", "30000")
            // The default is below the limit of brokers; a record that could be read must fit as a dead letter. The
            // broker's limit applies.
            .set("message.max.bytes", "1000000000")
            // The client waits for a missing topic by default as long as the message timeout, and then not reported as missing.
            .set("topic.metadata.propagation.max.ms", "5000")
            .set_log_level(RDKafkaLogLevel::Warning);
        config.extend(properties.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        config.set("enable.idempotence", "true");
        let producer = config
            .create_with_context(ProducerContext::default())
            .map(Mutex::new)
            .map_err(KafkaSourceError::Settings)?;
        let producer = Arc::new(LetterProducer { config, current: producer, alone: Mutex::new(None) });
        Ok(Self { producer, topic: topic.to_owned(), partition_map })
    }

    /// The identifier of the cluster, asked of a broker for at most `timeout`; `None` without an answer.
    #[must_use]
    pub fn cluster_id(&self, timeout: Duration) -> Option<String> {
        self.producer.get().ok()?.client().fetch_cluster_id(timeout)
    }

    fn headers(&self, letter: &DeadLetter) -> OwnedHeaders {
        let record = &letter.record;
        let has_origin = record.headers().iter().any(|header| *header.name == *ORIGIN[0]);
        let kept = |name: &str| !name.starts_with(PREFIX) || (has_origin && ORIGIN.contains(&name));
        let mut headers = own_headers(record, kept);
        let mut add = |key: &str, value: &str| {
            headers = std::mem::take(&mut headers).insert(KafkaHeader { key, value: Some(value) });
        };
        if !has_origin {
            self.origin(record).iter().zip(ORIGIN).for_each(|(value, name)| add(name, value));
        }
        let reason = letter.failure.to_string();
        add("tidegate-subscription", &letter.subscription);
        add("tidegate-attempts", &letter.attempts.to_string());
        add("tidegate-cause", cause(letter.failure.cause()));
        add("tidegate-error", &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]);
        headers
    }

    /// The header values, in the order of [`ORIGIN`].
    fn origin(&self, record: &Record) -> [String; 4] {
        let partition = self.partition_map.partition(record.lane());
        let topic = partition.as_ref().map_or_else(String::new, |partition| partition.topic.to_string());
        let number = partition.map_or_else(|| record.lane().to_string(), |partition| partition.number.to_string());
        [topic, number, record.position().to_string(), record.timestamp_ms().to_string()]
    }
}

fn cause(cause: FailureCause) -> &'static str {
    match cause {
        FailureCause::Handler => "handler",
        FailureCause::Panic => "panic",
        FailureCause::Dropped => "dropped",
        FailureCause::Overdue => "overdue",
        FailureCause::Abandoned => "abandoned",
        FailureCause::Undecodable => "undecodable",
    }
}

impl LetterProducer {
    /// The producer. An idempotent producer with a fatal error, for instance after data loss on the broker, accepts
    /// nothing more and is replaced.
    fn get(&self) -> Result<FutureProducer<ProducerContext>, KafkaError> {
        let mut producer = lock(&self.current);
        if producer.client().fatal_error().is_some() {
            *producer = self.config.create_with_context(ProducerContext::default())?;
        }
        Ok(producer.clone())
    }

    /// The producer without batches.
    fn get_alone(&self) -> Result<FutureProducer<ProducerContext>, KafkaError> {
        let mut alone = lock(&self.alone);
        match &*alone {
            Some(producer) if producer.client().fatal_error().is_none() => Ok(producer.clone()),
            _ => {
                let mut config = self.config.clone();
                config.set("batch.num.messages", "1");
                Ok(alone.insert(config.create_with_context(ProducerContext::default())?).clone())
            }
        }
    }

    /// Stores a record. The limit of a topic is that of a batch, so a record that is refused as too large is sent alone, and then
    /// without the headers of a letter.
    async fn store(&self, topic: &str, record: &Record, headers: OwnedHeaders) -> Result<(), KafkaError> {
        let batched = send(self.get()?, topic, record, headers.clone()).await;
        let Err(error) = batched else { return Ok(()) };
        if !is_too_large(&error) {
            return Err(error);
        }
        match send(self.get_alone()?, topic, record, headers).await {
            Err(error) if is_too_large(&error) => {
                send(self.get_alone()?, topic, record, own_headers(record, |_| true)).await
            }
            stored => stored,
        }
    }
}

async fn send(
    producer: FutureProducer<ProducerContext>,
    topic: &str,
    record: &Record,
    headers: OwnedHeaders,
) -> Result<(), KafkaError> {
    let mut message = FutureRecord::<[u8], [u8]>::to(topic).headers(headers);
    message.key = record.source_key();
    message.payload = record.payload();
    let sent = producer.send_result(message).map_err(|(error, _)| error)?;
    // The producer was dropped before it reported the delivery.
    let delivered = sent.await.map_err(|_| KafkaError::Canceled)?;
    delivered.map(drop).map_err(|(error, _)| error)
}

fn is_too_large(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(error.rdkafka_error_code(), Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize))
}

impl DeadLetterQueue for DeadLetterTopic {
    fn send(&self, letter: DeadLetter) -> SendFuture {
        let headers = self.headers(&letter);
        let (producer, topic) = (Arc::clone(&self.producer), self.topic.clone());
        Box::pin(async move {
            let record = &letter.record;
            let stored = producer.store(&topic, record, headers).await;
            stored.map_err(|error| match is_too_large(&error) {
                true => {
                    let bytes = record.size_bytes();
                    let reason = format!("{topic} accepts no message of {bytes} bytes (max.message.bytes): {error}");
                    Box::new(RecordFailure::permanent(reason)) as Box<dyn StdError + Send + Sync>
                }
                false => Box::new(error),
            })
        })
    }
}

/// The headers of the record that are kept.
fn own_headers(record: &Record, is_kept: impl Fn(&str) -> bool) -> OwnedHeaders {
    let headers = OwnedHeaders::new_with_capacity(record.headers().len() + 8);
    record.headers().iter().filter(|header| is_kept(&header.name)).fold(headers, |headers, header| {
        headers.insert(KafkaHeader { key: &header.name, value: header.value.as_deref() })
    })
}

impl std::fmt::Debug for DeadLetterTopic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterTopic").field("topic", &self.topic).finish_non_exhaustive()
    }
}
