//! Tidegate: a Postgres gateway that pools tens of thousands of clients onto a few server connections.
//!
//! This crate is the binary: the command line ([`cli`]), the process ([`run`]: signals, reload, hand-over, shutdown) and the
//! [`demo`]. The data path is `tidegate-proxy`, the admin console `tidegate-admin`; `ARCHITECTURE.md` lists all crates.
//!
//! ```
//! use tidegate::cli::{Cli, Command};
//!
//! let arguments = ["tidegate", "run", "--database", "postgres://app@db.example/shop"];
//! let cli = Cli::read(arguments.map(Into::into).into_iter());
//! assert!(matches!(cli.command, Command::Run(run) if run.file().is_none()));
//! ```

pub mod cli;
pub mod demo;
mod error_line;
pub mod run;

pub use error_line::error_line;
