//! `[[streams]]`: two ends, and keys that mean something to them.

use std::collections::BTreeSet;

use super::{Checker, Disk, Section};
use crate::config::ServerTls;
use crate::config::finding::{ConfigErrors, Severity};
use crate::config::keys::{DatabaseKeys, RawDatabase};
use crate::config::raw::{Node, Source, Table, Value};
use crate::config::section::{Keys, Settings};
use crate::config::stream::{Letters, OnExhausted, Origin, RawStream, Stream, StreamKeys, Target};

/// Checks the one stream that a command line describes.
pub(crate) fn one(source: &Source, table: &Table, disk: Disk<'_>) -> Result<Stream, ConfigErrors> {
    let mut checker = Checker { source, disk, findings: Vec::new() };
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
        let mut names = BTreeSet::new();
        nodes.iter().filter_map(|node| self.listed(node, &mut names)).collect()
    }

    fn listed(&mut self, node: &Node, names: &mut BTreeSet<String>) -> Option<Stream> {
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
        let tls = self.stream_sink(section, &keys);
        Stream { keys, tls, written: raw }
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

    fn stream_sink(&mut self, section: &Section<'_>, keys: &StreamKeys) -> ServerTls {
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
        let writes = is_command || matches!(keys.to, Target::Http(_) | Target::Stdout);
        self.without_effect(section, "form", writes, "to takes records, not texts");
        let mut raw = RawDatabase::default();
        if let Target::Postgres(url) = &keys.to {
            for (key, text) in url.keys().filter(|(key, _)| key.starts_with("ssl") || *key == "channel_binding") {
                if let Some(Err(wrong)) = raw.set(key, &Value::Text(text)) {
                    self.wrong(section.place(&["to"]), wrong);
                }
            }
        }
        self.server_tls(section, &DatabaseKeys::from_raw(&raw))
    }

    /// Warns of a key that is written although nothing asks for it.
    fn without_effect(&mut self, section: &Section<'_>, key: &str, has_effect: bool, because: &str) {
        if !has_effect && section.has(key) {
            self.warning(section.place(&[key]), format!("{key} has no effect: {because}"), "leave it out");
        }
    }
}
