//! The part of a record that a span shows, borrowed from its JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

use crate::record::{RecordKind, RecordTimestamp};

/// A record of a query, decoded for its span.
#[derive(Debug, Deserialize)]
pub struct SpanRecord<'a> {
    pub(super) time: RecordTimestamp,
    pub(super) kind: RecordKind,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) client: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) user: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) database: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) application: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) statement: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) fingerprint: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) traceparent: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) server: Option<Cow<'a, str>>,
    pub(super) wait_us: Option<u64>,
    pub(super) server_us: Option<u64>,
    pub(super) total_us: Option<u64>,
    pub(super) queries: Option<u64>,
    pub(super) rows: Option<u64>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) tag: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub(super) sqlstate: Option<Cow<'a, str>>,
}

impl<'a> SpanRecord<'a> {
    /// Decodes a record; `None` if it describes no query.
    #[must_use]
    pub fn from_json(payload: &'a [u8]) -> Option<Self> {
        // Checking the whole is cheaper than checking each text.
        let record: Self = serde_json::from_str(std::str::from_utf8(payload).ok()?).ok()?;
        matches!(record.kind, RecordKind::Query | RecordKind::Transaction).then_some(record)
    }

    /// Whether the SQLSTATE is that of an error: class 02 or higher (OpenTelemetry's convention for PostgreSQL).
    pub(super) fn failed(&self) -> bool {
        self.sqlstate.as_ref().is_some_and(|sqlstate| sqlstate.as_ref() >= "02")
    }
}

/// Decodes a text, borrowed unless it has escapes: serde borrows a field of type `Cow`, but copies one of type `Option<Cow>`.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    #[derive(Deserialize)]
    struct RecordText<'a>(#[serde(borrow)] Cow<'a, str>);
    Option::<RecordText<'_>>::deserialize(deserializer).map(|text| text.map(|text| text.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_escapes_are_borrowed() {
        let json = br#"{"time":"2026-03-01T12:00:00Z","kind":"query","user":"app","statement":"a\nb","database":null}"#;
        let record = SpanRecord::from_json(json).expect("a query");
        assert!(matches!(record.user, Some(Cow::Borrowed("app"))));
        assert_eq!((record.statement.as_deref(), record.database, record.tag), (Some("a\nb"), None, None));
    }
}
