//! Changes of a transaction.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use tidegate_wire::replication::{
    Lsn,
    pgoutput::{ColumnValue, OldTuple, PgoutputMessage, TupleData},
};

use crate::{
    error::DecodeChangeError,
    relation::{Relation, RelationColumn, Relations},
};

/// The identity of a change: the position of its transaction's commit record, and its number in the transaction.
///
/// It is the same after a restart of either side, in streamed and non-streamed mode, as long as the publication and the
/// options of the stream stay. The order of ids is the order of delivery. The LSN of the change itself is neither unique
/// nor in this order (CH-06, CH-08).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId {
    /// Position of the commit record.
    pub commit_lsn: Lsn,
    /// Counts inserts, updates, deletes, truncates and transactional messages from 0.
    pub seq: u64,
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.commit_lsn, self.seq)
    }
}

/// A change and its identity.
///
/// A change refers to the buffer that it was received in, at most a few hundred kilobytes shared with its neighbours.
/// [`Change::detach`] copies its bytes, for changes that are kept for long.
#[derive(Clone, Debug)]
pub struct Change {
    /// The identity.
    pub id: ChangeId,
    /// The change.
    pub kind: ChangeKind,
}

/// The subject of a change.
#[derive(Clone, Debug)]
pub enum ChangeKind {
    /// A row.
    Row(RowChange),
    /// Tables were emptied.
    Truncate(TruncateChange),
    /// A transactional message of `pg_logical_emit_message`.
    Message(TransactionMessage),
}

impl Change {
    /// Decodes the frame of a change, as [`Change::frame`] returned it. Tables are looked up in `relations`.
    ///
    /// # Errors
    /// The frame is malformed or not a change, or its table is unknown.
    pub fn decode(id: ChangeId, frame: &Bytes, relations: &Relations) -> Result<Self, DecodeChangeError> {
        Self::from_frame(id, frame.clone(), relations)
    }

    /// Like [`Change::decode`]; the change takes over the frame.
    pub(crate) fn from_frame(id: ChangeId, frame: Bytes, relations: &Relations) -> Result<Self, DecodeChangeError> {
        let mut kind = decode_kind(&frame, relations)?;
        *kind.frame_mut() = frame;
        Ok(Self { id, kind })
    }

    /// The message of `pgoutput`, in its form outside of streamed transactions: what a store keeps with the id.
    #[must_use]
    pub const fn frame(&self) -> &Bytes {
        match &self.kind {
            ChangeKind::Row(row) => &row.frame,
            ChangeKind::Truncate(truncate) => &truncate.frame,
            ChangeKind::Message(message) => &message.frame,
        }
    }

    /// The row, if the change is one.
    #[must_use]
    pub const fn row(&self) -> Option<&RowChange> {
        match &self.kind {
            ChangeKind::Row(row) => Some(row),
            _ => None,
        }
    }

    /// Copies the bytes of the change, so that it does not keep its receive buffer alive.
    #[must_use]
    pub fn detach(mut self) -> Self {
        if let ChangeKind::Message(message) = &mut self.kind {
            message.prefix = Bytes::copy_from_slice(&message.prefix);
            message.content = Bytes::copy_from_slice(&message.content);
        }
        let frame = Bytes::copy_from_slice(self.frame());
        *self.kind.frame_mut() = frame;
        self
    }
}

impl ChangeKind {
    const fn frame_mut(&mut self) -> &mut Bytes {
        match self {
            Self::Row(row) => &mut row.frame,
            Self::Truncate(truncate) => &mut truncate.frame,
            Self::Message(message) => &mut message.frame,
        }
    }
}

/// Decodes a frame, which the change does not have yet.
fn decode_kind(frame: &Bytes, relations: &Relations) -> Result<ChangeKind, DecodeChangeError> {
    let relation = |oid: u32| relations.get(oid).cloned().ok_or(DecodeChangeError::UnknownRelation { oid });
    let span = |tuple: TupleData<'_>| Span::of(tuple, frame);
    let row = |operation, oid, old: Option<OldTuple<'_>>, new: Option<TupleData<'_>>| {
        let relation = relation(oid)?;
        let fits = |tuple: TupleData<'_>| tuple.len() == relation.columns.len();
        if !new.is_none_or(fits) || !old.map(OldTuple::tuple).is_none_or(fits) {
            return Err(DecodeChangeError::ColumnCount { oid });
        }
        let old = old.map(|old| match old {
            OldTuple::Key(tuple) => (OldRow::Key, span(tuple)),
            OldTuple::Full(tuple) => (OldRow::Full, span(tuple)),
        });
        Ok(ChangeKind::Row(RowChange { operation, relation, old, new: new.map(span), frame: Bytes::new() }))
    };
    match PgoutputMessage::decode(frame, false)?.message {
        PgoutputMessage::Insert { relation, new } => row(RowOperation::Insert, relation, None, Some(new)),
        PgoutputMessage::Update { relation, old, new } => row(RowOperation::Update, relation, old, Some(new)),
        PgoutputMessage::Delete { relation, old } => row(RowOperation::Delete, relation, Some(old), None),
        PgoutputMessage::Truncate(found) => Ok(ChangeKind::Truncate(TruncateChange {
            relations: found.relations().map(relation).collect::<Result<_, _>>()?,
            cascade: found.cascade,
            restart_identity: found.restart_identity,
            frame: Bytes::new(),
        })),
        PgoutputMessage::Logical(found) if found.transactional => Ok(ChangeKind::Message(TransactionMessage {
            lsn: found.lsn,
            prefix: frame.slice_ref(found.prefix),
            content: frame.slice_ref(found.content),
            frame: Bytes::new(),
        })),
        _ => Err(DecodeChangeError::Unexpected("change")),
    }
}

/// Operation on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOperation {
    /// The row is new.
    Insert,
    /// The row has other values.
    Update,
    /// The row is gone.
    Delete,
}

/// Known part of the row before the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OldRow {
    /// The columns of the replica identity.
    Key,
    /// All columns (`REPLICA IDENTITY FULL`).
    Full,
}

/// The place of a tuple in its frame. Offsets fit 32 bits, because a message has less than 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u32,
    len: u32,
    count: u16,
}

impl Span {
    fn of(tuple: TupleData<'_>, frame: &Bytes) -> Self {
        let bytes = tuple.columns_bytes();
        let start = (bytes.as_ptr() as usize).saturating_sub(frame.as_ptr() as usize);
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self { start: narrow(start), len: narrow(bytes.len()), count: u16::try_from(tuple.len()).unwrap_or(u16::MAX) }
    }

    fn tuple(self, frame: &Bytes) -> TupleData<'_> {
        let start = self.start as usize;
        let columns = frame.get(start..start.saturating_add(self.len as usize)).unwrap_or_default();
        TupleData::from_checked(self.count, columns)
    }
}

/// An inserted, updated or deleted row.
#[derive(Clone, Debug)]
pub struct RowChange {
    operation: RowOperation,
    relation: Arc<Relation>,
    old: Option<(OldRow, Span)>,
    new: Option<Span>,
    frame: Bytes,
}

impl RowChange {
    /// The operation.
    #[must_use]
    pub const fn operation(&self) -> RowOperation {
        self.operation
    }

    /// The definition of the table that the row was written with.
    #[must_use]
    pub const fn relation(&self) -> &Arc<Relation> {
        &self.relation
    }

    /// The new row as it was sent; `None` for a delete. [`RowChange::after`] resolves unchanged values.
    #[must_use]
    pub fn new_tuple(&self) -> Option<TupleData<'_>> {
        self.new.map(|span| span.tuple(&self.frame))
    }

    /// The old row as it was sent, and what it holds. Columns outside of the key are NULL there and are not NULL in the
    /// table (CH-43); [`RowChange::before`] leaves them out.
    #[must_use]
    pub fn old_tuple(&self) -> Option<(OldRow, TupleData<'_>)> {
        self.old.map(|(kind, span)| (kind, span.tuple(&self.frame)))
    }

    /// The columns of the row after the change; none for a delete.
    ///
    /// A value that the update did not change is taken from the old row if that is full (CH-39); otherwise it is
    /// [`ColumnValue::Unchanged`].
    pub fn after(&self) -> impl Iterator<Item = (&RelationColumn, ColumnValue<'_>)> {
        let mut full = match self.old_tuple() {
            Some((OldRow::Full, tuple)) => Some(tuple.iter()),
            _ => None,
        };
        let columns = self.new_tuple().into_iter().flatten();
        self.relation.columns.iter().zip(columns).map(move |(column, value)| {
            let old = full.as_mut().and_then(Iterator::next);
            (column, if value == ColumnValue::Unchanged { old.unwrap_or(value) } else { value })
        })
    }

    /// The known columns of the row before the change: those of the replica identity, or all.
    ///
    /// None for an insert, and for an update that leaves the key as it is, unless the identity is full.
    pub fn before(&self) -> impl Iterator<Item = (&RelationColumn, ColumnValue<'_>)> {
        let (kind, tuple) = self.old_tuple().unzip();
        let columns = self.relation.columns.iter().zip(tuple.into_iter().flatten());
        columns.filter(move |(column, _)| kind == Some(OldRow::Full) || column.is_key)
    }

    /// The columns of the replica identity: of the new row, or of the deleted one.
    ///
    /// With `REPLICA IDENTITY FULL` these are all columns, because the stream does not name the primary key.
    pub fn key(&self) -> impl Iterator<Item = (&RelationColumn, ColumnValue<'_>)> {
        let deleted = self.new.is_none();
        let old = deleted.then(|| self.before()).into_iter().flatten();
        let new = (!deleted).then(|| self.after()).into_iter().flatten();
        old.chain(new).filter(|(column, _)| column.is_key)
    }

    /// Whether an update changed the key. With `REPLICA IDENTITY FULL`: whether it changed any column.
    #[must_use]
    pub fn is_key_change(&self) -> bool {
        if self.operation != RowOperation::Update || self.old.is_none() {
            return false;
        }
        let old = self.before().filter(|(column, _)| column.is_key).map(|(_, value)| value);
        let new = self.key().map(|(_, value)| value);
        // A key tuple holds every value; an unchanged one in the new row is equal by definition.
        old.zip(new).any(|(old, new)| new != ColumnValue::Unchanged && old != new)
    }
}

/// Emptied tables.
#[derive(Clone, Debug)]
pub struct TruncateChange {
    /// The tables.
    pub relations: Box<[Arc<Relation>]>,
    /// `TRUNCATE ... CASCADE`.
    pub cascade: bool,
    /// `TRUNCATE ... RESTART IDENTITY`.
    pub restart_identity: bool,
    frame: Bytes,
}

/// A transactional message of `pg_logical_emit_message`.
#[derive(Clone, Debug)]
pub struct TransactionMessage {
    /// Position of the message.
    pub lsn: Lsn,
    /// The prefix.
    pub prefix: Bytes,
    /// The content.
    pub content: Bytes,
    frame: Bytes,
}
