//! The part of a record that a span shows, borrowed from its JSON.

use std::borrow::Cow;

use serde::Deserialize;

use crate::record::{RecordKind, RecordTimestamp};

/// A record of a query, decoded for its span.
#[derive(Debug, Deserialize)]
pub struct SpanRecord<'a> {
    pub(super) time: RecordTimestamp,
    pub(super) kind: RecordKind,
    #[serde(borrow, default)]
    pub(super) client: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) user: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) database: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) application: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) statement: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) fingerprint: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) traceparent: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) server: Option<Cow<'a, str>>,
    pub(super) wait_us: Option<u64>,
    pub(super) server_us: Option<u64>,
    pub(super) total_us: Option<u64>,
    pub(super) queries: Option<u64>,
    pub(super) rows: Option<u64>,
    #[serde(borrow, default)]
    pub(super) tag: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) sqlstate: Option<Cow<'a, str>>,
}

impl<'a> SpanRecord<'a> {
    /// Decodes a record; `None` if it describes no query.
    #[must_use]
    pub fn from_json(payload: &'a [u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(payload).ok()?;
        matches!(record.kind, RecordKind::Query | RecordKind::Transaction).then_some(record)
    }

    /// Whether the SQLSTATE is that of an error: class 02 or higher (OpenTelemetry's convention for PostgreSQL).
    pub(super) fn failed(&self) -> bool {
        self.sqlstate.as_ref().is_some_and(|sqlstate| sqlstate.as_ref() >= "02")
    }
}
