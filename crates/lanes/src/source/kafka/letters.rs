//! A topic that takes the records that could not be done.

use std::error::Error as StdError;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, ClientContext};

use super::ear::log::{self, Complaints};
use super::{Error, Roster};
use crate::dead_letter::{DeadLetter, Letter, Taken};
use crate::failure::Cause;
use crate::record::Record;
use crate::sync::{Mutex, lock};

/// Of the header with the failure's text.
const REASON_BYTES_MAX: usize = 1_000;

/// What the headers that are added have in common.
const PREFIX: &str = "tidegate-";
/// Where a record came from first: kept when it goes through several topics.
const ORIGIN: [&str; 4] = ["tidegate-topic", "tidegate-partition", "tidegate-offset", "tidegate-timestamp-ms"];

/// A topic that takes the records that could not be done: a dead-letter topic, or, if a subscription reads it again, a
/// topic for later tries, which breaks the order of a key.
///
/// A letter has the key, the payload and the headers of its record, and in headers of its own where the record was first
/// (`tidegate-topic`, `-partition`, `-offset`, `-timestamp-ms`), whose letter it is (`tidegate-subscription`), and why it
/// is one (`tidegate-attempts`, `-cause`, `-error`). It counts as taken when all replicas in sync have it. The producer is
/// idempotent: what it sends again by itself is in the topic once.
pub struct LetterTopic {
    config: ClientConfig,
    // Locked for a look, and for the making of another one.
    producer: Mutex<FutureProducer<Ear>>,
    topic: String,
    roster: Roster,
}

/// Logs what the client complains of: a letter that it could not send says only that its time was over.
#[derive(Default)]
struct Ear(Complaints);

impl ClientContext for Ear {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log::client(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(&error, reason);
    }
}

impl LetterTopic {
    /// Makes the producer. Brokers as in `bootstrap.servers`; the roster is that of the source that the records come
    /// from.
    ///
    /// # Errors
    /// [`Error::Settings`] if the client refuses the brokers.
    pub fn new(brokers: &str, topic: &str, roster: Roster) -> Result<Self, Error> {
        Self::with_properties(brokers, topic, roster, [])
    }

    /// As [`new`](Self::new), with properties of librdkafka's, such as `security.protocol`.
    ///
    /// # Errors
    /// [`Error::Settings`] for what cannot be set.
    pub fn with_properties<'a>(
        brokers: &str,
        topic: &str,
        roster: Roster,
        properties: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Error> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("linger.ms", "5")
            // Java's choice of a partition.
            .set("partitioner", "murmur2_random")
            // After that the letter is sent by the subscription anew, with its back-off.
            .set("message.timeout.ms", "30000")
            // Its own default is less than what brokers take: what could be read must not be too large to be a letter. The
            // broker has the last word.
            .set("message.max.bytes", "1000000000")
            // By itself it waits for a topic that is not there for as long as for the letter, and would not say that it is not.
            .set("topic.metadata.propagation.max.ms", "5000")
            .set_log_level(RDKafkaLogLevel::Warning);
        config.extend(properties.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        config.set("enable.idempotence", "true");
        let producer = config.create_with_context(Ear::default()).map(Mutex::new).map_err(Error::Settings)?;
        Ok(Self { config, producer, topic: topic.to_owned(), roster })
    }

    /// The producer. One that has lost track of what the broker has (as where the broker has lost it) takes nothing any more,
    /// and another one takes its place.
    fn producer(&self) -> Result<FutureProducer<Ear>, KafkaError> {
        let mut producer = lock(&self.producer);
        if producer.client().fatal_error().is_some() {
            *producer = self.config.create_with_context(Ear::default())?;
        }
        Ok(producer.clone())
    }

    fn headers(&self, letter: &Letter) -> OwnedHeaders {
        let record = &letter.record;
        let has_origin = record.headers().iter().any(|header| *header.name == *ORIGIN[0]);
        let kept = |name: &str| !name.starts_with(PREFIX) || (has_origin && ORIGIN.contains(&name));
        let mut headers = OwnedHeaders::new_with_capacity(record.headers().len() + 8);
        for header in record.headers().iter().filter(|header| kept(&header.name)) {
            headers = headers.insert(KafkaHeader { key: &header.name, value: header.value.as_deref() });
        }
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

    /// In the order of [`ORIGIN`].
    fn origin(&self, record: &Record) -> [String; 4] {
        let partition = self.roster.partition(record.lane());
        let topic = partition.as_ref().map_or_else(String::new, |partition| partition.topic.to_string());
        let number = partition.map_or_else(|| record.lane().to_string(), |partition| partition.number.to_string());
        [topic, number, record.position().to_string(), record.timestamp_ms().to_string()]
    }
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Handler => "handler",
        Cause::Panic => "panic",
        Cause::Dropped => "dropped",
        Cause::Overdue => "overdue",
        Cause::Abandoned => "abandoned",
        Cause::Undecodable => "undecodable",
    }
}

impl DeadLetter for LetterTopic {
    fn send(&self, letter: Letter) -> Taken {
        let mut message = FutureRecord::<[u8], [u8]>::to(&self.topic).headers(self.headers(&letter));
        message.key = letter.record.own_key();
        message.payload = letter.record.payload();
        let producer = self.producer();
        let sent = producer.and_then(|producer| producer.send_result(message).map_err(|(error, _)| error));
        Box::pin(async move {
            // A client that is gone has not said that it sent the letter.
            let delivered = sent?.await.map_err(|_| KafkaError::Canceled)?;
            delivered.map(drop).map_err(|(error, _)| Box::new(error) as Box<dyn StdError + Send + Sync>)
        })
    }
}

impl std::fmt::Debug for LetterTopic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LetterTopic").field("topic", &self.topic).finish_non_exhaustive()
    }
}
