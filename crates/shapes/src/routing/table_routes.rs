//! The shapes of one table.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tidegate_changes::{ColumnValue, Relation, RelationColumn, RowChange, TupleData};
use tidegate_predicate::{EvalError, Matches, Predicate, Router, Table};

use super::held::{ChangedPart, HeldRows};
use super::transaction::{OPS_PER_CHANGE, RoutedTransaction};
use super::{Route, RouteState};
use crate::parameters::Replica;
use crate::row_form::{ChangeMessage, ChangeOrigin, RowForm, RowValues, ShapeChange};
use crate::shape::ShapeId;
use crate::table::TableInfo;

pub(super) struct TableRoutes {
    table: Arc<TableInfo>,
    router: Router<ShapeId>,
    matches: Matches<ShapeId>,
    /// Subqueries on this table, by shape and number.
    subqueries: Router<SubqueryId>,
    subquery_matches: Matches<SubqueryId>,
    /// Per relation, which is the table or a partition: its version, and the position of each of its columns in the table.
    described: FxHashMap<u32, (u32, Vec<usize>)>,
}

/// A subquery of a shape, by its number.
type SubqueryId = (ShapeId, u32);

/// A change of a row of the table.
struct TableChange<'a, 'v> {
    seq: u64,
    old: Option<&'a RowValues<'v>>,
    new: Option<&'a RowValues<'v>>,
    /// The rows as they are held, once they are.
    held: Option<Arc<HeldRows>>,
}

impl TableChange<'_, '_> {
    fn held(&mut self) -> Arc<HeldRows> {
        let (old, new) = (self.old, self.new);
        Arc::clone(self.held.get_or_insert_with(|| Arc::new(HeldRows::new(old, new))))
    }
}

/// A message that several shapes need.
struct Encoded {
    form: *const RowForm,
    replica: Replica,
    has_old: bool,
    has_new: bool,
    messages: Vec<ChangeMessage>,
}

impl TableRoutes {
    pub(super) fn new(table: &Arc<TableInfo>, predicate_table: &Arc<Table>) -> Self {
        Self {
            table: Arc::clone(table),
            router: Router::new(Arc::clone(predicate_table)),
            matches: Matches::default(),
            subqueries: Router::new(Arc::clone(predicate_table)),
            subquery_matches: Matches::default(),
            described: FxHashMap::default(),
        }
    }

    pub(super) fn insert(&mut self, id: ShapeId, predicate: &Arc<Predicate>) {
        self.router.insert(id, predicate);
    }

    pub(super) fn remove(&mut self, id: ShapeId) {
        self.router.remove(id);
    }

    pub(super) fn insert_subquery(&mut self, id: ShapeId, number: u32, candidates: &Arc<Predicate>) {
        self.subqueries.insert((id, number), candidates);
    }

    pub(super) fn remove_subquery(&mut self, id: ShapeId, number: u32) {
        self.subqueries.remove((id, number));
    }

    /// Whether the shapes of this table have the same definition of it.
    pub(super) fn is_of(&self, table: &TableInfo) -> bool {
        self.table.is_same_as(table)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.router.is_empty() && self.subqueries.is_empty()
    }

    /// The shapes that need the changes of the table.
    pub(super) fn shapes(&self) -> impl Iterator<Item = ShapeId> {
        self.router.shapes().chain(self.subqueries.shapes().map(|(id, _)| id))
    }

    /// The tables whose changes are those of this one.
    pub(super) fn row_tables(&self) -> &[u32] {
        self.table.row_tables()
    }

    /// Whether a description is that of the table as its shapes have it, or of a partition with the same columns.
    pub(super) fn describe(&mut self, relation: &Relation) -> bool {
        let is_named = *relation.schema == *self.table.name.schema && *relation.name == *self.table.name.table;
        // Generated columns are not in the stream.
        let count = self.table.columns.iter().filter(|column| !column.is_generated).count();
        // A partition may have its columns in another order.
        let position = |other: &RelationColumn| {
            let position = self.table.position(&other.name)?;
            let own = self.table.columns.get(position)?;
            let is_same = !own.is_generated && own.type_oid == other.type_oid && own.modifier == other.type_modifier;
            is_same.then_some(position)
        };
        let positions: Option<Vec<usize>> = relation.columns.iter().map(position).collect();
        let positions = positions.filter(|found| found.len() == count && (is_named || self.table.is_partitioned()));
        self.described.remove(&relation.oid);
        let Some(positions) = positions else { return false };
        self.described.insert(relation.oid, (relation.version, positions));
        true
    }

    /// Adds the messages of a change to the transaction. Returns shapes that cannot go on.
    pub(super) fn route(
        &mut self,
        change: &RowChange,
        seq: u64,
        routes: &mut FxHashMap<ShapeId, Route>,
        open: &mut RoutedTransaction,
    ) -> Vec<ShapeId> {
        let relation = change.relation();
        let known = self.described.get(&relation.oid);
        if known.is_none_or(|(version, _)| *version != relation.version) && !self.describe(relation) {
            return self.shapes().collect();
        }
        let Some((_, positions)) = self.described.get(&relation.oid) else { return Vec::new() };
        let width = self.table.columns.len();
        let old_tuple = change.old_tuple().map(|(_, tuple)| tuple);
        let old = old_tuple.map(|tuple| values(tuple, None, positions, width));
        let new = change.new_tuple().map(|tuple| values(tuple, old_tuple, positions, width));
        let (Ok(old), Ok(new)) = (old.transpose(), new.transpose()) else {
            // An unchanged TOAST value without an old row: the replica identity is not FULL.
            return self.shapes().collect();
        };
        let is_update_without_old = old.is_none() && change.operation() == tidegate_changes::RowOperation::Update;
        if is_update_without_old {
            return self.shapes().collect();
        }
        self.router.route(old.as_deref(), new.as_deref(), &mut self.matches);
        let origin = ChangeOrigin { lsn: open.lsn, op: seq.saturating_mul(OPS_PER_CHANGE), txid: open.txid };
        let mut encoded: Vec<Encoded> = Vec::new();
        let mut candidates: Vec<ShapeId> = Vec::new();
        for found in &self.matches.shapes {
            let Some(route) = routes.get(&found.shape) else { continue };
            if matches!(route.state, RouteState::Subqueries(_)) {
                candidates.push(found.shape);
                continue;
            }
            let definition = &route.shape.definition;
            let (form, replica) = (Arc::as_ptr(&definition.form), definition.replica);
            let is_same = |known: &Encoded| {
                std::ptr::eq(known.form, form)
                    && known.replica == replica
                    && (known.has_old, known.has_new) == (found.old, found.new)
            };
            let at = encoded.iter().position(is_same).unwrap_or_else(|| {
                let change = match (old.as_deref().filter(|_| found.old), new.as_deref().filter(|_| found.new)) {
                    (Some(old), Some(new)) => Some(ShapeChange::Update { old, new }),
                    (None, Some(new)) => Some(ShapeChange::Insert { new }),
                    (Some(old), None) => Some(ShapeChange::Delete { old }),
                    (None, None) => None,
                };
                let messages = change.map(|change| definition.form.change(change, replica, origin)).unwrap_or_default();
                encoded.push(Encoded { form, replica, has_old: found.old, has_new: found.new, messages });
                encoded.len() - 1
            });
            let rows = i64::from(found.new) - i64::from(found.old);
            open.push(found.shape, &encoded[at].messages, rows, route.mode(open));
        }
        // A predicate that fails on a row ends its own shape only (SH-53).
        for (shape, error) in &self.matches.failed {
            tracing::warn!(shape, %error, "shape removed: its predicate fails on a row");
        }
        let mut failed: Vec<ShapeId> = self.matches.failed.iter().map(|(shape, _)| *shape).collect();
        let (old, new) = (old.as_deref(), new.as_deref());
        let mut change = TableChange { seq, old, new, held: None };
        for id in candidates {
            if let Err(error) = route_to_subquery_shape(id, &mut change, routes, open) {
                tracing::warn!(shape = id, %error, "shape removed: its predicate fails on a row");
                failed.push(id);
            }
        }
        failed.extend(self.route_subqueries(&mut change, routes, open));
        failed
    }

    /// Counts a change in the results of subqueries. Returns shapes that cannot go on.
    fn route_subqueries(
        &mut self,
        change: &mut TableChange<'_, '_>,
        routes: &mut FxHashMap<ShapeId, Route>,
        open: &mut RoutedTransaction,
    ) -> Vec<ShapeId> {
        if self.subqueries.is_empty() {
            return Vec::new();
        }
        self.subqueries.route(change.old, change.new, &mut self.subquery_matches);
        let mut failed: Vec<(ShapeId, EvalError)> = Vec::new();
        for found in &self.subquery_matches.shapes {
            let (id, number) = found.shape;
            let Some(Route { state: RouteState::Subqueries(route), .. }) = routes.get_mut(&id) else { continue };
            if route.skips(open) {
                continue;
            }
            open.touch(id, &mut route.is_touched);
            if route.try_hold(ChangedPart::Subquery(number), || change.held()) {
                continue;
            }
            if let Err(error) = route.count(number, change.old, change.new) {
                failed.push((id, error));
            }
        }
        failed.extend(self.subquery_matches.failed.iter().map(|((id, _), error)| (*id, error.clone())));
        for (shape, error) in &failed {
            tracing::warn!(shape, %error, "shape removed: its predicate fails on a row");
        }
        failed.into_iter().map(|(id, _)| id).collect()
    }
}

/// Adds the messages of a change to the transaction, for a shape with subqueries that may have the row.
fn route_to_subquery_shape(
    id: ShapeId,
    change: &mut TableChange<'_, '_>,
    routes: &mut FxHashMap<ShapeId, Route>,
    open: &mut RoutedTransaction,
) -> Result<(), EvalError> {
    let Some(Route { shape, state: RouteState::Subqueries(route) }) = routes.get_mut(&id) else { return Ok(()) };
    if route.skips(open) {
        return Ok(());
    }
    if route.try_hold(ChangedPart::Shape(change.seq), || change.held()) {
        open.touch(id, &mut route.is_touched);
        return Ok(());
    }
    let has = route.membership(change.old, change.new)?;
    let (old, new) = (change.old.filter(|_| has.0), change.new.filter(|_| has.1));
    open.push_change(id, &shape.definition, change.seq, old, new);
    Ok(())
}

/// A value of a row is not in the stream.
struct MissingValue;

/// The values of a tuple by the position of the column in the table. Unchanged values come from the old row.
fn values<'a>(
    tuple: TupleData<'a>,
    old: Option<TupleData<'a>>,
    positions: &[usize],
    width: usize,
) -> Result<Vec<Option<&'a [u8]>>, MissingValue> {
    let mut values = vec![None; width];
    let mut old = old.into_iter().flat_map(|tuple| tuple.iter());
    for (value, position) in tuple.iter().zip(positions) {
        let before = old.next();
        let value = match value {
            ColumnValue::Unchanged => before.ok_or(MissingValue)?,
            other => other,
        };
        *values.get_mut(*position).ok_or(MissingValue)? = match value {
            ColumnValue::Text(text) => Some(text),
            ColumnValue::Null => None,
            // The stream is opened without the option `binary`.
            _ => return Err(MissingValue),
        };
    }
    Ok(values)
}
