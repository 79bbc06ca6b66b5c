//! Splits a query text into statements and words. Skips quoted text and comments as Postgres does.

use crate::lexical::{dollar_quoted, end_of_comment, end_of_line_comment, is_blank, is_name_byte};

/// Iterates over the statements of a query text, split at semicolons outside of quotes and comments.
///
/// The end of a quoted text that contains a backslash depends on `standard_conforming_strings`, on the encoding and on the text
/// before it. A text with a backslash is therefore split at every semicolon: parts of strings then count as statements, but no
/// statement is missed.
pub(super) struct StatementSplitter<'a> {
    rest: Option<&'a [u8]>,
    /// `rest` is still the whole text.
    at_start: bool,
    has_backslash: bool,
}

impl<'a> StatementSplitter<'a> {
    pub(super) fn new(sql: &'a [u8]) -> Self {
        Self { rest: Some(sql), at_start: true, has_backslash: false }
    }

    pub(super) fn is_single(&self) -> bool {
        let mut statements = Self { rest: self.rest, ..*self };
        statements.next();
        statements.all(|statement| WordLexer::new(statement).next_or_symbol().is_none())
    }
}

impl<'a> Iterator for StatementSplitter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.rest.take()?;
        // Most texts are one statement, without a semicolon or with one at the end.
        let first = match memchr::memchr(b';', text) {
            None => return Some(text),
            Some(at) if at + 1 == text.len() && self.at_start => return Some(&text[..at]),
            Some(at) => at,
        };
        if std::mem::take(&mut self.at_start) {
            self.has_backslash = memchr::memchr(b'\\', text).is_some();
        }
        let mut at = if self.has_backslash { first } else { 0 };
        while at < text.len() {
            if text[at] == b';' {
                self.rest = Some(&text[at + 1..]);
                return Some(&text[..at]);
            }
            at = skip_token(text, at);
        }
        Some(text)
    }
}

/// Returns the offset after the quoted text, comment, name or single character at `at`.
pub(super) fn skip_token(text: &[u8], at: usize) -> usize {
    match text[at] {
        quote @ (b'\'' | b'"') => memchr::memchr(quote, &text[at + 1..]).map_or(text.len(), |end| at + 1 + end + 1),
        b'-' if text[at..].starts_with(b"--") => (end_of_line_comment(text, at) + 1).min(text.len()),
        b'/' if text[at..].starts_with(b"/*") => end_of_comment(text, at),
        // `$1` is a parameter.
        b'$' => dollar_quoted(text, at).map_or(at + 1, |quoted| quoted.end),
        // A dollar sign within a name does not start a quoted text.
        first if is_name_byte(first) && !first.is_ascii_digit() => {
            at + text[at..].iter().take_while(|byte| is_name_byte(**byte)).count()
        }
        _ => at + 1,
    }
}

/// An identifier, as Postgres reads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Identifier {
    /// Unquoted, in lower case; possibly a keyword.
    Word(String),
    /// Quoted, with its case.
    Quoted(String),
}

/// Iterates over the words of one statement in lower case. Removes quotes around identifiers; skips comments.
pub(super) struct WordLexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> WordLexer<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn skip_blank(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            let rest = &self.text[self.at..];
            if is_blank(byte) {
                self.at += 1;
            } else if rest.starts_with(b"--") || rest.starts_with(b"/*") {
                self.at = skip_token(self.text, self.at);
            } else {
                return;
            }
        }
    }

    /// Whether the first word may be a relevant command, judged by its first three letters.
    pub(super) fn may_change_session(&mut self) -> bool {
        self.skip_blank();
        let Some(start) = self.text[self.at..].first_chunk::<3>() else { return false };
        let [first, second, third] = start.map(|byte| byte.to_ascii_lowercase());
        if [first, second] == *b"do" {
            return third == b'$' || !is_name_byte(third);
        }
        matches!(
            &[first, second, third],
            b"set"
                | b"res"
                | b"fet"
                | b"exe"
                | b"dis"
                | b"lis"
                | b"loa"
                | b"pre"
                | b"dec"
                | b"dea"
                | b"cre"
                | b"sav"
                | b"rel"
                | b"rol"
                | b"cal"
        )
    }

    /// Whether a ROLLBACK goes to a savepoint. The name of the savepoint is next in this case.
    pub(super) fn is_to_savepoint(&mut self) -> bool {
        match self.next().as_deref() {
            Some("work" | "transaction") => self.next().as_deref() == Some("to"),
            word => word == Some("to"),
        }
    }

    /// Whether `first` is directly followed by `second` in the rest of the statement.
    pub(super) fn any_pair(&mut self, first: &str, second: &str) -> bool {
        let mut before = String::new();
        while let Some(word) = self.next_or_symbol() {
            if before == first && word == second {
                return true;
            }
            before = word;
        }
        false
    }

    pub(super) fn next_or_symbol(&mut self) -> Option<String> {
        if let Some(word) = self.next() {
            return Some(word);
        }
        let symbol = *self.text.get(self.at)?;
        self.at = skip_token(self.text, self.at);
        Some(char::from(symbol).to_string())
    }

    /// Reads an identifier.
    pub(super) fn name(&mut self) -> Option<Identifier> {
        self.skip_blank();
        let start = self.at;
        let is_quoted = self.text.get(start) == Some(&b'"');
        let name = self.next()?;
        if is_quoted {
            let is_closed = self.at >= start + 2 && self.text[self.at - 1] == b'"';
            return (is_closed && !name.is_empty()).then_some(Identifier::Quoted(name));
        }
        let is_one = !name.contains('.') && !name.starts_with(|first: char| first.is_ascii_digit());
        is_one.then_some(Identifier::Word(name))
    }

    /// Reads the name of a parameter, whose parts may each be quoted. `None` if it is ambiguous.
    pub(super) fn parameter(&mut self) -> Option<String> {
        let mut name = self.next()?;
        while self.text.get(self.at) == Some(&b'.') && self.text.get(self.at + 1) == Some(&b'"') {
            self.at += 1;
            name.push('.');
            name.push_str(&self.next().filter(|part| part.is_ascii())?);
        }
        Some(name)
    }

    /// Returns the rest of the statement without trailing blanks and comments.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        self.skip_blank();
        let (start, mut end) = (self.at, self.at);
        while self.at < self.text.len() {
            self.at = skip_token(self.text, self.at);
            end = self.at;
            self.skip_blank();
        }
        &self.text[start..end]
    }

    /// Whether `word` is the rest of the statement.
    pub(super) fn is_rest(&self, word: &str) -> bool {
        Self { ..*self }.rest().eq_ignore_ascii_case(word.as_bytes())
    }

    /// Returns the value that a SET assigns to the parameter `name`. `SET ROLE x` has no sign between them.
    pub(super) fn value_of(&mut self, name: &str) -> Option<&'a [u8]> {
        self.skip_blank();
        let start = self.at;
        if self.text.get(self.at) == Some(&b'=') {
            self.at += 1;
        } else if self.next().as_deref() != Some("to") {
            if name != "role" {
                return None;
            }
            self.at = start;
        }
        let value = self.rest();
        (!value.is_empty()).then_some(value)
    }
}

impl Iterator for WordLexer<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.skip_blank();
        let rest = &self.text[self.at..];
        if rest.first() == Some(&b'"') {
            let end = skip_token(self.text, self.at);
            let name = &self.text[self.at + 1..(end - 1).max(self.at + 1)];
            self.at = end;
            return Some(String::from_utf8_lossy(name).into_owned());
        }
        let len = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(**b, b'_' | b'.')).count();
        self.at += len;
        (len > 0).then(|| String::from_utf8_lossy(&rest[..len]).to_ascii_lowercase())
    }
}
