//! The verifier that a server stores instead of a password.

use std::fmt;
use std::str::FromStr;

use super::keys::{ScramKey, ScramKeys, hmac};
use super::message::{decode, decode_key, encode, parse_iterations};
use super::{MECHANISM, ScramError};
use crate::auth::secrets_equal;

/// The longest salt, in bytes. Postgres creates salts of 16 bytes.
const SALT_MAX: usize = 256;

/// Checks a password without storing it. Text form: `SCRAM-SHA-256$iterations:salt$stored:server`, as in `pg_authid`.
///
/// The text form is a secret, so `Debug` hides it: it allows an offline attack, and its server key impersonates the
/// server.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
    pub(super) stored_key: ScramKey,
    pub(super) server_key: ScramKey,
}

impl Verifier {
    /// Derives the verifier of a password, in `iterations` rounds of HMAC-SHA-256 (at least one).
    #[must_use]
    pub fn derive(password: &[u8], salt: &[u8], iterations: u32) -> Self {
        let iterations = iterations.max(1);
        let keys = ScramKeys::derive(password, salt, iterations);
        Self { salt: salt.to_vec(), iterations, stored_key: keys.stored_key(), server_key: keys.server_key }
    }

    /// Creates a verifier that no password matches, for a user that does not exist. The exchange continues as for any
    /// other user and fails at its end. As for an existing user, the salt is the same each time.
    ///
    /// `secret` should be random, constant for the lifetime of the process, and the same in all processes that form one
    /// service.
    #[must_use]
    pub fn fake(user: &[u8], secret: &[u8], iterations: u32) -> Self {
        let part = |label: &[u8]| hmac(secret, &[label, user]);
        let salt = part(b"salt ").first_chunk::<16>().map_or_else(Vec::new, |salt| salt.to_vec());
        Self { salt, iterations: iterations.max(1), stored_key: part(b"stored "), server_key: part(b"server ") }
    }

    /// Whether the verifier was derived from this password. As slow as [`Verifier::derive`].
    #[must_use]
    pub fn matches(&self, password: &[u8]) -> bool {
        secrets_equal(&ScramKeys::derive(password, &self.salt, self.iterations).stored_key(), &self.stored_key)
    }

    /// The salt.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The iteration count.
    #[must_use]
    pub const fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The text form. It is not `Display`, so that no log line contains it by accident.
    #[must_use]
    pub fn to_text(&self) -> String {
        let (salt, stored) = (encode(&self.salt), encode(&self.stored_key));
        format!("{MECHANISM}${}:{salt}${stored}:{}", self.iterations, encode(&self.server_key))
    }
}

impl FromStr for Verifier {
    type Err = ScramError;

    fn from_str(text: &str) -> Result<Self, ScramError> {
        let malformed = |expected| ScramError::Malformed { offset: 0, expected };
        let rest = text.strip_prefix(MECHANISM).and_then(|rest| rest.strip_prefix('$'));
        let (params, keys) = rest.and_then(|rest| rest.split_once('$')).ok_or(malformed("a SCRAM-SHA-256 verifier"))?;
        let (iterations, salt) = params.split_once(':').ok_or(malformed("iterations:salt"))?;
        let (stored, server) = keys.split_once(':').ok_or(malformed("stored:server keys"))?;
        let salt = decode(salt).filter(|salt| (1..=SALT_MAX).contains(&salt.len()));
        Ok(Self {
            salt: salt.ok_or(malformed("a salt in base64"))?,
            iterations: parse_iterations(iterations)?,
            stored_key: decode_key(stored).ok_or(malformed("a stored key in base64"))?,
            server_key: decode_key(server).ok_or(malformed("a server key in base64"))?,
        })
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}
