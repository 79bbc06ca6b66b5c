//! Totals of a transaction.

use std::{borrow::Cow, time::Instant};
use tidegate_sql::{cache::NormalizeCache, normalize::fingerprint, redact::without_passwords};

use super::tracked_query::{TrackedQuery, join, truncate_utf8};
use tidegate_config as config;
use tidegate_config::StatementForm;

/// Totals of the queries of a transaction so far.
#[derive(Debug, Default)]
pub(super) struct TransactionTotals {
    total: Option<TrackedQuery>,
    spare: Option<TrackedQuery>,
    queries: u64,
    /// Sum of the execution times; pipelined queries overlap, so the transaction may have taken less.
    server_us: u64,
    fingerprint: Option<u64>,
    /// The statements in the configured form.
    text: Vec<u8>,
}

/// Totals of a completed transaction.
#[derive(Debug)]
pub(super) struct TransactionSummary {
    pub(super) total: TrackedQuery,
    pub(super) queries: u64,
    pub(super) server_us: u64,
    pub(super) fingerprint: Option<u64>,
    pub(super) text: Vec<u8>,
}

const TAG_BYTES_MAX: usize = 256;

impl TransactionTotals {
    pub(super) fn is_empty(&self) -> bool {
        self.total.is_none()
    }

    pub(super) fn add(
        &mut self,
        query: &TrackedQuery,
        normalize_cache: &mut NormalizeCache,
        settings: &config::QueryLogConfig,
    ) {
        let spare = &mut self.spare;
        let total = self.total.get_or_insert_with(|| {
            let mut total = spare.take().unwrap_or_else(|| TrackedQuery::new(query.began));
            total.reset(query.began);
            total.wait_us = query.wait_us;
            total
        });
        self.queries += 1;
        self.server_us += query.server_us();
        total.parent = total.parent.or(query.parent);
        total.end(query.ended());
        total.bytes_in += query.bytes_in;
        total.bytes_out += query.bytes_out;
        total.classes = total.classes.union(query.classes);
        if let Some(rows) = query.rows {
            *total.rows.get_or_insert(0) += rows;
        }
        if !query.tag.is_empty() {
            join(&mut total.tag, &query.tag, TAG_BYTES_MAX);
        }
        if !total.failed() {
            total.error.clone_from(&query.error);
        }
        if settings.statement == StatementForm::Off || query.text().is_empty() {
            return;
        }
        let found = query.normalized(normalize_cache);
        // The fingerprint of the first query is not hashed again, so that a transaction of one query has its fingerprint.
        self.fingerprint = Some(match self.fingerprint {
            None => found.fingerprint(),
            Some(before) => fingerprint(&[before.to_le_bytes(), found.fingerprint().to_le_bytes()].concat()),
        });
        let prefix = query.normalized_prefix().map(|(mut prefix, is_partial)| {
            prefix.extend_from_slice(if is_partial { "…".as_bytes() } else { b"" });
            prefix
        });
        let text = match settings.statement {
            StatementForm::Text if found.may_hide() => without_passwords(query.text()),
            StatementForm::Text => Cow::Borrowed(query.text()),
            StatementForm::Normalised => Cow::Borrowed(prefix.as_deref().unwrap_or_else(|| found.text())),
            _ => return,
        };
        self.add_text(&text, query.is_truncated(), settings.statement_bytes as usize);
    }

    /// The first text is truncated; further ones are added whole or not at all.
    fn add_text(&mut self, text: &[u8], is_truncated: bool, bytes_max: usize) {
        let before = self.text.len();
        let (text, is_truncated) = if before == 0 {
            let (text, is_truncated_here) = truncate_utf8(text, bytes_max);
            self.text.extend_from_slice(text);
            (text, is_truncated || is_truncated_here)
        } else {
            join(&mut self.text, text, bytes_max);
            (text, is_truncated)
        };
        if is_truncated && self.text.len() > before && self.text.ends_with(text) {
            self.text.extend_from_slice("…".as_bytes());
        }
    }

    /// Ends an aborted transaction with the error that the client received, if any.
    pub(super) fn end(&mut self, sqlstate: &[u8], now: Instant) {
        if let Some(total) = &mut self.total {
            total.end(now);
            total.set_sqlstate(sqlstate);
        }
    }

    pub(super) fn take(&mut self) -> Option<TransactionSummary> {
        let total = self.total.take()?;
        let (queries, server_us) = (std::mem::take(&mut self.queries), std::mem::take(&mut self.server_us));
        let text = std::mem::take(&mut self.text);
        Some(TransactionSummary { total, queries, server_us, fingerprint: self.fingerprint.take(), text })
    }

    /// Keeps the buffers for reuse.
    pub(super) fn put_back(&mut self, TransactionSummary { total, mut text, .. }: TransactionSummary) {
        text.clear();
        (self.spare, self.text) = (Some(total), text);
    }
}
