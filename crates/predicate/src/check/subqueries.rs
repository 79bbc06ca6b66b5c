//! `column IN (SELECT column FROM table WHERE …)`: the subquery has one table and does not refer to the outer one.

use std::sync::Arc;

use super::{Checked, Checker, Derived, Scope, boolean, sql_name, undefined};
use crate::ast::{ExprNode, SubqueryNode};
use crate::catalog::{BOOL, INT2, INT4, INT8, Oid, TEXT, VARCHAR, catalog, is_supported};
use crate::datum::Datum;
use crate::error::{PredicateError, PredicateErrorKind};
use crate::expr::{Expr, InSubquery};
use crate::table::Table;

/// Bound on the subqueries of a predicate, with those inside of others.
const SUBQUERIES_MAX: usize = 20;
/// Schema of a table without one.
const DEFAULT_SCHEMA: &str = "public";

/// A subquery with its condition.
#[derive(Debug)]
pub(crate) struct CheckedSubquery {
    pub(crate) table: Arc<Table>,
    pub(crate) column: usize,
    pub(crate) oid: Oid,
    pub(crate) condition: Expr,
}

/// Whether values of both types are equal exactly if their values here are.
fn are_comparable(left: Oid, right: Oid) -> bool {
    let both = |types: &[Oid]| types.contains(&left) && types.contains(&right);
    left == right || both(&[INT2, INT4, INT8]) || both(&[TEXT, VARCHAR])
}

impl Checker<'_> {
    pub(super) fn in_subquery(&mut self, at: usize, arg: &ExprNode, query: &SubqueryNode, negated: bool) -> Checked {
        let left = self.expression(arg)?;
        let Expr::Column(_, left_oid) = left.expr else {
            let message = "only a column is supported before IN (SELECT …)";
            return Err(PredicateError::unsupported(left.at, message));
        };
        let table = self.subquery_table(query)?;
        let inner = Scope { table: table.as_ref(), alias: query.alias.clone() };
        let outer = std::mem::replace(&mut self.scope, inner);
        self.outer.push(outer);
        let checked = self.select(query);
        self.scope = self.outer.pop().expect("the scope was pushed above");
        let (column, oid, collation, condition) = checked?;
        self.compare_types(at, left_oid, oid)?;
        self.need_determinism(at, oid, &left.collation.merge(collation))?;
        if self.subqueries.len() >= SUBQUERIES_MAX {
            let message = format!("more than {SUBQUERIES_MAX} subqueries");
            return Err(PredicateError::new(PredicateErrorKind::TooComplex, at, message));
        }
        let number = self.subqueries.len() as u32;
        self.subqueries.push(CheckedSubquery { table: Arc::clone(table), column, oid, condition });
        let found = Expr::InSubquery(Box::new(InSubquery { left: left.expr, number }));
        Ok(boolean(at, if negated { Expr::Not(Box::new(found)) } else { found }))
    }

    fn compare_types(&self, at: usize, left: Oid, right: Oid) -> Result<(), PredicateError> {
        let types = [left, right];
        if let Some(oid) = types.into_iter().find(|oid| !is_supported(*oid) || catalog().element(*oid).is_some()) {
            let message = format!("type {} is not supported in IN (SELECT …)", sql_name(oid));
            return Err(PredicateError::unsupported(at, message));
        }
        if are_comparable(left, right) {
            return Ok(());
        }
        let (left, right) = (sql_name(left), sql_name(right));
        let message = format!("IN (SELECT …) with values of types {left} and {right} is not supported");
        Err(PredicateError::unsupported(at, message))
    }
}

impl<'t> Checker<'t> {
    fn subquery_table(&self, query: &SubqueryNode) -> Result<&'t Arc<Table>, PredicateError> {
        let (schema, name) = match query.table.as_slice() {
            [name] => (DEFAULT_SCHEMA, name),
            [schema, name] => (&**schema, name),
            names => return Err(undefined(query.table_at, format!("unknown table {}", names.join(".")))),
        };
        let found = self.tables.iter().find(|table| *table.schema == *schema && *table.name == **name);
        found.ok_or_else(|| undefined(query.table_at, format!("unknown table {schema}.{name}")))
    }

    /// The column and the condition, in the scope of the subquery's table.
    fn select(&mut self, query: &SubqueryNode) -> Result<(usize, Oid, Derived, Expr), PredicateError> {
        let column = self.column(query.column_at, &query.column)?;
        let Expr::Column(number, oid) = column.expr else {
            return Err(undefined(query.column_at, "unknown column"));
        };
        let condition = match &query.condition {
            None => Expr::Const(Datum::Bool(true), BOOL),
            Some(condition) => {
                let typed = self.expression(condition)?;
                self.as_condition(typed, "WHERE")?.expr
            }
        };
        Ok((number as usize, oid, column.collation, condition))
    }
}
