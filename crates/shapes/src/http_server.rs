//! The HTTP server: HTTP/1.1 and HTTP/2 on one port.

mod admission;
mod answer;
mod body;
mod delete;
mod events;
mod get;
mod resolving;
mod route;
mod subset;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, Socket, Type};
use tidegate_supervise::{Ctx, Scope, Supervisor, Tokio};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::server::ShapeServer;
use admission::Admission;

/// Limit for the head of a request, and of an idle connection of HTTP/1.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// Limit of the head of a request: predicates are in the URL.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Streams of one connection of HTTP/2, which a browser uses for all its shapes.
const STREAMS_MAX: u32 = 1000;
/// Pause of accepting after an error, such as a lack of file descriptors.
const BACKOFF: Duration = Duration::from_millis(100);

/// State of the server of HTTP.
pub(crate) struct HttpContext {
    pub(crate) server: Arc<ShapeServer>,
    pub(crate) admission: Admission,
}

/// Key of a connection's task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ConnectionKey {
    peer: SocketAddr,
    number: u64,
}

/// Connections that wait to be accepted: browsers and caches connect in bursts.
const BACKLOG: i32 = 4096;

/// Listens on an address.
///
/// # Errors
/// If the address is not available.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier process do not keep the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Serves shapes on a socket until the scope is stopped.
///
/// # Errors
/// If the socket cannot be registered, or the scope has been stopped.
pub fn serve(server: &Arc<ShapeServer>, socket: std::net::TcpListener, scope: &Scope) -> io::Result<SocketAddr> {
    socket.set_nonblocking(true)?;
    let listener = TcpListener::from_std(socket)?;
    let address = listener.local_addr()?;
    let options = &server.options;
    let admission = Admission::new(options.initial_requests_max, options.existing_requests_max);
    let context = Arc::new(HttpContext { server: Arc::clone(server), admission });
    let slots = Arc::new(Semaphore::new(options.connections_max));
    let tasks = scope.child::<SocketAddr>("http").on(Tokio::current());
    let connections = tasks.child::<ConnectionKey>("connections");
    let accepting = tasks.spawn_as(address, move |ctx: Ctx| async move {
        tokio::select! {
            () = ctx.cancelled() => {}
            () = accept(&listener, &context, &slots, &connections) => {}
        }
    });
    accepting.map_err(io::Error::other)?;
    tracing::info!(%address, "answering GET /v1/shape");
    Ok(address)
}

async fn accept(
    listener: &TcpListener,
    context: &Arc<HttpContext>,
    slots: &Arc<Semaphore>,
    connections: &Supervisor<Tokio, ConnectionKey>,
) {
    let mut number = 0;
    loop {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed; trying again in {BACKOFF:?}");
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        number += 1;
        let context = Arc::clone(context);
        let spawned = connections.spawn_as(ConnectionKey { peer, number }, move |ctx| async move {
            let _slot = slot;
            tokio::select! {
                () = ctx.cancelled() => {}
                () = serve_connection(stream, &context) => {}
            }
        });
        // The handle is not needed. Rejected while the process is stopping.
        drop(spawned);
    }
}

async fn serve_connection(stream: TcpStream, context: &Arc<HttpContext>) {
    // Answers are written whole; waiting for more would delay them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: Request<Incoming>| {
        let context = Arc::clone(context);
        // An idle connection keeps no future of a request.
        async move { Ok::<_, Infallible>(Box::pin(route::handle(&context, request)).await) }
    });
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(HEAD_BYTES_MAX);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .keep_alive_interval(HEAD_LIMIT);
    // A client that disconnects early is not reported.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
