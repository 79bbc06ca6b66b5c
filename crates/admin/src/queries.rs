//! Queries from the query log: the slow ones for `SHOW QUERIES` and the web console, and the latest ones for the latter.

use std::{ops::RangeInclusive, path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tidegate_proxy::plane::Gateway;
use tidegate_query_log::commands::{LatestRecords, latest_records, slow_queries};
use tidegate_wire::sqlstate;

use crate::{
    error::ConsoleError,
    table::{ResultTable, TableCell, TableColumn, int8, row, text},
};

/// Periods, in minutes.
pub(crate) const MINUTES: RangeInclusive<u64> = 1..=24 * 60;
/// The default period, in minutes.
pub(crate) const MINUTES_DEFAULT: u64 = 15;
/// Statements of a reply.
const STATEMENTS_MAX: usize = 100;
/// Records of a reply.
const LATEST_MAX: usize = 200;
/// Limit of records that are read; the reply reports whether there are more.
const RECORDS_MAX: u64 = 2_000_000;

/// Columns of SHOW QUERIES.
pub(crate) const COLUMNS: &[TableColumn] = &[
    text("fingerprint"),
    int8("calls"),
    text("share"),
    int8("total_us"),
    int8("mean_us"),
    int8("p50_us"),
    int8("p99_us"),
    int8("max_us"),
    int8("wait_us"),
    int8("rows"),
    int8("errors"),
    text("statement"),
];

/// Why the query log was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryLogReadError {
    #[error("there is no query log: set folder in [journal] and restart")]
    Off,
    #[error("the query log is being read by others: try again")]
    Busy,
    #[error("the gateway is stopping")]
    Stopping,
    #[error("the query log cannot be read: see the log")]
    Unreadable,
}

/// The statements that took most time in the last minutes. Texts may contain personal data, and are left out for users that
/// may not change anything.
pub(crate) async fn slow(
    gateway: &Gateway,
    minutes: u64,
    may_see_statements: bool,
) -> Result<Value, QueryLogReadError> {
    let period = Duration::from_secs(minutes * 60);
    let mut found = read(gateway, move |folder| slow_queries(folder, period, RECORDS_MAX, STATEMENTS_MAX)).await?;
    if !may_see_statements && let Some(statements) = found["statements"].as_array_mut() {
        for statement in statements {
            statement["statement"] = Value::Null;
        }
    }
    found["minutes"] = json!(minutes);
    found["statement_is_hidden"] = json!(!may_see_statements);
    Ok(found)
}

/// The latest records of the last minutes. Texts of statements and errors may contain personal data, and are left out for users
/// that may not change anything.
pub(crate) async fn latest(
    gateway: &Gateway,
    request: LatestRecords,
    may_see_statements: bool,
) -> Result<Value, QueryLogReadError> {
    let request = LatestRecords { records_max: RECORDS_MAX, lines: LATEST_MAX, ..request };
    let mut found = read(gateway, move |folder| latest_records(folder, &request)).await?;
    if !may_see_statements && let Some(records) = found["records"].as_array_mut() {
        for record in records {
            record["statement"] = Value::Null;
            record["message"] = Value::Null;
        }
    }
    found["statement_is_hidden"] = json!(!may_see_statements);
    Ok(found)
}

/// Reads the query log on a thread that may block.
async fn read(
    gateway: &Gateway,
    read: impl FnOnce(&Path) -> anyhow::Result<Value> + Send + 'static,
) -> Result<Value, QueryLogReadError> {
    let query_log = gateway.query_log.as_ref().ok_or(QueryLogReadError::Off)?;
    let folder = query_log.folder().ok_or(QueryLogReadError::Off)?.to_owned();
    let permit = query_log.read_permit().ok_or(QueryLogReadError::Busy)?;
    let read = move || {
        // The read continues without a waiting client.
        let _permit = permit;
        read(&folder)
    };
    let found = gateway.pools.connector.resolver.offload("the query log", read).await;
    found.ok_or(QueryLogReadError::Stopping)?.map_err(|error| {
        tracing::warn!(%error, "console: the query log cannot be read");
        QueryLogReadError::Unreadable
    })
}

/// SHOW QUERIES.
pub(crate) async fn table(
    gateway: Arc<Gateway>,
    minutes: u64,
    may_see_statements: bool,
) -> Result<ResultTable, ConsoleError> {
    let found = slow(&gateway, minutes, may_see_statements).await.map_err(|error| {
        let state = match error {
            QueryLogReadError::Busy => sqlstate::PROGRAM_LIMIT_EXCEEDED,
            _ => sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE,
        };
        ConsoleError::new(state, error.to_string())
    })?;
    let statements = found["statements"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(ResultTable::new(COLUMNS, statements.iter().map(row_of).collect()))
}

fn row_of(statement: &Value) -> Vec<TableCell> {
    let text = |name: &str| statement[name].as_str().map(str::to_owned);
    let number = |name: &str| statement[name].as_u64();
    row![
        text("fingerprint"),
        number("calls"),
        format!("{:.4}", statement["share"].as_f64().unwrap_or_default()),
        number("total_us"),
        number("mean_us"),
        number("p50_us"),
        number("p99_us"),
        number("max_us"),
        number("wait_us"),
        number("rows"),
        number("errors"),
        text("statement"),
    ]
}
