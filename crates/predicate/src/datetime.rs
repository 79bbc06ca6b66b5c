//! Dates, times and intervals as Postgres stores them: days and microseconds since 2000-01-01
//! (`src/backend/utils/adt/date.c`, `timestamp.c`, `datetime.c`).

use crate::error::EvalError;

pub(crate) const MICROS_PER_SECOND: i64 = 1_000_000;
pub(crate) const MICROS_PER_HOUR: i64 = 3_600 * MICROS_PER_SECOND;
pub(crate) const MICROS_PER_DAY: i64 = 24 * MICROS_PER_HOUR;
/// Days from 1970-01-01 to 2000-01-01.
const EPOCH_SHIFT: i64 = 10_957;
pub(crate) const DATE_INFINITY: i32 = i32::MAX;
pub(crate) const DATE_NEGATIVE_INFINITY: i32 = i32::MIN;
pub(crate) const TIMESTAMP_INFINITY: i64 = i64::MAX;
pub(crate) const TIMESTAMP_NEGATIVE_INFINITY: i64 = i64::MIN;
/// 4713-11-24 BC.
const DATE_MIN: i64 = -2_451_545;
/// 5874898-01-01, the first day that is not a date.
const DATE_END: i64 = 2_147_483_494 - 2_451_545;
/// 294277-01-01, the first day without timestamps.
const TIMESTAMP_DATE_END: i64 = 109_203_528 - 2_451_545;

const TIMESTAMP_RANGE: EvalError = EvalError::OutOfRange("timestamp");
const DATE_RANGE: EvalError = EvalError::OutOfRange("date");

/// `interval`: the parts are not converted into each other except for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) months: i32,
    pub(crate) days: i32,
    pub(crate) micros: i64,
}

impl Interval {
    pub(crate) const INFINITY: Self = Self { months: i32::MAX, days: i32::MAX, micros: i64::MAX };
    pub(crate) const NEGATIVE_INFINITY: Self = Self { months: i32::MIN, days: i32::MIN, micros: i64::MIN };

    /// The value that comparison uses: a month has 30 days, a day 24 hours.
    pub(crate) fn span(self) -> i128 {
        let days = i128::from(self.months) * 30 + i128::from(self.days);
        days * i128::from(MICROS_PER_DAY) + i128::from(self.micros)
    }

    pub(crate) fn is_infinite(self) -> bool {
        self == Self::INFINITY || self == Self::NEGATIVE_INFINITY
    }

    /// Refuses what Postgres 17 reads as infinity and older versions as a finite interval.
    fn finite(self) -> Result<Self, EvalError> {
        if self.is_infinite() { Err(EvalError::Unsupported("arithmetic with infinite intervals")) } else { Ok(self) }
    }

    pub(crate) fn add(self, other: Self) -> Result<Self, EvalError> {
        let (left, right) = (self.finite()?, other.finite()?);
        let sum = || {
            Some(Self {
                months: left.months.checked_add(right.months)?,
                days: left.days.checked_add(right.days)?,
                micros: left.micros.checked_add(right.micros)?,
            })
        };
        sum().ok_or(EvalError::OutOfRange("interval"))?.finite()
    }

    pub(crate) fn subtract(self, other: Self) -> Result<Self, EvalError> {
        let (left, right) = (self.finite()?, other.finite()?);
        let difference = || {
            Some(Self {
                months: left.months.checked_sub(right.months)?,
                days: left.days.checked_sub(right.days)?,
                micros: left.micros.checked_sub(right.micros)?,
            })
        };
        difference().ok_or(EvalError::OutOfRange("interval"))?.finite()
    }

    pub(crate) fn negate(self) -> Result<Self, EvalError> {
        let value = self.finite()?;
        let negated = || {
            Some(Self {
                months: value.months.checked_neg()?,
                days: value.days.checked_neg()?,
                micros: value.micros.checked_neg()?,
            })
        };
        negated().ok_or(EvalError::OutOfRange("interval"))?.finite()
    }

    /// Full 24-hour periods become days.
    pub(crate) fn justify_hours(self) -> Result<Self, EvalError> {
        let mut value = self.finite()?;
        let whole = i32::try_from(value.micros / MICROS_PER_DAY).map_err(|_| EvalError::OutOfRange("interval"))?;
        value.micros %= MICROS_PER_DAY;
        value.days = value.days.checked_add(whole).ok_or(EvalError::OutOfRange("interval"))?;
        if value.days > 0 && value.micros < 0 {
            value.micros += MICROS_PER_DAY;
            value.days -= 1;
        } else if value.days < 0 && value.micros > 0 {
            value.micros -= MICROS_PER_DAY;
            value.days += 1;
        }
        Ok(value)
    }

    /// Full 30-day periods become months.
    pub(crate) fn justify_days(self) -> Result<Self, EvalError> {
        let mut value = self.finite()?;
        let whole = value.days / 30;
        value.days -= whole * 30;
        value.months = value.months.checked_add(whole).ok_or(EvalError::OutOfRange("interval"))?;
        if value.months > 0 && value.days < 0 {
            value.days += 30;
            value.months -= 1;
        } else if value.months < 0 && value.days > 0 {
            value.days -= 30;
            value.months += 1;
        }
        Ok(value)
    }

    /// Both, and signs that agree (`interval_justify_interval`).
    pub(crate) fn justify(self) -> Result<Self, EvalError> {
        let overflow = || EvalError::OutOfRange("interval");
        let mut value = self.finite()?;
        // Postgres moves days first if that keeps the sum of days small.
        if value.days > 0 && value.micros > 0 || value.days < 0 && value.micros < 0 {
            let whole = value.days / 30;
            value.days -= whole * 30;
            value.months = value.months.checked_add(whole).ok_or_else(overflow)?;
        }
        let whole = i32::try_from(value.micros / MICROS_PER_DAY).map_err(|_| overflow())?;
        value.micros %= MICROS_PER_DAY;
        value.days = value.days.checked_add(whole).ok_or_else(overflow)?;
        let whole = value.days / 30;
        value.days -= whole * 30;
        value.months = value.months.checked_add(whole).ok_or_else(overflow)?;
        if value.months > 0 && (value.days < 0 || value.days == 0 && value.micros < 0) {
            value.days += 30;
            value.months -= 1;
        } else if value.months < 0 && (value.days > 0 || value.days == 0 && value.micros > 0) {
            value.days -= 30;
            value.months += 1;
        }
        if value.days > 0 && value.micros < 0 {
            value.micros += MICROS_PER_DAY;
            value.days -= 1;
        } else if value.days < 0 && value.micros > 0 {
            value.micros -= MICROS_PER_DAY;
            value.days += 1;
        }
        Ok(value)
    }
}

/// Days since 2000-01-01 of a date of the proleptic Gregorian calendar; year 0 is 1 BC.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468 - EPOCH_SHIFT
}

/// The reverse of [`days_from_civil`].
pub(crate) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_SHIFT + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The day; none if the calendar has no such date.
pub(crate) fn day_number(year: i64, month: i64, day: i64) -> Option<i64> {
    let valid = (1..=12).contains(&month) && day >= 1 && day <= days_in_month(year, month);
    valid.then(|| days_from_civil(year, month, day))
}

pub(crate) fn checked_date(days: i64) -> Result<i32, EvalError> {
    if (DATE_MIN..DATE_END).contains(&days) { i32::try_from(days).map_err(|_| DATE_RANGE) } else { Err(DATE_RANGE) }
}

pub(crate) fn checked_timestamp(micros: i128) -> Result<i64, EvalError> {
    let day = micros.div_euclid(i128::from(MICROS_PER_DAY));
    let valid = (i128::from(DATE_MIN)..i128::from(TIMESTAMP_DATE_END)).contains(&day);
    if valid { i64::try_from(micros).map_err(|_| TIMESTAMP_RANGE) } else { Err(TIMESTAMP_RANGE) }
}

pub(crate) fn is_finite_date(date: i32) -> bool {
    date != DATE_INFINITY && date != DATE_NEGATIVE_INFINITY
}

pub(crate) fn is_finite_timestamp(timestamp: i64) -> bool {
    timestamp != TIMESTAMP_INFINITY && timestamp != TIMESTAMP_NEGATIVE_INFINITY
}

/// The cast of a date to a timestamp.
pub(crate) fn date_to_timestamp(date: i32) -> Result<i64, EvalError> {
    match date {
        DATE_INFINITY => Ok(TIMESTAMP_INFINITY),
        DATE_NEGATIVE_INFINITY => Ok(TIMESTAMP_NEGATIVE_INFINITY),
        _ if i64::from(date) >= TIMESTAMP_DATE_END => Err(EvalError::OutOfRange("date for timestamp")),
        _ => Ok(i64::from(date) * MICROS_PER_DAY),
    }
}

/// A number by which a date compares with timestamps: dates past the last timestamp are later than all but infinity.
pub(crate) fn date_rank(date: i32) -> i128 {
    match date {
        DATE_INFINITY => i128::from(TIMESTAMP_INFINITY),
        DATE_NEGATIVE_INFINITY => i128::from(TIMESTAMP_NEGATIVE_INFINITY),
        _ => (i128::from(date) * i128::from(MICROS_PER_DAY)).min(i128::from(TIMESTAMP_INFINITY) - 1),
    }
}

/// The cast of a timestamp to a date.
pub(crate) fn timestamp_to_date(timestamp: i64) -> i32 {
    match timestamp {
        TIMESTAMP_INFINITY => DATE_INFINITY,
        TIMESTAMP_NEGATIVE_INFINITY => DATE_NEGATIVE_INFINITY,
        _ => timestamp.div_euclid(MICROS_PER_DAY) as i32,
    }
}

/// Adds months (to the last day of a shorter month), then days, then the time.
pub(crate) fn add_interval(timestamp: i64, span: Interval) -> Result<i64, EvalError> {
    let span = span.finite()?;
    if !is_finite_timestamp(timestamp) {
        return Ok(timestamp);
    }
    let mut day = timestamp.div_euclid(MICROS_PER_DAY);
    let time = timestamp.rem_euclid(MICROS_PER_DAY);
    if span.months != 0 {
        let (year, month, day_of_month) = civil_from_days(day);
        let months = year * 12 + month - 1 + i64::from(span.months);
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
        day = days_from_civil(year, month, day_of_month.min(days_in_month(year, month)));
        checked_timestamp(i128::from(day) * i128::from(MICROS_PER_DAY) + i128::from(time))?;
    }
    if span.days != 0 {
        day += i64::from(span.days);
        checked_timestamp(i128::from(day) * i128::from(MICROS_PER_DAY) + i128::from(time))?;
    }
    checked_timestamp(i128::from(day) * i128::from(MICROS_PER_DAY) + i128::from(time) + i128::from(span.micros))
}

/// The difference of two timestamps, in days and time.
pub(crate) fn subtract_timestamps(left: i64, right: i64) -> Result<Interval, EvalError> {
    if !is_finite_timestamp(left) || !is_finite_timestamp(right) {
        return Err(EvalError::Unsupported("the difference of infinite timestamps"));
    }
    // Postgres 14 has a wrong result, newer versions an error.
    let micros = left.checked_sub(right).ok_or(EvalError::Unsupported("a difference of more than 292,000 years"))?;
    Interval { micros, ..Interval::default() }.justify_hours()
}

/// The time of day after adding an interval's time part.
pub(crate) fn add_to_time(time: i64, span: Interval) -> Result<i64, EvalError> {
    let span = span.finite()?;
    Ok((i128::from(time) + i128::from(span.micros)).rem_euclid(i128::from(MICROS_PER_DAY)) as i64)
}
