//! Spans of queries at a collector: names, parents, sampling, and a collector that fails.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU16, Ordering},
};
use std::thread;

use prost::Message as _;
use tidegate_testkit::{Fixture, Frames, Gateway, Signal, TIMEOUT, eventually, on_each_postgres};

/// The parts of OTLP's messages that the tests read (`opentelemetry/proto/trace/v1/trace.proto`).
#[derive(Clone, PartialEq, prost::Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_nanos: u64,
    #[prost(fixed64, tag = "8")]
    end_nanos: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<SpanStatus>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SpanStatus {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(oneof = "AnyValueKind", tags = "1, 3")]
    kind: Option<AnyValueKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnyValueKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Integer(i64),
}

fn attributes(values: &[KeyValue]) -> BTreeMap<String, String> {
    let shown = |value: &KeyValue| match value.value.as_ref().and_then(|any| any.kind.clone()) {
        Some(AnyValueKind::Text(text)) => text,
        Some(AnyValueKind::Integer(number)) => number.to_string(),
        None => String::new(),
    };
    values.iter().map(|value| (value.key.clone(), shown(value))).collect()
}

impl Span {
    fn get(&self, key: &str) -> Option<String> {
        attributes(&self.attributes).remove(key)
    }

    fn is_of(&self, text: &str) -> bool {
        self.get("db.query.text").is_some_and(|statement| statement.contains(text))
    }
}

/// An OTLP collector over HTTP.
struct Collector {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<(String, ExportRequest)>>>,
    /// Status of the answers; 0 for none.
    status: Arc<AtomicU16>,
}

impl Collector {
    fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let collector = Self { address, requests: Arc::default(), status: Arc::new(status.into()) };
        let (requests, status) = (collector.requests.clone(), collector.status.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (requests, status) = (requests.clone(), status.clone());
                thread::spawn(move || serve(&stream, &requests, &status));
            }
        });
        collector
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().expect("no panic");
        let scopes = requests.iter().flat_map(|(_, request)| &request.resource_spans).flat_map(|r| &r.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Waits for the span of a statement.
    #[track_caller]
    fn span_of(&self, text: &str) -> Span {
        eventually(&format!("a span of {text}"), || self.spans().iter().any(|span| span.is_of(text)));
        self.spans().into_iter().find(|span| span.is_of(text)).expect("found above")
    }
}

/// Answers the requests of a connection.
fn serve(mut stream: &TcpStream, requests: &Mutex<Vec<(String, ExportRequest)>>, status: &AtomicU16) {
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor can be duplicated"));
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
            head.push_str(&std::mem::take(&mut line));
        }
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let Some(length) = length else { return };
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let status = status.load(Ordering::SeqCst);
        if status == 0 {
            // The exporter's limit ends the request.
            continue;
        }
        if status == 200 {
            let request = ExportRequest::decode(&*body).expect("a valid request");
            requests.lock().expect("no panic").push((head, request));
        }
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

struct TracedGateway {
    gateway: Gateway,
    _folder: tempfile::TempDir,
}

/// A gateway that exports to the collector; `keys` go into `[traces]`.
fn traced(fixture: &Fixture, collector: &Collector, keys: &str) -> TracedGateway {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let config = format!(
        "size = 2\n[journal]\nfolder = \"{}\"\nlinger = \"10ms\"\n[traces]\nendpoint = \"http://{}\"\n\
         interval = \"50ms\"\n{keys}\n",
        folder.path().join("journal").display(),
        collector.address,
    );
    TracedGateway { gateway: fixture.gateway(&config), _folder: folder }
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn traceparent(span: u64, flags: u8) -> String {
    format!("00-{TRACE}-{span:016x}-{flags:02x}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

on_each_postgres! {
    /// OP-31, OP-36.
    fn span_has_the_names_of_the_conventions(fixture) {
        let collector = Collector::start(200);
        let traced = traced(fixture, &collector, "sample_one_in = 1\nservice_name = \"edge\"\nheaders = { api-key = \"k3y\" }");
        let mut client = traced.gateway.startup("postgres").parameter("application_name", "shop").connect();
        client.ok("select 4711 as answer, 'canary'");
        let span = collector.span_of("as answer");
        assert_eq!((span.name.as_str(), span.kind, span.flags & 1), ("SELECT postgres", 3, 1));
        assert_eq!((span.trace_id.len(), span.span_id.len(), span.parent_span_id.len()), (16, 8, 0));
        assert!(span.start_nanos > 1_700_000_000_000_000_000 && span.start_nanos <= span.end_nanos, "{span:?}");
        assert_eq!(span.status, None);
        let server = fixture.server.address();
        for (key, value) in [
            ("db.system.name", "postgresql"),
            ("db.namespace", "postgres"),
            ("db.operation.name", "SELECT"),
            ("db.query.text", "select ? as answer, ?"),
            ("db.response.returned_rows", "1"),
            ("server.port", &server.port().to_string()),
            ("tidegate.user", "postgres"),
            ("tidegate.application", "shop"),
        ] {
            assert_eq!(span.get(key).as_deref(), Some(value), "{key}: {span:?}");
        }
        client.query("select no_such_column as failing");
        let failed = collector.span_of("as failing");
        assert_eq!(failed.status.as_ref().map(|status| status.code), Some(2));
        assert_eq!(failed.get("db.response.status_code").as_deref(), Some("42703"));
        assert_eq!(failed.get("error.type").as_deref(), Some("42703"));
        let requests = collector.requests.lock().expect("no panic");
        let (head, first) = &requests[0];
        assert!(head.starts_with("POST /v1/traces ") && head.contains("application/x-protobuf"), "{head}");
        assert!(head.contains("api-key: k3y"), "{head}");
        let resource = first.resource_spans[0].resource.as_ref().expect("a resource");
        assert_eq!(attributes(&resource.attributes).get("service.name").map(String::as_str), Some("edge"));
        drop(requests);
        assert!(!format!("{:?}", collector.spans()).contains("canary"));
        assert!(!traced.gateway.log().contains("k3y"));
    }

    /// OP-32: The parent and its flag come from a comment, in every protocol, or from the transaction.
    fn parent_comes_from_comment_or_transaction(fixture) {
        let collector = Collector::start(200);
        let traced = traced(fixture, &collector, "sample_one_in = 0\nsample_errors = false");
        let mut client = traced.gateway.client("postgres");
        let parent_of = |text: &str| {
            let span = collector.span_of(text);
            assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
            u64::from_str_radix(&hex(&span.parent_span_id), 16).expect("a parent")
        };
        let with = |text: &str, span, flags| format!("{text} /*action='x',traceparent='{}'*/", traceparent(span, flags));
        client.ok(&with("select 1 as simple", 0xa1, 1));
        assert_eq!(parent_of("as simple"), 0xa1);
        client.send(&Frames::new().once(&with("select 2 as unnamed", 0xa2, 1)).sync());
        client.until_ready();
        assert_eq!(parent_of("as unnamed"), 0xa2);
        let named = Frames::new().parse("s", &with("select 3 as named", 0xa3, 1)).bind("s", &[]).execute().sync();
        client.send(&named);
        client.until_ready();
        assert_eq!(parent_of("as named"), 0xa3);
        client.ok("begin");
        client.ok(&format!("SET LOCAL tidegate.traceparent = '{}'", traceparent(0xa4, 1)));
        client.ok("select 4 as inside");
        client.ok("commit");
        assert_eq!(parent_of("as inside"), 0xa4);
        // Neither a flag of 0 nor a statement without a parent is sampled.
        client.ok(&with("select 5 as unsampled", 0xa5, 0));
        client.ok("select 6 as outside");
        client.ok(&with("select 7 as last", 0xa7, 1));
        assert_eq!(parent_of("as last"), 0xa7);
        let unexpected = collector.spans().into_iter().find(|span| span.is_of("as unsampled") || span.is_of("as outside"));
        assert_eq!(unexpected, None);
    }

    /// OP-33.
    fn comments_do_not_defeat_statement_sharing(fixture) {
        let collector = Collector::start(200);
        let traced = traced(fixture, &collector, "sample_one_in = 1");
        let mut fingerprints = std::collections::BTreeSet::new();
        for span in 1..=20 {
            let mut client = traced.gateway.client("postgres");
            let text = format!("select {span} + $1::int as shared /*traceparent='{}'*/", traceparent(span, 1));
            let text = text.replace(&format!("select {span} "), "select 1 ");
            client.send(&Frames::new().parse("s", &text).bind("s", &["1"]).execute().sync());
            assert_eq!(client.until_ready().error, None);
        }
        eventually("all spans", || collector.spans().iter().filter(|span| span.is_of("as shared")).count() == 20);
        for span in collector.spans().iter().filter(|span| span.is_of("as shared")) {
            fingerprints.insert(span.get("tidegate.fingerprint"));
        }
        assert_eq!(fingerprints.len(), 1, "{fingerprints:?}");
        let servers = traced.gateway.show("SERVERS");
        let prepared: Vec<&str> = servers.iter().map(|row| row["prepared_statements"].as_str()).collect();
        assert!(prepared.iter().all(|count| *count == "1" || *count == "0"), "{prepared:?}");
    }

    /// OP-34: A collector that fails, or never answers, delays nothing; every loss is counted.
    fn failing_collector_delays_no_query(fixture) {
        for status in [0, 503, 400] {
            let collector = Collector::start(status);
            let keys = "sample_one_in = 1\ntimeout = \"200ms\"\nretry_timeout = \"300ms\"\nqueue_bytes = 65536";
            let mut traced = traced(fixture, &collector, keys);
            let mut client = traced.gateway.client("postgres");
            for _ in 0..2_000 {
                client.ok("select 1 as busy");
            }
            eventually("the failure is logged once", || traced.gateway.log().contains("does not accept spans"));
            collector.status.store(200, Ordering::SeqCst);
            // Spans that wait may all have been given up before: a query makes another one. New spans are dropped until the
            // queue has room.
            eventually("the recovery is logged", || {
                client.ok("select 2 as recovered");
                traced.gateway.log().contains("accepts spans again")
            });
            eventually("a span after the recovery", || {
                client.ok("select 2 as recovered");
                collector.spans().iter().any(|span| span.is_of("as recovered"))
            });
            traced.gateway.signal(Signal::INT);
            traced.gateway.wait();
            let log = traced.gateway.log();
            assert_eq!(log.matches("does not accept spans").count(), 1, "{status}: {log}");
        }
    }

    /// Records become spans without a folder, and are kept nowhere.
    fn refused_connection_to_the_collector_is_named(fixture) {
        let keys = format!(
            "size = 1\n[traces]\nendpoint = \"http://{}\"\nsample_one_in = 1\n",
            tidegate_testkit::free_address(20_000..30_000)
        );
        let gateway = fixture.gateway(&keys);
        gateway.client("postgres").ok("select 1");
        eventually("the cause is logged", || {
            let log = gateway.log();
            log.lines().any(|line| line.contains("does not accept spans") && line.contains("Connection refused"))
        });
    }

    fn traces_need_no_query_log(fixture) {
        let collector = Collector::start(200);
        let config = format!(
            "size = 2\n[traces]\nendpoint = \"http://{}\"\ninterval = \"50ms\"\n\
             sample_one_in = 1\n",
            collector.address
        );
        let mut gateway = fixture.gateway(&config);
        let mut client = gateway.client("postgres");
        client.ok("select 1 as first");
        assert_eq!(collector.span_of("as first").name, "SELECT postgres");
        let journal = gateway.show("JOURNAL");
        assert!(journal.iter().any(|row| row["key"] == "folder" && row["value"].is_empty()), "{journal:?}");
        client.ok("select 2 as last");
        gateway.signal(Signal::INT);
        assert!(gateway.wait().success());
        assert_eq!(collector.spans().iter().filter(|span| span.is_of("as last")).count(), 1);
    }

    /// The last spans are sent before the process ends.
    fn shutdown_sends_the_last_spans(fixture) {
        let collector = Collector::start(200);
        let mut traced = traced(fixture, &collector, "sample_one_in = 1\nbatch_spans = 100000");
        traced.gateway.client("postgres").ok("select 1 as last_query");
        traced.gateway.signal(Signal::INT);
        assert!(traced.gateway.wait().success());
        assert_eq!(collector.spans().iter().filter(|span| span.is_of("as last_query")).count(), 1);
    }
}
