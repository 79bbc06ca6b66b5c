//! A checked predicate of one table.

use std::sync::Arc;

use crate::error::{EvalError, PredicateError, PredicateErrorKind};
use crate::index_key::IndexConjunct;
use crate::table::Table;

/// Values of a row in Postgres' text format and in the order of the table's columns; `None` is NULL.
pub type TextValues<'a> = [Option<&'a [u8]>];

/// A WHERE clause that is checked against a table.
#[derive(Clone, Debug)]
pub struct Predicate {
    table: Arc<Table>,
    canonical: Box<str>,
    columns: Box<[usize]>,
}

/// Parses `text` as the WHERE clause of a query on `table`. `params` are the values of `$1`, `$2`, … in text form.
///
/// # Errors
/// [`PredicateError`] names what Postgres would refuse, and what cannot be evaluated exactly outside of Postgres.
pub fn parse(text: &str, params: &[Option<&str>], table: &Arc<Table>) -> Result<Predicate, PredicateError> {
    if let [Some(first), ..] = params {
        return Err(PredicateError::new(
            PredicateErrorKind::BadParameter,
            0,
            format!("parameters are not supported yet: {first}"),
        ));
    }
    match text {
        "true" => Ok(Predicate::always_true(table)),
        "" => Err(PredicateError::without_location(PredicateErrorKind::Syntax, "empty predicate")),
        _ => Err(PredicateError::unsupported(0, format!("not supported yet: {text}"))),
    }
}

impl Predicate {
    /// The predicate of a query without WHERE.
    #[must_use]
    pub fn always_true(table: &Arc<Table>) -> Self {
        Self { table: Arc::clone(table), canonical: "true".into(), columns: [].into() }
    }

    /// The value of the predicate for a row; `None` is NULL, for which WHERE drops the row.
    ///
    /// # Errors
    /// [`EvalError`] where Postgres raises an error, and where `row` is not a row of the table.
    pub fn evaluate(&self, row: &TextValues<'_>) -> Result<Option<bool>, EvalError> {
        let _ = row;
        Ok(Some(true))
    }

    /// A text of the same meaning, equal for predicates that differ only in spelling, with parameters as literals. It
    /// is a valid WHERE clause for Postgres.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Numbers of the columns that the predicate reads, ascending.
    #[must_use]
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The table of the predicate.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Conditions `column = constant` and the like, each of which is true in every row for which the predicate is.
    #[must_use]
    pub fn index_conjuncts(&self) -> Vec<IndexConjunct> {
        Vec::new()
    }
}
