//! The rows that a change of the result of a subquery concerns.

use crate::canonical::{MovedColumn, canonical_moved};
use crate::datum::Datum;
use crate::error::EvalError;
use crate::eval::{RowSource as _, TextFormatRow};
use crate::expr::Expr;
use crate::predicate::{Predicate, TextValues};
use crate::value_set::SetChange;

fn collect<'a>(expr: &Expr, changes: &'a [Option<SetChange>], columns: &mut Vec<MovedColumn<'a>>) {
    if let Expr::InSubquery(query) = expr
        && let Some(Some(change)) = changes.get(query.number as usize)
        && let Expr::Column(column, oid) = query.left
    {
        columns.push(MovedColumn { column: column as usize, oid, change });
    }
    expr.for_each_child(&mut |child| collect(child, changes, columns));
}

impl Predicate {
    /// Whether the rows whose value of the predicate changes with the results of subqueries are those with a value that has
    /// come or gone. `changes` are the changes of all results by the number of the subquery.
    ///
    /// Otherwise all rows may change theirs: the result of a subquery inside of another one moves rows of that one's table,
    /// and a NULL in a result concerns every value that is not in it.
    #[must_use]
    pub fn moves_by_value(&self, changes: &[Option<SetChange>]) -> bool {
        !self.has_nested_subquery() && changes.iter().flatten().all(|change| !change.has_null_changed)
    }

    /// Whether a subquery is inside of another one.
    #[must_use]
    pub fn has_nested_subquery(&self) -> bool {
        self.subqueries().iter().any(|subquery| subquery.condition.has_subquery())
    }

    /// The condition of the rows that may change, for a query of the table. See [`Self::moves_by_value`].
    #[must_use]
    pub fn moved_rows(&self, changes: &[Option<SetChange>]) -> String {
        let mut columns = Vec::new();
        collect(self.expr(), changes, &mut columns);
        canonical_moved(&columns, self.table())
    }

    /// Whether a row may change. See [`Self::moves_by_value`].
    ///
    /// # Errors
    /// [`EvalError`] where `row` is not a row of the table.
    pub fn may_move(&self, row: &TextValues<'_>, changes: &[Option<SetChange>]) -> Result<bool, EvalError> {
        let mut columns = Vec::new();
        collect(self.expr(), changes, &mut columns);
        for MovedColumn { column, oid, change } in columns {
            let may_move = match TextFormatRow(row).column(column, oid)? {
                Datum::Null => change.has_emptiness_changed,
                value => change.values.contains(&value) == Some(true),
            };
            if may_move {
                return Ok(true);
            }
        }
        Ok(false)
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

    #[test]
    fn moved_rows_are_found_by_value() {
        let found = predicate("n IN (SELECT n FROM groups) OR s IN (SELECT s FROM groups WHERE n = 1)");
        let changes = [Some(change(&found, 0, &[Some("1"), Some("2")], &[Some("2"), Some("3")])), None];
        assert!(found.moves_by_value(&changes));
        let text = found.moved_rows(&changes);
        let expected = [r#"("n" IN ('1'::int4, '3'::int4))"#, r#"("n" IN ('3'::int4, '1'::int4))"#];
        assert!(expected.contains(&text.as_str()), "{text}");
        for (n, may_move) in [(Some("1"), true), (Some("2"), false), (Some("3"), true), (None, false)] {
            let row = [Some("7"), n, Some("a")].map(|value| value.map(str::as_bytes));
            assert_eq!(found.may_move(&row, &changes), Ok(may_move), "{n:?}");
        }
    }

    #[test]
    fn empty_result_moves_rows_with_null() {
        let found = predicate("s NOT IN (SELECT s FROM groups)");
        let changes = [Some(change(&found, 0, &[], &[Some("it's")]))];
        assert!(found.moves_by_value(&changes));
        assert_eq!(found.moved_rows(&changes), r#"("s" IN ('it''s'::text) OR "s" IS NULL)"#);
        assert_eq!(found.may_move(&[Some(b"7"), None, None], &changes), Ok(true));
    }

    #[test]
    fn nulls_and_nested_subqueries_concern_all_rows() {
        let found = predicate("n NOT IN (SELECT n FROM groups)");
        let changes = [Some(change(&found, 0, &[Some("1")], &[Some("1"), None]))];
        assert!(!found.moves_by_value(&changes));
        let nested = predicate("n IN (SELECT n FROM groups WHERE s IN (SELECT s FROM groups))");
        let changes = [Some(change(&nested, 0, &[], &[Some("a")])), None];
        assert!(!nested.moves_by_value(&changes));
    }
}
