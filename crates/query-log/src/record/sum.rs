//! A transaction, added up from its queries.

use std::{borrow::Cow, time::Instant};
use tidegate_sql::{cache::NormalizeCache, normalize::fingerprint, redact::without_passwords};

use super::{
    item::{Item, cut, join},
    recorder::shape_of,
};
use tidegate_config as config;
use tidegate_config::StatementForm;

/// The queries of a transaction so far.
#[derive(Debug, Default)]
pub(super) struct Sum {
    total: Option<Item>,
    spare: Option<Item>,
    queries: u64,
    /// How long the server took for each; for those of a pipeline together it took less.
    server_us: u64,
    fingerprint: Option<u64>,
    /// Their statements, as far as they are written down.
    text: Vec<u8>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Total {
    pub(super) total: Item,
    pub(super) queries: u64,
    pub(super) server_us: u64,
    pub(super) fingerprint: Option<u64>,
    pub(super) text: Vec<u8>,
}

const TAG_BYTES_MAX: usize = 256;

impl Sum {
    pub(super) fn is_empty(&self) -> bool {
        self.total.is_none()
    }

    pub(super) fn add(&mut self, item: &Item, shapes: &mut NormalizeCache, settings: &config::Journal) {
        let spare = &mut self.spare;
        let total = self.total.get_or_insert_with(|| {
            let mut total = spare.take().unwrap_or_else(|| Item::new(item.began));
            total.reset(item.began);
            total.wait_us = item.wait_us;
            total
        });
        self.queries += 1;
        self.server_us += item.server_us();
        total.end(item.ended());
        total.bytes_in += item.bytes_in;
        total.bytes_out += item.bytes_out;
        total.works = total.works.and(item.works);
        if let Some(rows) = item.rows {
            *total.rows.get_or_insert(0) += rows;
        }
        if !item.tag.is_empty() {
            join(&mut total.tag, &item.tag, TAG_BYTES_MAX);
        }
        if !total.failed() {
            total.wrong.clone_from(&item.wrong);
        }
        if settings.statement == StatementForm::Off || item.text().is_empty() {
            return;
        }
        let found = shape_of(shapes, item);
        // The fingerprint of the first query as it is, so that a transaction of one query has the query's.
        self.fingerprint = Some(match self.fingerprint {
            None => found.fingerprint(),
            Some(before) => fingerprint(&[before.to_le_bytes(), found.fingerprint().to_le_bytes()].concat()),
        });
        let begun = item.beginning().map(|(mut begun, is_begun)| {
            begun.extend_from_slice(if is_begun { "…".as_bytes() } else { b"" });
            begun
        });
        let text = match settings.statement {
            StatementForm::Text if found.may_hide() => without_passwords(item.text()),
            StatementForm::Text => Cow::Borrowed(item.text()),
            StatementForm::Normalised => Cow::Borrowed(begun.as_deref().unwrap_or_else(|| found.text())),
            _ => return,
        };
        self.add_text(&text, item.is_cut(), settings.statement_bytes as usize);
    }

    /// The first as far as there is room, further ones as a whole.
    fn add_text(&mut self, text: &[u8], is_cut: bool, bytes_max: usize) {
        let before = self.text.len();
        let (text, is_cut) = if before == 0 {
            let (text, is_cut_here) = cut(text, bytes_max);
            self.text.extend_from_slice(text);
            (text, is_cut || is_cut_here)
        } else {
            join(&mut self.text, text, bytes_max);
            (text, is_cut)
        };
        if is_cut && self.text.len() > before && self.text.ends_with(text) {
            self.text.extend_from_slice("…".as_bytes());
        }
    }

    /// It is given up; the client is told this, if anything.
    pub(super) fn end(&mut self, sqlstate: &[u8], now: Instant) {
        if let Some(total) = &mut self.total {
            total.end(now);
            total.fail(sqlstate);
        }
    }

    pub(super) fn take(&mut self) -> Option<Total> {
        let total = self.total.take()?;
        let (queries, server_us) = (std::mem::take(&mut self.queries), std::mem::take(&mut self.server_us));
        let text = std::mem::take(&mut self.text);
        Some(Total { total, queries, server_us, fingerprint: self.fingerprint.take(), text })
    }

    /// The buffers are used again.
    pub(super) fn put_back(&mut self, Total { total, mut text, .. }: Total) {
        text.clear();
        (self.spare, self.text) = (Some(total), text);
    }
}
