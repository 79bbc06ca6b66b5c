//! SCRAM-SHA-256: client and server prove to each other that they have the password or its verifier, without sending
//! either.
//!
//! Implements RFC 5802 and RFC 7677 as Postgres does: no authorization identity, the user name of the startup message,
//! and `tls-server-end-point` as the only channel binding.
//!
//! Each side is a value that consumes the message of the peer and becomes the next state, so messages cannot be handled
//! out of order. The server side **recovers the client's key** from a valid proof. A proxy that holds only the
//! [`Verifier`] can log in with that key to a server that holds the same verifier: pass [`ScramAccepted::keys`] to
//! [`ScramSecret::Keys`].
//!
//! ```
//! use tidegate_wire::auth::scram::{ChannelBinding, Nonce, ScramClient, ScramServer, ScramSecret, Verifier};
//! # fn main() -> Result<(), tidegate_wire::auth::scram::ScramError> {
//! let verifier = Verifier::derive(b"secret", b"0123456789abcdef", 4096);
//! let (password, nonce) = (ScramSecret::Password(b"secret".to_vec()), Nonce::from_random(&[1; 18]));
//! let client = ScramClient::new(password, nonce, ChannelBinding::None);
//! let server = ScramServer::new(verifier, Nonce::from_random(&[2; 18]), ChannelBinding::None);
//!
//! let (server, server_first) = server.challenge(&client.first())?;
//! let (client, client_final) = client.respond(&server_first)?;
//! let accepted = server.finish(&client_final)?;
//! client.verify(&accepted.reply)?;
//!
//! // A proxy logs in to a server with the recovered keys.
//! let nonce = Nonce::from_random(&[3; 18]);
//! let client_of_server = ScramClient::new(ScramSecret::Keys(accepted.keys), nonce, ChannelBinding::None);
//! # let _ = client_of_server;
//! # Ok(())
//! # }
//! ```

mod client;
mod keys;
mod message;
mod server;
mod verifier;

pub use client::{ScramClient, ScramClientFinal, ScramSecret};
pub use keys::{SaltedKeys, ScramKeys, normalize};
pub use message::Nonce;
pub use server::{ScramAccepted, ScramServer, ScramServerFinal};
pub use verifier::Verifier;

/// The mechanism without channel binding.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// The longest message, in bytes: `PG_MAX_SASL_MESSAGE_LENGTH` of Postgres.
pub const MESSAGE_MAX: usize = 1024;
/// The limit of iterations in a verifier or a challenge. Each iteration costs two SHA-256 compressions, so the limit is
/// about an eighth of a second; a peer could otherwise waste CPU time.
pub const ITERATIONS_MAX: u32 = 1_000_000;

/// Binds the exchange to its TLS connection, so that it cannot be relayed into another one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ChannelBinding {
    /// No binding, because there is no TLS or this side does not support it. The client sends `n`; the server offered
    /// only [`MECHANISM`].
    #[default]
    None,
    /// No binding, though this side supports it. The client sends `y`: it supports binding, but [`MECHANISM_PLUS`] was
    /// not offered. The server offered [`MECHANISM_PLUS`], and the client chose [`MECHANISM`]. The server refuses a
    /// client that sends `y`, because a third party removed the offer.
    Unused,
    /// ChannelBinding to this hash of the server certificate (RFC 5929, `tls-server-end-point`), with [`MECHANISM_PLUS`].
    EndPoint(Vec<u8>),
}

impl ChannelBinding {
    /// The name of the mechanism for this binding.
    #[must_use]
    pub const fn mechanism(&self) -> &'static str {
        match self {
            Self::EndPoint(_) => MECHANISM_PLUS,
            Self::None | Self::Unused => MECHANISM,
        }
    }
}

/// A failed exchange.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// The message violates the grammar.
    #[error("malformed SCRAM message: expected {expected} at byte {offset}")]
    Malformed {
        /// Offset in the message, in bytes.
        offset: usize,
        /// The expected element.
        expected: &'static str,
    },
    /// The message is longer than [`MESSAGE_MAX`].
    #[error("SCRAM message of {len} bytes, {MESSAGE_MAX} are allowed")]
    TooLong {
        /// Length in bytes.
        len: usize,
    },
    /// The peer requires an extension, or requests an authorization identity.
    #[error("SCRAM {0} is not supported")]
    Unsupported(&'static str),
    /// The nonce belongs to another exchange.
    #[error("SCRAM nonce does not match")]
    WrongNonce,
    /// The channel binding belongs to another connection: a third party may intercept the connection.
    #[error("SCRAM channel binding does not match")]
    WrongBinding,
    /// The number of iterations is out of range.
    #[error("SCRAM iteration count is not within 1..={ITERATIONS_MAX}")]
    Iterations,
    /// The client does not have the password.
    #[error("SCRAM proof is wrong")]
    WrongProof,
    /// The server does not have the verifier: it is an impostor.
    #[error("SCRAM server signature is wrong")]
    WrongServer,
    /// The salt or iteration count of the server differs from that of the keys: the password has changed.
    #[error("SCRAM keys are not those of the server's verifier")]
    StaleKeys,
    /// The server ended the exchange.
    #[error("SCRAM refused by the server: {0}")]
    Refused(String),
}
