//! A client's login to a Postgres server: name look-up, socket, TLS, authentication.
//!
//! [`Connector::connect`] opens one [`Connection`] on the event loop of the calling thread: it resolves the host names of a pool,
//! tries their addresses in order, negotiates TLS as `sslmode` requires, authenticates (SCRAM-SHA-256 with or without channel
//! binding, md5, clear text), and reads up to the first ReadyForQuery.
//!
//! The crate neither pools nor retries. [`ConnectError`] distinguishes faults of the server, of the login and of this machine, so
//! that the caller can decide.
//!
//! ```
//! use tidegate_pg_client::{Connector, resolve::Resolver};
//!
//! let control = tokio::runtime::Builder::new_current_thread().build()?;
//! let connector = Connector::new(Resolver::new(control.handle().clone()));
//! assert!(connector.resolver.cached_names().is_empty());
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod cancel;
pub mod connect;
mod login;
mod os_error;
pub mod resolve;
pub mod secrets;
pub mod tcp;

use std::{net::SocketAddr, sync::atomic::AtomicU32, time::SystemTime};

use tidegate_link::Link;

pub use connect::{ConnectError, ConnectionIds, Connector, ServerAddress};
pub use os_error::OsErrorText;

/// A connection after its login: the server is ready for the first query.
pub struct Connection {
    /// The socket, with TLS if it was negotiated.
    pub link: Link,
    /// The parameters that the server reported (ParameterStatus), in the order of their reports.
    pub parameters: Vec<(String, Box<[u8]>)>,
    /// The backend process and its address.
    pub identity: ServerIdentity,
}

/// Identifies one server connection.
#[derive(Debug)]
pub struct ServerIdentity {
    /// Unique in this process.
    pub id: u64,
    /// The address of the server.
    pub address: ServerAddress,
    /// The local address of the socket; none for a unix socket.
    pub local: Option<SocketAddr>,
    /// The process id of the backend.
    pub pid: u32,
    /// The key that a CancelRequest must carry; 4 to 256 bytes.
    pub cancel_key: Box<[u8]>,
    /// The time of the login.
    pub connected_at: SystemTime,
    /// Version and cipher suite, such as "TLSv1.3/...", if the connection uses TLS.
    pub tls: Option<String>,
    /// Number of prepared statements on the server, kept by the owner of the connection for its statistics.
    pub prepared: AtomicU32,
}
