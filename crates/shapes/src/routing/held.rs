//! Changes that wait until a shape can apply them.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::row_form::RowValues;
use crate::shape::SnapshotFilter;

/// Limit of the rows that one shape holds.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A row, whose values are copied.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeldRow(Vec<Option<Box<[u8]>>>);

impl HeldRow {
    pub(crate) fn new(row: &RowValues<'_>) -> Self {
        Self(row.iter().map(|value| value.map(Into::into)).collect())
    }

    /// A row with the values of these columns, and without the others.
    pub(super) fn of_columns(row: &RowValues<'_>, columns: &[usize]) -> Self {
        let mut values = vec![None; row.len()];
        for column in columns {
            values[*column] = row[*column].map(Into::into);
        }
        Self(values)
    }

    pub(crate) fn values(&self) -> Vec<Option<&[u8]>> {
        self.0.iter().map(|value| value.as_deref()).collect()
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|value| size_of::<Option<Box<[u8]>>>() + value.as_ref().map_or(0, |value| value.len())).sum()
    }
}

/// The old and the new row of a change, shared by all shapes that hold it.
#[derive(Debug)]
pub(super) struct HeldRows {
    old: Option<HeldRow>,
    new: Option<HeldRow>,
}

impl HeldRows {
    pub(super) fn new(old: Option<&RowValues<'_>>, new: Option<&RowValues<'_>>) -> Self {
        Self { old: old.map(HeldRow::new), new: new.map(HeldRow::new) }
    }

    pub(super) fn old(&self) -> Option<Vec<Option<&[u8]>>> {
        self.old.as_ref().map(HeldRow::values)
    }

    pub(super) fn new_row(&self) -> Option<Vec<Option<&[u8]>>> {
        self.new.as_ref().map(HeldRow::values)
    }

    fn bytes(&self) -> usize {
        self.old.iter().chain(&self.new).map(HeldRow::bytes).sum()
    }
}

/// The shapes and subqueries that a change concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChangedPart {
    /// The table of the shape, with the number of the operation.
    Shape(u64),
    /// The table of a subquery, by its number.
    Subquery(u32),
}

#[derive(Debug)]
pub(super) struct HeldChange {
    pub(super) part: ChangedPart,
    pub(super) rows: Arc<HeldRows>,
}

impl HeldChange {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.rows.bytes()
    }
}

/// The changes of a transaction that wait for the results of the subqueries.
#[derive(Debug)]
pub(super) struct HeldTransaction {
    pub(super) xid: u64,
    pub(super) txid: u32,
    pub(super) lsn: u64,
    pub(super) changes: Vec<HeldChange>,
}

fn bytes_of(changes: &[HeldChange]) -> usize {
    changes.iter().map(HeldChange::bytes).sum()
}

/// Transactions that wait.
#[derive(Debug, Default)]
pub(super) struct HeldChanges {
    /// The number of the first commit that may be missing in the next snapshot.
    pub(super) registered_at: u64,
    pub(super) transactions: Vec<HeldTransaction>,
    /// Transactions up to this position are in the log: the stream repeats them after a restart.
    after_lsn: u64,
    /// The transactions of the first snapshot, which the stream may repeat as well.
    pub(super) filter: Option<Box<SnapshotFilter>>,
    /// Bytes of all changes, with those of the open transaction.
    bytes: usize,
    /// Gets the position of the first transaction.
    first: Option<oneshot::Sender<u64>>,
}

impl HeldChanges {
    pub(super) fn new(registered_at: u64, transactions: Vec<HeldTransaction>) -> Self {
        let bytes = transactions.iter().map(|held| bytes_of(&held.changes)).sum();
        Self { registered_at, transactions, bytes, ..Self::default() }
    }

    /// Changes of a shape of an earlier process, whose log has the transactions up to `lsn` and those of the filter.
    pub(super) fn restored(lsn: u64, filter: Option<Box<SnapshotFilter>>) -> Self {
        Self { after_lsn: lsn, filter, ..Self::default() }
    }

    /// Whether more is held than memory allows.
    pub(super) fn is_oversized(&self) -> bool {
        self.bytes > HELD_BYTES_MAX
    }

    /// Counts a change of the open transaction.
    pub(super) fn count(&mut self, change: &HeldChange) {
        self.bytes += change.bytes();
    }

    /// Forgets changes that were counted.
    pub(super) fn forget(&mut self, changes: &[HeldChange]) {
        self.bytes = self.bytes.saturating_sub(bytes_of(changes));
    }

    /// Adds a transaction, whose changes were counted.
    pub(super) fn push(&mut self, transaction: HeldTransaction) {
        if transaction.changes.is_empty() || transaction.lsn <= self.after_lsn {
            self.forget(&transaction.changes);
            return;
        }
        if let Some(first) = self.first.take() {
            // The task may have ended.
            let _ = first.send(transaction.lsn);
        }
        self.transactions.push(transaction);
    }

    /// Sends the position of the first transaction, as soon as there is one.
    pub(super) fn send_first(&mut self, done: oneshot::Sender<u64>) {
        match self.transactions.first() {
            // The task may have ended.
            Some(first) => drop(done.send(first.lsn)),
            None => self.first = Some(done),
        }
    }

    /// The changes of a snapshot's transactions.
    pub(super) fn changes_in(&self, filter: &SnapshotFilter) -> impl Iterator<Item = &HeldChange> {
        self.transactions.iter().filter(|held| filter.has(held.xid, held.lsn)).flat_map(|held| &held.changes)
    }
}
