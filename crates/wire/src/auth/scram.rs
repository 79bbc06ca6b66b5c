//! SCRAM-SHA-256: both sides know that the other knows, and no one on the way learns the password.
//!
//! RFC 5802 and RFC 7677, in the form Postgres speaks: no authorization identity, the user name is that of the startup
//! packet, and `tls-server-end-point` is the one channel binding.
//!
//! Each side is a value that takes the peer's message and becomes the next one, so no message can be handled out of
//! order. The server's side **recovers the client's key** from a valid proof. A gateway that holds nothing but the
//! [`Verifier`] can log in to a server that holds the same verifier with that key: [`Accepted::keys`] is what
//! [`Secret::Keys`] takes.
//!
//! ```
//! use tidegate_wire::auth::scram::{Binding, Nonce, ScramClient, ScramServer, Secret, Verifier};
//! # fn main() -> Result<(), tidegate_wire::auth::scram::ScramError> {
//! let verifier = Verifier::derive(b"secret", b"0123456789abcdef", 4096);
//! let client = ScramClient::new(Secret::Password(b"secret".to_vec()), Nonce::from_random(&[1; 18]), Binding::None);
//! let server = ScramServer::new(verifier, Nonce::from_random(&[2; 18]), Binding::None);
//!
//! let (server, server_first) = server.challenge(&client.first())?;
//! let (client, client_final) = client.respond(&server_first)?;
//! let accepted = server.finish(&client_final)?;
//! client.verify(&accepted.reply)?;
//!
//! // A gateway logs in upstream with what it learnt.
//! let upstream = ScramClient::new(Secret::Keys(accepted.keys), Nonce::from_random(&[3; 18]), Binding::None);
//! # let _ = upstream;
//! # Ok(())
//! # }
//! ```

mod client;
mod keys;
mod message;
mod server;
mod verifier;

pub use client::{ScramClient, ScramClientFinal, Secret};
pub use keys::{Keys, SaltedKeys, normalize};
pub use message::Nonce;
pub use server::{Accepted, ScramServer, ScramServerFinal};
pub use verifier::Verifier;

/// The mechanism without channel binding.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// The longest message that is read, in bytes: Postgres' `PG_MAX_SASL_MESSAGE_LENGTH`.
pub const MESSAGE_MAX: usize = 1024;
/// The most iterations that a verifier or a server may ask for. Each costs two SHA-256 compressions, so this is about an
/// eighth of a second; a peer that asks for more wants to waste our time.
pub const ITERATIONS_MAX: u32 = 1_000_000;

/// How the exchange is bound to the TLS connection that it runs in, so that nobody can relay it into another one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Binding {
    /// Not at all, and it could not be: there is no TLS, or this side does not support binding. A client says `n`, a
    /// server has offered [`MECHANISM`] only.
    #[default]
    None,
    /// Not, though this side could. A client says `y`: it would have, but [`MECHANISM_PLUS`] was not offered. A server
    /// has offered [`MECHANISM_PLUS`], and the client chose [`MECHANISM`]; it refuses one that says `y`, because then
    /// somebody took the offer away.
    Unused,
    /// By this hash of the server's certificate (RFC 5929, `tls-server-end-point`): the mechanism is
    /// [`MECHANISM_PLUS`].
    EndPoint(Vec<u8>),
}

impl Binding {
    /// The name of the mechanism that goes with it.
    #[must_use]
    pub const fn mechanism(&self) -> &'static str {
        match self {
            Self::EndPoint(_) => MECHANISM_PLUS,
            Self::None | Self::Unused => MECHANISM,
        }
    }
}

/// Why an exchange ends without success.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// The message does not follow the grammar.
    #[error("malformed SCRAM message: expected {expected} at byte {offset}")]
    Malformed {
        /// Where, in bytes from its start.
        offset: usize,
        /// What should be there.
        expected: &'static str,
    },
    /// The message is longer than [`MESSAGE_MAX`].
    #[error("SCRAM message of {len} bytes, {MESSAGE_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The peer wants an extension that has to be understood, or to act as somebody else.
    #[error("SCRAM {0} is not supported")]
    Unsupported(&'static str),
    /// The nonce is not the one of this exchange.
    #[error("SCRAM nonce does not match")]
    WrongNonce,
    /// The channel binding is not the one of this connection: somebody may be in between.
    #[error("SCRAM channel binding does not match")]
    WrongBinding,
    /// The number of iterations is out of range.
    #[error("SCRAM iteration count is not within 1..={ITERATIONS_MAX}")]
    Iterations,
    /// The client does not know the password.
    #[error("SCRAM proof is wrong")]
    WrongProof,
    /// The server does not know the verifier: it is not who it claims to be.
    #[error("SCRAM server signature is wrong")]
    WrongServer,
    /// The server has another salt or iteration count than the keys were derived with: its password was changed.
    #[error("SCRAM keys are not those of the server's verifier")]
    StaleKeys,
    /// The server ended the exchange.
    #[error("SCRAM refused by the server: {0}")]
    Refused(String),
}
