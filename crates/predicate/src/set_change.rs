//! The rows that a change of the result of a subquery concerns.

use crate::canonical::{MovedColumn, canonical_moved};
use crate::expr::Expr;
use crate::predicate::{Predicate, Subquery};
use crate::table::Table;
use crate::value_set::SetChange;

fn collect<'a>(expr: &Expr, changes: &'a [Option<SetChange>], columns: &mut Vec<MovedColumn<'a>>) {
    if let Expr::InSubquery(query) = expr
        && let Some(Some(change)) = changes.get(query.number as usize)
        && let Expr::Column(column, _) = query.left
    {
        columns.push(MovedColumn { column: column as usize, change });
    }
    expr.for_each_child(&mut |child| collect(child, changes, columns));
}

/// The rows of a table whose value of a condition may change with the results of subqueries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffectedRows {
    /// No row: the condition has no subquery whose result has changed.
    None,
    /// The rows with a value that has come or gone: the condition for a query of the table.
    Matching(String),
    /// Any row: a NULL in a result concerns every value that is not in it, or too many values have come or gone.
    Any,
}

/// `changes` are those of the results by the number of the subquery.
fn affected_rows(expr: &Expr, table: &Table, changes: &[Option<SetChange>], values_max: usize) -> AffectedRows {
    let mut columns = Vec::new();
    collect(expr, changes, &mut columns);
    if columns.is_empty() {
        return AffectedRows::None;
    }
    let values: usize = columns.iter().map(|column| column.change.len()).sum();
    if values > values_max || columns.iter().any(|column| column.change.has_null_changed) {
        return AffectedRows::Any;
    }
    AffectedRows::Matching(canonical_moved(&columns, table))
}

impl Predicate {
    /// The rows of the table that may change their value of the predicate. `changes` are those of the results by the number of
    /// the subquery; missing ones are none. With more than `values_max` values, any row may.
    #[must_use]
    pub fn affected_rows(&self, changes: &[Option<SetChange>], values_max: usize) -> AffectedRows {
        affected_rows(self.expr(), self.table(), changes, values_max)
    }
}

impl Subquery {
    /// The rows of its table that may come into the result or leave it, because the results of subqueries inside of it have
    /// changed. See [`Predicate::affected_rows`].
    #[must_use]
    pub fn affected_rows(&self, changes: &[Option<SetChange>], values_max: usize) -> AffectedRows {
        affected_rows(&self.condition, &self.table, changes, values_max)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::predicate::parse_with;
    use crate::table::{Collation, Column, ColumnType, Table};

    fn predicate(text: &str) -> Predicate {
        let table = |name: &str| {
            let columns = [("id", ColumnType::INT8), ("n", ColumnType::INT4), ("s", ColumnType::TEXT)];
            let columns = columns.map(|(name, column_type)| Column::new(name, column_type)).to_vec();
            Arc::new(Table::new("public", name, columns, Collation::c()))
        };
        parse_with(text, &[], &table("items"), &[table("groups")]).unwrap()
    }

    fn change(predicate: &Predicate, number: usize, before: &[Option<&str>], after: &[Option<&str>]) -> SetChange {
        let empty = || predicate.subqueries()[number].empty_set();
        let (mut set, mut added) = (empty(), empty());
        for value in before {
            set.add(value.map(str::as_bytes), 1).unwrap();
            added.add(value.map(str::as_bytes), -1).unwrap();
        }
        for value in after {
            added.add(value.map(str::as_bytes), 1).unwrap();
        }
        set.merge(&added).unwrap()
    }

    fn matching(text: &str) -> AffectedRows {
        AffectedRows::Matching(text.to_owned())
    }

    #[test]
    fn affected_rows_have_a_changed_value() {
        let found = predicate("n IN (SELECT n FROM groups) OR s IN (SELECT s FROM groups WHERE n = 1)");
        let changes = [Some(change(&found, 0, &[Some("1"), Some("2")], &[Some("2"), Some("3")])), None];
        let expected = [r#"("n" IN ('1'::int4, '3'::int4))"#, r#"("n" IN ('3'::int4, '1'::int4))"#].map(matching);
        let affected = found.affected_rows(&changes, 2);
        assert!(expected.contains(&affected), "{affected:?}");
        assert_eq!(found.affected_rows(&changes, 1), AffectedRows::Any);
        assert_eq!(found.affected_rows(&[None, None], 2), AffectedRows::None);
    }

    #[test]
    fn empty_result_affects_rows_with_null() {
        let found = predicate("s NOT IN (SELECT s FROM groups)");
        let changes = [Some(change(&found, 0, &[], &[Some("it's")]))];
        assert_eq!(found.affected_rows(&changes, 1), matching(r#"("s" IN ('it''s'::text) OR "s" IS NULL)"#));
    }

    #[test]
    fn null_in_a_result_affects_any_row() {
        let found = predicate("n NOT IN (SELECT n FROM groups)");
        let changes = [Some(change(&found, 0, &[Some("1")], &[Some("1"), None]))];
        assert_eq!(found.affected_rows(&changes, 9), AffectedRows::Any);
    }

    /// The inner result affects rows of the table of the subquery around it only.
    #[test]
    fn nested_result_affects_the_middle_table() {
        let found = predicate("n IN (SELECT n FROM groups WHERE s IN (SELECT s FROM groups))");
        let changes = [Some(change(&found, 0, &[], &[Some("a")]))];
        let [inner, middle] = found.subqueries() else { panic!("{found:?}") };
        assert_eq!(inner.affected_rows(&changes, 9), AffectedRows::None);
        assert_eq!(middle.affected_rows(&changes, 9), matching(r#"("s" IN ('a'::text) OR "s" IS NULL)"#));
        assert_eq!(found.affected_rows(&changes, 9), AffectedRows::None);
    }
}
