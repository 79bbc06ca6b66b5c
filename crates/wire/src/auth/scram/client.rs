//! The side that knows a password, or keys made of one, and wants in.

use std::fmt;

use super::keys::{Keys, SaltedKeys, hmac, xor};
use super::message::{Nonce, ServerFirst, binding_attribute, encode, gs2_header, parse_server_final};
use super::{Binding, ScramError};
use crate::auth::secrets_equal;

/// What a client logs in with.
#[derive(Clone)]
pub enum Secret {
    /// A password. The exchange derives keys from it, which takes `iterations` rounds of HMAC-SHA-256, and yields them
    /// for the next time: [`ScramClientFinal::verify`].
    Password(Vec<u8>),
    /// Keys, and the salt and iterations that they go with. No derivation.
    Keys(SaltedKeys),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password(_) => "Password(..)",
            Self::Keys(_) => "Keys(..)",
        })
    }
}

impl Secret {
    fn keys_for(self, server: ServerFirst<'_>) -> Result<SaltedKeys, ScramError> {
        let ServerFirst { salt, iterations, .. } = server;
        match self {
            Self::Password(password) => {
                Ok(SaltedKeys { keys: Keys::derive(&password, &salt, iterations), salt, iterations })
            }
            Self::Keys(known) if known.salt == salt && known.iterations == iterations => Ok(known),
            Self::Keys(_) => Err(ScramError::StaleKeys),
        }
    }
}

/// A client that starts an exchange.
#[derive(Debug)]
pub struct ScramClient {
    secret: Secret,
    nonce: Nonce,
    binding: Binding,
    user: String,
}

impl ScramClient {
    /// [`Binding::mechanism`] is the name to send with the first message.
    #[must_use]
    pub const fn new(secret: Secret, nonce: Nonce, binding: Binding) -> Self {
        Self { secret, nonce, binding, user: String::new() }
    }

    /// Names the user in the first message. Postgres takes the name of the startup packet and ignores this one.
    #[must_use]
    pub fn with_user(mut self, name: &str) -> Self {
        self.user = name.replace('=', "=3D").replace(',', "=2C");
        self
    }

    /// The client's first message.
    #[must_use]
    pub fn first(&self) -> Vec<u8> {
        format!("{}{}", gs2_header(&self.binding), self.bare()).into_bytes()
    }

    fn bare(&self) -> String {
        format!("n={},r={}", self.user, self.nonce.as_str())
    }

    /// Answers the server's challenge with a proof.
    ///
    /// # Errors
    /// The message is malformed, of another exchange, asks for too many iterations, or ([`ScramError::StaleKeys`]) for
    /// other keys than those at hand.
    pub fn respond(self, server_first: &[u8]) -> Result<(ScramClientFinal, Vec<u8>), ScramError> {
        let server = ServerFirst::parse(server_first)?;
        let own = self.nonce.as_str();
        if server.nonce.len() <= own.len() || !server.nonce.starts_with(own) {
            return Err(ScramError::WrongNonce);
        }
        let binding = binding_attribute(&gs2_header(&self.binding), &self.binding);
        let without_proof = format!("c={binding},r={}", server.nonce);
        let bare = self.bare();
        let transcript = [bare.as_bytes(), b",", server_first, b",", without_proof.as_bytes()];
        let keys = self.secret.keys_for(server)?;
        let signature = hmac(&keys.keys.stored_key(), &transcript);
        let proof = encode(&xor(&keys.keys.client_key, &signature));
        let expected = hmac(&keys.keys.server_key, &transcript);
        Ok((ScramClientFinal { expected, keys }, format!("{without_proof},p={proof}").into_bytes()))
    }
}

/// A client that waits for the server's signature.
#[must_use = "a server that was not verified may be anyone"]
pub struct ScramClientFinal {
    expected: [u8; 32],
    keys: SaltedKeys,
}

impl ScramClientFinal {
    /// Checks the server's signature, in constant time; yields the keys, for the next login without a derivation.
    ///
    /// # Errors
    /// [`ScramError::WrongServer`], [`ScramError::Refused`], or a malformed message.
    pub fn verify(self, server_final: &[u8]) -> Result<SaltedKeys, ScramError> {
        let signature = parse_server_final(server_final)?;
        if secrets_equal(&signature, &self.expected) { Ok(self.keys) } else { Err(ScramError::WrongServer) }
    }
}

impl fmt::Debug for ScramClientFinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramClientFinal").field("keys", &self.keys).finish_non_exhaustive()
    }
}
