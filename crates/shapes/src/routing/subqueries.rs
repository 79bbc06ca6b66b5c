//! A shape whose predicate has subqueries.
//!
//! The results of the subqueries are sets of values, which follow the changes of their tables. As long as a transaction changes
//! no set, rows enter and leave the shape by changes of their own. A transaction that adds a value to a set, or takes the last
//! one from it, moves rows that have no change: from then on the changes of the shape are held, until a task has compared the
//! log of the shape with a new snapshot ([`crate::moves`]). The snapshot has all transactions up to that one, and the
//! transactions after it that it has are dropped.

use std::sync::Arc;

use tidegate_predicate::{EvalError, Predicate, ValueSet};

use super::transaction::OpenTransaction;
use crate::row_form::RowValues;
use crate::shape::SnapshotFilter;

/// Limit of the rows that one shape holds.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A row, whose values are copied.
#[derive(Debug)]
struct HeldRow(Vec<Option<Box<[u8]>>>);

impl HeldRow {
    fn new(row: &RowValues<'_>) -> Self {
        Self(row.iter().map(|value| value.map(Into::into)).collect())
    }

    fn values(&self) -> Vec<Option<&[u8]>> {
        self.0.iter().map(|value| value.as_deref()).collect()
    }

    fn bytes(&self) -> usize {
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

/// The changes of a transaction that wait for the results of the subqueries.
#[derive(Debug)]
pub(super) struct HeldTransaction {
    pub(super) xid: u64,
    pub(super) txid: u32,
    pub(super) lsn: u64,
    pub(super) changes: Vec<HeldChange>,
}

/// Transactions that wait.
#[derive(Debug)]
pub(super) struct HeldChanges {
    /// The number of the first commit that may be missing in the next snapshot.
    pub(super) registered_at: u64,
    pub(super) transactions: Vec<HeldTransaction>,
    bytes: usize,
}

#[derive(Debug)]
pub(super) enum SubqueryState {
    /// The results are not known.
    Held(HeldChanges),
    /// The results after the last transaction.
    Known { sets: Vec<ValueSet>, filter: Option<SnapshotFilter> },
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct SubqueryRoute {
    pub(super) predicate: Arc<Predicate>,
    pub(super) state: SubqueryState,
    /// Changes of the open transaction that are held.
    open: Vec<HeldChange>,
    /// Rows that the open transaction adds to the results.
    added: Vec<ValueSet>,
    /// Whether the open transaction lists this route.
    pub(super) is_touched: bool,
}

/// The effect of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubqueryEffect {
    /// The results are as before.
    None,
    /// Rows of the shape move.
    Moved,
}

impl SubqueryRoute {
    pub(super) fn new(predicate: &Arc<Predicate>, registered_at: u64) -> Self {
        Self {
            added: predicate.subqueries().iter().map(|subquery| subquery.empty_set()).collect(),
            predicate: Arc::clone(predicate),
            state: Self::held(registered_at),
            open: Vec::new(),
            is_touched: false,
        }
    }

    fn held(registered_at: u64) -> SubqueryState {
        SubqueryState::Held(HeldChanges { registered_at, transactions: Vec::new(), bytes: 0 })
    }

    /// Holds all changes from commit number `registered_at` on.
    pub(super) fn hold(&mut self, registered_at: u64) {
        self.state = Self::held(registered_at);
    }

    /// Whether the snapshot has a transaction, or it was applied before.
    pub(super) fn skips(&self, open: &OpenTransaction) -> bool {
        open.is_repeated
            || matches!(&self.state, SubqueryState::Known { filter: Some(filter), .. } if filter.has(open.xid, open.lsn))
    }

    /// Holds a change. False if the results are known, so that the change can be evaluated.
    pub(super) fn try_hold(&mut self, part: ChangedPart, rows: impl FnOnce() -> Arc<HeldRows>) -> bool {
        let SubqueryState::Held(held) = &mut self.state else { return false };
        if held.bytes > HELD_BYTES_MAX {
            // The shape ends with the transaction.
            self.open = Vec::new();
            return true;
        }
        let rows = rows();
        held.bytes += size_of::<HeldChange>() + rows.bytes();
        self.open.push(HeldChange { part, rows });
        true
    }

    /// Whether the shape has the old and the new row.
    pub(super) fn membership(
        &self,
        old: Option<&RowValues<'_>>,
        new: Option<&RowValues<'_>>,
    ) -> Result<(bool, bool), EvalError> {
        let SubqueryState::Known { sets, .. } = &self.state else { return Ok((false, false)) };
        let has = |row: Option<&RowValues<'_>>| {
            row.map_or(Ok(false), |row| Ok(self.predicate.evaluate_with(row, sets)? == Some(true)))
        };
        Ok((has(old)?, has(new)?))
    }

    /// Counts a change of the table of a subquery.
    pub(super) fn count(
        &mut self,
        number: u32,
        old: Option<&RowValues<'_>>,
        new: Option<&RowValues<'_>>,
    ) -> Result<(), EvalError> {
        let SubqueryState::Known { sets, .. } = &self.state else { return Ok(()) };
        let at = number as usize;
        let (Some(subquery), Some(added)) = (self.predicate.subqueries().get(at), self.added.get_mut(at)) else {
            return Ok(());
        };
        for (row, rows) in [(old, -1), (new, 1)] {
            let Some(row) = row else { continue };
            if subquery.has(row, sets)? {
                added.add(row.get(subquery.column()).copied().flatten(), rows)?;
            }
        }
        Ok(())
    }

    /// Ends the open transaction.
    pub(super) fn commit(&mut self, xid: u64, txid: u32, lsn: u64) -> SubqueryEffect {
        self.is_touched = false;
        let changes = std::mem::take(&mut self.open);
        match &mut self.state {
            SubqueryState::Held(held) => {
                if !changes.is_empty() {
                    held.transactions.push(HeldTransaction { xid, txid, lsn, changes });
                }
                SubqueryEffect::None
            }
            SubqueryState::Known { sets, .. } => {
                let mut effect = SubqueryEffect::None;
                for (set, added) in sets.iter_mut().zip(&mut self.added) {
                    if set.merge(added) {
                        effect = SubqueryEffect::Moved;
                    }
                    added.clear();
                }
                effect
            }
        }
    }

    /// Forgets the open transaction.
    pub(super) fn roll_back(&mut self) {
        self.is_touched = false;
        let bytes: usize = self.open.drain(..).map(|change| size_of::<HeldChange>() + change.rows.bytes()).sum();
        if let SubqueryState::Held(held) = &mut self.state {
            held.bytes = held.bytes.saturating_sub(bytes);
        }
        self.added.iter_mut().for_each(ValueSet::clear);
    }

    /// Whether more is held than memory allows.
    pub(super) fn is_oversized(&self) -> bool {
        matches!(&self.state, SubqueryState::Held(held) if held.bytes > HELD_BYTES_MAX)
    }
}
