//! Handles of shapes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a shape's log, `HASH-MICROSECONDS`. No handle is used twice: clients and caches remember expired ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShapeHandle {
    /// Hash of the definition.
    pub hash: u32,
    /// Time of creation in microseconds since 1970, higher than that of every earlier handle.
    pub micros: u64,
}

impl fmt::Display for ShapeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.hash, self.micros)
    }
}

/// The text is no handle of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a handle")]
pub struct InvalidHandle;

impl FromStr for ShapeHandle {
    type Err = InvalidHandle;

    fn from_str(text: &str) -> Result<Self, InvalidHandle> {
        let (hash, micros) = text.split_once('-').ok_or(InvalidHandle)?;
        let handle = Self { hash: hash.parse().map_err(drop_error)?, micros: micros.parse().map_err(drop_error)? };
        // Another spelling of a handle would be another key of caches.
        if handle.to_string() == text { Ok(handle) } else { Err(InvalidHandle) }
    }
}

fn drop_error(_: std::num::ParseIntError) -> InvalidHandle {
    InvalidHandle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_one_spelling() {
        let handle = ShapeHandle { hash: 12, micros: 1_700_000_000_000_000 };
        assert_eq!(handle.to_string().parse(), Ok(handle));
        for text in ["", "12", "12-", "-1", "012-5", "+1-5", "1-5 ", "4294967296-1", "1-2-3"] {
            assert_eq!(text.parse::<ShapeHandle>(), Err(InvalidHandle), "{text}");
        }
    }
}
