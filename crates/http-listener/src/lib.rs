//! HTTP listeners of the gateway: metrics, the web console and shapes share one implementation of what protects a server.
//!
//! # Contract
//!
//! - **Bounded.** A socket has a limited number of connections. At the limit, a new one displaces a connection that waits for
//!   its client; requests in work are never displaced. Heads and bodies have limits of size and time.
//! - **Stalled readers end.** A connection whose client accepts no bytes for [`ListenerOptions::stall_limit`] is closed, and so
//!   is an HTTP/2 connection with a response that its client does not read.
//! - **A request that waits is small.** A long-poll of HTTP/1 holds its socket and its future, and no buffers.
//! - **TLS is live.** The certificate is looked up for each connection, so that a reload replaces it without a restart.
//! - **Owned.** Listeners and connections are tasks of the scopes that the caller passes.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use hyper::body::Incoming;
//! use tidegate_http_listener::{ConnectionSlot, HttpServer, HttpService, ListenerOptions, bind, serve};
//! use tidegate_supervise::{Scope, Tokio};
//!
//! #[derive(Clone)]
//! struct Greeting;
//!
//! impl HttpService for Greeting {
//!     type Body = Full<Bytes>;
//!
//!     async fn answer(self, _: Request<Incoming>, connection: Arc<ConnectionSlot>) -> Response<Self::Body> {
//!         // Not displaced while the answer is made.
//!         let _hold = connection.hold();
//!         Response::new(Full::from("hello\n"))
//!     }
//! }
//!
//! # async fn run() -> std::io::Result<()> {
//! let scope: Scope = Scope::root("example");
//! let listeners = scope.child("http").on(Tokio::current());
//! let connections = listeners.child("connections");
//! let server = HttpServer { options: ListenerOptions::default(), tls: Arc::new(|| None), service: Greeting };
//! serve(&listeners, &connections, vec![bind(([127, 0, 0, 1], 0).into())?], server)?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod body;
mod connection;
mod connections;
mod listener;
mod on_wake;
mod response;
mod rewound;
mod stall;

pub use body::{BodyError, read_body};
pub use connections::{ConnectionHold, ConnectionSlot, ConnectionTimer, RequestStage};
pub use listener::{HttpConnection, HttpServer, HttpService, HttpVersions, ListenerOptions, TlsSource, bind, serve};
