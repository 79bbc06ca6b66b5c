//! Rows and columns as messages, in both formats.

use std::{borrow::Cow, sync::Arc};

use tidegate_wire::{backend, sqlstate};

use super::fault::Fault;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Int4,
    Int8,
    Numeric,
}

impl Kind {
    /// `pg_type.oid`.
    const fn oid(self) -> u32 {
        match self {
            Self::Text => 25,
            Self::Int4 => 23,
            Self::Int8 => 20,
            Self::Numeric => 1700,
        }
    }

    /// `pg_type.typlen`.
    const fn size(self) -> i16 {
        match self {
            Self::Text | Self::Numeric => -1,
            Self::Int4 => 4,
            Self::Int8 => 8,
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

/// A column of texts.
pub(super) const fn text(name: &'static str) -> Column {
    Column { name, kind: Kind::Text }
}

/// A column of numbers that stay small.
pub(super) const fn int4(name: &'static str) -> Column {
    Column { name, kind: Kind::Int4 }
}

/// A column of numbers.
pub(super) const fn int8(name: &'static str) -> Column {
    Column { name, kind: Kind::Int8 }
}

/// A column of counters.
pub(super) const fn numeric(name: &'static str) -> Column {
    Column { name, kind: Kind::Numeric }
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Text(Cow<'static, str>),
    Number(u64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&Arc<str>> for Value {
    fn from(text: &Arc<str>) -> Self {
        Self::Text(text.to_string().into())
    }
}

macro_rules! numbers {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Value {
            fn from(number: $kind) -> Self {
                Self::Number(number as u64)
            }
        })*
    };
}
numbers!(bool, u16, u32, u64, usize);

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A row of a table.
pub(super) type Row = Vec<Value>;

/// A row, each value made of what it is given.
macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$($crate::table::Value::from($value)),*] };
}
pub(super) use row;

/// An answer of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) columns: Cow<'static, [Column]>,
    pub(super) rows: Vec<Row>,
}

impl Table {
    pub(super) fn new(columns: &'static [Column], rows: Vec<Row>) -> Self {
        debug_assert!(rows.iter().all(|row| row.len() == columns.len()), "every row has a value for every column");
        Self { columns: columns.into(), rows }
    }
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Binary,
}

/// The formats that a Bind asks for: none, one for all columns, or one each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Formats(Vec<Format>);

impl Formats {
    /// Reads the codes for a result of so many columns.
    ///
    /// # Errors
    /// A code that does not exist, or a number of codes that fits no rule.
    pub(super) fn read(codes: impl ExactSizeIterator<Item = u16>, columns: usize) -> Result<Self, Fault> {
        let count = codes.len();
        if count > 1 && count != columns {
            let message = format!("bind message has {count} result formats but query has {columns} columns");
            return Err(Fault::new(sqlstate::PROTOCOL_VIOLATION, message));
        }
        let format = |code| match code {
            0 => Ok(Format::Text),
            1 => Ok(Format::Binary),
            other => Err(Fault::new(sqlstate::INVALID_PARAMETER_VALUE, format!("unsupported format code: {other}"))),
        };
        codes.map(format).collect::<Result<_, _>>().map(Self)
    }

    fn of(&self, column: usize) -> Format {
        let one_for_all = self.0.first().filter(|_| self.0.len() == 1);
        *one_for_all.or_else(|| self.0.get(column)).unwrap_or(&Format::Text)
    }
}

/// Appends a RowDescription. The formats are known after a Bind; before it they are told as text, as Postgres does.
pub(super) fn describe(columns: &[Column], formats: &Formats, out: &mut Vec<u8>) {
    message(backend::ROW_DESCRIPTION, out, |out| {
        count(columns.len(), out);
        for (index, column) in columns.iter().enumerate() {
            out.extend_from_slice(column.name.as_bytes());
            // The end of the name, and a column of no table (4 + 2 bytes).
            out.extend_from_slice(&[0; 7]);
            out.extend_from_slice(&column.kind.oid().to_be_bytes());
            out.extend_from_slice(&column.kind.size().to_be_bytes());
            // No modifier.
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            out.extend_from_slice(&(formats.of(index) as u16).to_be_bytes());
        }
    });
}

/// Appends a DataRow.
pub(super) fn data_row(columns: &[Column], row: &[Value], formats: &Formats, out: &mut Vec<u8>) {
    message(backend::DATA_ROW, out, |out| {
        count(row.len(), out);
        for (index, (column, value)) in columns.iter().zip(row).enumerate() {
            field(column.kind, value, formats.of(index), out);
        }
    });
}

fn message(tag: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    sized(out, 4, body);
}

/// Appends a length of four bytes, which counts itself as `own` bytes, and what `body` appends.
fn sized(out: &mut Vec<u8>, own: usize, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = u32::try_from(out.len() - start - 4 + own).expect("what the console says is far shorter than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn count(items: usize, out: &mut Vec<u8>) {
    let items = u16::try_from(items).expect("a table of the console has few columns");
    out.extend_from_slice(&items.to_be_bytes());
}

fn field(kind: Kind, value: &Value, format: Format, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(&(-1_i32).to_be_bytes()),
        Value::Text(text) => sized(out, 0, |out| out.extend_from_slice(text.as_bytes())),
        Value::Number(number) => sized(out, 0, |out| number_field(kind, *number, format, out)),
    }
}

fn number_field(kind: Kind, number: u64, format: Format, out: &mut Vec<u8>) {
    // A number too large for its column is shown as the largest there is.
    let int4 = i32::try_from(number).unwrap_or(i32::MAX);
    let int8 = i64::try_from(number).unwrap_or(i64::MAX);
    match (kind, format) {
        (Kind::Int4, Format::Text) => out.extend_from_slice(int4.to_string().as_bytes()),
        (Kind::Int4, Format::Binary) => out.extend_from_slice(&int4.to_be_bytes()),
        (Kind::Int8, Format::Text) => out.extend_from_slice(int8.to_string().as_bytes()),
        (Kind::Int8, Format::Binary) => out.extend_from_slice(&int8.to_be_bytes()),
        (Kind::Numeric, Format::Binary) => binary_numeric(number, out),
        (Kind::Numeric | Kind::Text, _) => out.extend_from_slice(number.to_string().as_bytes()),
    }
}

/// Digits of base 10,000, the highest first: `numeric_send` of Postgres.
fn binary_numeric(number: u64, out: &mut Vec<u8>) {
    let mut digits = Vec::new();
    let mut rest = number;
    while rest > 0 {
        digits.push((rest % 10_000) as u16);
        rest /= 10_000;
    }
    count(digits.len(), out);
    // The weight of the first digit; the sign, 0 for plus; no digits after the point.
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

    const COLUMNS: &[Column] = &[text("a"), int4("b"), int8("c"), numeric("d")];

    fn fields(row: &[Value], formats: &Formats) -> Vec<Option<Vec<u8>>> {
        let mut out = Vec::new();
        data_row(COLUMNS, row, formats, &mut out);
        let frame = Frame::decode(&out).unwrap();
        assert_eq!(frame.tag, backend::DATA_ROW);
        DataRow::decode(frame.body()).unwrap().map(|value| value.map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn numbers_are_written_in_both_formats() {
        let row = row!["x", 7_u64, u64::MAX, 123_456_789_u64];
        let written = fields(&row, &Formats::default());
        let texts: Vec<_> = written.iter().flatten().map(|value| String::from_utf8_lossy(value)).collect();
        assert_eq!(texts, ["x", "7", "9223372036854775807", "123456789"]);
        let binary = Formats::read([1].into_iter(), 4).unwrap();
        let written = fields(&row, &binary);
        assert_eq!(written[0].as_deref(), Some(&b"x"[..]));
        assert_eq!(written[1].as_deref(), Some(&7_i32.to_be_bytes()[..]));
        assert_eq!(written[2].as_deref(), Some(&i64::MAX.to_be_bytes()[..]));
        // 1, 2345, 6789 in base 10,000.
        assert_eq!(written[3].as_deref(), Some(&[0, 3, 0, 2, 0, 0, 0, 0, 0, 1, 9, 41, 26, 133][..]));
    }

    #[test]
    fn zero_has_no_digits_and_null_no_value() {
        let binary = Formats::read([1].into_iter(), 4).unwrap();
        let row = row![None::<String>, 0_u64, 0_u64, 0_u64];
        let written = fields(&row, &binary);
        assert_eq!(written[0], None);
        assert_eq!(written[3].as_deref(), Some(&[0; 8][..]));
    }

    #[test]
    fn columns_are_described_with_type_and_format() {
        let mut out = Vec::new();
        describe(COLUMNS, &Formats::read([0, 1, 0, 1].into_iter(), 4).unwrap(), &mut out);
        let frame = Frame::decode(&out).unwrap();
        let columns: Vec<_> = RowDescription::decode(frame.body()).unwrap().collect();
        let seen: Vec<_> = columns.iter().map(|column| (column.name, column.type_oid, column.format)).collect();
        assert_eq!(seen, [(&b"a"[..], 25, 0), (&b"b"[..], 23, 1), (&b"c"[..], 20, 0), (&b"d"[..], 1700, 1)]);
    }

    #[test]
    fn formats_that_fit_no_rule_are_refused() {
        assert!(Formats::read([0, 1].into_iter(), 4).is_err());
        assert!(Formats::read([2].into_iter(), 4).is_err());
        assert!(Formats::read([].into_iter(), 4).is_ok());
        assert!(Formats::read([1].into_iter(), 0).is_ok());
    }
}
