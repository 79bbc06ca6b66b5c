//! Tidegate: a Postgres gateway that pools tens of thousands of clients onto a few server connections.
//!
//! A query takes this way, on one thread from end to end: [`client`] reads it, the pool gives a [`server`],
//! [`exchange`] moves the bytes both ways until the server may go to another client. `ARCHITECTURE.md` has the
//! drawing, and says who may use whom.
//!
//! The library exists for the binary and for tests; [`run`] is a whole gateway.

pub mod admin;
pub mod classify;
pub mod cli;
pub mod client;
pub mod config;
pub mod demo;
pub mod error;
pub mod escape;
pub mod exchange;
pub mod hba;
pub mod hosts;
pub mod journal;
pub mod listen;
pub mod log;
pub mod params;
pub mod pgbouncer;
pub mod plane;
pub mod record;
pub mod resolve;
pub mod run;
pub mod server;
pub mod statements;
pub mod stats;
pub mod stream;
pub mod tls;
pub mod tree;
