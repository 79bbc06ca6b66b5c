//! What a test asks a broker for before it begins: topics, and records in them.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::{Broker, Error};

/// A machine under load may need a while.
const LIMIT: Duration = Duration::from_secs(60);

impl Broker {
    /// Makes a topic, with settings such as `("cleanup.policy", "compact")`.
    ///
    /// # Errors
    /// [`Error::Topic`] with the broker's words, [`Error::Client`] when it cannot be asked.
    pub fn create_topic(&self, name: &str, partitions: u16, settings: &[(&str, &str)]) -> Result<(), Error> {
        let admin: AdminClient<DefaultClientContext> =
            self.client_config().create().map_err(Error::client("make an admin client"))?;
        let topic = NewTopic::new(name, i32::from(partitions), TopicReplication::Fixed(1));
        let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        let made = futures_executor::block_on(admin.create_topics(&[topic], &options));
        let failed = |reason: String| Error::Topic { topic: name.to_owned(), reason };
        for made in made.map_err(Error::client("create a topic"))? {
            made.map_err(|(_, code)| failed(code.to_string()))?;
        }
        Ok(())
    }

    /// Puts records, each a key and a payload, into a topic, as fast as the broker takes them; the keys choose the
    /// partitions. All are there when it returns.
    ///
    /// # Errors
    /// [`Error::Client`] when the broker does not take them.
    pub fn fill<K, P>(&self, topic: &str, records: impl IntoIterator<Item = (K, P)>) -> Result<(), Error>
    where
        K: AsRef<[u8]>,
        P: AsRef<[u8]>,
    {
        let producer: BaseProducer = self
            .client_config()
            .set("linger.ms", "20")
            .set("enable.idempotence", "true")
            .set("batch.num.messages", "10000")
            .set("queue.buffering.max.messages", "200000")
            // Java's choice of a partition, so that every client of the topic would choose the same.
            .set("partitioner", "murmur2_random")
            .create()
            .map_err(Error::client("make a producer"))?;
        for (key, payload) in records {
            send(&producer, BaseRecord::to(topic).key(key.as_ref()).payload(payload.as_ref()))?;
        }
        producer.flush(LIMIT).map_err(Error::client("flush the producer"))
    }

    /// A configuration that names this broker, to which more can be added.
    #[must_use]
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.bootstrap());
        config
    }
}

/// Waits while the producer is full.
fn send(producer: &BaseProducer, mut record: BaseRecord<'_, [u8], [u8]>) -> Result<(), Error> {
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => record = back,
            Err((error, _)) => return Err(Error::client("produce")(error)),
        }
        producer.poll(Duration::from_millis(10));
    }
}
