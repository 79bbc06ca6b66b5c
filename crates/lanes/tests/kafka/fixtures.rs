//! Fixtures: a topic and a group per test on one shared broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tidegate_lanes::source::kafka::{KafkaSource, KafkaSourceBuilder};
use tidegate_sandbox::kafka::Broker;

/// A timeout that only a hang reaches, also on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A topic and a group of one test.
pub(crate) struct KafkaFixture {
    pub(crate) broker: &'static Broker,
    pub(crate) topic: String,
    pub(crate) group: String,
}

impl KafkaFixture {
    pub(crate) fn new(name: &str, partitions: u16) -> Self {
        Self::with(name, partitions, &[])
    }

    pub(crate) fn with(name: &str, partitions: u16, settings: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let broker = Broker::shared();
        let topic = format!("{name}-{number}");
        broker.create_topic(&topic, partitions, settings).unwrap();
        Self { broker, group: format!("group-of-{topic}"), topic }
    }

    /// The settings of a group member, with short timeouts so that a dead member is noticed soon.
    pub(crate) fn settings(&self) -> KafkaSourceBuilder {
        settings(&self.broker.bootstrap(), &self.group).topic(&self.topic)
    }

    pub(crate) fn source(&self) -> KafkaSource {
        self.settings().build().unwrap()
    }

    /// Fills the topic with records of these numbers. Record `n` has the key `n % keys` and its number as payload.
    pub(crate) fn fill(&self, numbers: std::ops::Range<u64>, keys: u64) {
        self.broker.fill(&self.topic, numbers.map(|n| (key(n, keys), n.to_string()))).unwrap();
    }

    /// Sends a message to a partition and waits for its delivery.
    pub(crate) fn produce(&self, partition: i32, key: Option<&str>, payload: Option<&str>) {
        self.produce_all(partition, [(key, payload)]);
    }

    /// Sends messages to a partition and waits for their delivery.
    pub(crate) fn produce_all<K, P>(&self, partition: i32, messages: impl IntoIterator<Item = (Option<K>, Option<P>)>)
    where
        K: AsRef<str>,
        P: AsRef<str>,
    {
        let producer = self.producer(&[]);
        for (key, payload) in messages {
            let mut record: BaseRecord<'_, str, str> = BaseRecord::to(&self.topic).partition(partition);
            record.key = key.as_ref().map(AsRef::as_ref);
            record.payload = payload.as_ref().map(AsRef::as_ref);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(LIMIT).unwrap();
    }

    pub(crate) fn producer(&self, properties: &[(&str, &str)]) -> BaseProducer {
        let mut config = self.broker.client_config();
        config.extend(properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        config.create().unwrap()
    }

    /// The committed offset of the group per partition; `None` without a commit.
    pub(crate) fn committed(&self, partitions: i32) -> Vec<Option<i64>> {
        self.committed_with_metadata(partitions).into_iter().map(|(offset, _)| offset).collect()
    }

    pub(crate) fn committed_with_metadata(&self, partitions: i32) -> Vec<(Option<i64>, String)> {
        use rdkafka::consumer::{BaseConsumer, Consumer};
        use rdkafka::{Offset, TopicPartitionList};
        let mut config = self.broker.client_config();
        let asking: BaseConsumer = config.set("group.id", &self.group).create().unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(&self.topic, 0, partitions - 1);
        // The first request for a group may wait until the broker has created the offsets topic.
        let ask = || asking.committed_offsets(asked.clone(), LIMIT);
        let answer = std::iter::repeat_with(ask).take(100).find_map(Result::ok).unwrap();
        let offset = |offset| if let Offset::Offset(offset) = offset { Some(offset) } else { None };
        answer.elements().iter().map(|at| (offset(at.offset()), at.metadata().to_owned())).collect()
    }
}

pub(crate) fn settings(bootstrap: &str, group: &str) -> KafkaSourceBuilder {
    KafkaSource::builder(bootstrap, group)
        .property("fetch.wait.max.ms", "10")
        .property("session.timeout.ms", "6000")
        .property("heartbeat.interval.ms", "200")
        .property("reconnect.backoff.ms", "20")
        .property("reconnect.backoff.max.ms", "200")
        .drain(Duration::from_secs(5))
}

pub(crate) fn key(number: u64, keys: u64) -> String {
    format!("key-{}", number % keys)
}

/// Waits for a condition; panics after [`LIMIT`].
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "not within {LIMIT:?}: {what}");
}

/// Clones for a handler.
pub(crate) fn share<T>(value: &Arc<T>) -> Arc<T> {
    Arc::clone(value)
}
