//! Password authentication as values: the md5 and SCRAM-SHA-256 exchanges.
//!
//! Random bytes (salts, nonces) are arguments, and no function blocks. Deriving keys from a password is slow by design:
//! `iterations` rounds of HMAC-SHA-256, about half a millisecond at the default of 4,096.

mod md5;
mod request;
pub mod scram;

pub use md5::{md5_answer, md5_password, md5_stored};
pub use request::{AuthRefusal, AuthRequest, ClientAuth};

use subtle::ConstantTimeEq;

/// Compares two secrets. The time depends on whether their lengths differ, and not on where they differ.
#[must_use]
pub fn secrets_equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}
