//! Finds the predicates of a table that a changed row satisfies.

use std::hash::Hash;
use std::sync::Arc;

use crate::error::EvalError;
use crate::predicate::{Predicate, TextValues};
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

/// The shapes of one table.
#[derive(Debug)]
pub struct Router<S> {
    table: Arc<Table>,
    shapes: Vec<(S, Arc<Predicate>)>,
}

impl<S: Copy + Eq + Hash> Router<S> {
    /// A router without shapes.
    #[must_use]
    pub fn new(table: Arc<Table>) -> Self {
        Self { table, shapes: Vec::new() }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Adds a shape, or replaces its predicate. A shape without WHERE has [`Predicate::always_true`].
    pub fn insert(&mut self, shape: S, predicate: &Arc<Predicate>) {
        self.remove(shape);
        self.shapes.push((shape, Arc::clone(predicate)));
    }

    /// Removes a shape; false if it is not there.
    pub fn remove(&mut self, shape: S) -> bool {
        let before = self.shapes.len();
        self.shapes.retain(|(other, _)| *other != shape);
        self.shapes.len() < before
    }

    /// Number of shapes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Whether there are no shapes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Replaces `matches` by the shapes that an insert (`new` only), a delete (`old` only) or an update (both) concerns.
    pub fn route(&mut self, old: Option<&TextValues<'_>>, new: Option<&TextValues<'_>>, matches: &mut Matches<S>) {
        matches.shapes.clear();
        matches.failed.clear();
        for (shape, predicate) in &self.shapes {
            let evaluate = |row: Option<&TextValues<'_>>| row.map_or(Ok(None), |row| predicate.evaluate(row));
            match (evaluate(old), evaluate(new)) {
                (Ok(old), Ok(new)) => {
                    let (old, new) = (old == Some(true), new == Some(true));
                    if old || new {
                        matches.shapes.push(ShapeMatch { shape: *shape, old, new });
                    }
                }
                (Err(error), _) | (_, Err(error)) => matches.failed.push((*shape, error)),
            }
        }
    }
}
