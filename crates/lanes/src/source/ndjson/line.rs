//! From a line to a record: what its key is, and whether it can be decoded at all.

use serde_json::Value;

use super::{EPOCH, LANE};
use crate::record::{Position, Record};

/// How lines become records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    /// Where the key stands in each line: a JSON pointer (RFC 6901) such as `/user/id`. A string is the key as it is,
    /// another value is it as JSON text, and null or nothing is no key. Without a pointer, no line has a key and none is
    /// looked into. A number of more digits than a float holds is rounded, unless the program enables the feature
    /// `arbitrary_precision` of `serde_json`.
    pub key: Option<String>,
    /// The longest line, in bytes; 16 MiB by default. A longer one is cut off there and counts as undecodable.
    pub line_max: usize,
    /// Bytes read ahead, besides what was handed out; 4 MiB by default.
    pub ahead_max: usize,
    /// At the end of a file, wait for more instead of ending; not by default. The file may only grow.
    pub follow: bool,
}

impl Default for Format {
    fn default() -> Self {
        Self { key: None, line_max: 16 << 20, ahead_max: 4 << 20, follow: false }
    }
}

impl Format {
    /// With the key at this JSON pointer.
    #[must_use]
    pub fn keyed_by(pointer: &str) -> Self {
        Self { key: Some(pointer.to_owned()), ..Self::default() }
    }

    /// The record of a line that ends at `position`.
    pub(super) fn record(&self, line: &[u8], position: Position, is_cut_off: bool) -> Record {
        let record = |key: Option<&[u8]>| Record::new(LANE, EPOCH, position, key, Some(line));
        if is_cut_off {
            return record(None).undecodable(&format!("the line is longer than {} bytes", self.line_max));
        }
        match self.key_of(line) {
            Ok(key) => record(key.as_deref().map(str::as_bytes)),
            Err(error) => record(None).undecodable(&format!("not JSON: {error}")),
        }
    }

    fn key_of(&self, line: &[u8]) -> serde_json::Result<Option<String>> {
        let Some(pointer) = &self.key else { return Ok(None) };
        let value: Value = serde_json::from_slice(line)?;
        Ok(match value.pointer(pointer) {
            None | Some(Value::Null) => None,
            Some(Value::String(key)) => Some(key.clone()),
            Some(other) => Some(other.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(line: &str) -> Option<String> {
        let record = Format::keyed_by("/user/id").record(line.as_bytes(), Position(9), false);
        assert_eq!((record.payload(), record.damage()), (Some(line.as_bytes()), None));
        record.key().map(|key| String::from_utf8_lossy(key).into_owned())
    }

    #[test]
    fn keys_are_strings_or_the_text_of_other_values() {
        assert_eq!(key(r#"{"user":{"id":"ann"}}"#).as_deref(), Some("ann"));
        assert_eq!(key(r#"{"user":{"id":7}}"#).as_deref(), Some("7"));
        assert_eq!(key(r#"{"user":{"id":12345678901234567890123}}"#).as_deref(), Some("12345678901234567890123"));
        assert_eq!(key(r#"{"user":{"id":[1, 2]}}"#).as_deref(), Some("[1,2]"));
        assert_eq!((key(r#"{"user":{"id":null}}"#), key(r#"{"user":7}"#)), (None, None));
    }

    #[test]
    fn what_cannot_be_decoded_says_why() {
        let damage = |line: &str, cut| {
            let record = Format::keyed_by("/id").record(line.as_bytes(), Position(9), cut);
            record.damage().map(str::to_owned)
        };
        assert!(damage("{", false).is_some_and(|damage| damage.starts_with("not JSON: ")));
        assert!(damage("{}", true).is_some_and(|damage| damage.contains("16777216 bytes")));
        assert!(Format::default().record(b"{", Position(1), false).damage().is_none());
    }
}
