//! The values that a subquery returns, with the number of rows that have each.

use std::hash::{BuildHasher, Hasher as _};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::catalog::Oid;
use crate::datum::{Datum, Order};
use crate::error::EvalError;
use crate::eval::{decode, order_of};
use crate::index_key::{hash_value, is_same};

/// Values of one type, each with a number of rows. A number may be negative in a set of changes.
#[derive(Clone, Debug)]
pub struct ValueSet {
    oid: Oid,
    order: Order,
    hasher: DefaultHashBuilder,
    values: HashTable<(Datum<'static>, i64)>,
    nulls: i64,
}

/// The change of the result of a subquery by a transaction.
#[derive(Clone, Debug)]
pub struct SetChange {
    /// Rows by value, as they were added.
    pub(crate) added: ValueSet,
    /// The values that have come or gone.
    pub(crate) values: ValueSet,
    /// Whether the result has a NULL now, and had none, or the other way round.
    pub(crate) has_null_changed: bool,
    /// Whether the result is empty now, and was not, or the other way round.
    pub(crate) has_emptiness_changed: bool,
}

impl SetChange {
    /// Number of values that have come or gone, without NULL.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no value has come or gone, but NULL.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Takes the change back from the result.
    pub fn undo(&self, set: &mut ValueSet) {
        set.unmerge(&self.added);
    }

    /// Makes the change again.
    pub fn redo(&self, set: &mut ValueSet) {
        set.merge(&self.added);
    }
}

impl ValueSet {
    pub(crate) fn new(oid: Oid) -> Self {
        let hasher = DefaultHashBuilder::default();
        Self { oid, order: order_of(oid), hasher, values: HashTable::new(), nulls: 0 }
    }

    /// Adds `rows` rows with a value in text form; `None` is NULL.
    ///
    /// # Errors
    /// If the text is not a value of the type.
    pub fn add(&mut self, value: Option<&[u8]>, rows: i64) -> Result<(), EvalError> {
        match value {
            None => self.nulls += rows,
            Some(text) => {
                let value = decode(text, 0, self.oid)?;
                self.add_value(&value, rows);
            }
        }
        Ok(())
    }

    /// Adds all rows of another set. Returns what has changed, unless the values are as before.
    pub fn merge(&mut self, changes: &Self) -> Option<SetChange> {
        if changes.is_empty() {
            return None;
        }
        let (nulls, was_empty) = (self.nulls, self.is_empty());
        self.nulls += changes.nulls;
        let mut values = changes.like();
        for (value, rows) in &changes.values {
            if self.add_value(value, *rows) {
                values.add_value(value, 1);
            }
        }
        let has_null_changed = (nulls > 0) != (self.nulls > 0);
        let has_changed = has_null_changed || !values.is_empty();
        has_changed.then(|| SetChange {
            added: changes.clone(),
            values,
            has_null_changed,
            has_emptiness_changed: was_empty != self.is_empty(),
        })
    }

    /// Takes away all rows of another set that was added.
    pub(crate) fn unmerge(&mut self, changes: &Self) {
        self.nulls -= changes.nulls;
        for (value, rows) in &changes.values {
            self.add_value(value, -rows);
        }
    }

    /// An empty set of the same type.
    fn like(&self) -> Self {
        Self { oid: self.oid, order: self.order, hasher: self.hasher.clone(), values: HashTable::new(), nulls: 0 }
    }

    /// The type of the values.
    pub(crate) fn oid(&self) -> Oid {
        self.oid
    }

    /// The values that are not NULL, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Datum<'static>> {
        self.values.iter().map(|(value, _)| value)
    }

    /// Number of different values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.nulls == 0
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.values.clear();
        self.nulls = 0;
    }

    /// `value IN (SELECT …)`; `None` is NULL.
    pub(crate) fn contains(&self, value: &Datum<'_>) -> Option<bool> {
        if self.is_empty() {
            return Some(false);
        }
        if value.is_null() {
            return None;
        }
        let found = self.values.find(self.hash(value), |(other, _)| is_same(other, value, self.order));
        match found {
            Some(_) => Some(true),
            None if self.nulls > 0 => None,
            None => Some(false),
        }
    }

    /// Returns whether the value is new, or is not there any more.
    fn add_value(&mut self, value: &Datum<'_>, rows: i64) -> bool {
        let hash = self.hash(value);
        let order = self.order;
        if let Ok(mut entry) = self.values.find_entry(hash, |(other, _)| is_same(other, value, order)) {
            let count = &mut entry.get_mut().1;
            *count += rows;
            if *count != 0 {
                return false;
            }
            entry.remove();
            return true;
        }
        if rows == 0 {
            return false;
        }
        let hasher = self.hasher.clone();
        let rehash = |(value, _): &(Datum<'static>, i64)| hash_of(&hasher, value, order);
        self.values.insert_unique(hash, (value.borrowed().into_owned(), rows), rehash);
        true
    }

    fn hash(&self, value: &Datum<'_>) -> u64 {
        hash_of(&self.hasher, value, self.order)
    }
}

fn hash_of(hasher: &DefaultHashBuilder, value: &Datum<'_>, order: Order) -> u64 {
    let mut state = hasher.build_hasher();
    hash_value(value, order, &mut state);
    state.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{INT8, TEXT};

    fn set(oid: Oid, rows: &[(Option<&str>, i64)]) -> ValueSet {
        let mut set = ValueSet::new(oid);
        rows.iter().for_each(|(value, rows)| set.add(value.map(str::as_bytes), *rows).unwrap());
        set
    }

    #[test]
    fn membership_is_that_of_sql() {
        let cases = [
            (set(TEXT, &[]), Some("a"), Some(false)),
            (set(TEXT, &[]), None, Some(false)),
            (set(TEXT, &[(Some("a"), 1)]), Some("a"), Some(true)),
            (set(TEXT, &[(Some("a"), 1)]), Some("b"), Some(false)),
            (set(TEXT, &[(Some("a"), 1)]), None, None),
            (set(TEXT, &[(Some("a"), 1), (None, 2)]), Some("b"), None),
            (set(TEXT, &[(Some("a"), 1), (None, 2)]), Some("a"), Some(true)),
        ];
        for (set, value, expected) in cases {
            let value = value.map_or(Datum::Null, Datum::text);
            assert_eq!(set.contains(&value), expected, "{set:?} {value:?}");
        }
    }

    #[test]
    fn merge_reports_values_that_come_and_go() {
        let mut values = set(INT8, &[(Some("1"), 2), (None, 1)]);
        let merge = |values: &mut ValueSet, rows: &[(Option<&str>, i64)]| {
            let change = values.merge(&set(INT8, rows))?;
            Some((change.values.len(), change.has_null_changed, change.has_emptiness_changed))
        };
        assert_eq!(merge(&mut values, &[(Some("1"), -1)]), None, "another row has it");
        assert_eq!(merge(&mut values, &[(Some("1"), -1)]), Some((1, false, false)));
        assert_eq!(merge(&mut values, &[(Some("01"), 1)]), Some((1, false, false)));
        let rows = [(Some("1"), 1), (Some("2"), 1), (Some("2"), -1)];
        assert_eq!(merge(&mut values, &rows), None, "no net change");
        assert_eq!(merge(&mut values, &[(None, -1)]), Some((0, true, false)));
        assert_eq!(merge(&mut values, &[(Some("1"), -2)]), Some((1, false, true)));
        assert_eq!(merge(&mut values, &[(Some("7"), 1), (Some("8"), 1)]), Some((2, false, true)));
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn rows_are_taken_away_again() {
        let mut values = set(INT8, &[(Some("1"), 2), (None, 1)]);
        let added = set(INT8, &[(Some("1"), -2), (Some("2"), 1), (None, -1)]);
        values.merge(&added).unwrap();
        values.unmerge(&added);
        assert_eq!(values.contains(&Datum::Int(1)), Some(true));
        assert_eq!((values.contains(&Datum::Int(2)), values.len()), (None, 1));
    }
}
