//! `GET /metrics`, `/live` and `/ready`, on the control plane. Each scrape queries the data plane once, like a console table;
//! health checks query nothing.
//!
//! The server protects itself against slow and idle clients: a bounded number of connections, time limits, and one request per
//! connection. Only requests whose page is being built keep their connection; there are fewer of them than connections, so a
//! health check always finds one to displace.

use std::{
    convert::Infallible,
    io,
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
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use subtle::ConstantTimeEq as _;
use tidegate_supervise::{Class, Ctx, Restart, Scope, Supervisor, Tokio};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;

use super::metrics::{self, ExpositionFormat};
use tidegate_proxy::plane::Gateway;
use tidegate_tasks as tasks;

pub(crate) mod connections;
mod health;

use connections::{ConnectionSlot, ConnectionSlots, RequestStage};

/// Limit of connections per socket. Beyond it, the oldest incomplete request is dropped.
const CONNECTIONS_MAX: usize = 64;
/// Limit for the head of a request; scrapers send it immediately.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// Limit of a connection; a client may read a large page slowly.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
/// Limit of the head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Limit of pages that are built concurrently; further requests wait.
const PAGES_MAX: usize = 4;
/// Pause of accepting after an error, such as a lack of file descriptors.
const BACKOFF: Duration = Duration::from_millis(100);

/// Listens on an address.
///
/// # Errors
/// If the address is not available.
pub fn bind(address: &SocketAddr) -> io::Result<Bound> {
    let bound = Bound::bind(address)?;
    bound.set_nonblocking(true)?;
    Ok(bound)
}

/// Serves metrics on the sockets until the scope is stopped.
///
/// # Errors
/// If a socket cannot be registered.
pub fn serve(gateway: &Arc<Gateway>, sockets: Vec<Bound>) -> anyhow::Result<Scope<SocketAddr>> {
    let scope: Supervisor<Tokio, SocketAddr> =
        tasks::observed_scope(&gateway.lifecycle.scope, "metrics").build().on(Tokio::current());
    let scrapes = scope.child("scrapes");
    let gateway = gateway.clone();
    let tls = gateway.config.setup().metrics_tls.is_some();
    let log = |address| tracing::info!(%address, tls, "answering GET /metrics, /live and /ready");
    spawn_listeners(&scope, sockets, log, move |listener| {
        let (owner, scrapes) = (gateway.clone(), scrapes.clone());
        async move { accept(&listener, &owner, &scrapes).await }
    })?;
    Ok(scope.scope().clone())
}

/// Runs `accept` for each socket, in a task that is restarted when it ends, until the scope is stopped.
pub(crate) fn spawn_listeners<F: Future<Output = ()> + Send + 'static>(
    scope: &Supervisor<Tokio, SocketAddr>,
    sockets: Vec<Bound>,
    log: impl Fn(SocketAddr),
    accept: impl Fn(Arc<TcpListener>) -> F + Clone + Send + Sync + 'static,
) -> io::Result<()> {
    for socket in sockets {
        let listener = Arc::new(TcpListener::from_std(socket)?);
        let address = listener.local_addr()?;
        log(address);
        let accept = accept.clone();
        let class = Class::new(tasks::unlimited_restarts(Restart::Permanent), move |_: &SocketAddr, ctx: Ctx| {
            let accepting = accept(listener.clone());
            async move {
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = accepting => {}
                }
            }
        });
        // Rejected while the process is stopping.
        let _ = scope.spawn_kept(address, &class);
    }
    Ok(())
}

/// Key of a connection's task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scrape {
    peer: SocketAddr,
    number: u64,
}

async fn accept(listener: &TcpListener, gateway: &Arc<Gateway>, scrapes: &Supervisor<Tokio, Scrape>) {
    let connections = Arc::new(ConnectionSlots::new());
    let pages = Arc::new(Semaphore::new(PAGES_MAX));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed; trying again in {BACKOFF:?}");
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        let slot = ConnectionSlots::acquire(&connections).await;
        let (number, gateway, pages) = (slot.number, gateway.clone(), pages.clone());
        let spawned = scrapes.spawn_as(Scrape { peer, number }, move |ctx| async move {
            tokio::select! {
                () = ctx.cancelled() => {}
                () = slot.dropped_for_another() => {}
                _ = tokio::time::timeout(CONNECTION_LIMIT, serve_stream(stream, gateway, &slot, &pages)) => {}
            }
        });
        // The handle is not needed. Rejected while the process is stopping.
        drop(spawned);
    }
}

/// Serves a connection, with TLS if the configuration in force has a certificate.
async fn serve_stream(stream: TcpStream, gateway: Arc<Gateway>, slot: &ConnectionSlot, pages: &Semaphore) {
    let Some(tls) = gateway.config.setup().metrics_tls.clone() else {
        return serve_connection(stream, gateway, slot, pages).await;
    };
    // A client that breaks off its handshake is not reported.
    if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_LIMIT, TlsAcceptor::from(tls).accept(stream)).await {
        serve_connection(stream, gateway, slot, pages).await;
    }
}

async fn serve_connection<S>(stream: S, gateway: Arc<Gateway>, slot: &ConnectionSlot, pages: &Semaphore)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request: Request<Incoming>| {
        // The body is dropped unread.
        let (head, _) = request.into_parts();
        let gateway = gateway.clone();
        async move {
            let answer = answer(&head, &gateway, slot, pages).await;
            slot.set(RequestStage::Reply);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    // Serve a single request per connection: pipelined requests would each put a page into memory.
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    // A scraper that disconnects early is not reported.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    head: &Parts,
    gateway: &Arc<Gateway>,
    slot: &ConnectionSlot,
    pages: &Semaphore,
) -> Response<Full<Bytes>> {
    let path = head.uri.path();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
    }
    match path {
        "/metrics" if !is_authorised(head, gateway) => {
            let mut refusal =
                text(StatusCode::UNAUTHORIZED, "send the token of [metrics]: Authorization: Bearer TOKEN\n");
            refusal.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            refusal
        }
        "/metrics" => metrics_page(head, gateway, slot, pages).await,
        "/" => text(StatusCode::OK, "Tidegate: see /metrics, /live and /ready\n"),
        _ => match health::check(path, gateway.lifecycle.phase()) {
            Some((status, reason)) => text(status, reason),
            None => text(StatusCode::NOT_FOUND, "see /metrics, /live and /ready\n"),
        },
    }
}

/// Whether the request has the token, if one is configured.
fn is_authorised(head: &Parts, gateway: &Gateway) -> bool {
    let setup = gateway.config.setup();
    let token = &setup.config.metrics.token;
    let sent = head.headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    token.is_empty() || sent.is_some_and(|sent| bool::from(sent.ct_eq(token.reveal().as_bytes())))
}

/// Builds the page. With thousands of databases this takes a while; probes and look-ups continue.
async fn metrics_page(
    head: &Parts,
    gateway: &Arc<Gateway>,
    slot: &ConnectionSlot,
    pages: &Semaphore,
) -> Response<Full<Bytes>> {
    let format = ExpositionFormat::negotiate(&head.headers);
    slot.set(RequestStage::Queued);
    let Ok(_turn) = pages.acquire().await else { return stopping() };
    slot.set(RequestStage::Page);
    let owner = gateway.clone();
    let page = move || async move { metrics::exposition(&owner, format).await };
    match gateway.pools.connector.resolver.offload_async("a metrics page", page).await {
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
