//! A statement without its literals.

use crate::redact::may_hide;

/// The shape of a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Normalized {
    /// Its text without literals.
    pub text: Box<[u8]>,
    /// A hash of that text, the same in every process and version of the gateway. Not for security.
    pub fingerprint: u64,
    /// In statements of this shape there may be something to hide.
    pub(crate) may_hide: bool,
}

impl Normalized {
    pub(crate) fn new(text: &[u8], fingerprint: u64) -> Self {
        Self { text: text.into(), fingerprint, may_hide: may_hide(text) }
    }
}
