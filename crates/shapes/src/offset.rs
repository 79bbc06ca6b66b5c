//! Positions in a shape log.

use std::fmt;
use std::str::FromStr;

/// A position in a shape log, and an exclusive lower bound of a read.
///
/// Transactions have the LSN of their commit record as `tx`; operations of a transaction count up from 0. Positions of the
/// snapshot have `tx` 0, with the number of the chunk as `op`. The text form is `TX_OP`; `TX_inf` follows every operation
/// of `TX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogOffset {
    /// LSN of the transaction's commit record; 0 is the snapshot.
    pub tx: u64,
    /// Operation within the transaction, or chunk of the snapshot.
    pub op: u64,
}

impl LogOffset {
    /// Follows every chunk of the snapshot and precedes every transaction.
    pub const SNAPSHOT_END: Self = Self { tx: 0, op: u64::MAX };

    /// The end of a chunk of the snapshot; chunks count from 0.
    #[must_use]
    pub const fn snapshot_chunk(chunk: u64) -> Self {
        Self { tx: 0, op: chunk }
    }

    /// Whether the position precedes the end of the snapshot.
    #[must_use]
    pub const fn is_in_snapshot(self) -> bool {
        self.tx == 0 && self.op != u64::MAX
    }
}

impl fmt::Display for LogOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            u64::MAX => write!(f, "{}_inf", self.tx),
            op => write!(f, "{}_{op}", self.tx),
        }
    }
}

/// The text is no offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has invalid format")]
pub struct InvalidOffset;

impl FromStr for LogOffset {
    type Err = InvalidOffset;

    fn from_str(text: &str) -> Result<Self, InvalidOffset> {
        let (tx, op) = text.split_once('_').ok_or(InvalidOffset)?;
        let op = if op == "inf" { u64::MAX } else { digits(op).filter(|op| *op < u64::MAX).ok_or(InvalidOffset)? };
        Ok(Self { tx: digits(tx).ok_or(InvalidOffset)?, op })
    }
}

/// `u64::from_str` accepts a plus sign.
fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The parameter `offset` of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestOffset {
    /// `-1`: the start of the snapshot.
    Start,
    /// `now`: the end of the log.
    Now,
    /// Everything after this position.
    After(LogOffset),
}

impl FromStr for RequestOffset {
    type Err = InvalidOffset;

    fn from_str(text: &str) -> Result<Self, InvalidOffset> {
        match text {
            "-1" => Ok(Self::Start),
            "now" => Ok(Self::Now),
            _ => text.parse().map(Self::After),
        }
    }
}

impl fmt::Display for RequestOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("-1"),
            Self::Now => f.write_str("now"),
            Self::After(offset) => offset.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_ordered() {
        let texts = ["0_0", "0_1", "0_10", "0_inf", "7_0", "7_2", "7_inf", "18446744073709551615_0"];
        let offsets: Vec<LogOffset> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert!(offsets.is_sorted());
        assert_eq!(offsets.iter().map(LogOffset::to_string).collect::<Vec<_>>(), texts);
    }

    /// SH-46.
    #[test]
    fn malformed_offsets_are_rejected() {
        let malformed = [
            "",
            "-2",
            "_",
            "1",
            "1_",
            "_1",
            "-1_0",
            "1_-1",
            "+1_0",
            "1_+1",
            "1_2_3",
            "NOW",
            "1_inf_",
            "inf_0",
            " 1_0",
            "1_0 ",
            "18446744073709551616_0",
            "1_18446744073709551615",
            "0x1_0",
            "١_0",
        ];
        for text in malformed {
            assert_eq!(text.parse::<RequestOffset>(), Err(InvalidOffset), "{text:?}");
        }
        assert_eq!("-1".parse(), Ok(RequestOffset::Start));
        assert_eq!("now".parse(), Ok(RequestOffset::Now));
    }
}
