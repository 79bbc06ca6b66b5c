//! SHOW STATS and its parts: counters of each database. Times are in microseconds.
//!
//! The columns are exactly those of PgBouncer 1.25: CloudNativePG selects its parser by their number, and other exporters
//! refuse unknown names. Further counters are in SHOW STATS_LOGINS.

use std::sync::Arc;

use super::super::table::{TableCell, TableColumn, numeric, row, text};
use super::MetricsSnapshot;
use tidegate_stats as stats;
use tidegate_stats::{PoolTotals, Totals};

pub(super) const ALL: &[TableColumn] = &[
    text("database"),
    numeric("total_server_assignment_count"),
    numeric("total_xact_count"),
    numeric("total_query_count"),
    numeric("total_received"),
    numeric("total_sent"),
    numeric("total_xact_time"),
    numeric("total_query_time"),
    numeric("total_wait_time"),
    numeric("total_client_parse_count"),
    numeric("total_server_parse_count"),
    numeric("total_bind_count"),
    numeric("avg_server_assignment_count"),
    numeric("avg_xact_count"),
    numeric("avg_query_count"),
    numeric("avg_recv"),
    numeric("avg_sent"),
    numeric("avg_xact_time"),
    numeric("avg_query_time"),
    numeric("avg_wait_time"),
    numeric("avg_client_parse_count"),
    numeric("avg_server_parse_count"),
    numeric("avg_bind_count"),
];

pub(super) const TOTALS: &[TableColumn] = &[
    text("database"),
    numeric("server_assignment_count"),
    numeric("xact_count"),
    numeric("query_count"),
    numeric("bytes_received"),
    numeric("bytes_sent"),
    numeric("xact_time"),
    numeric("query_time"),
    numeric("wait_time"),
    numeric("client_parse_count"),
    numeric("server_parse_count"),
    numeric("bind_count"),
];

/// PgBouncer prefixes the last three names with `avg_`.
pub(super) const AVERAGES: &[TableColumn] = &[
    text("database"),
    numeric("server_assignment_count"),
    numeric("xact_count"),
    numeric("query_count"),
    numeric("bytes_received"),
    numeric("bytes_sent"),
    numeric("xact_time"),
    numeric("query_time"),
    numeric("wait_time"),
    numeric("avg_client_parse_count"),
    numeric("avg_server_parse_count"),
    numeric("avg_bind_count"),
];

/// Counters that PgBouncer 1.25 does not have.
pub(super) const LOGINS: &[TableColumn] =
    &[text("database"), numeric("client_login_count"), numeric("server_login_error_count")];

pub(super) const SUMS: &[TableColumn] = &[text("name"), numeric("value")];

/// The counters in the order of PgBouncer's columns.
const fn counters(counted: &PoolTotals) -> [u64; 11] {
    [
        counted.server_assignment_count,
        counted.xact_count,
        counted.query_count,
        counted.received_bytes,
        counted.sent_bytes,
        counted.xact_time,
        counted.query_time,
        counted.wait_time,
        counted.client_parse_count,
        counted.server_parse_count,
        counted.bind_count,
    ]
}

/// Counters of SHOW TOTALS, with the names of PgBouncer's sockets.
const NAMES: [&str; 11] = [
    "server_assignment_count",
    "xact_count",
    "query_count",
    "client_bytes",
    "server_bytes",
    "xact_time",
    "query_time",
    "wait_time",
    "ps_client_parse_count",
    "ps_server_parse_count",
    "ps_bind_count",
];

/// Builds a row per database: its name, then the values.
fn by_database<const N: usize>(
    totals: &Totals,
    values: impl Fn(&Arc<str>, &PoolTotals) -> [u64; N],
) -> Vec<Vec<TableCell>> {
    let row = |(database, counted): (&Arc<str>, &PoolTotals)| {
        let values = values(database, counted).map(TableCell::Number);
        std::iter::once(TableCell::from(database)).chain(values).collect()
    };
    totals.iter().map(row).collect()
}

pub(super) async fn all(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let sample = snapshot.sample().await;
    let averages = snapshot.gateway().statistics.averages(sample);
    by_database(&sample.totals, |database, counted| {
        let average = averages.get(database).copied().unwrap_or_default();
        let mut values = [0; 22];
        values[..11].copy_from_slice(&counters(counted));
        values[11..].copy_from_slice(&counters(&average));
        values
    })
}

pub(super) async fn totals(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    by_database(&snapshot.sample().await.totals, |_, counted| counters(counted))
}

pub(super) async fn logins(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    by_database(&snapshot.sample().await.totals, |_, counted| {
        [counted.client_login_count, counted.server_login_error_count]
    })
}

pub(super) async fn averages(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let sample = snapshot.sample().await;
    let averages = snapshot.gateway().statistics.averages(sample);
    by_database(&sample.totals, |database, _| counters(&averages.get(database).copied().unwrap_or_default()))
}

pub(super) async fn sums(snapshot: &MetricsSnapshot) -> Vec<Vec<TableCell>> {
    let sample = snapshot.sample().await;
    let sums = [("total", stats::sum(&sample.totals)), ("avg", snapshot.gateway().statistics.averages_of_all(sample))];
    let rows = |(prefix, counted): (&'static str, PoolTotals)| {
        let named = NAMES.iter().zip(counters(&counted));
        named.map(move |(name, value)| row![format!("{prefix}_{name}"), value])
    };
    sums.into_iter().flat_map(rows).collect()
}
