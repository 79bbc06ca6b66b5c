//! A transaction that changes the results of subqueries, and moves rows that it has not changed.
//!
//! The result of a subquery changes with the rows of its table, and with the results of the subqueries inside of it: rows of its
//! table come into the result or leave it without a change of their own. So the results are completed one after the other, inner
//! ones first, and the rows of the shape follow. Each of these levels is a condition on a table. If a result in the condition
//! has changed, the rows that it concerns are read from a snapshot.
//!
//! The effect on a level is a sum over the rows of its table at the commit: 1 for a row that comes, -1 for a row that goes. The
//! rows at the commit are those of the snapshot, with the old rows and without the new rows of the held changes that the
//! snapshot has. A sum needs no key and no order: equal rows count as often as they exist, rows are read in parts, and each
//! level has a snapshot of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tidegate_predicate::{AffectedRows, EvalError, Predicate, SetChange, Subquery, ValueSet};

use super::held::{ChangedPart, HeldChanges, HeldRow};
use super::transaction::{OpenRun, RoutedTransaction};
use crate::row_form::RowValues;
use crate::shape::{Shape, SnapshotFilter};

/// Limit of the values that are searched for: with more, all rows are read or compared.
const MOVED_VALUES_MAX: usize = 10_000;
/// Limit of the rows that move by one transaction, or by one comparison.
pub(crate) const MOVED_BYTES_MAX: usize = 64 << 20;

/// A condition that depends on the results of subqueries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveLevel {
    /// The condition of a subquery, by its number.
    Subquery(usize),
    /// The predicate of the shape.
    Shape,
}

/// The values of a row, and how often it counts: negative for a row that is taken away.
type CountedRow<'a> = (Vec<Option<&'a [u8]>>, i64);

/// A level whose rows have to be read.
#[derive(Debug)]
pub(super) struct NextLevel {
    pub(super) level: MoveLevel,
    /// The condition of the rows; none if all rows may be concerned.
    pub(super) condition: Option<String>,
}

/// The rows that have moved cannot be found.
#[derive(Debug, thiserror::Error)]
pub(super) enum MoveError {
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error("more than {MOVED_BYTES_MAX} bytes of rows have moved")]
    TooLarge,
}

/// The results of the subqueries while a transaction is applied to them.
#[derive(Debug)]
pub(super) struct ChangedResults {
    /// The results: the first ones, whose change is in `changes`, are those after the transaction.
    sets: Vec<ValueSet>,
    /// The rows that the transaction adds to each result.
    added: Vec<ValueSet>,
    changes: Vec<Option<SetChange>>,
}

impl ChangedResults {
    /// `added` are the rows that the changes of the transaction add to the results, if those inside of them are as before.
    pub(super) fn new(sets: Vec<ValueSet>, added: Vec<ValueSet>) -> Self {
        Self { sets, added, changes: Vec::new() }
    }

    /// Completes results until the rows of a level have to be read. None if no rows of the shape move.
    pub(super) fn next_level(&mut self, predicate: &Predicate) -> Option<NextLevel> {
        // A subquery inside of another one has a smaller number.
        for (number, subquery) in predicate.subqueries().iter().enumerate().skip(self.changes.len()) {
            let affected = subquery.affected_rows(&self.changes, MOVED_VALUES_MAX);
            if let Some(next) = next_level(MoveLevel::Subquery(number), affected) {
                return Some(next);
            }
            self.complete();
        }
        next_level(MoveLevel::Shape, predicate.affected_rows(&self.changes, MOVED_VALUES_MAX))
    }

    /// Completes the next result.
    fn complete(&mut self) {
        let number = self.changes.len();
        self.changes.push(self.sets[number].merge(&self.added[number]));
    }

    pub(super) fn into_sets(self) -> Vec<ValueSet> {
        self.sets
    }

    /// The effect of the changed results on rows: 1 if a condition becomes true, -1 if it was true.
    fn effects(
        &mut self,
        rows: &[CountedRow<'_>],
        is_true: impl Fn(&RowValues<'_>, &[ValueSet]) -> Result<bool, EvalError>,
    ) -> Result<Vec<i64>, EvalError> {
        let evaluate = |sets: &[ValueSet]| -> Result<Vec<i64>, EvalError> {
            rows.iter().map(|(row, _)| is_true(row, sets).map(i64::from)).collect()
        };
        let after = evaluate(&self.sets)?;
        let changed =
            || self.changes.iter().enumerate().filter_map(|(number, change)| Some((number, change.as_ref()?)));
        changed().for_each(|(number, change)| change.undo(&mut self.sets[number]));
        let before = evaluate(&self.sets)?;
        changed().for_each(|(number, change)| change.redo(&mut self.sets[number]));
        Ok(after.into_iter().zip(before).map(|(after, before)| after - before).collect())
    }
}

fn next_level(level: MoveLevel, affected: AffectedRows) -> Option<NextLevel> {
    let condition = match affected {
        AffectedRows::None => return None,
        AffectedRows::Matching(condition) => Some(condition),
        AffectedRows::Any => None,
    };
    Some(NextLevel { level, condition })
}

/// The sum of the effects on the rows of a level.
#[derive(Debug)]
enum LevelSum {
    /// The rows that the result of a subquery gets.
    Subquery(usize, ValueSet),
    /// The rows that the shape gets, with their number: negative for rows that it loses.
    Shape { rows: BTreeMap<HeldRow, i64>, bytes: usize },
}

impl LevelSum {
    fn new(level: MoveLevel, predicate: &Predicate) -> Self {
        match level {
            MoveLevel::Subquery(number) => Self::Subquery(number, predicate.subqueries()[number].empty_set()),
            MoveLevel::Shape => Self::Shape { rows: BTreeMap::new(), bytes: 0 },
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Subquery(_, values) => values.clear(),
            Self::Shape { rows, bytes } => {
                rows.clear();
                *bytes = 0;
            }
        }
    }

    fn is_changed_by(&self, part: ChangedPart) -> bool {
        match (self, part) {
            (Self::Subquery(number, _), ChangedPart::Subquery(changed)) => *number == changed as usize,
            (Self::Shape { .. }, ChangedPart::Shape(_)) => true,
            _ => false,
        }
    }

    /// Adds the effects on rows of the table.
    fn add(
        &mut self,
        results: &mut ChangedResults,
        shape: &Shape,
        predicate: &Predicate,
        rows: &[CountedRow<'_>],
    ) -> Result<(), MoveError> {
        match self {
            Self::Subquery(number, values) => {
                let subquery: &Subquery = &predicate.subqueries()[*number];
                let effects = results.effects(rows, |row, sets| subquery.has(row, sets))?;
                for ((row, count), effect) in rows.iter().zip(effects).filter(|(_, effect)| *effect != 0) {
                    values.add(row.get(subquery.column()).copied().flatten(), count * effect)?;
                }
            }
            Self::Shape { rows: moved, bytes } => {
                let is_true =
                    |row: &RowValues<'_>, sets: &[ValueSet]| Ok(predicate.evaluate_with(row, sets)? == Some(true));
                let effects = results.effects(rows, is_true)?;
                // Held rows have more columns than those of a snapshot.
                let columns = shape.definition.form.read_columns(&predicate.columns());
                for ((row, count), effect) in rows.iter().zip(effects).filter(|(_, effect)| *effect != 0) {
                    add_row(moved, bytes, HeldRow::of_columns(row, &columns), count * effect)?;
                }
            }
        }
        Ok(())
    }
}

fn add_row(rows: &mut BTreeMap<HeldRow, i64>, bytes: &mut usize, row: HeldRow, count: i64) -> Result<(), MoveError> {
    let row_bytes = row.bytes();
    match rows.entry(row) {
        Entry::Vacant(entry) => {
            entry.insert(count);
            *bytes += row_bytes;
        }
        Entry::Occupied(mut entry) => {
            *entry.get_mut() += count;
            if *entry.get() == 0 {
                entry.remove();
                *bytes -= row_bytes;
            }
        }
    }
    if *bytes > MOVED_BYTES_MAX { Err(MoveError::TooLarge) } else { Ok(()) }
}

/// A transaction that moves rows, and its messages for the changes of rows of its own.
#[derive(Debug)]
pub(super) struct MovingTransaction {
    pub(super) xid: u64,
    pub(super) txid: u32,
    pub(super) lsn: u64,
    pub(super) run: Option<OpenRun>,
}

/// A transaction of which the rows that it moves are being read. See the [module](self).
#[derive(Debug)]
pub(super) struct MovingRows {
    /// The transactions after it.
    pub(super) held: HeldChanges,
    pub(super) filter: Option<SnapshotFilter>,
    /// None if the results are taken back to the position of the log, which has the rows.
    transaction: Option<MovingTransaction>,
    results: ChangedResults,
    sum: LevelSum,
}

impl MovingRows {
    pub(super) fn new(
        transaction: Option<MovingTransaction>,
        (results, level): (ChangedResults, MoveLevel),
        predicate: &Predicate,
        held: HeldChanges,
        filter: Option<SnapshotFilter>,
    ) -> Self {
        Self { held, filter, transaction, results, sum: LevelSum::new(level, predicate) }
    }

    /// Forgets the rows of a snapshot: another one has begun.
    pub(super) fn clear(&mut self) {
        self.sum.clear();
    }

    /// Adds rows of a snapshot.
    pub(super) fn add(&mut self, shape: &Shape, predicate: &Predicate, rows: &[HeldRow]) -> Result<(), MoveError> {
        let rows: Vec<_> = rows.iter().map(|row| (row.values(), 1)).collect();
        self.sum.add(&mut self.results, shape, predicate, &rows)
    }

    /// Completes a level of which all rows were added. `filter` names the transactions of the snapshot, all of which were applied
    /// or are held. Returns the next level; none if the transaction is complete.
    pub(super) fn end_level(
        &mut self,
        shape: &Shape,
        predicate: &Predicate,
        filter: &SnapshotFilter,
    ) -> Result<Option<NextLevel>, MoveError> {
        let changes = self.held.changes_in(filter).filter(|change| self.sum.is_changed_by(change.part));
        let rows = changes.flat_map(|change| [(change.rows.old(), 1), (change.rows.new_row(), -1)]);
        let rows: Vec<_> = rows.filter_map(|(row, count)| Some((row?, count))).collect();
        self.sum.add(&mut self.results, shape, predicate, &rows)?;
        let LevelSum::Subquery(number, values) = &self.sum else { return Ok(None) };
        self.results.added[*number].merge(values);
        self.results.complete();
        let has_rows_to_move = self.transaction.is_some();
        let next = self.results.next_level(predicate);
        let next = next.filter(|next| has_rows_to_move || next.level != MoveLevel::Shape);
        if let Some(next) = &next {
            self.sum = LevelSum::new(next.level, predicate);
        }
        Ok(next)
    }

    /// The messages of the transaction, after the last level.
    pub(super) fn take_messages(&mut self, shape: &Shape) -> Result<Option<OpenRun>, MoveError> {
        let Some(MovingTransaction { xid, txid, lsn, run }) = self.transaction.take() else { return Ok(None) };
        let mut seq = run.as_ref().map_or(0, OpenRun::next_seq);
        let mut open = RoutedTransaction::new(lsn, xid, txid);
        open.runs.extend(run.map(|run| (shape.id, run)));
        if let LevelSum::Shape { rows, .. } = &self.sum {
            for (row, count) in rows {
                let row = row.values();
                let (old, new) = ((*count < 0).then_some(&*row), (*count > 0).then_some(&*row));
                for _ in 0..count.unsigned_abs() {
                    open.push_change(shape.id, &shape.definition, seq, old, new);
                    seq += 1;
                }
            }
        }
        if open.oversized.is_empty() { Ok(open.runs.remove(&shape.id)) } else { Err(MoveError::TooLarge) }
    }

    /// The results after the transaction, and the transactions that follow.
    pub(super) fn into_parts(self) -> (Vec<ValueSet>, HeldChanges, Option<SnapshotFilter>) {
        (self.results.into_sets(), self.held, self.filter)
    }
}
