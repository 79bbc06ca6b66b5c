//! Splits a text into statements, and statements into words without blanks, comments and quotes.

use super::error::ConsoleError;

/// A word of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandWord {
    /// The text without quotes.
    pub(super) text: String,
    /// Quoted words cannot be keywords.
    pub(super) quoted: bool,
}

impl CommandWord {
    /// Whether the word is `keyword` in any case.
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text.eq_ignore_ascii_case(keyword)
    }
}

/// Returns the non-empty statements of a text.
///
/// # Errors
/// If a quote or a comment is not terminated.
pub(super) fn statements(text: &str) -> Result<Vec<Vec<CommandWord>>, ConsoleError> {
    let mut lexer = CommandLexer { rest: text };
    let mut statements = vec![Vec::new()];
    while let Some(piece) = lexer.next()? {
        match piece {
            LexerItem::End => statements.push(Vec::new()),
            LexerItem::Word(word) => statements.last_mut().expect("the list starts with one statement").push(word),
        }
    }
    statements.retain(|words| !words.is_empty());
    Ok(statements)
}

enum LexerItem {
    Word(CommandWord),
    /// A semicolon.
    End,
}

struct CommandLexer<'a> {
    rest: &'a str,
}

/// Characters that are words of their own.
const PUNCTUATION: &[char] = &['=', '(', ')', ','];

impl<'a> CommandLexer<'a> {
    fn next(&mut self) -> Result<Option<LexerItem>, ConsoleError> {
        self.skip_blanks()?;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        match first {
            ';' => {
                self.take(1);
                Ok(Some(LexerItem::End))
            }
            '"' | '\'' => self.quoted(first).map(Some),
            punctuation if PUNCTUATION.contains(&punctuation) => Ok(Some(plain(self.take(1)))),
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

    /// Skips blanks and comments.
    fn skip_blanks(&mut self) -> Result<(), ConsoleError> {
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
    fn comment(&mut self) -> Result<(), ConsoleError> {
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
                let next = self.rest.chars().next().ok_or_else(|| ConsoleError::syntax("unterminated comment"))?;
                self.take(next.len_utf8());
            }
        }
    }

    /// A doubled quote means one quote.
    fn quoted(&mut self, quote: char) -> Result<LexerItem, ConsoleError> {
        self.take(1);
        let mut text = String::new();
        loop {
            let end = self.rest.find(quote).ok_or_else(|| ConsoleError::syntax("unterminated quoted text"))?;
            text.push_str(self.take(end));
            self.take(1);
            if !self.rest.starts_with(quote) {
                return Ok(LexerItem::Word(CommandWord { text, quoted: true }));
            }
            text.push(quote);
            self.take(1);
        }
    }

    fn end_of_plain(&self) -> usize {
        let ends = |(at, next): &(usize, char)| {
            next.is_whitespace()
                || PUNCTUATION.contains(next)
                || matches!(next, ';' | '"' | '\'')
                || self.rest[*at..].starts_with("--")
                || self.rest[*at..].starts_with("/*")
        };
        self.rest.char_indices().find(ends).map_or(self.rest.len(), |(at, _)| at)
    }
}

fn plain(text: &str) -> LexerItem {
    LexerItem::Word(CommandWord { text: text.to_owned(), quoted: false })
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
    fn texts_are_split_into_statements_and_words() {
        assert_eq!(texts("show pools"), [["show", "pools"]]);
        assert_eq!(texts("  SHOW\tPOOLS ;; PAUSE db;"), [["SHOW", "POOLS"], ["PAUSE", "db"]]);
        assert_eq!(texts("set a=1"), [["set", "a", "=", "1"]]);
        assert_eq!(texts("select version()"), [["select", "version", "(", ")"]]);
        assert!(texts(" ; -- nothing\n ; /* nor /* here */ */").is_empty());
    }

    #[test]
    fn quoted_text_is_unchanged() {
        assert_eq!(texts(r#"PAUSE "my; ""db""" "#), [["PAUSE", r#"my; "db""#]]);
        assert_eq!(texts("set application_name = 'it''s -- me'"), [["set", "application_name", "=", "it's -- me"]]);
        assert_eq!(texts("KILL my-db--gone"), [["KILL", "my-db"]]);
        let words = &statements("\"show\"").unwrap()[0];
        assert!(!words[0].is("show"));
    }

    #[test]
    fn unterminated_text_is_an_error() {
        for text in ["PAUSE \"db", "set a = '", "/* /* */", "/*"] {
            assert!(statements(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_split_or_rejected(text in "[a-z'\"/*;= \n-]{0,40}|\\PC{0,20}") {
            if let Ok(statements) = statements(&text) {
                prop_assert!(statements.iter().all(|words| !words.is_empty()));
            }
        }
    }
}
