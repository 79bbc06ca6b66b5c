//! Accepts connections and serves their requests.

use std::{
    error::Error,
    future::poll_fn,
    io,
    net::{SocketAddr, TcpListener as Bound},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use tidegate_supervise::{ChildClass, Ctx, Restart, Supervisor, Tokio};
use tidegate_tasks::unlimited_restarts;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{
    connection::serve_connection,
    connections::{ConnectionSlot, ConnectionSlots},
    on_wake::OnWake,
    stall::StallGuard,
};

/// Connections that wait to be accepted: browsers and caches connect in bursts.
const BACKLOG: i32 = 4096;
/// Pause of accepting after an error, such as a lack of file descriptors.
const BACKOFF: Duration = Duration::from_millis(100);
/// Limit of a TLS handshake.
const TLS_LIMIT: Duration = Duration::from_secs(10);

/// Versions of HTTP that a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1.1 with one request per connection: pipelined requests would each put a page into memory.
    SingleRequest,
    /// HTTP/1.1.
    Http1,
    /// HTTP/1.1 and HTTP/2.
    Http1And2 {
        /// Limit of concurrent requests of a connection of HTTP/2.
        streams_max: u32,
    },
}

/// Limits of a socket.
#[derive(Clone, Copy, Debug)]
pub struct ListenerOptions {
    /// The versions of HTTP.
    pub versions: HttpVersions,
    /// Limit of connections per socket. At the limit, a new connection displaces a connection that waits for its client.
    pub connections_max: usize,
    /// Limit for the head of a request, and for the pause between two requests of a connection.
    pub head_limit: Duration,
    /// Limit of the head of a request, in bytes.
    pub head_bytes_max: usize,
    /// How long a client may accept no bytes of a response.
    pub stall_limit: Duration,
    /// Limit of a connection as a whole.
    pub connection_limit: Option<Duration>,
    /// How long requests in work may take when the scope is stopped; idle connections are closed immediately. Shorter than the
    /// grace of the stop.
    pub drain: Duration,
}

impl ListenerOptions {
    /// Limits for people with browsers: HTTP/1.1, 64 connections, half a minute for a head of 16 KiB.
    pub const DEFAULT: Self = Self {
        versions: HttpVersions::Http1,
        connections_max: 64,
        head_limit: Duration::from_secs(30),
        head_bytes_max: 16 << 10,
        stall_limit: Duration::from_secs(60),
        connection_limit: None,
        drain: Duration::ZERO,
    };
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Returns the TLS configuration in force; `None` serves HTTP.
pub type TlsSource = Arc<dyn Fn() -> Option<Arc<ServerConfig>> + Send + Sync>;

/// Answers requests. A clone is used for each request.
pub trait HttpService: Clone + Send + Sync + 'static {
    /// Body of the responses.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;

    /// Answers a request of a connection.
    fn answer(
        self,
        request: Request<Incoming>,
        connection: Arc<ConnectionSlot>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A service and its limits.
#[derive(Clone)]
pub struct HttpServer<S> {
    /// The limits.
    pub options: ListenerOptions,
    /// The TLS configuration of new connections.
    pub tls: TlsSource,
    /// The service.
    pub service: S,
}

/// Key of a connection's task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpConnection {
    /// The address of the client.
    pub peer: SocketAddr,
    /// A number that no other connection of the socket has.
    pub number: u64,
}

/// Listens on an address.
///
/// # Errors
/// If the address is not available.
pub fn bind(address: SocketAddr) -> io::Result<Bound> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier process do not keep the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Serves sockets until `scope` is stopped, and returns their addresses. The tasks of connections are children of `connections`.
///
/// # Errors
/// If a socket cannot be registered.
pub fn serve<S: HttpService>(
    scope: &Supervisor<Tokio, SocketAddr>,
    connections: &Supervisor<Tokio, HttpConnection>,
    sockets: Vec<Bound>,
    server: HttpServer<S>,
) -> io::Result<Vec<SocketAddr>> {
    let server = Arc::new(server);
    let mut addresses = Vec::new();
    for socket in sockets {
        socket.set_nonblocking(true)?;
        let listener = Arc::new(TcpListener::from_std(socket)?);
        let address = listener.local_addr()?;
        let (server, connections) = (Arc::clone(&server), connections.clone());
        let class = ChildClass::new(unlimited_restarts(Restart::Permanent), move |_: &SocketAddr, ctx: Ctx| {
            let (listener, server, connections) = (Arc::clone(&listener), Arc::clone(&server), connections.clone());
            async move {
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = accept(&listener, &server, &connections) => {}
                }
            }
        });
        // Rejected while the process is stopping.
        let _ = scope.spawn_kept(address, &class);
        addresses.push(address);
    }
    Ok(addresses)
}

async fn accept<S: HttpService>(
    listener: &TcpListener,
    server: &Arc<HttpServer<S>>,
    connections: &Supervisor<Tokio, HttpConnection>,
) {
    let slots = Arc::new(ConnectionSlots::new(server.options.connections_max));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed; trying again in {BACKOFF:?}");
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        let slot = Arc::new(ConnectionSlots::acquire(&slots, peer).await);
        let (key, server) = (HttpConnection { peer, number: slot.number }, Arc::clone(server));
        let spawned = connections
            .spawn_as(key, move |ctx: Ctx| async move { serve_accepted(stream, &server, &slot, &ctx).await });
        // The handle is not needed. Rejected while the process is stopping.
        drop(spawned);
    }
}

/// Serves a connection until its end. After a stop, the request in work has a time.
async fn serve_accepted<S: HttpService>(
    stream: TcpStream,
    server: &HttpServer<S>,
    slot: &Arc<ConnectionSlot>,
    ctx: &Ctx,
) {
    let mut overdue = OnWake::new(overdue(server.options, slot));
    let mut served = pin!(serve_stream(stream, server, slot, ctx));
    let mut drain = None;
    let ended = poll_fn(|cx| {
        if Pin::new(&mut overdue).poll(cx).is_ready() || served.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if drain.is_none() && ctx.poll_cancelled(cx).is_ready() {
            drain = Some(Box::pin(tokio::time::sleep(server.options.drain)));
        }
        // A connection that is not served in time is closed.
        drain.as_mut().map_or(Poll::Pending, |drain| drain.as_mut().poll(cx))
    });
    ended.await;
}

/// Completes when a connection has to end: its slot is needed, or a limit of time is over.
async fn overdue(options: ListenerOptions, slot: &ConnectionSlot) {
    tokio::select! {
        () = slot.displaced() => {}
        () = sleep_or_pend(options.connection_limit) => {}
        () = slot.head_overdue(options.head_limit) => {}
    }
}

async fn sleep_or_pend(limit: Option<Duration>) {
    match limit {
        // Most connections have no limit, and no room for its timer.
        Some(limit) => Box::pin(tokio::time::sleep(limit)).await,
        None => std::future::pending().await,
    }
}

/// Serves a connection, with TLS if the configuration in force has a certificate.
async fn serve_stream<S: HttpService>(
    stream: TcpStream,
    server: &HttpServer<S>,
    slot: &Arc<ConnectionSlot>,
    ctx: &Ctx,
) {
    // Responses are written whole; waiting for more would delay them.
    let _ = stream.set_nodelay(true);
    let stream = StallGuard::new(stream, server.options.stall_limit);
    match (server.tls)() {
        None => serve_connection(stream, server, slot, ctx).await,
        // Connections without TLS keep no room for its state.
        Some(tls) => Box::pin(serve_tls(stream, tls, server, slot, ctx)).await,
    }
}

async fn serve_tls<S: HttpService>(
    stream: StallGuard<TcpStream>,
    tls: Arc<ServerConfig>,
    server: &HttpServer<S>,
    slot: &Arc<ConnectionSlot>,
    ctx: &Ctx,
) {
    let limit = TLS_LIMIT.min(server.options.head_limit);
    // A client that breaks off its handshake is not reported.
    if let Ok(Ok(stream)) = tokio::time::timeout(limit, TlsAcceptor::from(tls).accept(stream)).await {
        serve_connection(stream, server, slot, ctx).await;
    }
}
