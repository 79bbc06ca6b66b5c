//! A position in the WAL.

use std::{fmt, str::FromStr};

/// A log sequence number: a byte position in the WAL.
///
/// The text form is two hexadecimal numbers, as in `pg_lsn`. The order is numeric; texts do not sort (CH-09).
///
/// ```
/// use tidegate_wire::replication::Lsn;
/// let lsn: Lsn = "A/7F000028".parse()?;
/// assert!(lsn > "9/FFFFFFFF".parse()?);
/// assert_eq!(lsn.to_string(), "A/7F000028");
/// # Ok::<(), tidegate_wire::replication::ParseLsnError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// No position (`0/0`).
    pub const ZERO: Self = Self(0);

    /// Bytes from `earlier` to this position; 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// A text that is not an LSN such as `0/16B3748`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an LSN has the form 0/16B3748: two hexadecimal numbers of at most eight digits")]
pub struct ParseLsnError;

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten().ok_or(ParseLsnError)
        };
        Ok(Self(half(high)? << 32 | half(low)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CH-09.
    #[test]
    fn lsn_orders_by_number() {
        let parse = |text: &str| text.parse::<Lsn>().unwrap();
        assert!(parse("10/0") > parse("9/FFFFFFFF"));
        assert!(parse("FFFFFFFF/FFFFFFFF") > parse("7FFFFFFF/0"));
        assert_eq!(parse("0/16b3748"), Lsn(0x16B_3748));
        assert_eq!(Lsn(u64::MAX).to_string(), "FFFFFFFF/FFFFFFFF");
        assert_eq!(Lsn(5).bytes_since(Lsn(9)), 0);
    }

    #[test]
    fn malformed_lsn_is_refused() {
        for text in ["", "/", "0", "0/", "/0", "0/123456789", "0/+1", "0/G", "-1/0", "0/0/0", " 0/0"] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text}");
        }
    }
}
