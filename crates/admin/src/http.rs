//! `GET /metrics`, on the control plane: the data plane is asked once per scrape, as for a table of the console.

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

use super::metrics::{self, Format};
use tidegate_proxy::plane::Gateway;
use tidegate_tasks as tree;

mod connections;

use connections::{Connections, Place, Stage};

/// Connections of one socket at a time. Beyond that the oldest one makes room whose request is not complete.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take to send the head of its request: a scraper sends it at once.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection lasts at most: a client may be slow to read a large page.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a request's head that are read at most.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pages that are put together at a time; further requests wait in line.
const PAGES_MAX: usize = 4;
/// How long accepting pauses when there is no descriptor left.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Listens on this address.
///
/// # Errors
/// When it cannot be had.
pub fn bind(address: &SocketAddr) -> io::Result<Bound> {
    let bound = Bound::bind(address)?;
    bound.set_nonblocking(true)?;
    Ok(bound)
}

/// Answers on these sockets for as long as the gateway lives, or until the scope is stopped.
///
/// # Errors
/// When a socket cannot be registered.
pub fn serve(gateway: &Arc<Gateway>, sockets: Vec<Bound>) -> anyhow::Result<Scope<SocketAddr>> {
    let scope: Supervisor<Tokio, SocketAddr> =
        tree::control(&gateway.lifecycle.scope, "metrics").build().on(Tokio::current());
    let scrapes = scope.child("scrapes");
    for socket in sockets {
        let listener = Arc::new(TcpListener::from_std(socket)?);
        let address = listener.local_addr()?;
        tracing::info!(%address, "answering GET /metrics");
        let (owner, scrapes) = (gateway.clone(), scrapes.clone());
        let class = Class::new(tree::kept(Restart::Permanent), move |_: &SocketAddr, ctx: Ctx| {
            let (listener, owner, scrapes) = (listener.clone(), owner.clone(), scrapes.clone());
            async move {
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = accept(&listener, &owner, &scrapes) => {}
                }
            }
        });
        // It is refused when the process is ending already.
        let _ = scope.spawn_kept(address, &class);
    }
    Ok(scope.scope().clone())
}

/// A connection by which somebody asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scrape {
    peer: SocketAddr,
    number: u64,
}

async fn accept(listener: &TcpListener, gateway: &Arc<Gateway>, scrapes: &Supervisor<Tokio, Scrape>) {
    let connections = Arc::new(Connections::new());
    let pages = Arc::new(Semaphore::new(PAGES_MAX));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed; trying again in {BACK_OFF:?}");
                tokio::time::sleep(BACK_OFF).await;
                continue;
            }
        };
        let place = Connections::enter(&connections).await;
        let (number, gateway, pages) = (place.number, gateway.clone(), pages.clone());
        let asked = scrapes.spawn_as(Scrape { peer, number }, move |ctx| async move {
            tokio::select! {
                () = ctx.cancelled() => {}
                () = place.displaced() => {}
                _ = tokio::time::timeout(CONNECTION_LIMIT, converse(stream, gateway, &place, &pages)) => {}
            }
        });
        // Its handle is not needed; when the process is ending, it is refused.
        drop(asked);
    }
}

async fn converse(stream: TcpStream, gateway: Arc<Gateway>, place: &Place, pages: &Semaphore) {
    let service = service_fn(|request: Request<Incoming>| {
        place.set(Stage::Page);
        // The body is dropped unread: only its head says anything.
        let (head, _) = request.into_parts();
        let gateway = gateway.clone();
        async move {
            let answer = answer(&head, &gateway, pages).await;
            place.set(Stage::Reply);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    // One request per connection: pipelined ones would each put a page into memory, read or not.
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    // A scraper that goes away in the middle is no news.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// The page of metrics. With thousands of databases it takes a while, in which probes and look-ups go on.
async fn page(gateway: &Arc<Gateway>, format: Format, pages: &Semaphore) -> Option<Vec<u8>> {
    let _turn = pages.acquire().await.ok()?;
    let owner = gateway.clone();
    let page = move || async move { metrics::exposition(&owner, format).await };
    gateway.pools.connector.resolver.offload_async("a page of metrics", page).await
}

async fn answer(head: &Parts, gateway: &Arc<Gateway>, pages: &Semaphore) -> Response<Full<Bytes>> {
    let format = match head.uri.path() {
        "/metrics" => Format::asked_for(&head.headers),
        _ => Format::Text,
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
    let kind = if status == StatusCode::OK { format } else { Format::Text }.content_type();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
