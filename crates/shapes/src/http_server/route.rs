//! Paths, methods and the secret.

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
use super::{HttpContext, delete, get};
use crate::parameters::{Plus, QueryParameters, SubsetBody, decode};
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

/// Answers a request.
pub(super) async fn handle(context: &HttpContext, request: Request<Incoming>, hold: ConnectionHold) -> HttpAnswer {
    let origin = request.headers().get(ORIGIN).and_then(answer::detached);
    let mut answer = dispatch(context, request, hold).await;
    answer::add_cors(&mut answer, origin.as_ref());
    answer
}

async fn dispatch(context: &HttpContext, request: Request<Incoming>, hold: ConnectionHold) -> HttpAnswer {
    let target = target(request.uri().path());
    let method = request.method().clone();
    if method == Method::OPTIONS && target != Target::Unknown {
        let requested = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS);
        return answer::preflight(requested, &context.server.options.allowed_headers);
    }
    match target {
        Target::Root if method == Method::GET || method == Method::HEAD => http::Response::new(text("")),
        Target::Health if method == Method::GET || method == Method::HEAD => health(context),
        Target::Shape => match context.rate.admit(hold.peer().ip(), Instant::now()) {
            Ok(()) => shape(context, &method, request, hold).await,
            Err(wait) => answer::too_many_requests(wait),
        },
        Target::Root | Target::Health => method_not_allowed("GET, HEAD, OPTIONS"),
        Target::Unknown => answer::message(StatusCode::NOT_FOUND, "Not found"),
    }
}

/// The decoded path without empty segments.
fn target(path: &str) -> Target {
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

async fn shape(context: &HttpContext, method: &Method, request: Request<Incoming>, hold: ConnectionHold) -> HttpAnswer {
    let query = match QueryParameters::decode(request.uri().query().unwrap_or_default()) {
        Ok(query) => query,
        Err(errors) => return answer::invalid(&errors),
    };
    if !is_authorised(context.server.options.secret.as_deref(), &query) {
        return answer::message(StatusCode::UNAUTHORIZED, "Unauthorized: the parameter secret is missing or wrong");
    }
    tracing::trace!(%method, query = query.redacted(), "request");
    let tags = KnownTags::new(request.headers());
    // The head keeps the buffer that it was read into, and its map of headers: a request that waits needs neither.
    let body = request.into_body();
    match *method {
        Method::GET | Method::HEAD => {
            drop(body);
            get::handle(context, tags, query, None, hold).await
        }
        Method::POST => {
            let body = match post_body(context, body).await {
                Ok(body) => body,
                Err(refusal) => return refusal,
            };
            match SubsetBody::read(&body) {
                Ok(Ok(body)) => get::handle(context, tags, query, Some(body), hold).await,
                Ok(Err(errors)) => answer::invalid(&errors),
                Err(error) => answer::message(StatusCode::BAD_REQUEST, &error.to_string()),
            }
        }
        Method::DELETE => Box::pin(delete::handle(context, &query)).await,
        _ => method_not_allowed("GET, POST, HEAD, DELETE, OPTIONS"),
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
fn is_authorised(secret: Option<&str>, query: &QueryParameters) -> bool {
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
        let query = |text: &str| QueryParameters::decode(text).unwrap();
        assert!(is_authorised(None, &query("")));
        assert!(is_authorised(Some("s"), &query("secret=s")) && is_authorised(Some("s"), &query("api_secret=s")));
        assert!(!is_authorised(Some("s"), &query("")) && !is_authorised(Some("s"), &query("secret=ss")));
    }
}
