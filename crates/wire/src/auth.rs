//! Who may come in: the md5 and SCRAM-SHA-256 exchanges, as values.
//!
//! Random bytes (salts, nonces) are arguments, and nothing here waits. What is slow is said: deriving keys from a
//! password costs `iterations` rounds of HMAC-SHA-256, about half a millisecond at the usual 4,096.

mod md5;
pub mod scram;

pub use md5::{md5_answer, md5_password, md5_stored};

use subtle::ConstantTimeEq;

/// Two secrets are equal; the time taken does not depend on where they differ, only on whether their lengths do.
#[must_use]
pub fn secrets_equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}
