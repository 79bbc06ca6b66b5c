//! Encodes spans and requests of OTLP (`opentelemetry/proto/trace/v1/trace.proto`), with the names of OpenTelemetry's
//! conventions for PostgreSQL (`docs/db/postgresql.md`).

use std::{cell::RefCell, net::IpAddr};

use tidegate_sql::{cache::NormalizeCache, normalize, trace_parent::TraceParent};

use super::{
    SpanRecord,
    protobuf::{begin, bytes, field_len, fixed32, fixed64, integer, integer_attribute, text_attribute},
};

// Fields of ScopeSpans and Span.
const SPANS: u32 = 2;
const TRACE_ID: u32 = 1;
const SPAN_ID: u32 = 2;
const PARENT_SPAN_ID: u32 = 4;
const NAME: u32 = 5;
const KIND: u32 = 6;
const START: u32 = 7;
const END: u32 = 8;
const ATTRIBUTES: u32 = 9;
const STATUS: u32 = 15;
const FLAGS: u32 = 16;

/// `SPAN_KIND_CLIENT`.
const CLIENT: u64 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;
/// `TRACE_FLAGS`: sampled.
const SAMPLED: u32 = 1;
/// `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE` and `SPAN_FLAGS_CONTEXT_IS_REMOTE`: the parent is in another process.
const REMOTE_PARENT: u32 = 0x300;
/// Limit of an operation name.
const OPERATION_BYTES_MAX: usize = 32;

thread_local! {
    /// Statements repeat, and normalising one costs as much as the rest of its span.
    static STATEMENTS: RefCell<NormalizeCache> = RefCell::default();
}

/// Encodes spans into reused buffers.
#[derive(Debug, Default)]
pub struct SpanEncoder {
    span: Vec<u8>,
    operation: String,
    name: String,
}

impl SpanEncoder {
    /// Appends a span as an element of `ScopeSpans.spans`.
    pub fn write(
        &mut self,
        record: &SpanRecord<'_>,
        parent: Option<&TraceParent>,
        trace_id: &[u8; 16],
        span_id: &[u8; 8],
        out: &mut Vec<u8>,
    ) {
        self.span.clear();
        bytes(TRACE_ID, trace_id, &mut self.span);
        bytes(SPAN_ID, span_id, &mut self.span);
        if let Some(parent) = parent {
            bytes(PARENT_SPAN_ID, &parent.span_id, &mut self.span);
        }
        self.set_operation(record);
        self.set_name(record);
        bytes(NAME, self.name.as_bytes(), &mut self.span);
        integer(KIND, CLIENT, &mut self.span);
        let end = record.time.micros().saturating_mul(1_000);
        let total = record.total_us.unwrap_or_default().saturating_mul(1_000);
        fixed64(START, end.saturating_sub(total), &mut self.span);
        fixed64(END, end, &mut self.span);
        self.attributes(record);
        if record.failed() {
            // The message of the error may quote values.
            begin(STATUS, 2, &mut self.span);
            integer(3, ERROR, &mut self.span);
        }
        fixed32(FLAGS, if parent.is_some() { SAMPLED | REMOTE_PARENT } else { SAMPLED }, &mut self.span);
        bytes(SPANS, &self.span, out);
    }

    /// The first command of the query, from its tag or, after an error, from its text.
    fn set_operation(&mut self, record: &SpanRecord<'_>) {
        self.operation.clear();
        let tag = record.tag.as_deref().map(|tags| tags.split(';').next().unwrap_or_default()).unwrap_or_default();
        let words = tag.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let statement = record.statement.as_deref().unwrap_or_default().as_bytes();
        let first_word = || String::from_utf8_lossy(normalize::first_word(statement)).to_ascii_uppercase();
        self.operation.push_str(words);
        if self.operation.is_empty() {
            self.operation.push_str(&first_word());
        }
        if self.operation.len() > OPERATION_BYTES_MAX
            || !self.operation.bytes().all(|b| b.is_ascii_alphabetic() || b == b' ')
        {
            self.operation.clear();
        }
    }

    /// `{db.operation.name} {db.namespace}`, or what there is of it.
    fn set_name(&mut self, record: &SpanRecord<'_>) {
        self.name.clear();
        self.name.push_str(&self.operation);
        if let Some(database) = &record.database {
            if !self.name.is_empty() {
                self.name.push(' ');
            }
            self.name.push_str(database);
        }
        if self.name.is_empty() {
            self.name.push_str("postgresql");
        }
    }

    fn attributes(&mut self, record: &SpanRecord<'_>) {
        let Self { span, operation, .. } = self;
        let mut put = |key: &str, value: &str| text_attribute(ATTRIBUTES, key, value, span);
        put("db.system.name", "postgresql");
        if let Some(database) = &record.database {
            put("db.namespace", database);
        }
        if !operation.is_empty() {
            put("db.operation.name", operation);
        }
        if let Some(statement) = &record.statement {
            // Literals may be personal data, whatever form the query log has.
            STATEMENTS.with_borrow_mut(|statements| {
                let normalized = statements.normalize_text(statement.as_bytes());
                put("db.query.text", &String::from_utf8_lossy(normalized.text()));
            });
        }
        if let Some(sqlstate) = &record.sqlstate {
            put("db.response.status_code", sqlstate);
            if record.failed() {
                put("error.type", sqlstate);
            }
        }
        let (host, port) = record.server.as_deref().map_or(("", None), split_address);
        if !host.is_empty() {
            put("server.address", host);
            if host.parse::<IpAddr>().is_ok() {
                put("network.peer.address", host);
            }
        }
        let (client, client_port) = record.client.as_deref().map_or(("", None), split_address);
        if !client.is_empty() {
            put("client.address", client);
        }
        for (key, value) in [
            ("tidegate.user", &record.user),
            ("tidegate.application", &record.application),
            ("tidegate.fingerprint", &record.fingerprint),
        ] {
            if let Some(value) = value {
                put(key, value);
            }
        }
        let batch = record.queries.filter(|queries| *queries > 1);
        for (key, value) in [
            ("server.port", port),
            ("client.port", client_port),
            ("db.operation.batch.size", batch),
            ("db.response.returned_rows", record.rows.filter(|_| operation.as_str() == "SELECT")),
            ("tidegate.wait_us", record.wait_us),
            ("tidegate.server_us", record.server_us),
        ] {
            if let Some(value) = value {
                integer_attribute(ATTRIBUTES, key, value, span);
            }
        }
    }
}

/// Host and port of `host:port` or `[address]:port`. The socket of a local server is its path.
fn split_address(address: &str) -> (&str, Option<u64>) {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !address.starts_with('/') => (host, port.parse().ok()),
        _ => (address, None),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

/// The body of a request: `ExportTraceServiceRequest` around encoded spans.
#[must_use]
pub fn request_body(service: &str, instance: &str, spans: &[u8]) -> Vec<u8> {
    let mut resource = Vec::new();
    text_attribute(1, "service.name", service, &mut resource);
    text_attribute(1, "service.version", env!("CARGO_PKG_VERSION"), &mut resource);
    text_attribute(1, "service.instance.id", instance, &mut resource);
    let mut scope = Vec::new();
    bytes(1, b"tidegate", &mut scope);
    bytes(2, env!("CARGO_PKG_VERSION").as_bytes(), &mut scope);
    let scope_spans = field_len(1, scope.len()) + spans.len();
    let resource_spans = field_len(1, resource.len()) + field_len(2, scope_spans);
    let mut out = Vec::with_capacity(resource_spans + 16);
    begin(1, resource_spans, &mut out);
    bytes(1, &resource, &mut out);
    begin(2, scope_spans, &mut out);
    bytes(1, &scope, &mut out);
    out.extend_from_slice(spans);
    out
}
