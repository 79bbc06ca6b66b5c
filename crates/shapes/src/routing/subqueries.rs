//! A shape whose predicate has subqueries.
//!
//! The results of the subqueries are sets of values, which follow the changes of their tables. As long as a transaction changes
//! no set, rows enter and leave the shape by changes of their own. A transaction that adds a value to a set, or takes the last
//! one from it, moves rows that have no change: from then on the changes of the shape are held, until a task has read rows from
//! a snapshot that has all transactions up to that one ([`crate::moves`]).
//!
//! - **By value**, as a rule: the rows with a value that has come or gone are those that may move. The task reads them, the
//!   changes of the transactions that are held are taken back from them, and what is left are the rows at the commit of the
//!   transaction. Their moves are messages of it, and the transactions that are held follow.
//! - **By comparison**, if all rows may move (a subquery inside of another one, a NULL in a result), and after a restart, when
//!   the results are not known: the task compares the log of the shape with the snapshot. The transactions that the snapshot
//!   has are dropped.
//!
//! The log of a shape without snapshot cannot be compared. All of its rows are read by value where all may move. After a restart,
//! the results are read, and the changes of the transactions that are held are taken back from them: so the stream has to repeat
//! what such a shape holds ([`super::Routing::take_writes`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_predicate::{EvalError, Predicate, SetChange, Subquery, ValueSet};
use tokio::sync::oneshot;

use super::transaction::{OpenRun, RoutedTransaction};
use crate::parameters::LogMode;
use crate::row_form::RowValues;
use crate::shape::{Shape, SnapshotFilter};

/// Limit of the rows that one shape holds.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Limit of the values that are searched for: with more, all rows are compared.
const MOVED_VALUES_MAX: usize = 10_000;
/// The condition of all rows.
const ANY_ROW: &str = "true";

/// A row, whose values are copied.
#[derive(Debug)]
pub(crate) struct HeldRow(Vec<Option<Box<[u8]>>>);

impl HeldRow {
    pub(crate) fn new(row: &RowValues<'_>) -> Self {
        Self(row.iter().map(|value| value.map(Into::into)).collect())
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

/// The changes of a transaction that wait for the results of the subqueries.
#[derive(Debug)]
pub(super) struct HeldTransaction {
    pub(super) xid: u64,
    pub(super) txid: u32,
    pub(super) lsn: u64,
    pub(super) changes: Vec<HeldChange>,
}

fn bytes_of(changes: &[HeldChange]) -> usize {
    changes.iter().map(|change| size_of::<HeldChange>() + change.rows.bytes()).sum()
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
    filter: Option<Box<SnapshotFilter>>,
    bytes: usize,
    /// Gets the position of the first transaction.
    first: Option<oneshot::Sender<u64>>,
}

impl HeldChanges {
    fn new(registered_at: u64, transactions: Vec<HeldTransaction>) -> Self {
        let bytes = transactions.iter().map(|held| bytes_of(&held.changes)).sum();
        Self { registered_at, transactions, bytes, ..Self::default() }
    }

    fn push(&mut self, transaction: HeldTransaction) {
        if transaction.changes.is_empty() || transaction.lsn <= self.after_lsn {
            self.bytes = self.bytes.saturating_sub(bytes_of(&transaction.changes));
            return;
        }
        if let Some(first) = self.first.take() {
            // The task may have ended.
            let _ = first.send(transaction.lsn);
        }
        self.transactions.push(transaction);
    }
}

/// A transaction that moves rows, and its messages for the changes of rows of its own.
#[derive(Debug)]
pub(super) struct MovingTransaction {
    pub(super) xid: u64,
    pub(super) txid: u32,
    pub(super) lsn: u64,
    pub(super) run: Option<OpenRun>,
}

/// Rows that move because values have come or gone.
#[derive(Debug)]
pub(super) struct MovingRows {
    /// The transactions after the transaction that moves rows.
    pub(super) held: HeldChanges,
    transaction: MovingTransaction,
    /// The changes of the results by the number of the subquery.
    changes: Vec<Option<SetChange>>,
    /// The results after the transaction.
    sets: Vec<ValueSet>,
    filter: Option<SnapshotFilter>,
    /// Whether all rows may move, and not only those with a value that has come or gone.
    is_any: bool,
}

#[derive(Debug)]
pub(super) enum SubqueryState {
    /// The results are not known.
    Held(HeldChanges),
    /// The results after the last transaction.
    Known { sets: Vec<ValueSet>, filter: Option<SnapshotFilter> },
    /// The rows that move are not known.
    Moving(Box<MovingRows>),
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

/// How the rows that move are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveQuery {
    /// The rows with this condition may move; their moves belong to the transaction.
    ByValue(String),
    /// All rows may move: the log is compared with a snapshot.
    Comparison,
    /// The shape is one of an earlier process: its log is compared with a snapshot, if anything has changed. If it has no
    /// snapshot, the results of the subqueries are read.
    Restored,
}

/// Rows of a shape move: they have to be read from a snapshot.
#[derive(Debug)]
pub(crate) struct Move {
    /// The shape, whose changes are held.
    pub(crate) shape: Arc<Shape>,
    /// Predicate of the subquery.
    pub(crate) predicate: Arc<Predicate>,
    /// The position of the transaction that moves the rows, and of the messages; 0 if it is not known.
    pub(crate) lsn: u64,
    /// How the rows are found.
    pub(crate) query: MoveQuery,
}

/// The effect of a transaction.
#[derive(Debug)]
pub(super) enum SubqueryEffect {
    /// The results are as before.
    None,
    /// Rows of the shape move: the changes of the results by the number of the subquery.
    Moved(Vec<Option<SetChange>>),
}

/// The rows that have moved cannot be found.
#[derive(Debug, thiserror::Error)]
pub(super) enum MoveError {
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error("too many rows move")]
    TooLarge,
    #[error("its log has no snapshot, and the result of a subquery inside of another one has changed")]
    Nested,
}

impl SubqueryRoute {
    pub(super) fn new(predicate: &Arc<Predicate>, registered_at: u64) -> Self {
        Self {
            added: predicate.subqueries().iter().map(|subquery| subquery.empty_set()).collect(),
            predicate: Arc::clone(predicate),
            state: SubqueryState::Held(HeldChanges::new(registered_at, Vec::new())),
            open: Vec::new(),
            is_touched: false,
        }
    }

    /// The route of a shape of an earlier process, whose log has the transactions up to `lsn` and those of the filter.
    pub(super) fn restored(predicate: &Arc<Predicate>, lsn: u64, filter: Option<Box<SnapshotFilter>>) -> Self {
        let held = HeldChanges { after_lsn: lsn, filter, ..HeldChanges::default() };
        Self { state: SubqueryState::Held(held), ..Self::new(predicate, 0) }
    }

    /// The transactions that wait.
    pub(super) fn held(&mut self) -> Option<&mut HeldChanges> {
        match &mut self.state {
            SubqueryState::Held(held) => Some(held),
            SubqueryState::Moving(moving) => Some(&mut moving.held),
            SubqueryState::Known { .. } => None,
        }
    }

    /// Frees a filter that the stream has passed; a later snapshot has a filter of its own.
    pub(super) fn drop_filter(&mut self, lsn: u64) {
        let filter = match &mut self.state {
            SubqueryState::Held(_) => return,
            SubqueryState::Known { filter, .. } => filter,
            SubqueryState::Moving(moving) => &mut moving.filter,
        };
        filter.take_if(|filter| filter.until_lsn <= lsn);
    }

    /// Sends the position of the first transaction that waits, as soon as there is one.
    pub(super) fn send_first(&mut self, done: oneshot::Sender<u64>) {
        let Some(held) = self.held() else { return };
        match held.transactions.first() {
            // The task may have ended.
            Some(first) => drop(done.send(first.lsn)),
            None => held.first = Some(done),
        }
    }

    /// Holds all changes after a transaction that moves rows, beginning with `later` ones. `registered_at` is the number of
    /// the first commit that may be missing in the next snapshot.
    pub(super) fn begin_move(
        &mut self,
        shape: &Arc<Shape>,
        transaction: MovingTransaction,
        changes: Vec<Option<SetChange>>,
        registered_at: u64,
        later: Vec<HeldTransaction>,
    ) -> Move {
        let (lsn, predicate) = (transaction.lsn, Arc::clone(&self.predicate));
        // No answer claims that the log has this transaction.
        shape.hold(lsn);
        let values: usize = changes.iter().flatten().map(SetChange::len).sum();
        let has_key = shape.definition.form.table.columns.iter().any(|column| column.pk_index.is_some());
        let is_by_value = values <= MOVED_VALUES_MAX && predicate.moves_by_value(&changes);
        let has_comparison = shape.definition.log == LogMode::Full;
        let held = SubqueryState::Held(HeldChanges::new(registered_at, Vec::new()));
        let query = match std::mem::replace(&mut self.state, held) {
            SubqueryState::Known { sets, filter }
                if has_key && (is_by_value || !has_comparison && !predicate.has_nested_subquery()) =>
            {
                let query = if is_by_value { predicate.moved_rows(&changes) } else { ANY_ROW.to_owned() };
                let (held, is_any) = (HeldChanges::new(registered_at, later), !is_by_value);
                let moving = MovingRows { held, transaction, changes, sets, filter, is_any };
                self.state = SubqueryState::Moving(Box::new(moving));
                MoveQuery::ByValue(query)
            }
            // The snapshot has the transaction and all later ones.
            _ => MoveQuery::Comparison,
        };
        Move { shape: Arc::clone(shape), predicate, lsn, query }
    }

    /// Completes the transaction that moves rows. `rows` are those of a snapshot that may have moved, and `filter` names its
    /// transactions, all of which were applied or are held. Returns the messages of the transaction, and the later ones.
    pub(super) fn end_move(
        &mut self,
        shape: &Shape,
        rows: Vec<HeldRow>,
        filter: &SnapshotFilter,
    ) -> Result<(Option<OpenRun>, Vec<HeldTransaction>), MoveError> {
        let held = SubqueryState::Held(HeldChanges::default());
        let SubqueryState::Moving(moving) = std::mem::replace(&mut self.state, held) else {
            return Ok((None, Vec::new()));
        };
        let MovingRows { held, transaction, changes, mut sets, filter: first_filter, is_any } = *moving;
        let form = &shape.definition.form;
        let by_key = rows.into_iter().map(|row| (form.key(&row.values()), row));
        let mut found: BTreeMap<Vec<u8>, HeldRow> = by_key.collect();
        for later in held.transactions.iter().rev().filter(|later| filter.has(later.xid, later.lsn)) {
            for change in later.changes.iter().rev().filter(|change| matches!(change.part, ChangedPart::Shape(_))) {
                let (old, new) = (change.rows.old(), change.rows.new_row());
                if let Some(new) = new {
                    // Whether it may move or not: a row that may not is not there.
                    found.remove(&form.key(&new));
                }
                if let Some(old) = old
                    && (is_any || self.predicate.may_move(&old, &changes)?)
                {
                    found.insert(form.key(&old), HeldRow::new(&old));
                }
            }
        }
        let has = |row: &HeldRow, sets: &[ValueSet]| -> Result<bool, EvalError> {
            Ok(self.predicate.evaluate_with(&row.values(), sets)? == Some(true))
        };
        let changed = || changes.iter().enumerate().filter_map(|(number, change)| Some((number, change.as_ref()?)));
        changed().for_each(|(number, change)| change.undo(&mut sets[number]));
        let before = found.values().map(|row| has(row, &sets)).collect::<Result<Vec<bool>, _>>()?;
        changed().for_each(|(number, change)| change.redo(&mut sets[number]));
        let MovingTransaction { xid, txid, lsn, run } = transaction;
        let mut open = RoutedTransaction::new(lsn, xid, txid);
        let mut seq = run.as_ref().map_or(0, OpenRun::next_seq);
        open.runs.extend(run.map(|run| (shape.id, run)));
        for (row, had) in found.values().zip(before) {
            let (row, has) = (row.values(), has(row, &sets)?);
            if had != has {
                let (old, new) = (had.then_some(&*row), has.then_some(&*row));
                open.push_change(shape.id, &shape.definition, seq, old, new);
                seq += 1;
            }
        }
        if !open.oversized.is_empty() {
            return Err(MoveError::TooLarge);
        }
        self.state = SubqueryState::Known { sets, filter: first_filter };
        Ok((open.runs.remove(&shape.id), held.transactions))
    }

    /// Completes a restart without a comparison. `sets` are the results in a snapshot, and `filter` names its transactions, all
    /// of which are in the log or held. Takes the held changes of these transactions, and returns them: the results are those
    /// before them.
    pub(super) fn resume(
        &mut self,
        mut sets: Vec<ValueSet>,
        filter: &SnapshotFilter,
    ) -> Result<Vec<HeldTransaction>, MoveError> {
        let SubqueryState::Held(held) = &mut self.state else { return Ok(Vec::new()) };
        let transactions = std::mem::take(&mut held.transactions);
        let is_nested = self.predicate.has_nested_subquery();
        let mut undone: Vec<ValueSet> = self.predicate.subqueries().iter().map(Subquery::empty_set).collect();
        for change in transactions.iter().filter(|held| filter.has(held.xid, held.lsn)).flat_map(|held| &held.changes) {
            let ChangedPart::Subquery(number) = change.part else { continue };
            if is_nested {
                // The change may have moved rows of another subquery, which are not known.
                return Err(MoveError::Nested);
            }
            let at = number as usize;
            let (Some(subquery), Some(undone)) = (self.predicate.subqueries().get(at), undone.get_mut(at)) else {
                continue;
            };
            for (row, rows) in [(change.rows.old(), 1), (change.rows.new_row(), -1)] {
                let Some(row) = row else { continue };
                if subquery.has(&row, &sets)? {
                    undone.add(row.get(subquery.column()).copied().flatten(), rows)?;
                }
            }
        }
        for (set, undone) in sets.iter_mut().zip(&undone) {
            set.merge(undone);
        }
        self.state = SubqueryState::Known { sets, filter: None };
        Ok(transactions)
    }

    /// Whether the snapshot has a transaction, or it was applied before.
    pub(super) fn skips(&self, open: &RoutedTransaction) -> bool {
        let filter = match &self.state {
            SubqueryState::Held(held) => held.filter.as_deref(),
            SubqueryState::Known { filter, .. } => filter.as_ref(),
            SubqueryState::Moving(moving) => moving.filter.as_ref(),
        };
        open.is_repeated || filter.is_some_and(|filter| filter.has(open.xid, open.lsn))
    }

    /// Holds a change. False if the results are known, so that the change can be evaluated.
    pub(super) fn try_hold(&mut self, part: ChangedPart, rows: impl FnOnce() -> Arc<HeldRows>) -> bool {
        let Some(held) = self.held() else { return false };
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
        if let Some(held) = self.held() {
            held.push(HeldTransaction { xid, txid, lsn, changes });
        }
        let SubqueryState::Known { sets, .. } = &mut self.state else { return SubqueryEffect::None };
        let merged = sets.iter_mut().zip(&mut self.added).map(|(set, added)| {
            let change = set.merge(added);
            added.clear();
            change
        });
        let changes: Vec<Option<SetChange>> = merged.collect();
        if changes.iter().any(Option::is_some) { SubqueryEffect::Moved(changes) } else { SubqueryEffect::None }
    }

    /// Forgets the open transaction.
    pub(super) fn roll_back(&mut self) {
        self.is_touched = false;
        let bytes = bytes_of(&std::mem::take(&mut self.open));
        if let Some(held) = self.held() {
            held.bytes = held.bytes.saturating_sub(bytes);
        }
        self.added.iter_mut().for_each(ValueSet::clear);
    }

    /// Whether more is held than memory allows.
    pub(super) fn is_oversized(&mut self) -> bool {
        self.held().is_some_and(|held| held.bytes > HELD_BYTES_MAX)
    }
}
