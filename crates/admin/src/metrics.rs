//! Figures for Prometheus, under the names, labels and units of `prometheus-community/pgbouncer_exporter`, so that
//! dashboards made for it work as they are; what PgBouncer has not, streams and a journal, is under names of our own. They
//! are the console's own tables, column by column.

mod family;
mod journal;

use std::{collections::BTreeMap, sync::Arc};

use hyper::{HeaderMap, header};
use prost::Message as _;

use self::family::{Family, Kind, Sample};
use super::{
    show::{Crowd, Figures, Topic},
    table::{Table, Value},
};
use tidegate_proxy::{
    plane::{FailedLoginCounts, Gateway},
    stats::{Distribution, Spread},
};
use tidegate_query_log::record::Archive;

/// A column of a table as a metric.
struct Metric {
    column: &'static str,
    name: &'static str,
    help: &'static str,
    kind: Kind,
    /// What one of the column is in the metric's unit.
    unit: f64,
}

const MICROSECOND: f64 = 1e-6;

const fn gauge(column: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric { column, name, help, kind: Kind::Gauge, unit: 1.0 }
}

const fn counter(column: &'static str, name: &'static str, help: &'static str, unit: f64) -> Metric {
    Metric { column, name, help, kind: Kind::Counter, unit }
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

/// Clients choose their application names, and could make any number of series.
const CLIENT_SERIES_MAX: usize = 1000;
/// The name under which the clients beyond that are counted.
const OTHER_NAMES: &str = "(others)";

/// A distribution of times that has no counterpart in the exporter.
struct Times {
    name: &'static str,
    help: &'static str,
    of: fn(&Spread) -> &Distribution,
}

const TIMES: &[Times] = &[
    Times { name: "client_wait_seconds", help: "Wait of each request for a server", of: |spread| &spread.wait },
    Times {
        name: "query_duration_seconds",
        help: "Time that a server worked on a query, or on a pipeline of queries",
        of: |spread| &spread.query,
    },
    Times {
        name: "transaction_duration_seconds",
        help: "Time that a transaction was open",
        of: |spread| &spread.transaction,
    },
];

/// How a scraper wants its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The text format, in which histograms are classic.
    Text,
    /// Messages of Protocol Buffers, each with its length before it; histograms are native too.
    Protobuf,
}

impl Format {
    /// What `Accept` asks for: the text format, unless the other is wanted at least as much.
    pub(super) fn asked_for(head: &HeaderMap) -> Self {
        let wanted = head.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut protobuf, mut text) = (0.0, 0.0);
        for range in wanted.flat_map(|list| list.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters: Vec<_> = parts.filter_map(|close_with| close_with.split_once('=')).collect();
            let given = |name: &str| {
                let found = parameters.iter().find(|(known, _)| known.trim().eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.trim().trim_matches('"'))
            };
            let weight = given("q").map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0));
            let best: &mut f32 = match kind.as_str() {
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

    /// Its `Content-Type`.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    fn encode(self, families: &[Family]) -> Vec<u8> {
        match self {
            Self::Text => {
                let mut text = String::new();
                families.iter().for_each(|family| family.write_text(&mut text));
                text.into_bytes()
            }
            Self::Protobuf => families.iter().flat_map(Family::encode_length_delimited_to_vec).collect(),
        }
    }
}

/// All metrics.
pub(super) async fn exposition(gateway: &Arc<Gateway>, format: Format) -> Vec<u8> {
    let mut page = Page::default();
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
    let figures = Figures::of(gateway);
    let databases = Topic::Databases.table(&figures).await;
    let labels = ["name", "host", "port", "database", "force_user", "pool_mode"];
    page.table("", DATABASES, &databases, &labels);
    page.table("", POOLS, &Topic::Pools.table(&figures).await, &["database", "user"]);
    page.clients(figures.crowd().await);
    let stats = Topic::StatsTotals.table(&figures).await;
    page.table("stats_totals_", STATS, &stats, &["database"]);
    // The name before exporter 0.8, which older dashboards ask for.
    page.table("stats_", STATS, &stats, &["database"]);
    let lists = Topic::Lists.table(&figures).await;
    for (list, name) in LISTS {
        let row = lists.rows.iter().find(|row| row.first().is_some_and(|value| shown(value) == *list));
        if let Some(count) = row.and_then(|row| number(row.get(1)?)) {
            page.one(name, "As in SHOW LISTS", &[], count);
        }
    }
    page.prefix = "tidegate";
    page.times(&gateway.spreads().await);
    page.failed_logins(gateway.clients.failed_logins.counts());
    let streams = Topic::Streams.table(&figures).await;
    if !streams.rows.is_empty() {
        page.states(&streams);
        page.table("", STREAMS, &streams, &["name"]);
    }
    if let Some(stats) = gateway.archive.as_ref().and_then(Archive::stats) {
        page.journal(&stats);
    }
    format.encode(&page.families)
}

struct Page {
    families: Vec<Family>,
    /// What all names begin with.
    prefix: &'static str,
}

impl Default for Page {
    fn default() -> Self {
        Self { families: Vec::new(), prefix: "pgbouncer" }
    }
}

impl Page {
    fn family(&mut self, name: &str, help: &str, kind: Kind, samples: Vec<Sample>) {
        let name = format!("{}_{name}", self.prefix);
        self.families.push(Family { name, help: help.to_owned(), kind: kind.into(), samples });
    }

    /// How many clients are alike in who they are, what they call themselves, and what they do.
    fn clients(&mut self, crowd: &Crowd) {
        let mut told: BTreeMap<[&str; 4], usize> = BTreeMap::new();
        for (kin, count) in &crowd.0 {
            let name = if told.len() < CLIENT_SERIES_MAX { kin.application_name.as_str() } else { OTHER_NAMES };
            *told.entry([name, &kin.key.database, kin.state, &kin.user]).or_default() += count;
        }
        let sample = |([name, database, state, user], count): (&[&str; 4], &usize)| {
            let labels = [("application_name", *name), ("database", database), ("state", state), ("user", user)];
            Sample::number(Kind::Gauge, &labels, *count as f64)
        };
        let samples = told.iter().map(sample).collect();
        let help = "Clients by database, user, application name and state";
        self.family("client_connections", help, Kind::Gauge, samples);
    }

    /// What each stream does, as a label.
    fn states(&mut self, streams: &Table) {
        let at = |name: &str| streams.columns.iter().position(|column| column.name == name);
        let (Some(name), Some(state)) = (at("name"), at("state")) else { return };
        let sample = |row: &Vec<Value>| {
            let text = |column: usize| row.get(column).map(shown).unwrap_or_default();
            Sample::number(Kind::Gauge, &[("name", &text(name)), ("state", &text(state))], 1.0)
        };
        let samples = streams.rows.iter().map(sample).collect();
        self.family("stream_state", "1 for the state that the stream is in", Kind::Gauge, samples);
    }

    fn one(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, help, Kind::Gauge, vec![Sample::number(Kind::Gauge, labels, value)]);
    }

    fn failed_logins(&mut self, counts: FailedLoginCounts) {
        for (name, help, count) in [
            ("failed_logins_total", "Logins that failed", counts.failed),
            ("delayed_logins_total", "Logins that waited for others of their address to fail", counts.delayed),
            ("refused_logins_total", "Logins refused after many failed ones of their address", counts.refused),
        ] {
            self.family(name, help, Kind::Counter, vec![Sample::number(Kind::Counter, &[], count as f64)]);
        }
    }

    /// How long things took in each database.
    fn times(&mut self, spreads: &BTreeMap<Arc<str>, Spread>) {
        for Times { name, help, of } in TIMES {
            let sample = |(database, spread)| Sample::histogram(&[("database", database)], of(spread));
            let samples = spreads.iter().map(|(database, spread)| (&**database, spread)).map(sample).collect();
            self.family(name, help, Kind::Histogram, samples);
        }
    }

    /// Columns of a table, each row with its labels.
    fn table(&mut self, prefix: &str, metrics: &[Metric], table: &Table, labels: &[&str]) {
        let at = |name: &str| table.columns.iter().position(|column| column.name == name);
        for metric in metrics {
            let Some(column) = at(metric.column) else { continue };
            let mut samples = Vec::with_capacity(table.rows.len());
            for row in &table.rows {
                let text = |label: &&str| at(label).and_then(|at| row.get(at)).map(shown).unwrap_or_default();
                let values: Vec<String> = labels.iter().map(text).collect();
                let pairs: Vec<_> = labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                if let Some(value) = row.get(column).and_then(number) {
                    samples.push(Sample::number(metric.kind, &pairs, value * metric.unit));
                }
            }
            self.family(&format!("{prefix}{}", metric.name), metric.help, metric.kind, samples);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_format_that_it_prefers() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        for (accept, expected) in [
            (String::new(), Format::Text),
            ("*/*".into(), Format::Text),
            (protobuf.into(), Format::Protobuf),
            // What Prometheus sends, with native histograms and without.
            (
                format!("{protobuf};q=0.5,application/openmetrics-text;version=1.0.0;q=0.4,text/plain;q=0.3,*/*;q=0.2"),
                Format::Protobuf,
            ),
            (
                format!("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4,{protobuf};q=0.3,*/*;q=0.2"),
                Format::Text,
            ),
            (protobuf.replace("delimited", "text"), Format::Text),
            (format!("{protobuf}; q=0"), Format::Text),
            (format!("{protobuf}; q=x"), Format::Text),
        ] {
            let mut head = HeaderMap::new();
            head.insert(header::ACCEPT, accept.parse().expect("a header"));
            assert_eq!(Format::asked_for(&head), expected, "{accept}");
        }
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
