//! Topics and their records, for tests.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::{Broker, Error};

/// A busy machine may need some time.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Broker {
    /// Creates a topic, with settings such as `("cleanup.policy", "compact")`.
    ///
    /// # Errors
    /// [`Error::Topic`] with the error of the broker, [`Error::Client`] if it cannot be reached.
    pub fn create_topic(&self, name: &str, partitions: u16, settings: &[(&str, &str)]) -> Result<(), Error> {
        let admin: AdminClient<DefaultClientContext> =
            self.client_config().create().map_err(Error::client("create an admin client"))?;
        let topic = NewTopic::new(name, i32::from(partitions), TopicReplication::Fixed(1));
        let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT)).request_timeout(Some(TIMEOUT));
        let made = futures_executor::block_on(admin.create_topics(&[topic], &options));
        let failed = |reason: String| Error::Topic { topic: name.to_owned(), reason };
        for made in made.map_err(Error::client("create a topic"))? {
            made.map_err(|(_, code)| failed(code.to_string()))?;
        }
        Ok(())
    }

    /// Produces records of a key and a payload to a topic; the keys choose the partitions. All records are stored when
    /// it returns.
    ///
    /// # Errors
    /// [`Error::Client`] if the broker does not accept them.
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
            // The partitioner of the Java client, so that every client chooses the same partitions.
            .set("partitioner", "murmur2_random")
            .create()
            .map_err(Error::client("create a producer"))?;
        for (key, payload) in records {
            send(&producer, BaseRecord::to(topic).key(key.as_ref()).payload(payload.as_ref()))?;
        }
        producer.flush(TIMEOUT).map_err(Error::client("flush the producer"))
    }

    /// A client configuration for this broker, which callers can extend.
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
