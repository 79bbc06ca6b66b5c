//! The type checker: names, types, overloads and casts as in `src/backend/parser/parse_expr.c`.

mod arrays;
mod casts;
mod operators;
mod subqueries;

use std::sync::Arc;

pub(crate) use subqueries::CheckedSubquery;

use crate::ast::{ExprNode, NodeKind};
use crate::catalog::{BOOL, CastContext, INT4, INT8, NAME, NUMERIC, Oid, UNKNOWN, catalog, is_supported};
use crate::datum::{Datum, Order};
use crate::error::{PredicateError, PredicateErrorKind};
use crate::eval::order_of;
use crate::expr::Expr;
use crate::input::read_literal;
use crate::resolve::common_type;
use crate::table::{Collation, Table};

/// Bound on the parts of a checked expression: BETWEEN repeats its first operand.
const PARTS_MAX: usize = 100_000;

/// Where a predicate is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evaluator {
    /// This crate, outside of Postgres: what depends on a language is refused.
    Local,
    /// The server, with its collations.
    Server,
}

/// Checks a WHERE clause. `tables` are those of subqueries.
pub(crate) fn check(
    node: &ExprNode,
    table: &Table,
    tables: &[Arc<Table>],
    params: &[Option<&str>],
    evaluator: Evaluator,
) -> Result<(Expr, Vec<CheckedSubquery>), PredicateError> {
    let mut checker = Checker {
        evaluator,
        scope: Scope { table, alias: None },
        outer: Vec::new(),
        tables,
        subqueries: Vec::new(),
        params,
        param_types: vec![None; params.len()],
        parts: 0,
    };
    let typed = checker.expression(node)?;
    let expr = checker.as_condition(typed, "WHERE")?.expr;
    Ok((expr, checker.subqueries))
}

/// The collation that an expression has of itself (chapter "Collation Support" of Postgres' manual).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Derived {
    /// Not a text.
    None,
    Database,
    Explicit(Collation),
    Conflict,
}

impl Derived {
    fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, other) | (other, Self::None) => other,
            (Self::Conflict, _) | (_, Self::Conflict) => Self::Conflict,
            (Self::Database, other) | (other, Self::Database) => other,
            (left, right) if left == right => left,
            _ => Self::Conflict,
        }
    }
}

/// A checked expression with its type.
#[derive(Clone, Debug)]
struct Typed {
    expr: Expr,
    oid: Oid,
    at: usize,
    collation: Derived,
    /// Number of the parameter, for a literal that is one.
    param: Option<usize>,
}

type Checked = Result<Typed, PredicateError>;

/// The table whose columns an expression may use.
struct Scope<'t> {
    table: &'t Table,
    /// Replaces the name of the table.
    alias: Option<Box<str>>,
}

struct Checker<'t> {
    evaluator: Evaluator,
    scope: Scope<'t>,
    /// The scopes around a subquery.
    outer: Vec<Scope<'t>>,
    tables: &'t [Arc<Table>],
    subqueries: Vec<CheckedSubquery>,
    params: &'t [Option<&'t str>],
    /// Types that parameters were given by their context.
    param_types: Vec<Option<Oid>>,
    parts: usize,
}

/// A type's name in error messages.
fn sql_name(oid: Oid) -> String {
    let catalog = catalog();
    if let Some(element) = catalog.element(oid) {
        return format!("{}[]", sql_name(element));
    }
    match catalog.type_name(oid) {
        "int2" => "smallint",
        "int4" => "integer",
        "int8" => "bigint",
        "bool" => "boolean",
        "float4" => "real",
        "float8" => "double precision",
        "varchar" => "character varying",
        "bpchar" => "character",
        "timestamp" => "timestamp without time zone",
        "timestamptz" => "timestamp with time zone",
        "time" => "time without time zone",
        other => other,
    }
    .to_owned()
}

fn undefined(at: usize, message: impl Into<String>) -> PredicateError {
    PredicateError::new(PredicateErrorKind::Undefined, at, message)
}

fn wrong_type(at: usize, message: impl Into<String>) -> PredicateError {
    PredicateError::new(PredicateErrorKind::WrongType, at, message)
}

/// An unknown literal.
fn literal(at: usize, value: Option<&str>, param: Option<usize>) -> Typed {
    let datum = value.map_or(Datum::Null, Datum::text);
    Typed { expr: Expr::Const(datum, UNKNOWN), oid: UNKNOWN, at, collation: Derived::None, param }
}

fn boolean(at: usize, expr: Expr) -> Typed {
    Typed { expr, oid: BOOL, at, collation: Derived::None, param: None }
}

impl Scope<'_> {
    /// The number of a column, if the name is one of this table.
    fn position(&self, names: &[Box<str>]) -> Option<usize> {
        let own = |table: &str| match &self.alias {
            Some(alias) => *table == **alias,
            None => *table == *self.table.name,
        };
        match names {
            [column] => self.table.position(column),
            [table, column] if own(table) => self.table.position(column),
            [schema, table, column] if self.alias.is_none() && own(table) && **schema == *self.table.schema => {
                self.table.position(column)
            }
            _ => None,
        }
    }
}

impl Checker<'_> {
    fn expression(&mut self, node: &ExprNode) -> Checked {
        let at = node.at;
        self.parts += 1;
        if self.parts > PARTS_MAX {
            let message = format!("more than {PARTS_MAX} parts");
            return Err(PredicateError::new(PredicateErrorKind::TooComplex, at, message));
        }
        match &node.kind {
            NodeKind::Null => Ok(literal(at, None, None)),
            NodeKind::Bool(value) => Ok(boolean(at, Expr::Const(Datum::Bool(*value), BOOL))),
            NodeKind::Number(digits) => Self::number(at, digits),
            NodeKind::String(value) => Ok(literal(at, Some(value), None)),
            NodeKind::Param(number) => self.param(at, *number),
            NodeKind::Column(names) => self.column(at, names),
            NodeKind::Operator { name, left, right } => self.operator(at, name, left.as_deref(), right),
            NodeKind::And(items) => Ok(boolean(at, Expr::And(self.booleans(items, "AND")?))),
            NodeKind::Or(items) => Ok(boolean(at, Expr::Or(self.booleans(items, "OR")?))),
            NodeKind::Not(arg) => {
                let arg = self.expression(arg)?;
                Ok(boolean(at, Expr::Not(Box::new(self.as_condition(arg, "NOT")?.expr))))
            }
            NodeKind::IsNull { arg, negated } => self.is_null(at, arg, *negated),
            NodeKind::IsBool { arg, value, negated } => {
                let arg = self.expression(arg)?;
                let arg = self.as_condition(arg, "IS")?;
                Ok(boolean(at, Expr::IsBool(Box::new(arg.expr), *value, *negated)))
            }
            NodeKind::IsDistinct { left, right, negated } => self.is_distinct(at, left, right, *negated),
            NodeKind::Between { arg, low, high, negated, symmetric } => {
                self.between(at, [arg, low, high], *negated, *symmetric)
            }
            NodeKind::In { arg, list, negated } => self.is_in(at, arg, list, *negated),
            NodeKind::InSubquery { arg, query, negated } => self.in_subquery(at, arg, query, *negated),
            NodeKind::Quantified { left, operator, any, right } => {
                let left = self.expression(left)?;
                let right = self.expression(right)?;
                self.quantified(at, left, operator, *any, right)
            }
            NodeKind::Cast { arg, target } => self.cast(at, arg, target),
            NodeKind::Call { name, args } => self.call(at, name, args),
            NodeKind::Coalesce(args) => {
                let (args, oid, collation) = self.common(at, args, "COALESCE")?;
                Ok(Typed { expr: Expr::Coalesce(args, oid), oid, at, collation, param: None })
            }
            NodeKind::Greatest(args) => self.extreme(at, args, true),
            NodeKind::Least(args) => self.extreme(at, args, false),
            NodeKind::NullIf(left, right) => self.null_if(at, left, right),
            NodeKind::Array(items) => self.array(at, items, None),
            NodeKind::Subscript { arg, subscripts } => self.subscript(at, arg, subscripts),
            NodeKind::Row(_) => Err(PredicateError::unsupported(at, "a row is not supported")),
        }
    }

    /// An integer is int4 if it fits, then int8, then numeric.
    fn number(at: usize, digits: &str) -> Checked {
        let (datum, oid) = match digits.parse::<i64>() {
            Ok(value) => (Datum::Int(value), if i32::try_from(value).is_ok() { INT4 } else { INT8 }),
            Err(_) => (Self::read_literal(at, digits, NUMERIC)?, NUMERIC),
        };
        Ok(Typed { expr: Expr::Const(datum, oid), oid, at, collation: Derived::None, param: None })
    }

    /// Reads a literal as a value of a type.
    fn read_literal(at: usize, text: &str, oid: Oid) -> Result<Datum<'static>, PredicateError> {
        use crate::error::EvalError;
        if !is_supported(oid) {
            return Err(PredicateError::unsupported(at, format!("type {} is not supported", sql_name(oid))));
        }
        read_literal(text, oid).map_err(|error| {
            let kind = match error {
                EvalError::Unsupported(_) | EvalError::UnknownForm { .. } => PredicateErrorKind::Unsupported,
                _ => PredicateErrorKind::BadLiteral,
            };
            PredicateError::new(kind, at, error.to_string())
        })
    }

    fn param(&self, at: usize, number: usize) -> Checked {
        match number.checked_sub(1).and_then(|index| self.params.get(index)) {
            // No value of Postgres has a zero byte.
            Some(Some(value)) if value.contains('\0') => Err(PredicateError::new(
                PredicateErrorKind::BadParameter,
                at,
                format!("parameter ${number}: invalid byte sequence for encoding \"UTF8\": 0x00"),
            )),
            Some(value) => Ok(literal(at, *value, Some(number - 1))),
            None => Err(PredicateError::new(
                PredicateErrorKind::BadParameter,
                at,
                format!("parameter ${number} was not provided"),
            )),
        }
    }

    fn column(&self, at: usize, names: &[Box<str>]) -> Checked {
        let Some(index) = self.scope.position(names) else {
            if self.outer.iter().any(|scope| scope.position(names).is_some()) {
                let message =
                    format!("a subquery that refers to {} of the outer query is not supported", names.join("."));
                return Err(PredicateError::unsupported(at, message));
            }
            return Err(undefined(at, format!("unknown reference {}", names.join("."))));
        };
        let column = &self.scope.table.columns[index];
        let oid = column.column_type.oid();
        let number = u32::try_from(index).map_err(|_| undefined(at, "the table has too many columns"))?;
        let collation = match (&column.collation, oid) {
            _ if !catalog().is_collatable(oid) => Derived::None,
            (Some(collation), _) => Derived::Explicit(collation.clone()),
            (None, NAME) => Derived::Explicit(Collation::c()),
            (None, _) => Derived::Database,
        };
        Ok(Typed { expr: Expr::Column(number, oid), oid, at, collation, param: None })
    }

    fn booleans(&mut self, items: &[ExprNode], what: &str) -> Result<Box<[Expr]>, PredicateError> {
        let mut args = Vec::with_capacity(items.len());
        for item in items {
            let item = self.expression(item)?;
            args.push(self.as_condition(item, what)?.expr);
        }
        Ok(args.into())
    }

    /// The argument of `what` as a boolean.
    fn as_condition(&mut self, value: Typed, what: &str) -> Checked {
        if value.oid != BOOL && value.oid != UNKNOWN {
            let message = format!("argument of {what} must be type boolean, not type {}", sql_name(value.oid));
            return Err(wrong_type(value.at, message));
        }
        self.coerce(value, BOOL, CastContext::Assignment)
    }

    /// Values of all types may be compared with NULL, also of types that are not supported.
    fn is_null(&mut self, at: usize, arg: &ExprNode, negated: bool) -> Checked {
        let arg = self.expression(arg)?;
        Ok(boolean(at, Expr::IsNull(Box::new(arg.expr), negated)))
    }

    /// Casts all arguments to their common type.
    fn common(
        &mut self,
        at: usize,
        nodes: &[ExprNode],
        what: &str,
    ) -> Result<(Box<[Expr]>, Oid, Derived), PredicateError> {
        let mut typed = Vec::with_capacity(nodes.len());
        for node in nodes {
            typed.push(self.expression(node)?);
        }
        let types: Vec<Oid> = typed.iter().map(|value| value.oid).collect();
        let Some(oid) = common_type(&types) else {
            let names: Vec<String> = types.iter().take(8).map(|oid| sql_name(*oid)).collect();
            return Err(wrong_type(at, format!("{what} types {} cannot be matched", names.join(", "))));
        };
        let mut collation = Derived::None;
        let mut args = Vec::with_capacity(typed.len());
        for value in typed {
            let value = self.coerce(value, oid, CastContext::Implicit)?;
            collation = collation.merge(value.collation);
            args.push(value.expr);
        }
        Ok((args.into(), oid, collation))
    }

    fn extreme(&mut self, at: usize, nodes: &[ExprNode], greatest: bool) -> Checked {
        let (args, oid, collation) = self.common(at, nodes, if greatest { "GREATEST" } else { "LEAST" })?;
        if !is_supported(oid) {
            return Err(PredicateError::unsupported(at, format!("type {} is not supported", sql_name(oid))));
        }
        self.need_byte_order(at, oid, &collation)?;
        Ok(Typed { expr: Expr::Extreme(greatest, order_of(oid), args, oid), oid, at, collation, param: None })
    }

    fn named_collation<'c>(&'c self, derived: &'c Derived) -> Option<&'c Collation> {
        match derived {
            Derived::Explicit(collation) => Some(collation),
            _ => Some(&self.scope.table.database_collation),
        }
    }

    fn conflict(at: usize) -> PredicateError {
        PredicateError::new(
            PredicateErrorKind::Ambiguous,
            at,
            "could not determine which collation to use for string comparison",
        )
    }

    /// Refuses an order that depends on a language.
    fn need_byte_order(&self, at: usize, oid: Oid, derived: &Derived) -> Result<(), PredicateError> {
        self.need(at, oid, derived, "its order", Collation::orders_by_bytes)
    }

    /// Refuses texts that are equal though their bytes are not.
    fn need_determinism(&self, at: usize, oid: Oid, derived: &Derived) -> Result<(), PredicateError> {
        self.need(at, oid, derived, "its equality", Collation::is_deterministic)
    }

    fn need(
        &self,
        at: usize,
        oid: Oid,
        derived: &Derived,
        what: &str,
        test: impl Fn(&Collation) -> bool,
    ) -> Result<(), PredicateError> {
        let text = catalog().is_collatable(oid)
            || catalog().element(oid).is_some_and(|element| catalog().is_collatable(element));
        if !text {
            return Ok(());
        }
        if *derived == Derived::Conflict {
            return Err(Self::conflict(at));
        }
        match self.named_collation(derived) {
            Some(collation) if self.evaluator == Evaluator::Local && !test(collation) => {
                let name = collation.name();
                Err(PredicateError::unsupported(
                    at,
                    format!("collation \"{name}\" is not supported here: {what} is known to the server only"),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// The order of a comparison by the types of its operands.
fn comparison_order(oid: Oid) -> Order {
    order_of(oid)
}
