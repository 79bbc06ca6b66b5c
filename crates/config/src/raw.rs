//! A configuration as written: tables of keys and values with their positions in the text.
//!
//! Every reader produces a `RawTable` with the key names of `tidegate.toml` and the positions of its own file, so that
//! diagnostics point into the file that the user has written.

use std::cell::RefCell;
use std::ops::Range;

/// A range of bytes in a [`SourceText`].
pub(crate) type SourceSpan = Range<usize>;

/// The text of a configuration, and the names of the files that it consists of.
#[derive(Debug, Clone)]
pub(crate) struct SourceText {
    pub(crate) text: String,
    /// Parts in text order; the first starts at 0.
    parts: Vec<SourcePart>,
    lines: RefCell<LineIndex>,
}

/// Line ends of the part of the text that was scanned: there may be as many diagnostics as lines.
#[derive(Debug, Clone, Default)]
struct LineIndex {
    ends: Vec<usize>,
    seen: usize,
}

impl LineIndex {
    /// Number of lines that end before a byte. Scanned text does not change, but text may be appended.
    fn before(&mut self, at: usize, text: &str) -> usize {
        let rest = text.as_bytes().get(self.seen..).unwrap_or_default();
        self.ends.extend(memchr::memchr_iter(b'\n', rest).map(|end| self.seen + end));
        self.seen = text.len();
        self.ends.partition_point(|end| *end < at)
    }
}

/// A part of the text that comes from one file.
#[derive(Debug, Clone)]
struct SourcePart {
    name: String,
    /// Start in the text.
    start: usize,
    /// First line in the file, from 1.
    line: usize,
}

impl SourceText {
    /// A text from one file.
    pub(crate) fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let parts = vec![SourcePart { name: name.into(), start: 0, line: 1 }];
        Self { text: text.into(), parts, lines: RefCell::default() }
    }

    /// Text that is appended from now on comes from the file `name`, starting with its line `line`.
    pub(crate) fn begin_part(&mut self, name: &str, line: usize) {
        self.parts.push(SourcePart { name: name.to_owned(), start: self.text.len(), line });
    }

    fn part(&self, at: usize) -> &SourcePart {
        &self.parts[self.parts.partition_point(|part| part.start <= at).saturating_sub(1)]
    }

    /// File of a byte.
    pub(crate) fn file(&self, at: usize) -> &str {
        &self.part(at).name
    }

    /// File and line of a byte.
    pub(crate) fn location(&self, at: usize) -> (&str, usize) {
        let part = self.part(at);
        let mut lines = self.lines.borrow_mut();
        let (start, here) = (lines.before(part.start, &self.text), lines.before(at, &self.text));
        (&part.name, part.line + here - start)
    }
}

/// Keys in text order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RawTable {
    pub(crate) entries: Vec<RawEntry>,
}

/// `key = value`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawEntry {
    pub(crate) key: String,
    pub(crate) key_at: SourceSpan,
    pub(crate) node: SpannedValue,
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpannedValue {
    pub(crate) value: RawValue,
    pub(crate) at: SourceSpan,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RawValue {
    Text(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<SpannedValue>),
    Table(RawTable),
    /// A value that no key takes (a date, a float), by its name.
    Other(&'static str),
}

impl RawValue {
    /// Kind of the value with its article.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Boolean(_) => "a boolean",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

impl RawTable {
    /// The entry of a key.
    pub(crate) fn entry(&self, key: &str) -> Option<&RawEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Sets an entry, and removes other entries with its key.
    pub(crate) fn replace(&mut self, entry: RawEntry) {
        self.entries.retain(|known| known.key != entry.key);
        self.entries.push(entry);
    }

    /// Appends `key = text`, both at `at`.
    pub(crate) fn push_text(&mut self, key: &str, text: &str, at: SourceSpan) {
        self.push(key, RawValue::Text(text.to_owned()), at);
    }

    /// Appends `key = value`, both at `at`.
    pub(crate) fn push(&mut self, key: &str, value: RawValue, at: SourceSpan) {
        let node = SpannedValue { value, at: at.clone() };
        self.entries.push(RawEntry { key: key.to_owned(), key_at: at, node });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_stay_correct_while_the_text_grows() {
        let mut source = SourceText::new("a", "one\ntwo\n");
        assert_eq!(source.location(5), ("a", 2));
        source.begin_part("b", 1);
        source.text.push_str("un\ndeux\n");
        assert_eq!((source.location(8), source.location(11)), (("b", 1), ("b", 2)));
        source.begin_part("a", 3);
        source.text.push_str("three\nfour");
        let places = [0, 4, 7, 8, 10, 16, 21, 22, 26].map(|at| source.location(at));
        let expected = [("a", 1), ("a", 2), ("a", 2), ("b", 1), ("b", 1), ("a", 3), ("a", 3), ("a", 4), ("a", 4)];
        assert_eq!(places, expected);
    }
}
