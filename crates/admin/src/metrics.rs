//! Prometheus metrics with the names, labels and units of `prometheus-community/pgbouncer_exporter`, so that its dashboards work
//! unchanged. Streams and the query journal have names of our own. The values come from the console's tables.

mod clients;
mod family;
mod journal;
mod process;
mod shapes;
mod state;

use std::{collections::BTreeMap, sync::Arc};

use hyper::{HeaderMap, header};
use prost::Message as _;

use self::family::{MetricFamily, MetricSample, MetricType};
use super::{
    context::AdminContext,
    show::{ClientGroups, MetricsSnapshot, ShowTopic, hosts, pools},
    table::{ResultTable, TableCell},
};
use tidegate_proxy::plane::FailedLoginCounts;
use tidegate_query_log::writer::QueryLog;
use tidegate_shapes::ShapeServer;
use tidegate_stats::{Distribution, Spread};

/// A table column that is exported as a metric.
struct ColumnMetric {
    column: &'static str,
    name: &'static str,
    help: &'static str,
    metric_type: MetricType,
    /// Value of one column unit in the metric's unit.
    unit: f64,
}

const MICROSECOND: f64 = 1e-6;

const fn gauge(column: &'static str, name: &'static str, help: &'static str) -> ColumnMetric {
    ColumnMetric { column, name, help, metric_type: MetricType::Gauge, unit: 1.0 }
}

const fn counter(column: &'static str, name: &'static str, help: &'static str, unit: f64) -> ColumnMetric {
    ColumnMetric { column, name, help, metric_type: MetricType::Counter, unit }
}

const DATABASES: &[ColumnMetric] = &[
    gauge("pool_size", "databases_pool_size", "Server connections that a pool may have"),
    gauge("reserve_pool_size", "databases_reserve_pool", "Further server connections for clients that wait long"),
    gauge("max_connections", "databases_max_connections", "Server connections that the database may have"),
    gauge("current_connections", "databases_current_connections", "Server connections of the database"),
    gauge("paused", "databases_paused", "1 if the database is paused"),
    gauge("disabled", "databases_disabled", "1 if the database is disabled"),
];

const POOLS: &[ColumnMetric] = &[
    gauge("cl_active", "pools_client_active_connections", "Clients that have a server or are idle"),
    gauge("cl_active_cancel_req", "pools_client_active_cancel_connections", "Cancel requests in progress"),
    gauge("cl_waiting", "pools_client_waiting_connections", "Clients that wait for a server"),
    gauge(
        "cl_waiting_cancel_req",
        "pools_client_waiting_cancel_connections",
        "Cancel requests that wait for a connection",
    ),
    gauge("sv_active", "pools_server_active_connections", "Servers assigned to clients"),
    gauge(
        "sv_active_cancel",
        "pools_server_active_cancel_connections",
        "Server connections that carry a cancel request",
    ),
    gauge("sv_being_canceled", "pools_server_being_canceled_connections", "Servers that wait for a cancel request"),
    gauge("sv_idle", "pools_server_idle_connections", "Idle servers"),
    gauge("sv_used", "pools_server_used_connections", "Servers that need a check before use"),
    gauge("sv_tested", "pools_server_testing_connections", "Servers that are being reset"),
    gauge("sv_login", "pools_server_login_connections", "Servers that are connecting"),
    gauge("maxwait", "pools_client_maxwait_seconds", "Longest current wait of a client"),
];

const STATS: &[ColumnMetric] = &[
    counter("query_count", "queries_pooled_total", "Queries and executions", 1.0),
    counter("query_count", "queries_total", "Queries and executions", 1.0),
    counter("query_time", "queries_duration_seconds_total", "Time that servers executed queries", MICROSECOND),
    counter("bytes_received", "received_bytes_total", "Bytes from clients", 1.0),
    counter("bytes_sent", "sent_bytes_total", "Bytes to clients", 1.0),
    counter("wait_time", "client_wait_seconds_total", "Time that clients waited for a server", MICROSECOND),
    counter("xact_count", "sql_transactions_pooled_total", "Transactions", 1.0),
    counter("xact_time", "server_in_transaction_seconds_total", "Duration of transactions", MICROSECOND),
    counter("client_parse_count", "client_parses_total", "Statements prepared by clients", 1.0),
    counter("server_parse_count", "server_parses_total", "Statements prepared on servers", 1.0),
    counter("bind_count", "binds_total", "Portals bound", 1.0),
    counter("server_assignment_count", "server_assignments_total", "Assignments of servers to clients", 1.0),
];

/// Columns of SHOW STATS_LOGINS, which PgBouncer does not have.
const LOGINS: &[ColumnMetric] = &[counter("client_login_count", "client_logins_total", "Client logins", 1.0)];

const MILLISECOND: f64 = 1e-3;

const STREAMS: &[ColumnMetric] = &[
    counter("done", "stream_done_total", "Records done", 1.0),
    gauge("lag", "stream_lag", "Records of topics, or bytes of a file, that are not done"),
    gauge("pending", "stream_pending", "Records read and not done"),
    gauge("in_flight", "stream_in_flight", "Deliveries in flight"),
    ColumnMetric {
        unit: MILLISECOND,
        ..gauge("oldest_ms", "stream_oldest_seconds", "Age of the oldest pending record")
    },
    counter("retried", "stream_retried_total", "Failed attempts that were repeated", 1.0),
    counter("dead_lettered", "stream_dead_lettered_total", "Records in the dead-letter queue", 1.0),
    counter("skipped", "stream_skipped_total", "Skipped records", 1.0),
    gauge("parked", "stream_parked", "Records of parked keys"),
    counter("restarts", "stream_restarts_total", "Restarts", 1.0),
    counter("gaps", "stream_gaps_total", "Times that changes of Postgres were lost", 1.0),
];

const SLOTS: &[ColumnMetric] = &[
    gauge("held_wal_bytes", "slot_held_wal_bytes", "Write-ahead log that the slot makes Postgres keep"),
    gauge("wal_max", "slot_wal_max_bytes", "Configured bound of the write-ahead log that the slot holds"),
    gauge("safe_wal_bytes", "slot_safe_wal_bytes", "Write-ahead log until the server invalidates the slot"),
    gauge("lag_bytes", "slot_lag_bytes", "Write-ahead log that the sink has not everything of"),
    ColumnMetric {
        unit: MILLISECOND,
        ..gauge("lag_ms", "slot_lag_seconds", "Age of the oldest transaction that was read and is not delivered")
    },
    gauge("spool_bytes", "slot_spool_bytes", "Size of the spool"),
    gauge("spool_bytes_max", "slot_spool_max_bytes", "Bound of the spool"),
    gauge("open_tx_bytes", "slot_open_tx_bytes", "Unfinished transactions in memory"),
    counter("spilled_bytes", "slot_spilled_bytes_total", "Unfinished transactions that were written to files", 1.0),
    counter("transactions", "slot_transactions_total", "Transactions read", 1.0),
    counter("reconnects", "slot_reconnects_total", "Connections to the slot after the first", 1.0),
];

/// Columns of SHOW SLOTS that count changes, and the label of each.
const SLOT_CHANGES: [(&str, &str); 5] = [
    ("inserts", "insert"),
    ("updates", "update"),
    ("deletes", "delete"),
    ("truncates", "truncate"),
    ("messages", "message"),
];

const HOSTS: &[ColumnMetric] = &[
    gauge("lag_bytes", "host_lag_bytes", "Write-ahead log that a replica has not replayed"),
    ColumnMetric { unit: MILLISECOND, ..gauge("lag_ms", "host_lag_seconds", "Age of what a replica replayed last") },
    gauge("servers", "host_server_connections", "Server connections to the host"),
    counter("ejections", "host_ejections_total", "Ejections of the host", 1.0),
];

/// Rows of SHOW LISTS, with the exporter's names.
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

/// Limit of client series: clients choose their application names.
const CLIENT_SERIES_MAX: usize = 1000;
/// Name of the series for all further clients.
const OTHER_NAMES: &str = "(others)";

/// A distribution of durations without a counterpart in the exporter.
struct DurationMetric {
    name: &'static str,
    help: &'static str,
    of: fn(&Spread) -> &Distribution,
}

const DURATIONS: &[DurationMetric] = &[
    DurationMetric {
        name: "client_wait_seconds",
        help: "Wait of each request for a server",
        of: |spread| &spread.wait,
    },
    DurationMetric {
        name: "query_duration_seconds",
        help: "Execution time of a query or a pipeline of queries",
        of: |spread| &spread.query,
    },
    DurationMetric {
        name: "transaction_duration_seconds",
        help: "Duration of a transaction",
        of: |spread| &spread.transaction,
    },
];

/// Exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpositionFormat {
    /// The text format, with classic histograms.
    Text,
    /// Length-delimited Protocol Buffers messages, with native histograms in addition.
    Protobuf,
}

impl ExpositionFormat {
    /// Chooses the format from `Accept`: text, unless Protocol Buffers have at least the same weight.
    pub(super) fn negotiate(head: &HeaderMap) -> Self {
        let accepted = head.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut protobuf, mut text) = (0.0, 0.0);
        for range in accepted.flat_map(|list| list.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
            let given = |name: &str| {
                let found = parameters.iter().find(|(known, _)| known.trim().eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.trim().trim_matches('"'))
            };
            let weight = given("q").map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0));
            let best: &mut f32 = match media_type.as_str() {
                "application/vnd.google.protobuf"
                    if given("proto") == Some("io.prometheus.client.MetricFamily")
                        && given("encoding") == Some("delimited") =>
                {
                    &mut protobuf
                }
                "text/plain" | "text/*" | "*/*" => &mut text,
                _ => continue,
            };
            *best = best.max(weight);
        }
        if protobuf > 0.0 && protobuf >= text { Self::Protobuf } else { Self::Text }
    }

    /// The `Content-Type`.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    fn encode(self, families: &[MetricFamily]) -> Vec<u8> {
        match self {
            Self::Text => {
                let mut text = String::new();
                families.iter().for_each(|family| family.write_text(&mut text));
                text.into_bytes()
            }
            Self::Protobuf => families.iter().flat_map(MetricFamily::encode_length_delimited_to_vec).collect(),
        }
    }
}

/// Builds the page of all metrics.
pub(super) async fn exposition(context: &Arc<AdminContext>, format: ExpositionFormat) -> Vec<u8> {
    let AdminContext { gateway, workers, .. } = &**context;
    let mut page = MetricsPage::default();
    page.one("up", "1 if the gateway answers", &[], 1.0);
    let version = concat!("Tidegate ", env!("CARGO_PKG_VERSION"));
    page.one("version_info", "The version", &[("version", version)], 1.0);
    let setup = gateway.config.setup();
    page.one("config_max_client_connections", "Clients at a time", &[], f64::from(setup.config.listen.max_clients));
    page.one(
        "config_max_user_connections",
        "Server connections that a user may have; 0 is without limit",
        &[],
        f64::from(setup.config.pool.max_per_user),
    );
    let snapshot = MetricsSnapshot::new(context);
    let databases = ShowTopic::Databases.table(&snapshot).await;
    let labels = ["name", "host", "port", "database", "force_user", "pool_mode"];
    page.table("", DATABASES, &databases, &labels);
    page.table("", POOLS, &ShowTopic::Pools.table(&snapshot).await, &["database", "user"]);
    page.clients(snapshot.client_groups().await);
    let stats = ShowTopic::StatsTotals.table(&snapshot).await;
    let logins = ShowTopic::StatsLogins.table(&snapshot).await;
    page.table("stats_totals_", STATS, &stats, &["database"]);
    page.table("stats_totals_", LOGINS, &logins, &["database"]);
    // The name before exporter 0.8, which older dashboards use.
    page.table("stats_", STATS, &stats, &["database"]);
    page.table("stats_", LOGINS, &logins, &["database"]);
    let lists = ShowTopic::Lists.table(&snapshot).await;
    for (list, name) in LISTS {
        let row = lists.rows.iter().find(|row| row.first().is_some_and(|value| text_of(value) == *list));
        if let Some(count) = row.and_then(|row| number(row.get(1)?)) {
            page.one(name, "As in SHOW LISTS", &[], count);
        }
    }
    page.prefix = "tidegate";
    page.durations(&workers.spreads().await);
    page.failed_logins(gateway.clients.failed_logins.counts());
    page.waits_and_logins(&snapshot.sample().await.totals);
    page.outcomes(&gateway.clients.outcomes);
    page.moved(&gateway.moves);
    page.pinned(&clients::pinned(workers).await);
    page.pool_sizes(&pools::sizes(&gateway.pools));
    page.routes(&hosts::routes(&gateway.config, &gateway.pools));
    let hosts = ShowTopic::Hosts.table(&snapshot).await;
    page.host_states(&hosts);
    page.table("", HOSTS, &hosts, &["database", "host", "port"]);
    page.state(&gateway.lifecycle, &gateway.config);
    let streams = ShowTopic::Streams.table(&snapshot).await;
    if !streams.rows.is_empty() {
        page.states(&streams);
        page.table("", STREAMS, &streams, &["name"]);
    }
    let slots = ShowTopic::Slots.table(&snapshot).await;
    if !slots.rows.is_empty() {
        page.slots(&slots);
    }
    if let Some(server) = context.shapes() {
        page.shapes(&server.snapshot());
    }
    if let Some(stats) = gateway.query_log.as_ref().and_then(QueryLog::stats) {
        page.journal(&stats);
    }
    if let Some(spans) = gateway.query_log.as_ref().and_then(QueryLog::spans) {
        page.spans(&spans.counts());
    }
    page.prefix = "process";
    page.process();
    format.encode(&page.families)
}

/// Builds the page of a server of shapes without a gateway.
pub(super) fn shapes_exposition(server: &ShapeServer, format: ExpositionFormat) -> Vec<u8> {
    let mut page = MetricsPage { prefix: "tidegate", ..MetricsPage::default() };
    page.shapes(&server.snapshot());
    page.prefix = "process";
    page.process();
    format.encode(&page.families)
}

struct MetricsPage {
    families: Vec<MetricFamily>,
    /// Prefix of all names.
    prefix: &'static str,
}

impl Default for MetricsPage {
    fn default() -> Self {
        Self { families: Vec::new(), prefix: "pgbouncer" }
    }
}

impl MetricsPage {
    fn family(&mut self, name: &str, help: &str, metric_type: MetricType, samples: Vec<MetricSample>) {
        let name = format!("{}_{name}", self.prefix);
        self.families.push(MetricFamily { name, help: help.to_owned(), metric_type: metric_type.into(), samples });
    }

    /// Adds client counts by identity, application name and state.
    fn clients(&mut self, client_groups: &ClientGroups) {
        let mut counts: BTreeMap<[&str; 4], usize> = BTreeMap::new();
        for (group, count) in &client_groups.0 {
            let name = if counts.len() < CLIENT_SERIES_MAX { group.application_name.as_str() } else { OTHER_NAMES };
            *counts.entry([name, &group.key.database, group.state, &group.user]).or_default() += count;
        }
        let sample = |([name, database, state, user], count): (&[&str; 4], &usize)| {
            let labels = [("application_name", *name), ("database", database), ("state", state), ("user", user)];
            MetricSample::number(MetricType::Gauge, &labels, *count as f64)
        };
        let samples = counts.iter().map(sample).collect();
        let help = "Clients by database, user, application name and state";
        self.family("client_connections", help, MetricType::Gauge, samples);
    }

    /// Adds the state of each stream as a label.
    fn states(&mut self, streams: &ResultTable) {
        self.labelled("stream_state", "1 for the state that the stream is in", streams, &["name", "state"]);
    }

    /// Adds the replication slots of streams.
    fn slots(&mut self, slots: &ResultTable) {
        let labels = ["stream", "slot"];
        self.labelled("slot_state", "1 for the state that the capture is in", slots, &["stream", "slot", "state"]);
        let help = "1 for the WAL status that the server shows";
        self.labelled("slot_wal_status", help, slots, &["stream", "slot", "wal_status"]);
        self.table("", SLOTS, slots, &labels);
        let at = |name: &str| slots.columns.iter().position(|column| column.name == name);
        let cell =
            |row: &[TableCell], name: &str| at(name).and_then(|at| row.get(at).cloned()).unwrap_or(TableCell::Null);
        let sample = |row: &Vec<TableCell>, (column, operation): (&str, &'static str)| {
            let [stream, slot] = labels.map(|label| text_of(&cell(row, label)));
            let pairs = [("stream", stream.as_str()), ("slot", slot.as_str()), ("op", operation)];
            Some(MetricSample::number(MetricType::Counter, &pairs, number(&cell(row, column))?))
        };
        let samples = slots.rows.iter().flat_map(|row| SLOT_CHANGES.iter().filter_map(move |of| sample(row, *of)));
        let samples = samples.collect();
        self.family("slot_changes_total", "Changes read", MetricType::Counter, samples);
    }

    /// Adds role and state of each server as labels.
    fn host_states(&mut self, hosts: &ResultTable) {
        let labels = ["database", "host", "port", "role", "state"];
        self.labelled("host_state", "1 for the role and the state of the host", hosts, &labels);
    }

    /// Adds a sample of value 1 for each row, with these columns as labels.
    fn labelled(&mut self, name: &str, help: &str, table: &ResultTable, labels: &[&str]) {
        let at = |label: &str| table.columns.iter().position(|column| column.name == label);
        let sample = |row: &Vec<TableCell>| {
            let text = |label: &&str| at(label).and_then(|at| row.get(at)).map(text_of).unwrap_or_default();
            let values: Vec<String> = labels.iter().map(text).collect();
            let pairs: Vec<_> = labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            MetricSample::number(MetricType::Gauge, &pairs, 1.0)
        };
        let samples = table.rows.iter().map(sample).collect();
        self.family(name, help, MetricType::Gauge, samples);
    }

    /// Adds a counter by one label.
    fn counts<'c>(&mut self, name: &str, help: &str, label: &str, counts: impl IntoIterator<Item = (&'c str, u64)>) {
        let sample =
            |(value, count): (&str, u64)| MetricSample::number(MetricType::Counter, &[(label, value)], count as f64);
        let samples = counts.into_iter().map(sample).collect();
        self.family(name, help, MetricType::Counter, samples);
    }

    fn one(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, help, MetricType::Gauge, vec![MetricSample::number(MetricType::Gauge, labels, value)]);
    }

    fn failed_logins(&mut self, counts: FailedLoginCounts) {
        for (name, help, count) in [
            ("failed_logins_total", "Logins that failed", counts.failed),
            ("delayed_logins_total", "Logins delayed by failed logins of their address", counts.delayed),
            ("refused_logins_total", "Logins rejected after many failed logins of their address", counts.refused),
        ] {
            self.family(
                name,
                help,
                MetricType::Counter,
                vec![MetricSample::number(MetricType::Counter, &[], count as f64)],
            );
        }
    }

    /// Adds the distributions of durations by database.
    fn durations(&mut self, spreads: &BTreeMap<Arc<str>, Spread>) {
        for DurationMetric { name, help, of } in DURATIONS {
            let sample = |(database, spread)| MetricSample::histogram(&[("database", database)], of(spread));
            let samples = spreads.iter().map(|(database, spread)| (&**database, spread)).map(sample).collect();
            self.family(name, help, MetricType::Histogram, samples);
        }
    }

    /// Adds columns of a table; each row has its labels.
    fn table(&mut self, prefix: &str, metrics: &[ColumnMetric], table: &ResultTable, labels: &[&str]) {
        let at = |name: &str| table.columns.iter().position(|column| column.name == name);
        for metric in metrics {
            let Some(column) = at(metric.column) else { continue };
            let mut samples = Vec::with_capacity(table.rows.len());
            for row in &table.rows {
                let text = |label: &&str| at(label).and_then(|at| row.get(at)).map(text_of).unwrap_or_default();
                let values: Vec<String> = labels.iter().map(text).collect();
                let pairs: Vec<_> = labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                if let Some(value) = row.get(column).and_then(number) {
                    samples.push(MetricSample::number(metric.metric_type, &pairs, value * metric.unit));
                }
            }
            self.family(&format!("{prefix}{}", metric.name), metric.help, metric.metric_type, samples);
        }
    }
}

fn number(value: &TableCell) -> Option<f64> {
    match value {
        TableCell::Number(number) => Some(*number as f64),
        TableCell::Text(_) | TableCell::Null => None,
    }
}

fn text_of(value: &TableCell) -> String {
    match value {
        TableCell::Number(number) => number.to_string(),
        TableCell::Text(text) => text.to_string(),
        TableCell::Null => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_format_is_chosen() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        for (accept, expected) in [
            (String::new(), ExpositionFormat::Text),
            ("*/*".into(), ExpositionFormat::Text),
            (protobuf.into(), ExpositionFormat::Protobuf),
            // Sent by Prometheus with and without native histograms.
            (
                format!("{protobuf};q=0.5,application/openmetrics-text;version=1.0.0;q=0.4,text/plain;q=0.3,*/*;q=0.2"),
                ExpositionFormat::Protobuf,
            ),
            (
                format!("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4,{protobuf};q=0.3,*/*;q=0.2"),
                ExpositionFormat::Text,
            ),
            (protobuf.replace("delimited", "text"), ExpositionFormat::Text),
            (format!("{protobuf}; q=0"), ExpositionFormat::Text),
            (format!("{protobuf}; q=x"), ExpositionFormat::Text),
        ] {
            let mut head = HeaderMap::new();
            head.insert(header::ACCEPT, accept.parse().expect("a header"));
            assert_eq!(ExpositionFormat::negotiate(&head), expected, "{accept}");
        }
    }

    #[test]
    fn metrics_refer_to_existing_columns() {
        let has =
            |topic: ShowTopic, metric: &ColumnMetric| topic.columns().iter().any(|column| column.name == metric.column);
        assert!(DATABASES.iter().all(|metric| has(ShowTopic::Databases, metric)));
        assert!(POOLS.iter().all(|metric| has(ShowTopic::Pools, metric)));
        assert!(STATS.iter().all(|metric| has(ShowTopic::StatsTotals, metric)));
        assert!(HOSTS.iter().all(|metric| has(ShowTopic::Hosts, metric)));
        assert!(STREAMS.iter().all(|metric| has(ShowTopic::Streams, metric)));
    }
}
