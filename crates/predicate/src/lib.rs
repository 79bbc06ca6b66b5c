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
//! The crate does no I/O and reads no clock.

mod error;
mod index_key;
mod predicate;
mod router;
mod table;

pub use error::{EvalError, PredicateError, PredicateErrorKind};
pub use index_key::{IndexConjunct, IndexKey};
pub use predicate::{Predicate, TextValues, parse};
pub use router::{Matches, Router, ShapeMatch};
pub use table::{Collation, Column, ColumnType, Table};
