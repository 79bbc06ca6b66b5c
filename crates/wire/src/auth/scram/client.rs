//! The client side: logs in with a password or with keys.

use std::fmt;

use super::keys::{SaltedKeys, ScramKeys, hmac, xor};
use super::message::{Nonce, ServerFirst, binding_attribute, encode, gs2_header, parse_server_final};
use super::{ChannelBinding, ScramError};
use crate::auth::secrets_equal;

/// The secret of a client.
#[derive(Clone)]
pub enum ScramSecret {
    /// A password. The exchange derives keys from it in `iterations` rounds of HMAC-SHA-256;
    /// [`ScramClientFinal::verify`] returns them for the next login.
    Password(Vec<u8>),
    /// Keys with their salt and iteration count. Nothing is derived.
    Keys(SaltedKeys),
}

impl fmt::Debug for ScramSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password(_) => "Password(..)",
            Self::Keys(_) => "Keys(..)",
        })
    }
}

impl ScramSecret {
    fn keys_for(self, server: ServerFirst<'_>) -> Result<SaltedKeys, ScramError> {
        let ServerFirst { salt, iterations, .. } = server;
        match self {
            Self::Password(password) => {
                Ok(SaltedKeys { keys: ScramKeys::derive(&password, &salt, iterations), salt, iterations })
            }
            Self::Keys(known) if known.salt == salt && known.iterations == iterations => Ok(known),
            Self::Keys(_) => Err(ScramError::StaleKeys),
        }
    }
}

/// A client before its first message.
#[derive(Debug)]
pub struct ScramClient {
    secret: ScramSecret,
    nonce: Nonce,
    binding: ChannelBinding,
    user: String,
}

impl ScramClient {
    /// Starts an exchange. [`ChannelBinding::mechanism`] is the name to send with the first message.
    #[must_use]
    pub const fn new(secret: ScramSecret, nonce: Nonce, binding: ChannelBinding) -> Self {
        Self { secret, nonce, binding, user: String::new() }
    }

    /// Sets the user name in the first message. Postgres ignores it and uses the name of the startup message.
    #[must_use]
    pub fn with_user(mut self, name: &str) -> Self {
        self.user = name.replace('=', "=3D").replace(',', "=2C");
        self
    }

    /// The first message of the client.
    #[must_use]
    pub fn first(&self) -> Vec<u8> {
        format!("{}{}", gs2_header(&self.binding), self.bare()).into_bytes()
    }

    fn bare(&self) -> String {
        format!("n={},r={}", self.user, self.nonce.as_str())
    }

    /// Responds to the challenge of the server with a proof.
    ///
    /// # Errors
    /// The message is malformed, belongs to another exchange, has too many iterations, or needs other keys than these
    /// ([`ScramError::StaleKeys`]).
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

/// A client before the signature of the server.
#[must_use = "a server that was not verified may be anyone"]
pub struct ScramClientFinal {
    expected: [u8; 32],
    keys: SaltedKeys,
}

impl ScramClientFinal {
    /// Checks the signature of the server in constant time. Returns the keys for the next login, which then derives
    /// nothing.
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
