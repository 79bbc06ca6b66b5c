//! The frame of every message after the first packet: one byte of tag, four bytes of length.
//!
//! The tags are constants of [`frontend`](crate::frontend) and [`backend`](crate::backend), such as
//! [`frontend::QUERY`](crate::frontend::QUERY).

use crate::error::{DecodeError, DecodeErrorKind};

/// Bytes of a header: the tag and the length.
pub const HEADER: usize = 5;

/// The longest length that a message may declare: 1 GiB. Postgres stays below it in both directions.
pub const LEN_MAX: u32 = 1 << 30;

/// Tag and length of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// The message type.
    pub tag: u8,
    /// The length field: the body and the field itself, without the tag. Between 4 and [`LEN_MAX`].
    pub len: u32,
}

impl MessageHeader {
    /// Reads the header at the start of `bytes`. Returns `None` when fewer than five bytes are there.
    ///
    /// # Errors
    /// The length is below 4 or above [`LEN_MAX`].
    #[inline]
    pub fn peek(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        match bytes.first_chunk::<HEADER>() {
            Some(head) => Self::read(head, 0).map(Some),
            None => Ok(None),
        }
    }

    /// Reads a header. The error refers to `at`, the offset of the header in the caller's bytes.
    #[inline]
    pub(crate) fn read(head: &[u8; HEADER], at: usize) -> Result<Self, DecodeError> {
        let [tag, a, b, c, d] = *head;
        let len = u32::from_be_bytes([a, b, c, d]);
        // A single comparison checks both ends of the range.
        if len.wrapping_sub(4) > LEN_MAX - 4 {
            return Err(bad_length(at + 1, len));
        }
        Ok(Self { tag, len })
    }

    /// Bytes of the whole message, including the tag.
    #[inline]
    #[must_use]
    pub const fn total(self) -> usize {
        1 + self.len as usize
    }
}

#[cold]
fn bad_length(offset: usize, len: u32) -> DecodeError {
    DecodeError::new(offset, DecodeErrorKind::Length { len: len as usize, min: 4, max: LEN_MAX as usize })
}

/// A complete message in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The message type.
    pub tag: u8,
    /// The whole message, including its header.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Decodes a slice that holds exactly one message.
    ///
    /// # Errors
    /// The length in the header is out of range, or differs from the length of the slice.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let header = MessageHeader::peek(bytes)?.ok_or(DecodeError::new(bytes.len(), DecodeErrorKind::Truncated))?;
        match bytes.len().checked_sub(header.total()) {
            Some(0) => Ok(Self { tag: header.tag, bytes }),
            Some(left) => Err(DecodeError::new(header.total(), DecodeErrorKind::Trailing(left))),
            None => Err(DecodeError::new(bytes.len(), DecodeErrorKind::Truncated)),
        }
    }

    /// The message without its header.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }
}

/// Iterates over the complete messages of a slice. The hot path uses [`Scanner`](crate::Scanner) instead.
///
/// The iterator ends at the first incomplete message, which [`Frames::rest`] returns, and after an error.
///
/// ```
/// use tidegate_wire::{backend, frame::Frames};
/// let mut bytes = Vec::new();
/// backend::parse_complete(&mut bytes);
/// backend::command_complete(b"SELECT 1", &mut bytes);
/// let tags: Vec<u8> = Frames::new(&bytes).map(|frame| frame.map(|frame| frame.tag)).collect::<Result<_, _>>()?;
/// assert_eq!(tags, b"1C");
/// # Ok::<(), tidegate_wire::DecodeError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> Frames<'a> {
    /// Starts at the first byte, which must be a tag.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, failed: false }
    }

    /// The bytes that the iterator has not returned.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let rest = self.rest();
        match MessageHeader::read(rest.first_chunk()?, self.at) {
            Ok(header) => {
                let bytes = rest.get(..header.total())?;
                self.at += bytes.len();
                Some(Ok(Frame { tag: header.tag, bytes }))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// Appends a message: tag, length, and the bytes that `body` appends.
///
/// Every decoder refuses the length of a body beyond 4 GiB.
#[inline]
pub(crate) fn put(tag: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    put_sized(out, body);
}

/// Appends a length that includes itself, and the bytes that `body` appends.
#[inline]
pub(crate) fn put_sized(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&len.to_be_bytes());
    }
}

/// Appends a string and its zero byte. A zero byte within the string ends it here, as it would in the decoder.
#[inline]
pub(crate) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    out.extend_from_slice(&text[..end]);
    out.push(0);
}

/// Appends a value after its length; -1 is NULL.
pub(crate) fn put_value(value: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(value) = value else {
        return out.extend_from_slice(&(-1_i32).to_be_bytes());
    };
    out.extend_from_slice(&i32::try_from(value.len()).unwrap_or(i32::MAX).to_be_bytes());
    out.extend_from_slice(value);
}

/// Appends a list after its count. The count has 16 bits; further items are not sent.
pub(crate) fn put_list<T: Copy>(items: &[T], out: &mut Vec<u8>, mut put_item: impl FnMut(T, &mut Vec<u8>)) {
    let count = u16::try_from(items.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_be_bytes());
    for item in items.iter().take(usize::from(count)) {
        put_item(*item, out);
    }
}
