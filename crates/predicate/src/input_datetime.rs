//! Text to dates, times and intervals: ISO 8601 forms, and the output forms of Postgres under `DateStyle = ISO`. Other forms
//! depend on settings, and are refused.

use crate::catalog::{DATE, INTERVAL, TIME, TIMESTAMP, TIMESTAMPTZ, catalog};
use crate::datetime::{
    DATE_INFINITY, DATE_NEGATIVE_INFINITY, Interval, MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND,
    TIMESTAMP_INFINITY, TIMESTAMP_NEGATIVE_INFINITY, checked_date, checked_timestamp, day_number,
};
use crate::error::EvalError;

const SECONDS_PER_HOUR: i64 = 3_600;
/// Postgres' `MAX_TZDISP_HOUR`.
const ZONE_HOURS_MAX: i64 = 15;

fn unknown_form(oid: u32, text: &str) -> EvalError {
    EvalError::UnknownForm { type_name: catalog().type_name(oid), text: text.chars().take(100).collect() }
}

/// Reads from the start of a text.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn spaces(&mut self) -> bool {
        let trimmed = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        let any = trimmed.len() < self.rest.len();
        self.rest = trimmed;
        any
    }

    fn take(&mut self, expected: char) -> bool {
        match self.rest.strip_prefix(expected) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A run of digits with its length.
    fn digits(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!digits.is_empty()).then_some(digits)
    }

    /// A number of at most `len` digits.
    fn number(&mut self, len: usize) -> Option<i64> {
        self.digits().filter(|digits| digits.len() <= len)?.parse().ok()
    }

    fn word(&mut self) -> String {
        let end = self.rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_ascii_lowercase()
    }

    /// `.123456`, rounded to microseconds as Postgres does, in floating point.
    fn fraction(&mut self) -> Option<i64> {
        if !self.take('.') {
            return Some(0);
        }
        let digits = self.digits().unwrap_or("0");
        let fraction: f64 = format!("0.{digits}").parse().ok()?;
        Some((fraction * 1_000_000.0).round_ties_even() as i64)
    }

    /// `YYYY-MM-DD`; the year has at least three digits.
    fn calendar_date(&mut self) -> Option<(i64, i64, i64)> {
        let year = self.digits().filter(|digits| (3..=7).contains(&digits.len()))?.parse().ok()?;
        let month = self.take('-').then(|| self.number(2)).flatten()?;
        let day = self.take('-').then(|| self.number(2)).flatten()?;
        Some((year, month, day))
    }

    /// `HH:MM[:SS[.ffffff]]` as microseconds.
    fn clock(&mut self) -> Option<i64> {
        let hour = self.number(2)?;
        let minute = self.take(':').then(|| self.number(2)).flatten()?;
        let (second, fraction) = if self.take(':') { (self.number(2)?, self.fraction()?) } else { (0, 0) };
        let micros = ((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND + fraction;
        (hour <= 24 && minute < 60 && second < 60 && micros <= MICROS_PER_DAY).then_some(micros)
    }

    /// Seconds east of UTC; `None` inside if there is no zone.
    fn zone(&mut self) -> Option<Option<i64>> {
        self.spaces();
        let sign = match self.rest.chars().next() {
            Some('+') => 1,
            Some('-') => -1,
            _ => {
                let before = self.rest;
                let word = self.word();
                if ["z", "utc", "gmt"].contains(&&*word) {
                    return Some(Some(0));
                }
                self.rest = before;
                return Some(None);
            }
        };
        self.rest = &self.rest[1..];
        let hours = self.number(2)?;
        let minutes = if self.take(':') { self.number(2)? } else { 0 };
        let seconds = if self.take(':') { self.number(2)? } else { 0 };
        let valid = hours <= ZONE_HOURS_MAX && minutes < 60 && seconds < 60;
        valid.then_some(Some(sign * (hours * SECONDS_PER_HOUR + minutes * 60 + seconds)))
    }

    /// An era at the end; whether the year is before Christ.
    fn era(&mut self) -> Option<bool> {
        self.spaces();
        let before_christ = match &*self.word() {
            "" | "ad" => false,
            "bc" => true,
            _ => return None,
        };
        self.spaces();
        self.rest.is_empty().then_some(before_christ)
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b')
}

/// The parts of a date with an optional time and zone.
struct Moment {
    day: i64,
    micros: i64,
    zone: Option<i64>,
}

/// Reads a moment; `Err` if no such day exists.
fn moment(text: &str, oid: u32) -> Result<Moment, EvalError> {
    let mut cursor = Cursor { rest: trimmed(text) };
    let mut parsed = || {
        let (year, month, day) = cursor.calendar_date()?;
        let separated = cursor.take('T') || cursor.take('t') || cursor.spaces();
        let has_clock = separated && cursor.rest.starts_with(|c: char| c.is_ascii_digit());
        let micros = if has_clock { cursor.clock()? } else { 0 };
        let zone = if has_clock { cursor.zone()? } else { None };
        Some(((year, month, day), micros, zone, cursor.era()?))
    };
    let Some(((year, month, day), micros, zone, before_christ)) = parsed() else {
        return Err(unknown_form(oid, text));
    };
    let out_of_range = || EvalError::OutOfRange("date/time field value");
    if year == 0 {
        return Err(out_of_range());
    }
    let year = if before_christ { 1 - year } else { year };
    let day = day_number(year, month, day).ok_or_else(out_of_range)?;
    Ok(Moment { day, micros, zone })
}

fn infinity<T>(text: &str, positive: T, negative: T) -> Option<T> {
    match trimmed(text).to_ascii_lowercase().as_str() {
        "infinity" => Some(positive),
        "-infinity" => Some(negative),
        _ => None,
    }
}

/// A date; a time and a zone in the text are ignored, as Postgres does.
pub(crate) fn date(text: &str) -> Result<i32, EvalError> {
    if let Some(value) = infinity(text, DATE_INFINITY, DATE_NEGATIVE_INFINITY) {
        return Ok(value);
    }
    checked_date(moment(text, DATE)?.day)
}

/// A timestamp; without `with_zone`, a zone in the text is ignored, else a missing one is UTC.
pub(crate) fn timestamp(text: &str, with_zone: bool) -> Result<i64, EvalError> {
    if let Some(value) = infinity(text, TIMESTAMP_INFINITY, TIMESTAMP_NEGATIVE_INFINITY) {
        return Ok(value);
    }
    let moment = moment(text, if with_zone { TIMESTAMPTZ } else { TIMESTAMP })?;
    let shift = if with_zone { moment.zone.unwrap_or(0) * MICROS_PER_SECOND } else { 0 };
    checked_timestamp(
        i128::from(moment.day) * i128::from(MICROS_PER_DAY) + i128::from(moment.micros) - i128::from(shift),
    )
}

/// A time of day.
pub(crate) fn time(text: &str) -> Result<i64, EvalError> {
    let mut cursor = Cursor { rest: trimmed(text) };
    cursor.clock().filter(|_| cursor.rest.is_empty()).ok_or_else(|| unknown_form(TIME, text))
}

/// An interval in the styles `postgres` and `iso_8601`, with whole numbers except for seconds.
pub(crate) fn interval(text: &str) -> Result<Interval, EvalError> {
    let body = trimmed(text);
    let value = match infinity(text, Interval::INFINITY, Interval::NEGATIVE_INFINITY) {
        Some(infinite) => return Ok(infinite),
        None if body.starts_with('P') => iso_interval(body),
        None => worded_interval(body),
    };
    value.ok_or_else(|| unknown_form(INTERVAL, text))
}

/// A part in units of an interval.
fn add_unit(value: &mut Interval, number: i64, unit: &str) -> Option<()> {
    let (months, days, micros) = match unit {
        "millennium" | "millennia" | "mil" | "mils" => (12_000, 0, 0),
        "century" | "centuries" | "c" | "cent" => (1_200, 0, 0),
        "decade" | "decades" | "dec" | "decs" => (120, 0, 0),
        "year" | "years" | "y" | "yr" | "yrs" => (12, 0, 0),
        "month" | "months" | "mon" | "mons" => (1, 0, 0),
        "week" | "weeks" | "w" => (0, 7, 0),
        "day" | "days" | "d" => (0, 1, 0),
        "hour" | "hours" | "h" | "hr" | "hrs" => (0, 0, MICROS_PER_HOUR),
        "minute" | "minutes" | "m" | "min" | "mins" => (0, 0, 60 * MICROS_PER_SECOND),
        "second" | "seconds" | "s" | "sec" | "secs" => (0, 0, MICROS_PER_SECOND),
        "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" => (0, 0, 1_000),
        "microsecond" | "microseconds" | "us" | "usec" | "usecs" => (0, 0, 1),
        _ => return None,
    };
    let scaled = |unit: i64| i32::try_from(number.checked_mul(unit)?).ok();
    value.months = value.months.checked_add(scaled(months)?)?;
    value.days = value.days.checked_add(scaled(days)?)?;
    value.micros = value.micros.checked_add(number.checked_mul(micros)?)?;
    Some(())
}

/// Style `postgres`: `1 year 2 mons -3 days 04:05:06.7`, with `@` and `ago` of style `postgres_verbose`.
fn worded_interval(text: &str) -> Option<Interval> {
    let mut cursor = Cursor { rest: text };
    let mut value = Interval::default();
    let mut parts = 0;
    let mut seen_clock = false;
    cursor.take('@');
    loop {
        cursor.spaces();
        if cursor.rest.is_empty() {
            return (parts > 0).then_some(value);
        }
        if cursor.rest.eq_ignore_ascii_case("ago") {
            return if parts > 0 { value.negate().ok() } else { None };
        }
        parts += 1;
        let signed = cursor.rest.starts_with(['-', '+']);
        let sign = if cursor.take('-') { -1 } else { 1 };
        cursor.take('+');
        let digits = cursor.digits()?;
        if cursor.rest.starts_with(':') {
            // A second clock, or units after it, have rules of their own.
            if seen_clock {
                return None;
            }
            seen_clock = true;
            let hours: i64 = digits.parse().ok().filter(|hours| *hours < 1_000_000_000)?;
            let minutes = cursor.take(':').then(|| cursor.number(2)).flatten().filter(|minutes| *minutes < 60)?;
            // `04:05.6` means minutes and seconds.
            let (seconds, fraction) = if cursor.take(':') { (cursor.number(2)?, cursor.fraction()?) } else { (0, 0) };
            if seconds >= 60 || !cursor.rest.is_empty() {
                return None;
            }
            let micros = hours
                .checked_mul(MICROS_PER_HOUR)?
                .checked_add((minutes * 60 + seconds) * MICROS_PER_SECOND + fraction)?;
            value.micros = value.micros.checked_add(sign * micros)?;
            continue;
        }
        let fraction = if cursor.rest.starts_with('.') { Some(cursor.fraction()?) } else { None };
        cursor.spaces();
        let unit = cursor.word();
        // Postgres 14 refuses larger numbers.
        let number: i64 = digits.parse().ok().filter(|number| *number <= i64::from(i32::MAX))?;
        let unit = if unit.is_empty() && cursor.rest.is_empty() && !signed { "second" } else { &*unit };
        add_unit(&mut value, sign * number, unit)?;
        if let Some(fraction) = fraction {
            if !["second", "seconds", "s", "sec", "secs"].contains(&unit) {
                return None;
            }
            value.micros = value.micros.checked_add(sign * fraction)?;
        }
    }
}

/// Style `iso_8601`: `P1Y2M3DT4H5M6.7S`, with a sign for each number.
fn iso_interval(text: &str) -> Option<Interval> {
    let mut cursor = Cursor { rest: &text[1..] };
    let mut value = Interval::default();
    let mut in_time = false;
    let mut parts = 0;
    while !cursor.rest.is_empty() {
        if !in_time && cursor.take('T') {
            in_time = true;
            continue;
        }
        let sign = if cursor.take('-') { -1 } else { 1 };
        let number: i64 = cursor.digits()?.parse().ok()?;
        let fraction = if cursor.rest.starts_with('.') { Some(cursor.fraction()?) } else { None };
        let unit = cursor.rest.chars().next()?;
        cursor.take(unit);
        let unit = match (in_time, unit) {
            (false, 'Y') => "year",
            (false, 'M') => "month",
            (false, 'W') => "week",
            (false, 'D') => "day",
            (true, 'H') => "hour",
            (true, 'M') => "minute",
            (true, 'S') => "second",
            _ => return None,
        };
        add_unit(&mut value, sign * number, unit)?;
        if let Some(fraction) = fraction {
            if unit != "second" {
                return None;
            }
            value.micros = value.micros.checked_add(sign * fraction)?;
        }
        parts += 1;
    }
    (parts > 0).then_some(value)
}
