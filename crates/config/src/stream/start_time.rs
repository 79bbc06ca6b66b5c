//! A point in time, as RFC 3339 writes it.

use crate::{
    raw::RawValue,
    setting::{Setting, ValueError, text},
};

/// A point in time, or none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartTime {
    written: String,
    /// Milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
}

impl Setting for StartTime {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let written = text(value, "\"2026-01-31T12:00:00Z\"")?;
        if written.is_empty() {
            return Ok(Self::default());
        }
        let error = || {
            ValueError::new(
                format!("`{written}` is not a time"),
                "write 2026-01-31T12:00:00Z or 2026-01-31T12:00:00+01:00",
            )
        };
        Ok(Self { written: written.to_owned(), timestamp_ms: Some(parse(written).ok_or_else(error)?) })
    }

    fn show(&self) -> String {
        self.written.clone()
    }
}

/// Milliseconds since 1970 of `2026-01-31T12:00:00.123+01:00`.
fn parse(written: &str) -> Option<i64> {
    let (date, rest) = written.split_at_checked(10)?;
    let (clock, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let is_valid = (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let (ms, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(fraction) => {
            let end = fraction.find(|c: char| !c.is_ascii_digit())?;
            let digits: String = fraction[..end].chars().chain("000".chars()).take(3).collect();
            (if end == 0 { return None } else { digits.parse().ok()? }, &fraction[end..])
        }
    };
    let offset = offset_minutes(zone)?;
    let minutes = (days_since_1970(year, month, day) * 24 + hour) * 60 + minute - offset;
    is_valid.then_some((minutes * 60 + second) * 1000 + ms)
}

/// Numbers with these many digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part =
            parts.next().filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Minutes east of Greenwich.
fn offset_minutes(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let [hours, minutes, _] = numbers(&format!("{}:00", &zone[1..]), ':', [2, 2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days of the Gregorian calendar (Howard Hinnant, `days_from_civil`).
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed() {
        for (written, ms) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-01-31T12:00:00Z", Some(1_769_860_800_000)),
            ("2026-01-31T13:00:00.25+01:00", Some(1_769_860_800_250)),
            ("2026-01-31 06:30:00-05:30", Some(1_769_860_800_000)),
            ("2024-02-29T00:00:00Z", Some(1_709_164_800_000)),
            ("2026-02-29T00:00:00Z", None),
            ("2026-01-31T12:00:00", None),
            ("2026-01-31", None),
            ("2026-01-31T24:00:00Z", None),
            ("2026-01-31T12:00:00.Z", None),
            ("\u{fc}026-01-31T12:00:00Z", None),
        ] {
            assert_eq!(parse(written), ms, "{written}");
        }
    }
}
