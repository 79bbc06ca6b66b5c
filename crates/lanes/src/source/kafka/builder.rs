//! The settings of a Kafka source, and the librdkafka configuration made from them.

use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use regex_lite::Regex;

use super::error::KafkaSourceError;

/// Where to start a lane that has no committed offset, or whose committed offset is no longer in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum StartOffset {
    /// The oldest record. The default, because it skips nothing that is still available.
    #[default]
    Earliest,
    /// The next new record.
    Latest,
    /// Do not start: the source fails with [`KafkaSourceError::OutOfRange`].
    Fail,
    /// The first record with this timestamp or a later one, in milliseconds since 1970. A committed offset that is no
    /// longer in the log is replaced by the oldest record.
    Timestamp(i64),
}

/// Builds a [`KafkaSource`](super::KafkaSource).
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct KafkaSourceBuilder {
    pub(super) brokers: String,
    pub(super) group: String,
    pub(super) topics: Vec<String>,
    pub(super) start: StartOffset,
    pub(super) drain: Duration,
    pub(super) close: Duration,
    pub(super) prefetch_bytes: usize,
    pub(super) metadata: String,
    properties: Vec<(String, String)>,
}

/// Properties on whose values the source depends.
const RESERVED_PROPERTIES: [&str; 6] = [
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "group.id",
    "statistics.interval.ms",
];

/// librdkafka's overhead per prefetched record, measured and rounded up.
pub(super) const RECORD_BYTES: usize = 450;

/// Kafka's internal topics, which patterns do not match: otherwise each commit would produce the next record.
const INTERNAL_TOPICS: &str = "^__consumer_offsets$,^__transaction_state$,^__share_group_state$";

/// The longest limit: a time after it can be computed.
const LIMIT_MAX: Duration = Duration::from_secs(86_400);
/// The assumed number of partitions if no broker answers within the timeout.
const LANES_DEFAULT: usize = 16;
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);

/// Below the broker's limit of 4,096 bytes (`offset.metadata.max.bytes`).
const METADATA_BYTES_MAX: usize = 4_000;

impl fmt::Debug for KafkaSourceBuilder {
    /// Omits the properties, which may contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { brokers, group, topics, .. } = self;
        f.debug_struct("KafkaSourceBuilder")
            .field("brokers", brokers)
            .field("group", group)
            .field("topics", topics)
            .finish_non_exhaustive()
    }
}

impl KafkaSourceBuilder {
    pub(super) fn new(brokers: &str, group: &str) -> Self {
        Self {
            brokers: brokers.to_owned(),
            group: group.to_owned(),
            topics: Vec::new(),
            start: StartOffset::default(),
            drain: Duration::from_secs(20),
            close: Duration::from_secs(10),
            prefetch_bytes: 8 << 20,
            metadata: concat!("tidegate-lanes/", env!("CARGO_PKG_VERSION")).to_owned(),
            properties: Vec::new(),
        }
    }

    /// Adds a topic. A name that starts with `^` is a regular expression. It matches no internal topic of Kafka such as
    /// `__consumer_offsets`, unless a topic that starts with `__` is added by name.
    pub fn topic(mut self, topic: &str) -> Self {
        // librdkafka rejects duplicates.
        if !self.topics.iter().any(|named| named == topic) {
            self.topics.push(topic.to_owned());
        }
        self
    }

    /// Sets where to start without a committed offset.
    pub fn start(mut self, start: StartOffset) -> Self {
        self.start = start;
        self
    }

    /// Sets the time at which to start without a committed offset, in milliseconds since 1970; `None` changes nothing.
    pub fn start_time(mut self, timestamp_ms: Option<i64>) -> Self {
        self.start = timestamp_ms.map_or(self.start, StartOffset::Timestamp);
        self
    }

    /// Sets how long running handlers may take when a lane is revoked. Default: 20 s. The group waits for at most
    /// `max.poll.interval.ms`, whose default is 5 minutes. A limit above a day is a day.
    pub fn drain(mut self, within: Duration) -> Self {
        self.drain = within.min(LIMIT_MAX);
        self
    }

    /// Sets how long the last commit may take when the source is closed. Default: 10 s. A limit above a day is a day.
    pub fn close(mut self, within: Duration) -> Self {
        self.close = within.min(LIMIT_MAX);
        self
    }

    /// Sets how many bytes the client prefetches, for all lanes together. Default: 8 MiB. A lower value slows down lanes
    /// that lag far behind. Up to half of this may be queued for delivery in addition. Each lane may exceed its share by
    /// one record or one producer batch, and has at least 96 KiB.
    pub fn prefetch_bytes(mut self, bytes: usize) -> Self {
        self.prefetch_bytes = bytes;
        self
    }

    /// Lowers [`prefetch_bytes`](Self::prefetch_bytes) to at most `bytes`, because prefetched bytes count in
    /// [`Bounds::bytes_max`](crate::Bounds::bytes_max).
    pub fn limit_prefetch_bytes(mut self, bytes: usize) -> Self {
        self.prefetch_bytes = self.prefetch_bytes.min(bytes);
        self
    }

    /// Sets the metadata stored with each committed offset, for tools that show the group. Default: name and version of
    /// this library. Truncated to 4,000 bytes. Metadata of other members is not read.
    pub fn metadata(mut self, text: &str) -> Self {
        let cut = text.floor_char_boundary(METADATA_BYTES_MAX);
        // C strings end at a NUL.
        self.metadata = text[..cut].replace('\0', "");
        self
    }

    /// Sets a librdkafka property, such as `security.protocol` or `group.instance.id`. With `group.protocol` = `consumer`
    /// the broker manages the group (KIP-848). TLS, SCRAM and OAUTHBEARER need the feature `kafka-ssl`.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether one of the topics or patterns is or matches this topic.
    #[must_use]
    pub fn subscribes_to(&self, topic: &str) -> bool {
        self.topics.iter().any(|named| matches_topic(named, topic))
    }

    /// Validates the settings like [`build`](Self::build), without contacting a broker.
    ///
    /// # Errors
    /// Returns [`KafkaSourceError::Settings`] or [`KafkaSourceError::Reserved`] for an invalid property, and
    /// [`KafkaSourceError::Subscription`] without a topic or a group.
    pub fn check(&self) -> Result<(), KafkaSourceError> {
        if let Some((name, _)) = self.properties.iter().find(|(name, _)| RESERVED_PROPERTIES.contains(&name.as_str())) {
            return Err(KafkaSourceError::Reserved(name.clone()));
        }
        self.member_config().create_native_config().map_err(KafkaSourceError::Settings)?;
        self.fetcher_config(1).create_native_config().map_err(KafkaSourceError::Settings)?;
        self.check_topics()
    }

    fn check_topics(&self) -> Result<(), KafkaSourceError> {
        let refused = |reason: &str| Err(KafkaSourceError::Subscription(reason.to_owned()));
        if self.group.is_empty() {
            return refused("group name is empty");
        }
        if self.topics.is_empty() {
            return refused("no topic");
        }
        match self.topics.iter().find(|topic| !is_valid_topic(topic)) {
            Some(topic) => {
                refused(&format!("`{topic}` is neither a topic nor a regular expression that librdkafka accepts"))
            }
            None => Ok(()),
        }
    }

    /// The number of partitions of the topics, as an upper bound of the lanes. It only divides the prefetch, so a default
    /// suffices if no broker answers.
    pub(super) fn lanes_max(&self) -> usize {
        let count = || {
            let visitor: BaseConsumer = self.client_config().create().ok()?;
            let of = |topic_or_pattern: &String| {
                let pattern = topic_or_pattern.starts_with('^');
                let metadata = visitor.fetch_metadata((!pattern).then_some(topic_or_pattern), METADATA_TIMEOUT).ok()?;
                let topics = metadata.topics().iter().filter(|topic| matches_topic(topic_or_pattern, topic.name()));
                Some(topics.map(|topic| topic.partitions().len()).sum::<usize>())
            };
            self.topics.iter().map(of).sum::<Option<usize>>()
        };
        count().filter(|count| *count > 0).unwrap_or(LANES_DEFAULT)
    }

    /// The configuration that all clients share.
    fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        self.add_common(&mut config);
        config
    }

    /// Adds shared settings. Reading them back from a [`ClientConfig`] would replace passwords by a placeholder.
    fn add_common(&self, config: &mut ClientConfig) {
        config.set("bootstrap.servers", &self.brokers).set_log_level(RDKafkaLogLevel::Warning);
        if !self.topics.iter().any(|topic| topic.starts_with("__")) {
            config.set("topic.blacklist", INTERNAL_TOPICS);
        }
        config.extend(self.properties.iter().filter(|(name, _)| !is_member_property(name)).cloned());
    }

    /// The configuration of the fetcher for at most `lanes` partitions. It needs the group name to read committed
    /// offsets, but does not join the group.
    pub(super) fn fetcher_config(&self, lanes: usize) -> ClientConfig {
        let share = (self.prefetch_bytes / lanes.max(1)).max(64 << 10);
        let mut config = ClientConfig::new();
        config
            .set("group.id", &self.group)
            .set("queued.max.messages.kbytes", (share >> 10).to_string())
            .set("queued.min.messages", (share / RECORD_BYTES).clamp(100, 100_000).to_string())
            .set("fetch.message.max.bytes", (share / 4).clamp(64 << 10, 1 << 20).to_string())
            // How long a partition with enough prefetched records is not fetched; with the default of 1 s it runs dry.
            .set("fetch.queue.backoff.ms", "5")
            .set("statistics.interval.ms", "1000");
        self.add_common(&mut config);
        config
            .set("auto.offset.reset", self.start.name())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // Needed to find gaps behind the last record.
            .set("enable.partition.eof", "true");
        config
    }

    /// The configuration of the group member, which fetches no records.
    pub(super) fn member_config(&self) -> ClientConfig {
        let mut config = self.client_config();
        config.set("group.id", &self.group).set("enable.auto.commit", "false");
        let is_broker_led = self.properties.iter().any(|(name, value)| name == "group.protocol" && value == "consumer");
        if !is_broker_led {
            config.set("partition.assignment.strategy", "cooperative-sticky");
        }
        config.extend(self.properties.iter().filter(|(name, _)| is_member_property(name)).cloned());
        config
    }
}

/// Whether librdkafka accepts the topic or pattern. It has its own regular expressions, so a client without a broker is
/// asked.
fn is_valid_topic(topic_or_pattern: &str) -> bool {
    if !topic_or_pattern.starts_with('^') {
        return !topic_or_pattern.is_empty();
    }
    let fetcher_config = ClientConfig::new().set("group.id", "any").set_log_level(RDKafkaLogLevel::Emerg).create();
    fetcher_config.map_or(true, |fetcher_config: BaseConsumer| fetcher_config.subscribe(&[topic_or_pattern]).is_ok())
}

/// Whether the topic name or pattern matches `topic`. A pattern that only librdkafka can parse matches all topics.
fn matches_topic(topic_or_pattern: &str, topic: &str) -> bool {
    if !topic_or_pattern.starts_with('^') {
        return topic_or_pattern == topic;
    }
    Regex::new(topic_or_pattern).map_or(true, |pattern| pattern.is_match(topic))
}

/// Whether only a group member understands or needs the property.
fn is_member_property(name: &str) -> bool {
    let names =
        ["partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"];
    name.starts_with("group.") || names.contains(&name)
}

impl StartOffset {
    fn name(self) -> &'static str {
        match self {
            Self::Earliest | Self::Timestamp(_) => "earliest",
            Self::Latest => "latest",
            Self::Fail => "error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_properties_are_rejected() {
        // Otherwise the member would commit to another group than the fetcher reads from.
        for property in ["enable.auto.commit", "group.id"] {
            let settings = KafkaSourceBuilder::new("localhost:1", "g").topic("t").property(property, "true");
            assert!(matches!(settings.build(), Err(KafkaSourceError::Reserved(name)) if name == property));
        }
    }

    #[test]
    fn unknown_property_is_rejected_by_name() {
        let settings = KafkaSourceBuilder::new("localhost:1", "g").topic("t").property("no.such.property", "1");
        assert!(
            matches!(settings.build(), Err(KafkaSourceError::Settings(error)) if error.to_string().contains("no.such.property"))
        );
    }

    #[test]
    fn invalid_subscription_is_rejected_without_broker() {
        let build = |group: &str, topics: &[&str]| {
            let settings = KafkaSourceBuilder::new("localhost:1", group);
            topics.iter().fold(settings, |settings, topic| settings.topic(topic)).build().map(drop)
        };
        for (group, topics, words) in [
            ("g", &[][..], "no topic"),
            ("", &["t"], "group name"),
            ("g", &["t", ""], "`` is neither a topic"),
            ("g", &["t", "^("], "`^(` is neither a topic nor a regular expression"),
        ] {
            let error = build(group, topics).expect_err("invalid subscription");
            assert!(matches!(&error, KafkaSourceError::Subscription(message) if message.contains(words)), "{error}");
        }
        assert!(build("g", &["t", "^orders-[a-z]+$", "t"]).is_ok(), "duplicate topics are merged");
    }

    #[test]
    fn prefetch_is_divided_among_lanes() {
        let settings = KafkaSourceBuilder::new("localhost:1", "g").prefetch_bytes(8 << 20);
        assert_eq!(settings.fetcher_config(8).get("queued.max.messages.kbytes"), Some("1024"));
        assert_eq!(settings.fetcher_config(100_000).get("queued.max.messages.kbytes"), Some("64"));
    }

    #[test]
    fn limit_only_lowers_the_prefetch() {
        let prefetch = |bytes| KafkaSourceBuilder::new("localhost:1", "g").limit_prefetch_bytes(bytes).prefetch_bytes;
        assert_eq!((prefetch(1 << 20), prefetch(1 << 30)), (1 << 20, 8 << 20));
    }

    #[test]
    fn internal_topics_are_read_by_name_only() {
        let of = |topic: &str| {
            KafkaSourceBuilder::new("localhost:1", "g").topic(topic).member_config().get("topic.blacklist").is_none()
        };
        assert_eq!([of("^.*"), of("orders"), of("__consumer_offsets")], [false, false, true]);
    }

    #[test]
    fn all_clients_use_the_same_password() {
        let settings = KafkaSourceBuilder::new("localhost:1", "g").property("sasl.password", "secret");
        for config in [settings.client_config(), settings.fetcher_config(1), settings.member_config()] {
            assert_eq!(config.get("sasl.password"), Some("secret"));
        }
    }

    #[test]
    fn pattern_counts_partitions_of_matching_topics() {
        assert!(matches_topic("^orders-.*", "orders-eu") && !matches_topic("^orders-.*", "payments"));
        assert!(matches_topic("orders", "orders") && !matches_topic("orders", "orders-eu"));
        assert!(matches_topic("^(", "anything"), "an unknown pattern matches all topics");
    }

    #[test]
    fn metadata_is_truncated_between_characters() {
        let settings = KafkaSourceBuilder::new("localhost:1", "g").metadata(&"ü".repeat(3_000));
        assert_eq!(settings.metadata.len(), 4_000);
        assert_eq!(KafkaSourceBuilder::new("", "").metadata("a\0b").metadata, "ab");
    }
}
