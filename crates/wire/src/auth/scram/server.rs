//! The side that holds a verifier and lets in.

use super::keys::{Keys, SaltedKeys, hmac, sha256, xor};
use super::message::{ClientFinal, ClientFirst, Nonce, binding_attribute, encode};
use super::{Binding, ScramError, Verifier};
use crate::auth::secrets_equal;

/// A server that waits for the client's first message.
#[derive(Debug)]
pub struct ScramServer {
    verifier: Verifier,
    nonce: Nonce,
    binding: Binding,
}

impl ScramServer {
    /// `binding` is [`Binding::EndPoint`] if the client chose [`MECHANISM_PLUS`](super::MECHANISM_PLUS), else it tells
    /// whether that was on offer.
    #[must_use]
    pub const fn new(verifier: Verifier, nonce: Nonce, binding: Binding) -> Self {
        Self { verifier, nonce, binding }
    }

    /// Answers the client's first message with a challenge.
    ///
    /// # Errors
    /// The message is malformed, or does not bind as agreed.
    pub fn challenge(self, client_first: &[u8]) -> Result<(ScramServerFinal, Vec<u8>), ScramError> {
        let first = ClientFirst::parse(client_first, &self.binding)?;
        let nonce = format!("{}{}", first.nonce, self.nonce.as_str());
        let (salt, iterations) = (encode(&self.verifier.salt), self.verifier.iterations);
        let challenge = format!("r={nonce},s={salt},i={iterations}");
        let next = ScramServerFinal {
            binding: binding_attribute(first.header, &self.binding),
            transcript: format!("{},{challenge}", first.bare),
            nonce,
            verifier: self.verifier,
        };
        Ok((next, challenge.into_bytes()))
    }
}

/// A server that waits for the client's proof.
#[derive(Debug)]
pub struct ScramServerFinal {
    verifier: Verifier,
    nonce: String,
    binding: String,
    transcript: String,
}

/// A client that proved to know the password.
#[derive(Debug)]
pub struct Accepted {
    /// The server's last message, which proves in turn that it holds the verifier.
    pub reply: Vec<u8>,
    /// The client's keys, recovered from its proof: good for a login at any server with the same verifier.
    pub keys: SaltedKeys,
}

impl ScramServerFinal {
    /// The same with the keys of another verifier, which has the salt and the iterations that the client was told. Keys
    /// that take long to derive need not be there before the proof is.
    #[must_use]
    pub fn with_keys_of(self, verifier: Verifier) -> Self {
        Self { verifier, ..self }
    }

    /// Checks the client's proof, in constant time.
    ///
    /// # Errors
    /// [`ScramError::WrongProof`], which is all a client may learn; malformed messages, and those of another exchange or
    /// another connection.
    pub fn finish(self, client_final: &[u8]) -> Result<Accepted, ScramError> {
        let last = ClientFinal::parse(client_final)?;
        if !secrets_equal(last.nonce.as_bytes(), self.nonce.as_bytes()) {
            return Err(ScramError::WrongNonce);
        }
        if last.binding != self.binding {
            return Err(ScramError::WrongBinding);
        }
        let transcript = [self.transcript.as_bytes(), b",", last.without_proof.as_bytes()];
        let Verifier { salt, iterations, stored_key, server_key } = self.verifier;
        let client_key = xor(&last.proof, &hmac(&stored_key, &transcript));
        if !secrets_equal(&sha256(&client_key), &stored_key) {
            return Err(ScramError::WrongProof);
        }
        let reply = format!("v={}", encode(&hmac(&server_key, &transcript))).into_bytes();
        let keys = SaltedKeys { keys: Keys { client_key, server_key }, salt, iterations };
        Ok(Accepted { reply, keys })
    }
}
