//! A text as statements, and a statement as words: without spaces, comments and quotes.

use super::fault::Fault;

/// A word of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Its text, without quotes.
    pub(super) text: String,
    /// It stood in quotes, so that it cannot be a keyword.
    pub(super) quoted: bool,
}

impl Word {
    /// Whether it is this keyword, in whatever case.
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text.eq_ignore_ascii_case(keyword)
    }
}

/// The statements of a text that say something.
///
/// # Errors
/// A quote or a comment does not end.
pub(super) fn statements(text: &str) -> Result<Vec<Vec<Word>>, Fault> {
    let mut reader = Reader { rest: text };
    let mut statements = vec![Vec::new()];
    while let Some(piece) = reader.next()? {
        match piece {
            Piece::End => statements.push(Vec::new()),
            Piece::Word(word) => statements.last_mut().expect("there is one from the start").push(word),
        }
    }
    statements.retain(|words| !words.is_empty());
    Ok(statements)
}

enum Piece {
    Word(Word),
    /// A semicolon.
    End,
}

struct Reader<'a> {
    rest: &'a str,
}

/// What stands for itself, whatever is beside it.
const MARKS: &[char] = &['=', '(', ')', ','];

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<Piece>, Fault> {
        self.pass_over()?;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        match first {
            ';' => {
                self.take(1);
                Ok(Some(Piece::End))
            }
            '"' | '\'' => self.quoted(first).map(Some),
            mark if MARKS.contains(&mark) => Ok(Some(plain(self.take(1)))),
            _ => {
                let end = self.end_of_plain();
                Ok(Some(plain(self.take(end))))
            }
        }
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Spaces and comments.
    fn pass_over(&mut self) -> Result<(), Fault> {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("--") {
                self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
            } else if self.rest.starts_with("/*") {
                self.comment()?;
            } else {
                return Ok(());
            }
        }
    }

    /// Comments nest, as in Postgres.
    fn comment(&mut self) -> Result<(), Fault> {
        let mut depth = 0_usize;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2);
                if depth == 0 {
                    return Ok(());
                }
            } else {
                let next = self.rest.chars().next().ok_or_else(|| Fault::syntax("unterminated comment"))?;
                self.take(next.len_utf8());
            }
        }
    }

    /// A doubled quote stands for one.
    fn quoted(&mut self, quote: char) -> Result<Piece, Fault> {
        self.take(1);
        let mut text = String::new();
        loop {
            let end = self.rest.find(quote).ok_or_else(|| Fault::syntax("unterminated quoted text"))?;
            text.push_str(self.take(end));
            self.take(1);
            if !self.rest.starts_with(quote) {
                return Ok(Piece::Word(Word { text, quoted: true }));
            }
            text.push(quote);
            self.take(1);
        }
    }

    fn end_of_plain(&self) -> usize {
        let ends = |(at, next): &(usize, char)| {
            next.is_whitespace()
                || MARKS.contains(next)
                || matches!(next, ';' | '"' | '\'')
                || self.rest[*at..].starts_with("--")
                || self.rest[*at..].starts_with("/*")
        };
        self.rest.char_indices().find(ends).map_or(self.rest.len(), |(at, _)| at)
    }
}

fn plain(text: &str) -> Piece {
    Piece::Word(Word { text: text.to_owned(), quoted: false })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(text: &str) -> Vec<Vec<String>> {
        let statements = statements(text).unwrap();
        statements.into_iter().map(|words| words.into_iter().map(|word| word.text).collect()).collect()
    }

    #[test]
    fn a_text_is_split_into_statements_and_words() {
        assert_eq!(texts("show pools"), [["show", "pools"]]);
        assert_eq!(texts("  SHOW\tPOOLS ;; PAUSE db;"), [["SHOW", "POOLS"], ["PAUSE", "db"]]);
        assert_eq!(texts("set a=1"), [["set", "a", "=", "1"]]);
        assert_eq!(texts("select version()"), [["select", "version", "(", ")"]]);
        assert!(texts(" ; -- nothing\n ; /* nor /* here */ */").is_empty());
    }

    #[test]
    fn quotes_keep_what_is_in_them() {
        assert_eq!(texts(r#"PAUSE "my; ""db""" "#), [["PAUSE", r#"my; "db""#]]);
        assert_eq!(texts("set application_name = 'it''s -- me'"), [["set", "application_name", "=", "it's -- me"]]);
        assert_eq!(texts("KILL my-db--gone"), [["KILL", "my-db"]]);
        let words = &statements("\"show\"").unwrap()[0];
        assert!(!words[0].is("show"));
    }

    #[test]
    fn what_does_not_end_is_an_error() {
        for text in ["PAUSE \"db", "set a = '", "/* /* */", "/*"] {
            assert!(statements(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z'\"/*;= \n-]{0,40}|\\PC{0,20}") {
            if let Ok(statements) = statements(&text) {
                prop_assert!(statements.iter().all(|words| !words.is_empty()));
            }
        }
    }
}
