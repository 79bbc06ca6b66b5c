//! The data path of the gateway: from an accepted socket to a server connection and back.
//!
//! ```text
//! listen ──► client ──► exchange ──► server
//!              │            one client and one server until the transaction, statement or session ends
//!              ▼
//!            plane          what a thread owns (worker), and what all threads share (gateway)
//! ```
//!
//! [`listen`] accepts sockets and places each on a thread. [`client`] logs the client in, reads its requests and leases a
//! [`server`] connection. [`exchange`] moves bytes both ways until the server connection can serve another client. A query
//! crosses to another thread only when its own thread has no server connection.

pub mod client;
pub mod error;
pub mod exchange;
pub mod listen;
pub mod plane;
pub mod server;
