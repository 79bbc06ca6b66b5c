//! Status, headers and bodies of answers: section 2.5 of the protocol in one place.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, RETRY_AFTER, VARY,
};
use http::{Response, StatusCode};
use serde_json::json;

use super::body::{AnswerBody, text};
use crate::cursor::{CacheAges, Cacheability, cache_control};
use crate::handle::ShapeHandle;
use crate::parameters::ParameterErrors;
use crate::row_form::MUST_REFETCH;

pub(super) const HANDLE: HeaderName = HeaderName::from_static("electric-handle");
pub(super) const OFFSET: HeaderName = HeaderName::from_static("electric-offset");
pub(super) const SCHEMA: HeaderName = HeaderName::from_static("electric-schema");
pub(super) const CURSOR: HeaderName = HeaderName::from_static("electric-cursor");
pub(super) const UP_TO_DATE: HeaderName = HeaderName::from_static("electric-up-to-date");
pub(super) const HAS_DATA: HeaderName = HeaderName::from_static("electric-has-data");
pub(super) const SNAPSHOT: HeaderName = HeaderName::from_static("electric-snapshot");
const KNOWN_ERROR: HeaderName = HeaderName::from_static("electric-internal-known-error");
const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");

/// Headers of an answer with status 200.
const HEADERS_LEN: usize = 16;

const METHODS: &str = "GET, POST, HEAD, DELETE, OPTIONS";
const EXPOSED: &str = "electric-cursor,electric-handle,electric-has-data,electric-offset,electric-schema,electric-up-to-date,\
                       electric-internal-known-error,electric-snapshot,retry-after,etag";

pub(super) type HttpAnswer = Response<AnswerBody>;

/// A header value of text that is ASCII.
pub(super) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn json_answer(status: StatusCode, body: impl Into<bytes::Bytes>, cache: &str) -> HttpAnswer {
    let mut answer = Response::new(text(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, value(cache));
    if cache == "no-store" {
        // Some CDNs handle this header only (SH-32).
        headers.insert(SURROGATE_CONTROL, HeaderValue::from_static("no-store"));
    }
    answer
}

/// An error that no cache keeps.
pub(super) fn error(status: StatusCode, body: impl Into<bytes::Bytes>) -> HttpAnswer {
    json_answer(status, body, "no-store")
}

/// Returns an error with a text.
pub(super) fn message(status: StatusCode, message: &str) -> HttpAnswer {
    error(status, json!({ "message": message }).to_string())
}

/// Status 400: errors by parameter.
pub(super) fn invalid(errors: &ParameterErrors) -> HttpAnswer {
    error(StatusCode::BAD_REQUEST, errors.body())
}

/// Status 503; a client tries again after so many seconds (SH-40: on every 503).
pub(super) fn unavailable(message_text: &str, retry_after: u64) -> HttpAnswer {
    retry(message(StatusCode::SERVICE_UNAVAILABLE, message_text), retry_after)
}

/// Status 429: the address sends too many requests. Clients try again.
pub(super) fn too_many_requests(wait: Duration) -> HttpAnswer {
    let text = "Too many requests from this address; try again later";
    retry(message(StatusCode::TOO_MANY_REQUESTS, text), wait.as_secs().saturating_add(1))
}

/// Status 503: the snapshot failed for a known reason.
pub(super) fn snapshot_failed(message_text: &str) -> HttpAnswer {
    let mut answer = unavailable(message_text, 10);
    answer.headers_mut().insert(KNOWN_ERROR, HeaderValue::from_static("true"));
    answer
}

/// Status 503 and a code.
pub(super) fn unavailable_code(code: &str, message_text: &str, retry_after: u64) -> HttpAnswer {
    let body = json!({ "code": code, "message": message_text }).to_string();
    retry(error(StatusCode::SERVICE_UNAVAILABLE, body), retry_after)
}

fn retry(mut answer: HttpAnswer, seconds: u64) -> HttpAnswer {
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    answer
}

/// 409: another handle is current. Without one, no cache may keep it (SH-31).
pub(super) fn must_refetch(current: Option<ShapeHandle>, ages: &CacheAges) -> HttpAnswer {
    let cache = if current.is_some() { Cacheability::Moved } else { Cacheability::Never };
    let mut answer = json_answer(StatusCode::CONFLICT, MUST_REFETCH, &cache_control(cache, ages));
    if let Some(handle) = current {
        answer.headers_mut().insert(HANDLE, value(&handle.to_string()));
    }
    answer
}

/// A JSON answer with status 200.
pub(super) fn ok(body: AnswerBody, cache: Cacheability, ages: &CacheAges) -> HttpAnswer {
    let mut answer = Response::new(body);
    *answer.headers_mut() = ok_headers(cache, ages);
    answer
}

/// The headers of [`ok`].
pub(super) fn ok_headers(cache: Cacheability, ages: &CacheAges) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(HEADERS_LEN);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    set_cache(&mut headers, cache, ages);
    headers
}

pub(super) fn set_cache(headers: &mut HeaderMap, cache: Cacheability, ages: &CacheAges) {
    let cache = match cache_control(cache, ages) {
        Cow::Borrowed(text) => HeaderValue::from_static(text),
        Cow::Owned(text) => value(&text),
    };
    headers.insert(CACHE_CONTROL, cache);
}

/// Status 304 and the headers of the answer that the client has.
pub(super) fn not_modified(mut answer: HttpAnswer) -> HttpAnswer {
    *answer.status_mut() = StatusCode::NOT_MODIFIED;
    *answer.body_mut() = text("");
    answer.headers_mut().remove(CONTENT_TYPE);
    answer
}

/// The entity tags that a client has: the header `if-none-match`.
///
/// A copy: a value of a header is a part of the buffer of the connection, which would stay as long as the request waits.
#[derive(Debug, Default)]
pub(super) struct KnownTags(Box<[Box<str>]>);

impl KnownTags {
    pub(super) fn new(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(http::header::IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
        Self(lists.map(Into::into).collect())
    }

    /// Whether the client has the answer with this tag.
    pub(super) fn contain(&self, etag: &str) -> bool {
        self.0.iter().flat_map(|list| list.split(',')).any(|tag| tag.trim().trim_start_matches("W/") == etag)
    }
}

/// A value without the buffer of the connection. See [`KnownTags`].
pub(super) fn detached(value: &HeaderValue) -> Option<HeaderValue> {
    HeaderValue::from_bytes(value.as_bytes()).ok()
}

/// Headers for browsers on all answers. Those that depend on no client may be there.
pub(super) fn add_cors(headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
    if !headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }
}

/// The answer to OPTIONS: all requested headers are allowed, because none that an application adds has a meaning here.
pub(super) fn preflight(requested: Option<&HeaderValue>) -> HttpAnswer {
    let mut answer = Response::new(text(""));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let requested = requested.and_then(|list| list.to_str().ok()).unwrap_or_default();
    let names = requested.split(',').filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok());
    let names: Vec<String> = names.map(|name| name.to_string()).collect();
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    if !names.is_empty() {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, value(&names.join(",")));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SH-32, SH-40.
    #[test]
    fn errors_are_never_cached() {
        let answers = [
            error(StatusCode::BAD_REQUEST, "{}"),
            message(StatusCode::UNAUTHORIZED, "x"),
            unavailable("x", 5),
            snapshot_failed("x"),
            unavailable_code("database_unreachable", "x", 10),
            must_refetch(None, &CacheAges::default()),
            too_many_requests(Duration::from_millis(1)),
        ];
        for answer in answers {
            assert_eq!(answer.headers()[CACHE_CONTROL], "no-store", "{}", answer.status());
            assert_eq!(answer.headers()["surrogate-control"], "no-store");
            let is_passing =
                [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&answer.status());
            assert_eq!(answer.headers().contains_key(RETRY_AFTER), is_passing);
        }
        let moved = must_refetch(Some(ShapeHandle { hash: 1, micros: 2 }), &CacheAges::default());
        assert_eq!(moved.headers()[CACHE_CONTROL], "public, max-age=60, must-revalidate");
        assert_eq!(moved.headers()[HANDLE], "1-2");
        assert!(EXPOSED.contains("retry-after"));
    }

    #[test]
    fn entity_tags_are_found_in_lists() {
        let mut headers = HeaderMap::new();
        assert!(!KnownTags::new(&headers).contain("\"a\""));
        headers.insert(http::header::IF_NONE_MATCH, HeaderValue::from_static("\"x\", W/\"a\""));
        let tags = KnownTags::new(&headers);
        assert!(tags.contain("\"a\"") && tags.contain("\"x\"") && !tags.contain("\"b\""));
    }

    /// An application may send headers of its own to a proxy or to this server.
    #[test]
    fn preflight_allows_the_headers_that_are_asked_for() {
        let requested = HeaderValue::from_static("Authorization, x-tenant,if-none-match, not a name,");
        let answer = preflight(Some(&requested));
        assert_eq!(answer.headers()[ACCESS_CONTROL_ALLOW_HEADERS], "authorization,x-tenant,if-none-match");
        assert!(!answer.headers().contains_key(CACHE_CONTROL));
        assert!(!preflight(None).headers().contains_key(ACCESS_CONTROL_ALLOW_HEADERS));
    }
}
