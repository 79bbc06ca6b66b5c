//! Result of normalising a statement.

use crate::redact::may_hide;

/// A normalised statement: its text with `?` in place of literals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Normalized {
    /// The normalised text.
    pub text: Box<[u8]>,
    /// Hash of the text, stable across processes and versions. Not for security.
    pub fingerprint: u64,
    /// Statements with this text may contain a password or a key, so each of them is searched.
    pub(crate) may_hide: bool,
}

impl Normalized {
    pub(crate) fn new(text: &[u8], fingerprint: u64) -> Self {
        Self { text: text.into(), fingerprint, may_hide: may_hide(text) }
    }
}
