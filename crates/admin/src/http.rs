//! `GET /metrics`, on the control plane. Each scrape queries the data plane once, like a console table.
//!
//! The server protects itself against slow and idle clients: a bounded number of connections, time limits, and one request per
//! connection.

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
use tidegate_supervise::{Class, Ctx, Restart, Scope, Supervisor, Tokio};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::metrics::{self, ExpositionFormat};
use tidegate_proxy::plane::Gateway;
use tidegate_tasks as tasks;

mod connections;

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
    for socket in sockets {
        let listener = Arc::new(TcpListener::from_std(socket)?);
        let address = listener.local_addr()?;
        tracing::info!(%address, "answering GET /metrics");
        let (owner, scrapes) = (gateway.clone(), scrapes.clone());
        let class = Class::new(tasks::unlimited_restarts(Restart::Permanent), move |_: &SocketAddr, ctx: Ctx| {
            let (listener, owner, scrapes) = (listener.clone(), owner.clone(), scrapes.clone());
            async move {
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = accept(&listener, &owner, &scrapes) => {}
                }
            }
        });
        // Rejected while the process is stopping.
        let _ = scope.spawn_kept(address, &class);
    }
    Ok(scope.scope().clone())
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
                _ = tokio::time::timeout(CONNECTION_LIMIT, serve_connection(stream, gateway, &slot, &pages)) => {}
            }
        });
        // The handle is not needed. Rejected while the process is stopping.
        drop(spawned);
    }
}

async fn serve_connection(stream: TcpStream, gateway: Arc<Gateway>, slot: &ConnectionSlot, pages: &Semaphore) {
    let service = service_fn(|request: Request<Incoming>| {
        slot.set(RequestStage::Page);
        // The body is dropped unread.
        let (head, _) = request.into_parts();
        let gateway = gateway.clone();
        async move {
            let answer = answer(&head, &gateway, pages).await;
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

/// Builds the page. With thousands of databases this takes a while; probes and look-ups continue.
async fn page(gateway: &Arc<Gateway>, format: ExpositionFormat, pages: &Semaphore) -> Option<Vec<u8>> {
    let _turn = pages.acquire().await.ok()?;
    let owner = gateway.clone();
    let page = move || async move { metrics::exposition(&owner, format).await };
    gateway.pools.connector.resolver.offload_async("a metrics page", page).await
}

async fn answer(head: &Parts, gateway: &Arc<Gateway>, pages: &Semaphore) -> Response<Full<Bytes>> {
    let format = match head.uri.path() {
        "/metrics" => ExpositionFormat::negotiate(&head.headers),
        _ => ExpositionFormat::Text,
    };
    let (status, body) = match (&head.method, head.uri.path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match page(gateway, format, pages).await {
            Some(page) => (StatusCode::OK, page),
            None => (StatusCode::SERVICE_UNAVAILABLE, b"the gateway is stopping\n".to_vec()),
        },
        (&Method::GET | &Method::HEAD, "/") => (StatusCode::OK, b"Tidegate: see /metrics\n".to_vec()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, b"see /metrics\n".to_vec()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, b"GET /metrics\n".to_vec()),
    };
    let kind = if status == StatusCode::OK { format } else { ExpositionFormat::Text }.content_type();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
