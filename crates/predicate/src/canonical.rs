//! The text of a checked expression: every cast and parenthesis is written, so that Postgres reads it in one way.

use std::fmt::Write;

use crate::catalog::{Oid, catalog};
use crate::datum::Datum;
use crate::expr::{BuiltinCall, ElementOperator, Expr, ExprSubscript, Form};
use crate::output::to_text;
use crate::predicate::Subquery;
use crate::table::Table;
use crate::value_set::SetChange;

/// Writes an expression on the table's columns.
pub(crate) fn canonical(expr: &Expr, table: &Table, subqueries: &[Subquery]) -> String {
    let mut writer = Writer { table, subqueries, out: String::new() };
    writer.expr(expr);
    writer.out
}

/// Writes a subquery.
pub(crate) fn canonical_subquery(subquery: &Subquery, subqueries: &[Subquery]) -> String {
    let mut writer = Writer { table: &subquery.table, subqueries, out: String::new() };
    writer.subquery(subquery);
    writer.out
}

/// A column before `IN (SELECT …)` whose result has changed.
pub(crate) struct MovedColumn<'a> {
    pub(crate) column: usize,
    pub(crate) change: &'a SetChange,
}

/// Writes the condition of rows with a value in a set of changes, or with NULL if it counts.
pub(crate) fn canonical_moved(columns: &[MovedColumn<'_>], table: &Table) -> String {
    let mut writer = Writer { table, subqueries: &[], out: String::new() };
    let mut separator = "(";
    for MovedColumn { column, change } in columns {
        let name = table.columns[*column].name();
        let mut list = change.values.values().peekable();
        if list.peek().is_some() {
            writer.out.push_str(separator);
            writer.quoted(name, '"');
            let mut before = " IN (";
            for value in list {
                writer.out.push_str(before);
                writer.constant(value, change.values.oid());
                before = ", ";
            }
            writer.out.push(')');
            separator = " OR ";
        }
        if change.has_emptiness_changed {
            writer.out.push_str(separator);
            writer.quoted(name, '"');
            writer.out.push_str(" IS NULL");
            separator = " OR ";
        }
    }
    writer.out.push_str(if separator == "(" { "false" } else { ")" });
    writer.out
}

struct Writer<'t> {
    table: &'t Table,
    subqueries: &'t [Subquery],
    out: String,
}

fn type_name(oid: Oid) -> String {
    match catalog().element(oid) {
        Some(element) => format!("{}[]", catalog().type_name(element)),
        None => catalog().type_name(oid).to_owned(),
    }
}

impl<'t> Writer<'t> {
    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.out.write_fmt(arguments).expect("writing to a string does not fail");
    }

    fn quoted(&mut self, text: &str, quote: char) {
        self.out.push(quote);
        for letter in text.chars() {
            if letter == quote {
                self.out.push(quote);
            }
            self.out.push(letter);
        }
        self.out.push(quote);
    }

    fn list(&mut self, items: &[Expr], separator: &str) {
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.out.push_str(separator);
            }
            self.expr(item);
        }
    }

    fn parenthesised(&mut self, items: &[Expr], separator: &str) {
        self.out.push('(');
        self.list(items, separator);
        self.out.push(')');
    }

    fn pair(&mut self, left: &Expr, operator: &str, right: &Expr) {
        self.out.push('(');
        self.expr(left);
        self.push(format_args!(" {operator} "));
        self.expr(right);
        self.out.push(')');
    }

    fn suffixed(&mut self, arg: &Expr, suffix: &str) {
        self.out.push('(');
        self.expr(arg);
        self.push(format_args!(" {suffix})"));
    }

    fn cast(&mut self, arg: &Expr, oid: Oid) {
        self.out.push('(');
        self.expr(arg);
        self.push(format_args!(")::{}", type_name(oid)));
    }

    fn constant(&mut self, value: &Datum<'_>, oid: Oid) {
        match value {
            Datum::Null => self.push(format_args!("NULL::{}", type_name(oid))),
            Datum::Bool(value) => self.push(format_args!("{value}")),
            value => {
                let text = to_text(value, oid);
                if text.contains('\\') {
                    // Has one meaning, whatever `standard_conforming_strings` is.
                    self.out.push('E');
                    self.quoted(&text.replace('\\', "\\\\"), '\'');
                } else {
                    self.quoted(&text, '\'');
                }
                self.push(format_args!("::{}", type_name(oid)));
            }
        }
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Const(value, oid) => self.constant(value, *oid),
            Expr::Column(index, _) => {
                let table = self.table;
                self.quoted(table.columns[*index as usize].name(), '"');
            }
            Expr::Relabel(arg, oid) => self.cast(arg, *oid),
            Expr::Compare(operator, _, pair) => self.pair(&pair.0, operator.symbol(), &pair.1),
            Expr::Call(call) => self.call(call),
            Expr::And(args) => self.parenthesised(args, " AND "),
            Expr::Or(args) => self.parenthesised(args, " OR "),
            Expr::Not(arg) => {
                self.out.push_str("(NOT ");
                self.expr(arg);
                self.out.push(')');
            }
            Expr::IsNull(arg, negated) => self.suffixed(arg, if *negated { "IS NOT NULL" } else { "IS NULL" }),
            Expr::IsBool(arg, value, negated) => {
                let not = if *negated { "NOT " } else { "" };
                let word = value.map_or("UNKNOWN", |value| if value { "TRUE" } else { "FALSE" });
                self.suffixed(arg, &format!("IS {not}{word}"));
            }
            Expr::IsDistinct(_, pair, negated) => {
                self.pair(&pair.0, if *negated { "IS NOT DISTINCT FROM" } else { "IS DISTINCT FROM" }, &pair.1);
            }
            Expr::Quantified(quantified) => {
                let symbol = match quantified.operator {
                    ElementOperator::Compare(operator, _) => operator.symbol(),
                    ElementOperator::Call(_, symbol) => symbol,
                };
                self.out.push('(');
                self.expr(&quantified.left);
                self.push(format_args!(" {symbol} {} (", if quantified.any { "ANY" } else { "ALL" }));
                self.expr(&quantified.right);
                self.out.push_str("))");
            }
            Expr::InSubquery(query) => {
                self.out.push('(');
                self.expr(&query.left);
                self.out.push_str(" IN (");
                if let Some(subquery) = self.subqueries.get(query.number as usize) {
                    self.subquery(subquery);
                }
                self.out.push_str("))");
            }
            Expr::Coalesce(args, _) => self.function("COALESCE", args),
            Expr::Extreme(greatest, _, args, _) => self.function(if *greatest { "GREATEST" } else { "LEAST" }, args),
            Expr::NullIf(_, pair, _) => {
                self.out.push_str("NULLIF(");
                self.expr(&pair.0);
                self.out.push_str(", ");
                self.expr(&pair.1);
                self.out.push(')');
            }
            Expr::Array(items, oid, _) => {
                self.out.push_str("(ARRAY[");
                self.list(items, ", ");
                self.push(format_args!("])::{}", type_name(*oid)));
            }
            Expr::Subscript(subscript) => {
                self.out.push('(');
                self.expr(&subscript.arg);
                self.out.push(')');
                subscript.subscripts.iter().for_each(|part| self.subscript(part));
            }
            Expr::CastElements(pair, oid) => self.cast(&pair.0, *oid),
            // Written by the cast of the array.
            Expr::Element(_) => {}
        }
    }

    fn subquery(&mut self, subquery: &'t Subquery) {
        let table = &*subquery.table;
        self.out.push_str("SELECT ");
        self.quoted(table.columns[subquery.column].name(), '"');
        self.out.push_str(if table.is_partitioned { " FROM " } else { " FROM ONLY " });
        self.quoted(&table.schema, '"');
        self.out.push('.');
        self.quoted(&table.name, '"');
        if subquery.condition.as_bool() != Some(Some(true)) {
            self.out.push_str(" WHERE ");
            let outer = std::mem::replace(&mut self.table, table);
            self.expr(&subquery.condition);
            self.table = outer;
        }
    }

    fn function(&mut self, name: &str, args: &[Expr]) {
        self.out.push_str(name);
        self.parenthesised(args, ", ");
    }

    fn subscript(&mut self, part: &ExprSubscript) {
        self.out.push('[');
        match part {
            ExprSubscript::Index(index) => self.expr(index),
            ExprSubscript::Slice(lower, upper) => {
                if let Some(lower) = lower {
                    self.expr(lower);
                }
                // Blanks keep the colon apart from the casts.
                self.out.push_str(" : ");
                if let Some(upper) = upper {
                    self.expr(upper);
                }
            }
        }
        self.out.push(']');
    }

    fn call(&mut self, call: &BuiltinCall) {
        match (call.form, &*call.args) {
            (Form::Infix(symbol), [left, right]) => self.pair(left, symbol, right),
            (Form::Prefix(symbol), [arg]) => {
                self.push(format_args!("({symbol} "));
                self.expr(arg);
                self.out.push(')');
            }
            (Form::Hidden, [arg]) => self.expr(arg),
            (Form::Cast, [arg, modifiers @ ..]) => {
                self.cast(arg, call.oid);
                let numbers = modifiers.iter().filter_map(|modifier| match modifier {
                    Expr::Const(Datum::Int(number), _) => Some(number.to_string()),
                    _ => None,
                });
                let numbers: Vec<String> = numbers.collect();
                if !numbers.is_empty() {
                    self.push(format_args!("({})", numbers.join(", ")));
                }
            }
            (Form::Function(name) | Form::Infix(name) | Form::Prefix(name), args) => self.function(name, args),
            (Form::Cast | Form::Hidden, args) => self.list(args, ", "),
        }
    }
}
