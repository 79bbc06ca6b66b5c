//! Keys derived from a password.

use std::borrow::Cow;
use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

pub(super) type ScramKey = [u8; 32];

/// The two keys of a password. The client key is as good as the password, for this salt and iteration count.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    /// Proves to a server that the client has the password.
    pub client_key: [u8; 32],
    /// Proves to a client that the server has the verifier.
    pub server_key: [u8; 32],
}

impl ScramKeys {
    /// Normalizes the password and derives its keys, in `iterations` rounds of HMAC-SHA-256 (at least one).
    #[must_use]
    pub fn derive(password: &[u8], salt: &[u8], iterations: u32) -> Self {
        let mut salted = ScramKey::default();
        // PBKDF2 refuses only an empty output.
        let _ = pbkdf2::pbkdf2::<Hmac<Sha256>>(&normalize(password), salt, iterations.max(1), &mut salted);
        Self { client_key: hmac(&salted, &[b"Client Key"]), server_key: hmac(&salted, &[b"Server Key"]) }
    }

    pub(super) fn stored_key(&self) -> ScramKey {
        sha256(&self.client_key)
    }
}

impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScramKeys(..)")
    }
}

/// Keys with their salt and iteration count. They match only a verifier with the same salt and iteration count.
#[derive(Clone, PartialEq, Eq)]
pub struct SaltedKeys {
    /// The keys.
    pub keys: ScramKeys,
    /// The salt.
    pub salt: Vec<u8>,
    /// The iteration count.
    pub iterations: u32,
}

impl fmt::Debug for SaltedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaltedKeys").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// Normalizes a password (SASLprep, RFC 4013). As in Postgres, a password that is not UTF-8 or has prohibited
/// characters stays unchanged.
#[must_use]
pub fn normalize(password: &[u8]) -> Cow<'_, [u8]> {
    let prepared = str::from_utf8(password).ok().and_then(|text| stringprep::saslprep(text).ok());
    match prepared {
        Some(text) if !text.is_empty() => match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        },
        _ => Cow::Borrowed(password),
    }
}

pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> ScramKey {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

pub(super) fn sha256(bytes: &[u8]) -> ScramKey {
    Sha256::digest(bytes).into()
}

pub(super) fn xor(one: &ScramKey, other: &ScramKey) -> ScramKey {
    std::array::from_fn(|at| one[at] ^ other[at])
}
