//! A checked predicate of one table.

use std::sync::Arc;

use crate::ast::ExprNode;
use crate::canonical::canonical;
use crate::catalog::{BOOL, Oid};
use crate::check::{CheckedSubquery, Evaluator, check};
use crate::datum::Datum;
use crate::error::{EvalError, PredicateError, PredicateErrorKind};
use crate::eval::{RowSource, RowWithSets, TextFormatRow, evaluate};
use crate::expr::Expr;
use crate::fold::fold;
use crate::index_key::{IndexConjunct, index_conjuncts, is_index_conjunct};
use crate::parser::parse_expression;
use crate::table::Table;
use crate::value_set::ValueSet;

/// Bound on the length of a predicate's text in bytes.
const TEXT_LEN_MAX: usize = 1 << 20;

/// Values of a row in Postgres' text format and in the order of the table's columns; `None` is NULL.
pub type TextValues<'a> = [Option<&'a [u8]>];

/// A WHERE clause that is checked against a table.
#[derive(Clone, Debug)]
pub struct Predicate {
    table: Arc<Table>,
    expr: Expr,
    canonical: Arc<str>,
    /// Few predicates have subqueries: the others need no room for them.
    subqueries: Option<Arc<Vec<Subquery>>>,
}

/// `SELECT column FROM table WHERE condition`, whose result is a [`ValueSet`].
#[derive(Clone, Debug)]
pub struct Subquery {
    pub(crate) table: Arc<Table>,
    pub(crate) column: usize,
    pub(crate) oid: Oid,
    pub(crate) condition: Expr,
}

/// Predicates above these bounds are parsed again from their canonical text, which is longer and deeper.
const PLAIN_HEIGHT: u16 = 30;
const PLAIN_LEN: usize = 1 << 16;

/// Parses `text` as the WHERE clause of a query on `table`. `params` are the values of `$1`, `$2`, … in text form.
///
/// # Errors
/// [`PredicateError`] names the part that Postgres would refuse, or that cannot be evaluated exactly outside of Postgres.
pub fn parse(text: &str, params: &[Option<&str>], table: &Arc<Table>) -> Result<Predicate, PredicateError> {
    parse_with(text, params, table, &[])
}

/// [`parse`] for a text with subqueries on `tables`, which [`crate::subquery_tables`] names.
///
/// # Errors
/// As those of [`parse`].
pub fn parse_with(
    text: &str,
    params: &[Option<&str>],
    table: &Arc<Table>,
    tables: &[Arc<Table>],
) -> Result<Predicate, PredicateError> {
    let (predicate, height) = parse_once(text, params, table, tables)?;
    if height > PLAIN_HEIGHT || predicate.canonical.len() > PLAIN_LEN {
        let again = parse_once(&predicate.canonical, &[], table, tables);
        again.map_err(|error| PredicateError { offset: None, ..error })?;
    }
    Ok(predicate)
}

fn parse_once(
    text: &str,
    params: &[Option<&str>],
    table: &Arc<Table>,
    tables: &[Arc<Table>],
) -> Result<(Predicate, u16), PredicateError> {
    let node = parse_bounded(text)?;
    let (checked, subqueries) = check(&node, table, tables, params, Evaluator::Local)?;
    let expr = fold_checked(checked)?;
    let fold_condition = |checked: CheckedSubquery| -> Result<Subquery, PredicateError> {
        let CheckedSubquery { table, column, oid, condition } = checked;
        Ok(Subquery { table, column, oid, condition: fold_checked(condition)? })
    };
    let subqueries = subqueries.into_iter().map(fold_condition).collect::<Result<_, PredicateError>>()?;
    Ok((Predicate::new(expr, table, subqueries), node.height))
}

fn parse_bounded(text: &str) -> Result<ExprNode, PredicateError> {
    if text.len() > TEXT_LEN_MAX {
        let message = format!("the predicate has {} bytes, at most {TEXT_LEN_MAX} are accepted", text.len());
        return Err(PredicateError::without_location(PredicateErrorKind::TooComplex, message));
    }
    parse_expression(text)
}

/// A WHERE clause that Postgres evaluates, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPredicate {
    canonical: String,
    columns: Vec<usize>,
}

/// [`parse`] for a predicate that only the server evaluates: orders, `lower()` and ILIKE are accepted for all collations.
///
/// # Errors
/// As those of [`parse`], except that the server finds the errors of constant parts.
pub fn parse_for_server(
    text: &str,
    params: &[Option<&str>],
    table: &Arc<Table>,
) -> Result<ServerPredicate, PredicateError> {
    let node = parse_bounded(text)?;
    // Not folded: constant parts depend on collations as well.
    let (expr, _) = check(&node, table, &[], params, Evaluator::Server)?;
    let mut columns = Vec::new();
    collect_columns(&expr, &mut columns);
    columns.sort_unstable();
    columns.dedup();
    Ok(ServerPredicate { canonical: canonical(&expr, table, &[]), columns })
}

impl ServerPredicate {
    /// A WHERE clause for Postgres, made from the parsed text, with parameters as literals.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Numbers of the columns that the predicate reads, ascending.
    #[must_use]
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }
}

fn fold_checked(expr: Expr) -> Result<Expr, PredicateError> {
    fold(expr).map_err(|(error, at)| {
        let kind = match error {
            EvalError::Unsupported(_) | EvalError::UnknownForm { .. } => PredicateErrorKind::Unsupported,
            _ => PredicateErrorKind::ConstantFails,
        };
        PredicateError { kind, offset: at, message: error.to_string() }
    })
}

pub(crate) fn collect_columns(expr: &Expr, columns: &mut Vec<usize>) {
    if let Expr::Column(index, _) = expr {
        columns.push(*index as usize);
    }
    expr.for_each_child(&mut |child| collect_columns(child, columns));
}

impl Predicate {
    pub(crate) fn new(expr: Expr, table: &Arc<Table>, subqueries: Vec<Subquery>) -> Self {
        let canonical = canonical(&expr, table, &subqueries).into();
        let subqueries = (!subqueries.is_empty()).then(|| Arc::new(subqueries));
        Self { table: Arc::clone(table), canonical, expr, subqueries }
    }

    /// The predicate of a query without WHERE.
    #[must_use]
    pub fn always_true(table: &Arc<Table>) -> Self {
        Self::new(Expr::Const(Datum::Bool(true), BOOL), table, Vec::new())
    }

    /// The value of the predicate for a row; `None` is NULL, for which WHERE drops the row.
    ///
    /// # Errors
    /// [`EvalError`] where Postgres raises an error, and where `row` is not a row of the table.
    pub fn evaluate(&self, row: &TextValues<'_>) -> Result<Option<bool>, EvalError> {
        self.evaluate_row(&TextFormatRow(row))
    }

    pub(crate) fn evaluate_row(&self, row: &dyn RowSource) -> Result<Option<bool>, EvalError> {
        Ok(match evaluate(&self.expr, row)? {
            Datum::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// The value of a predicate with subqueries. `sets` are the results of [`Self::subqueries`].
    ///
    /// # Errors
    /// As those of [`Self::evaluate`].
    pub fn evaluate_with(&self, row: &TextValues<'_>, sets: &[ValueSet]) -> Result<Option<bool>, EvalError> {
        self.evaluate_row(&RowWithSets { row: &TextFormatRow(row), sets })
    }

    /// The subqueries, with those inside of others.
    #[must_use]
    pub fn subqueries(&self) -> &[Subquery] {
        self.subqueries.as_deref().map_or(&[], Vec::as_slice)
    }

    /// A predicate without subqueries that is true in every row for which this one is.
    #[must_use]
    pub fn candidates(&self) -> Self {
        Self::new(self.expr.without_subqueries(), &self.table, Vec::new())
    }

    /// A text of the same meaning, equal for predicates that differ only in spelling, with parameters as literals. It
    /// is a valid WHERE clause for Postgres.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// The canonical text, shared with this predicate.
    #[must_use]
    pub fn shared_text(&self) -> Arc<str> {
        Arc::clone(&self.canonical)
    }

    /// Shares an equal text in place of the predicate's own.
    #[must_use]
    pub fn with_text(mut self, text: &Arc<str>) -> Self {
        if *text == self.canonical {
            self.canonical = Arc::clone(text);
        }
        self
    }

    /// Numbers of the columns that the predicate reads, ascending.
    #[must_use]
    pub fn columns(&self) -> Vec<usize> {
        let mut columns = Vec::new();
        collect_columns(&self.expr, &mut columns);
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    pub(crate) fn expr(&self) -> &Expr {
        &self.expr
    }

    /// The table of the predicate.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The value, if no row changes it: `Some(None)` is NULL.
    #[must_use]
    pub fn constant(&self) -> Option<Option<bool>> {
        self.expr.as_bool()
    }

    /// Conditions `column = constant` and the like, each of which is true in every row for which the predicate is.
    #[must_use]
    pub fn index_conjuncts(&self) -> Vec<IndexConjunct> {
        index_conjuncts(&self.expr)
    }

    /// Whether the predicate is one of [`Self::index_conjuncts`] and nothing else.
    pub(crate) fn is_index_conjunct(&self) -> bool {
        is_index_conjunct(&self.expr)
    }
}
