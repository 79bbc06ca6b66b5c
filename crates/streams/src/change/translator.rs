//! Translates events of a change stream to records: pure, so that every rule of order is testable without a server.

use std::time::SystemTime;

use tidegate_changes::{
    Change, ChangeEvent, ChangeId, ChangeKind, Lsn, PgTimestamp, Relation, RowChange, SchemaChange, TransactionBegin,
};
use tidegate_config::stream::{ChangeEnvelope, ChangeOrder, KeyChangeAction, OrderingKey, SchemaChangeAction};
use tidegate_lanes::Header;

use super::column_json::{ValueStyle, write_string};
use super::envelope::{ChangeBody, EnvelopeWriter, RowPart, TransactionFields, has_key, table_name, write_key};
use super::{COMMIT_LSN, OP, PART, SEQ, TABLE};

/// The key of a record, and the key that orders it.
type RecordKeys = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Settings of a translation.
#[derive(Debug, Clone)]
pub(crate) struct TranslatorSettings {
    pub(crate) stream: String,
    pub(crate) database: String,
    pub(crate) envelope: ChangeEnvelope,
    pub(crate) order: ChangeOrder,
    pub(crate) key: OrderingKey,
    pub(crate) key_change: KeyChangeAction,
    pub(crate) schema_change: SchemaChangeAction,
    /// The sink is Kafka: an empty record follows each delete, so that compaction removes the key.
    pub(crate) tombstones: bool,
    /// The sink uses headers.
    pub(crate) headers: bool,
    /// The sink takes rows only: definitions are not sent, and a TRUNCATE is a record that cannot be encoded.
    pub(crate) rows_only: bool,
}

/// A record without a position.
#[derive(Debug, Default)]
pub(crate) struct PendingRecord {
    /// The key of the row, for sinks.
    pub(crate) key: Option<Vec<u8>>,
    /// The key that orders the record.
    pub(crate) ordering_key: Option<Vec<u8>>,
    /// `None` for a tombstone.
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<Header>,
    pub(crate) timestamp_ms: i64,
    /// All records before this one have to be finished first.
    pub(crate) waits: bool,
    /// The change cannot be encoded.
    pub(crate) error: Option<String>,
}

impl PendingRecord {
    pub(crate) fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len) + self.payload.as_ref().map_or(0, Vec::len)
    }
}

/// The next step of the source.
#[derive(Debug)]
pub(crate) enum TranslatedItem {
    Record(Box<PendingRecord>),
    /// Everything up to this position was returned before.
    Complete(Lsn),
    /// The configuration ends the stream here.
    Stop(String),
}

/// The state between events.
#[derive(Debug)]
pub(crate) struct ChangeTranslator {
    settings: TranslatorSettings,
    writer: EnvelopeWriter,
    transaction: Option<TransactionFields>,
    previous_lsn: Option<Lsn>,
    next_seq: u64,
    /// The newest change, until it is known whether it is the last one of its transaction.
    held: Option<Change>,
    /// The record before was a barrier: the next one waits for it.
    is_barred: bool,
}

/// The part of a record among the records of its change: schema records come first, with negative numbers.
const SCHEMA_PART: i32 = -1;

impl ChangeTranslator {
    pub(crate) fn new(settings: TranslatorSettings) -> Self {
        let writer = EnvelopeWriter {
            envelope: settings.envelope,
            stream: settings.stream.as_str().into(),
            database: settings.database.as_str().into(),
        };
        Self { settings, writer, transaction: None, previous_lsn: None, next_seq: 0, held: None, is_barred: false }
    }

    /// Translates an event; appends what follows from it.
    pub(crate) fn on_event(&mut self, event: ChangeEvent, out: &mut impl Extend<TranslatedItem>) {
        match event {
            ChangeEvent::Begin(begin) => self.begin(begin),
            ChangeEvent::Schema(change) => {
                self.flush(false, out);
                self.schema(&change, out);
            }
            ChangeEvent::Change(change) => {
                self.flush(false, out);
                self.next_seq = change.id.seq.saturating_add(1);
                self.held = Some(change).filter(|change| !is_heartbeat(change));
            }
            ChangeEvent::Commit(commit) => {
                self.flush(true, out);
                self.previous_lsn = Some(commit.commit_lsn);
                self.transaction = None;
                out.extend([TranslatedItem::Complete(commit.end_lsn)]);
            }
            ChangeEvent::Message(message) => {
                let now = PgTimestamp::from_system_time(SystemTime::now());
                let transaction = TransactionFields::of_message(message.lsn, self.previous_lsn, now);
                let body =
                    ChangeBody::Message { prefix: &message.prefix, content: &message.content, is_transactional: false };
                let id = ChangeId { commit_lsn: message.lsn, seq: 0 };
                let record = self.record(&transaction, id, 0, true, body);
                self.push(record, false, out);
                out.extend([TranslatedItem::Complete(message.end_lsn)]);
            }
            ChangeEvent::Progress(lsn) => out.extend([TranslatedItem::Complete(lsn)]),
            _ => {}
        }
    }

    fn begin(&mut self, begin: TransactionBegin) {
        let now = PgTimestamp::from_system_time(SystemTime::now());
        self.transaction = Some(TransactionFields::of(begin, self.previous_lsn, now));
        self.next_seq = 0;
        self.held = None;
    }

    /// Returns the held change.
    fn flush(&mut self, is_last: bool, out: &mut impl Extend<TranslatedItem>) {
        let Some(change) = self.held.take() else { return };
        let Some(transaction) = self.transaction.take() else {
            return out.extend([TranslatedItem::Stop(format!("change {} came outside of a transaction", change.id))]);
        };
        match &change.kind {
            ChangeKind::Row(row) => self.row(&transaction, change.id, is_last, row, out),
            ChangeKind::Truncate(truncate) => {
                let tables = truncate.relations.len();
                for (part, relation) in (0..).zip(&*truncate.relations) {
                    let (cascade, restart_identity) = (truncate.cascade, truncate.restart_identity);
                    let body = ChangeBody::Truncate { relation, cascade, restart_identity };
                    let is_last = is_last && usize::try_from(part + 1) == Ok(tables);
                    let mut record = self.record(&transaction, change.id, part, is_last, body);
                    if self.settings.rows_only {
                        record.error.get_or_insert_with(|| refused_truncate(relation));
                    }
                    let bars = self.settings.order == ChangeOrder::Key;
                    self.push(record, bars, out);
                }
            }
            ChangeKind::Message(message) => {
                let (prefix, content) = (&message.prefix, &message.content);
                let body = ChangeBody::Message { prefix, content, is_transactional: true };
                let record = self.record(&transaction, change.id, 0, is_last, body);
                self.push(record, false, out);
            }
        }
        self.transaction = Some(transaction);
    }

    fn row(
        &mut self,
        transaction: &TransactionFields,
        id: ChangeId,
        is_last: bool,
        row: &RowChange,
        out: &mut impl Extend<TranslatedItem>,
    ) {
        if !has_key(row.relation()) || !row.is_key_change() {
            let record = self.record(transaction, id, 0, is_last, ChangeBody::Row(row, RowPart::Whole));
            let tombstone = self.tombstone(&record);
            self.push(record, false, out);
            tombstone.into_iter().for_each(|tombstone| self.push(tombstone, false, out));
            return;
        }
        // The old key and the new one run concurrently otherwise: the insert could overtake the delete, and both could
        // overtake earlier changes of the other key.
        let waits = self.settings.order == ChangeOrder::Key && self.settings.key_change == KeyChangeAction::Barrier;
        for (part, row_part) in [(0, RowPart::Old), (1, RowPart::New)] {
            let is_last = is_last && row_part == RowPart::New;
            let mut record = self.record(transaction, id, part, is_last, ChangeBody::Row(row, row_part));
            record.waits = waits;
            let tombstone = self.tombstone(&record);
            self.push(record, false, out);
            tombstone.into_iter().for_each(|tombstone| self.push(tombstone, false, out));
        }
    }

    fn schema(&mut self, change: &SchemaChange, out: &mut impl Extend<TranslatedItem>) {
        // The first definition that a run sees is not a change. Debezium sends no schema changes of Postgres.
        if change.before.is_none() {
            return;
        }
        if self.settings.schema_change == SchemaChangeAction::Stop {
            let names = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let (added, removed) = (names(change.added_columns().collect()), names(change.removed_columns().collect()));
            let table = table_name(&change.after);
            let reason = format!(
                "the definition of {table} has changed (columns added: {added}; removed: {removed}) and schema_change is stop"
            );
            return out.extend([TranslatedItem::Stop(reason)]);
        }
        if self.settings.envelope == ChangeEnvelope::Debezium || self.settings.rows_only {
            return;
        }
        let Some(transaction) = self.transaction.take() else { return };
        let id = ChangeId { commit_lsn: transaction.commit_lsn, seq: self.next_seq };
        let record = self.record(&transaction, id, SCHEMA_PART, false, ChangeBody::Schema(change));
        let bars = self.settings.order == ChangeOrder::Key;
        self.push(record, bars, out);
        self.transaction = Some(transaction);
    }

    /// Appends a record. A barrier waits for all records before it, and the record after it waits for the barrier.
    fn push(&mut self, mut record: PendingRecord, bars: bool, out: &mut impl Extend<TranslatedItem>) {
        record.waits |= bars || self.is_barred;
        self.is_barred = bars;
        out.extend([TranslatedItem::Record(Box::new(record))]);
    }

    /// The empty record after a delete.
    fn tombstone(&self, delete: &PendingRecord) -> Option<PendingRecord> {
        let is_delete =
            delete.headers.iter().any(|header| &*header.name == OP && header.value.as_deref() == Some(b"delete"));
        if !self.settings.tombstones || !is_delete || delete.error.is_some() {
            return None;
        }
        let (key, ordering_key) = (delete.key.clone(), delete.ordering_key.clone());
        Some(PendingRecord {
            key,
            ordering_key,
            headers: delete.headers.clone(),
            timestamp_ms: delete.timestamp_ms,
            ..PendingRecord::default()
        })
    }

    fn record(
        &self,
        transaction: &TransactionFields,
        id: ChangeId,
        part: i32,
        is_last: bool,
        body: ChangeBody<'_>,
    ) -> PendingRecord {
        let mut payload = Vec::with_capacity(512);
        let mut error =
            self.writer.write(transaction, id, is_last, body, &mut payload).err().map(|error| error.to_string());
        let (key, ordering_key) = match self.keys(body, &payload) {
            Ok(keys) => keys,
            Err(reason) => {
                error.get_or_insert(reason);
                (None, None)
            }
        };
        PendingRecord {
            key,
            ordering_key,
            payload: Some(payload),
            headers: if self.settings.headers { headers(id, part, body) } else { Vec::new() },
            timestamp_ms: transaction.unix_ms(),
            waits: false,
            error,
        }
    }

    /// The key of the record and the key that orders it.
    fn keys(&self, body: ChangeBody<'_>, payload: &[u8]) -> Result<RecordKeys, String> {
        let own = self.row_key(body)?;
        let table = || match body {
            ChangeBody::Message { prefix, .. } => prefix.to_vec(),
            _ => body.relation().map(table_name).unwrap_or_default().into_bytes(),
        };
        let ordering = match (&self.settings.key, self.settings.order) {
            (_, ChangeOrder::Commit) => b"*".to_vec(),
            (_, ChangeOrder::Table) => table(),
            (OrderingKey::Pointer(pointer), ChangeOrder::Key) => pointed(pointer, payload).unwrap_or_else(table),
            (OrderingKey::Record, ChangeOrder::Key) => match (&own, body) {
                // A key alone does not name its table.
                (Some(key), ChangeBody::Row(row, _)) if self.settings.envelope == ChangeEnvelope::Debezium => {
                    [table_name(row.relation()).as_bytes(), key].concat()
                }
                (Some(key), ChangeBody::Row(..)) => key.clone(),
                // The rows of a table without a key stay in one order.
                _ => table(),
            },
        };
        Ok((own, Some(ordering)))
    }

    /// The key of a row: `["schema","table",{"id":1}]`, and for Debezium's consumers `{"id":1}`.
    fn row_key(&self, body: ChangeBody<'_>) -> Result<Option<Vec<u8>>, String> {
        let ChangeBody::Row(row, part) = body else { return Ok(None) };
        if !has_key(row.relation()) {
            return Ok(None);
        }
        let mut key = Vec::with_capacity(64);
        if self.settings.envelope == ChangeEnvelope::Debezium {
            write_key(row, part, ValueStyle::Debezium, &mut key).map_err(|error| error.to_string())?;
            return Ok(Some(key));
        }
        key.push(b'[');
        write_string(&row.relation().schema, &mut key);
        key.push(b',');
        write_string(&row.relation().name, &mut key);
        key.push(b',');
        write_key(row, part, ValueStyle::Plain, &mut key).map_err(|error| error.to_string())?;
        key.push(b']');
        Ok(Some(key))
    }
}

/// The reason why a statement for rows does not get a TRUNCATE: its parameters would be NULL.
fn refused_truncate(relation: &Relation) -> String {
    let table = table_name(relation);
    format!(
        "TRUNCATE of {table} has no row for the parameters of sql: add header:op to params and handle it in sql, or leave \
         it out of the publication: ALTER PUBLICATION ... SET (publish = 'insert, update, delete')"
    )
}

/// Whether the change is a message that the reader of the slot wrote itself, to move an idle slot.
fn is_heartbeat(change: &Change) -> bool {
    match &change.kind {
        ChangeKind::Message(message) => {
            message.prefix[..] == b"tidegate"[..] && message.content[..] == b"heartbeat"[..]
        }
        _ => false,
    }
}

/// The text at a JSON pointer of the envelope.
fn pointed(pointer: &str, payload: &[u8]) -> Option<Vec<u8>> {
    let value: serde_json::Value = serde_json::from_slice(payload).ok()?;
    match value.pointer(pointer)? {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text.clone().into_bytes()),
        other => Some(other.to_string().into_bytes()),
    }
}

fn headers(id: ChangeId, part: i32, body: ChangeBody<'_>) -> Vec<Header> {
    let header = |name: &str, value: &str| Header { name: name.into(), value: Some(value.as_bytes().into()) };
    let mut headers = vec![
        header(COMMIT_LSN, &id.commit_lsn.to_string()),
        header(SEQ, &id.seq.to_string()),
        header(OP, body.operation()),
    ];
    headers.extend(body.relation().map(|relation| header(TABLE, &table_name(relation))));
    if part != 0 {
        headers.push(header(PART, &part.to_string()));
    }
    headers
}
