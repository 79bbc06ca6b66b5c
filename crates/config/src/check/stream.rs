//! Check of `[[streams]]`: source, sink, and keys that have no effect with them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue};

use super::{Checker, FileAccess, SectionView};
use crate::{
    PgUrl, ServerTls, SessionAttrs,
    diagnostic::{ConfigErrors, DiagnosticSeverity},
    keys::{DatabaseKeys, RawDatabase},
    raw::{RawTable, RawValue, SourceText, SpannedValue},
    section::{ConfigSection, RawSection},
    stream::{
        ChangeOrder, DeadLetterSink, KafkaTopics, OnExhausted, RawStream, RecordForm, SnapshotMode, StreamConfig,
        StreamKeys, StreamSink, StreamSource, UrlTemplate,
    },
};

/// Whether the Kafka client of this build has OpenSSL, and with it TLS and SCRAM.
const HAS_SSL: bool = cfg!(feature = "kafka-ssl");

/// Checks the stream of a command line.
pub(crate) fn one(source: &SourceText, table: &RawTable, disk: FileAccess<'_>) -> Result<StreamConfig, ConfigErrors> {
    let mut checker = Checker::new(source, disk);
    let stream = checker.stream(&SectionView { path: "streams".to_owned(), table, at: 0..0 });
    let refused = checker.diagnostics.iter().any(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error);
    if refused { Err(ConfigErrors::new(checker.diagnostics)) } else { Ok(stream) }
}

impl Checker<'_> {
    /// All streams in file order.
    pub(super) fn streams(&mut self, root: &RawTable) -> Vec<StreamConfig> {
        let Some(RawValue::List(nodes)) = root.entry("streams").map(|entry| &entry.node.value) else {
            return Vec::new();
        };
        let (mut names, mut checkpoints) = (BTreeSet::new(), BTreeSet::new());
        nodes.iter().filter_map(|node| self.listed(node, &mut names, &mut checkpoints)).collect()
    }

    fn listed(
        &mut self,
        node: &SpannedValue,
        names: &mut BTreeSet<String>,
        checkpoints: &mut BTreeSet<PathBuf>,
    ) -> Option<StreamConfig> {
        let RawValue::Table(table) = &node.value else {
            let location = super::KeyLocation { key: "streams".to_owned(), at: node.at.clone() };
            let reason = format!("expected a table, found {}", node.value.kind());
            self.error(location, reason, "start each stream with [[streams]]");
            return None;
        };
        let section = SectionView { path: "streams".to_owned(), table, at: node.at.clone() };
        let stream = self.stream(&section);
        if !stream.keys.name.is_empty() && !names.insert(stream.keys.name.clone()) {
            let reason = format!("there are two streams named `{}`", stream.keys.name);
            self.error(section.locate(&["name"]), reason, "give each a name of its own");
        }
        let checkpoint = &stream.keys.checkpoint;
        if !checkpoint.as_os_str().is_empty() && !checkpoints.insert(checkpoint.clone()) {
            let reason = format!("there are two streams with the checkpoint {}", checkpoint.display());
            self.error(section.locate(&["checkpoint"]), reason, "give each a checkpoint of its own");
        }
        Some(stream)
    }

    fn stream(&mut self, section: &SectionView<'_>) -> StreamConfig {
        let mut raw = RawStream::default();
        self.fill(section, &mut [&mut raw]);
        let mut keys = StreamKeys::from_raw(&raw);
        self.stream_name(section, &keys);
        if keys.from == StreamSource::Unset && !section.has("from") {
            let help = "write from = \"orders.ndjson\", from = \"-\", from = \"kafka://BROKER:9092/TOPIC\" or from = \
                        \"postgres://USER@HOST/DATABASE\"";
            self.error(section.locate(&[]), "the stream has no source", help);
        }
        if keys.to == StreamSink::Unset && !section.has("to") {
            let help = "write to = \"http://...\", \"postgres://...\", \"kafka://...\", \"command:...\" or \"-\"";
            self.error(section.locate(&[]), "the stream has no sink", help);
        }
        self.stream_source(section, &mut keys);
        self.stream_failures(section, &mut keys);
        for (key, path) in [
            ("http_cert_file", &mut keys.http_cert_file),
            ("http_key_file", &mut keys.http_key_file),
            ("http_ca_file", &mut keys.http_ca_file),
        ] {
            self.file(section, key, path);
        }
        self.stream_kafka(section, &keys);
        self.stream_changes(section, &mut keys);
        let (tls, server) = self.stream_sink(section, &keys);
        StreamConfig { keys, tls, server, written: raw }
    }

    fn stream_name(&mut self, section: &SectionView<'_>, keys: &StreamKeys) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if keys.name.is_empty() {
            self.error(section.locate(&["name"]), "the stream has no name", "write name = \"orders\"");
        } else if !keys.name.bytes().all(is_plain) {
            let help = "use letters, digits, dots, dashes and underscores";
            self.error(section.locate(&["name"]), "this is not a valid name of a stream", help);
        }
    }

    fn stream_source(&mut self, section: &SectionView<'_>, keys: &mut StreamKeys) {
        let (is_file, is_kafka) =
            (matches!(keys.from, StreamSource::File(_)), matches!(keys.from, StreamSource::Kafka(_)));
        if let StreamSource::File(path) = &mut keys.from {
            self.future_path(path);
        }
        self.future_path(&mut keys.checkpoint);
        for key in ["checkpoint", "follow"] {
            self.without_effect(section, key, is_file, "from is not a file");
        }
        let redrives = matches!(keys.from, StreamSource::File(_) | StreamSource::Stdin);
        self.without_effect(
            section,
            "redrive",
            redrives,
            "from is not a file; a topic of dead letters is read as it is",
        );
        for key in ["group", "start", "start_time"] {
            self.without_effect(section, key, is_kafka, "from is not Kafka");
        }
    }

    /// Checks the keys of Postgres changes.
    fn stream_changes(&mut self, section: &SectionView<'_>, keys: &mut StreamKeys) {
        let StreamSource::Postgres(origin) = keys.from.clone() else {
            for key in CHANGE_KEYS {
                self.without_effect(section, key, false, "from is not Postgres");
            }
            return;
        };
        for (key, value, in_url) in
            [("publication", &mut keys.publication, &origin.publication), ("slot", &mut keys.slot, &origin.slot)]
        {
            if !in_url.is_empty() && !value.is_empty() && value != in_url {
                let reason = format!("{key} differs from the {key} in the URL of from");
                self.error(section.locate(&[key]), reason, "write one of them");
            }
            if value.is_empty() {
                in_url.clone_into(value);
            }
        }
        if keys.publication.is_empty() {
            let help = "write publication = \"NAME\", or ?publication=NAME in the URL; create one with CREATE PUBLICATION NAME \
                        FOR TABLE ...";
            self.error(section.locate(&["publication", "from"]), "the stream has no publication", help);
        }
        if keys.slot.is_empty() {
            keys.slot = default_slot(&keys.name);
        }
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if keys.slot.len() > SLOT_NAME_MAX || !keys.slot.bytes().all(is_plain) {
            let help = "use at most 63 lower-case letters, digits and underscores";
            self.error(section.locate(&["slot", "from"]), format!("`{}` is not a name of a slot", keys.slot), help);
        }
        self.change_keys(section, keys);
        self.stream_snapshot(section, origin.snapshot, keys);
        self.stream_url(section, "from", &origin.url, &mut RawDatabase::default());
        self.future_path(&mut keys.state);
        for key in ["spool_bytes", "spool_full", "tx_memory"] {
            self.without_effect(section, key, !keys.state.as_os_str().is_empty(), "there is no state folder");
        }
        self.without_effect(section, "wal_full", keys.wal_max > 0, "there is no wal_max");
    }

    /// Decides whether tables are copied, and refuses what a copy cannot do.
    fn stream_snapshot(&mut self, section: &SectionView<'_>, in_url: Option<SnapshotMode>, keys: &mut StreamKeys) {
        let at = || section.locate(&["snapshot", "from"]);
        if section.has("snapshot") && in_url.is_some_and(|mode| mode != keys.snapshot) {
            self.error(at(), "snapshot differs from the snapshot in the URL of from", "write one of them");
        }
        let is_chosen = section.has("snapshot") || in_url.is_some();
        keys.snapshot = in_url.unwrap_or(keys.snapshot);
        // A sink that stores positions stores how far the copy is, too.
        let is_once =
            keys.order == ChangeOrder::Commit && matches!(keys.to, StreamSink::Postgres(_) | StreamSink::Gateway(_));
        let has_state = !keys.state.as_os_str().is_empty();
        match keys.snapshot {
            SnapshotMode::Initial if has_state || keys.create || (is_chosen && is_once) => {}
            SnapshotMode::Initial if !is_chosen => keys.snapshot = SnapshotMode::None,
            SnapshotMode::Initial => {
                let help = "write state = \"FOLDER\", where the progress of the copy is stored, or create = true: the slot is \
                            then created by the copy, and shows that it has ended";
                self.error(at(), "nothing would show whether the tables were copied", help);
            }
            SnapshotMode::InitialOnly if keys.order == ChangeOrder::Commit => {
                let help = "leave order out, and make the statement of the sink repeatable (on conflict)";
                self.error(at(), "each run of initial_only copies all rows, which have no order of commits", help);
            }
            SnapshotMode::InitialOnly | SnapshotMode::None => {}
        }
        for (number, table) in keys.tables.iter().enumerate() {
            if table.split_once('.').is_none_or(|(schema, name)| schema.is_empty() || name.is_empty()) {
                let help = "write the schema and the name, without quotes: \"public.orders\"";
                self.error(section.locate(&["tables"]), format!("`{table}` is not a table (number {number})"), help);
            }
        }
        self.without_effect(section, "failover", keys.create, "create is not true");
        let copies = keys.snapshot != SnapshotMode::None;
        for key in ["snapshot_chunk_rows", "snapshot_parallel"] {
            self.without_effect(section, key, copies, "snapshot is none");
        }
    }

    /// Refuses keys that contradict changes.
    fn change_keys(&mut self, section: &SectionView<'_>, keys: &StreamKeys) {
        if keys.form == RecordForm::Envelope {
            let help = "leave form out; the key envelope chooses the value of a change";
            self.error(section.locate(&["form"]), "a change is an envelope already", help);
        }
        if keys.compact {
            let help = "leave compact out: an update does not send values that it did not change";
            self.error(section.locate(&["compact"]), "compact would lose values of changes", help);
        }
        let is_keyed = keys.order == ChangeOrder::Key;
        for key in ["key", "key_change"] {
            self.without_effect(section, key, is_keyed, "order is not key");
        }
        self.without_effect(section, "keyless", false, "every change has a key");
    }

    /// Reports what the Kafka client of this build does not support, because the client reports it late, or as another
    /// error.
    fn stream_kafka(&mut self, section: &SectionView<'_>, keys: &StreamKeys) {
        let uses_kafka = matches!(keys.from, StreamSource::Kafka(_))
            || matches!(keys.to, StreamSink::Kafka(_))
            || matches!(keys.dead_letter, DeadLetterSink::Kafka(_));
        self.without_effect(section, "kafka_properties", uses_kafka, "neither from, to nor dead_letter is Kafka");
        let (to_kafka, letters_to_kafka) =
            (matches!(keys.to, StreamSink::Kafka(_)), matches!(keys.dead_letter, DeadLetterSink::Kafka(_)));
        self.without_effect(section, "sink_kafka_properties", to_kafka, "to is not Kafka");
        self.without_effect(section, "dead_letter_kafka_properties", letters_to_kafka, "dead_letter is not Kafka");
        for (key, properties) in [
            ("kafka_properties", &keys.kafka_properties.0),
            ("sink_kafka_properties", &keys.sink_kafka_properties.0),
            ("dead_letter_kafka_properties", &keys.dead_letter_kafka_properties.0),
        ] {
            let of_one = properties.iter().find_map(|(name, value)| unsupported_property(name, value));
            let of_source = || unknown_property(keys).filter(|_| key == "kafka_properties");
            if let Some((reason, help)) = of_one.or_else(|| missing_mechanism(properties)).or_else(of_source) {
                self.error(section.locate(&[key]), reason, help);
            }
        }
        if let Some(reason) = invalid_topic(keys) {
            let help = "write kafka://BROKER:9092/TOPIC; a topic that begins with ^ is a regular expression";
            self.error(section.locate(&["from"]), reason, help);
        }
        self.stream_loop(section, keys);
    }

    /// Refuses a stream that would read what it writes.
    fn stream_loop(&mut self, section: &SectionView<'_>, keys: &StreamKeys) {
        let reads = |to: &KafkaTopics| {
            let StreamSource::Kafka(from) = &keys.from else { return false };
            same_cluster(&from.brokers, &to.brokers) && to.topics.iter().any(|topic| reads_topic(from, topic))
        };
        if matches!(&keys.to, StreamSink::Kafka(to) if reads(to)) {
            let reason = "the stream would read its own output: source and sink are the same topic";
            self.error(section.locate(&["to"]), reason, "name another topic");
        }
        let is_looped = match &keys.dead_letter {
            DeadLetterSink::None => false,
            DeadLetterSink::Kafka(to) => reads(to),
            DeadLetterSink::File(path) => matches!(&keys.from, StreamSource::File(from) if from == path),
        };
        if is_looped {
            let reason = "the stream would read its own dead letters: from and dead_letter are the same";
            self.error(section.locate(&["dead_letter"]), reason, "name another file or topic");
        }
    }

    fn stream_failures(&mut self, section: &SectionView<'_>, keys: &mut StreamKeys) {
        if let DeadLetterSink::File(path) = &mut keys.dead_letter {
            self.future_path(path);
        }
        let has_letters = keys.dead_letter != DeadLetterSink::None;
        if has_letters && !section.has("exhausted") {
            keys.exhausted = OnExhausted::DeadLetter;
        }
        if keys.exhausted == OnExhausted::DeadLetter && !has_letters && !section.has("dead_letter") {
            let help = "write dead_letter = \"dead.ndjson\" or dead_letter = \"kafka://BROKER:9092/TOPIC\"";
            self.error(section.locate(&["exhausted"]), "there is no dead_letter", help);
        }
        let is_used = keys.exhausted == OnExhausted::DeadLetter;
        self.without_effect(section, "dead_letter", is_used, "exhausted is not dead_letter");
    }

    fn stream_sink(&mut self, section: &SectionView<'_>, keys: &StreamKeys) -> (ServerTls, SessionAttrs) {
        let is_sql = matches!(keys.to, StreamSink::Postgres(_) | StreamSink::Gateway(_));
        if is_sql && keys.sql.trim().is_empty() {
            let help = "write sql = \"insert into orders values ($1, $2) on conflict do nothing\" and params = \
                        [\"key\", \"value\"]";
            self.error(section.locate(&["sql", "to"]), "a stream to Postgres needs sql", help);
        }
        for key in ["sql", "params", "connections"] {
            self.without_effect(section, key, is_sql, "to is not Postgres");
        }
        let is_command = matches!(keys.to, StreamSink::Command(_));
        self.without_effect(section, "processes", is_command, "to is not a command");
        for key in ["headers", "record_headers", "http_cert_file", "http_key_file", "http_ca_file"] {
            self.without_effect(section, key, matches!(keys.to, StreamSink::Http(_)), "to is not HTTP");
        }
        self.stream_http(section, keys);
        let is_wrong = |(name, value): &&(String, String)| {
            HeaderName::try_from(name).is_err() || HeaderValue::try_from(value).is_err()
        };
        if let Some((name, _)) = keys.headers.0.iter().find(is_wrong) {
            let help = "use letters, digits and dashes in a name, and one line in a value";
            self.error(section.locate(&["headers"]), format!("the header `{name}` cannot be sent"), help);
        }
        let takes_texts = is_command || matches!(keys.to, StreamSink::Http(_) | StreamSink::Stdout);
        self.without_effect(section, "form", takes_texts, "to is neither HTTP, a command nor standard output");
        let mut raw = RawDatabase::default();
        let mut server = SessionAttrs::Any;
        if let StreamSink::Postgres(url) = &keys.to {
            self.stream_url(section, "to", url, &mut raw);
            server = self.stream_server(section, url, raw.target_session_attrs);
        }
        (self.server_tls(section, &DatabaseKeys::from_raw(&raw)), server)
    }

    fn stream_http(&mut self, section: &SectionView<'_>, keys: &StreamKeys) {
        let StreamSink::Http(target) = &keys.to else { return };
        let is_constant = match UrlTemplate::parse(&target.url) {
            Ok(template) => template.constant().is_some(),
            Err(error) => {
                self.value_error(section.locate(&["to"]), error);
                true
            }
        };
        let help = "leave out batch, which puts several records into one request";
        if keys.batch > 1 && !is_constant {
            self.error(section.locate(&["to"]), "the URL of a batch cannot depend on the record", help);
        }
        if keys.batch > 1 && !keys.record_headers.is_empty() {
            self.error(section.locate(&["record_headers"]), "a batch has no headers of a record", help);
        }
        if keys.http_cert_file.as_os_str().is_empty() != keys.http_key_file.as_os_str().is_empty() {
            let help = "write both http_cert_file and http_key_file";
            self.error(
                section.locate(&["http_cert_file", "http_key_file"]),
                "certificate and key belong together",
                help,
            );
        }
    }

    fn stream_url(&mut self, section: &SectionView<'_>, end: &str, url: &PgUrl, raw: &mut RawDatabase) {
        let of_servers =
            |key: &str| key.starts_with("ssl") || key == "channel_binding" || key == "target_session_attrs";
        for (key, text) in url.keys().filter(|(key, _)| of_servers(key)) {
            if let Some(Err(error)) = raw.set(key, &RawValue::Text(text)) {
                self.value_error(section.locate(&[end]), error);
            }
        }
        for ignored in &url.ignored {
            let reason = format!("the parameter `{ignored}` of the URL has no effect here");
            self.warning(section.locate(&[end]), reason, "leave it out");
        }
    }

    /// The default for several servers is a server that takes writes.
    fn stream_server(&mut self, section: &SectionView<'_>, url: &PgUrl, given: Option<SessionAttrs>) -> SessionAttrs {
        let server = given.unwrap_or(if url.hosts.len() > 1 { SessionAttrs::ReadWrite } else { SessionAttrs::Any });
        if let SessionAttrs::ReadOnly | SessionAttrs::Standby | SessionAttrs::PreferStandby = server {
            let reason = format!("target_session_attrs = {server} selects servers that take no writes");
            self.error(section.locate(&["to"]), reason, "write read-write, primary or any, or leave it out");
        }
        server
    }

    /// Warns of a key that has no effect.
    fn without_effect(&mut self, section: &SectionView<'_>, key: &str, has_effect: bool, because: &str) {
        if !has_effect && section.has(key) {
            self.warning(section.locate(&[key]), format!("{key} has no effect: {because}"), "leave it out");
        }
    }
}

/// Whether two lists of brokers name a common one, however they are spelled. Names that are not compared here lead to the same
/// cluster unnoticed; the start of the stream compares the identifiers of the clusters.
fn same_cluster(one: &str, other: &str) -> bool {
    let known: BTreeSet<String> = brokers(one).collect();
    brokers(other).any(|broker| known.contains(&broker))
}

fn brokers(list: &str) -> impl Iterator<Item = String> + '_ {
    const PORT: &str = "9092";
    list.split(',').filter(|broker| !broker.trim().is_empty()).map(|broker| {
        let broker = broker.trim().rsplit("://").next().unwrap_or_default().to_ascii_lowercase();
        let (host, port) = match broker.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port),
            _ => (broker.as_str(), PORT),
        };
        let host = match host.trim_start_matches('[').trim_end_matches([']', '.']) {
            "127.0.0.1" | "::1" | "localhost.localdomain" => "localhost",
            host => host,
        };
        format!("{host}:{port}")
    })
}

/// The keys of changes alone.
const CHANGE_KEYS: [&str; 22] = [
    "publication",
    "slot",
    "snapshot",
    "tables",
    "snapshot_chunk_rows",
    "snapshot_parallel",
    "create",
    "failover",
    "changes_lost",
    "tx_markers",
    "order",
    "key_change",
    "envelope",
    "schema_change",
    "state",
    "spool_bytes",
    "spool_full",
    "tx_memory",
    "wal_max",
    "wal_full",
    "status_interval",
    "heartbeat",
];
/// Bytes of a slot name in Postgres.
const SLOT_NAME_MAX: usize = 63;

/// The slot of a stream without the key `slot`: `tidegate_NAME`, with the characters that Postgres allows.
fn default_slot(name: &str) -> String {
    let plain = |symbol: char| match symbol.to_ascii_lowercase() {
        letter if letter.is_ascii_lowercase() || letter.is_ascii_digit() => letter,
        _ => '_',
    };
    format!("tidegate_{}", name.chars().map(plain).collect::<String>())
}

const NEEDS_SSL: &str = "build tidegate with `--features kafka-ssl`, which takes the OpenSSL of the machine (libssl-dev and \
                         pkg-config), or name a listener of the brokers that asks for PLAINTEXT or SASL_PLAINTEXT";

/// Reason and help for a property that the Kafka client of this build does not support.
fn unsupported_property(name: &str, value: &str) -> Option<(String, &'static str)> {
    let is_mechanism = name == "sasl.mechanism" || name == "sasl.mechanisms";
    let upper = value.to_ascii_uppercase();
    if is_mechanism && upper == "GSSAPI" {
        let help = "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, or a proxy that logs in for you";
        return Some(("the Kafka client of this build has no Kerberos (GSSAPI)".to_owned(), help));
    }
    let is_tls = name == "security.protocol" && upper.ends_with("SSL");
    let is_for_tls = name.starts_with("ssl.") || name == "enable.ssl.certificate.verification";
    let is_hashed = is_mechanism && upper != "PLAIN";
    let needs_ssl = is_tls || is_for_tls || is_hashed;
    // The value may be a password.
    let shown = if is_for_tls { String::new() } else { format!(" = {value}") };
    (needs_ssl && !HAS_SSL).then(|| {
        (format!("`{name}{shown}` needs OpenSSL, which the Kafka client of this build does not have"), NEEDS_SSL)
    })
}

/// Reason and help for an unknown property. The error of the client would repeat the value, which may be a password.
#[cfg(feature = "kafka")]
fn unknown_property(keys: &StreamKeys) -> Option<(String, &'static str)> {
    use rdkafka::error::KafkaError;
    use tidegate_lanes::source::kafka::KafkaSourceError;

    let reason = match client_error(keys)? {
        KafkaSourceError::Subscription(_) => return None,
        KafkaSourceError::Settings(KafkaError::ClientConfig(_, reason, ..)) => reason,
        error => error.to_string(),
    };
    Some((reason, "librdkafka's CONFIGURATION.md lists the properties and their values"))
}

/// Reason if the client accepts a name neither as a topic nor as a pattern.
#[cfg(feature = "kafka")]
fn invalid_topic(keys: &StreamKeys) -> Option<String> {
    client_error(keys)
        .filter(|error| matches!(error, tidegate_lanes::source::kafka::KafkaSourceError::Subscription(_)))
        .map(|error| error.to_string())
}

/// The error of the client before it connects.
#[cfg(feature = "kafka")]
fn client_error(keys: &StreamKeys) -> Option<tidegate_lanes::source::kafka::KafkaSourceError> {
    let StreamSource::Kafka(topics) = &keys.from else { return None };
    let settings = tidegate_lanes::source::kafka::KafkaSource::builder(&topics.brokers, "any");
    let settings = topics.topics.iter().fold(settings, |settings, topic| settings.topic(topic));
    let properties = keys.kafka_properties.0.iter();
    properties.fold(settings, |settings, (name, value)| settings.property(name, value)).check().err()
}

/// Whether the source reads this topic, by name or by a pattern.
#[cfg(feature = "kafka")]
fn reads_topic(from: &KafkaTopics, topic: &str) -> bool {
    let settings = tidegate_lanes::source::kafka::KafkaSource::builder(&from.brokers, "any");
    from.topics.iter().fold(settings, |settings, topic| settings.topic(topic)).subscribes_to(topic)
}

#[cfg(not(feature = "kafka"))]
fn reads_topic(from: &KafkaTopics, topic: &str) -> bool {
    from.topics.iter().any(|named| named == topic)
}

#[cfg(not(feature = "kafka"))]
fn unknown_property(_: &StreamKeys) -> Option<(String, &'static str)> {
    None
}

#[cfg(not(feature = "kafka"))]
fn invalid_topic(_: &StreamKeys) -> Option<String> {
    None
}

/// The client would use Kerberos without a mechanism.
fn missing_mechanism(properties: &[(String, String)]) -> Option<(String, &'static str)> {
    let is_sasl = |(name, value): &(String, String)| {
        name == "security.protocol" && value.to_ascii_uppercase().starts_with("SASL_")
    };
    let has_mechanism = properties.iter().any(|(name, _)| name == "sasl.mechanism" || name == "sasl.mechanisms");
    let is_missing = properties.iter().any(is_sasl) && !has_mechanism;
    is_missing.then(|| {
        let help = "add \"sasl.mechanism\" = \"PLAIN\", with \"sasl.username\" and \"sasl.password\"";
        ("`security.protocol` needs a login, but sasl.mechanism is not set".to_owned(), help)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_kafka_properties_are_reported() {
        for (name, value) in [
            ("security.protocol", "SSL"),
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", "ca.pem"),
            ("sasl.mechanism", "SCRAM-SHA-256"),
            ("sasl.mechanisms", "OAUTHBEARER"),
        ] {
            assert_eq!(unsupported_property(name, value).is_some(), !HAS_SSL, "{name}={value}");
        }
        let secret = unsupported_property("ssl.key.password", "hunter2").map(|(reason, _)| reason).unwrap_or_default();
        assert!(!secret.contains("hunter2"), "{secret}");
        assert!(
            unsupported_property("sasl.mechanisms", "gssapi").is_some_and(|(reason, _)| reason.contains("Kerberos"))
        );
        for (name, value) in
            [("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "PLAIN"), ("sasl.password", "SSL")]
        {
            assert_eq!(unsupported_property(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn brokers_are_compared_in_any_spelling() {
        for (one, other) in [
            ("localhost:9092", "127.0.0.1"),
            ("a:9092,b:9093", "PLAINTEXT://B:9093"),
            ("[::1]:9092", "localhost"),
            ("kafka.example.org.", "kafka.example.org:9092"),
        ] {
            assert!(same_cluster(one, other), "{one} and {other}");
        }
        assert!(!same_cluster("a:9092", "a:9093") && !same_cluster("a", "b"));
        let topics = KafkaTopics { brokers: "a".to_owned(), topics: vec!["orders".to_owned()] };
        assert!(reads_topic(&topics, "orders") && !reads_topic(&topics, "orders.dead"));
    }

    #[test]
    fn a_login_needs_a_mechanism() {
        let properties = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert!(missing_mechanism(&properties(&[("security.protocol", "SASL_PLAINTEXT")])).is_some());
        let both = [("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "PLAIN")];
        assert_eq!(missing_mechanism(&properties(&both)), None);
        assert_eq!(missing_mechanism(&properties(&[("client.id", "a")])), None);
    }
}
