//! Tokens of Postgres' expression syntax (`src/backend/parser/scan.l`).

use crate::error::{PredicateError, PredicateErrorKind};

/// Bound on the tokens of a predicate.
const TOKENS_MAX: usize = 200_000;
/// Identifiers are cut to this length, as Postgres does (`NAMEDATALEN - 1`).
const IDENTIFIER_LEN_MAX: usize = 63;

/// Kind of a token, with decoded text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// An unquoted word, in lower case: a keyword or a name.
    Word(Box<str>),
    /// A quoted identifier.
    Quoted(Box<str>),
    /// Digits only.
    Integer(Box<str>),
    /// A number with a point or an exponent.
    Decimal(Box<str>),
    String(Box<str>),
    Param(usize),
    /// An operator of one or more characters, with `!=` as `<>`.
    Operator(Box<str>),
    /// Any of `( ) [ ] , ; : .`
    Punctuation(char),
    /// `::`
    TypeCast,
    /// `:=` or `=>` or `..`: never valid in an expression without named arguments.
    Other,
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct SqlToken {
    pub(crate) kind: TokenKind,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Splits a text into tokens; the last one is [`TokenKind::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<SqlToken>, PredicateError> {
    let mut lexer = Lexer { text, bytes: text.as_bytes(), at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks()?;
        let start = lexer.at;
        let kind = lexer.token()?;
        let ended = kind == TokenKind::End;
        tokens.push(SqlToken { kind, start, end: lexer.at });
        if ended {
            return Ok(tokens);
        }
        if tokens.len() > TOKENS_MAX {
            return Err(PredicateError::new(
                PredicateErrorKind::TooComplex,
                start,
                format!("more than {TOKENS_MAX} tokens"),
            ));
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn continues_word(byte: u8) -> bool {
    starts_word(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn is_operator(byte: u8) -> bool {
    b"~!@#^&|`?+-*/%<>=".contains(&byte)
}

/// Folds ASCII letters only, as Postgres does for multibyte encodings, and cuts at a character's end.
fn cut_identifier(mut name: String) -> Box<str> {
    if name.len() > IDENTIFIER_LEN_MAX {
        let end = (0..=IDENTIFIER_LEN_MAX).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        name.truncate(end);
    }
    name.into()
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn syntax(at: usize, message: impl Into<String>) -> PredicateError {
        PredicateError::new(PredicateErrorKind::Syntax, at, message)
    }

    fn skip_blanks(&mut self) -> Result<(), PredicateError> {
        loop {
            let before = self.at;
            while self.at < self.bytes.len() && is_space(self.bytes[self.at]) {
                self.at += 1;
            }
            if self.bytes[self.at..].starts_with(b"--") {
                while self.at < self.bytes.len() && !matches!(self.bytes[self.at], b'\n' | b'\r') {
                    self.at += 1;
                }
            } else if self.bytes[self.at..].starts_with(b"/*") {
                self.skip_comment()?;
            }
            if self.at == before {
                return Ok(());
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), PredicateError> {
        let start = self.at;
        let mut depth = 0_usize;
        while self.at < self.bytes.len() {
            if self.bytes[self.at..].starts_with(b"/*") {
                depth += 1;
                self.at += 2;
            } else if self.bytes[self.at..].starts_with(b"*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return Ok(());
                }
            } else {
                self.at += 1;
            }
        }
        Err(Self::syntax(start, "unterminated /* comment"))
    }

    fn token(&mut self) -> Result<TokenKind, PredicateError> {
        let Some(&first) = self.bytes.get(self.at) else {
            return Ok(TokenKind::End);
        };
        match first {
            0 => Err(Self::syntax(self.at, "null character")),
            b'\'' => self.string(self.at).map(TokenKind::String),
            b'"' => self.quoted_identifier(),
            b'$' => self.dollar(),
            b'.' if !self.peek(1).is_ascii_digit() => Ok(self.dots()),
            b'.' | b'0'..=b'9' => self.number(),
            b'(' | b')' | b'[' | b']' | b',' | b';' => {
                self.at += 1;
                Ok(TokenKind::Punctuation(char::from(first)))
            }
            b':' => Ok(self.colons()),
            _ if starts_word(first) => self.word(),
            _ if is_operator(first) => Ok(self.operator()),
            _ => Err(Self::syntax(self.at, format!("syntax error at or near \"{}\"", char::from(first)))),
        }
    }

    fn dots(&mut self) -> TokenKind {
        let two = self.peek(1) == b'.';
        self.at += if two { 2 } else { 1 };
        if two { TokenKind::Other } else { TokenKind::Punctuation('.') }
    }

    fn colons(&mut self) -> TokenKind {
        let (kind, len) = match self.peek(1) {
            b':' => (TokenKind::TypeCast, 2),
            b'=' => (TokenKind::Other, 2),
            _ => (TokenKind::Punctuation(':'), 1),
        };
        self.at += len;
        kind
    }

    /// `$1`, or a string quoted by `$tag$`.
    fn dollar(&mut self) -> Result<TokenKind, PredicateError> {
        let start = self.at;
        if self.peek(1).is_ascii_digit() {
            self.at += 1;
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
            if continues_word(self.peek(0)) && self.peek(0) != b'$' {
                return Err(self.junk(start, "parameter"));
            }
            let number = self.text[start + 1..self.at].parse().ok().filter(|number| *number <= 65_535);
            return number.map(TokenKind::Param).ok_or_else(|| {
                PredicateError::new(PredicateErrorKind::BadParameter, start, "parameter number too large")
            });
        }
        let mut end = start + 1;
        while self.bytes.get(end).is_some_and(|byte| continues_word(*byte) && *byte != b'$') {
            end += 1;
        }
        if self.bytes.get(end) != Some(&b'$') || self.bytes[start + 1].is_ascii_digit() {
            return Err(Self::syntax(start, "syntax error at or near \"$\""));
        }
        let tag = &self.text[start..=end];
        let body = end + 1;
        let Some(len) = self.text[body..].find(tag) else {
            return Err(Self::syntax(start, "unterminated dollar-quoted string"));
        };
        self.at = body + len + tag.len();
        Ok(TokenKind::String(self.text[body..body + len].into()))
    }

    fn junk(&mut self, start: usize, what: &str) -> PredicateError {
        while continues_word(self.peek(0)) {
            self.at += 1;
        }
        Self::syntax(start, format!("trailing junk after {what} at or near \"{}\"", &self.text[start..self.at]))
    }

    fn digits(&mut self) {
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
    }

    /// Hexadecimal numbers and `1_000` are refused: Postgres before 16 reads them in another way.
    fn number(&mut self) -> Result<TokenKind, PredicateError> {
        let start = self.at;
        self.digits();
        let mut integer = true;
        if self.peek(0) == b'.' && self.peek(1) != b'.' {
            integer = false;
            self.at += 1;
            self.digits();
        }
        if matches!(self.peek(0), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
            if self.peek(1 + sign).is_ascii_digit() {
                integer = false;
                self.at += 1 + sign;
                self.digits();
            }
        }
        if starts_word(self.peek(0)) {
            return Err(self.junk(start, "numeric literal"));
        }
        let text = self.text[start..self.at].into();
        Ok(if integer { TokenKind::Integer(text) } else { TokenKind::Decimal(text) })
    }

    fn word(&mut self) -> Result<TokenKind, PredicateError> {
        let start = self.at;
        let quote_next = self.peek(1) == b'\'';
        match self.bytes[start] {
            b'e' | b'E' if quote_next => {
                self.at += 1;
                return self.escaped_string(start).map(TokenKind::String);
            }
            b'b' | b'B' | b'x' | b'X' if quote_next => {
                return Err(PredicateError::unsupported(start, "bit strings are not supported"));
            }
            b'n' | b'N' if quote_next => {
                return Err(PredicateError::unsupported(start, "N'…' strings are not supported"));
            }
            b'u' | b'U' if self.peek(1) == b'&' && matches!(self.peek(2), b'\'' | b'"') => {
                return Err(PredicateError::unsupported(start, "U&'…' strings are not supported"));
            }
            _ => {}
        }
        while continues_word(self.peek(0)) {
            self.at += 1;
        }
        Ok(TokenKind::Word(cut_identifier(self.text[start..self.at].to_ascii_lowercase())))
    }

    fn quoted_identifier(&mut self) -> Result<TokenKind, PredicateError> {
        let start = self.at;
        let name = self.until_quote(b'"').ok_or_else(|| Self::syntax(start, "unterminated quoted identifier"))?;
        if name.is_empty() {
            return Err(Self::syntax(start, "zero-length delimited identifier"));
        }
        Ok(TokenKind::Quoted(cut_identifier(name)))
    }

    /// The text up to the closing `quote`, with doubled quotes undoubled.
    fn until_quote(&mut self, quote: u8) -> Option<String> {
        let mut value = String::new();
        self.at += 1;
        loop {
            let len = self.bytes[self.at..].iter().position(|byte| *byte == quote)?;
            value.push_str(&self.text[self.at..self.at + len]);
            self.at += len + 1;
            if self.peek(0) != quote {
                return Some(value);
            }
            value.push(char::from(quote));
            self.at += 1;
        }
    }

    /// Whether another part of the string follows: blanks with a line break, then a quote.
    fn continues_string(&mut self) -> bool {
        let mut at = self.at;
        let mut newline = false;
        while let Some(byte) = self.bytes.get(at) {
            if matches!(byte, b'\n' | b'\r') {
                newline = true;
            } else if newline && self.bytes[at..].starts_with(b"--") {
                while self.bytes.get(at + 1).is_some_and(|byte| !matches!(byte, b'\n' | b'\r')) {
                    at += 1;
                }
            } else if !is_space(*byte) {
                break;
            }
            at += 1;
        }
        let found = newline && self.bytes.get(at) == Some(&b'\'');
        if found {
            self.at = at;
        }
        found
    }

    fn string(&mut self, start: usize) -> Result<Box<str>, PredicateError> {
        let mut value = String::new();
        loop {
            let part = self.until_quote(b'\'').ok_or_else(|| Self::syntax(start, "unterminated quoted string"))?;
            value.push_str(&part);
            if !self.continues_string() {
                return Self::without_null(start, value);
            }
        }
    }

    fn without_null(start: usize, value: String) -> Result<Box<str>, PredicateError> {
        match value.contains('\0') {
            true => Err(Self::syntax(start, "invalid byte sequence for encoding \"UTF8\": 0x00")),
            false => Ok(value.into()),
        }
    }

    /// A string with backslash escapes.
    fn escaped_string(&mut self, start: usize) -> Result<Box<str>, PredicateError> {
        let unterminated = || Self::syntax(start, "unterminated quoted string");
        let mut value: Vec<u8> = Vec::new();
        loop {
            self.at += 1;
            loop {
                let byte = *self.bytes.get(self.at).ok_or_else(unterminated)?;
                self.at += 1;
                match byte {
                    b'\'' if self.peek(0) == b'\'' => {
                        value.push(b'\'');
                        self.at += 1;
                    }
                    b'\'' => break,
                    b'\\' => self.escape(start, &mut value)?,
                    _ => value.push(byte),
                }
            }
            if !self.continues_string() {
                let value = String::from_utf8(value)
                    .map_err(|_| Self::syntax(start, "invalid byte sequence for encoding \"UTF8\""))?;
                return Self::without_null(start, value);
            }
        }
    }

    fn escape(&mut self, start: usize, value: &mut Vec<u8>) -> Result<(), PredicateError> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| Self::syntax(start, "unterminated quoted string"))?;
        self.at += 1;
        match byte {
            b'b' => value.push(8),
            b'f' => value.push(12),
            b'n' => value.push(b'\n'),
            b'r' => value.push(b'\r'),
            b't' => value.push(b'\t'),
            b'v' => return Err(PredicateError::unsupported(start, "the escape \\v is not supported")),
            b'0'..=b'7' => {
                self.at -= 1;
                let number = self.digits_of(8, 3);
                value.push((number & 0xff) as u8);
            }
            b'x' if self.peek(0).is_ascii_hexdigit() => {
                let number = self.digits_of(16, 2);
                value.push((number & 0xff) as u8);
            }
            b'u' | b'U' => {
                let len = if byte == b'u' { 4 } else { 8 };
                let from = self.at;
                let number = self.digits_of(16, len);
                let letter = char::from_u32(number).filter(|_| self.at - from == len);
                let letter = letter.ok_or_else(|| Self::syntax(start, "invalid Unicode escape"))?;
                value.extend(letter.encode_utf8(&mut [0; 4]).bytes());
            }
            _ => value.push(byte),
        }
        Ok(())
    }

    fn digits_of(&mut self, radix: u32, len_max: usize) -> u32 {
        let mut number = 0_u32;
        for _ in 0..len_max {
            let Some(digit) = char::from(self.peek(0)).to_digit(radix) else { break };
            number = number.wrapping_mul(radix).wrapping_add(digit);
            self.at += 1;
        }
        number
    }

    /// The longest operator, without a comment's start, and without `+` or `-` at its end unless it has a character
    /// that no SQL operator has.
    fn operator(&mut self) -> TokenKind {
        let start = self.at;
        let mut end = start;
        while self.bytes.get(end).is_some_and(|byte| is_operator(*byte)) {
            if end > start && (self.bytes[end..].starts_with(b"--") || self.bytes[end..].starts_with(b"/*")) {
                break;
            }
            end += 1;
        }
        let unusual = self.bytes[start..end].iter().any(|byte| b"~!@#^&|`?%".contains(byte));
        while end > start + 1 && !unusual && matches!(self.bytes[end - 1], b'+' | b'-') {
            end -= 1;
        }
        self.at = end;
        match &self.text[start..end] {
            "!=" => TokenKind::Operator("<>".into()),
            "=>" => TokenKind::Other,
            operator => TokenKind::Operator(operator.into()),
        }
    }
}
