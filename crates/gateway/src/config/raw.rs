//! A configuration as it was written: tables of keys and values, each with its place in the text.
//!
//! Every format ends here. A reader of another format (a `pgbouncer.ini`, say) turns its text into a [`Table`] with the
//! key names of `tidegate.toml` and the places of its own file; [`check`](super::check) does the rest, and findings
//! point into the file that the user knows.

use std::ops::Range;

/// A range of bytes in a [`Source`].
pub(crate) type Span = Range<usize>;

/// The text of a configuration and the names that its parts go by in findings.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) text: String,
    /// In order of their beginnings; the first begins at 0.
    parts: Vec<Part>,
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
        Self { text: text.into(), parts: vec![Part { name: name.into(), start: 0, line: 1 }] }
    }

    /// Says that what is appended from now on comes from that file, beginning with its line `line`.
    pub(crate) fn begin_part(&mut self, name: &str, line: usize) {
        self.parts.push(Part { name: name.to_owned(), start: self.text.len(), line });
    }

    /// The file and the line of a byte.
    pub(crate) fn place(&self, at: usize) -> (&str, usize) {
        let part = self.parts.iter().rev().find(|part| part.start <= at).unwrap_or(&self.parts[0]);
        let lines = self.text.get(part.start..at).map_or(0, |text| text.matches('\n').count());
        (&part.name, part.line + lines)
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
