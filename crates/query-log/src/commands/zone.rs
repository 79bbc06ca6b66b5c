//! Formats and parses times in the local time zone, or in UTC.

use anyhow::{Result, anyhow};
use jiff::{Span, Zoned, civil, tz::TimeZone};

use crate::record::RecordTimestamp;

/// Time zone of the output, and of input without a zone.
#[derive(Clone, Debug)]
pub(super) struct Zone(TimeZone);

impl Zone {
    pub(super) fn new(utc: bool) -> Self {
        Self(if utc { TimeZone::UTC } else { TimeZone::system() })
    }

    fn zoned(&self, timestamp: RecordTimestamp) -> Zoned {
        let micros = i64::try_from(timestamp.micros()).unwrap_or(i64::MAX);
        jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).to_zoned(self.0.clone())
    }

    /// Formats as `2026-03-01 13:00:00.000042`.
    pub(super) fn format(&self, timestamp: RecordTimestamp) -> String {
        self.zoned(timestamp).strftime("%Y-%m-%d %H:%M:%S%.6f").to_string()
    }

    /// Formats as `13:00:00.042`, for narrow terminals.
    pub(super) fn format_clock(&self, timestamp: RecordTimestamp) -> String {
        self.zoned(timestamp).strftime("%H:%M:%S%.3f").to_string()
    }

    /// Formats as `2026-03-01 13:00:00 +01:00`, for summaries.
    pub(super) fn format_second(&self, timestamp: RecordTimestamp) -> String {
        self.zoned(timestamp).strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
    }

    /// Parses an argument of `--since` or `--until`.
    pub(super) fn parse(&self, text: &str) -> Result<RecordTimestamp> {
        self.parse_at(text, &jiff::Timestamp::now().to_zoned(self.0.clone()))
    }

    fn parse_at(&self, text: &str, now: &Zoned) -> Result<RecordTimestamp> {
        let written = text.trim();
        let zoned = self.named(written, now).or_else(|| self.dated(written, now)).or_else(|| ago(written, now));
        let timestamp = zoned.and_then(|zoned| u64::try_from(zoned.timestamp().as_microsecond()).ok());
        timestamp.map(RecordTimestamp::from_micros).ok_or_else(|| {
            anyhow!(
                "`{text}` is not a time; write 10m, 2h, 1d (ago), 12:30, now, today, yesterday, '2026-03-01 12:00' or \
                 2026-03-01T12:00:00Z"
            )
        })
    }

    fn named(&self, text: &str, now: &Zoned) -> Option<Zoned> {
        match text {
            "now" => Some(now.clone()),
            "today" => now.start_of_day().ok(),
            "yesterday" => now.yesterday().and_then(|day| day.start_of_day()).ok(),
            _ => text.parse::<jiff::Timestamp>().ok().map(|at| at.to_zoned(self.0.clone())),
        }
    }

    fn dated(&self, text: &str, now: &Zoned) -> Option<Zoned> {
        // A time without a date is of today. A span such as `10m` has neither.
        let begins_a_date = text.as_bytes().get(4) == Some(&b'-');
        let civil = if begins_a_date {
            text.parse::<civil::DateTime>().ok()?
        } else if text.contains(':') {
            now.date().to_datetime(text.parse::<civil::Time>().ok()?)
        } else {
            return None;
        };
        civil.to_zoned(self.0.clone()).ok()
    }
}

/// Parses `10m`, `2h 30m` or `3 days ago`.
fn ago(text: &str, now: &Zoned) -> Option<Zoned> {
    let span: Span = text.parse().ok()?;
    now.checked_sub(span.abs()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<String> {
        let zone = Zone(TimeZone::fixed(jiff::tz::offset(2)));
        let now: Zoned = "2026-03-10T12:00:00+02:00[+02:00]".parse().expect("a time");
        zone.parse_at(text, &now).ok().map(|timestamp| timestamp.to_string())
    }

    #[test]
    fn times_are_parsed_in_all_forms() {
        for (text, expected) in [
            ("now", "2026-03-10T10:00:00.000000Z"),
            ("today", "2026-03-09T22:00:00.000000Z"),
            ("yesterday", "2026-03-08T22:00:00.000000Z"),
            ("12:30", "2026-03-10T10:30:00.000000Z"),
            ("10m", "2026-03-10T09:50:00.000000Z"),
            ("2h", "2026-03-10T08:00:00.000000Z"),
            ("1d", "2026-03-09T10:00:00.000000Z"),
            ("90s ago", "2026-03-10T09:58:30.000000Z"),
            ("2026-03-01", "2026-02-28T22:00:00.000000Z"),
            ("2026-03-01 12:00", "2026-03-01T10:00:00.000000Z"),
            ("2026-03-01T12:00:00.5", "2026-03-01T10:00:00.500000Z"),
            ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00.000000Z"),
            ("2026-03-01T12:00:00+01:00", "2026-03-01T11:00:00.000000Z"),
        ] {
            assert_eq!(at(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_time_is_refused_with_examples() {
        for text in ["", "soon", "10", "12:99", "2026-13-01", "1000000d"] {
            assert_eq!(at(text), None, "{text}");
        }
        let error = Zone::new(true).parse("soon").expect_err("no time").to_string();
        assert!(error.contains("`soon`") && error.contains("yesterday"), "{error}");
    }

    #[test]
    fn times_are_shown_in_their_zone() {
        let timestamp = RecordTimestamp::parse("2026-03-01T12:00:00.000042Z").expect("a time");
        assert_eq!(Zone::new(true).format(timestamp), "2026-03-01 12:00:00.000042");
        let zone = Zone(TimeZone::fixed(jiff::tz::offset(2)));
        assert_eq!(zone.format(timestamp), "2026-03-01 14:00:00.000042");
        assert_eq!(zone.format_second(timestamp), "2026-03-01 14:00:00 +02:00");
        assert_eq!(zone.format_clock(timestamp), "14:00:00.000");
    }
}
