//! The rows of a shape, in one transaction.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream};

use super::catalogue::{only_rows, tables_of, tables_text, text};
use super::{DatabaseClient, error_text};
use crate::definition::ShapeDefinition;
use crate::identifier::quote;
use crate::row_form::{RowForm, TransactionSnapshot};
use crate::shape::{SnapshotFailure, SnapshotFilter};
use crate::table::TableInfo;

/// Values have one text form in snapshots and in the stream.
pub(crate) const SETTINGS: [(&str, &str); 5] = [
    ("bytea_output", "hex"),
    ("datestyle", "ISO, DMY"),
    ("timezone", "UTC"),
    ("intervalstyle", "iso_8601"),
    ("extra_float_digits", "1"),
];

/// A transaction in which a snapshot is read.
#[derive(Debug)]
pub(crate) struct SnapshotQuery<'a> {
    client: &'a Client,
    /// The transactions that the snapshot has.
    pub filter: SnapshotFilter,
}

/// The rows of a snapshot.
pub(crate) struct SnapshotRowStream {
    stream: Pin<Box<SimpleQueryStream>>,
}

/// The text of a query of rows: the columns of the key and the selected ones, in the order of the table.
#[must_use]
pub(crate) fn query_text(form: &RowForm, predicates: &[&str], tail: &str) -> (String, Vec<usize>) {
    let columns = form.read_columns(&[]);
    (rows_text(&form.table, &columns, predicates, tail), columns)
}

/// The text of a query of these columns of a table.
#[must_use]
pub(crate) fn rows_text(table: &TableInfo, columns: &[usize], predicates: &[&str], tail: &str) -> String {
    let names = columns.iter().filter_map(|column| table.columns.get(*column)).map(|column| quote(&column.name));
    let names = names.collect::<Vec<_>>().join(", ");
    let conditions: Vec<String> = predicates.iter().map(|predicate| format!("({predicate})")).collect();
    let condition = if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    format!("SELECT {names} FROM {}{condition}{tail}", table.only())
}

impl<'a> SnapshotQuery<'a> {
    /// Begins the transaction, and checks that the tables are as the shape has them (SH-06).
    ///
    /// # Errors
    /// If a table cannot be read, or has changed.
    pub(crate) async fn begin(
        client: &'a DatabaseClient,
        definition: &ShapeDefinition,
    ) -> Result<Self, SnapshotFailure> {
        let settings: Vec<String> =
            SETTINGS.iter().map(|(name, value)| format!("SET LOCAL {name} = '{value}'")).collect();
        let mut tables: Vec<&Arc<TableInfo>> = definition.tables().collect();
        tables.sort_by_key(|table| table.oid);
        tables.dedup_by_key(|table| table.oid);
        let names: Vec<String> = tables.iter().map(|table| table.only()).collect();
        let oids: Vec<String> = tables.iter().map(|table| table.oid.to_string()).collect();
        // A gateway may send a transaction that is read-only to a replica, where positions of the WAL have another meaning.
        let access = if client.is_pooled { "" } else { " READ ONLY" };
        // LOCK takes no snapshot, so the snapshot is newer than the lock; the table does not change after it.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ{access}; SET LOCAL lock_timeout = '5s'; {}; \
             LOCK TABLE {} IN ACCESS SHARE MODE",
            settings.join("; "),
            names.join(", ")
        );
        let unavailable = |error: super::CatalogueError| SnapshotFailure::Unavailable(error.to_string());
        // A single round trip: tables have many small shapes.
        let sql = format!(
            "{begin}; SELECT pg_catalog.pg_current_snapshot()::text, \
             pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0'); {}",
            tables_text(&format!("c.oid = ANY ('{{{}}}'::pg_catalog.oid[])", oids.join(",")))
        );
        let messages = client.simple_query(&sql).await.map_err(|error| refused(&error))?;
        let found = only_rows(messages);
        let (snapshot, described) = found.split_at_checked(1).ok_or_else(malformed)?;
        let parsed = snapshot.first().and_then(|row| {
            let snapshot = TransactionSnapshot::parse(&text(row, 0))?;
            Some(SnapshotFilter { snapshot, until_lsn: text(row, 1).parse().ok()? })
        });
        let filter = parsed.ok_or_else(malformed)?;
        let found = tables_of(described).map_err(unavailable)?;
        let is_same =
            tables.iter().all(|table| found.iter().any(|found| found.oid == table.oid && found.is_same_as(table)));
        if is_same { Ok(Self { client, filter }) } else { Err(SnapshotFailure::Changed) }
    }

    /// Runs a query of [`query_text`].
    ///
    /// # Errors
    /// If the query fails before its first row.
    pub(crate) async fn rows(&self, sql: &str) -> Result<SnapshotRowStream, SnapshotFailure> {
        let stream = self.client.simple_query_raw(sql).await.map_err(|error| refused(&error))?;
        Ok(SnapshotRowStream { stream: Box::pin(stream) })
    }

    /// Ends the transaction.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(crate) async fn end(self) -> Result<(), SnapshotFailure> {
        self.client.batch_execute("COMMIT").await.map_err(|error| refused(&error))
    }
}

impl SnapshotRowStream {
    /// The next row.
    ///
    /// # Errors
    /// If the query fails.
    ///
    /// # Cancel safety
    /// Safe: a row is returned or stays in the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<SimpleQueryRow>, SnapshotFailure> {
        while let Some(message) = self.stream.next().await {
            if let SimpleQueryMessage::Row(row) = message.map_err(|error| refused(&error))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

fn malformed() -> SnapshotFailure {
    SnapshotFailure::Unavailable("the server's snapshot is malformed".to_owned())
}

fn refused(error: &tokio_postgres::Error) -> SnapshotFailure {
    match error.code() {
        Some(&(SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN)) => SnapshotFailure::Changed,
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            SnapshotFailure::Unavailable("the table is locked by another transaction".to_owned())
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => SnapshotFailure::Unavailable(format!(
            "{}; grant SELECT on the table, and USAGE on its schema, to the role of the server",
            error_text(error)
        )),
        // Class 22: a predicate that fails on some row. A collation may not support an operator.
        Some(code) if code.code().starts_with("22") || *code == SqlState::FEATURE_NOT_SUPPORTED => {
            SnapshotFailure::Refused { field: "where", text: format!("fails on a row: {}", error_text(error)) }
        }
        _ => SnapshotFailure::Unavailable(error_text(error)),
    }
}
