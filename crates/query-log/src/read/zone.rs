//! Times as people write and read them: in the local zone, or in UTC.

use anyhow::{Result, anyhow};
use jiff::{Span, Timestamp, Zoned, civil, tz::TimeZone};

use crate::entry::Moment;

/// The zone in which times are shown, and read where they name none.
#[derive(Clone, Debug)]
pub(super) struct Zone(TimeZone);

impl Zone {
    pub(super) fn new(utc: bool) -> Self {
        Self(if utc { TimeZone::UTC } else { TimeZone::system() })
    }

    fn zoned(&self, moment: Moment) -> Zoned {
        let micros = i64::try_from(moment.micros()).unwrap_or(i64::MAX);
        Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX).to_zoned(self.0.clone())
    }

    /// `2026-03-01 13:00:00.000042`
    pub(super) fn show(&self, moment: Moment) -> String {
        self.zoned(moment).strftime("%Y-%m-%d %H:%M:%S%.6f").to_string()
    }

    /// `2026-03-01 13:00:00 +01:00`, for summaries.
    pub(super) fn show_second(&self, moment: Moment) -> String {
        self.zoned(moment).strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
    }

    /// Reads what `--since` and `--until` take.
    pub(super) fn read(&self, text: &str) -> Result<Moment> {
        self.read_at(text, &Timestamp::now().to_zoned(self.0.clone()))
    }

    fn read_at(&self, text: &str, now: &Zoned) -> Result<Moment> {
        let written = text.trim();
        let zoned = self.named(written, now).or_else(|| self.dated(written, now)).or_else(|| ago(written, now));
        let moment = zoned.and_then(|zoned| u64::try_from(zoned.timestamp().as_microsecond()).ok());
        moment.map(Moment::from_micros).ok_or_else(|| {
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
            _ => text.parse::<Timestamp>().ok().map(|at| at.to_zoned(self.0.clone())),
        }
    }

    fn dated(&self, text: &str, now: &Zoned) -> Option<Zoned> {
        // A clock alone is of today. A span such as `10m` is neither.
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

/// `10m`, `2h 30m`, `3 days ago`.
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
        zone.read_at(text, &now).ok().map(|moment| moment.to_string())
    }

    #[test]
    fn times_are_read_as_people_write_them() {
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
    fn what_is_no_time_is_refused_with_examples() {
        for text in ["", "soon", "10", "12:99", "2026-13-01", "1000000d"] {
            assert_eq!(at(text), None, "{text}");
        }
        let error = Zone::new(true).read("soon").expect_err("no time").to_string();
        assert!(error.contains("`soon`") && error.contains("yesterday"), "{error}");
    }

    #[test]
    fn times_are_shown_in_their_zone() {
        let moment = Moment::parse("2026-03-01T12:00:00.000042Z").expect("a time");
        assert_eq!(Zone::new(true).show(moment), "2026-03-01 12:00:00.000042");
        let zone = Zone(TimeZone::fixed(jiff::tz::offset(2)));
        assert_eq!(zone.show(moment), "2026-03-01 14:00:00.000042");
        assert_eq!(zone.show_second(moment), "2026-03-01 14:00:00 +02:00");
    }
}
