//! A client's login to a Postgres server: name look-up, socket, TLS, authentication.
//!
//! [`Connector::connect`] opens one [`Connection`] on the event loop of the calling thread: it resolves the host names of a pool,
//! tries their addresses in order, negotiates TLS as `sslmode` asks, authenticates (SCRAM-SHA-256 with or without channel
//! binding, md5, clear text), and reads up to the first ReadyForQuery. What happens on the connection afterwards is the caller's
//! concern.
//!
//! The crate neither pools nor retries. An error tells whether the server, the login or this machine is at fault
//! ([`ConnectError`]), so that the caller can decide.

pub mod cancel;
pub mod connect;
mod login;
mod os_error;
pub mod resolve;
pub mod secrets;
pub mod tcp;

use std::{net::SocketAddr, sync::atomic::AtomicU32, time::SystemTime};

use tidegate_link::Link;

pub use connect::{ConnectError, Connector, ServerAddress};
pub use os_error::WithLimit;

/// A connection after its login: the server is ready for the first query.
pub struct Connection {
    /// The socket, with TLS if it was negotiated.
    pub link: Link,
    /// The parameters that the server reported (ParameterStatus), in the order of their reports.
    pub parameters: Vec<(String, Box<[u8]>)>,
    /// The server process and the way to it.
    pub identity: Identity,
}

/// Identifies one server connection.
#[derive(Debug)]
pub struct Identity {
    /// Unique in this process.
    pub id: u64,
    /// The address that was connected to.
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
