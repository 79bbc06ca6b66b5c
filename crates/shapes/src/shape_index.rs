//! The shapes by id, handle and definition.

use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use crate::definition::ShapeDefinition;
use crate::handle::ShapeHandle;
use crate::shape::{Shape, ShapeId};

/// The shapes of a server. Sections are short and do no I/O.
#[derive(Debug, Default)]
pub(crate) struct ShapeIndex {
    maps: Mutex<ShapeMaps>,
}

/// Tables of shapes alone: a key beside each would be a tenth of the memory of an idle shape.
#[derive(Debug, Default)]
struct ShapeMaps {
    by_id: HashTable<Arc<Shape>>,
    /// Keyed by the hash in the handle. Several shapes may have the same: they are few, and their definitions are compared.
    by_definition: HashTable<Arc<Shape>>,
    id_max: ShapeId,
    micros_max: u64,
}

fn hash_of_id(id: ShapeId) -> u64 {
    FxBuildHasher.hash_one(id)
}

fn hash_of_definition(hash: u32) -> u64 {
    FxBuildHasher.hash_one(hash)
}

impl ShapeIndex {
    /// Ids and handles up to these have been used.
    pub(crate) fn set_used(&self, id: ShapeId, micros: u64) {
        let mut maps = self.lock();
        maps.id_max = maps.id_max.max(id);
        maps.micros_max = maps.micros_max.max(micros);
    }

    /// The shape with this definition. If there is none, `make` gets a new id and a handle that was never used.
    pub(crate) fn get_or_insert(
        &self,
        definition: &ShapeDefinition,
        unix_micros: u64,
        make: impl FnOnce(ShapeId, ShapeHandle) -> Option<Arc<Shape>>,
    ) -> Option<(Arc<Shape>, bool)> {
        let hash = definition.key().hash();
        let mut maps = self.lock();
        if let Some(found) = maps.find(definition, hash) {
            return Some((found, false));
        }
        let id = maps.id_max + 1;
        let micros = unix_micros.max(maps.micros_max + 1);
        let shape = make(id, ShapeHandle { hash, micros })?;
        (maps.id_max, maps.micros_max) = (id, micros);
        maps.insert(&shape);
        Some((shape, true))
    }

    /// Adds a shape of an earlier process.
    pub(crate) fn restore(&self, shape: &Arc<Shape>) {
        self.lock().insert(shape);
    }

    /// The shape with this definition.
    #[must_use]
    pub(crate) fn find(&self, definition: &ShapeDefinition) -> Option<Arc<Shape>> {
        let hash = definition.key().hash();
        self.lock().find(definition, hash)
    }

    /// The shape with this handle.
    #[must_use]
    pub(crate) fn by_handle(&self, handle: ShapeHandle) -> Option<Arc<Shape>> {
        // No other handle has the time in a handle.
        self.lock().with_hash(handle.hash).find(|shape| shape.handle == handle).cloned()
    }

    /// The shape with this id.
    #[must_use]
    pub(crate) fn get(&self, id: ShapeId) -> Option<Arc<Shape>> {
        self.lock().by_id.find(hash_of_id(id), |shape| shape.id == id).cloned()
    }

    /// Removes a shape; false if it is not there.
    pub(crate) fn remove(&self, id: ShapeId) -> bool {
        self.lock().remove(id)
    }

    /// All shapes.
    #[must_use]
    pub(crate) fn all(&self) -> Vec<Arc<Shape>> {
        self.lock().by_id.iter().cloned().collect()
    }

    /// Number of shapes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Whether there are no shapes.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A holder that panicked left consistent maps: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, ShapeMaps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShapeMaps {
    /// The shapes with this hash of the definition.
    fn with_hash(&self, hash: u32) -> impl Iterator<Item = &Arc<Shape>> {
        self.by_definition.iter_hash(hash_of_definition(hash)).filter(move |shape| shape.handle.hash == hash)
    }

    fn find(&self, definition: &ShapeDefinition, hash: u32) -> Option<Arc<Shape>> {
        let shapes = self.with_hash(hash);
        shapes.filter(|shape| shape.definition.is_same(definition)).max_by_key(|shape| shape.id).cloned()
    }

    fn insert(&mut self, shape: &Arc<Shape>) {
        self.id_max = self.id_max.max(shape.id);
        self.micros_max = self.micros_max.max(shape.handle.micros);
        let rehash = |shape: &Arc<Shape>| hash_of_definition(shape.handle.hash);
        self.by_definition.insert_unique(hash_of_definition(shape.handle.hash), Arc::clone(shape), rehash);
        let rehash = |shape: &Arc<Shape>| hash_of_id(shape.id);
        self.by_id.insert_unique(hash_of_id(shape.id), Arc::clone(shape), rehash);
    }

    fn remove(&mut self, id: ShapeId) -> bool {
        let Ok(entry) = self.by_id.find_entry(hash_of_id(id), |shape| shape.id == id) else { return false };
        let (shape, _) = entry.remove();
        let hash = hash_of_definition(shape.handle.hash);
        if let Ok(entry) = self.by_definition.find_entry(hash, |other| other.id == id) {
            entry.remove();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{LogMode, Replica};
    use crate::row_form::RowForm;
    use crate::table::tests::{column, table};

    fn definition(replica: Replica) -> Arc<ShapeDefinition> {
        let table = Arc::new(table("public", "t", vec![column("id", "int8", Some(0))]));
        let form = Arc::new(RowForm::new(table, vec![0]));
        Arc::new(ShapeDefinition { form, predicate: None, replica, log: LogMode::Full, inner: None })
    }

    /// SH-31: a handle is never used again, even if the clock is set back.
    #[test]
    fn handles_are_never_used_again() {
        let index = ShapeIndex::default();
        let definition = definition(Replica::Default);
        let mut handles = std::collections::BTreeSet::new();
        for micros in [1000, 1000, 5, 0, 2000] {
            let make = |id, handle| Some(Arc::new(Shape::new(id, handle, Arc::clone(&definition))));
            let (shape, is_new) = index.get_or_insert(&definition, micros, make).unwrap();
            assert!(is_new && handles.insert(shape.handle));
            let (again, is_new) = index.get_or_insert(&definition, micros, |_, _| None).unwrap();
            assert!(!is_new && again.id == shape.id);
            assert_eq!(index.by_handle(shape.handle).map(|shape| shape.id), Some(shape.id));
            assert!(index.remove(shape.id) && !index.remove(shape.id));
            assert!(index.by_handle(shape.handle).is_none() && index.is_empty());
        }
    }

    #[test]
    fn equal_hashes_are_distinguished() {
        let index = ShapeIndex::default();
        let definition = definition(Replica::Default);
        let hash = definition.key().hash();
        let shapes: Vec<_> = (1..=3)
            .map(|id| Arc::new(Shape::new(id, ShapeHandle { hash, micros: id }, Arc::clone(&definition))))
            .collect();
        shapes.iter().for_each(|shape| index.restore(shape));
        for id in [1, 3, 2] {
            assert!(index.find(&definition).is_some());
            assert!(index.remove(id));
        }
        assert!(index.find(&definition).is_none() && index.is_empty());
    }

    #[test]
    fn definitions_with_other_options_are_other_shapes() {
        let index = ShapeIndex::default();
        for replica in [Replica::Default, Replica::Full] {
            let definition = definition(replica);
            let make = |id, handle| Some(Arc::new(Shape::new(id, handle, Arc::clone(&definition))));
            assert!(index.get_or_insert(&definition, 1, make).unwrap().1);
        }
        assert_eq!(index.len(), 2);
    }
}
