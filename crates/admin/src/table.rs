//! Encodes tables as messages, in text and binary format.

use std::{borrow::Cow, sync::Arc};

use tidegate_wire::{backend, sqlstate};

use super::error::ConsoleError;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableColumnType {
    Text,
    Int4,
    Int8,
    Numeric,
    Bytea,
}

impl TableColumnType {
    /// `pg_type.oid`.
    const fn oid(self) -> u32 {
        match self {
            Self::Text => 25,
            Self::Int4 => 23,
            Self::Int8 => 20,
            Self::Numeric => 1700,
            Self::Bytea => 17,
        }
    }

    /// `pg_type.typlen`.
    const fn size(self) -> i16 {
        match self {
            Self::Text | Self::Numeric | Self::Bytea => -1,
            Self::Int4 => 4,
            Self::Int8 => 8,
        }
    }
}

/// Column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableColumn {
    pub(super) name: &'static str,
    pub(super) column_type: TableColumnType,
}

/// A text column.
pub(super) const fn text(name: &'static str) -> TableColumn {
    TableColumn { name, column_type: TableColumnType::Text }
}

/// A column for small numbers.
pub(super) const fn int4(name: &'static str) -> TableColumn {
    TableColumn { name, column_type: TableColumnType::Int4 }
}

/// A column for numbers.
pub(super) const fn int8(name: &'static str) -> TableColumn {
    TableColumn { name, column_type: TableColumnType::Int8 }
}

/// A column for counters.
pub(super) const fn numeric(name: &'static str) -> TableColumn {
    TableColumn { name, column_type: TableColumnType::Numeric }
}

/// A column for bytes. All its values are NULL: the console shows no secret.
pub(super) const fn bytea(name: &'static str) -> TableColumn {
    TableColumn { name, column_type: TableColumnType::Bytea }
}

/// Value of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TableCell {
    Null,
    Text(Cow<'static, str>),
    Number(u64),
}

impl From<&'static str> for TableCell {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for TableCell {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&Arc<str>> for TableCell {
    fn from(text: &Arc<str>) -> Self {
        Self::Text(text.to_string().into())
    }
}

macro_rules! numbers {
    ($($column_type:ty),*) => {
        $(impl From<$column_type> for TableCell {
            fn from(number: $column_type) -> Self {
                Self::Number(number as u64)
            }
        })*
    };
}
numbers!(bool, u16, u32, u64, usize);

impl<T: Into<Self>> From<Option<T>> for TableCell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Row of a table.
pub(super) type TableRow = Vec<TableCell>;

/// Builds a row from values.
macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$($crate::table::TableCell::from($value)),*] };
}
pub(super) use row;

/// Result table of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResultTable {
    pub(super) columns: Cow<'static, [TableColumn]>,
    pub(super) rows: Vec<TableRow>,
}

impl ResultTable {
    pub(super) fn new(columns: &'static [TableColumn], rows: Vec<TableRow>) -> Self {
        debug_assert!(rows.iter().all(|row| row.len() == columns.len()), "every row has a value for every column");
        Self { columns: columns.into(), rows }
    }
}

/// Format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellFormat {
    Text,
    Binary,
}

/// Result formats of a Bind: none, one for all columns, or one per column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Formats(Vec<CellFormat>);

impl Formats {
    /// Reads the format codes for a result with `columns` columns.
    ///
    /// # Errors
    /// If a code or the number of codes is invalid.
    pub(super) fn decode(codes: impl ExactSizeIterator<Item = u16>, columns: usize) -> Result<Self, ConsoleError> {
        let count = codes.len();
        if count > 1 && count != columns {
            let message = format!("bind message has {count} result formats but query has {columns} columns");
            return Err(ConsoleError::new(sqlstate::PROTOCOL_VIOLATION, message));
        }
        let format = |code| match code {
            0 => Ok(CellFormat::Text),
            1 => Ok(CellFormat::Binary),
            other => {
                Err(ConsoleError::new(sqlstate::INVALID_PARAMETER_VALUE, format!("unsupported format code: {other}")))
            }
        };
        codes.map(format).collect::<Result<_, _>>().map(Self)
    }

    fn of_column(&self, column: usize) -> CellFormat {
        let one_for_all = self.0.first().filter(|_| self.0.len() == 1);
        *one_for_all.or_else(|| self.0.get(column)).unwrap_or(&CellFormat::Text)
    }
}

/// Appends a RowDescription. Formats are known after Bind; before it they are text, as in Postgres.
pub(super) fn describe(columns: &[TableColumn], formats: &Formats, out: &mut Vec<u8>) {
    message(backend::ROW_DESCRIPTION, out, |out| {
        count(columns.len(), out);
        for (index, column) in columns.iter().enumerate() {
            out.extend_from_slice(column.name.as_bytes());
            // Terminator of the name, and no table (4 + 2 bytes).
            out.extend_from_slice(&[0; 7]);
            out.extend_from_slice(&column.column_type.oid().to_be_bytes());
            out.extend_from_slice(&column.column_type.size().to_be_bytes());
            // No type modifier.
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            out.extend_from_slice(&(formats.of_column(index) as u16).to_be_bytes());
        }
    });
}

/// Appends a DataRow.
pub(super) fn data_row(columns: &[TableColumn], row: &[TableCell], formats: &Formats, out: &mut Vec<u8>) {
    message(backend::DATA_ROW, out, |out| {
        count(row.len(), out);
        for (index, (column, value)) in columns.iter().zip(row).enumerate() {
            field(column.column_type, value, formats.of_column(index), out);
        }
    });
}

fn message(tag: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    sized(out, 4, body);
}

/// Appends a length of four bytes and the output of `body`; `self_bytes` is the part of the length that counts the length itself.
fn sized(out: &mut Vec<u8>, self_bytes: usize, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = u32::try_from(out.len() - start - 4 + self_bytes)
        .expect("messages of_column the console are far shorter than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn count(items: usize, out: &mut Vec<u8>) {
    let items = u16::try_from(items).expect("a table of_column the console has few columns");
    out.extend_from_slice(&items.to_be_bytes());
}

fn field(column_type: TableColumnType, value: &TableCell, format: CellFormat, out: &mut Vec<u8>) {
    match value {
        TableCell::Null => out.extend_from_slice(&(-1_i32).to_be_bytes()),
        TableCell::Text(text) => sized(out, 0, |out| out.extend_from_slice(text.as_bytes())),
        TableCell::Number(number) => sized(out, 0, |out| number_field(column_type, *number, format, out)),
    }
}

fn number_field(column_type: TableColumnType, number: u64, format: CellFormat, out: &mut Vec<u8>) {
    // Clamp the number to the range of its column.
    let int4 = i32::try_from(number).unwrap_or(i32::MAX);
    let int8 = i64::try_from(number).unwrap_or(i64::MAX);
    match (column_type, format) {
        (TableColumnType::Int4, CellFormat::Text) => out.extend_from_slice(int4.to_string().as_bytes()),
        (TableColumnType::Int4, CellFormat::Binary) => out.extend_from_slice(&int4.to_be_bytes()),
        (TableColumnType::Int8, CellFormat::Text) => out.extend_from_slice(int8.to_string().as_bytes()),
        (TableColumnType::Int8, CellFormat::Binary) => out.extend_from_slice(&int8.to_be_bytes()),
        (TableColumnType::Numeric, CellFormat::Binary) => binary_numeric(number, out),
        (TableColumnType::Numeric | TableColumnType::Text | TableColumnType::Bytea, _) => {
            out.extend_from_slice(number.to_string().as_bytes());
        }
    }
}

/// Digits of base 10,000, the highest first (`numeric_send` of Postgres).
fn binary_numeric(number: u64, out: &mut Vec<u8>) {
    let mut digits = Vec::new();
    let mut rest = number;
    while rest > 0 {
        digits.push((rest % 10_000) as u16);
        rest /= 10_000;
    }
    count(digits.len(), out);
    // Weight of the first digit; sign (0 for plus); no digits after the decimal point.
    count(digits.len().saturating_sub(1), out);
    out.extend_from_slice(&[0; 4]);
    for digit in digits.iter().rev() {
        out.extend_from_slice(&digit.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::{
        Frame,
        backend::{DataRow, RowDescription},
    };

    use super::*;

    const COLUMNS: &[TableColumn] = &[text("a"), int4("b"), int8("c"), numeric("d")];

    fn fields(row: &[TableCell], formats: &Formats) -> Vec<Option<Vec<u8>>> {
        let mut out = Vec::new();
        data_row(COLUMNS, row, formats, &mut out);
        let frame = Frame::decode(&out).unwrap();
        assert_eq!(frame.tag, backend::DATA_ROW);
        DataRow::decode(frame.body()).unwrap().map(|value| value.map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn numbers_are_encoded_in_both_formats() {
        let row = row!["x", 7_u64, u64::MAX, 123_456_789_u64];
        let written = fields(&row, &Formats::default());
        let texts: Vec<_> = written.iter().flatten().map(|value| String::from_utf8_lossy(value)).collect();
        assert_eq!(texts, ["x", "7", "9223372036854775807", "123456789"]);
        let binary = Formats::decode([1].into_iter(), 4).unwrap();
        let written = fields(&row, &binary);
        assert_eq!(written[0].as_deref(), Some(&b"x"[..]));
        assert_eq!(written[1].as_deref(), Some(&7_i32.to_be_bytes()[..]));
        assert_eq!(written[2].as_deref(), Some(&i64::MAX.to_be_bytes()[..]));
        // The digits 1, 2345, 6789 of base 10,000.
        assert_eq!(written[3].as_deref(), Some(&[0, 3, 0, 2, 0, 0, 0, 0, 0, 1, 9, 41, 26, 133][..]));
    }

    #[test]
    fn zero_and_null_are_encoded() {
        let binary = Formats::decode([1].into_iter(), 4).unwrap();
        let row = row![None::<String>, 0_u64, 0_u64, 0_u64];
        let written = fields(&row, &binary);
        assert_eq!(written[0], None);
        assert_eq!(written[3].as_deref(), Some(&[0; 8][..]));
    }

    #[test]
    fn columns_are_described_with_type_and_format() {
        let mut out = Vec::new();
        describe(COLUMNS, &Formats::decode([0, 1, 0, 1].into_iter(), 4).unwrap(), &mut out);
        let frame = Frame::decode(&out).unwrap();
        let columns: Vec<_> = RowDescription::decode(frame.body()).unwrap().collect();
        let seen: Vec<_> = columns.iter().map(|column| (column.name, column.type_oid, column.format)).collect();
        assert_eq!(seen, [(&b"a"[..], 25, 0), (&b"b"[..], 23, 1), (&b"c"[..], 20, 0), (&b"d"[..], 1700, 1)]);
    }

    #[test]
    fn invalid_formats_are_rejected() {
        assert!(Formats::decode([0, 1].into_iter(), 4).is_err());
        assert!(Formats::decode([2].into_iter(), 4).is_err());
        assert!(Formats::decode([].into_iter(), 4).is_ok());
        assert!(Formats::decode([1].into_iter(), 0).is_ok());
    }
}
