//! `tidegate stream` and `[[streams]]`, as processes: what goes in comes out at least once and in order per key, whatever
//! the other side does and whenever the process ends.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic as the test may")]

mod beside;
mod command;
mod console;
mod crash;
mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod ledger;
mod lines;
mod postgres;
mod process;
mod settings;
mod web;
mod wrong;
