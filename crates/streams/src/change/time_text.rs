//! Times as text.

/// The RFC 3339 form of microseconds since 1970, in UTC. A year beyond 9999 is written with more digits.
pub(super) fn rfc3339(unix_micros: i64) -> String {
    let (day, micros) = (unix_micros.div_euclid(86_400_000_000), unix_micros.rem_euclid(86_400_000_000));
    // Civil from days: years begin in March, so that the leap day is the last one.
    let shifted = day + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let seconds = micros / 1_000_000;
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let fraction = micros % 1_000_000;
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc3339_in_utc() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_735_689_599_123_456, "2024-12-31T23:59:59.123456Z"),
        ] {
            assert_eq!(rfc3339(micros), text);
        }
    }
}
