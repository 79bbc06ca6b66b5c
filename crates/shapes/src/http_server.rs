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

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use tidegate_http_listener::{
    ConnectionSlot, HttpServer, HttpService, HttpVersions, ListenerOptions, TlsSource, serve as serve_sockets,
};
use tidegate_supervise::{Scope, Tokio};
use tokio::sync::Semaphore;

use crate::server::ShapeServer;
use admission::{Admission, RequestRate};
use answer::HttpAnswer;
use body::AnswerBody;

pub use tidegate_http_listener::bind;

/// Limit for the head of a request, and of an idle connection of HTTP/1.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// Limit of the head of a request: predicates are in the URL.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a client may accept no bytes of an answer.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// How long answers may take when the server stops; requests that wait for changes are answered before.
const DRAIN: Duration = Duration::from_secs(1);
/// Streams of one connection of HTTP/2, which a browser uses for all its shapes.
const STREAMS_MAX: u32 = 1000;
/// Limit of bodies of requests that are read at a time.
const BODIES_MAX: usize = 256;

/// State of the server of HTTP.
pub(crate) struct HttpContext {
    pub(crate) server: Arc<ShapeServer>,
    pub(crate) admission: Admission,
    pub(crate) rate: RequestRate,
    /// Permits for bodies of requests.
    pub(crate) bodies: Semaphore,
}

/// Serves shapes on sockets until the scope is stopped, and returns their addresses. The limits of requests hold for all
/// sockets together. `tls` is looked up for each connection.
///
/// # Errors
/// If a socket cannot be registered.
pub fn serve(
    server: &Arc<ShapeServer>,
    sockets: Vec<TcpListener>,
    tls: TlsSource,
    scope: &Scope,
) -> io::Result<Vec<SocketAddr>> {
    let options = &server.options;
    let context = HttpContext {
        server: Arc::clone(server),
        admission: Admission::new(options.initial_requests_max, options.requests_max),
        rate: RequestRate::new(options.request_rate_max),
        bodies: Semaphore::new(BODIES_MAX),
    };
    let limits = ListenerOptions {
        versions: HttpVersions::Http1And2 { streams_max: STREAMS_MAX },
        connections_max: options.connections_max,
        head_limit: HEAD_LIMIT,
        head_bytes_max: HEAD_BYTES_MAX,
        stall_limit: options.stall_limit.unwrap_or(STALL_LIMIT),
        connection_limit: None,
        drain: DRAIN,
    };
    let is_tls = tls().is_some();
    let listeners = scope.child::<SocketAddr>("http").on(Tokio::current());
    let connections = listeners.child("connections");
    let http = HttpServer { options: limits, tls, service: ShapeService(Arc::new(context)) };
    let addresses = serve_sockets(&listeners, &connections, sockets, http)?;
    for address in &addresses {
        tracing::info!(%address, tls = is_tls, "answering GET /v1/shape");
    }
    Ok(addresses)
}

#[derive(Clone)]
struct ShapeService(Arc<HttpContext>);

impl HttpService for ShapeService {
    type Body = AnswerBody;

    fn answer(
        self,
        request: Request<Incoming>,
        connection: Arc<ConnectionSlot>,
    ) -> impl Future<Output = HttpAnswer> + Send {
        // Before the future is made, so that a request that waits has no room for its head.
        let mut routed = route::read(&self.0, request, connection.hold());
        async move {
            let answer = route::answer(&self.0, &mut routed).await;
            self.0.server.counters.answered(answer.status());
            answer
        }
    }
}
