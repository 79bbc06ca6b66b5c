//! What the tests of the gateway share: the real binary, a real Postgres, raw bytes between them, and checkers.
//!
//! A test of a protocol says exactly which bytes go in and which messages come out. So the client here is blocking, has
//! no opinion, and never repairs anything: [`RawClient`] sends [`Frames`] and reads [`Message`]s, and every read has a
//! deadline. [`Door`] is where a script enters: Postgres itself or the gateway before it, so that each expectation can be
//! shown to be that of Postgres. [`FaultyServer`] plays the servers that the real one cannot be made to be.
//!
//! Everything here panics with the recent traffic and the gateway's log when an expectation fails: it is test code.

mod client;
mod fault;
mod fixture;
mod frames;
mod gateway;
mod message;
mod names;
mod pattern;
mod process;
mod replies;
mod scram;
mod server;
mod tls;

pub use client::{CancelKey, Lost, Outcome, RawClient, Startup};
pub use fault::{FaultyConnection, FaultyServer, reply};
pub use fixture::{Door, Fixture, eventually};
pub use frames::Frames;
pub use gateway::{Gateway, write_private};
pub use message::{ErrorFields, Message};
pub use names::{NameServer, Outage};
pub use process::{Process, Signal, free_address};
pub use replies::Replies;
pub use scram::Bound;
pub use server::Server;
pub use tls::{Authority, Identity, TlsMode};

/// How long a read or a condition may take before a test fails. Generous: it bounds a hang, it measures nothing.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
