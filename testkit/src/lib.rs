//! Test support for the gateway: starts the binary, servers and clients, and checks replies.
//!
//! A protocol test states exactly which bytes are sent and which messages are received. [`RawClient`] is therefore
//! blocking, interprets nothing and repairs nothing: it sends [`Frames`] and reads [`Message`]s, and every read has a
//! deadline. A [`Target`] is Postgres itself or a gateway in front of it, so that a test can show that its expectations
//! are the behaviour of Postgres. [`FaultyServer`] simulates servers that a real Postgres cannot be made to be.
//!
//! A failed expectation panics and prints the recent traffic and the log of the gateway.

mod client;
mod fault;
mod fixture;
mod frames;
mod gateway;
mod macros;
mod message;
mod names;
mod pattern;
mod poll;
mod process;
mod replies;
mod scram;
mod server;
mod tls;

pub use client::{CancelKey, ClientError, Outcome, RawClient, Startup};
pub use fault::{FaultyConnection, FaultyServer, reply};
pub use fixture::{Fixture, Target, tls_section};
pub use frames::Frames;
pub use gateway::{Gateway, write_private};
pub use message::{ErrorFields, Message};
pub use names::{NameServer, Outage};
pub use poll::{eventually, poll};
pub use process::{Process, Signal, free_address};
pub use replies::Replies;
pub use scram::ChannelBinding;
pub use server::Server;
pub use tls::{Authority, Identity, TlsMode};

/// Maximum duration of a read or of a wait for a condition. The value is generous, because it only bounds a hang.
pub const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);
