//! Rows.

use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind};

/// The value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnValue<'a> {
    /// NULL. In the key tuple of an update or delete also: a column that is not part of the key.
    Null,
    /// A stored out-of-line (TOAST) value that the update did not change. Its value is not sent.
    Unchanged,
    /// The text form, in the client encoding of the session.
    Text(&'a [u8]),
    /// The form of the type's send function; only with the option `binary`.
    Binary(&'a [u8]),
}

impl<'a> ColumnValue<'a> {
    /// The bytes of a text or binary value.
    #[must_use]
    pub const fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Text(bytes) | Self::Binary(bytes) => Some(bytes),
            Self::Null | Self::Unchanged => None,
        }
    }
}

/// A row: a count and the columns of the relation in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TupleData<'a> {
    count: u16,
    columns: &'a [u8],
}

impl<'a> TupleData<'a> {
    /// Reads a row of bytes that were decoded before, such as those of [`TupleData::columns_bytes`].
    ///
    /// Columns after a malformed one are not returned.
    #[must_use]
    pub const fn from_checked(count: u16, columns: &'a [u8]) -> Self {
        Self { count, columns }
    }

    /// The encoded columns, without the count.
    #[must_use]
    pub const fn columns_bytes(self) -> &'a [u8] {
        self.columns
    }

    /// The number of columns.
    #[must_use]
    pub const fn len(self) -> usize {
        self.count as usize
    }

    /// Whether the row has no columns.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The columns in order.
    #[must_use]
    pub const fn iter(self) -> TupleColumns<'a> {
        TupleColumns { left: self.count, fields: Cursor::new(self.columns) }
    }

    /// The column at `index`; reads the columns before it.
    #[must_use]
    pub fn get(self, index: usize) -> Option<ColumnValue<'a>> {
        self.iter().nth(index)
    }

    pub(super) fn read(fields: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = fields.u16()?;
        let start = fields.rest();
        for _ in 0..count {
            read_value(fields)?;
        }
        let len = start.len() - fields.rest().len();
        Ok(Self { count, columns: start.get(..len).unwrap_or_default() })
    }
}

impl<'a> IntoIterator for TupleData<'a> {
    type Item = ColumnValue<'a>;
    type IntoIter = TupleColumns<'a>;

    fn into_iter(self) -> TupleColumns<'a> {
        self.iter()
    }
}

/// Iterator over the columns of a [`TupleData`].
#[derive(Clone, Debug)]
pub struct TupleColumns<'a> {
    left: u16,
    fields: Cursor<'a>,
}

impl<'a> Iterator for TupleColumns<'a> {
    type Item = ColumnValue<'a>;

    fn next(&mut self) -> Option<ColumnValue<'a>> {
        self.left = self.left.checked_sub(1)?;
        read_value(&mut self.fields).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left.into()))
    }
}

fn read_value<'a>(fields: &mut Cursor<'a>) -> Result<ColumnValue<'a>, DecodeError> {
    let before = *fields;
    match fields.u8()? {
        b'n' => Ok(ColumnValue::Null),
        b'u' => Ok(ColumnValue::Unchanged),
        b't' => read_bytes(fields).map(ColumnValue::Text),
        b'b' => read_bytes(fields).map(ColumnValue::Binary),
        other => Err(before.error(DecodeErrorKind::Value { field: "kind of a column", value: other.into() })),
    }
}

fn read_bytes<'a>(fields: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    let len = fields.u32()?;
    fields.take(usize::try_from(len).unwrap_or(usize::MAX))
}
