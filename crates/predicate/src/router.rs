//! Finds the predicates of a table that a changed row satisfies.
//!
//! Predicates with a condition `column = constant` are found by a hash of the row's value; the others are evaluated one by one.
//! Equal predicates are held and evaluated once. The cost of a change depends on the shapes that have a condition on the
//! row's values, and on the number of predicates without such a condition, not on the number of shapes.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::catalog::Oid;
use crate::datum::{Datum, Order};
use crate::error::EvalError;
use crate::eval::{RowSource, decode};
use crate::index_key::{IndexConjunct, IndexKey, hash_value, is_same};
use crate::predicate::{Predicate, TextValues};
use crate::small_list::SmallList;
use crate::table::Table;

/// A shape that a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeMatch<S> {
    /// The shape's id.
    pub shape: S,
    /// Whether the shape has the old row.
    pub old: bool,
    /// Whether the shape has the new row.
    pub new: bool,
}

/// Shapes that a change concerns. Reused for many changes, so that a change allocates little.
#[derive(Clone, Debug)]
pub struct Matches<S> {
    /// Shapes that have the old or the new row, in no order.
    pub shapes: Vec<ShapeMatch<S>>,
    /// Shapes whose predicate fails on the old or new row.
    pub failed: Vec<(S, EvalError)>,
}

impl<S> Default for Matches<S> {
    fn default() -> Self {
        Self { shapes: Vec::new(), failed: Vec::new() }
    }
}

/// Number of a predicate in its router.
type PredicateId = u32;

/// A predicate with the shapes that have it.
#[derive(Debug)]
struct RoutedPredicate<S> {
    /// The canonical text, shared with the shapes.
    text: Arc<str>,
    /// None if the rows with the keys of the index are those of the predicate: most predicates need no room for more.
    predicate: Option<Arc<Predicate>>,
    shapes: SmallList<S>,
    place: Place,
    /// Change for which the predicate was found last.
    seen: u32,
    /// Rows of that change that have a key of the predicate.
    rows: u8,
}

/// Bits of [`RoutedPredicate::rows`].
const OLD_ROW: u8 = 1;
const NEW_ROW: u8 = 2;
/// The value of a row cannot be read.
const BAD_ROW: u8 = 4;

/// Where a predicate is listed.
#[derive(Debug)]
enum Place {
    /// Evaluated for every row, and listed at this position.
    Scanned(usize),
    /// Listed in an index under these keys, at these positions of their lists.
    Indexed { index: u32, keys: SmallList<(u64, u32)> },
    /// No row satisfies the predicate.
    Nowhere,
}

/// The predicates with one value of a column.
#[derive(Debug)]
struct KeyList {
    hash: u64,
    value: Datum<'static>,
    /// Predicates, each with the number of this key among its keys.
    members: SmallList<(PredicateId, u32)>,
}

/// The hash index of a column.
#[derive(Debug)]
struct ColumnIndex {
    column: usize,
    oid: Oid,
    order: Order,
    lists: HashTable<KeyList>,
}

/// The shapes of one table: predicates, each under an id `S` of the caller. A shape has the rows for which its predicate is true.
#[derive(Debug)]
pub struct Router<S> {
    table: Arc<Table>,
    hasher: DefaultHashBuilder,
    predicates: Vec<Option<RoutedPredicate<S>>>,
    free: Vec<PredicateId>,
    /// Predicates by the hash of their canonical text.
    by_text: HashTable<PredicateId>,
    /// Predicate of a shape, and the shape's position in its list.
    shapes: HashMap<S, (PredicateId, u32)>,
    indexes: Vec<ColumnIndex>,
    scanned: Vec<PredicateId>,
    changes: u32,
    /// Predicates of a change, each with bits of [`RoutedPredicate::rows`].
    candidates: Vec<(PredicateId, u8)>,
}

/// A row whose values are read once for all predicates.
struct CachedRow<'r> {
    values: &'r TextValues<'r>,
    cells: Vec<OnceCell<Result<Datum<'r>, EvalError>>>,
}

impl<'r> CachedRow<'r> {
    fn new(values: &'r TextValues<'r>) -> Self {
        Self { values, cells: (0..values.len()).map(|_| OnceCell::new()).collect() }
    }
}

impl RowSource for CachedRow<'_> {
    fn column(&self, index: usize, oid: Oid) -> Result<Datum<'_>, EvalError> {
        let cell = self.cells.get(index).ok_or(EvalError::ShortRow { got: self.values.len(), column: index })?;
        let read = || self.values[index].map_or(Ok(Datum::Null), |bytes| decode(bytes, index, oid));
        match cell.get_or_init(read) {
            Ok(value) => Ok(value.borrowed()),
            Err(error) => Err(error.clone()),
        }
    }
}

fn hash_key(hasher: &DefaultHashBuilder, value: &Datum<'_>, order: Order) -> u64 {
    use std::hash::Hasher;
    let mut state = hasher.build_hasher();
    hash_value(value, order, &mut state);
    state.finish()
}

impl<S: Copy + Eq + Hash> Router<S> {
    /// A router without shapes.
    #[must_use]
    pub fn new(table: Arc<Table>) -> Self {
        Self {
            table,
            hasher: DefaultHashBuilder::default(),
            predicates: Vec::new(),
            free: Vec::new(),
            by_text: HashTable::new(),
            shapes: HashMap::new(),
            indexes: Vec::new(),
            scanned: Vec::new(),
            changes: 0,
            candidates: Vec::new(),
        }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Number of shapes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// The shapes, in no order.
    pub fn shapes(&self) -> impl Iterator<Item = S> {
        self.shapes.keys().copied()
    }

    /// Whether there are no shapes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Number of different predicates.
    #[must_use]
    pub fn predicate_count(&self) -> usize {
        self.predicates.len() - self.free.len()
    }

    /// Number of predicates that are evaluated for every row, because they have no condition `column = constant`.
    #[must_use]
    pub fn scanned_count(&self) -> usize {
        self.scanned.len()
    }

    /// Adds a shape, or replaces its predicate. A shape without WHERE has [`Predicate::always_true`]. The predicate must be
    /// one of the router's table.
    ///
    /// The time does not depend on the number of shapes.
    ///
    /// # Panics
    /// May panic if the predicate is one of another table: compare [`Predicate::table`] first.
    pub fn insert(&mut self, shape: S, predicate: &Arc<Predicate>) {
        self.remove(shape);
        let hash = self.hasher.hash_one(predicate.canonical());
        let predicates = &self.predicates;
        let is_equal = |id: &PredicateId| {
            predicates[*id as usize].as_ref().is_some_and(|other| *other.text == *predicate.canonical())
        };
        let id = match self.by_text.find(hash, is_equal) {
            Some(id) => *id,
            None => self.add_predicate(predicate, hash),
        };
        if let Some(routed) = &mut self.predicates[id as usize] {
            self.shapes.insert(shape, (id, routed.shapes.as_slice().len() as u32));
            routed.shapes.push(shape);
        }
    }

    fn add_predicate(&mut self, predicate: &Arc<Predicate>, hash: u64) -> PredicateId {
        let id = self.free.pop().unwrap_or_else(|| {
            if self.predicates.len() == self.predicates.capacity() {
                // A doubled list would be a large part of the memory of idle shapes.
                self.predicates.reserve_exact(self.predicates.len() / 8 + 16);
            }
            self.predicates.push(None);
            (self.predicates.len() - 1) as PredicateId
        });
        let place = self.place(id, predicate);
        let is_exact = matches!(place, Place::Indexed { .. }) && predicate.is_index_conjunct();
        let kept = (!is_exact).then(|| Arc::clone(predicate));
        let text = predicate.shared_text();
        self.predicates[id as usize] =
            Some(RoutedPredicate { text, predicate: kept, shapes: SmallList::new(), place, seen: 0, rows: 0 });
        let (predicates, hasher) = (&self.predicates, &self.hasher);
        let rehash =
            |id: &PredicateId| predicates[*id as usize].as_ref().map_or(0, |routed| hasher.hash_one(&*routed.text));
        self.by_text.insert_unique(hash, id, rehash);
        id
    }

    /// Lists a predicate under the condition with the fewest keys, or the least crowded one.
    fn place(&mut self, id: PredicateId, predicate: &Predicate) -> Place {
        if matches!(predicate.constant(), Some(Some(false) | None)) {
            return Place::Nowhere;
        }
        let conjuncts = predicate.index_conjuncts();
        if conjuncts.iter().any(|conjunct| conjunct.keys.is_empty()) {
            return Place::Nowhere;
        }
        let best = conjuncts.into_iter().min_by_key(|conjunct| self.crowd(conjunct));
        let Some(conjunct) = best else {
            self.scanned.push(id);
            return Place::Scanned(self.scanned.len() - 1);
        };
        let index = self.index_for(&conjunct);
        let mut keys = SmallList::new();
        for (number, key) in conjunct.keys.into_iter().enumerate() {
            keys.push(self.add_key(index, key, id, number as u32));
        }
        Place::Indexed { index: index as u32, keys }
    }

    /// Number of predicates that are listed under the keys, and the number of keys.
    fn crowd(&self, conjunct: &IndexConjunct) -> (usize, usize) {
        let order = conjunct.keys.first().map(|key| key.order);
        let index = self.indexes.iter().find(|index| index.column == conjunct.column && Some(index.order) == order);
        let listed = |key: &IndexKey| {
            let hash = hash_key(&self.hasher, &key.value, key.order);
            index
                .and_then(|index| index.lists.find(hash, |list| is_same(&list.value, &key.value, key.order)))
                .map_or(0, |list| list.members.as_slice().len())
        };
        (conjunct.keys.iter().map(listed).sum(), conjunct.keys.len())
    }

    fn index_for(&mut self, conjunct: &IndexConjunct) -> usize {
        let order = conjunct.keys.first().map_or(Order::Natural, |key| key.order);
        let known = self.indexes.iter().position(|index| index.column == conjunct.column && index.order == order);
        known.unwrap_or_else(|| {
            let oid = self.table.columns[conjunct.column].column_type.oid();
            self.indexes.push(ColumnIndex { column: conjunct.column, oid, order, lists: HashTable::new() });
            self.indexes.len() - 1
        })
    }

    fn add_key(&mut self, index: usize, key: IndexKey, id: PredicateId, number: u32) -> (u64, u32) {
        let hash = hash_key(&self.hasher, &key.value, key.order);
        let lists = &mut self.indexes[index].lists;
        let same = |list: &KeyList| is_same(&list.value, &key.value, key.order);
        let entry = lists.entry(hash, same, |list| list.hash);
        let mut entry = entry.or_insert_with(|| KeyList { hash, value: key.value, members: SmallList::new() });
        let members = &mut entry.get_mut().members;
        members.push((id, number));
        (hash, (members.as_slice().len() - 1) as u32)
    }

    /// Removes a shape; false if it is not there. The time does not depend on the number of shapes.
    pub fn remove(&mut self, shape: S) -> bool {
        let Some((id, position)) = self.shapes.remove(&shape) else { return false };
        let Some(routed) = &mut self.predicates[id as usize] else { return false };
        routed.shapes.swap_remove(position as usize);
        if let Some(moved) = routed.shapes.as_slice().get(position as usize) {
            self.shapes.insert(*moved, (id, position));
        } else if routed.shapes.as_slice().is_empty() {
            self.remove_predicate(id);
        }
        true
    }

    fn remove_predicate(&mut self, id: PredicateId) {
        let Some(routed) = self.predicates[id as usize].take() else { return };
        let hash = self.hasher.hash_one(&*routed.text);
        if let Ok(entry) = self.by_text.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        match routed.place {
            Place::Nowhere => {}
            Place::Scanned(position) => {
                self.scanned.swap_remove(position);
                if let Some(moved) = self.scanned.get(position)
                    && let Some(moved) = &mut self.predicates[*moved as usize]
                {
                    moved.place = Place::Scanned(position);
                }
            }
            Place::Indexed { index, keys } => {
                for (number, (hash, position)) in keys.as_slice().iter().enumerate() {
                    self.remove_key(index as usize, *hash, *position, (id, number as u32));
                }
            }
        }
        self.free.push(id);
    }

    fn remove_key(&mut self, index: usize, hash: u64, position: u32, member: (PredicateId, u32)) {
        let lists = &mut self.indexes[index].lists;
        let found = lists.find_entry(hash, |list| {
            list.hash == hash && list.members.as_slice().get(position as usize) == Some(&member)
        });
        let Ok(mut entry) = found else { return };
        let members = &mut entry.get_mut().members;
        members.swap_remove(position as usize);
        let moved = members.as_slice().get(position as usize).copied();
        if members.as_slice().is_empty() {
            entry.remove();
        }
        if let Some((id, number)) = moved
            && let Some(RoutedPredicate { place: Place::Indexed { keys, .. }, .. }) = &mut self.predicates[id as usize]
        {
            keys.as_mut_slice()[number as usize].1 = position;
        }
    }

    /// Replaces `matches` by the shapes that an insert (`new` only), a delete (`old` only) or an update (both) concerns.
    ///
    /// A value that is not of its column's type fails all shapes with a condition on that column.
    pub fn route(&mut self, old: Option<&TextValues<'_>>, new: Option<&TextValues<'_>>, matches: &mut Matches<S>) {
        matches.shapes.clear();
        matches.failed.clear();
        self.count_change();
        let (old, new) = (old.map(CachedRow::new), new.map(CachedRow::new));
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend(self.scanned.iter().map(|id| (*id, 0)));
        for index in &self.indexes {
            for (row, bit) in [(&old, OLD_ROW), (&new, NEW_ROW)] {
                if let Some(row) = row {
                    self.look_up(index, row, bit, &mut candidates);
                }
            }
        }
        // The old and the new row often have the same key.
        candidates.retain(|(id, bits)| {
            let Some(routed) = &mut self.predicates[*id as usize] else { return false };
            let is_first = std::mem::replace(&mut routed.seen, self.changes) != self.changes;
            routed.rows = if is_first { *bits } else { routed.rows | bits };
            is_first
        });
        for (id, _) in &candidates {
            let Some(routed) = &self.predicates[*id as usize] else { continue };
            self.evaluate(routed, old.as_ref(), new.as_ref(), matches);
        }
        self.candidates = candidates;
    }

    /// Numbers the changes from 1, and begins again when the numbers are used up.
    fn count_change(&mut self) {
        self.changes = self.changes.checked_add(1).unwrap_or_else(|| {
            self.predicates.iter_mut().flatten().for_each(|routed| routed.seen = 0);
            1
        });
    }

    fn look_up(&self, index: &ColumnIndex, row: &CachedRow<'_>, bit: u8, candidates: &mut Vec<(PredicateId, u8)>) {
        let members = match row.column(index.column, index.oid) {
            Ok(Datum::Null) => return,
            Ok(value) => {
                let hash = hash_key(&self.hasher, &value, index.order);
                index
                    .lists
                    .find(hash, |list| is_same(&list.value, &value, index.order))
                    .map(|list| list.members.as_slice())
            }
            // Evaluation reports the error.
            Err(_) => {
                let all = index.lists.iter().flat_map(|list| list.members.as_slice());
                candidates.extend(all.map(|(id, _)| (*id, bit | BAD_ROW)));
                return;
            }
        };
        candidates.extend(members.into_iter().flatten().map(|(id, _)| (*id, bit)));
    }

    fn evaluate(
        &self,
        routed: &RoutedPredicate<S>,
        old: Option<&CachedRow<'_>>,
        new: Option<&CachedRow<'_>>,
        matches: &mut Matches<S>,
    ) {
        let evaluate = |row: Option<&CachedRow<'_>>, bit: u8| {
            let Some(row) = row else { return Ok(None) };
            match &routed.predicate {
                Some(predicate) => predicate.evaluate_row(row),
                None if routed.rows & BAD_ROW == 0 => Ok(Some(routed.rows & bit != 0)),
                None => self.key_value(routed, row).map(|()| Some(routed.rows & bit != 0)),
            }
        };
        match (evaluate(old, OLD_ROW), evaluate(new, NEW_ROW)) {
            (Ok(old), Ok(new)) => {
                let (old, new) = (old == Some(true), new == Some(true));
                if old || new {
                    matches.shapes.extend(routed.shapes.as_slice().iter().map(|shape| ShapeMatch {
                        shape: *shape,
                        old,
                        new,
                    }));
                }
            }
            (Err(error), _) | (_, Err(error)) => {
                matches.failed.extend(routed.shapes.as_slice().iter().map(|shape| (*shape, error.clone())));
            }
        }
    }

    /// Reads the value of the column in whose index a predicate is listed.
    fn key_value(&self, routed: &RoutedPredicate<S>, row: &CachedRow<'_>) -> Result<(), EvalError> {
        let Place::Indexed { index, .. } = &routed.place else { return Ok(()) };
        let index = &self.indexes[*index as usize];
        row.column(index.column, index.oid).map(drop)
    }
}
