//! Something between a Postgres client and a Postgres server has to know where messages begin and end, to read a few of
//! them, to write a few of its own, and to pass on all the others as fast as it can.
//!
//! This crate is the protocol, versions 3.0 and 3.2, as values over bytes. It does no I/O, knows no runtime, reads no
//! clock and draws no random numbers. The contract:
//!
//! * Nothing panics, whatever the bytes. Every [`DecodeError`] names offset and reason.
//! * A length is checked before anything is allocated, and no buffer is sized by a length that the peer only promised.
//! * Views borrow; encoders append to a `Vec<u8>`. What an encoder writes, the decoder of the same message reads.
//! * Names, texts and values are bytes. Only what the protocol itself defines is `str`.
//!
//! | module | holds |
//! |---|---|
//! | [`scan`] | the ends of messages in a stream of chunks: the hot path |
//! | [`frame`] | a header, a message, a walk over messages |
//! | [`startup`] | the first packet, which has no tag; version negotiation |
//! | [`frontend`] | messages of the client |
//! | [`backend`] | messages of the server |
//! | [`sqlstate`] | error codes |
//! | [`auth`] | md5 and SCRAM-SHA-256, both sides |
//!
//! # Example
//! Forward what a server sends, and notice when it is ready for the next query:
//! ```
//! use tidegate_wire::{backend::{self, TxStatus}, scan::{Scanner, Step, Want}, DecodeError};
//!
//! fn forward(scanner: &mut Scanner, chunk: &[u8], out: &mut Vec<u8>) -> Result<Option<TxStatus>, DecodeError> {
//!     let want = |tag| if tag == backend::READY_FOR_QUERY { Want::Whole } else { Want::Stream };
//!     let (mut at, mut ready) = (0, None);
//!     loop {
//!         let (tag, message, end) = match scanner.step(chunk, at, want)? {
//!             Step::Message { tag, end } => (tag, &chunk[at..end], end),
//!             Step::Carried { tag, end } | Step::StreamHead { tag, end } => (tag, scanner.carry(), end),
//!             Step::Stream { tag, end, .. } => (tag, &chunk[at..end], end),
//!             Step::NeedMore => return Ok(ready),
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
pub mod scan;
pub mod sqlstate;
pub mod startup;

pub use error::{DecodeError, Reason};
pub use frame::{Frame, Header, Walk};
pub use scan::{Scanner, Step, Want};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
