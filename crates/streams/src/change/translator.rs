//! Translates events of a change stream to records: pure, so that every rule of order is testable without a server.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tidegate_changes::{
    Change, ChangeEvent, ChangeId, ChangeKind, Lsn, PgSnapshot, PgTimestamp, Relation, RowChange, SchemaChange,
    SnapshotRows, TableProgress, TransactionBegin, TransactionCommit,
};
use tidegate_config::stream::{ChangeEnvelope, ChangeOrder, KeyChangeAction, OrderingKey, SchemaChangeAction};
use tidegate_lanes::Header;

use super::column_json::{ValueStyle, write_string};
use super::envelope::{ChangeBody, EnvelopeWriter, RecordCounts, RowPart, TransactionFields, has_key, table_name};
use super::{COMMIT_LSN, COPY, COPY_PROGRESS, OP, PART, SEQ, TABLE};

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
    /// The sink takes rows only: messages and markers are not sent, nor records that empty a table before a new copy.
    pub(crate) rows_only: bool,
    /// Records announce the begin and the end of each transaction.
    pub(crate) tx_markers: bool,
    /// The sink stores positions, and how far the copy of each table is.
    pub(crate) stores_positions: bool,
    /// Tables that were copied from an exported snapshot, by OID.
    pub(crate) copied: BTreeMap<u32, CopiedTable>,
}

/// The transactions that the copy of a table holds.
#[derive(Debug, Clone)]
pub(crate) struct CopiedTable {
    /// Upper bound of the positions of their commits.
    before: Lsn,
    /// The snapshot shows them; `None` if it shows all that commit before the position.
    snapshot: Option<PgSnapshot>,
}

impl CopiedTable {
    /// `None` if the table was not copied from an exported snapshot.
    pub(crate) fn of(progress: &TableProgress) -> Option<Self> {
        let snapshot = progress.snapshot.as_deref().map(PgSnapshot::parse);
        // No change is left out if no snapshot is usable: a repeated row is better than a lost one.
        Some(Self {
            before: Lsn(progress.exported_at?),
            snapshot: snapshot.map_or(Some(None), |found| found.map(Some))?,
        })
    }

    fn holds(&self, commit_lsn: Lsn, xid: Option<u32>) -> bool {
        let is_shown = |snapshot: &PgSnapshot| xid.is_some_and(|xid| snapshot.shows(xid));
        commit_lsn < self.before && self.snapshot.as_ref().is_none_or(is_shown)
    }
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
    /// Rows of a snapshot, the number of rows that became records, and whether the first of them waits for all records before it.
    Rows {
        rows: Box<SnapshotRows>,
        next: usize,
        waits: bool,
    },
    /// All rows of the table up to here were returned before.
    Copied(Box<TableProgress>),
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
    /// Records of the transaction; `None` before the first of them.
    counts: Option<RecordCounts>,
}

/// The part of the record that announces a transaction.
const BEGIN_PART: i32 = -2;
/// Orders the records that announce transactions.
const TRANSACTION_KEY: &[u8] = b"transaction";
/// Longer keys of rows are not part of the name of a read.
const NAME_KEY_MAX: usize = 512;
/// The part of a record among the records of its change: schema records come first, with negative numbers.
const SCHEMA_PART: i32 = -1;

impl ChangeTranslator {
    pub(crate) fn new(settings: TranslatorSettings) -> Self {
        let writer = EnvelopeWriter {
            envelope: settings.envelope,
            table_order: None,
            stream: settings.stream.as_str().into(),
            database: settings.database.as_str().into(),
        };
        let (transaction, previous_lsn, held, counts) = (None, None, None, None);
        Self { settings, writer, transaction, previous_lsn, next_seq: 0, held, is_barred: false, counts }
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
                self.next_seq = change.id.seq.saturating_add(1);
                if !self.is_left_out(&change) {
                    self.flush(false, out);
                    self.held = Some(change);
                }
            }
            ChangeEvent::Commit(commit) => {
                self.flush(true, out);
                self.end(&commit, out);
                self.previous_lsn = Some(commit.commit_lsn);
                self.transaction = None;
                out.extend([TranslatedItem::Complete(commit.end_lsn)]);
            }
            ChangeEvent::Message(message) if self.settings.rows_only => {
                out.extend([TranslatedItem::Complete(message.end_lsn)]);
            }
            ChangeEvent::Message(message) => {
                let now = PgTimestamp::from_system_time(SystemTime::now());
                let transaction = TransactionFields::without_transaction(message.lsn, self.previous_lsn, now);
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

    /// Whether no record follows from the change.
    fn is_left_out(&self, change: &Change) -> bool {
        let is_message = matches!(change.kind, ChangeKind::Message(_));
        (is_message && self.settings.rows_only) || is_own_message(change) || self.is_copied(change)
    }

    fn begin(&mut self, begin: TransactionBegin) {
        let now = PgTimestamp::from_system_time(SystemTime::now());
        self.transaction = Some(TransactionFields::of(begin, self.previous_lsn, now));
        self.next_seq = 0;
        self.held = None;
        self.counts = None;
    }

    /// Whether the copy of the table holds the change.
    fn is_copied(&self, change: &Change) -> bool {
        let xid = self.transaction.as_ref().and_then(TransactionFields::xid);
        match &change.kind {
            _ if self.settings.copied.is_empty() => false,
            ChangeKind::Row(row) => self.holds(row.relation(), change.id.commit_lsn, xid),
            ChangeKind::Truncate(truncate) => {
                truncate.relations.iter().all(|relation| self.holds(relation, change.id.commit_lsn, xid))
            }
            ChangeKind::Message(_) => false,
        }
    }

    /// Whether the copy of the table holds the changes of a transaction.
    fn holds(&self, relation: &Relation, commit_lsn: Lsn, xid: Option<u32>) -> bool {
        self.settings.copied.get(&relation.oid).is_some_and(|copied| copied.holds(commit_lsn, xid))
    }

    /// Announces the transaction before its first record.
    fn announce(&mut self, transaction: &TransactionFields, out: &mut impl Extend<TranslatedItem>) {
        if self.settings.tx_markers && !self.settings.rows_only && self.counts.is_none() {
            self.counts = Some(RecordCounts::default());
            let id = ChangeId { commit_lsn: transaction.commit_lsn, seq: 0 };
            let record = self.record(transaction, id, BEGIN_PART, false, ChangeBody::Begin);
            self.push(record, false, out);
        }
    }

    /// Announces the end of a transaction that has records.
    fn end(&mut self, commit: &TransactionCommit, out: &mut impl Extend<TranslatedItem>) {
        let (Some(counts), Some(transaction)) = (self.counts.take(), self.transaction.take()) else { return };
        let id = ChangeId { commit_lsn: commit.commit_lsn, seq: commit.changes };
        let record = self.record(&transaction, id, 0, true, ChangeBody::End(&counts));
        self.push(record, false, out);
    }

    /// The steps that follow from the rows of a snapshot.
    pub(crate) fn on_rows(&mut self, rows: SnapshotRows, out: &mut impl Extend<TranslatedItem>) {
        if rows.clears && !self.settings.rows_only {
            let now = PgTimestamp::from_system_time(SystemTime::now());
            let transaction = TransactionFields::without_transaction(rows.lsn, None, now);
            let id = ChangeId { commit_lsn: rows.lsn, seq: rows.first_seq.saturating_sub(1) };
            let record = self.record(&transaction, id, 0, true, ChangeBody::Clear(&rows));
            self.push(record, self.settings.order == ChangeOrder::Key, out);
        }
        // The next record waits if there is no row.
        let waits = !rows.rows.is_empty() && std::mem::replace(&mut self.is_barred, false);
        out.extend([TranslatedItem::Rows { rows: Box::new(rows), next: 0, waits }]);
    }

    /// The next record of the rows of a snapshot.
    pub(crate) fn read(&mut self, rows: &SnapshotRows, number: usize) -> Option<PendingRecord> {
        let row = rows.rows.get(number)?;
        let now = PgTimestamp::from_system_time(SystemTime::now());
        let transaction = TransactionFields::without_transaction(rows.lsn, None, now);
        let id = ChangeId { commit_lsn: rows.lsn, seq: rows.first_seq.saturating_add(number as u64) };
        let mut record = self.record(&transaction, id, 0, true, ChangeBody::Read(rows, row));
        if self.settings.stores_positions {
            record.headers.extend(rows.progress_at(row).and_then(|progress| progress_header(&progress)));
        }
        Some(record)
    }

    /// A record for sinks that store positions: how far the copy of a table is, without a row.
    pub(crate) fn copied(&self, progress: &TableProgress) -> Option<PendingRecord> {
        let header = progress_header(progress).filter(|_| self.settings.stores_positions)?;
        Some(PendingRecord { ordering_key: Some(b"*".to_vec()), headers: vec![header], ..PendingRecord::default() })
    }

    /// Returns the held change.
    fn flush(&mut self, is_last: bool, out: &mut impl Extend<TranslatedItem>) {
        let Some(change) = self.held.take() else { return };
        let Some(transaction) = self.transaction.take() else {
            return out.extend([TranslatedItem::Stop(format!("change {} came outside of a transaction", change.id))]);
        };
        self.announce(&transaction, out);
        match &change.kind {
            ChangeKind::Row(row) => self.row(&transaction, change.id, is_last, row, out),
            ChangeKind::Truncate(truncate) => {
                let is_left = |relation: &Relation| !self.holds(relation, change.id.commit_lsn, transaction.xid());
                let relations: Vec<_> =
                    (0..).zip(&*truncate.relations).filter(|(_, relation)| is_left(relation)).collect();
                let last = relations.last().map(|(part, _)| *part);
                for (part, relation) in relations {
                    let (cascade, restart_identity) = (truncate.cascade, truncate.restart_identity);
                    let body = ChangeBody::Truncate { relation, cascade, restart_identity };
                    let record = self.record(&transaction, change.id, part, is_last && last == Some(part), body);
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
        if self.settings.envelope == ChangeEnvelope::Debezium {
            return;
        }
        let Some(transaction) = self.transaction.take() else { return };
        self.announce(&transaction, out);
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
        &mut self,
        transaction: &TransactionFields,
        id: ChangeId,
        part: i32,
        is_last: bool,
        body: ChangeBody<'_>,
    ) -> PendingRecord {
        self.writer.table_order = self.count(body);
        let mut payload = Vec::with_capacity(512);
        let written = self.writer.write(transaction, id, is_last, body, &mut payload);
        let mut error = written.err().map(|error| error.to_string());
        let (key, ordering_key) = match self.keys(transaction, body, &payload) {
            Ok(keys) => keys,
            Err(reason) => {
                error.get_or_insert(reason);
                (None, None)
            }
        };
        let headers = if self.settings.headers { headers(id, part, body, key.as_deref()) } else { Vec::new() };
        PendingRecord {
            key,
            ordering_key,
            payload: Some(payload),
            headers,
            timestamp_ms: transaction.unix_ms(),
            waits: false,
            error,
        }
    }

    /// Counts a record of a transaction that was announced. Returns its number in its table.
    fn count(&mut self, body: ChangeBody<'_>) -> Option<u64> {
        let counts = self.counts.as_mut().filter(|_| !body.is_marker() && !matches!(body, ChangeBody::Schema(_)))?;
        counts.all += 1;
        let count = counts.tables.entry(table_name(body.relation()?)).or_default();
        *count += 1;
        Some(*count)
    }

    /// The key of the record and the key that orders it.
    fn keys(
        &self,
        transaction: &TransactionFields,
        body: ChangeBody<'_>,
        payload: &[u8],
    ) -> Result<RecordKeys, String> {
        if body.is_marker() {
            let ordering = if self.settings.order == ChangeOrder::Commit { b"*" } else { TRANSACTION_KEY };
            let name = transaction.name();
            let key = match self.settings.envelope {
                ChangeEnvelope::Debezium => format!("{{\"id\":\"{name}\"}}"),
                _ => format!("[\"transaction\",\"{name}\"]"),
            };
            return Ok((Some(key.into_bytes()), Some(ordering.to_vec())));
        }
        let own = self.row_key(body)?;
        let table = || match body {
            ChangeBody::Message { prefix, .. } => prefix.to_vec(),
            _ => body.relation().map(table_name).unwrap_or_default().into_bytes(),
        };
        let ordering = match (&self.settings.key, self.settings.order) {
            (_, ChangeOrder::Commit) => b"*".to_vec(),
            (_, ChangeOrder::Table) => table(),
            (OrderingKey::Pointer(pointer), ChangeOrder::Key) => pointed(pointer, payload).unwrap_or_else(table),
            // Only rows have keys.
            (OrderingKey::Record, ChangeOrder::Key) => match &own {
                // A key alone does not name its table.
                Some(key) if self.settings.envelope == ChangeEnvelope::Debezium => [table().as_slice(), key].concat(),
                Some(key) => key.clone(),
                // The rows of a table without a key stay in one order.
                _ => table(),
            },
        };
        Ok((own, Some(ordering)))
    }

    /// The key of a row: `["schema","table",{"id":1}]`, and for Debezium's consumers `{"id":1}`.
    fn row_key(&self, body: ChangeBody<'_>) -> Result<Option<Vec<u8>>, String> {
        let relation = match body {
            ChangeBody::Row(row, _) => row.relation(),
            ChangeBody::Read(rows, _) => &*rows.relation,
            _ => return Ok(None),
        };
        if !has_key(relation) {
            return Ok(None);
        }
        let mut key = Vec::with_capacity(64);
        if self.settings.envelope == ChangeEnvelope::Debezium {
            body.write_key(ValueStyle::Debezium, &mut key).map_err(|error| error.to_string())?;
            return Ok(Some(key));
        }
        key.push(b'[');
        write_string(&relation.schema, &mut key);
        key.push(b',');
        write_string(&relation.name, &mut key);
        key.push(b',');
        body.write_key(ValueStyle::Plain, &mut key).map_err(|error| error.to_string())?;
        key.push(b']');
        Ok(Some(key))
    }
}

/// Whether the change is a message of ours: a heartbeat that moves an idle slot, or a mark of a snapshot.
fn is_own_message(change: &Change) -> bool {
    match &change.kind {
        ChangeKind::Message(message) => message.prefix[..] == b"tidegate"[..],
        _ => false,
    }
}

fn progress_header(progress: &TableProgress) -> Option<Header> {
    let text = serde_json::to_string(progress).ok()?;
    Some(Header { name: COPY_PROGRESS.into(), value: Some(text.into_bytes().into()) })
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

/// The name of a row that is read: equal whenever the row is read again for this copy of its table.
fn read_name(rows: &SnapshotRows, key: &[u8]) -> Option<String> {
    if key.len() > NAME_KEY_MAX {
        return None;
    }
    let encoded: String = url::form_urlencoded::byte_serialize(key).collect();
    Some(format!("{}/{encoded}", rows.progress.copy))
}

fn headers(id: ChangeId, part: i32, body: ChangeBody<'_>, key: Option<&[u8]>) -> Vec<Header> {
    let header = |name: &str, value: &str| Header { name: name.into(), value: Some(value.as_bytes().into()) };
    let mut headers = vec![
        header(COMMIT_LSN, &id.commit_lsn.to_string()),
        header(SEQ, &id.seq.to_string()),
        header(OP, body.operation()),
    ];
    headers.extend(body.relation().map(|relation| header(TABLE, &table_name(relation))));
    if let (ChangeBody::Read(rows, _), Some(key)) = (body, key) {
        headers.extend(read_name(rows, key).map(|name| header(COPY, &name)));
    }
    if part != 0 {
        headers.push(header(PART, &part.to_string()));
    }
    headers
}
