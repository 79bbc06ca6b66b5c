//! A shape whose predicate has subqueries.
//!
//! The results of the subqueries are sets of values, which follow the changes of their tables. As long as a transaction changes
//! no set, rows enter and leave the shape by changes of their own. A transaction that adds a value to a set, or takes the last
//! one from it, moves rows that have no change: from then on the changes of the shape are held, until a task has read rows from
//! a snapshot that has all transactions up to that one ([`crate::moves`]).
//!
//! - **By value**, as a rule: the rows with a value that has come or gone are those that may move. The task reads them, the
//!   changes of the transactions that are held are taken back from them, and what is left are the rows at the commit of the
//!   transaction. Their moves are messages of it, and the transactions that are held follow. The result of a subquery around
//!   another one is completed so before ([`super::moving`]).
//! - **By comparison**, if all rows may move (a NULL in a result, too many values), and after a restart, when the results are
//!   not known: the task compares the log of the shape with the snapshot. The transactions that the snapshot has are dropped.
//!
//! The log of a shape without snapshot cannot be compared. All of its rows are read by value where all may move. After a restart,
//! the results are read, and the changes of the transactions that are held are taken back from them: so the stream has to repeat
//! what such a shape holds ([`super::Routing::take_writes`]).

use std::sync::Arc;

use tidegate_predicate::{EvalError, Predicate, ValueSet};
use tokio::sync::oneshot;

use super::held::{ChangedPart, HeldChange, HeldChanges, HeldRow, HeldRows, HeldTransaction};
use super::moving::{ChangedResults, MoveError, MoveLevel, MovingRows, MovingTransaction, NextLevel};
use super::transaction::{OpenRun, RoutedTransaction};
use crate::parameters::LogMode;
use crate::row_form::RowValues;
use crate::shape::{Shape, SnapshotFilter};

/// The condition of all rows.
const ANY_ROW: &str = "true";

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
    /// The rows of a level with this condition are read; what they move belongs to the transaction.
    ByValue(MoveLevel, String),
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
    /// The results are as before, or move no rows.
    None,
    /// Rows may move without a change of their own.
    Moved(Box<(ChangedResults, NextLevel)>),
}

/// The end of a level of a transaction that moves rows.
#[derive(Debug)]
pub(super) enum LevelEnd {
    /// Further rows have to be read.
    Next(MoveQuery),
    /// The messages of the transaction, and the transactions that were held.
    Complete(Option<OpenRun>, Vec<HeldTransaction>),
}

fn empty_sets(predicate: &Predicate) -> Vec<ValueSet> {
    predicate.subqueries().iter().map(|subquery| subquery.empty_set()).collect()
}

impl SubqueryRoute {
    pub(super) fn new(predicate: &Arc<Predicate>, registered_at: u64) -> Self {
        Self {
            added: empty_sets(predicate),
            predicate: Arc::clone(predicate),
            state: SubqueryState::Held(HeldChanges::new(registered_at, Vec::new())),
            open: Vec::new(),
            is_touched: false,
        }
    }

    /// The route of a shape of an earlier process, whose log has the transactions up to `lsn` and those of the filter.
    pub(super) fn restored(predicate: &Arc<Predicate>, lsn: u64, filter: Option<Box<SnapshotFilter>>) -> Self {
        Self { state: SubqueryState::Held(HeldChanges::restored(lsn, filter)), ..Self::new(predicate, 0) }
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
        if let Some(held) = self.held() {
            held.send_first(done);
        }
    }

    /// Holds all changes after a transaction that moves rows, beginning with `later` ones. `registered_at` is the number of
    /// the first commit that may be missing in the next snapshot.
    pub(super) fn begin_move(
        &mut self,
        shape: &Arc<Shape>,
        transaction: MovingTransaction,
        (results, next): (ChangedResults, NextLevel),
        registered_at: u64,
        later: Vec<HeldTransaction>,
    ) -> Move {
        let (lsn, predicate) = (transaction.lsn, Arc::clone(&self.predicate));
        // No answer claims that the log has this transaction.
        shape.hold(lsn);
        let (level, query) = (next.level, query_of(shape, next));
        // The snapshot of a comparison has the transaction and all later ones.
        let later = if query == MoveQuery::Comparison { Vec::new() } else { later };
        let held = HeldChanges::new(registered_at, later);
        let known = std::mem::replace(&mut self.state, SubqueryState::Held(HeldChanges::default()));
        let filter = if let SubqueryState::Known { filter, .. } = known { filter } else { None };
        self.state = match query {
            MoveQuery::Comparison => SubqueryState::Held(held),
            _ => self.moving(Some(transaction), results, level, held, filter),
        };
        Move { shape: Arc::clone(shape), predicate, lsn, query }
    }

    fn moving(
        &self,
        transaction: Option<MovingTransaction>,
        results: ChangedResults,
        level: MoveLevel,
        held: HeldChanges,
        filter: Option<SnapshotFilter>,
    ) -> SubqueryState {
        SubqueryState::Moving(Box::new(MovingRows::new(transaction, (results, level), &self.predicate, held, filter)))
    }

    /// Forgets the rows of an earlier snapshot.
    pub(super) fn begin_rows(&mut self) {
        if let SubqueryState::Moving(moving) = &mut self.state {
            moving.clear();
        }
    }

    /// Adds rows of a snapshot that may have moved.
    pub(super) fn add_rows(&mut self, shape: &Shape, rows: &[HeldRow]) -> Result<(), MoveError> {
        match &mut self.state {
            SubqueryState::Moving(moving) => moving.add(shape, &self.predicate, rows),
            SubqueryState::Held(_) | SubqueryState::Known { .. } => Ok(()),
        }
    }

    /// Completes a level of the transaction that moves rows. `rows` are the last ones of a snapshot, and `filter` names its
    /// transactions, all of which were applied or are held. `next_commit` is the number of the next commit.
    pub(super) fn end_level(
        &mut self,
        shape: &Shape,
        rows: &[HeldRow],
        filter: &SnapshotFilter,
        next_commit: u64,
    ) -> Result<LevelEnd, MoveError> {
        self.add_rows(shape, rows)?;
        let SubqueryState::Moving(moving) = &mut self.state else { return Ok(LevelEnd::Complete(None, Vec::new())) };
        if let Some(next) = moving.end_level(shape, &self.predicate, filter)? {
            let query = query_of(shape, next);
            if query == MoveQuery::Comparison {
                // The snapshot of the comparison has all transactions that are held.
                self.state = SubqueryState::Held(HeldChanges::new(next_commit, Vec::new()));
            }
            return Ok(LevelEnd::Next(query));
        }
        let run = moving.take_messages(shape)?;
        let held = SubqueryState::Held(HeldChanges::default());
        let SubqueryState::Moving(moving) = std::mem::replace(&mut self.state, held) else {
            return Ok(LevelEnd::Complete(run, Vec::new()));
        };
        let (sets, held, filter) = moving.into_parts();
        self.state = SubqueryState::Known { sets, filter };
        Ok(LevelEnd::Complete(run, held.transactions))
    }

    /// Completes a restart without a comparison. `sets` are the results in a snapshot, and `filter` names its transactions, all
    /// of which are in the log or held. Takes the held changes of these transactions back: the results are those before them.
    pub(super) fn resume(
        &mut self,
        shape: &Shape,
        sets: Vec<ValueSet>,
        filter: &SnapshotFilter,
    ) -> Result<LevelEnd, MoveError> {
        let SubqueryState::Held(held) = &mut self.state else { return Ok(LevelEnd::Complete(None, Vec::new())) };
        let mut taken = empty_sets(&self.predicate);
        for change in held.changes_in(filter) {
            let ChangedPart::Subquery(number) = change.part else { continue };
            let at = number as usize;
            let (Some(subquery), Some(taken)) = (self.predicate.subqueries().get(at), taken.get_mut(at)) else {
                continue;
            };
            for (row, rows) in [(change.rows.old(), 1), (change.rows.new_row(), -1)] {
                let Some(row) = row else { continue };
                if subquery.has(&row, &sets)? {
                    taken.add(row.get(subquery.column()).copied().flatten(), rows)?;
                }
            }
        }
        let mut held = std::mem::take(held);
        let mut results = ChangedResults::new(sets, taken);
        // The log has the rows of these results.
        match results.next_level(&self.predicate).filter(|next| next.level != MoveLevel::Shape) {
            None => {
                let transactions = std::mem::take(&mut held.transactions);
                self.state = SubqueryState::Known { sets: results.into_sets(), filter: None };
                Ok(LevelEnd::Complete(None, transactions))
            }
            Some(next) => {
                let (level, query) = (next.level, query_of(shape, next));
                self.state = self.moving(None, results, level, held, None);
                Ok(LevelEnd::Next(query))
            }
        }
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
        if held.is_oversized() {
            // The shape ends with the transaction.
            self.open = Vec::new();
            return true;
        }
        let change = HeldChange { part, rows: rows() };
        held.count(&change);
        self.open.push(change);
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
        if self.added.iter().all(ValueSet::is_empty) {
            return SubqueryEffect::None;
        }
        let added = std::mem::replace(&mut self.added, empty_sets(&self.predicate));
        let SubqueryState::Known { sets, .. } = &mut self.state else { return SubqueryEffect::None };
        let mut results = ChangedResults::new(std::mem::take(sets), added);
        match results.next_level(&self.predicate) {
            Some(next) => SubqueryEffect::Moved(Box::new((results, next))),
            None => {
                *sets = results.into_sets();
                SubqueryEffect::None
            }
        }
    }

    /// Forgets the open transaction.
    pub(super) fn roll_back(&mut self) {
        self.is_touched = false;
        let changes = std::mem::take(&mut self.open);
        if let Some(held) = self.held() {
            held.forget(&changes);
        }
        self.added.iter_mut().for_each(ValueSet::clear);
    }

    /// Whether more is held than memory allows.
    pub(super) fn is_oversized(&mut self) -> bool {
        self.held().is_some_and(|held| held.is_oversized())
    }
}

/// How the rows of a level are found.
fn query_of(shape: &Shape, next: NextLevel) -> MoveQuery {
    match (next.condition, shape.definition.log) {
        (None, LogMode::Full) => MoveQuery::Comparison,
        (condition, _) => MoveQuery::ByValue(next.level, condition.unwrap_or_else(|| ANY_ROW.to_owned())),
    }
}
