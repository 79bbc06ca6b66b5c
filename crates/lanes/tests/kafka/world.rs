//! What the tests share: topics of their own on one broker, members of a group, and what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tidegate_lanes::source::kafka::{Kafka, Settings};
use tidegate_sandbox::kafka::Broker;

/// Longer than anything here takes on a busy machine; reached only by what hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A topic and a group that no other test knows.
pub(crate) struct World {
    pub(crate) broker: &'static Broker,
    pub(crate) topic: String,
    pub(crate) group: String,
}

impl World {
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

    /// Settings of a member of the group. The timeouts are short, so that a member that is gone is missed soon.
    pub(crate) fn settings(&self) -> Settings {
        settings(&self.broker.bootstrap(), &self.group).topic(&self.topic)
    }

    pub(crate) fn source(&self) -> Kafka {
        self.settings().build().unwrap()
    }

    /// Puts records `from..to` into the topic: number `n` has the key `n % keys` and its number as its payload.
    pub(crate) fn fill(&self, numbers: std::ops::Range<u64>, keys: u64) {
        self.broker.fill(&self.topic, numbers.map(|n| (key(n, keys), n.to_string()))).unwrap();
    }

    /// Sends one message to a partition and waits until it is there.
    pub(crate) fn produce(&self, partition: i32, key: Option<&str>, payload: Option<&str>) {
        self.produce_all(partition, [(key, payload)]);
    }

    /// Sends messages to a partition and waits until they are there.
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

    /// The group's committed offsets, partition by partition; `None` where nothing was committed.
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
        // The first one who asks for a group may have to wait for the broker to make room for groups.
        let ask = || asking.committed_offsets(asked.clone(), LIMIT);
        let answer = std::iter::repeat_with(ask).take(100).find_map(Result::ok).unwrap();
        let offset = |offset| if let Offset::Offset(offset) = offset { Some(offset) } else { None };
        answer.elements().iter().map(|at| (offset(at.offset()), at.metadata().to_owned())).collect()
    }
}

pub(crate) fn settings(bootstrap: &str, group: &str) -> Settings {
    Kafka::builder(bootstrap, group)
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

/// Waits until something holds, and panics if it does not within [`LIMIT`].
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "not within {LIMIT:?}: {what}");
}

/// A clone for a handler.
pub(crate) fn share<T>(value: &Arc<T>) -> Arc<T> {
    Arc::clone(value)
}
