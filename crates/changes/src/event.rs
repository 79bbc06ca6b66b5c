//! Events of a stream.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tidegate_wire::replication::{Lsn, POSTGRES_EPOCH_MICROS};

use crate::{change::Change, relation::SchemaChange};

/// An event of a stream.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum ChangeEvent {
    /// A committed transaction begins. Its changes follow, up to its [`ChangeEvent::Commit`], without another one between.
    Begin(TransactionBegin),
    /// A table has a new definition, which the following changes use. Comes within a transaction.
    Schema(SchemaChange),
    /// A change of the transaction.
    Change(Change),
    /// The transaction is complete. To be acknowledged with its `end_lsn`.
    Commit(TransactionCommit),
    /// A message outside of transactions. To be acknowledged with its `end_lsn`.
    Message(LooseMessage),
    /// Every transaction that committed before this position has been delivered.
    Progress(Lsn),
}

/// The begin of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionBegin {
    /// Position of the commit record: with a sequence number the identity of each change.
    pub commit_lsn: Lsn,
    /// Time of the commit.
    pub commit_time: PgTimestamp,
    /// The transaction id.
    pub xid: u32,
    /// The replication origin, if another server sent the transaction to this one.
    pub origin: Option<Arc<str>>,
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionCommit {
    /// Position of the commit record.
    pub commit_lsn: Lsn,
    /// End of the commit record: the position to acknowledge.
    pub end_lsn: Lsn,
    /// Time of the commit.
    pub commit_time: PgTimestamp,
    /// The transaction id.
    pub xid: u32,
    /// The number of changes; their sequence numbers are `0..changes`.
    pub changes: u64,
}

/// A non-transactional message of `pg_logical_emit_message`. It also arrives if its transaction aborts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LooseMessage {
    /// Position of the message.
    pub lsn: Lsn,
    /// The position to acknowledge.
    pub end_lsn: Lsn,
    /// The prefix.
    pub prefix: Bytes,
    /// The content.
    pub content: Bytes,
}

/// A time of the server: microseconds since 2000-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgTimestamp(pub i64);

impl PgTimestamp {
    /// Microseconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn unix_micros(self) -> i64 {
        self.0.saturating_add(POSTGRES_EPOCH_MICROS)
    }

    /// Microseconds from `earlier` to this time; 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        let distance = self.0.saturating_sub(earlier.0);
        if distance > 0 { distance.cast_unsigned() } else { 0 }
    }

    /// The timestamp of a clock; limited to what fits.
    #[must_use]
    pub fn from_system_time(time: SystemTime) -> Self {
        let micros = |distance: Duration| i64::try_from(distance.as_micros()).unwrap_or(i64::MAX);
        let unix = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => micros(after),
            Err(before) => micros(before.duration()).saturating_neg(),
        };
        Self(unix.saturating_sub(POSTGRES_EPOCH_MICROS))
    }
}

/// A whole transaction in memory.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The begin.
    pub begin: TransactionBegin,
    /// New definitions of tables, each with the index of the first change that uses it.
    pub schema_changes: Vec<(usize, SchemaChange)>,
    /// The changes.
    pub changes: Vec<Change>,
    /// The end.
    pub commit: TransactionCommit,
}

/// Collects the events of a transaction.
///
/// The memory of a transaction has no bound here. Consumers that cannot hold the largest transaction of the database in
/// memory handle events instead.
#[derive(Debug, Default)]
pub struct TransactionCollector {
    begin: Option<TransactionBegin>,
    schema_changes: Vec<(usize, SchemaChange)>,
    changes: Vec<Change>,
}

impl TransactionCollector {
    /// Adds an event. Returns the transaction that it completes; other events outside of transactions are ignored.
    pub fn push(&mut self, event: ChangeEvent) -> Option<Transaction> {
        match event {
            ChangeEvent::Begin(begin) => *self = Self { begin: Some(begin), ..Self::default() },
            ChangeEvent::Schema(change) => self.schema_changes.push((self.changes.len(), change)),
            ChangeEvent::Change(change) => self.changes.push(change),
            ChangeEvent::Commit(commit) => {
                let Self { begin, schema_changes, changes } = std::mem::take(self);
                return begin.map(|begin| Transaction { begin, schema_changes, changes, commit });
            }
            ChangeEvent::Message(_) | ChangeEvent::Progress(_) => {}
        }
        None
    }
}
