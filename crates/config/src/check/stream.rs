//! `[[streams]]`: two ends, and keys that mean something to them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue};

use super::{Checker, Disk, Section};
use crate::{
    PgUrl, ServerTls, SessionAttrs,
    finding::{ConfigErrors, Severity},
    keys::{DatabaseKeys, RawDatabase},
    raw::{Node, Source, Table, Value},
    section::{Keys, Settings},
    stream::{Letters, OnExhausted, Origin, RawStream, Stream, StreamKeys, Target},
};

/// Whether the Kafka client of this build has OpenSSL, and with it TLS and SCRAM.
const HAS_SSL: bool = cfg!(feature = "kafka-ssl");

/// Checks the one stream that a command line describes.
pub(crate) fn one(source: &Source, table: &Table, disk: Disk<'_>) -> Result<Stream, ConfigErrors> {
    let mut checker = Checker::new(source, disk);
    let stream = checker.stream(&Section { path: "streams".to_owned(), table, at: 0..0 });
    let refused = checker.findings.iter().any(|finding| finding.severity == Severity::Error);
    if refused { Err(ConfigErrors::new(checker.findings)) } else { Ok(stream) }
}

impl Checker<'_> {
    /// All streams, in their order.
    pub(super) fn streams(&mut self, root: &Table) -> Vec<Stream> {
        let Some(Value::List(nodes)) = root.entry("streams").map(|entry| &entry.node.value) else {
            return Vec::new();
        };
        let (mut names, mut checkpoints) = (BTreeSet::new(), BTreeSet::new());
        nodes.iter().filter_map(|node| self.listed(node, &mut names, &mut checkpoints)).collect()
    }

    fn listed(
        &mut self,
        node: &Node,
        names: &mut BTreeSet<String>,
        checkpoints: &mut BTreeSet<PathBuf>,
    ) -> Option<Stream> {
        let Value::Table(table) = &node.value else {
            let place = super::Place { key: "streams".to_owned(), at: node.at.clone() };
            let reason = format!("expected a table, found {}", node.value.kind());
            self.error(place, reason, "begin each stream with [[streams]]");
            return None;
        };
        let section = Section { path: "streams".to_owned(), table, at: node.at.clone() };
        let stream = self.stream(&section);
        if !stream.keys.name.is_empty() && !names.insert(stream.keys.name.clone()) {
            let reason = format!("there are two streams named `{}`", stream.keys.name);
            self.error(section.place(&["name"]), reason, "give each a name of its own");
        }
        let checkpoint = &stream.keys.checkpoint;
        if !checkpoint.as_os_str().is_empty() && !checkpoints.insert(checkpoint.clone()) {
            let reason = format!("there are two streams with the checkpoint {}", checkpoint.display());
            self.error(section.place(&["checkpoint"]), reason, "give each a checkpoint of its own");
        }
        Some(stream)
    }

    fn stream(&mut self, section: &Section<'_>) -> Stream {
        let mut raw = RawStream::default();
        self.fill(section, &mut [&mut raw]);
        let mut keys = StreamKeys::from_raw(&raw);
        self.stream_name(section, &keys);
        if keys.from == Origin::Unset && !section.has("from") {
            let help = "write from = \"orders.ndjson\", from = \"-\" or from = \"kafka://BROKER:9092/TOPIC\"";
            self.error(section.place(&[]), "the stream has no source", help);
        }
        if keys.to == Target::Unset && !section.has("to") {
            let help = "write to = \"http://...\", \"postgres://...\", \"kafka://...\", \"command:...\" or \"-\"";
            self.error(section.place(&[]), "the stream has no sink", help);
        }
        self.stream_source(section, &mut keys);
        self.stream_failures(section, &mut keys);
        self.stream_kafka(section, &keys);
        let (tls, server) = self.stream_sink(section, &keys);
        Stream { keys, tls, server, written: raw }
    }

    fn stream_name(&mut self, section: &Section<'_>, keys: &StreamKeys) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if keys.name.is_empty() {
            self.error(section.place(&["name"]), "the stream has no name", "write name = \"orders\"");
        } else if !keys.name.bytes().all(is_plain) {
            let help = "use letters, digits, dots, dashes and underscores";
            self.error(section.place(&["name"]), "this cannot be the name of a stream", help);
        }
    }

    fn stream_source(&mut self, section: &Section<'_>, keys: &mut StreamKeys) {
        let (is_file, is_kafka) = (matches!(keys.from, Origin::File(_)), matches!(keys.from, Origin::Kafka(_)));
        if let Origin::File(path) = &mut keys.from {
            self.future_path(path);
        }
        self.future_path(&mut keys.checkpoint);
        for key in ["checkpoint", "follow"] {
            self.without_effect(section, key, is_file, "from is no file");
        }
        for key in ["group", "start"] {
            self.without_effect(section, key, is_kafka, "from is no Kafka");
        }
    }

    /// What the Kafka client of this build cannot do is said here: it would say it late, or of itself.
    fn stream_kafka(&mut self, section: &Section<'_>, keys: &StreamKeys) {
        let speaks = matches!(keys.from, Origin::Kafka(_))
            || matches!(keys.to, Target::Kafka(_))
            || matches!(keys.dead_letter, Letters::Kafka(_));
        self.without_effect(section, "kafka_properties", speaks, "from, to and dead_letter are no Kafka");
        let properties = &keys.kafka_properties.0;
        let of_one = properties.iter().find_map(|(name, value)| refused(name, value));
        if let Some((reason, help)) = of_one.or_else(|| no_mechanism(properties)).or_else(|| unknown(keys)) {
            self.error(section.place(&["kafka_properties"]), reason, help);
        }
        if let Some(reason) = unreadable(keys) {
            let help = "write kafka://BROKER:9092/TOPIC; a topic that begins with ^ is a regular expression";
            self.error(section.place(&["from"]), reason, help);
        }
        if let (Origin::Kafka(from), Target::Kafka(to)) = (&keys.from, &keys.to)
            && from.brokers == to.brokers
            && to.topics.iter().any(|topic| from.topics.contains(topic))
        {
            let reason = "the stream would read again what it writes, without end: its sink is its source";
            self.error(section.place(&["to"]), reason, "name another topic");
        }
    }

    fn stream_failures(&mut self, section: &Section<'_>, keys: &mut StreamKeys) {
        if let Letters::File(path) = &mut keys.dead_letter {
            self.future_path(path);
        }
        let has_letters = keys.dead_letter != Letters::None;
        if has_letters && !section.has("exhausted") {
            keys.exhausted = OnExhausted::DeadLetter;
        }
        if keys.exhausted == OnExhausted::DeadLetter && !has_letters && !section.has("dead_letter") {
            let help = "write dead_letter = \"dead.ndjson\" or dead_letter = \"kafka://BROKER:9092/TOPIC\"";
            self.error(section.place(&["exhausted"]), "there is no dead-letter", help);
        }
        let takes = keys.exhausted == OnExhausted::DeadLetter;
        self.without_effect(section, "dead_letter", takes, "exhausted is not dead_letter");
    }

    fn stream_sink(&mut self, section: &Section<'_>, keys: &StreamKeys) -> (ServerTls, SessionAttrs) {
        let is_sql = matches!(keys.to, Target::Postgres(_) | Target::Gateway(_));
        if is_sql && keys.sql.trim().is_empty() {
            let help = "write sql = \"insert into orders values ($1, $2) on conflict do nothing\" and params = \
                        [\"key\", \"value\"]";
            self.error(section.place(&["sql", "to"]), "a stream to Postgres needs its statement", help);
        }
        for key in ["sql", "params", "connections"] {
            self.without_effect(section, key, is_sql, "to is no Postgres");
        }
        let is_command = matches!(keys.to, Target::Command(_));
        self.without_effect(section, "processes", is_command, "to is no command");
        self.without_effect(section, "headers", matches!(keys.to, Target::Http(_)), "to is no HTTP");
        let is_wrong = |(name, value): &&(String, String)| {
            HeaderName::try_from(name).is_err() || HeaderValue::try_from(value).is_err()
        };
        if let Some((name, _)) = keys.headers.0.iter().find(is_wrong) {
            let help = "a name is of letters, digits and dashes, and a value of one line";
            self.error(section.place(&["headers"]), format!("the header `{name}` cannot be sent"), help);
        }
        let writes = is_command || matches!(keys.to, Target::Http(_) | Target::Stdout);
        self.without_effect(section, "form", writes, "to takes records, not texts");
        let mut raw = RawDatabase::default();
        let mut server = SessionAttrs::Any;
        if let Target::Postgres(url) = &keys.to {
            self.stream_url(section, url, &mut raw);
            server = self.stream_server(section, url, raw.target_session_attrs);
        }
        (self.server_tls(section, &DatabaseKeys::from_raw(&raw)), server)
    }

    fn stream_url(&mut self, section: &Section<'_>, url: &PgUrl, raw: &mut RawDatabase) {
        let of_servers =
            |key: &str| key.starts_with("ssl") || key == "channel_binding" || key == "target_session_attrs";
        for (key, text) in url.keys().filter(|(key, _)| of_servers(key)) {
            if let Some(Err(wrong)) = raw.set(key, &Value::Text(text)) {
                self.wrong(section.place(&["to"]), wrong);
            }
        }
        for ignored in &url.ignored {
            let reason = format!("the parameter `{ignored}` of the URL has no effect here");
            self.warning(section.place(&["to"]), reason, "leave it out");
        }
    }

    /// Of several servers, one that takes writes, unless the URL says otherwise.
    fn stream_server(&mut self, section: &Section<'_>, url: &PgUrl, given: Option<SessionAttrs>) -> SessionAttrs {
        let server = given.unwrap_or(if url.hosts.len() > 1 { SessionAttrs::ReadWrite } else { SessionAttrs::Any });
        if let SessionAttrs::ReadOnly | SessionAttrs::Standby | SessionAttrs::PreferStandby = server {
            let reason = format!("target_session_attrs = {server} leads to servers that take no writes");
            self.error(section.place(&["to"]), reason, "write read-write, primary or any, or leave it out");
        }
        server
    }

    /// Warns of a key that is written although nothing asks for it.
    fn without_effect(&mut self, section: &Section<'_>, key: &str, has_effect: bool, because: &str) {
        if !has_effect && section.has(key) {
            self.warning(section.place(&[key]), format!("{key} has no effect: {because}"), "leave it out");
        }
    }
}

const NEEDS_SSL: &str = "build tidegate with `--features kafka-ssl`, which takes the OpenSSL of the machine (libssl-dev and \
                         pkg-config), or name a listener of the brokers that asks for PLAINTEXT or SASL_PLAINTEXT";

/// Why the client of this build cannot have this property, and what helps.
fn refused(name: &str, value: &str) -> Option<(String, &'static str)> {
    let is_mechanism = name == "sasl.mechanism" || name == "sasl.mechanisms";
    let wanted = value.to_ascii_uppercase();
    if is_mechanism && wanted == "GSSAPI" {
        let help = "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, or a proxy that logs in for you";
        return Some(("the Kafka client of this build has no Kerberos (GSSAPI)".to_owned(), help));
    }
    let is_tls = name == "security.protocol" && wanted.ends_with("SSL");
    let is_for_tls = name.starts_with("ssl.") || name == "enable.ssl.certificate.verification";
    let is_hashed = is_mechanism && wanted != "PLAIN";
    let needs_ssl = is_tls || is_for_tls || is_hashed;
    // A value may be a password.
    let shown = if is_for_tls { String::new() } else { format!(" = {value}") };
    (needs_ssl && !HAS_SSL).then(|| {
        (format!("`{name}{shown}` needs OpenSSL, which the Kafka client of this build is made without"), NEEDS_SSL)
    })
}

/// What the client does not know. Its own words would repeat the value, which may be a password.
#[cfg(feature = "kafka")]
fn unknown(keys: &StreamKeys) -> Option<(String, &'static str)> {
    use rdkafka::error::KafkaError;
    use tidegate_lanes::source::kafka::KafkaSourceError;

    let reason = match unfit(keys)? {
        KafkaSourceError::Subscription(_) => return None,
        KafkaSourceError::Settings(KafkaError::ClientConfig(_, reason, ..)) => reason,
        error => error.to_string(),
    };
    Some((reason, "librdkafka's CONFIGURATION.md lists the properties and their values"))
}

/// What is no topic to the client, and no pattern.
#[cfg(feature = "kafka")]
fn unreadable(keys: &StreamKeys) -> Option<String> {
    unfit(keys)
        .filter(|error| matches!(error, tidegate_lanes::source::kafka::KafkaSourceError::Subscription(_)))
        .map(|error| error.to_string())
}

/// What the client refuses before it asks anybody.
#[cfg(feature = "kafka")]
fn unfit(keys: &StreamKeys) -> Option<tidegate_lanes::source::kafka::KafkaSourceError> {
    let Origin::Kafka(topics) = &keys.from else { return None };
    let settings = tidegate_lanes::source::kafka::KafkaSource::builder(&topics.brokers, "any");
    let settings = topics.topics.iter().fold(settings, |settings, topic| settings.topic(topic));
    let properties = keys.kafka_properties.0.iter();
    properties.fold(settings, |settings, (name, value)| settings.property(name, value)).check().err()
}

#[cfg(not(feature = "kafka"))]
fn unknown(_: &StreamKeys) -> Option<(String, &'static str)> {
    None
}

#[cfg(not(feature = "kafka"))]
fn unreadable(_: &StreamKeys) -> Option<String> {
    None
}

/// Of itself, the client would choose Kerberos.
fn no_mechanism(properties: &[(String, String)]) -> Option<(String, &'static str)> {
    let is_sasl = |(name, value): &(String, String)| {
        name == "security.protocol" && value.to_ascii_uppercase().starts_with("SASL_")
    };
    let has_mechanism = properties.iter().any(|(name, _)| name == "sasl.mechanism" || name == "sasl.mechanisms");
    let is_missing = properties.iter().any(is_sasl) && !has_mechanism;
    is_missing.then(|| {
        let help = "add \"sasl.mechanism\" = \"PLAIN\", with \"sasl.username\" and \"sasl.password\"";
        ("`security.protocol` asks for a login, and nothing says which".to_owned(), help)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kafka_client_cannot_do_is_said_with_what_helps() {
        for (name, value) in [
            ("security.protocol", "SSL"),
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", "ca.pem"),
            ("sasl.mechanism", "SCRAM-SHA-256"),
            ("sasl.mechanisms", "OAUTHBEARER"),
        ] {
            assert_eq!(refused(name, value).is_some(), !HAS_SSL, "{name}={value}");
        }
        let secret = refused("ssl.key.password", "hunter2").map(|(reason, _)| reason).unwrap_or_default();
        assert!(!secret.contains("hunter2"), "{secret}");
        assert!(refused("sasl.mechanisms", "gssapi").is_some_and(|(reason, _)| reason.contains("Kerberos")));
        for (name, value) in
            [("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "PLAIN"), ("sasl.password", "SSL")]
        {
            assert_eq!(refused(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn a_login_says_by_which_mechanism() {
        let properties = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert!(no_mechanism(&properties(&[("security.protocol", "SASL_PLAINTEXT")])).is_some());
        let both = [("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "PLAIN")];
        assert_eq!(no_mechanism(&properties(&both)), None);
        assert_eq!(no_mechanism(&properties(&[("client.id", "a")])), None);
    }
}
