//! Converts a line into a record: extracts the key and detects invalid JSON.

use serde_json::Value;

use super::error::NdjsonError;
use crate::record::{Epoch, Lane, Position, Record};

pub(super) const LANE: Lane = Lane(0);
pub(super) const EPOCH: Epoch = Epoch(1);

/// How lines become records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NdjsonFormat {
    /// The JSON pointer (RFC 6901) to the key, such as `/user/id`. A string is used as it is, another value as JSON text;
    /// null or a missing value means no key. Without a pointer, lines have no key and are not parsed. Numbers with more
    /// digits than a float are rounded, unless the program enables the feature `arbitrary_precision` of `serde_json`.
    pub key_pointer: Option<String>,
    /// The longest line, in bytes. A longer line is truncated and counts as undecodable. Default: 16 MiB.
    pub line_bytes_max: usize,
    /// Bytes read ahead, besides delivered records. Default: 4 MiB.
    pub read_ahead_bytes_max: usize,
    /// Whether to wait for more data at the end of the file instead of ending. The file may be rotated. Default: `false`.
    pub follow: bool,
}

impl Default for NdjsonFormat {
    fn default() -> Self {
        Self { key_pointer: None, line_bytes_max: 16 << 20, read_ahead_bytes_max: 4 << 20, follow: false }
    }
}

impl NdjsonFormat {
    /// Sets the JSON pointer to the key.
    #[must_use]
    pub fn keyed_by(pointer: &str) -> Self {
        Self { key_pointer: Some(pointer.to_owned()), ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), NdjsonError> {
        match &self.key_pointer {
            Some(pointer) if !pointer.is_empty() && !pointer.starts_with('/') => {
                Err(NdjsonError::KeyPointer { pointer: pointer.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The record of a line that ends at `position`.
    pub(super) fn record(&self, line: &[u8], position: Position, is_truncated: bool) -> Record {
        let record = |key: Option<&[u8]>| Record::new(LANE, EPOCH, position, key, Some(line));
        if is_truncated {
            return record(None).undecodable(&format!("the line is longer than {} bytes", self.line_bytes_max));
        }
        match self.key_of(line) {
            Ok(key) => record(key.as_deref().map(str::as_bytes)),
            Err(error) => record(None).undecodable(&format!("not JSON: {error}")),
        }
    }

    fn key_of(&self, line: &[u8]) -> serde_json::Result<Option<String>> {
        let Some(pointer) = &self.key_pointer else { return Ok(None) };
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
        let record = NdjsonFormat::keyed_by("/user/id").record(line.as_bytes(), Position(9), false);
        assert_eq!((record.payload(), record.decode_error()), (Some(line.as_bytes()), None));
        record.key().map(|key| String::from_utf8_lossy(key).into_owned())
    }

    #[test]
    fn key_is_a_string_or_json_text() {
        assert_eq!(key(r#"{"user":{"id":"ann"}}"#).as_deref(), Some("ann"));
        assert_eq!(key(r#"{"user":{"id":7}}"#).as_deref(), Some("7"));
        assert_eq!(key(r#"{"user":{"id":12345678901234567890123}}"#).as_deref(), Some("12345678901234567890123"));
        assert_eq!(key(r#"{"user":{"id":[1, 2]}}"#).as_deref(), Some("[1,2]"));
        assert_eq!((key(r#"{"user":{"id":null}}"#), key(r#"{"user":7}"#)), (None, None));
    }

    #[test]
    fn undecodable_line_states_the_reason() {
        let decode_error = |line: &str, cut| {
            let record = NdjsonFormat::keyed_by("/id").record(line.as_bytes(), Position(9), cut);
            record.decode_error().map(str::to_owned)
        };
        assert!(decode_error("{", false).is_some_and(|decode_error| decode_error.starts_with("not JSON: ")));
        assert!(decode_error("{}", true).is_some_and(|decode_error| decode_error.contains("16777216 bytes")));
        assert!(NdjsonFormat::default().record(b"{", Position(1), false).decode_error().is_none());
    }
}
