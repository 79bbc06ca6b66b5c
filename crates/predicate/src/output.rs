//! Value to text, as the type's output function writes it under `DateStyle = ISO`, `TimeZone = UTC`.

use std::fmt::Write;

use crate::catalog::{DATE, FLOAT4, INTERVAL, Oid, TIMESTAMP, TIMESTAMPTZ, catalog};
use crate::datetime::{
    DATE_INFINITY, DATE_NEGATIVE_INFINITY, Interval, MICROS_PER_DAY, MICROS_PER_SECOND, TIMESTAMP_INFINITY,
    TIMESTAMP_NEGATIVE_INFINITY, civil_from_days,
};
use crate::datum::{ArrayValue, Datum};

/// Appends the text form of a value that is not NULL.
pub(crate) fn write(value: &Datum<'_>, oid: Oid, out: &mut String) {
    match value {
        Datum::Null => {}
        Datum::Bool(value) => out.push(if *value { 't' } else { 'f' }),
        Datum::Int(value) => push(out, format_args!("{value}")),
        Datum::Float(value) => write_float(*value, oid, out),
        Datum::Numeric(value) => push(out, format_args!("{value}")),
        Datum::Text(value) => out.push_str(value),
        Datum::Uuid(value) => {
            for (at, byte) in value.iter().enumerate() {
                if matches!(at, 4 | 6 | 8 | 10) {
                    out.push('-');
                }
                push(out, format_args!("{byte:02x}"));
            }
        }
        Datum::Date(DATE_INFINITY) | Datum::Timestamp(TIMESTAMP_INFINITY) => out.push_str("infinity"),
        Datum::Date(DATE_NEGATIVE_INFINITY) | Datum::Timestamp(TIMESTAMP_NEGATIVE_INFINITY) => {
            out.push_str("-infinity");
        }
        Datum::Date(value) => {
            let before_christ = write_date(i64::from(*value), out);
            out.push_str(if before_christ { " BC" } else { "" });
        }
        Datum::Time(value) => write_time(*value, out),
        Datum::Timestamp(value) => {
            let before_christ = write_date(value.div_euclid(MICROS_PER_DAY), out);
            out.push(' ');
            write_time(value.rem_euclid(MICROS_PER_DAY), out);
            out.push_str(if oid == TIMESTAMPTZ { "+00" } else { "" });
            out.push_str(if before_christ { " BC" } else { "" });
        }
        Datum::Interval(value) => write_interval(*value, out),
        Datum::Array(value) => write_array(value, catalog().element(oid).unwrap_or(0), out),
    }
}

/// The text form of a value that is not NULL.
pub(crate) fn to_text(value: &Datum<'_>, oid: Oid) -> String {
    let mut out = String::new();
    write(value, oid, &mut out);
    out
}

/// Whether the text form of a type is known: that of intervals depends on `IntervalStyle`.
pub(crate) fn has_text_form(oid: Oid) -> bool {
    oid != INTERVAL && catalog().element(oid) != Some(INTERVAL)
}

/// Whether the text form of a type is the same under all settings, so that the planner writes it.
pub(crate) fn writes_text_exactly(oid: Oid) -> bool {
    ![DATE, TIMESTAMP, TIMESTAMPTZ].contains(&oid) && catalog().element(oid).is_none()
}

fn push(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).expect("writing to a string does not fail");
}

/// Writes year, month and day; whether the year is before Christ.
fn write_date(day: i64, out: &mut String) -> bool {
    let (year, month, day) = civil_from_days(day);
    let shown = if year > 0 { year } else { 1 - year };
    push(out, format_args!("{shown:04}-{month:02}-{day:02}"));
    year <= 0
}

fn write_time(micros: i64, out: &mut String) {
    let (seconds, fraction) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    push(out, format_args!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60));
    if fraction != 0 {
        let digits = format!("{fraction:06}");
        push(out, format_args!(".{}", digits.trim_end_matches('0')));
    }
}

/// Style `iso_8601`, which all settings of `IntervalStyle` read alike.
fn write_interval(value: Interval, out: &mut String) {
    if value.is_infinite() {
        out.push_str(if value == Interval::INFINITY { "infinity" } else { "-infinity" });
        return;
    }
    push(out, format_args!("P{}M{}DT", value.months, value.days));
    let (seconds, fraction) = (value.micros / MICROS_PER_SECOND, (value.micros % MICROS_PER_SECOND).abs());
    let sign = if value.micros < 0 { "-" } else { "" };
    // Postgres 14 reads no number of more than 32 bits, so that hours are apart.
    let (hours, minutes, seconds) = (seconds.abs() / 3600, seconds.abs() / 60 % 60, seconds.abs() % 60);
    push(out, format_args!("{sign}{hours}H{sign}{minutes}M{sign}{seconds}.{fraction:06}S"));
}

/// The shortest digits that read as the same float.
fn write_float(value: f64, oid: Oid, out: &mut String) {
    if value.is_nan() {
        return out.push_str("NaN");
    }
    if value.is_infinite() {
        return out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let (scientific, whole_digits) =
        if oid == FLOAT4 { (format!("{:e}", value as f32), 6) } else { (format!("{value:e}"), 15) };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= whole_digits {
        let sign = if exponent < 0 { '-' } else { '+' };
        push(out, format_args!("{mantissa}e{sign}{:02}", exponent.abs()));
    } else if oid == FLOAT4 {
        push(out, format_args!("{}", value as f32));
    } else {
        push(out, format_args!("{value}"));
    }
}

fn write_array(array: &ArrayValue, element: Oid, out: &mut String) {
    if array.items.is_empty() {
        return out.push_str("{}");
    }
    if array.dimensions.iter().any(|dimension| dimension.lower != 1) {
        for dimension in &array.dimensions {
            push(out, format_args!("[{}:{}]", dimension.lower, dimension.lower + (dimension.len - 1)));
        }
        out.push('=');
    }
    let mut items = array.items.iter();
    write_level(array, 0, element, &mut items, out);
}

fn write_level<'a>(
    array: &ArrayValue,
    level: usize,
    element: Oid,
    items: &mut impl Iterator<Item = &'a Datum<'static>>,
    out: &mut String,
) {
    out.push('{');
    for at in 0..array.dimensions[level].len {
        if at > 0 {
            out.push(',');
        }
        if level + 1 < array.dimensions.len() {
            write_level(array, level + 1, element, items, out);
        } else if let Some(item) = items.next() {
            write_item(item, element, out);
        }
    }
    out.push('}');
}

fn write_item(item: &Datum<'_>, element: Oid, out: &mut String) {
    if item.is_null() {
        return out.push_str("NULL");
    }
    let text = to_text(item, element);
    let special = |c: char| matches!(c, '"' | '\\' | '{' | '}' | ',' | ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c');
    if text.is_empty() || text.eq_ignore_ascii_case("null") || text.contains(special) {
        out.push('"');
        for letter in text.chars() {
            if matches!(letter, '"' | '\\') {
                out.push('\\');
            }
            out.push(letter);
        }
        out.push('"');
    } else {
        out.push_str(&text);
    }
}

/// `true` and `false` as the cast of a boolean to text writes them, unlike its output function.
pub(crate) fn boolean_word(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}
