//! A configuration as it was written: tables of keys and values, each with its place in the text.
//!
//! Every format ends here. A reader of another format (a `pgbouncer.ini`, say) turns its text into a [`Table`] with the
//! key names of `tidegate.toml` and the places of its own file; [`check`](super::check) does the rest, and findings
//! point into the file that the user knows.

use std::cell::RefCell;
use std::ops::Range;

/// A range of bytes in a [`Source`].
pub(crate) type Span = Range<usize>;

/// The text of a configuration and the names that its parts go by in findings.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) text: String,
    /// In order of their beginnings; the first begins at 0.
    parts: Vec<Part>,
    lines: RefCell<Lines>,
}

/// Where lines end, in so much of a text as was looked at: there may be as many findings as lines.
#[derive(Debug, Clone, Default)]
struct Lines {
    ends: Vec<usize>,
    seen: usize,
}

impl Lines {
    /// How many lines of the text end before that byte. What was looked at does not change, but there may be more of it.
    fn before(&mut self, at: usize, text: &str) -> usize {
        let rest = text.as_bytes().get(self.seen..).unwrap_or_default();
        self.ends.extend(memchr::memchr_iter(b'\n', rest).map(|end| self.seen + end));
        self.seen = text.len();
        self.ends.partition_point(|end| *end < at)
    }
}

/// A stretch of a text that came from one file.
#[derive(Debug, Clone)]
struct Part {
    name: String,
    /// Where it begins in the text,
    start: usize,
    /// and with which line of its file, from 1.
    line: usize,
}

impl Source {
    /// A text that came from one file.
    pub(crate) fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let parts = vec![Part { name: name.into(), start: 0, line: 1 }];
        Self { text: text.into(), parts, lines: RefCell::default() }
    }

    /// Says that what is appended from now on comes from that file, beginning with its line `line`.
    pub(crate) fn begin_part(&mut self, name: &str, line: usize) {
        self.parts.push(Part { name: name.to_owned(), start: self.text.len(), line });
    }

    fn part(&self, at: usize) -> &Part {
        &self.parts[self.parts.partition_point(|part| part.start <= at).saturating_sub(1)]
    }

    /// The file of a byte.
    pub(crate) fn file(&self, at: usize) -> &str {
        &self.part(at).name
    }

    /// The file and the line of a byte.
    pub(crate) fn place(&self, at: usize) -> (&str, usize) {
        let part = self.part(at);
        let mut lines = self.lines.borrow_mut();
        let (start, here) = (lines.before(part.start, &self.text), lines.before(at, &self.text));
        (&part.name, part.line + here - start)
    }
}

/// Keys in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
}

/// `key = value`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: Span,
    pub(crate) node: Node,
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) at: Span,
}

/// What stands behind a key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<Node>),
    Table(Table),
    /// Something no key takes (a date, a float); its name serves the finding.
    Other(&'static str),
}

impl Value {
    /// The value's kind with its article, as a finding says it.
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

impl Table {
    /// The entry with that key.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Appends `key = text`, both standing at `at`.
    pub(crate) fn push_text(&mut self, key: &str, text: &str, at: Span) {
        self.push(key, Value::Text(text.to_owned()), at);
    }

    /// Appends `key = value`, both standing at `at`.
    pub(crate) fn push(&mut self, key: &str, value: Value, at: Span) {
        let node = Node { value, at: at.clone() };
        self.entries.push(Entry { key: key.to_owned(), key_at: at, node });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_in_a_line_of_its_file_though_the_text_grows() {
        let mut source = Source::new("a", "one\ntwo\n");
        assert_eq!(source.place(5), ("a", 2));
        source.begin_part("b", 1);
        source.text.push_str("un\ndeux\n");
        assert_eq!((source.place(8), source.place(11)), (("b", 1), ("b", 2)));
        source.begin_part("a", 3);
        source.text.push_str("three\nfour");
        let places = [0, 4, 7, 8, 10, 16, 21, 22, 26].map(|at| source.place(at));
        let expected = [("a", 1), ("a", 2), ("a", 2), ("b", 1), ("b", 1), ("a", 3), ("a", 3), ("a", 4), ("a", 4)];
        assert_eq!(places, expected);
    }
}
