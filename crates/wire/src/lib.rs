//! The Postgres wire protocol, versions 3.0 and 3.2, as values over bytes.
//!
//! A proxy between Postgres clients and servers finds message boundaries, reads a few messages, writes a few of its
//! own, and forwards all others as fast as it can. This crate has the types for that. It does not do I/O, depend on an
//! async runtime, read a clock, or draw random numbers. The contract:
//!
//! * No input panics. Every [`DecodeError`] names the offset and the fault.
//! * A length is checked before an allocation, and no buffer is sized by a length that the peer has only declared.
//! * Views borrow; encoders append to a `Vec<u8>`. A decoder reads every message that the encoder of the same message
//!   writes, unless a key or a packet has a length that the protocol excludes.
//! * Names, texts and values are bytes. Only strings that the protocol itself defines are `str`.
//! * A zero byte ends a name or a text. An encoder writes what is before it, so that no text becomes another field: check
//!   texts for zero bytes where the difference matters, as in the name of a user.
//!
//! | module | holds |
//! |---|---|
//! | [`scan`] | message boundaries in a stream of chunks: the hot path |
//! | [`frame`] | a header, a message, an iterator over messages |
//! | [`startup`] | the first packet, which has no tag; version negotiation |
//! | [`frontend`] | client messages |
//! | [`backend`] | server messages |
//! | [`sqlstate`] | error codes |
//! | [`auth`] | md5 and SCRAM-SHA-256, client and server side |
//! | [`replication`] | logical replication: LSNs, commands, `pgoutput` |
//! | [`peer_key`] | cancel keys that name a peer of the gateway |
//!
//! # Example
//! Forward server messages, and detect when the server is ready for the next query:
//! ```
//! use tidegate_wire::{backend::{self, TxStatus}, scan::{Delivery, ScanStep, Scanner}, DecodeError};
//!
//! fn forward(scanner: &mut Scanner, chunk: &[u8], out: &mut Vec<u8>) -> Result<Option<TxStatus>, DecodeError> {
//!     let delivery = |tag| if tag == backend::READY_FOR_QUERY { Delivery::Whole } else { Delivery::Stream };
//!     let (mut at, mut ready) = (0, None);
//!     loop {
//!         let (tag, message, end) = match scanner.step(chunk, at, delivery)? {
//!             ScanStep::Message { tag, end } => (tag, &chunk[at..end], end),
//!             ScanStep::Carried { tag, end } | ScanStep::StreamHead { tag, end } => (tag, scanner.carry(), end),
//!             ScanStep::Stream { tag, end, .. } => (tag, &chunk[at..end], end),
//!             ScanStep::NeedMore => return Ok(ready),
//!         };
//!         if tag == backend::READY_FOR_QUERY {
//!             ready = Some(backend::ready_for_query_status(&message[5..])?);
//!         }
//!         out.extend_from_slice(message);
//!         at = end;
//!     }
//! }
//!
//! let mut sent = Vec::new();
//! backend::command_complete(b"BEGIN", &mut sent);
//! backend::ready_for_query(TxStatus::InTransaction, &mut sent);
//! let (mut scanner, mut out) = (Scanner::new(1 << 20), Vec::new());
//! assert_eq!(forward(&mut scanner, &sent[..8], &mut out)?, None);
//! assert_eq!(forward(&mut scanner, &sent[8..], &mut out)?, Some(TxStatus::InTransaction));
//! assert_eq!(out, sent);
//! # Ok::<(), DecodeError>(())
//! ```

pub mod auth;
pub mod backend;
mod cursor;
mod error;
pub mod frame;
pub mod frontend;
pub mod peer_key;
pub mod replication;
pub mod scan;
pub mod sqlstate;
pub mod startup;

pub use error::{DecodeError, DecodeErrorKind};
pub use frame::{Frame, Frames, MessageHeader};
pub use scan::{Delivery, ScanStep, Scanner};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
