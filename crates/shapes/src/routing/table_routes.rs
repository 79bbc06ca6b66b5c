//! The shapes of one table.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tidegate_changes::{ColumnValue, Relation, RelationColumn, RowChange as StreamChange, TupleData};
use tidegate_predicate::{Matches, Predicate, Router, Table};

use super::Route;
use super::transaction::OpenTransaction;
use crate::parameters::Replica;
use crate::row_form::{ChangeMessage, ChangeOrigin, RowChange, RowForm};
use crate::shape::ShapeId;
use crate::table::TableInfo;

/// Operations have even numbers, because a changed key takes two.
const OPS_PER_CHANGE: u64 = 2;

pub(super) struct TableRoutes {
    table: Arc<TableInfo>,
    router: Router<ShapeId>,
    matches: Matches<ShapeId>,
    /// Per relation, which is the table or a partition: its version, and the position of each of its columns in the table.
    described: FxHashMap<u32, (u32, Vec<usize>)>,
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
            described: FxHashMap::default(),
        }
    }

    pub(super) fn insert(&mut self, id: ShapeId, predicate: &Arc<Predicate>) {
        self.router.insert(id, predicate);
    }

    pub(super) fn remove(&mut self, id: ShapeId) {
        self.router.remove(id);
    }

    /// Whether the shapes of this table have the same definition of it.
    pub(super) fn is_of(&self, table: &TableInfo) -> bool {
        self.table.is_same_as(table)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.router.is_empty()
    }

    pub(super) fn shapes(&self) -> impl Iterator<Item = ShapeId> {
        self.router.shapes()
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
        change: &StreamChange,
        seq: u64,
        routes: &FxHashMap<ShapeId, Route>,
        open: &mut OpenTransaction,
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
        for found in &self.matches.shapes {
            let Some(route) = routes.get(&found.shape) else { continue };
            let definition = &route.shape.definition;
            let (form, replica) = (Arc::as_ptr(&definition.form), definition.replica);
            let is_same = |known: &Encoded| {
                std::ptr::eq(known.form, form)
                    && known.replica == replica
                    && (known.has_old, known.has_new) == (found.old, found.new)
            };
            let at = encoded.iter().position(is_same).unwrap_or_else(|| {
                let change = match (old.as_deref().filter(|_| found.old), new.as_deref().filter(|_| found.new)) {
                    (Some(old), Some(new)) => Some(RowChange::Update { old, new }),
                    (None, Some(new)) => Some(RowChange::Insert { new }),
                    (Some(old), None) => Some(RowChange::Delete { old }),
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
        self.matches.failed.iter().map(|(shape, _)| *shape).collect()
    }
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
