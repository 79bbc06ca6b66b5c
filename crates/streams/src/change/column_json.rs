//! JSON of column values, from their text form in Postgres.
//!
//! The output functions of Postgres decide the text, and the session fixes what they depend on (ISO dates, UTC, hexadecimal
//! `bytea`). A text that does not have the form of its type stays a JSON string: no value is guessed or lost.

use std::io::Write as _;

use base64::Engine as _;
use serde::de::IgnoredAny;

/// How values of the types with more than one usual form are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueStyle {
    /// Timestamps as text, JSON nested.
    Plain,
    /// As Debezium with `decimal.handling.mode=string`: dates in days, times and timestamps in microseconds, JSON as text.
    Debezium,
}

/// Nested braces of an array beyond this stay text; Postgres allows 6 dimensions.
const ARRAY_DEPTH_MAX: usize = 6;

/// The form of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    Text,
    Bool,
    Integer,
    Float,
    Json,
    Bytes,
    Date,
    Time,
    Timestamp,
    TimestampTz,
}

/// The kinds of built-in types; `src/include/catalog/pg_type.dat`. OIDs of built-in types never change.
const fn kind(type_oid: u32) -> ValueKind {
    match type_oid {
        16 => ValueKind::Bool,
        20 | 21 | 23 | 26 => ValueKind::Integer,
        700 | 701 => ValueKind::Float,
        114 | 3802 => ValueKind::Json,
        17 => ValueKind::Bytes,
        1082 => ValueKind::Date,
        1083 => ValueKind::Time,
        1114 => ValueKind::Timestamp,
        1184 => ValueKind::TimestampTz,
        _ => ValueKind::Text,
    }
}

/// The element type of a built-in array type whose delimiter is a comma.
const fn element(type_oid: u32) -> Option<u32> {
    Some(match type_oid {
        1000 => 16,
        1001 => 17,
        1005 => 21,
        1007 => 23,
        1016 => 20,
        1028 => 26,
        1021 => 700,
        1022 => 701,
        199 => 114,
        3807 => 3802,
        1182 => 1082,
        1183 => 1083,
        1115 => 1114,
        1185 => 1184,
        // char, name, bpchar, varchar, text, uuid, numeric, timetz, interval, inet, cidr, macaddr, macaddr8, bit, varbit, xml.
        1002 | 1003 | 1014 | 1015 | 1009 | 2951 | 1231 | 1270 | 1187 | 1041 | 651 | 1040 | 775 | 1561 | 1563 | 143 => {
            25
        }
        _ => return None,
    })
}

/// Appends the JSON of a value.
///
/// # Errors
/// The text is not UTF-8.
pub(super) fn write_value(
    type_oid: u32,
    text: &[u8],
    style: ValueStyle,
    out: &mut Vec<u8>,
) -> Result<(), std::str::Utf8Error> {
    let text = std::str::from_utf8(text)?;
    let start = out.len();
    let is_array = element(type_oid).is_some_and(|element| write_array(element, text, style, out));
    if !is_array {
        out.truncate(start);
        write_scalar(kind(type_oid), text, style, out);
    }
    Ok(())
}

/// Appends a JSON string.
pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to memory cannot fail, and a string is valid JSON.
    let _ = serde_json::to_writer(out, text);
}

fn write_scalar(kind: ValueKind, text: &str, style: ValueStyle, out: &mut Vec<u8>) {
    let number = match (kind, style) {
        (ValueKind::Integer, _) if is_integer(text) => return out.extend_from_slice(text.as_bytes()),
        (ValueKind::Float, _) if is_number(text) => return out.extend_from_slice(text.as_bytes()),
        (ValueKind::Bool, _) if text == "t" || text == "f" => {
            return out.extend_from_slice(if text == "t" { b"true" } else { b"false" });
        }
        (ValueKind::Json, ValueStyle::Plain) if serde_json::from_str::<IgnoredAny>(text).is_ok() => {
            // Line breaks stand between tokens only: inside of strings they are escaped.
            return out.extend(text.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        }
        (ValueKind::Bytes, _) => {
            if let Some(bytes) = hex(text) {
                let text = base64::engine::general_purpose::STANDARD.encode(bytes);
                return write_string(&text, out);
            }
            None
        }
        (ValueKind::TimestampTz, _) => {
            if let Some(date) = text.strip_suffix("+00").filter(|date| timestamp_micros(date).is_some()) {
                let (day, time) = (date.get(..10).unwrap_or_default(), date.get(11..).unwrap_or_default());
                let _ = write!(out, "\"{day}T{time}Z\"");
                return;
            }
            None
        }
        (ValueKind::Date, ValueStyle::Debezium) => days(text),
        (ValueKind::Time, ValueStyle::Debezium) => time_micros(text),
        (ValueKind::Timestamp, ValueStyle::Debezium) => timestamp_micros(text),
        _ => None,
    };
    match number {
        Some(number) => drop(write!(out, "{number}")),
        None => write_string(text, out),
    }
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let has_no_zero = digits == "0" || !digits.starts_with('0');
    !digits.is_empty() && has_no_zero && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// NaN and infinity are strings.
fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.e".contains(&byte))
        && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if digits.len() % 2 != 0 {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

fn number(text: &str, from: usize, to: usize) -> Option<i64> {
    let digits = text.get(from..to)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Days from 1970-01-01 to a date `YYYY-MM-DD`. `None` for infinity, BC, and years beyond 9999.
fn days(text: &str) -> Option<i64> {
    if text.len() != 10 || text.as_bytes()[4] != b'-' || text.as_bytes()[7] != b'-' {
        return None;
    }
    let (year, month, day) = (number(text, 0, 4)?, number(text, 5, 7)?, number(text, 8, 10)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from civil: years begin in March, so that the leap day is the last one.
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (shifted_year.div_euclid(400), shifted_year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// Microseconds of `HH:MM:SS[.ffffff]`.
fn time_micros(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() < 8 || bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let seconds = number(text, 0, 2)? * 3_600 + number(text, 3, 5)? * 60 + number(text, 6, 8)?;
    let fraction = match bytes.len() {
        8 => 0,
        10..=15 if bytes[8] == b'.' => {
            let digits = u32::try_from(bytes.len() - 9).ok()?;
            number(text, 9, bytes.len())? * 10_i64.pow(6 - digits)
        }
        _ => return None,
    };
    Some(seconds * 1_000_000 + fraction)
}

/// Microseconds from 1970-01-01 to `YYYY-MM-DD HH:MM:SS[.ffffff]`.
fn timestamp_micros(text: &str) -> Option<i64> {
    if text.as_bytes().get(10) != Some(&b' ') {
        return None;
    }
    Some(days(text.get(..10)?)? * 86_400_000_000 + time_micros(text.get(11..)?)?)
}

/// Appends an array of Postgres. `false` if it has lower bounds or is malformed; `out` is then to be truncated.
fn write_array(element: u32, text: &str, style: ValueStyle, out: &mut Vec<u8>) -> bool {
    let mut array = ArrayText { rest: text, element, style };
    array.write(0, out).is_some() && array.rest.is_empty()
}

/// The unread part of an array's text.
struct ArrayText<'a> {
    rest: &'a str,
    element: u32,
    style: ValueStyle,
}

impl ArrayText<'_> {
    fn take(&mut self, symbol: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(symbol)?;
        Some(())
    }

    fn write(&mut self, depth: usize, out: &mut Vec<u8>) -> Option<()> {
        if depth == ARRAY_DEPTH_MAX {
            return None;
        }
        self.take('{')?;
        out.push(b'[');
        if self.take('}').is_none() {
            loop {
                if self.rest.starts_with('{') {
                    self.write(depth + 1, out)?;
                } else {
                    self.write_element(out)?;
                }
                if self.take(',').is_some() {
                    out.push(b',');
                } else {
                    self.take('}')?;
                    break;
                }
            }
        }
        out.push(b']');
        Some(())
    }

    fn write_element(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let kind = kind(self.element);
        if self.take('"').is_none() {
            let end = self.rest.find([',', '}'])?;
            let (value, rest) = self.rest.split_at(end);
            if value.is_empty() || value.contains(['{', '"', '\\']) {
                return None;
            }
            self.rest = rest;
            if value == "NULL" {
                out.extend_from_slice(b"null");
            } else {
                write_scalar(kind, value, self.style, out);
            }
            return Some(());
        }
        let mut value = String::new();
        let mut symbols = self.rest.char_indices();
        loop {
            match symbols.next()? {
                (at, '"') => {
                    self.rest = self.rest.get(at + 1..)?;
                    write_scalar(kind, &value, self.style, out);
                    return Some(());
                }
                (_, '\\') => value.push(symbols.next()?.1),
                (_, other) => value.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn json(type_oid: u32, text: &str, style: ValueStyle) -> String {
        let mut out = Vec::new();
        write_value(type_oid, text.as_bytes(), style, &mut out).expect("UTF-8");
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    /// CH-46, CH-47: every type that is not plain text.
    #[test]
    fn values_have_the_form_of_their_type() {
        for (type_oid, text, expected) in [
            (16, "t", "true"),
            (23, "-7", "-7"),
            (20, "9223372036854775807", "9223372036854775807"),
            (20, "007", "\"007\""),
            (701, "1e+20", "1e+20"),
            (701, "NaN", "\"NaN\""),
            (700, "-Infinity", "\"-Infinity\""),
            (1700, "1.10", "\"1.10\""),
            (25, "a\"\n", "\"a\\\"\\n\""),
            (3802, "{\"a\": [1, null]}", "{\"a\": [1, null]}"),
            (114, "{\n\"a\":1}", "{ \"a\":1}"),
            (114, "{", "\"{\""),
            (17, "\\x00ff", "\"AP8=\""),
            (17, "\\x0", "\"\\\\x0\""),
            (1184, "2024-02-29 12:00:00.5+00", "\"2024-02-29T12:00:00.5Z\""),
            (1184, "infinity", "\"infinity\""),
            (1184, "0044-03-15 12:00:00+00 BC", "\"0044-03-15 12:00:00+00 BC\""),
            (1184, "10000-01-01 00:00:00+00", "\"10000-01-01 00:00:00+00\""),
            (1114, "2024-02-29 12:00:00", "\"2024-02-29 12:00:00\""),
            (1007, "{1,NULL,-3}", "[1,null,-3]"),
            (1007, "{{1},{2}}", "[[1],[2]]"),
            (1009, "{}", "[]"),
            (1009, "{\"NULL\",NULL,\"a,\\\"b\\\\\",ö}", "[\"NULL\",null,\"a,\\\"b\\\\\",\"ö\"]"),
            (1007, "[0:1]={1,2}", "\"[0:1]={1,2}\""),
            (1185, "{\"2024-01-01 00:00:00+00\"}", "[\"2024-01-01T00:00:00Z\"]"),
            (16_400, "{a,b}", "\"{a,b}\""),
        ] {
            assert_eq!(json(type_oid, text, ValueStyle::Plain), expected, "{type_oid} {text}");
        }
    }

    #[test]
    fn debezium_dates_are_days_and_times_microseconds() {
        for (type_oid, text, expected) in [
            (1082, "1970-01-02", "1"),
            (1082, "2000-03-01", "11017"),
            (1082, "1969-12-31", "-1"),
            (1082, "infinity", "\"infinity\""),
            (1083, "01:00:00.000001", "3600000001"),
            (1114, "1970-01-01 00:00:01.5", "1500000"),
            (1184, "2024-01-01 00:00:00+00", "\"2024-01-01T00:00:00Z\""),
            (3802, "{\"a\": 1}", "\"{\\\"a\\\": 1}\""),
        ] {
            assert_eq!(json(type_oid, text, ValueStyle::Debezium), expected, "{type_oid} {text}");
        }
    }

    proptest! {
        /// A server that sends any text for any type gets valid JSON in one line.
        #[test]
        fn any_text_of_any_type_is_valid_json(
            type_oid in prop::sample::select(vec![16, 17, 20, 114, 199, 700, 1007, 1009, 1082, 1083, 1114, 1184, 1185, 3807]),
            text in "[{}\",\\\\0-9a-z:. \n+-]{0,24}",
        ) {
            for style in [ValueStyle::Plain, ValueStyle::Debezium] {
                let found = json(type_oid, &text, style);
                prop_assert!(serde_json::from_str::<Value>(&found).is_ok(), "{}", found);
                prop_assert!(!found.contains('\n'));
            }
        }
    }
}
