//! The subqueries of a predicate.

use std::sync::Arc;

use crate::canonical::canonical_subquery;
use crate::datum::Datum;
use crate::error::{EvalError, PredicateError};
use crate::eval::{RowWithSets, TextFormatRow, evaluate};
use crate::parser::tables_in_subqueries;
use crate::predicate::{Predicate, Subquery, TextValues, collect_columns};
use crate::table::Table;
use crate::value_set::ValueSet;

/// Names of the tables in the subqueries of a text, each once: parts of a name, such as schema and table.
///
/// # Errors
/// If the text is no expression.
pub fn subquery_tables(text: &str) -> Result<Vec<Vec<Box<str>>>, PredicateError> {
    // Few predicates have subqueries: the others are read once.
    let may_have_one = text.as_bytes().windows(6).any(|word| word.eq_ignore_ascii_case(b"select"));
    if may_have_one { tables_in_subqueries(text) } else { Ok(Vec::new()) }
}

impl Subquery {
    /// The table.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Number of the selected column, counted from zero.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column
    }

    /// Numbers of the columns that the subquery reads, ascending.
    #[must_use]
    pub fn columns(&self) -> Vec<usize> {
        let mut columns = vec![self.column];
        collect_columns(&self.condition, &mut columns);
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// An empty set of values.
    #[must_use]
    pub fn empty_set(&self) -> ValueSet {
        ValueSet::new(self.oid)
    }

    /// A predicate without subqueries that is true for every row of the result.
    #[must_use]
    pub fn candidates(&self) -> Predicate {
        Predicate::new(self.condition.without_subqueries(), &self.table, Vec::new())
    }

    /// Whether a row of the table is in the result. `sets` are the results of all subqueries of the predicate.
    ///
    /// # Errors
    /// [`EvalError`] where Postgres raises an error, and where `row` is not a row of the table.
    pub fn has(&self, row: &TextValues<'_>, sets: &[ValueSet]) -> Result<bool, EvalError> {
        let row = RowWithSets { row: &TextFormatRow(row), sets };
        Ok(matches!(evaluate(&self.condition, &row)?, Datum::Bool(true)))
    }

    /// The text of the query. `all` are the subqueries of the predicate.
    #[must_use]
    pub fn text(&self, all: &[Self]) -> String {
        canonical_subquery(self, all)
    }
}
