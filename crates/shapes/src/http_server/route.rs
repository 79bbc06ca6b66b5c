//! Paths, methods and the secret.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, ORIGIN};
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use subtle::ConstantTimeEq as _;
use tidegate_http_listener::{BodyError, ConnectionHold, read_body};

use super::answer::{self, HttpAnswer, KnownTags};
use super::body::text;
use super::get::{self, GetRequest, LongPoll};
use super::{HttpContext, delete};
use crate::parameters::{Plus, QueryParameters, ShapeRequest, SubsetBody, decode};
use crate::server::ServerStatus;

/// Limit of the body of a POST.
const BODY_BYTES_MAX: usize = 1 << 20;
/// How long the body of a POST may take, and how long it waits for its turn.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// The resource of a path, independent of its spelling (SH-33).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Root,
    Health,
    Shape,
    Unknown,
}

/// A request whose head was read. It keeps neither the buffer that the head was read into nor the map of its headers, because
/// requests that wait are many.
pub(super) struct RoutedRequest {
    origin: Option<HeaderValue>,
    work: Work,
}

type LaterAnswer = Pin<Box<dyn Future<Output = HttpAnswer> + Send>>;

enum Work {
    /// Waits for a change.
    Wait(LongPoll),
    /// Everything else. In a box, so that requests that wait have no room for it.
    Later(LaterAnswer),
}

impl Work {
    fn later(answer: impl Future<Output = HttpAnswer> + Send + 'static) -> Self {
        Self::Later(Box::pin(answer))
    }

    fn answered(answer: HttpAnswer) -> Self {
        Self::later(std::future::ready(answer))
    }
}

/// Reads the head of a request.
pub(super) fn read(context: &Arc<HttpContext>, request: Request<Incoming>, hold: ConnectionHold) -> RoutedRequest {
    let origin = request.headers().get(ORIGIN).and_then(answer::detached);
    RoutedRequest { origin, work: route(context, request, hold) }
}

/// Answers a request.
pub(super) async fn answer(context: &HttpContext, routed: &mut RoutedRequest) -> HttpAnswer {
    let mut answer = match &mut routed.work {
        Work::Wait(poll) => poll.answer(context).await,
        Work::Later(answer) => answer.await,
    };
    answer::add_cors(answer.headers_mut(), routed.origin.as_ref());
    answer
}

fn route(context: &Arc<HttpContext>, request: Request<Incoming>, hold: ConnectionHold) -> Work {
    let target = target(request.uri().path());
    let method = request.method();
    if method == Method::OPTIONS && target != Target::Unknown {
        let requested = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS);
        return Work::answered(answer::preflight(requested));
    }
    Work::answered(match target {
        Target::Root if method == Method::GET || method == Method::HEAD => http::Response::new(text("")),
        Target::Health if method == Method::GET || method == Method::HEAD => health(context),
        Target::Shape => match context.rate.admit(hold.peer().ip(), Instant::now()) {
            Ok(()) => return shape(context, request, hold),
            Err(wait) => answer::too_many_requests(wait),
        },
        Target::Root | Target::Health => method_not_allowed("GET, HEAD, OPTIONS"),
        Target::Unknown => answer::message(StatusCode::NOT_FOUND, "Not found"),
    })
}

/// The decoded path without empty segments.
fn target(path: &str) -> Target {
    if path == "/v1/shape" {
        return Target::Shape;
    }
    let Some(path) = decode(path, Plus::Plus) else { return Target::Unknown };
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        [] => Target::Root,
        ["v1", "health"] => Target::Health,
        ["v1", "shape"] => Target::Shape,
        _ => Target::Unknown,
    }
}

fn health(context: &HttpContext) -> HttpAnswer {
    let (status, word) = match context.server.status() {
        ServerStatus::Active => (StatusCode::OK, "active"),
        ServerStatus::Waiting(_) => (StatusCode::ACCEPTED, "waiting"),
        ServerStatus::Starting(_) => (StatusCode::ACCEPTED, "starting"),
        ServerStatus::Failed(_) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let mut answer = answer::error(status, json!({ "status": word }).to_string());
    let never = HeaderValue::from_static("no-cache, no-store, must-revalidate");
    answer.headers_mut().insert(http::header::CACHE_CONTROL, never);
    answer
}

fn method_not_allowed(allowed: &'static str) -> HttpAnswer {
    let mut answer = answer::message(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn shape(context: &Arc<HttpContext>, request: Request<Incoming>, hold: ConnectionHold) -> Work {
    let text = request.uri().query().unwrap_or_default();
    let query = match QueryParameters::decode(text) {
        Ok(query) => query,
        Err(errors) => return Work::answered(answer::invalid(&errors)),
    };
    if !is_authorised(context.server.options.secret.as_deref(), &query) {
        let text = "Unauthorized: the parameter secret is missing or wrong";
        return Work::answered(answer::message(StatusCode::UNAUTHORIZED, text));
    }
    tracing::trace!(method = %request.method(), query = query.redacted(), "request");
    let tags = KnownTags::new(request.headers());
    match *request.method() {
        Method::GET | Method::HEAD => {
            let request = match ShapeRequest::read(&query, None) {
                Ok(request) => request,
                Err(errors) => return Work::answered(answer::invalid(&errors)),
            };
            match LongPoll::new(context, GetRequest { request, tags, is_cacheable: true, hold }) {
                Ok(poll) => Work::Wait(poll),
                Err(begun) => {
                    let context = Arc::clone(context);
                    Work::later(async move { get::handle(&context, begun).await })
                }
            }
        }
        Method::POST => {
            let (context, query) = (Arc::clone(context), Box::<str>::from(text));
            let body = request.into_body();
            Work::later(async move { post(&context, &query, body, tags, hold).await })
        }
        Method::DELETE => {
            let (context, query) = (Arc::clone(context), Box::<str>::from(text));
            Work::later(async move { delete::handle(&context, &query).await })
        }
        _ => Work::answered(method_not_allowed("GET, POST, HEAD, DELETE, OPTIONS")),
    }
}

async fn post(context: &HttpContext, query: &str, body: Incoming, tags: KnownTags, hold: ConnectionHold) -> HttpAnswer {
    let body = match post_body(context, body).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let body = match SubsetBody::read(&body) {
        Ok(Ok(body)) => body,
        Ok(Err(errors)) => return answer::invalid(&errors),
        Err(error) => return answer::message(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let request = QueryParameters::decode(query).and_then(|query| ShapeRequest::read(&query, Some(body)));
    match request {
        Ok(request) => get::handle(context, GetRequest { request, tags, is_cacheable: false, hold }).await,
        Err(errors) => answer::invalid(&errors),
    }
}

async fn post_body(context: &HttpContext, body: Incoming) -> Result<Bytes, HttpAnswer> {
    let busy = || answer::unavailable("Too many request bodies are being read; try again later", 5);
    let turn = tokio::time::timeout(BODY_LIMIT, context.bodies.acquire()).await;
    let Ok(Ok(_turn)) = turn else { return Err(busy()) };
    read_body(body, BODY_BYTES_MAX, BODY_LIMIT).await.map_err(|error| match error {
        BodyError::TooLarge => answer::message(StatusCode::PAYLOAD_TOO_LARGE, "Request body is too large"),
        BodyError::Incomplete => answer::message(StatusCode::BAD_REQUEST, "Request body cannot be read"),
    })
}

/// Compares in constant time.
fn is_authorised(secret: Option<&str>, query: &QueryParameters<'_>) -> bool {
    let Some(secret) = secret else { return true };
    let given = query.get("secret").or_else(|| query.get("api_secret")).unwrap_or_default();
    given.as_bytes().ct_eq(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SH-33.
    #[test]
    fn every_spelling_of_a_path_is_one_route() {
        for path in ["/v1/shape", "/v1/shape/", "//v1//shape", "/v1/%73hape", "/%76%31/shape//"] {
            assert_eq!(target(path), Target::Shape, "{path}");
        }
        assert_eq!(target("/"), Target::Root);
        assert_eq!(target("//"), Target::Root);
        assert_eq!(target("/v1/health/"), Target::Health);
        for path in ["/v1", "/v1/shapes", "/v1/shape/x", "/V1/shape", "/v1/shape%00", "/v1/shape+", "/%ff"] {
            assert_eq!(target(path), Target::Unknown, "{path}");
        }
    }

    #[test]
    fn secret_is_needed_if_there_is_one() {
        let query = |text: &'static str| QueryParameters::decode(text).unwrap();
        assert!(is_authorised(None, &query("")));
        assert!(is_authorised(Some("s"), &query("secret=s")) && is_authorised(Some("s"), &query("api_secret=s")));
        assert!(!is_authorised(Some("s"), &query("")) && !is_authorised(Some("s"), &query("secret=ss")));
    }
}
