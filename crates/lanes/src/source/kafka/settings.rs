//! What a Kafka source is told, and what it tells the client.

use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use regex_lite::Regex;

use super::{Error, Kafka};

/// Where a lane begins that has no committed position, or one that the log does not hold any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Start {
    /// With the oldest record that is there. The default: nothing that can still be read is passed over.
    #[default]
    Earliest,
    /// With the next record that arrives.
    Latest,
    /// Nowhere: the source ends with [`Error::OutOfRange`].
    Fail,
}

/// Builds a [`Kafka`] source.
#[derive(Clone)]
#[must_use = "settings do nothing until they are built"]
pub struct Settings {
    pub(super) brokers: String,
    pub(super) group: String,
    pub(super) topics: Vec<String>,
    pub(super) start: Start,
    pub(super) drain: Duration,
    pub(super) close: Duration,
    pub(super) prefetch_bytes: usize,
    pub(super) metadata: String,
    properties: Vec<(String, String)>,
}

/// The source stands on its own values of these; with others it would lose records or stop.
const RESERVED: [&str; 6] = [
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "group.id",
    "statistics.interval.ms",
];

/// Of librdkafka's own for a record that it holds ready, besides its bytes; measured, and rounded up.
pub(super) const RECORD_BYTES: usize = 450;

/// Topics of Kafka's own, which are no topics to a pattern: each commit would be the next record.
const INTERNAL: &str = "^__consumer_offsets$,^__transaction_state$,^__share_group_state$";

/// Of partitions, and how long to wait before it is made.
const LANES_GUESS: usize = 16;
const METADATA_LIMIT: Duration = Duration::from_secs(5);

/// What the server takes at most is 4,096 (`offset.metadata.max.bytes`).
const METADATA_BYTES_MAX: usize = 4_000;

impl fmt::Debug for Settings {
    /// Without the properties: passwords are among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { brokers, group, topics, .. } = self;
        f.debug_struct("Settings")
            .field("brokers", brokers)
            .field("group", group)
            .field("topics", topics)
            .finish_non_exhaustive()
    }
}

impl Settings {
    pub(super) fn new(brokers: &str, group: &str) -> Self {
        Self {
            brokers: brokers.to_owned(),
            group: group.to_owned(),
            topics: Vec::new(),
            start: Start::default(),
            drain: Duration::from_secs(20),
            close: Duration::from_secs(10),
            prefetch_bytes: 8 << 20,
            metadata: concat!("tidegate-lanes/", env!("CARGO_PKG_VERSION")).to_owned(),
            properties: Vec::new(),
        }
    }

    /// Reads this topic, besides those that were named before; a name that begins with `^` is a regular expression, which
    /// means no topic of Kafka's own (`__consumer_offsets`), unless one whose name begins with `__` is named besides.
    pub fn topic(mut self, topic: &str) -> Self {
        // The client refuses one that is named twice.
        if !self.topics.iter().any(|named| named == topic) {
            self.topics.push(topic.to_owned());
        }
        self
    }

    /// Where to begin without a committed position.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How long what runs may take to end when a lane is taken away: 20 s by default. The group waits for it, at most
    /// for its `max.poll.interval.ms`, which is 5 minutes unless it is set.
    pub fn drain(mut self, within: Duration) -> Self {
        self.drain = within;
        self
    }

    /// How long the last commit may take when the source is closed: 10 s by default.
    pub fn close(mut self, within: Duration) -> Self {
        self.close = within;
        self
    }

    /// How much the client reads ahead, for all lanes together: 8 MiB by default. With less, lanes that are far behind
    /// are read more slowly. Half as much again may lie ready to be handed out. Each lane may hold one record or one
    /// batch of its producer more, and has 96 KiB in any case.
    pub fn prefetch_bytes(mut self, bytes: usize) -> Self {
        self.prefetch_bytes = bytes;
        self
    }

    /// Lets the client read ahead no more than this, and leaves it as it is where that is less: for whoever has a bound of
    /// bytes ([`Bounds::bytes_max`](crate::Bounds::bytes_max)), in which what was read ahead counts.
    pub fn prefetch_bytes_at_most(mut self, bytes: usize) -> Self {
        self.prefetch_bytes = self.prefetch_bytes.min(bytes);
        self
    }

    /// What is committed beside each position, for people who look at the group: the name of this library by default.
    /// Cut off after 4,000 bytes. What others wrote there is never read.
    pub fn metadata(mut self, text: &str) -> Self {
        let cut = text.floor_char_boundary(METADATA_BYTES_MAX);
        // A string of C ends at a zero.
        self.metadata = text[..cut].replace('\0', "");
        self
    }

    /// A property of librdkafka's, such as `security.protocol` or `group.instance.id`; with `group.protocol` =
    /// `consumer`, the group is led by the broker (KIP-848). TLS, and logins by SCRAM or OAUTHBEARER, need the feature
    /// `kafka-ssl`.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes the source, which begins to join its group. The clients themselves are made by its thread.
    ///
    /// # Errors
    /// [`Error::Settings`] and [`Error::Reserved`] for what cannot be set, [`Error::Subscription`] without a topic or a group,
    /// [`Error::Thread`] without a thread.
    pub fn build(self) -> Result<Kafka, Error> {
        self.check()?;
        Kafka::begin(self)
    }

    /// Whether the client takes the settings, as [`build`](Self::build) says it. Nobody is asked.
    ///
    /// # Errors
    /// [`Error::Settings`] and [`Error::Reserved`] for what cannot be set, [`Error::Subscription`] without a topic or a group.
    pub fn check(&self) -> Result<(), Error> {
        if let Some((name, _)) = self.properties.iter().find(|(name, _)| RESERVED.contains(&name.as_str())) {
            return Err(Error::Reserved(name.clone()));
        }
        self.member().create_native_config().map_err(Error::Settings)?;
        self.reader(1).create_native_config().map_err(Error::Settings)?;
        self.check_topics()
    }

    fn check_topics(&self) -> Result<(), Error> {
        let refused = |reason: &str| Err(Error::Subscription(reason.to_owned()));
        if self.group.is_empty() {
            return refused("the group has no name");
        }
        if self.topics.is_empty() {
            return refused("no topic was named");
        }
        match self.topics.iter().find(|topic| !is_readable(topic)) {
            Some(topic) => {
                refused(&format!("`{topic}` is no topic, and no regular expression that the client can read"))
            }
            None => Ok(()),
        }
    }

    /// How many partitions the topics have, for whoever gets them all. Only shares out what is read ahead, so a guess does
    /// if no broker answers.
    pub(super) fn lanes_max(&self) -> usize {
        let count = || {
            let visitor: BaseConsumer = self.client().create().ok()?;
            let of = |wanted: &String| {
                let pattern = wanted.starts_with('^');
                let metadata = visitor.fetch_metadata((!pattern).then_some(wanted), METADATA_LIMIT).ok()?;
                let topics = metadata.topics().iter().filter(|topic| is_wanted(wanted, topic.name()));
                Some(topics.map(|topic| topic.partitions().len()).sum::<usize>())
            };
            self.topics.iter().map(of).sum::<Option<usize>>()
        };
        count().filter(|count| *count > 0).unwrap_or(LANES_GUESS)
    }

    /// What all clients have in common, which have nothing to do with the group.
    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        self.add_common(&mut config);
        config
    }

    /// To what is there already. (What is read back from a [`ClientConfig`] has a placeholder for passwords.)
    fn add_common(&self, config: &mut ClientConfig) {
        config.set("bootstrap.servers", &self.brokers).set_log_level(RDKafkaLogLevel::Warning);
        if !self.topics.iter().any(|topic| topic.starts_with("__")) {
            config.set("topic.blacklist", INTERNAL);
        }
        config.extend(self.properties.iter().filter(|(name, _)| !is_of_the_group(name)).cloned());
    }

    /// For the client that reads; `lanes` is how many partitions it may get at most. The name of the group is for the
    /// positions that were committed: it is no member.
    pub(super) fn reader(&self, lanes: usize) -> ClientConfig {
        let share = (self.prefetch_bytes / lanes.max(1)).max(64 << 10);
        let mut config = ClientConfig::new();
        config
            .set("group.id", &self.group)
            .set("queued.max.messages.kbytes", (share >> 10).to_string())
            .set("queued.min.messages", (share / RECORD_BYTES).clamp(100, 100_000).to_string())
            .set("fetch.message.max.bytes", (share / 4).clamp(64 << 10, 1 << 20).to_string())
            // How long a lane that holds enough is not looked at; the default of a second lets it run dry.
            .set("fetch.queue.backoff.ms", "5")
            .set("statistics.interval.ms", "1000");
        self.add_common(&mut config);
        config
            .set("auto.offset.reset", self.start.name())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // The end of a partition tells what markers and gaps lie behind its last record.
            .set("enable.partition.eof", "true");
        config
    }

    /// For the member of the group, which reads nothing.
    pub(super) fn member(&self) -> ClientConfig {
        let mut config = self.client();
        config.set("group.id", &self.group).set("enable.auto.commit", "false");
        let is_broker_led = self.properties.iter().any(|(name, value)| name == "group.protocol" && value == "consumer");
        if !is_broker_led {
            config.set("partition.assignment.strategy", "cooperative-sticky");
        }
        config.extend(self.properties.iter().filter(|(name, _)| is_of_the_group(name)).cloned());
        config
    }
}

/// Does the client take it for a topic, or for a pattern that begins with `^`? Its regular expressions are its own, so one
/// that has no broker to ask is made to say so.
fn is_readable(wanted: &str) -> bool {
    if !wanted.starts_with('^') {
        return !wanted.is_empty();
    }
    let reader = ClientConfig::new().set("group.id", "any").set_log_level(RDKafkaLogLevel::Emerg).create();
    reader.map_or(true, |reader: BaseConsumer| reader.subscribe(&[wanted]).is_ok())
}

/// Does the name, or the pattern that begins with `^`, mean this topic? A pattern that only the client can read means all.
fn is_wanted(wanted: &str, topic: &str) -> bool {
    if !wanted.starts_with('^') {
        return wanted == topic;
    }
    Regex::new(wanted).map_or(true, |pattern| pattern.is_match(topic))
}

/// Properties that only a member understands or needs.
fn is_of_the_group(name: &str) -> bool {
    let names =
        ["partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"];
    name.starts_with("group.") || names.contains(&name)
}

impl Start {
    fn name(self) -> &'static str {
        match self {
            Self::Earliest => "earliest",
            Self::Latest => "latest",
            Self::Fail => "error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_source_stands_on_cannot_be_set() {
        // Another group would be committed to than is read.
        for property in ["enable.auto.commit", "group.id"] {
            let settings = Settings::new("localhost:1", "g").topic("t").property(property, "true");
            assert!(matches!(settings.build(), Err(Error::Reserved(name)) if name == property));
        }
    }

    #[test]
    fn a_property_that_does_not_exist_is_refused_by_its_name() {
        let settings = Settings::new("localhost:1", "g").topic("t").property("no.such.property", "1");
        assert!(
            matches!(settings.build(), Err(Error::Settings(error)) if error.to_string().contains("no.such.property"))
        );
    }

    #[test]
    fn what_cannot_be_subscribed_to_is_refused_before_anybody_is_asked() {
        let build = |group: &str, topics: &[&str]| {
            let settings = Settings::new("localhost:1", group);
            topics.iter().fold(settings, |settings, topic| settings.topic(topic)).build().map(drop)
        };
        for (group, topics, words) in [
            ("g", &[][..], "no topic"),
            ("", &["t"], "the group"),
            ("g", &["t", ""], "`` is no topic"),
            ("g", &["t", "^("], "`^(` is no topic, and no regular expression"),
        ] {
            let error = build(group, topics).expect_err("it cannot be subscribed to");
            assert!(matches!(&error, Error::Subscription(said) if said.contains(words)), "{error}");
        }
        assert!(build("g", &["t", "^orders-[a-z]+$", "t"]).is_ok(), "to name a topic twice is to name it");
    }

    #[test]
    fn the_prefetch_is_shared_out_among_the_lanes() {
        let settings = Settings::new("localhost:1", "g").prefetch_bytes(8 << 20);
        assert_eq!(settings.reader(8).get("queued.max.messages.kbytes"), Some("1024"));
        assert_eq!(settings.reader(100_000).get("queued.max.messages.kbytes"), Some("64"));
    }

    #[test]
    fn a_bound_lowers_the_prefetch_and_does_not_raise_it() {
        let prefetch = |bytes| Settings::new("localhost:1", "g").prefetch_bytes_at_most(bytes).prefetch_bytes;
        assert_eq!((prefetch(1 << 20), prefetch(1 << 30)), (1 << 20, 8 << 20));
    }

    #[test]
    fn a_topic_of_kafkas_own_is_read_by_its_name_only() {
        let of = |topic: &str| Settings::new("localhost:1", "g").topic(topic).member().get("topic.blacklist").is_none();
        assert_eq!([of("^.*"), of("orders"), of("__consumer_offsets")], [false, false, true]);
    }

    #[test]
    fn all_clients_log_in_with_the_same_password() {
        let settings = Settings::new("localhost:1", "g").property("sasl.password", "secret");
        for config in [settings.client(), settings.reader(1), settings.member()] {
            assert_eq!(config.get("sasl.password"), Some("secret"));
        }
    }

    #[test]
    fn a_pattern_counts_the_partitions_of_the_topics_that_it_means() {
        assert!(is_wanted("^orders-.*", "orders-eu") && !is_wanted("^orders-.*", "payments"));
        assert!(is_wanted("orders", "orders") && !is_wanted("orders", "orders-eu"));
        assert!(is_wanted("^(", "anything"), "too much is counted rather than too little");
    }

    #[test]
    fn metadata_is_cut_between_characters() {
        let settings = Settings::new("localhost:1", "g").metadata(&"ü".repeat(3_000));
        assert_eq!(settings.metadata.len(), 4_000);
        assert_eq!(Settings::new("", "").metadata("a\0b").metadata, "ab");
    }
}
