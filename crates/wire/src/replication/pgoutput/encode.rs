//! Encoders, for tests and servers: each appends one message. With `xid` they write the form of a streamed transaction.

use super::{
    ColumnValue, LogicalMessage, OldTuple, PgoutputMessage, PreparedMessage, PreparedStep, RelationField,
    RelationMessage, ReplicaIdentity, TaggedMessage, TruncateMessage, TupleData,
};
use crate::frame::put_text;
use crate::replication::Lsn;

fn head(tag: u8, xid: Option<u32>, out: &mut Vec<u8>) {
    out.push(tag);
    if let Some(xid) = xid {
        out.extend_from_slice(&xid.to_be_bytes());
    }
}

fn u32(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn lsn(value: Lsn, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.0.to_be_bytes());
}

fn time(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn count(items: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u16::try_from(items).unwrap_or(u16::MAX).to_be_bytes());
}

/// Appends a row: the count and the columns, of which 65,535 are sent at most.
pub fn tuple(columns: &[ColumnValue<'_>], out: &mut Vec<u8>) {
    count(columns.len(), out);
    for column in columns.iter().take(usize::from(u16::MAX)) {
        match column {
            ColumnValue::Null => out.push(b'n'),
            ColumnValue::Unchanged => out.push(b'u'),
            ColumnValue::Text(bytes) => sized(b't', bytes, out),
            ColumnValue::Binary(bytes) => sized(b'b', bytes, out),
        }
    }
}

fn sized(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX), out);
    out.extend_from_slice(bytes);
}

fn row(tag: u8, row: TupleData<'_>, out: &mut Vec<u8>) {
    out.push(tag);
    count(row.len(), out);
    out.extend_from_slice(row.columns_bytes());
}

fn old_row(old: OldTuple<'_>, out: &mut Vec<u8>) {
    match old {
        OldTuple::Key(tuple) => row(b'K', tuple, out),
        OldTuple::Full(tuple) => row(b'O', tuple, out),
    }
}

/// Appends Begin.
pub fn begin(commit_lsn: Lsn, commit_time: i64, xid: u32, out: &mut Vec<u8>) {
    message(TaggedMessage { xid: None, message: PgoutputMessage::Begin { commit_lsn, commit_time, xid } }, out);
}

/// Appends Commit.
pub fn commit(commit_lsn: Lsn, end_lsn: Lsn, commit_time: i64, out: &mut Vec<u8>) {
    message(TaggedMessage { xid: None, message: PgoutputMessage::Commit { commit_lsn, end_lsn, commit_time } }, out);
}

/// Appends Insert.
pub fn insert(xid: Option<u32>, relation: u32, new: &[ColumnValue<'_>], out: &mut Vec<u8>) {
    head(b'I', xid, out);
    u32(relation, out);
    out.push(b'N');
    tuple(new, out);
}

/// The old columns of an update or delete.
#[derive(Clone, Copy, Debug)]
pub enum OldColumns<'a> {
    /// The key.
    Key(&'a [ColumnValue<'a>]),
    /// The whole row.
    Full(&'a [ColumnValue<'a>]),
}

fn old_columns(old: OldColumns<'_>, out: &mut Vec<u8>) {
    let (tag, columns) = match old {
        OldColumns::Key(columns) => (b'K', columns),
        OldColumns::Full(columns) => (b'O', columns),
    };
    out.push(tag);
    tuple(columns, out);
}

/// Appends Update.
pub fn update(
    xid: Option<u32>,
    relation: u32,
    old: Option<OldColumns<'_>>,
    new: &[ColumnValue<'_>],
    out: &mut Vec<u8>,
) {
    head(b'U', xid, out);
    u32(relation, out);
    if let Some(old) = old {
        old_columns(old, out);
    }
    out.push(b'N');
    tuple(new, out);
}

/// Appends Delete.
pub fn delete(xid: Option<u32>, relation: u32, old: OldColumns<'_>, out: &mut Vec<u8>) {
    head(b'D', xid, out);
    u32(relation, out);
    old_columns(old, out);
}

/// Appends Truncate.
pub fn truncate(xid: Option<u32>, relations: &[u32], cascade: bool, restart_identity: bool, out: &mut Vec<u8>) {
    head(b'T', xid, out);
    u32(u32::try_from(relations.len()).unwrap_or(u32::MAX), out);
    out.push(u8::from(cascade) | u8::from(restart_identity) << 1);
    for oid in relations {
        u32(*oid, out);
    }
}

/// A table, for [`relation`].
#[derive(Clone, Copy, Debug)]
pub struct RelationFields<'a> {
    /// OID of the table.
    pub oid: u32,
    /// Schema of the table.
    pub schema: &'a [u8],
    /// Name of the table.
    pub name: &'a [u8],
    /// The replica identity.
    pub identity: ReplicaIdentity,
    /// The columns.
    pub columns: &'a [RelationField<'a>],
}

/// Appends Relation.
pub fn relation(xid: Option<u32>, fields: &RelationFields<'_>, out: &mut Vec<u8>) {
    let mut columns = Vec::new();
    for column in fields.columns {
        columns.push(u8::from(column.is_key));
        put_text(column.name, &mut columns);
        u32(column.type_oid, &mut columns);
        columns.extend_from_slice(&column.type_modifier.to_be_bytes());
    }
    let RelationFields { oid, schema, name, identity, .. } = *fields;
    let count = u16::try_from(fields.columns.len()).unwrap_or(u16::MAX);
    let found = RelationMessage { oid, schema, name, identity, count, columns: &columns };
    message(TaggedMessage { xid, message: PgoutputMessage::Relation(found) }, out);
}

/// Appends a message of `pg_logical_emit_message`.
pub fn logical(xid: Option<u32>, fields: LogicalMessage<'_>, out: &mut Vec<u8>) {
    head(b'M', xid, out);
    out.push(fields.transactional.into());
    lsn(fields.lsn, out);
    put_text(fields.prefix, out);
    u32(u32::try_from(fields.content.len()).unwrap_or(u32::MAX), out);
    out.extend_from_slice(fields.content);
}

/// Appends any message, as it was decoded.
pub fn message(tagged: TaggedMessage<'_>, out: &mut Vec<u8>) {
    let TaggedMessage { xid, message } = tagged;
    match message {
        PgoutputMessage::Relation(fields) => relation_message(xid, fields, out),
        PgoutputMessage::Type { oid, schema, name } => {
            head(b'Y', xid, out);
            u32(oid, out);
            put_text(schema, out);
            put_text(name, out);
        }
        PgoutputMessage::Insert { relation, new } => {
            head(b'I', xid, out);
            u32(relation, out);
            row(b'N', new, out);
        }
        PgoutputMessage::Update { relation, old, new } => {
            head(b'U', xid, out);
            u32(relation, out);
            if let Some(old) = old {
                old_row(old, out);
            }
            row(b'N', new, out);
        }
        PgoutputMessage::Delete { relation, old } => {
            head(b'D', xid, out);
            u32(relation, out);
            old_row(old, out);
        }
        PgoutputMessage::Truncate(fields) => truncate_message(xid, fields, out),
        PgoutputMessage::Logical(fields) => logical(xid, fields, out),
        other => transaction_message(other, out),
    }
}

fn relation_message(xid: Option<u32>, fields: RelationMessage<'_>, out: &mut Vec<u8>) {
    head(b'R', xid, out);
    u32(fields.oid, out);
    put_text(fields.schema, out);
    put_text(fields.name, out);
    out.push(fields.identity as u8);
    out.extend_from_slice(&fields.count.to_be_bytes());
    out.extend_from_slice(fields.columns);
}

fn truncate_message(xid: Option<u32>, fields: TruncateMessage<'_>, out: &mut Vec<u8>) {
    let relations: Vec<u32> = fields.relations().collect();
    truncate(xid, &relations, fields.cascade, fields.restart_identity, out);
}

fn transaction_message(message: PgoutputMessage<'_>, out: &mut Vec<u8>) {
    match message {
        PgoutputMessage::Begin { commit_lsn, commit_time, xid } => {
            out.push(b'B');
            lsn(commit_lsn, out);
            time(commit_time, out);
            u32(xid, out);
        }
        PgoutputMessage::Commit { commit_lsn, end_lsn, commit_time } => {
            out.extend_from_slice(b"C\0");
            lsn(commit_lsn, out);
            lsn(end_lsn, out);
            time(commit_time, out);
        }
        PgoutputMessage::Origin { commit_lsn, name } => {
            out.push(b'O');
            lsn(commit_lsn, out);
            put_text(name, out);
        }
        PgoutputMessage::StreamStart { xid, first } => {
            out.push(b'S');
            u32(xid, out);
            out.push(first.into());
        }
        PgoutputMessage::StreamStop => out.push(b'E'),
        PgoutputMessage::StreamCommit { xid, commit_lsn, end_lsn, commit_time } => {
            out.push(b'c');
            u32(xid, out);
            out.push(0);
            lsn(commit_lsn, out);
            lsn(end_lsn, out);
            time(commit_time, out);
        }
        PgoutputMessage::StreamAbort { xid, subxid, aborted_at } => {
            out.push(b'A');
            u32(xid, out);
            u32(subxid, out);
            if let Some((aborted_lsn, aborted_time)) = aborted_at {
                lsn(aborted_lsn, out);
                time(aborted_time, out);
            }
        }
        PgoutputMessage::Prepared(fields) => prepared(fields, out),
        PgoutputMessage::RollbackPrepared {
            prepare_end_lsn,
            rollback_end_lsn,
            prepare_time,
            rollback_time,
            xid,
            gid,
        } => {
            out.extend_from_slice(b"r\0");
            lsn(prepare_end_lsn, out);
            lsn(rollback_end_lsn, out);
            time(prepare_time, out);
            time(rollback_time, out);
            u32(xid, out);
            put_text(gid, out);
        }
        // Written by `message`.
        _ => {}
    }
}

fn prepared(fields: PreparedMessage<'_>, out: &mut Vec<u8>) {
    out.push(fields.step as u8);
    if fields.step != PreparedStep::BeginPrepare {
        out.push(0);
    }
    lsn(fields.lsn, out);
    lsn(fields.end_lsn, out);
    time(fields.time, out);
    u32(fields.xid, out);
    put_text(fields.gid, out);
}
