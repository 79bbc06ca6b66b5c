//! Decode errors: the fault and its offset.

/// Bytes that violate the protocol.
///
/// `offset` counts bytes from the start of the slice that the decoder received, so it matches a dump of that slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {kind}")]
pub struct DecodeError {
    /// Offset of the fault.
    pub offset: usize,
    /// The fault.
    pub kind: DecodeErrorKind,
}

impl DecodeError {
    pub(crate) const fn new(offset: usize, kind: DecodeErrorKind) -> Self {
        Self { offset, kind }
    }
}

/// The fault of a [`DecodeError`].
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeErrorKind {
    /// A field extends beyond the end of the message.
    #[error("message is truncated")]
    Truncated,
    /// A string has no zero byte at its end.
    #[error("string has no terminator")]
    Unterminated,
    /// Bytes follow the last field.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A length or count is out of range.
    #[error("length {len} is outside {min}..={max}")]
    Length {
        /// The length found.
        len: usize,
        /// The minimum.
        min: usize,
        /// The maximum.
        max: usize,
    },
    /// The decoder does not handle messages with this tag.
    #[error("unexpected message tag {0:#04x}")]
    Tag(u8),
    /// A client requests a protocol version other than 3.x.
    #[error("unsupported protocol version {major}.{minor}")]
    Version {
        /// The requested major version.
        major: u16,
        /// The requested minor version.
        minor: u16,
    },
    /// A field holds a number without a meaning.
    #[error("{field} cannot be {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// The number.
        value: u32,
    },
    /// A text that must be UTF-8 is not.
    #[error("text is not UTF-8")]
    NotUtf8,
    /// The startup parameter `options` holds something other than `-c name=value` or `--name=value`.
    #[error("option is neither -c name=value nor --name=value")]
    CommandLine,
}
