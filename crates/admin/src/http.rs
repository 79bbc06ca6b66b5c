//! `GET /metrics`, `/live` and `/ready`, on the control plane. Each scrape queries the data plane once, like a console table;
//! health checks query nothing.
//!
//! Only requests whose page is being built keep their connection; there are fewer of them than connections, so a health check
//! always finds one to displace.

use std::{
    net::{SocketAddr, TcpListener as Bound},
    sync::Arc,
    time::Duration,
};

use http::request::Parts;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
};
use subtle::ConstantTimeEq as _;
use tidegate_http_listener::{
    ConnectionSlot, HttpServer, HttpService, HttpVersions, ListenerOptions, RequestStage, TlsSource,
    serve as serve_sockets,
};
use tidegate_shapes::ShapeServer;
use tidegate_supervise::{Scope, Supervisor, Tokio};
use tokio::sync::Semaphore;

use super::{
    context::AdminContext,
    metrics::{self, ExpositionFormat},
};
use tidegate_proxy::plane::Configuration;
use tidegate_tasks as tasks;

mod health;

pub use tidegate_http_listener::bind;

/// Limits of the sockets. Scrapers send their head immediately; a client may read a large page slowly.
const OPTIONS: ListenerOptions = ListenerOptions {
    versions: HttpVersions::SingleRequest,
    connections_max: 64,
    head_limit: Duration::from_secs(5),
    head_bytes_max: 16 << 10,
    stall_limit: Duration::from_secs(60),
    connection_limit: Some(Duration::from_secs(60)),
    drain: Duration::ZERO,
};
/// Limit of pages that are built concurrently; further requests wait.
const PAGES_MAX: usize = 4;

/// Serves metrics on the sockets until the scope is stopped.
///
/// # Errors
/// If a socket cannot be registered.
pub fn serve(context: &Arc<AdminContext>, sockets: Vec<Bound>) -> anyhow::Result<Scope<SocketAddr>> {
    let gateway = &context.gateway;
    let scope: Supervisor<Tokio, SocketAddr> =
        tasks::observed_scope(&gateway.lifecycle.scope, "metrics").build().on(Tokio::current());
    let scrapes = scope.child("scrapes");
    let tls = gateway.config.setup().metrics_tls.is_some();
    let owner = gateway.clone();
    let server = HttpServer {
        options: OPTIONS,
        tls: Arc::new(move || owner.config.setup().metrics_tls.clone()),
        service: MetricsService { context: context.clone(), pages: Arc::new(Semaphore::new(PAGES_MAX)) },
    };
    for address in serve_sockets(&scope, &scrapes, sockets, server)? {
        tracing::info!(%address, tls, "answering GET /metrics, /live and /ready");
    }
    Ok(scope.scope().clone())
}

/// Serves `GET /metrics` of a server of shapes without a gateway, until the scope is stopped.
///
/// # Errors
/// If the socket cannot be registered.
pub fn serve_shapes(server: &Arc<ShapeServer>, socket: Bound, tls: TlsSource, scope: &Scope) -> anyhow::Result<()> {
    let listeners: Supervisor<Tokio, SocketAddr> = scope.child("metrics").on(Tokio::current());
    let scrapes = listeners.child("scrapes");
    let http = HttpServer { options: OPTIONS, tls, service: ShapeMetrics(server.clone()) };
    for address in serve_sockets(&listeners, &scrapes, vec![socket], http)? {
        tracing::info!(%address, "answering GET /metrics");
    }
    Ok(())
}

#[derive(Clone)]
struct ShapeMetrics(Arc<ShapeServer>);

impl HttpService for ShapeMetrics {
    type Body = Full<Bytes>;

    async fn answer(self, request: Request<Incoming>, slot: Arc<ConnectionSlot>) -> Response<Full<Bytes>> {
        let format = ExpositionFormat::negotiate(request.headers());
        slot.set(RequestStage::Reply);
        match (request.method(), request.uri().path()) {
            (&(Method::GET | Method::HEAD), "/metrics") => {
                response(StatusCode::OK, format.content_type(), metrics::shapes_exposition(&self.0, format))
            }
            (&(Method::GET | Method::HEAD), _) => text(StatusCode::NOT_FOUND, "see /metrics\n"),
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n"),
        }
    }
}

#[derive(Clone)]
struct MetricsService {
    context: Arc<AdminContext>,
    pages: Arc<Semaphore>,
}

impl HttpService for MetricsService {
    type Body = Full<Bytes>;

    async fn answer(self, request: Request<Incoming>, slot: Arc<ConnectionSlot>) -> Response<Full<Bytes>> {
        // The body is dropped unread.
        let (head, _) = request.into_parts();
        let response = answer(&head, &self.context, &slot, &self.pages).await;
        slot.set(RequestStage::Reply);
        response
    }
}

async fn answer(
    head: &Parts,
    context: &Arc<AdminContext>,
    slot: &ConnectionSlot,
    pages: &Semaphore,
) -> Response<Full<Bytes>> {
    let path = head.uri.path();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
    }
    match path {
        "/metrics" if !is_authorised(head, &context.gateway.config) => {
            let mut refusal =
                text(StatusCode::UNAUTHORIZED, "send the token of [metrics]: Authorization: Bearer TOKEN\n");
            refusal.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            refusal
        }
        "/metrics" => metrics_page(head, context, slot, pages).await,
        "/" => text(StatusCode::OK, "Tidegate: see /metrics, /live and /ready\n"),
        _ => match health::check(path, context.gateway.lifecycle.phase()) {
            Some((status, reason)) => text(status, reason),
            None => text(StatusCode::NOT_FOUND, "see /metrics, /live and /ready\n"),
        },
    }
}

/// Whether the request has the token, if one is configured.
fn is_authorised(head: &Parts, config: &Configuration) -> bool {
    let setup = config.setup();
    let token = &setup.config.metrics.token;
    let sent = head.headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    token.is_empty() || sent.is_some_and(|sent| bool::from(sent.ct_eq(token.reveal().as_bytes())))
}

/// Builds the page. With thousands of databases this takes a while; probes and look-ups continue.
async fn metrics_page(
    head: &Parts,
    context: &Arc<AdminContext>,
    slot: &ConnectionSlot,
    pages: &Semaphore,
) -> Response<Full<Bytes>> {
    let format = ExpositionFormat::negotiate(&head.headers);
    slot.set(RequestStage::Queued);
    let Ok(_turn) = pages.acquire().await else { return stopping() };
    slot.set(RequestStage::Page);
    let owner = context.clone();
    let page = move || async move { metrics::exposition(&owner, format).await };
    match context.gateway.pools.connector.resolver.offload_async("a metrics page", page).await {
        Some(page) => response(StatusCode::OK, format.content_type(), page),
        None => stopping(),
    }
}

fn stopping() -> Response<Full<Bytes>> {
    text(StatusCode::SERVICE_UNAVAILABLE, "the gateway is stopping\n")
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", body)
}

fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
