//! The server side: checks a client against a verifier.

use super::keys::{SaltedKeys, ScramKeys, hmac, sha256, xor};
use super::message::{ClientFinal, ClientFirst, Nonce, binding_attribute, encode};
use super::{ChannelBinding, ScramError, Verifier};
use crate::auth::secrets_equal;

/// A server before the first client message.
#[derive(Debug)]
pub struct ScramServer {
    verifier: Verifier,
    nonce: Nonce,
    binding: ChannelBinding,
}

impl ScramServer {
    /// Starts an exchange. `binding` is [`ChannelBinding::EndPoint`] if the client chose
    /// [`MECHANISM_PLUS`](super::MECHANISM_PLUS), [`ChannelBinding::Unused`] if the server offered it, and else
    /// [`ChannelBinding::None`].
    #[must_use]
    pub const fn new(verifier: Verifier, nonce: Nonce, binding: ChannelBinding) -> Self {
        Self { verifier, nonce, binding }
    }

    /// Responds to the first client message with a challenge.
    ///
    /// # Errors
    /// The message is malformed, or has another channel binding.
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

/// A server before the proof of the client.
#[derive(Debug)]
pub struct ScramServerFinal {
    verifier: Verifier,
    nonce: String,
    binding: String,
    transcript: String,
}

/// The result of a valid proof.
#[derive(Debug)]
pub struct ScramAccepted {
    /// The final server message, which proves that the server has the verifier.
    pub reply: Vec<u8>,
    /// The keys of the client, recovered from its proof. They log in to every server with the same verifier.
    pub keys: SaltedKeys,
}

impl ScramServerFinal {
    /// Replaces the keys by those of another verifier with the same salt and iteration count. Slow keys can so be
    /// derived while the client computes its proof.
    #[must_use]
    pub fn with_keys_of(self, verifier: Verifier) -> Self {
        Self { verifier, ..self }
    }

    /// Checks the proof of the client in constant time.
    ///
    /// # Errors
    /// [`ScramError::WrongProof`], the only reason that a client may learn; malformed messages, and messages of another
    /// exchange or connection.
    pub fn finish(self, client_final: &[u8]) -> Result<ScramAccepted, ScramError> {
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
        let keys = SaltedKeys { keys: ScramKeys { client_key, server_key }, salt, iterations };
        Ok(ScramAccepted { reply, keys })
    }
}
