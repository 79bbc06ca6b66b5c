//! Envelopes of changes: the JSON that a sink receives as the value of a record.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use tidegate_changes::{
    ChangeId, ColumnValue, Lsn, OldRow, PgTimestamp, Relation, RelationColumn, ReplicaIdentity, RowChange,
    RowOperation, SchemaChange, SnapshotRow, SnapshotRows, TransactionBegin,
};
use tidegate_config::stream::ChangeEnvelope;

use super::column_json::{ValueStyle, write_string, write_value};
use super::time_text::rfc3339;

/// Stands for a value that was not sent, as in Debezium's `unavailable.value.placeholder`.
pub(super) const UNAVAILABLE: &str = "__debezium_unavailable_value";

/// Writes the envelopes of a stream.
#[derive(Debug)]
pub(super) struct EnvelopeWriter {
    pub(super) envelope: ChangeEnvelope,
    /// The number of the next record in its table, for `transaction`; `None` without markers of transactions.
    pub(super) table_order: Option<u64>,
    /// Name of the stream.
    pub(super) stream: Box<str>,
    pub(super) database: Box<str>,
}

/// The transaction of a change, or what stands for it.
#[derive(Debug)]
pub(super) struct TransactionFields {
    pub(super) commit_lsn: Lsn,
    /// The transaction before it.
    previous_lsn: Option<Lsn>,
    unix_micros: i64,
    time: String,
    /// `None` for a message outside of transactions, and for rows of a snapshot.
    xid: Option<u32>,
    origin: Option<Arc<str>>,
    /// When the transaction was received, in microseconds since 1970.
    received_micros: i64,
}

impl TransactionFields {
    pub(super) fn of(begin: TransactionBegin, previous_lsn: Option<Lsn>, now: PgTimestamp) -> Self {
        let unix_micros = begin.commit_time.unix_micros();
        Self {
            commit_lsn: begin.commit_lsn,
            previous_lsn,
            unix_micros,
            time: rfc3339(unix_micros),
            xid: Some(begin.xid),
            origin: begin.origin,
            received_micros: now.unix_micros(),
        }
    }

    /// The fields of a message outside of transactions, or of rows of a snapshot. The server does not send its time.
    pub(super) fn without_transaction(lsn: Lsn, previous_lsn: Option<Lsn>, now: PgTimestamp) -> Self {
        let micros = now.unix_micros();
        Self {
            commit_lsn: lsn,
            previous_lsn,
            unix_micros: micros,
            time: rfc3339(micros),
            xid: None,
            origin: None,
            received_micros: micros,
        }
    }

    /// The transaction id and the position, as Debezium names a transaction.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.xid.unwrap_or_default(), self.commit_lsn.0)
    }

    pub(super) const fn xid(&self) -> Option<u32> {
        self.xid
    }

    pub(super) const fn unix_ms(&self) -> i64 {
        self.unix_micros.div_euclid(1_000)
    }
}

/// A part of an update that changes the key: it is delivered as a delete of the old row and an insert of the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowPart {
    /// The whole change.
    Whole,
    /// The delete of the old row.
    Old,
    /// The insert of the new row.
    New,
}

/// The content of a record.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChangeBody<'a> {
    Row(&'a RowChange, RowPart),
    Truncate {
        relation: &'a Relation,
        cascade: bool,
        restart_identity: bool,
    },
    Message {
        prefix: &'a [u8],
        content: &'a [u8],
        is_transactional: bool,
    },
    Schema(&'a SchemaChange),
    /// A row of a snapshot.
    Read(&'a SnapshotRows, &'a SnapshotRow),
    /// Rows of a table that the sink has are from an earlier copy.
    Clear(&'a SnapshotRows),
    /// The begin of a transaction.
    Begin,
    /// The end of a transaction, and its records.
    End(&'a RecordCounts),
}

/// Records of a transaction.
#[derive(Debug, Default)]
pub(super) struct RecordCounts {
    pub(super) all: u64,
    pub(super) tables: BTreeMap<String, u64>,
}

/// A row that has no JSON: a value is neither UTF-8 nor marked as binary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of {table} is not UTF-8 text")]
pub(super) struct EnvelopeError {
    pub(super) table: String,
    pub(super) column: String,
}

impl ChangeBody<'_> {
    /// The operation, as the envelope `change` names it.
    pub(super) fn operation(&self) -> &'static str {
        match self {
            Self::Row(_, RowPart::Old) => "delete",
            Self::Row(_, RowPart::New) => "insert",
            Self::Row(row, RowPart::Whole) => match row.operation() {
                RowOperation::Insert => "insert",
                RowOperation::Update => "update",
                RowOperation::Delete => "delete",
            },
            Self::Truncate { .. } | Self::Clear(_) => "truncate",
            Self::Message { .. } => "message",
            Self::Schema(_) => "schema",
            Self::Read(..) => "read",
            Self::Begin => "begin",
            Self::End(_) => "end",
        }
    }

    /// The table, if the record is about one.
    pub(super) fn relation(&self) -> Option<&Relation> {
        match self {
            Self::Row(row, _) => Some(row.relation()),
            Self::Truncate { relation, .. } => Some(relation),
            Self::Message { .. } | Self::Begin | Self::End(_) => None,
            Self::Schema(change) => Some(&change.after),
            Self::Read(rows, _) | Self::Clear(rows) => Some(&rows.relation),
        }
    }

    /// Whether the record announces a transaction.
    pub(super) const fn is_marker(&self) -> bool {
        matches!(self, Self::Begin | Self::End(_))
    }

    /// Appends the key of a row as an object, or null if the stream does not know one.
    pub(super) fn write_key(&self, style: ValueStyle, out: &mut Vec<u8>) -> Result<(), EnvelopeError> {
        match self {
            Self::Row(row, RowPart::Old) if has_key(row.relation()) => {
                write_object(row.relation(), row.before().filter(|(column, _)| column.is_key), style, out)
            }
            Self::Row(row, _) if has_key(row.relation()) => write_object(row.relation(), row.key(), style, out),
            Self::Read(rows, row) if has_key(&rows.relation) => {
                write_object(&rows.relation, rows.columns(row).filter(|(column, _)| column.is_key), style, out)
            }
            _ => {
                write_null(out);
                Ok(())
            }
        }
    }
}

impl EnvelopeWriter {
    /// Appends the envelope.
    pub(super) fn write(
        &self,
        transaction: &TransactionFields,
        id: ChangeId,
        is_last: bool,
        body: ChangeBody<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EnvelopeError> {
        match self.envelope {
            ChangeEnvelope::Change => change(transaction, id, is_last, body, out),
            ChangeEnvelope::Debezium if body.is_marker() => {
                debezium_marker(transaction, body, out);
                Ok(())
            }
            ChangeEnvelope::Debezium => self.debezium(transaction, id, body, out),
            ChangeEnvelope::CloudEvents => {
                self.cloud_event_head(transaction, id, body, out);
                change(transaction, id, is_last, body, out)?;
                out.push(b'}');
                Ok(())
            }
        }
    }

    fn cloud_event_head(&self, transaction: &TransactionFields, id: ChangeId, body: ChangeBody<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"specversion\":\"1.0\",\"id\":");
        let part = match body {
            ChangeBody::Row(_, RowPart::New) => "/1".to_owned(),
            ChangeBody::Truncate { relation, .. } => format!("/{}", table_name(relation)),
            ChangeBody::Schema(change) => format!("/schema/{}", table_name(&change.after)),
            ChangeBody::Begin => "/begin".to_owned(),
            ChangeBody::End(_) => "/end".to_owned(),
            _ => String::new(),
        };
        write_string(&format!("{id}{part}"), out);
        out.extend_from_slice(b",\"source\":");
        write_string(&format!("/tidegate/{}", self.stream), out);
        let _ = write!(out, ",\"type\":\"tidegate.change.{}\",\"time\":\"{}\"", body.operation(), transaction.time);
        if let Some(relation) = body.relation() {
            out.extend_from_slice(b",\"subject\":");
            write_string(&table_name(relation), out);
        }
        out.extend_from_slice(b",\"datacontenttype\":\"application/json\",\"data\":");
    }

    fn debezium(
        &self,
        transaction: &TransactionFields,
        id: ChangeId,
        body: ChangeBody<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EnvelopeError> {
        let style = ValueStyle::Debezium;
        let operation = match body.operation() {
            "insert" => 'c',
            "update" => 'u',
            "delete" => 'd',
            "truncate" => 't',
            "read" => 'r',
            _ => 'm',
        };
        out.push(b'{');
        match body {
            ChangeBody::Row(row, part) => {
                let has_before = part != RowPart::New && row.old_tuple().is_some();
                out.extend_from_slice(b"\"before\":");
                if has_before {
                    write_object(row.relation(), row.before(), style, out)?;
                } else {
                    write_null(out);
                }
                out.extend_from_slice(b",\"after\":");
                let has_after = part != RowPart::Old && row.new_tuple().is_some();
                if has_after { write_object(row.relation(), row.after(), style, out)? } else { write_null(out) }
            }
            ChangeBody::Message { prefix, content, .. } => {
                out.extend_from_slice(b"\"message\":{\"prefix\":");
                write_string(&String::from_utf8_lossy(prefix), out);
                out.extend_from_slice(b",\"content\":");
                write_string(&base64::engine::general_purpose::STANDARD.encode(content), out);
                out.push(b'}');
            }
            ChangeBody::Read(rows, row) => {
                out.extend_from_slice(b"\"before\":null,\"after\":");
                write_object(&rows.relation, rows.columns(row), style, out)?;
            }
            ChangeBody::Truncate { .. }
            | ChangeBody::Clear(_)
            | ChangeBody::Schema(_)
            | ChangeBody::Begin
            | ChangeBody::End(_) => {
                out.extend_from_slice(b"\"before\":null,\"after\":null");
            }
        }
        self.debezium_source(transaction, body, out);
        let micros = transaction.received_micros;
        let _ = write!(out, ",\"op\":\"{operation}\",\"ts_ms\":{},\"ts_us\":{micros}", micros.div_euclid(1_000));
        let _ = write!(out, ",\"ts_ns\":{},\"transaction\":", i128::from(micros) * 1_000);
        match transaction.xid {
            Some(xid) => {
                let (lsn, order) = (transaction.commit_lsn.0, id.seq.saturating_add(1));
                let _ = write!(out, "{{\"id\":\"{xid}:{lsn}\",\"total_order\":{order}");
                if let Some(order) = self.table_order {
                    let _ = write!(out, ",\"data_collection_order\":{order}");
                }
                out.push(b'}');
            }
            None => write_null(out),
        }
        out.push(b'}');
        Ok(())
    }

    fn debezium_source(&self, transaction: &TransactionFields, body: ChangeBody<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"source\":{\"version\":\"");
        out.extend_from_slice(env!("CARGO_PKG_VERSION").as_bytes());
        out.extend_from_slice(b"\",\"connector\":\"postgresql\",\"name\":");
        write_string(&self.stream, out);
        let (micros, lsn) = (transaction.unix_micros, transaction.commit_lsn.0);
        let _ = write!(out, ",\"ts_ms\":{},\"ts_us\":{micros}", micros.div_euclid(1_000));
        let _ =
            write!(out, ",\"ts_ns\":{},\"snapshot\":\"{}\",\"db\":", i128::from(micros) * 1_000, snapshot_kind(body));
        write_string(&self.database, out);
        let previous = transaction.previous_lsn.map_or_else(|| "null".to_owned(), |lsn| format!("\\\"{}\\\"", lsn.0));
        let _ = write!(out, ",\"sequence\":\"[{previous},\\\"{lsn}\\\"]\",\"schema\":");
        let relation = body.relation();
        write_string(relation.map_or("", |relation| &relation.schema), out);
        out.extend_from_slice(b",\"table\":");
        write_string(relation.map_or("", |relation| &relation.name), out);
        out.extend_from_slice(b",\"txId\":");
        match transaction.xid {
            Some(xid) => drop(write!(out, "{xid}")),
            None => write_null(out),
        }
        let _ = write!(out, ",\"lsn\":{lsn},\"xmin\":null}}");
    }
}

/// Debezium's name for the kind of a snapshot that a record is part of.
fn snapshot_kind(body: ChangeBody<'_>) -> &'static str {
    match body {
        ChangeBody::Read(rows, _) | ChangeBody::Clear(rows) if rows.progress.exported_at.is_none() => "incremental",
        ChangeBody::Read(..) | ChangeBody::Clear(_) => "true",
        _ => "false",
    }
}

/// Appends a record of Debezium's transaction topic.
fn debezium_marker(transaction: &TransactionFields, body: ChangeBody<'_>, out: &mut Vec<u8>) {
    let counts = if let ChangeBody::End(counts) = body { Some(counts) } else { None };
    let status = if counts.is_some() { "END" } else { "BEGIN" };
    let _ = write!(out, "{{\"status\":\"{status}\",\"id\":\"{}\"", transaction.name());
    match counts {
        None => out.extend_from_slice(b",\"event_count\":null,\"data_collections\":null"),
        Some(counts) => {
            let _ = write!(out, ",\"event_count\":{},\"data_collections\":[", counts.all);
            for (index, (table, count)) in counts.tables.iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"{\"data_collection\":" } else { b",{\"data_collection\":" });
                write_string(table, out);
                let _ = write!(out, ",\"event_count\":{count}}}");
            }
            out.push(b']');
        }
    }
    let _ = write!(out, ",\"ts_ms\":{}}}", transaction.unix_ms());
}

/// Schema and name of a table, with a dot.
pub(super) fn table_name(relation: &Relation) -> String {
    format!("{}.{}", relation.schema, relation.name)
}

/// Whether the replica identity of the table is a key. With `FULL` the stream does not name the primary key.
pub(super) fn has_key(relation: &Relation) -> bool {
    matches!(relation.identity, ReplicaIdentity::Default | ReplicaIdentity::Index)
        && relation.columns.iter().any(|column| column.is_key)
}

fn change(
    transaction: &TransactionFields,
    id: ChangeId,
    is_last: bool,
    body: ChangeBody<'_>,
    out: &mut Vec<u8>,
) -> Result<(), EnvelopeError> {
    let _ = write!(out, "{{\"op\":\"{}\"", body.operation());
    if let Some(relation) = body.relation() {
        out.extend_from_slice(b",\"schema\":");
        write_string(&relation.schema, out);
        out.extend_from_slice(b",\"table\":");
        write_string(&relation.name, out);
    }
    match body {
        ChangeBody::Row(row, part) => row_members(row, part, out)?,
        ChangeBody::Read(rows, row) => {
            out.extend_from_slice(b",\"key\":");
            body.write_key(ValueStyle::Plain, out)?;
            out.extend_from_slice(b",\"after\":");
            write_object(&rows.relation, rows.columns(row), ValueStyle::Plain, out)?;
            out.extend_from_slice(b",\"before\":null");
        }
        ChangeBody::Begin => {}
        ChangeBody::End(counts) => {
            let _ = write!(out, ",\"records\":{},\"tables\":{{", counts.all);
            for (index, (table, count)) in counts.tables.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_string(table, out);
                let _ = write!(out, ":{count}");
            }
            out.push(b'}');
        }
        ChangeBody::Truncate { cascade, restart_identity, .. } => {
            let _ = write!(out, ",\"cascade\":{cascade},\"restart_identity\":{restart_identity}");
        }
        ChangeBody::Clear(_) => {
            out.extend_from_slice(b",\"cascade\":false,\"restart_identity\":false,\"copy\":true");
        }
        ChangeBody::Message { prefix, content, is_transactional } => {
            out.extend_from_slice(b",\"prefix\":");
            write_string(&String::from_utf8_lossy(prefix), out);
            match std::str::from_utf8(content) {
                Ok(text) => {
                    out.extend_from_slice(b",\"content\":");
                    write_string(text, out);
                }
                Err(_) => {
                    out.extend_from_slice(b",\"content_base64\":");
                    write_string(&base64::engine::general_purpose::STANDARD.encode(content), out);
                }
            }
            let _ = write!(out, ",\"transactional\":{is_transactional}");
        }
        ChangeBody::Schema(schema) => schema_members(schema, out),
    }
    let _ = write!(out, ",\"commit_lsn\":\"{}\",\"seq\":{},\"last\":{is_last}", id.commit_lsn, id.seq);
    if let Some(xid) = transaction.xid {
        let _ = write!(out, ",\"xid\":{xid}");
    }
    let _ = write!(out, ",\"commit_time\":\"{}\"", transaction.time);
    if let Some(origin) = &transaction.origin {
        out.extend_from_slice(b",\"origin\":");
        write_string(origin, out);
    }
    out.push(b'}');
    Ok(())
}

fn row_members(row: &RowChange, part: RowPart, out: &mut Vec<u8>) -> Result<(), EnvelopeError> {
    let style = ValueStyle::Plain;
    let relation = row.relation();
    out.extend_from_slice(b",\"key\":");
    ChangeBody::Row(row, part).write_key(style, out)?;
    out.extend_from_slice(b",\"after\":");
    let has_after = part != RowPart::Old && row.new_tuple().is_some();
    if has_after {
        let sent = row.after().filter(|(_, value)| *value != ColumnValue::Unchanged);
        write_object(relation, sent, style, out)?;
    } else {
        write_null(out);
    }
    out.extend_from_slice(b",\"before\":");
    match row.old_tuple() {
        Some((kind, _)) => {
            write_object(relation, row.before(), style, out)?;
            let name = if kind == OldRow::Full { "full" } else { "key" };
            let _ = write!(out, ",\"before_is\":\"{name}\"");
        }
        None => write_null(out),
    }
    let mut unchanged = row.after().filter(|(_, value)| *value == ColumnValue::Unchanged).peekable();
    if has_after && unchanged.peek().is_some() {
        out.extend_from_slice(b",\"unchanged\":[");
        for (index, (column, _)) in unchanged.enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write_string(&column.name, out);
        }
        out.push(b']');
    }
    Ok(())
}

fn schema_members(change: &SchemaChange, out: &mut Vec<u8>) {
    let _ = write!(out, ",\"version\":{},\"columns\":[", change.after.version);
    for (index, column) in change.after.columns.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"{\"name\":" } else { b",{\"name\":" });
        write_string(&column.name, out);
        let (oid, modifier, is_key) = (column.type_oid, column.type_modifier, column.is_key);
        let _ = write!(out, ",\"type_oid\":{oid},\"type_modifier\":{modifier},\"key\":{is_key}}}");
    }
    out.extend_from_slice(b"],\"added\":");
    write_names(change.added_columns(), out);
    out.extend_from_slice(b",\"removed\":");
    write_names(change.removed_columns(), out);
}

fn write_names<'a>(names: impl Iterator<Item = &'a str>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (index, name) in names.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_string(name, out);
    }
    out.push(b']');
}

fn write_null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"null");
}

/// Appends an object of columns.
fn write_object<'a>(
    relation: &Relation,
    columns: impl Iterator<Item = (&'a RelationColumn, ColumnValue<'a>)>,
    style: ValueStyle,
    out: &mut Vec<u8>,
) -> Result<(), EnvelopeError> {
    out.push(b'{');
    for (index, (column, value)) in columns.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_string(&column.name, out);
        out.push(b':');
        match value {
            ColumnValue::Null => write_null(out),
            ColumnValue::Unchanged => write_string(UNAVAILABLE, out),
            ColumnValue::Text(text) => write_value(column.type_oid, text, style, out)
                .map_err(|_| EnvelopeError { table: table_name(relation), column: column.name.to_string() })?,
            ColumnValue::Binary(bytes) => write_string(&base64::engine::general_purpose::STANDARD.encode(bytes), out),
        }
    }
    out.push(b'}');
    Ok(())
}
