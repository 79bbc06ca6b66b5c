//! Why bytes are not what they claim to be, and where.

/// Bytes that do not follow the protocol.
///
/// `offset` counts in bytes from the start of the slice that was given to the decoder, so it can be printed next to a
/// dump of that slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {reason}")]
pub struct DecodeError {
    /// Where the fault was seen.
    pub offset: usize,
    /// What the fault is.
    pub reason: Reason,
}

impl DecodeError {
    pub(crate) const fn new(offset: usize, reason: Reason) -> Self {
        Self { offset, reason }
    }
}

/// What is wrong with the bytes.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A field reaches past the end.
    #[error("the message ends too early")]
    Truncated,
    /// A string has no zero byte at its end.
    #[error("a string has no terminator")]
    Unterminated,
    /// Bytes are left over after the last field.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A length or count that is not allowed there.
    #[error("length {len} is outside {min}..={max}")]
    Length {
        /// The length found.
        len: usize,
        /// The smallest one allowed.
        min: usize,
        /// The largest one allowed.
        max: usize,
    },
    /// A message of another kind than the decoder is for.
    #[error("unexpected message tag {0:#04x}")]
    Tag(u8),
    /// A client speaks a version of the protocol that is not 3.x.
    #[error("unsupported protocol version {major}.{minor}")]
    Version {
        /// The major version asked for.
        major: u16,
        /// The minor version asked for.
        minor: u16,
    },
    /// A field holds a number that has no meaning there.
    #[error("{field} cannot be {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u32,
    },
    /// Text that has to be UTF-8 is not.
    #[error("the text is not UTF-8")]
    NotUtf8,
    /// `options` of a startup packet hold something else than `-c name=value` or `--name=value`.
    #[error("a command-line option is neither -c name=value nor --name=value")]
    CommandLine,
}
