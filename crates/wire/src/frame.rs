//! One byte of tag, four bytes of length: the frame that every message after the first packet has.
//!
//! The tags are constants of the two directions: [`frontend::QUERY`](crate::frontend::QUERY),
//! [`backend::DATA_ROW`](crate::backend::DATA_ROW) and so on.

use crate::error::{DecodeError, Reason};

/// Bytes of a header: the tag and the length.
pub const HEADER: usize = 5;

/// The largest length a message may declare: 1 GiB, which no Postgres exceeds in either direction.
pub const LEN_MAX: u32 = 1 << 30;

/// Tag and length of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What kind of message it is.
    pub tag: u8,
    /// The length field: the body and the field itself, without the tag. Between 4 and [`LEN_MAX`].
    pub len: u32,
}

impl Header {
    /// Reads the header of the message at the start of `bytes`, `None` when fewer than five bytes are there.
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

    /// `at` is where the header stands in the caller's bytes, for the error.
    #[inline]
    pub(crate) fn read(head: &[u8; HEADER], at: usize) -> Result<Self, DecodeError> {
        let [tag, a, b, c, d] = *head;
        let len = u32::from_be_bytes([a, b, c, d]);
        // One comparison for both ends of the range.
        if len.wrapping_sub(4) > LEN_MAX - 4 {
            return Err(bad_length(at + 1, len));
        }
        Ok(Self { tag, len })
    }

    /// Bytes of the whole message, the tag included.
    #[inline]
    #[must_use]
    pub const fn total(self) -> usize {
        1 + self.len as usize
    }
}

#[cold]
fn bad_length(offset: usize, len: u32) -> DecodeError {
    DecodeError::new(offset, Reason::Length { len: len as usize, min: 4, max: LEN_MAX as usize })
}

/// A whole message in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What kind of message it is.
    pub tag: u8,
    /// The whole message, its header included.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The message that `bytes` hold, no byte more or less.
    ///
    /// # Errors
    /// The length in the header is not allowed, or is not the length of the slice.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let header = Header::peek(bytes)?.ok_or(DecodeError::new(bytes.len(), Reason::Truncated))?;
        match bytes.len().checked_sub(header.total()) {
            Some(0) => Ok(Self { tag: header.tag, bytes }),
            Some(left) => Err(DecodeError::new(header.total(), Reason::Trailing(left))),
            None => Err(DecodeError::new(bytes.len(), Reason::Truncated)),
        }
    }

    /// The message without its header.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }
}

/// Walks over the complete messages of a slice; for paths where speed does not matter.
///
/// Ends at the first message that is not complete; [`Walk::rest`] is that remainder. After an error it ends too.
///
/// ```
/// use tidegate_wire::{backend, frame::Walk};
/// let mut bytes = Vec::new();
/// backend::parse_complete(&mut bytes);
/// backend::command_complete(b"SELECT 1", &mut bytes);
/// let tags: Vec<u8> = Walk::new(&bytes).map(|frame| frame.map(|frame| frame.tag)).collect::<Result<_, _>>()?;
/// assert_eq!(tags, b"1C");
/// # Ok::<(), tidegate_wire::DecodeError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> Walk<'a> {
    /// Starts at the first byte, which has to be a tag.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, failed: false }
    }

    /// What has not been walked over yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let rest = self.rest();
        match Header::read(rest.first_chunk()?, self.at) {
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

/// Appends a message: tag, length, and what `body` appends.
///
/// A body beyond 4 GiB gets a length that every decoder refuses.
#[inline]
pub(crate) fn put(tag: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    put_sized(out, body);
}

/// Appends a length that counts itself and what `body` appends.
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

/// Appends a string and its zero byte. A zero byte within would end it for the reader, so it ends here already.
#[inline]
pub(crate) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    out.extend_from_slice(&text[..end]);
    out.push(0);
}

/// Appends a value with its length before it, -1 for NULL.
pub(crate) fn put_value(value: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(value) = value else {
        return out.extend_from_slice(&(-1_i32).to_be_bytes());
    };
    out.extend_from_slice(&i32::try_from(value.len()).unwrap_or(i32::MAX).to_be_bytes());
    out.extend_from_slice(value);
}

/// Appends a list with its count before it. The count has 16 bits; what is beyond does not go out.
pub(crate) fn put_list<T: Copy>(items: &[T], out: &mut Vec<u8>, mut put_item: impl FnMut(T, &mut Vec<u8>)) {
    let count = u16::try_from(items.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_be_bytes());
    for item in items.iter().take(usize::from(count)) {
        put_item(*item, out);
    }
}
