//! SQL WHERE clauses evaluated outside of Postgres, with exactly Postgres' result.
//!
//! A program that follows the changes of a table (logical replication, triggers, a cache) has to decide for each row
//! whether it belongs to the result of a query. [`parse`] checks a WHERE clause against a table's description as
//! Postgres does: the same grammar, overload resolution, implicit casts and NULL logic. [`Predicate::evaluate`] then
//! evaluates it on rows in Postgres' text format. [`Router`] finds, among many predicates, those that a row satisfies.
//!
//! Contract: a predicate has the value that Postgres would return, or raises an error where Postgres raises one. A
//! predicate that cannot be evaluated exactly is refused by [`parse`] with an error that names the reason.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_predicate::{Collation, Column, ColumnType, Matches, Router, Table, parse};
//!
//! let columns = vec![Column::new("id", ColumnType::INT8), Column::new("title", ColumnType::TEXT)];
//! let table = Arc::new(Table::new("public", "items", columns, Collation::c()));
//!
//! let predicate = parse("id = $1 AND title LIKE 'a%'", &[Some("7")], &table)?;
//! assert_eq!(predicate.canonical(), r#"(("id" = '7'::int8) AND ("title" ~~ 'a%'::text))"#);
//! assert_eq!(predicate.evaluate(&[Some(b"7"), Some(b"abc")])?, Some(true));
//! assert_eq!(predicate.evaluate(&[Some(b"7"), None])?, None);
//!
//! let mut router = Router::new(Arc::clone(&table));
//! router.insert("sevens", &Arc::new(predicate));
//! let mut matches = Matches::default();
//! router.route(None, Some(&[Some(b"7"), Some(b"abc")]), &mut matches);
//! assert_eq!(matches.shapes[0].shape, "sevens");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate does no I/O and reads no clock.

mod ast;
mod builtin;
mod canonical;
mod catalog;
mod check;
mod datetime;
mod datum;
mod error;
mod eval;
mod expr;
mod fold;
mod index_key;
mod input;
mod input_datetime;
mod keywords;
mod lexer;
mod numeric;
mod output;
mod parser;
mod predicate;
mod resolve;
mod router;
mod set_change;
mod small_list;
mod subquery;
mod table;
mod value_set;

pub use error::{EvalError, PredicateError, PredicateErrorKind};
pub use index_key::{IndexConjunct, IndexKey};
pub use predicate::{Predicate, ServerPredicate, Subquery, TextValues, parse, parse_for_server, parse_with};
pub use router::{Matches, Router, ShapeMatch};
pub use set_change::AffectedRows;
pub use subquery::subquery_tables;
pub use table::{Collation, Column, ColumnType, Table};
pub use value_set::{SetChange, ValueSet};
