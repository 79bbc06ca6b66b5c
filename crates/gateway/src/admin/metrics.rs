//! Figures for Prometheus, under the names, labels and units of `prometheus-community/pgbouncer_exporter`, so that
//! dashboards made for it work as they are; what PgBouncer has not, streams, is under names of our own. They are the console's
//! own tables, column by column.

use std::{fmt::Write as _, sync::Arc};

use super::{
    show::Topic,
    table::{Table, Value},
};
use crate::plane::Gateway;

/// A column of a table as a metric.
struct Metric {
    column: &'static str,
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    /// What one of the column is in the metric's unit.
    unit: f64,
}

const MICROSECOND: f64 = 1e-6;

const fn gauge(column: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric { column, name, help, kind: "gauge", unit: 1.0 }
}

const fn counter(column: &'static str, name: &'static str, help: &'static str, unit: f64) -> Metric {
    Metric { column, name, help, kind: "counter", unit }
}

const DATABASES: &[Metric] = &[
    gauge("pool_size", "databases_pool_size", "Server connections that a pool may have"),
    gauge("reserve_pool_size", "databases_reserve_pool", "Further server connections for clients that wait long"),
    gauge("max_connections", "databases_max_connections", "Server connections that the database may have"),
    gauge("current_connections", "databases_current_connections", "Server connections of the database"),
    gauge("paused", "databases_paused", "1 if the database is paused"),
    gauge("disabled", "databases_disabled", "1 if the database is disabled"),
];

const POOLS: &[Metric] = &[
    gauge("cl_active", "pools_client_active_connections", "Clients that have a server or ask for nothing"),
    gauge("cl_active_cancel_req", "pools_client_active_cancel_connections", "Cancel requests under way"),
    gauge("cl_waiting", "pools_client_waiting_connections", "Clients that wait for a server"),
    gauge("cl_waiting_cancel_req", "pools_client_waiting_cancel_connections", "Cancel requests that wait"),
    gauge("sv_active", "pools_server_active_connections", "Servers that clients have"),
    gauge("sv_active_cancel", "pools_server_active_cancel_connections", "Servers that carry a cancel request"),
    gauge("sv_being_canceled", "pools_server_being_canceled_connections", "Servers that wait for a cancel request"),
    gauge("sv_idle", "pools_server_idle_connections", "Servers that are free"),
    gauge("sv_used", "pools_server_used_connections", "Servers that have to be checked"),
    gauge("sv_tested", "pools_server_testing_connections", "Servers that are being cleaned"),
    gauge("sv_login", "pools_server_login_connections", "Servers being connected"),
    gauge("maxwait", "pools_client_maxwait_seconds", "Wait of the client that waits longest"),
];

const STATS: &[Metric] = &[
    counter("query_count", "queries_pooled_total", "Queries and executions", 1.0),
    counter("query_count", "queries_total", "Queries and executions", 1.0),
    counter("query_time", "queries_duration_seconds_total", "Time that servers worked", MICROSECOND),
    counter("bytes_received", "received_bytes_total", "Bytes from clients", 1.0),
    counter("bytes_sent", "sent_bytes_total", "Bytes to clients", 1.0),
    counter("wait_time", "client_wait_seconds_total", "Time that clients waited for a server", MICROSECOND),
    counter("xact_count", "sql_transactions_pooled_total", "Transactions", 1.0),
    counter("xact_time", "server_in_transaction_seconds_total", "Time that transactions were open", MICROSECOND),
    counter("client_parse_count", "client_parses_total", "Statements that clients prepared", 1.0),
    counter("server_parse_count", "server_parses_total", "Statements that servers were taught", 1.0),
    counter("bind_count", "binds_total", "Portals bound", 1.0),
    counter("server_assignment_count", "server_assignments_total", "Servers given to clients", 1.0),
    counter("client_login_count", "client_logins_total", "Logins of clients", 1.0),
];

const MILLISECOND: f64 = 1e-3;

const STREAMS: &[Metric] = &[
    counter("done", "stream_done_total", "Records done", 1.0),
    gauge("lag", "stream_lag", "Behind what is done: records of topics, bytes of a file"),
    gauge("pending", "stream_pending", "Records that were read and are not done"),
    gauge("in_flight", "stream_in_flight", "Deliveries under way"),
    Metric { unit: MILLISECOND, ..gauge("oldest_ms", "stream_oldest_seconds", "Age of the oldest pending record") },
    counter("retried", "stream_retried_total", "Attempts that failed and were followed by another", 1.0),
    counter("dead_lettered", "stream_dead_lettered_total", "Records that the dead-letter has", 1.0),
    counter("skipped", "stream_skipped_total", "Records that were skipped", 1.0),
    gauge("parked", "stream_parked", "Records of parked keys"),
    counter("restarts", "stream_restarts_total", "Times that it was started again", 1.0),
];

/// Rows of SHOW LISTS by the exporter's names.
const LISTS: &[(&str, &str)] = &[
    ("databases", "databases"),
    ("users", "users"),
    ("pools", "pools"),
    ("free_clients", "free_clients"),
    ("used_clients", "used_clients"),
    ("login_clients", "login_clients"),
    ("free_servers", "free_servers"),
    ("used_servers", "used_servers"),
    ("dns_names", "cached_dns_names"),
    ("dns_zones", "cached_dns_zones"),
    ("dns_queries", "in_flight_dns_queries"),
];

/// All metrics in Prometheus' text format.
pub(super) async fn exposition(gateway: &Arc<Gateway>) -> String {
    let mut page = Page::default();
    page.one("up", "1 if the gateway answers", &[], 1.0);
    let version = concat!("Tidegate ", env!("CARGO_PKG_VERSION"));
    page.one("version_info", "The version", &[("version", version)], 1.0);
    let setup = gateway.setup();
    page.one("config_max_client_connections", "Clients at a time", &[], f64::from(setup.config.listen.max_clients));
    page.one(
        "config_max_user_connections",
        "Server connections that a user may have; 0 is without limit",
        &[],
        f64::from(setup.config.pool.max_per_user),
    );
    let databases = Topic::Databases.table(gateway).await;
    let labels = ["name", "host", "port", "database", "force_user", "pool_mode"];
    page.table("", DATABASES, &databases, &labels);
    page.table("", POOLS, &Topic::Pools.table(gateway).await, &["database", "user"]);
    let stats = Topic::StatsTotals.table(gateway).await;
    page.table("stats_totals_", STATS, &stats, &["database"]);
    // The name before exporter 0.8, which older dashboards ask for.
    page.table("stats_", STATS, &stats, &["database"]);
    let lists = Topic::Lists.table(gateway).await;
    for (list, name) in LISTS {
        let row = lists.rows.iter().find(|row| row.first().is_some_and(|value| shown(value) == *list));
        if let Some(count) = row.and_then(|row| number(row.get(1)?)) {
            page.one(name, "As in SHOW LISTS", &[], count);
        }
    }
    page.family = "tidegate";
    let streams = Topic::Streams.table(gateway).await;
    if !streams.rows.is_empty() {
        page.states(&streams);
        page.table("", STREAMS, &streams, &["name"]);
    }
    page.text
}

struct Page {
    text: String,
    /// What all names begin with.
    family: &'static str,
}

impl Default for Page {
    fn default() -> Self {
        Self { text: String::new(), family: "pgbouncer" }
    }
}

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let family = self.family;
        let _ = writeln!(self.text, "# HELP {family}_{name} {help}\n# TYPE {family}_{name} {kind}");
    }

    /// What each stream does, as a label.
    fn states(&mut self, streams: &Table) {
        self.head("stream_state", "1 for the state that the stream is in", "gauge");
        let at = |name: &str| streams.columns.iter().position(|column| column.name == name);
        let (Some(name), Some(state)) = (at("name"), at("state")) else { return };
        for row in &streams.rows {
            let text = |column: usize| row.get(column).map(shown).unwrap_or_default();
            self.sample("stream_state", &[("name", &text(name)), ("state", &text(state))], 1.0);
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}_{name}{labels} {value}", self.family);
    }

    fn one(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.head(name, help, "gauge");
        self.sample(name, labels, value);
    }

    /// Columns of a table, each row with its labels.
    fn table(&mut self, prefix: &str, metrics: &[Metric], table: &Table, labels: &[&str]) {
        let at = |name: &str| table.columns.iter().position(|column| column.name == name);
        for metric in metrics {
            let Some(column) = at(metric.column) else { continue };
            let name = format!("{prefix}{}", metric.name);
            self.head(&name, metric.help, metric.kind);
            for row in &table.rows {
                let text = |label: &&str| at(label).and_then(|at| row.get(at)).map(shown).unwrap_or_default();
                let values: Vec<String> = labels.iter().map(text).collect();
                let pairs: Vec<_> = labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                if let Some(value) = row.get(column).and_then(number) {
                    self.sample(&name, &pairs, value * metric.unit);
                }
            }
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => Some(*number as f64),
        Value::Text(_) | Value::Null => None,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => text.to_string(),
        Value::Null => String::new(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.sample("x", &[("a", "q\"\\\n")], 1.5);
        assert_eq!(page.text, "pgbouncer_x{a=\"q\\\"\\\\\\n\"} 1.5\n");
    }

    #[test]
    fn every_metric_is_a_column_of_its_table() {
        let has = |topic: Topic, metric: &Metric| topic.columns().iter().any(|column| column.name == metric.column);
        assert!(DATABASES.iter().all(|metric| has(Topic::Databases, metric)));
        assert!(POOLS.iter().all(|metric| has(Topic::Pools, metric)));
        assert!(STATS.iter().all(|metric| has(Topic::StatsTotals, metric)));
        assert!(STREAMS.iter().all(|metric| has(Topic::Streams, metric)));
    }
}
