//! A private Postgres server for a test or a demo.
//!
//! A test that shares a server with other tests cannot kill it, stop it or change its settings. [`Postgres`] is a real
//! server in a temporary folder, with its own port, unix socket and log. Its programs are found on the machine or
//! downloaded once into a cache. Dropping the value, or the death of its process, stops the server and removes its
//! folder.
//!
//! The server trades durability for speed (`fsync = off`), because its data are temporary.
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
//! All functions block the calling thread; call them from `spawn_blocking` inside an async runtime.

// Postgres uses shared functions that Kafka does not.
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
#[cfg(feature = "postgres")]
mod data_dir;
mod error;
#[cfg(feature = "kafka")]
pub mod kafka;
mod port;
mod process;
#[cfg(feature = "postgres")]
mod progress;
#[cfg(feature = "postgres")]
mod server;
#[cfg(feature = "postgres")]
mod version;
mod watchdog;

#[cfg(feature = "postgres")]
pub use binaries::Binaries;
#[cfg(feature = "postgres")]
pub use builder::PostgresBuilder;
#[cfg(feature = "postgres")]
pub use client::TextRow;
#[cfg(feature = "postgres")]
pub use cluster::Cluster;
pub use error::Error;
#[cfg(feature = "postgres")]
pub use progress::StartProgress;
#[cfg(feature = "postgres")]
pub use server::{Postgres, ShutdownMode};
#[cfg(feature = "postgres")]
pub use version::Major;
