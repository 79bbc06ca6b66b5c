//! Reads the fields of a body in order; errors carry the offset.

use crate::error::{DecodeError, DecodeErrorKind};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) const fn offset(&self) -> usize {
        self.at
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) const fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError::new(self.at, kind)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let found = self.rest().get(..len).ok_or(self.error(DecodeErrorKind::Truncated))?;
        self.at += len;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let found = *self.rest().first_chunk().ok_or(self.error(DecodeErrorKind::Truncated))?;
        self.at += N;
        Ok(found)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, DecodeError> {
        self.array().map(i16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads a byte that is 0 or 1.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        let before = *self;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(before.error(DecodeErrorKind::Value { field, value: other.into() })),
        }
    }

    /// Reads a string and skips its zero byte.
    pub(crate) fn text(&mut self) -> Result<&'a [u8], DecodeError> {
        let rest = self.rest();
        let end = memchr::memchr(0, rest).ok_or(self.error(DecodeErrorKind::Unterminated))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    /// Reads a value after its length; -1 is NULL.
    pub(crate) fn value(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        let before = *self;
        match self.i32()? {
            -1 => Ok(None),
            len => match usize::try_from(len) {
                Ok(len) => self.take(len).map(Some),
                Err(_) => {
                    Err(before.error(DecodeErrorKind::Value { field: "length of a value", value: len.cast_unsigned() }))
                }
            },
        }
    }

    /// Checks that no bytes follow.
    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.rest().len() {
            0 => Ok(()),
            left => Err(self.error(DecodeErrorKind::Trailing(left))),
        }
    }
}
