//! A Postgres of one's own, for a test or a demo.
//!
//! A test that shares a server with others cannot kill it, stop it or change its settings. [`Postgres`] is a real
//! server in a temporary folder: its own port, its own unix socket, its own log. It is found on the machine or fetched
//! once into a cache, and it is gone, with its folder, when the value is dropped or when the process that owns it dies.
//!
//! The server trades durability for speed (`fsync = off`): it holds nothing worth keeping.
//!
//! ```no_run
//! use tidegate_sandbox::{Major, Postgres};
//!
//! let postgres = Postgres::builder()
//!     .version(Major(18))
//!     .setting("max_connections", "200")
//!     .start()?;
//! let rows = postgres.simple_query("SELECT 1 + 1")?;
//! assert_eq!(rows[0][0].as_deref(), Some("2"));
//! println!("psql {}", postgres.url());
//! postgres.stop()?;
//! # Ok::<(), tidegate_sandbox::Error>(())
//! ```
//!
//! Everything here blocks the calling thread; call it from `spawn_blocking` inside a runtime.

// Of what the sandboxes have in common, Postgres needs a little more than Kafka.
#![cfg_attr(not(feature = "postgres"), allow(dead_code))]

#[cfg(feature = "postgres")]
mod account;
#[cfg(feature = "postgres")]
mod binaries;
#[cfg(feature = "postgres")]
mod builder;
mod cache;
#[cfg(feature = "postgres")]
mod client;
#[cfg(feature = "postgres")]
mod cluster;
mod error;
mod guard;
#[cfg(feature = "kafka")]
pub mod kafka;
mod port;
mod process;
#[cfg(feature = "postgres")]
mod server;

#[cfg(feature = "postgres")]
pub use binaries::{Binaries, Major};
#[cfg(feature = "postgres")]
pub use builder::{Builder, Progress};
#[cfg(feature = "postgres")]
pub use client::Row;
#[cfg(feature = "postgres")]
pub use cluster::Cluster;
pub use error::Error;
#[cfg(feature = "postgres")]
pub use server::{Postgres, Shutdown};
