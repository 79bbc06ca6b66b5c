//! HTTP as a sink: a POST per record or batch; the status of the answer decides.

mod record_parts;

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tidegate_config::{
    stream::{BatchBy, StreamKeys, StreamSource, UrlTemplate},
    url::decode,
};
use tidegate_lanes::{Record, RecordFailure};
use tidegate_tls as tls;

use crate::{
    change::{self, header},
    encoding::RecordEncoder,
    error::{StreamError, error_chain},
    lane_names::LaneNames,
};

pub(crate) struct HttpSink {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    target: UrlTemplate,
    /// The target, if it is the same for every record.
    uri: Option<Uri>,
    headers: HeaderMap,
    /// Names of headers in the configuration, which headers of records do not replace.
    fixed: Vec<HeaderName>,
    record_headers: Vec<String>,
    encoder: RecordEncoder,
    is_batched: bool,
    is_across_keys: bool,
    /// Random id of this run for idempotency keys: positions in standard input start over with each run.
    run: Option<String>,
}

/// Limit of an answer, to be quoted or discarded; beyond it the connection is not reused.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Limit from the head of an answer to its end; beyond it the connection is not reused.
const BODY_LIMIT: Duration = Duration::from_secs(1);
/// Limit of an answer in the reason of a failure.
const QUOTED_CHARS_MAX: usize = 200;
/// Limit of a server's Retry-After.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(60);

impl HttpSink {
    pub(super) fn new(url: &str, keys: &StreamKeys, encoder: RecordEncoder) -> Result<Self, StreamError> {
        let (url, login) = split_login(url);
        let wrong = |error: String| StreamError::Sink(error);
        let target = UrlTemplate::parse(&url).map_err(|_| wrong("the URL of `to` is invalid".to_owned()))?;
        let uri = target.constant().map(str::parse).transpose();
        let uri = uri.map_err(|error| wrong(format!("the URL of `to` is invalid: {error}")))?;
        let mut headers = headers(keys)?;
        let fixed = keys.headers.0.iter().filter_map(|(name, _)| HeaderName::try_from(name).ok()).collect();
        if let (Some(login), false) = (login, headers.contains_key(AUTHORIZATION)) {
            let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(login));
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (AUTHORIZATION, value)));
        }
        let tls = tls::for_web_with(&keys.http_ca_file, &keys.http_cert_file, &keys.http_key_file)
            .map_err(|error| wrong(error.to_string()))?;
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_connect_timeout(Some(CONNECT_LIMIT));
        plain.set_keepalive(Some(KEEPALIVE));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let connector = connector.wrap_connector(plain);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        let run = matches!(keys.from, StreamSource::Stdin).then(|| format!("/{:016x}", fastrand::u64(..)));
        Ok(Self {
            client,
            target,
            uri,
            headers,
            fixed,
            record_headers: keys.record_headers.clone(),
            encoder,
            is_batched: keys.batch > 1,
            is_across_keys: keys.batch_by == BatchBy::Lane,
            run,
        })
    }

    pub(super) async fn deliver(&self, records: &[Record]) -> Result<(), RecordFailure> {
        let request = self.request(records)?;
        let answer = self.client.request(request).await;
        let answer =
            answer.map_err(|error| RecordFailure::new(format!("no answer: {}", error_chain(&error))).keep_batch())?;
        check_answer(answer).await
    }

    fn request(&self, records: &[Record]) -> Result<Request<Full<Bytes>>, RecordFailure> {
        let mut body = Vec::new();
        if self.is_batched {
            records.iter().try_for_each(|record| self.encoder.line(record, &mut body))?;
        } else {
            records.iter().for_each(|record| self.encoder.body(record, &mut body));
        }
        let length = HeaderValue::from(body.len());
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = match (&self.uri, records) {
            (Some(uri), _) => uri.clone(),
            (None, [record, ..]) => record_parts::uri(&self.target, record, &self.encoder.lanes)?,
            (None, []) => return Err(RecordFailure::permanent("a request has a record")),
        };
        *request.headers_mut() = self.headers.clone();
        if let ([record], false) = (records, self.record_headers.is_empty()) {
            record_parts::add_headers(record, &self.record_headers, &self.fixed, request.headers_mut())?;
        }
        // The client leaves it out of a request without a body, which some servers answer with 411.
        request.headers_mut().insert(CONTENT_LENGTH, length);
        if let Some(name) = self.idempotency_key(records) {
            request.headers_mut().insert(HeaderName::from_static("idempotency-key"), name);
        }
        Ok(request)
    }

    /// Equal for every attempt at the same records, and unique otherwise.
    fn idempotency_key(&self, records: &[Record]) -> Option<HeaderValue> {
        let (first, last) = (records.first()?, records.last()?);
        if let LaneNames::Changes { stream, .. } = &self.encoder.lanes {
            let until = if records.len() > 1 { format!("-{}", change_name(last)) } else { String::new() };
            return HeaderValue::try_from(format!("\"{stream}/{}{until}\"", change_name(first))).ok();
        }
        let (topic, partition) = self.encoder.lanes.of(first.lane());
        let partition = partition.map_or_else(String::new, |number| format!("/{number}"));
        let until = match records.len() {
            1 => String::new(),
            // Positions between those of a batch across keys may be those of other batches.
            _ if self.is_across_keys => format!("-{}-{:016x}", last.position(), hash_of_positions(records)),
            _ => format!("-{}", last.position()),
        };
        let run = self.run.as_deref().unwrap_or_default();
        HeaderValue::try_from(format!("\"{topic}{partition}{run}/{}{until}\"", first.position())).ok()
    }
}

/// FNV-1a.
fn hash_of_positions(records: &[Record]) -> u64 {
    let bytes = records.iter().flat_map(|record| record.position().0.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The name of a change, the same in every run: `0/16B3748/3`, with a further number if the change gives several records.
fn change_name(record: &Record) -> String {
    if let Some(copy) = header(record, change::COPY) {
        return copy.to_owned();
    }
    let texts = change::IDENTITY.iter().filter_map(|name| header(record, name));
    texts.collect::<Vec<_>>().join("/")
}

/// Splits `http://user:password@host/` into the URL without login, and the login.
fn split_login(url: &str) -> (String, Option<String>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((login, host)) => {
            // Unencoded if it is not percent-encoded.
            let login = decode(login).unwrap_or_else(|_| login.to_owned());
            (format!("{scheme}://{host}{path}"), Some(login))
        }
        None => (url.to_owned(), None),
    }
}

fn headers(keys: &StreamKeys) -> Result<HeaderMap, StreamError> {
    let content = if keys.batch > 1 { "application/x-ndjson" } else { "application/json" };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION"))));
    for (name, value) in &keys.headers.0 {
        let wrong = |error: String| StreamError::Sink(format!("the header `{name}` cannot be sent: {error}"));
        let value = HeaderValue::try_from(value).map_err(|error| wrong(error.to_string()))?;
        headers.insert(HeaderName::try_from(name).map_err(|error| wrong(error.to_string()))?, value);
    }
    Ok(headers)
}

async fn check_answer(answer: Response<Incoming>) -> Result<(), RecordFailure> {
    let (head, body) = answer.into_parts();
    // A connection whose answer is read completely serves the next request. The result does not depend on it.
    let body = tokio::time::timeout(BODY_LIMIT, Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
    if head.status.is_success() {
        return Ok(());
    }
    let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes);
    let reason = reason(head.status, &body.unwrap_or_default());
    let failure = if is_rejected(head.status) {
        RecordFailure::permanent(reason)
    } else if may_be_one_record(head.status) {
        RecordFailure::new(reason)
    } else {
        RecordFailure::new(reason).keep_batch()
    };
    Err(match retry_after(&head.headers, SystemTime::now()) {
        Some(wait) => failure.retry_after(wait),
        None => failure,
    })
}

/// Whether the record itself is rejected, so that a repetition is pointless.
fn is_rejected(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::GONE
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Whether the status may be that of one record in a batch. Otherwise the next attempt has the same body and idempotency key, so
/// that a server in trouble does not get more requests than before.
fn may_be_one_record(status: StatusCode) -> bool {
    status.is_client_error()
        && !matches!(
            status,
            StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::PROXY_AUTHENTICATION_REQUIRED
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::MISDIRECTED_REQUEST
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
        )
}

fn reason(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let quoted: String = text.trim().chars().take(QUOTED_CHARS_MAX).collect();
    if quoted.is_empty() { format!("answered {status}") } else { format!("answered {status}: {quoted}") }
}

/// Seconds, or a date by the server's clock, which may differ from ours. A date in the past means no specific delay: without any
/// delay, all attempts would be used up immediately.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| Some(headers.get(name)?.to_str().ok()?.trim());
    let value = text(RETRY_AFTER)?;
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let now = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
            let wait = httpdate::parse_http_date(value).ok()?.duration_since(now).ok()?;
            Some(wait).filter(|wait| !wait.is_zero())?
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_in_seconds_or_as_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").expect("a date");
        let wait_by = |text: &'static str, date: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            headers.extend(date.map(|date| (DATE, HeaderValue::from_static(date))));
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        let wait = |text| wait_by(text, None);
        assert_eq!(wait("7"), Some(7));
        assert_eq!(wait("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(wait("99999999"), Some(3600));
        assert_eq!(wait("soon"), None);
        // The server's clock is an hour behind.
        let date = Some("Sun, 06 Nov 1994 07:49:37 GMT");
        assert_eq!(wait_by("Sun, 06 Nov 1994 07:49:42 GMT", date), Some(5));
        assert_eq!(wait("0"), Some(0));
        assert_eq!([wait("Sun, 06 Nov 1994 08:00:00 GMT"), wait_by("Sun, 06 Nov 1994 07:49:37 GMT", date)], [None; 2]);
    }

    #[test]
    fn login_is_removed_from_the_url() {
        let split = |url| split_login(url);
        assert_eq!(split("http://me:p@w@h:1/p?q"), ("http://h:1/p?q".to_owned(), Some("me:p@w".to_owned())));
        assert_eq!(split("http://me:p%40w%25@h/").1.as_deref(), Some("me:p@w%"));
        assert_eq!(split("http://me:100%@h/").1.as_deref(), Some("me:100%"));
        assert_eq!(split("http://h/a@b"), ("http://h/a@b".to_owned(), None));
    }
}
