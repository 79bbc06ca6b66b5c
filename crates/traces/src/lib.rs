//! Exports spans of queries to an OpenTelemetry collector by OTLP over HTTP.
//!
//! # Contract
//!
//! - The queue of spans is bounded, and no query waits for it: `tidegate-query-log` fills it on the journal's thread.
//! - A batch is sent until the collector accepts or rejects it, or `retry_timeout` is over. Each outcome is counted.
//! - [`TraceExporter::flush`] ends within its deadline, so a dead collector does not delay the end of the process.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate_config::TracesConfig;
//! use tidegate_traces::TraceExporter;
//!
//! # async fn example() -> Result<(), tidegate_traces::TraceExporterError> {
//! let config = TracesConfig { endpoint: "http://127.0.0.1:4318".to_owned(), ..TracesConfig::default() };
//! let exporter = TraceExporter::new(&config)?;
//! let queue = exporter.queue(); // for `QueryLog::open`
//! exporter.run().await;
//! # drop(queue);
//! # Ok(())
//! # }
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use prost::Message as _;
use tidegate_backoff::Backoff;
use tidegate_config::TracesConfig;
use tidegate_query_log::spans::{SpanQueue, TakenBatch, request_body};
use tokio::sync::Notify;

/// Path of the signal below the endpoint.
const PATH: &str = "/v1/traces";
/// Limit of a response.
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// Pauses between attempts.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Limit of a collector's Retry-After.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Why an exporter cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceExporterError {
    /// The endpoint is no URL.
    #[error("endpoint of [traces] is invalid: write http://HOST:4318 or https://HOST")]
    Endpoint,
    /// A header is invalid; its value is not repeated.
    #[error("header {0} of [traces] is invalid")]
    Header(String),
    /// The authorities cannot be read.
    #[error("ca_file of [traces] cannot be used: {0}")]
    Tls(String),
}

/// Answer of a collector.
#[derive(Clone, PartialEq, prost::Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// Outcome of a request.
enum ExportOutcome {
    /// Accepted, but for so many spans.
    Accepted(u64),
    /// May be repeated, not before this time.
    Retry(String, Option<Duration>),
    /// Would fail again.
    Rejected(String),
}

/// Sends batches of spans to a collector.
pub struct TraceExporter {
    queue: Arc<SpanQueue>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
    service: String,
    instance: String,
    interval: Duration,
    timeout: Duration,
    retry_timeout: Duration,
    full: Arc<Notify>,
    /// The last request failed: state changes are logged, not each failure.
    is_failing: AtomicBool,
}

impl TraceExporter {
    /// Creates an exporter and its queue.
    ///
    /// # Errors
    /// The endpoint, a header or the authorities cannot be used.
    pub fn new(config: &TracesConfig) -> Result<Self, TraceExporterError> {
        let base = config.endpoint.trim_end_matches('/');
        let uri: Uri = format!("{base}{PATH}").parse().map_err(|_| TraceExporterError::Endpoint)?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(TraceExporterError::Endpoint);
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in &config.headers.0 {
            let invalid = || TraceExporterError::Header(name.clone());
            let mut secret = HeaderValue::try_from(value.as_str()).map_err(|_| invalid())?;
            secret.set_sensitive(true);
            headers.insert(HeaderName::try_from(name).map_err(|_| invalid())?, secret);
        }
        let tls = tidegate_tls::for_web_with(&config.ca_file, "".as_ref(), "".as_ref())
            .map_err(|error| TraceExporterError::Tls(error.to_string()))?;
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_connect_timeout(Some(config.timeout));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client =
            Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector.wrap_connector(plain));
        let full = Arc::new(Notify::new());
        let wake = full.clone();
        Ok(Self {
            queue: SpanQueue::new(config, move || wake.notify_one()),
            client,
            uri,
            headers,
            service: config.service_name.clone(),
            instance: format!("{:016x}", fastrand::u64(..)),
            interval: config.interval,
            timeout: config.timeout,
            retry_timeout: config.retry_timeout,
            full,
            is_failing: AtomicBool::new(false),
        })
    }

    /// The queue, for the query log and for metrics.
    #[must_use]
    pub fn queue(&self) -> Arc<SpanQueue> {
        self.queue.clone()
    }

    /// Sends batches forever: full ones immediately, others after `interval`.
    ///
    /// # Cancel safety
    /// Safe: the batch that is being sent returns to the queue, for [`flush`](Self::flush). It may arrive twice.
    pub async fn run(&self) {
        loop {
            let _ = tokio::time::timeout(self.interval, self.full.notified()).await;
            while let Some(batch) = self.queue.take() {
                self.send(batch, Instant::now() + self.retry_timeout).await;
            }
        }
    }

    /// Sends what is queued, within a deadline; the rest is counted as dropped.
    pub async fn flush(&self, deadline: Instant) {
        while let Some(batch) = self.queue.take() {
            self.send(batch, deadline).await;
        }
    }

    /// Sends a batch until there is a final answer or the deadline is over.
    async fn send(&self, batch: TakenBatch<'_>, deadline: Instant) {
        let body = Bytes::from(request_body(&self.service, &self.instance, batch.bytes()));
        let (first, max) = RETRY;
        let backoff = Backoff::new(first, max);
        for failures in 1_u32.. {
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = match tokio::time::timeout(self.timeout.min(left), self.request(body.clone())).await {
                Ok(outcome) => outcome,
                Err(_) => ExportOutcome::Retry("no answer in time".to_owned(), None),
            };
            let (reason, pause) = match outcome {
                ExportOutcome::Accepted(rejected) => {
                    batch.set_exported(rejected);
                    return self.report_success(rejected);
                }
                ExportOutcome::Rejected(reason) => (reason, None),
                ExportOutcome::Retry(reason, after) => {
                    let delay = backoff.delay(failures, fastrand::f64());
                    (reason, Some(after.map_or(delay, |after| after.max(delay))))
                }
            };
            self.queue.count_failed_request();
            self.report_failure(&reason);
            match pause.filter(|pause| Instant::now() + *pause < deadline) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return batch.set_dropped(),
            }
        }
    }

    async fn request(&self, body: Bytes) -> ExportOutcome {
        let length = HeaderValue::from(body.len());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_LENGTH, length);
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                return ExportOutcome::Retry(causes(&error), None);
            }
        };
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let after = after.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
        match status {
            StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NO_CONTENT => {
                // An answer that cannot be read is still a success.
                let answer = body.ok().and_then(|body| ExportResponse::decode(body.to_bytes()).ok());
                let rejected =
                    answer.and_then(|answer| answer.partial_success).map_or(0, |partial| partial.rejected_spans);
                ExportOutcome::Accepted(u64::try_from(rejected).unwrap_or_default())
            }
            // The statuses that OTLP allows to repeat.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => ExportOutcome::Retry(format!("status {status}"), after),
            _ => ExportOutcome::Rejected(format!("status {status}")),
        }
    }

    fn report_success(&self, rejected: u64) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            tracing::info!(endpoint = %self.shown_endpoint(), "traces: the collector accepts spans again");
        }
        if rejected > 0 {
            tracing::warn!(rejected, endpoint = %self.shown_endpoint(), "traces: the collector rejected spans");
        }
    }

    fn report_failure(&self, reason: &str) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            let endpoint = self.shown_endpoint();
            tracing::warn!(%endpoint, reason, "traces: the collector does not accept spans; a full queue drops them");
        }
    }

    /// Host and port: the rest of a URL may contain a secret.
    fn shown_endpoint(&self) -> String {
        let port = self.uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{port}", self.uri.host().unwrap_or_default())
    }
}

/// An error with its causes: the outermost one names a layer of the HTTP client only.
fn causes(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
