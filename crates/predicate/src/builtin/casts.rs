//! Casts between types.

use std::borrow::Cow;

use super::Function;
use super::numbers::float8_to_float4;
use crate::catalog::{FLOAT4, FLOAT8, INT2, INT4, INT8, Oid, TEXT};
use crate::datetime::{Interval, MICROS_PER_DAY};
use crate::datetime::{date_to_timestamp, is_finite_timestamp, timestamp_to_date};
use crate::datum::Datum;
use crate::error::EvalError;
use crate::input::{checked_integer, cut_name, float, read_literal};
use crate::numeric::Numeric;
use crate::output::{boolean_word, to_text};

/// The input function of a type.
pub(super) fn from_text<'a>(arg: &Datum<'a>, oid: Oid) -> Result<Datum<'a>, EvalError> {
    match arg {
        Datum::Text(text) => read_literal(text, oid),
        other => Ok(other.clone()),
    }
}

fn to_float<'a>(args: &[Datum<'a>], oid: Oid) -> Result<Datum<'a>, EvalError> {
    let value = match &args[0] {
        Datum::Int(value) if oid == FLOAT4 => f64::from(*value as f32),
        Datum::Int(value) => *value as f64,
        Datum::Float(value) if oid == FLOAT4 => float8_to_float4(*value)?,
        Datum::Float(value) => *value,
        Datum::Numeric(value) => float(&value.to_string(), oid)?,
        _ => 0.0,
    };
    Ok(Datum::Float(value))
}

fn to_integer<'a>(args: &[Datum<'a>], oid: Oid) -> Result<Datum<'a>, EvalError> {
    let range = || EvalError::OutOfRange(if oid == INT8 { "bigint" } else { "integer" });
    let value = match &args[0] {
        Datum::Int(value) => *value,
        Datum::Bool(value) => i64::from(*value),
        Datum::Numeric(value) => value.to_i64()?,
        Datum::Float(value) => {
            let rounded = value.round_ties_even();
            // -2^63 is a float, 2^63 is the first float that is too large.
            let limit = 9_223_372_036_854_775_808.0;
            if !(-limit..limit).contains(&rounded) {
                return Err(range());
            }
            rounded as i64
        }
        _ => 0,
    };
    checked_integer(value, oid).map(Datum::Int)
}

/// `%.15g` and `%.6g`, as Postgres converts floats to decimal numbers.
fn float_to_numeric<'a>(args: &[Datum<'a>], digits: usize) -> Result<Datum<'a>, EvalError> {
    let Datum::Float(value) = args[0] else { return Ok(Datum::Null) };
    let text = if value.is_finite() {
        let scientific = format!("{value:.precision$e}", precision = digits - 1);
        match scientific.split_once('e') {
            Some((mantissa, exponent)) if mantissa.contains('.') => {
                format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
            }
            _ => scientific,
        }
    } else {
        to_text(&args[0], FLOAT8)
    };
    let number = Numeric::parse(&text).unwrap_or(Err(EvalError::OutOfRange("numeric value")))?;
    Ok(Datum::numeric(number))
}

fn int_to_numeric<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let Datum::Int(value) = args[0] else { return Ok(Datum::Null) };
    Ok(Datum::numeric(Numeric::from(value)))
}

fn text<'d>(datum: &'d Datum<'_>) -> &'d str {
    if let Datum::Text(value) = datum { value } else { "" }
}

fn same<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(args[0].clone())
}

fn to_name<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(Datum::text(cut_name(text(&args[0]))))
}

/// Also the function `rtrim(text)`.
fn without_blanks<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(match &args[0] {
        Datum::Text(Cow::Borrowed(value)) => Datum::Text(Cow::Borrowed(value.trim_end_matches(' '))),
        other => Datum::text(text(other).trim_end_matches(' ')),
    })
}

fn bool_to_text<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let Datum::Bool(value) = args[0] else { return Ok(Datum::Null) };
    Ok(Datum::Text(Cow::Borrowed(boolean_word(value))))
}

fn int_to_bool<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let Datum::Int(value) = args[0] else { return Ok(Datum::Null) };
    Ok(Datum::Bool(value != 0))
}

fn modifier(args: &[Datum<'_>], at: usize) -> usize {
    match args.get(at) {
        Some(Datum::Int(value)) => usize::try_from(*value).unwrap_or(0),
        _ => 0,
    }
}

fn first_chars(value: &str, count: usize) -> &str {
    value.char_indices().nth(count).map_or(value, |(end, _)| &value[..end])
}

/// An explicit cast to `varchar(n)` cuts the text.
fn cut_varchar<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(Datum::text(first_chars(text(&args[0]), modifier(args, 1))))
}

/// An explicit cast to `char(n)` cuts or pads the text.
fn pad_bpchar<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let len = modifier(args, 1);
    let cut = first_chars(text(&args[0]), len);
    let missing = len - cut.chars().count();
    Ok(Datum::text(format!("{cut}{}", " ".repeat(missing))))
}

fn round_numeric<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let Datum::Numeric(value) = &args[0] else { return Ok(Datum::Null) };
    value.rounded(modifier(args, 1) as u32, modifier(args, 2) as u32).map(Datum::numeric)
}

fn date_to_moment<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let Datum::Date(value) = args[0] else { return Ok(Datum::Null) };
    date_to_timestamp(value).map(Datum::Timestamp)
}

fn moment_to_date<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let Datum::Timestamp(value) = args[0] else { return Ok(Datum::Null) };
    Ok(Datum::Date(timestamp_to_date(value)))
}

fn moment_to_time<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    match args[0] {
        Datum::Timestamp(value) if is_finite_timestamp(value) => Ok(Datum::Time(value.rem_euclid(MICROS_PER_DAY))),
        _ => Ok(Datum::Null),
    }
}

fn time_to_interval<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let Datum::Time(micros) = args[0] else { return Ok(Datum::Null) };
    Ok(Datum::Interval(Interval { micros, ..Interval::default() }))
}

fn interval_to_time<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    match args[0] {
        Datum::Interval(value) if value.is_infinite() => {
            Err(EvalError::Unsupported("the cast of an infinite interval to time"))
        }
        Datum::Interval(value) => Ok(Datum::Time(value.micros.rem_euclid(MICROS_PER_DAY))),
        _ => Ok(Datum::Null),
    }
}

pub(super) fn function(source: &str) -> Option<Function> {
    Some(match source {
        "i2tof" | "i4tof" | "i8tof" | "dtof" | "numeric_float4" => |args| to_float(args, FLOAT4),
        "i2tod" | "i4tod" | "i8tod" | "ftod" | "numeric_float8" => |args| to_float(args, FLOAT8),
        "int48" | "int28" | "ftoi8" | "dtoi8" | "numeric_int8" => |args| to_integer(args, INT8),
        "i2toi4" | "int84" | "ftoi4" | "dtoi4" | "numeric_int4" | "bool_int4" => |args| to_integer(args, INT4),
        "i4toi2" | "int82" | "ftoi2" | "dtoi2" | "numeric_int2" => |args| to_integer(args, INT2),
        "int2_numeric" | "int4_numeric" | "int8_numeric" => int_to_numeric,
        "float4_numeric" => |args| float_to_numeric(args, 6),
        "float8_numeric" => |args| float_to_numeric(args, 15),
        "int4_bool" => int_to_bool,
        "booltext" => bool_to_text,
        "name_text" | "name_bpchar" => same,
        "text_name" => to_name,
        "bpchar_name" => |args| Ok(Datum::text(cut_name(text(&args[0])).trim_end_matches(' '))),
        "rtrim1" => without_blanks,
        "varchar" => cut_varchar,
        "bpchar" => pad_bpchar,
        "numeric" => round_numeric,
        "date_timestamp" | "date_timestamptz" => date_to_moment,
        "timestamp_date" | "timestamptz_date" => moment_to_date,
        "timestamp_time" | "timestamptz_time" => moment_to_time,
        "timestamp_timestamptz" | "timestamptz_timestamp" => same,
        "time_interval" => time_to_interval,
        "interval_time" => interval_to_time,
        _ => return None,
    })
}

/// Casts from text to these types depend on the text alone, for all settings and versions.
pub(crate) fn reads_text_exactly(oid: Oid) -> bool {
    use crate::catalog::{BOOL, BPCHAR, NAME, NUMERIC, UUID, VARCHAR};
    [BOOL, INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC, TEXT, VARCHAR, BPCHAR, NAME, UUID].contains(&oid)
}
