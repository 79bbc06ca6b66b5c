//! Durations in the JSON form of protobuf: `"1.5s"`.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

/// A duration such as `"1.5s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtoDuration(pub(super) Duration);

impl<'de> Deserialize<'de> for ProtoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).map(Self).ok_or_else(|| D::Error::custom(format!("`{text}` is not a duration such as \"1.5s\"")))
    }
}

fn parse(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s')?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // The format allows nine digits.
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let nanos: u32 = format!("{part:0<9}").parse().ok()?;
    let seconds: u64 = whole.parse().ok()?;
    // The limit of the format: 10,000 years.
    (seconds <= 315_576_000_000).then(|| Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_up_to_nine_fractional_digits() {
        let cases = [("1.5s", 1_500_000_000), ("0s", 0), ("0.000000001s", 1), ("30s", 30_000_000_000)];
        for (text, nanos) in cases {
            assert_eq!(parse(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "s", "1", "-1s", "1.0000000001s", "1e3s", "+1s", "9999999999999s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
