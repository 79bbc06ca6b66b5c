//! The metrics endpoint: the names of pgbouncer_exporter, and native histograms.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
};

use prost::Message;
use tidegate_testkit::{Frames, TIMEOUT, eventually};

use crate::ini_gateway::{IniGateway, Setup, free_port_of};

/// Sends a GET request. Returns the head and the body of the response.
fn request(port: u16, path: &str, accept: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the endpoint accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n")
        .expect("the request is sent");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("the response ends");
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    let body = response.split_off(end + 4);
    (String::from_utf8(response).expect("a head is text"), body)
}

/// Sends a GET request, and returns the response as text.
pub(crate) fn get(port: u16, path: &str) -> String {
    let (head, body) = request(port, path, "*/*");
    head + &String::from_utf8(body).expect("the body is text")
}

/// All metrics of pgbouncer_exporter 0.12.0 with PgBouncer 1.26.1, and `databases_reserve_pool` of older versions.
const EXPORTED: &[&str] = &[
    "cached_dns_names",
    "cached_dns_zones",
    "client_connections",
    "config_max_client_connections",
    "config_max_user_connections",
    "databases",
    "databases_current_connections",
    "databases_disabled",
    "databases_max_connections",
    "databases_paused",
    "databases_pool_size",
    "databases_reserve_pool",
    "free_clients",
    "free_servers",
    "in_flight_dns_queries",
    "login_clients",
    "pools",
    "pools_client_active_cancel_connections",
    "pools_client_active_connections",
    "pools_client_maxwait_seconds",
    "pools_client_waiting_cancel_connections",
    "pools_client_waiting_connections",
    "pools_server_active_cancel_connections",
    "pools_server_active_connections",
    "pools_server_being_canceled_connections",
    "pools_server_idle_connections",
    "pools_server_login_connections",
    "pools_server_testing_connections",
    "pools_server_used_connections",
    "stats_totals_binds_total",
    "stats_totals_client_parses_total",
    "stats_totals_client_wait_seconds_total",
    "stats_totals_queries_duration_seconds_total",
    "stats_totals_queries_pooled_total",
    "stats_totals_received_bytes_total",
    "stats_totals_sent_bytes_total",
    "stats_totals_server_assignments_total",
    "stats_totals_server_in_transaction_seconds_total",
    "stats_totals_server_parses_total",
    "stats_totals_sql_transactions_pooled_total",
    "up",
    "used_clients",
    "used_servers",
    "users",
    "version_info",
];

#[test]
fn metrics_of_pgbouncer_exporter_are_present() {
    // The range of ports is used by this target alone.
    let port = free_port_of(30_000..32_000);
    let address = format!("127.0.0.1:{port}");
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres pool_size=4\n[pgbouncer]\nmax_client_conn = 77\n",
        options: &["--metrics", &address],
        ..Setup::default()
    });
    let mut client = gateway.client("shop");
    for _ in 0..3 {
        client.ok("select 1");
    }
    client.ok("begin");
    let page = get(port, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("text/plain"), "{page}");
    for line in [
        "pgbouncer_up 1",
        "pgbouncer_config_max_client_connections 77",
        "pgbouncer_pools_server_active_connections{database=\"shop\",user=\"postgres\"} 1",
        "pgbouncer_pools_client_active_connections{database=\"shop\",user=\"postgres\"} 1",
        "pgbouncer_client_connections{application_name=\"\",database=\"shop\",state=\"active\",user=\"postgres\"} 1",
        "# TYPE pgbouncer_stats_totals_queries_pooled_total counter",
    ] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
    // Monitors and `curl -I` send HEAD requests.
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the port is open");
    stream.write_all(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("the request is sent");
    let mut head = String::new();
    stream.read_to_string(&mut head).expect("a response");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    // The exporter reports the console like a database.
    let console = format!(
        "name=\"pgbouncer\",host=\"\",port=\"{}\",database=\"pgbouncer\",force_user=\"pgbouncer\",pool_mode=\"statement\"",
        gateway.port()
    );
    let _console = gateway.console();
    let with_console = get(port, "/metrics");
    for line in [
        &format!("pgbouncer_databases_pool_size{{{console}}} 2"),
        "pgbouncer_pools_client_active_connections{database=\"pgbouncer\",user=\"pgbouncer\"} 1",
        "pgbouncer_stats_totals_client_logins_total{database=\"pgbouncer\"} 1",
    ] {
        assert!(with_console.lines().any(|known| known == line), "{line} is not in\n{with_console}");
    }
    for name in EXPORTED {
        let line = format!("# TYPE pgbouncer_{name} ");
        assert!(page.contains(&line), "{name} is not in\n{page}");
    }
    let labels = format!("name=\"shop\",host=\"127.0.0.1\",port=\"{}\"", crate::ini_gateway::server().port());
    assert!(page.contains(&format!("pgbouncer_databases_pool_size{{{labels}")), "{page}");
    client.ok("commit");
    eventually("queries are counted", || {
        let page = get(port, "/metrics");
        let line = page
            .lines()
            .find(|line| line.starts_with("pgbouncer_stats_totals_queries_pooled_total{database=\"shop\"}"));
        line.and_then(|line| line.rsplit(' ').next())
            .and_then(|count| count.parse::<f64>().ok())
            .is_some_and(|count| count >= 5.0)
    });
    assert!(get(port, "/nothing").starts_with("HTTP/1.1 404"));
}

/// The Accept header of a scraper with support for native histograms.
const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.5,\
                        text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

/// The messages of `io.prometheus.client`, declared here independently, so that the test decodes them like a scraper.
#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(double, tag = "1")]
    value: f64,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, tag = "1")]
    sample_count: u64,
    #[prost(double, tag = "2")]
    sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    buckets: Vec<ClassicBucket>,
    #[prost(sint32, tag = "5")]
    schema: i32,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    positive_spans: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    positive_deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ClassicBucket {
    #[prost(uint64, tag = "1")]
    cumulative_count: u64,
    #[prost(double, tag = "2")]
    upper_bound: f64,
}

#[derive(Clone, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

impl Histogram {
    /// The native buckets: the bound of each in seconds, and its count.
    fn native(&self) -> Vec<(f64, u64)> {
        let (mut buckets, mut deltas, mut number, mut count) = (Vec::new(), self.positive_deltas.iter(), 0, 0_i64);
        for span in &self.positive_spans {
            number += span.offset;
            for _ in 0..span.length {
                count += deltas.next().expect("a delta for each bucket");
                let bound = f64::from(number) * f64::from(-self.schema).exp2();
                buckets.push((bound.exp2(), u64::try_from(count).expect("a count is not negative")));
                number += 1;
            }
        }
        assert!(deltas.next().is_none(), "more deltas than buckets");
        buckets
    }

    /// The number of samples in the buckets.
    fn count(&self) -> u64 {
        self.zero_count + self.native().iter().map(|(_, count)| count).sum::<u64>()
    }

    fn at_most(&self, seconds: f64) -> u64 {
        self.zero_count
            + self.native().iter().filter(|(bound, _)| *bound <= seconds).map(|(_, count)| count).sum::<u64>()
    }
}

/// All metric families of one scrape by name.
fn scrape(port: u16) -> BTreeMap<String, MetricFamily> {
    let (head, body) = request(port, "/metrics", PROTOBUF);
    assert!(head.contains("application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily"), "{head}");
    let mut rest = body.as_slice();
    let mut families = BTreeMap::new();
    while !rest.is_empty() {
        let family = MetricFamily::decode_length_delimited(&mut rest).expect("a message");
        let before = families.insert(family.name.clone(), family);
        assert!(before.is_none(), "{before:?} occurs twice");
    }
    families
}

impl MetricFamily {
    /// The metric of a database.
    fn of(&self, database: &str) -> &Metric {
        let has =
            |metric: &&Metric| metric.labels.iter().any(|label| label.name == "database" && label.value == database);
        self.metrics.iter().find(has).unwrap_or_else(|| panic!("{database} is not in {self:?}"))
    }
}

#[test]
fn durations_are_native_histograms() {
    let port = free_port_of(30_000..32_000);
    let address = format!("127.0.0.1:{port}");
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres pool_size=1\n",
        options: &["--metrics", &address],
        ..Setup::default()
    });
    let mut client = gateway.client("shop");
    for _ in 0..20 {
        client.ok("select 1");
    }
    client.ok("select pg_sleep(0.1)");
    client.ok("begin");
    // The second client waits for the first.
    let mut second = gateway.client("shop");
    second.send(&Frames::new().query("select 2"));
    gateway.wait_for_pool("shop", "cl_waiting", 1);
    client.ok("commit");
    second.until_ready();
    // The counts are read when no query is in flight.
    let counted =
        gateway.show("STATS_TOTALS").into_iter().find(|row| row["database"] == "shop").expect("the database was used");
    let number = |column: &str| counted[column].parse::<u64>().expect("a number");
    let families = scrape(port);
    let histogram = |name: &str| {
        let family = &families[name];
        assert_eq!(family.kind, 4, "{family:?}");
        family.of("shop").histogram.clone().expect("a histogram")
    };
    for (name, count, time) in [
        ("tidegate_query_duration_seconds", "query_count", "query_time"),
        ("tidegate_transaction_duration_seconds", "xact_count", "xact_time"),
        ("tidegate_client_wait_seconds", "server_assignment_count", "wait_time"),
    ] {
        let histogram = histogram(name);
        assert_eq!(
            (histogram.sample_count, histogram.count()),
            (number(count), number(count)),
            "{name}: {histogram:?}"
        );
        assert_eq!((histogram.sample_sum * 1e6).round() as u64, number(time), "{name}: {histogram:?}");
        assert_eq!(histogram.schema, 3);
        for bucket in &histogram.buckets {
            assert_eq!(histogram.at_most(bucket.upper_bound), bucket.cumulative_count, "{name}: {histogram:?}");
        }
    }
    let queries = histogram("tidegate_query_duration_seconds");
    assert_eq!(queries.sample_count - queries.at_most(0.09), 1, "the slow query: {queries:?}");
    let waits = histogram("tidegate_client_wait_seconds");
    assert_eq!((waits.sample_count - waits.zero_count, waits.zero_count), (1, 22), "{waits:?}");
    // The names of the exporter are present with the same values.
    let queries = families["pgbouncer_stats_totals_queries_pooled_total"].of("shop").counter.clone();
    assert_eq!(queries.expect("a counter").value as u64, number("query_count"));
    assert!(families["pgbouncer_up"].metrics[0].gauge.as_ref().is_some_and(|up| up.value == 1.0));
    // The text format has classic histograms.
    let page = get(port, "/metrics");
    let count = number("query_count");
    for line in [
        "# TYPE tidegate_query_duration_seconds histogram".to_owned(),
        format!("tidegate_query_duration_seconds_count{{database=\"shop\"}} {count}"),
        format!("tidegate_query_duration_seconds_bucket{{database=\"shop\",le=\"+Inf\"}} {count}"),
        format!("tidegate_query_duration_seconds_bucket{{database=\"shop\",le=\"64\"}} {count}"),
    ] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
}

/// The idle connections exceed the limit, at every stage of a request.
#[test]
fn idle_connections_do_not_block_a_scrape() {
    let port = free_port_of(30_000..32_000);
    let address = format!("127.0.0.1:{port}");
    let options = ["--metrics", address.as_str()];
    let gateway = IniGateway::with(&Setup { ini: "[databases]\nshop = $PG\n", options: &options, ..Setup::default() });
    for sent in ["", "GET /metrics HTTP/1.1\r\nhost: x\r\n", "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let silent: Vec<_> = (0..200)
            .map(|_| {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the endpoint accepts");
                stream.write_all(sent.as_bytes()).expect("the bytes are sent");
                stream
            })
            .collect();
        let page = get(port, "/metrics");
        assert!(page.starts_with("HTTP/1.1 200"), "{sent:?}: {page}");
        drop(silent);
    }
    drop(gateway);
}

/// The connection has sent no request, or has a complete response.
#[test]
fn idle_connection_is_closed() {
    let port = free_port_of(30_000..32_000);
    let address = format!("127.0.0.1:{port}");
    let options = ["--metrics", address.as_str()];
    let gateway = IniGateway::with(&Setup { ini: "[databases]\nshop = $PG\n", options: &options, ..Setup::default() });
    for sent in ["", "GET /", "GET / HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the endpoint accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        stream.write_all(sent.as_bytes()).expect("the bytes are sent");
        let mut response = Vec::new();
        stream
            .read_to_end(&mut response)
            .unwrap_or_else(|error| panic!("{sent:?}: the connection is not closed: {error}"));
        let response = String::from_utf8_lossy(&response);
        assert_eq!(response.starts_with("HTTP/1.1 200"), sent.ends_with("\r\n\r\n"), "{sent:?}: {response}");
    }
    drop(gateway);
}
