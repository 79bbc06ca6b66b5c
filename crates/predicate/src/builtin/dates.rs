//! Arithmetic of dates, times and intervals.

use super::Function;
use crate::datetime::{
    Interval, MICROS_PER_DAY, MICROS_PER_SECOND, add_interval, add_to_time, checked_date, checked_timestamp,
    date_to_timestamp, is_finite_date, is_finite_timestamp, subtract_timestamps,
};
use crate::datum::Datum;
use crate::error::EvalError;

/// Names of UTC that all servers know; other zones depend on the server's time zone data.
pub(crate) fn is_utc(zone: &str) -> bool {
    ["utc", "gmt", "etc/utc", "etc/gmt", "z", "zulu"].contains(&&*zone.to_ascii_lowercase())
}

fn span(datum: &Datum<'_>) -> Interval {
    if let Datum::Interval(value) = datum { *value } else { Interval::default() }
}

fn number(datum: &Datum<'_>) -> i64 {
    match datum {
        Datum::Int(value) | Datum::Time(value) | Datum::Timestamp(value) => *value,
        Datum::Date(value) => i64::from(*value),
        _ => 0,
    }
}

/// A date plus days; infinity stays.
fn add_days<'a>(date: &Datum<'a>, days: i64) -> Result<Datum<'a>, EvalError> {
    let Datum::Date(date) = *date else { return Ok(Datum::Null) };
    if !is_finite_date(date) {
        return Ok(Datum::Date(date));
    }
    checked_date(i64::from(date) + days).map(Datum::Date)
}

/// A date or timestamp plus an interval is a timestamp.
fn add_span<'a>(moment: &Datum<'a>, span: Interval) -> Result<Datum<'a>, EvalError> {
    let timestamp = match *moment {
        Datum::Date(date) => date_to_timestamp(date)?,
        Datum::Timestamp(timestamp) => timestamp,
        _ => return Ok(Datum::Null),
    };
    add_interval(timestamp, span).map(Datum::Timestamp)
}

fn add_time_to_date<'a>(date: &Datum<'a>, time: &Datum<'a>) -> Result<Datum<'a>, EvalError> {
    let Datum::Date(date) = *date else { return Ok(Datum::Null) };
    let timestamp = date_to_timestamp(date)?;
    if !is_finite_timestamp(timestamp) {
        return Ok(Datum::Timestamp(timestamp));
    }
    checked_timestamp(i128::from(timestamp) + i128::from(number(time))).map(Datum::Timestamp)
}

fn subtract_dates<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let (Datum::Date(left), Datum::Date(right)) = (&args[0], &args[1]) else { return Ok(Datum::Null) };
    if !is_finite_date(*left) || !is_finite_date(*right) {
        return Err(EvalError::InvalidArgument("cannot subtract infinite dates"));
    }
    Ok(Datum::Int(i64::from(*left) - i64::from(*right)))
}

fn shift_zone<'a>(args: &[Datum<'a>], direction: i128) -> Result<Datum<'a>, EvalError> {
    let (zone, timestamp) = (span(&args[0]), number(&args[1]));
    if !is_finite_timestamp(timestamp) {
        return Ok(Datum::Timestamp(timestamp));
    }
    if zone.months != 0 || zone.days != 0 {
        return Err(EvalError::InvalidArgument("interval time zone must not include months or days"));
    }
    let seconds = i128::from(zone.micros / MICROS_PER_SECOND);
    checked_timestamp(i128::from(timestamp) + direction * seconds * i128::from(MICROS_PER_SECOND)).map(Datum::Timestamp)
}

fn same_moment<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    match &args[0] {
        Datum::Text(zone) if is_utc(zone) => Ok(args[1].clone()),
        _ => Err(EvalError::Unsupported("a time zone other than UTC")),
    }
}

fn interval<'a>(value: Result<Interval, EvalError>) -> Result<Datum<'a>, EvalError> {
    value.map(Datum::Interval)
}

fn time_of(value: i64) -> Interval {
    Interval { micros: value, ..Interval::default() }
}

pub(super) fn function(source: &str) -> Option<Function> {
    Some(match source {
        "date_pli" => |args| add_days(&args[0], number(&args[1])),
        "integer_pl_date" => |args| add_days(&args[1], number(&args[0])),
        "date_mii" => |args| add_days(&args[0], -number(&args[1])),
        "date_mi" => subtract_dates,
        "date_pl_interval" | "timestamp_pl_interval" | "timestamptz_pl_interval" => {
            |args| add_span(&args[0], span(&args[1]))
        }
        "interval_pl_date" | "interval_pl_timestamp" | "interval_pl_timestamptz" => {
            |args| add_span(&args[1], span(&args[0]))
        }
        "date_mi_interval" | "timestamp_mi_interval" | "timestamptz_mi_interval" => {
            |args| add_span(&args[0], span(&args[1]).negate()?)
        }
        "datetime_timestamp" => |args| add_time_to_date(&args[0], &args[1]),
        "timedate_pl" => |args| add_time_to_date(&args[1], &args[0]),
        "timestamp_mi" => |args| interval(subtract_timestamps(number(&args[0]), number(&args[1]))),
        "time_pl_interval" => |args| add_to_time(number(&args[0]), span(&args[1])).map(Datum::Time),
        "interval_pl_time" => |args| add_to_time(number(&args[1]), span(&args[0])).map(Datum::Time),
        "time_mi_interval" => |args| {
            let micros = span(&args[1]).micros % MICROS_PER_DAY;
            add_to_time(number(&args[0]), time_of(-micros)).map(Datum::Time)
        },
        "time_mi_time" => |args| Ok(Datum::Interval(time_of(number(&args[0]) - number(&args[1])))),
        "interval_pl" => |args| interval(span(&args[0]).add(span(&args[1]))),
        "interval_mi" => |args| interval(span(&args[0]).subtract(span(&args[1]))),
        "interval_um" => |args| interval(span(&args[0]).negate()),
        "interval_justify_hours" => |args| interval(span(&args[0]).justify_hours()),
        "interval_justify_days" => |args| interval(span(&args[0]).justify_days()),
        "interval_justify_interval" => |args| interval(span(&args[0]).justify()),
        "timestamp_zone" | "timestamptz_zone" => same_moment,
        "timestamp_izone" => |args| shift_zone(args, -1),
        "timestamptz_izone" => |args| shift_zone(args, 1),
        _ => return None,
    })
}
