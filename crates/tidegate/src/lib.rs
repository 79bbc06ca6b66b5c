//! Tidegate: a Postgres gateway that pools tens of thousands of clients onto a few server connections.
//!
//! This crate is the binary: the command line ([`cli`]), the process ([`run`]: signals, reload, hand-over, shutdown) and the
//! [`demo`]. The data path is `tidegate-proxy`, the admin console `tidegate-admin`; `ARCHITECTURE.md` shows all crates.

pub mod cli;
pub mod demo;
pub mod run;
