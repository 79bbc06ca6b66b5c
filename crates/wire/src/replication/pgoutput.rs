//! Messages of the output plugin `pgoutput`, protocol versions 1 to 4.
//!
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
//!
//! [`PgoutputMessage::decode`] checks a message to its end: unknown tags, flags and identities, counts that differ from the
//! content, and trailing bytes are errors. Between Stream Start and Stream Stop messages carry a transaction id, which
//! only the order of messages shows, so the caller passes `in_stream`.
//!
//! ```
//! use tidegate_wire::replication::pgoutput::{ColumnValue, PgoutputMessage, encode};
//!
//! let mut data = Vec::new();
//! encode::insert(None, 16_384, &[ColumnValue::Text(b"1"), ColumnValue::Null], &mut data);
//! let PgoutputMessage::Insert { relation, new } = PgoutputMessage::decode(&data, false)?.message else { panic!() };
//! assert_eq!((relation, new.len()), (16_384, 2));
//! assert_eq!(new.iter().next(), Some(ColumnValue::Text(b"1")));
//! # Ok::<(), tidegate_wire::DecodeError>(())
//! ```

mod decode;
pub mod encode;
mod tuple;

pub use tuple::{ColumnValue, TupleColumns, TupleData};

use super::Lsn;
use crate::cursor::Cursor;

/// A message and the transaction id that precedes its fields in a streamed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedMessage<'a> {
    /// The id of the (sub)transaction that wrote the change; only between Stream Start and Stream Stop.
    pub xid: Option<u32>,
    /// The message.
    pub message: PgoutputMessage<'a>,
}

/// A message of `pgoutput`. Times are microseconds since 2000-01-01.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PgoutputMessage<'a> {
    /// `B`: a transaction begins.
    Begin {
        /// Position of its commit record.
        commit_lsn: Lsn,
        /// Time of its commit.
        commit_time: i64,
        /// The transaction id.
        xid: u32,
    },
    /// `C`: the transaction is complete.
    Commit {
        /// Position of the commit record.
        commit_lsn: Lsn,
        /// End of the commit record: a flush position from which the transaction is not sent again.
        end_lsn: Lsn,
        /// Time of the commit.
        commit_time: i64,
    },
    /// `O`: the transaction was replicated from this origin.
    Origin {
        /// Position of the commit on the origin.
        commit_lsn: Lsn,
        /// Name of the origin.
        name: &'a [u8],
    },
    /// `R`: columns of a table, before its first row and after changes of its definition.
    Relation(RelationMessage<'a>),
    /// `Y`: name of a type that is not built in.
    Type {
        /// OID of the type.
        oid: u32,
        /// Schema, empty for `pg_catalog`.
        schema: &'a [u8],
        /// The name.
        name: &'a [u8],
    },
    /// `I`: a new row.
    Insert {
        /// OID of the table.
        relation: u32,
        /// The row.
        new: TupleData<'a>,
    },
    /// `U`: a changed row.
    Update {
        /// OID of the table.
        relation: u32,
        /// The old row, if the identity is full or a column of the key has changed.
        old: Option<OldTuple<'a>>,
        /// The new row.
        new: TupleData<'a>,
    },
    /// `D`: a deleted row.
    Delete {
        /// OID of the table.
        relation: u32,
        /// The old row or its key.
        old: OldTuple<'a>,
    },
    /// `T`: truncated tables.
    Truncate(TruncateMessage<'a>),
    /// `M`: a message of `pg_logical_emit_message`.
    Logical(LogicalMessage<'a>),
    /// `S`: a segment of a streamed transaction begins.
    StreamStart {
        /// Id of the top-level transaction.
        xid: u32,
        /// Whether this is the first segment of the transaction.
        first: bool,
    },
    /// `E`: the segment ends.
    StreamStop,
    /// `c`: a streamed transaction commits.
    StreamCommit {
        /// Id of the transaction.
        xid: u32,
        /// Position of the commit record.
        commit_lsn: Lsn,
        /// End of the commit record.
        end_lsn: Lsn,
        /// Time of the commit.
        commit_time: i64,
    },
    /// `A`: a streamed transaction or subtransaction aborts.
    StreamAbort {
        /// Id of the top-level transaction.
        xid: u32,
        /// Id of the aborted transaction; equal to `xid` for the whole.
        subxid: u32,
        /// Position and time of the abort; only with `streaming 'parallel'`.
        aborted_at: Option<(Lsn, i64)>,
    },
    /// `b`, `P`, `K`, `p`: a step of a two-phase commit.
    Prepared(PreparedMessage<'a>),
    /// `r`: ROLLBACK PREPARED.
    RollbackPrepared {
        /// End of the prepare record.
        prepare_end_lsn: Lsn,
        /// End of the rollback record.
        rollback_end_lsn: Lsn,
        /// Time of the prepare.
        prepare_time: i64,
        /// Time of the rollback.
        rollback_time: i64,
        /// Id of the transaction.
        xid: u32,
        /// Global identifier of the prepared transaction.
        gid: &'a [u8],
    },
}

/// The step of a two-phase commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PreparedStep {
    /// A prepared transaction begins.
    BeginPrepare = b'b',
    /// The transaction is prepared.
    Prepare = b'P',
    /// The transaction commits.
    CommitPrepared = b'K',
    /// A streamed transaction is prepared.
    StreamPrepare = b'p',
}

/// A message of a two-phase commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedMessage<'a> {
    /// The step.
    pub step: PreparedStep,
    /// Position of the record.
    pub lsn: Lsn,
    /// End of the record.
    pub end_lsn: Lsn,
    /// Time of the step.
    pub time: i64,
    /// Id of the transaction.
    pub xid: u32,
    /// Global identifier of the prepared transaction.
    pub gid: &'a [u8],
}

/// The old row of an update or delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// `K`: only the columns of the replica identity have values; the others are sent as NULL and are not (CH-43).
    Key(TupleData<'a>),
    /// `O`: the whole row (`REPLICA IDENTITY FULL`).
    Full(TupleData<'a>),
}

impl<'a> OldTuple<'a> {
    /// The row.
    #[must_use]
    pub const fn tuple(self) -> TupleData<'a> {
        match self {
            Self::Key(tuple) | Self::Full(tuple) => tuple,
        }
    }
}

/// A message of `pg_logical_emit_message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether it belongs to a transaction. Others are sent immediately, and also if their transaction aborts.
    pub transactional: bool,
    /// Position of the message.
    pub lsn: Lsn,
    /// The prefix.
    pub prefix: &'a [u8],
    /// The content.
    pub content: &'a [u8],
}

/// The replica identity of a table: the columns that identify its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one.
    Default = b'd',
    /// A unique index.
    Index = b'i',
    /// All columns.
    Full = b'f',
    /// No columns.
    Nothing = b'n',
}

impl ReplicaIdentity {
    /// The identity for a byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'd' => Some(Self::Default),
            b'i' => Some(Self::Index),
            b'f' => Some(Self::Full),
            b'n' => Some(Self::Nothing),
            _ => None,
        }
    }
}

/// The definition of a table, without columns that are not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationMessage<'a> {
    /// OID of the table.
    pub oid: u32,
    /// Schema, empty for `pg_catalog`.
    pub schema: &'a [u8],
    /// The name.
    pub name: &'a [u8],
    /// The replica identity.
    pub identity: ReplicaIdentity,
    count: u16,
    columns: &'a [u8],
}

/// A column of a [`RelationMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationField<'a> {
    /// Whether the column belongs to the replica identity.
    pub is_key: bool,
    /// The name.
    pub name: &'a [u8],
    /// OID of its type.
    pub type_oid: u32,
    /// Type modifier, such as the length of a `varchar`.
    pub type_modifier: i32,
}

impl<'a> RelationMessage<'a> {
    /// The columns in the order of the tuples.
    pub fn columns(&self) -> impl Iterator<Item = RelationField<'a>> + use<'a> {
        let (mut fields, mut left) = (Cursor::new(self.columns), self.count);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            RelationField::read(&mut fields).ok()
        })
    }

    /// The number of columns.
    #[must_use]
    pub const fn column_count(&self) -> u16 {
        self.count
    }
}

/// Truncated tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncateMessage<'a> {
    /// `TRUNCATE ... CASCADE`.
    pub cascade: bool,
    /// `TRUNCATE ... RESTART IDENTITY`.
    pub restart_identity: bool,
    oids: &'a [u8],
}

impl<'a> TruncateMessage<'a> {
    /// OIDs of the tables.
    pub fn relations(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        let (oids, _) = self.oids.as_chunks::<4>();
        oids.iter().copied().map(u32::from_be_bytes)
    }
}
