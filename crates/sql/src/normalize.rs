//! Normalises statement texts and computes their fingerprints.
//!
//! This is a tokenizer, not a parser: it distinguishes words, quoted identifiers, numbers and operators, which is enough to find
//! the literals in any text that Postgres accepts. Literals and parameters become `?`, and a list of them becomes one `?`, so
//! that `IN (1, 2)`, `IN ($1)` and `IN (3)` are equal. Words become lower case; quoted identifiers are unchanged.
//!
//! As in `pg_stat_statements`: a minus that can only be the sign of a number belongs to the number; `TRUE`, `FALSE` and `NULL`
//! are literals where an operand is expected; names of savepoints and of deallocated statements are literals, because programs
//! number them.

use std::ops::Range;

use crate::lexical::{begins_name, dollar_quoted, end_of_comment, end_of_line_comment, is_blank, is_name_byte};

/// Writes the normalised text of a statement to an empty buffer.
pub fn normalize(text: &[u8], out: &mut Vec<u8>) {
    let (mut last, mut position, mut is_element) = (None, ExprPosition::default(), false);
    let mut command = NamedCommand::default();
    let mut tokens = Lexer::new(text);
    while let Some(mut token) = tokens.next() {
        if token == MINUS && position.expects_operand() && tokens.is_before_number() {
            continue;
        }
        if token == Token::Punctuation(b';') && out.is_empty() {
            continue;
        }
        if command.advance_to_name(token) || (position.makes_constant(token) && !tokens.is_before_literal()) {
            token = Token::Literal;
        }
        position.advance(token);
        if matches!(token, Token::Literal) {
            if is_element && ends_list(out) && !tokens.is_before_operator() {
                // The list of literals goes on: remove the comma.
                out.pop();
                last = Some(Token::Literal);
                continue;
            }
            // A literal of its own, not the right operand of an operator.
            is_element = !matches!(last, Some(Token::Operator(_)));
        }
        if last.is_some_and(|last| needs_space(last, token)) {
            out.push(b' ');
        }
        write_token(token, out);
        last = Some(token);
    }
    while let Some(b';' | b' ') = out.last() {
        out.pop();
    }
}

/// Hash of a normalised text: FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>) over words of eight bytes, with the high bits
/// of each product folded into the low ones.
#[must_use]
pub fn fingerprint(normalized: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    let (words, rest) = normalized.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain(std::iter::once(&last));
    let hash = words.fold(BASIS ^ normalized.len() as u64, |hash, word| {
        let mixed = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME);
        mixed ^ (mixed >> 29)
    });
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 32)
}

/// Returns the text before the first quote of a statement that the server rejected with a syntax error. After a quote, the
/// boundaries of literals are uncertain.
pub fn before_quotes(text: &[u8]) -> &[u8] {
    let mut tokens = Lexer::new(text);
    loop {
        tokens.skip_blanks();
        let from = tokens.at;
        match tokens.next() {
            None => return text,
            Some(Token::Quoted(_)) => return &text[..from],
            Some(Token::Literal) if text[from..tokens.at].iter().any(|byte| matches!(byte, b'\'' | b'$')) => {
                // A parameter is not a quoted string.
                let digits = text[from + 1..tokens.at].iter().all(u8::is_ascii_digit);
                if text[from] != b'$' || !digits {
                    return &text[..from];
                }
            }
            Some(_) => {}
        }
    }
}

/// Whether a text ends within quotes. No valid statement does, so an earlier quote is superfluous.
pub fn ends_within_quotes(text: &[u8]) -> bool {
    let mut tokens = Lexer::new(text);
    tokens.by_ref().for_each(drop);
    tokens.is_open
}

/// The first word of a statement, its command.
pub fn first_word(text: &[u8]) -> &[u8] {
    let word = |token| match token {
        Token::Word(word) => Some(word),
        _ => None,
    };
    Lexer::new(text).take(8).find_map(word).unwrap_or_default()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token<'a> {
    /// A keyword or an identifier.
    Word(&'a [u8]),
    /// A quoted identifier, with its quotes.
    Quoted(&'a [u8]),
    /// A string, a number or a parameter.
    Literal,
    /// A run of operator characters.
    Operator(&'a [u8]),
    /// Any other character, such as `( ) [ ] , ; .`.
    Punctuation(u8),
}

const MINUS: Token<'_> = Token::Operator(b"-");

/// Position of a token in an expression: distinguishes a sign from a subtraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum ExprPosition {
    /// An operand is expected, so an operator here has no left operand.
    #[default]
    Operand,
    /// After `NOT`; an operand is expected as well.
    AfterNot,
    /// After a dot, where every word is a name.
    AfterDot,
    /// After a possible operand.
    AfterOperand,
}

impl ExprPosition {
    fn expects_operand(self) -> bool {
        matches!(self, Self::Operand | Self::AfterNot)
    }

    /// Whether a word is `TRUE`, `FALSE` or `NULL` as a value. After `NOT` it may be a part of `IS NOT NULL`.
    fn makes_constant(self, token: Token<'_>) -> bool {
        let Token::Word(word) = token else { return false };
        let is = |constant: &[u8]| word.eq_ignore_ascii_case(constant);
        self == Self::Operand && (is(b"null") || is(b"true") || is(b"false"))
    }

    fn advance(&mut self, token: Token<'_>) {
        *self = match token {
            Token::Punctuation(b'.') => Self::AfterDot,
            _ if *self == Self::AfterDot => Self::AfterOperand,
            Token::Operator(_) | Token::Punctuation(b'(' | b'[' | b',' | b';') => Self::Operand,
            Token::Word(word) if word.eq_ignore_ascii_case(b"not") => Self::AfterNot,
            Token::Word(word) if self.precedes_operand(word) => Self::Operand,
            _ => Self::AfterOperand,
        };
    }

    /// Whether an operand follows a word. The listed words are reserved and end no operand (SQL Key Words, appendix C of the
    /// Postgres documentation). `BETWEEN` may name a column, but not after an operand.
    fn precedes_operand(self, word: &[u8]) -> bool {
        const LONGEST: usize = 10;
        let mut lower = [0; LONGEST];
        let Some(lower) = lower.get_mut(..word.len()) else { return false };
        lower.copy_from_slice(word);
        lower.make_ascii_lowercase();
        match &*lower {
            b"all" | b"and" | b"asymmetric" | b"case" | b"default" | b"distinct" | b"else" | b"fetch" | b"for"
            | b"from" | b"having" | b"in" | b"limit" | b"offset" | b"on" | b"or" | b"placing" | b"returning"
            | b"select" | b"symmetric" | b"then" | b"to" | b"variadic" | b"when" | b"where" | b"with" => true,
            b"between" => !matches!(self, Self::Operand),
            _ => false,
        }
    }
}

/// The command of a statement, if it contains a name that programs generate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum NamedCommand {
    /// Before the first word.
    #[default]
    Start,
    /// `ROLLBACK`, possibly to a savepoint.
    Rollback,
    /// After `SAVEPOINT`, `RELEASE`, `ROLLBACK TO` or `DEALLOCATE`: the name follows.
    Name,
    /// Any other command, and everything after the name.
    Other,
}

impl NamedCommand {
    /// Advances by one token. Returns whether the token is the name.
    fn advance_to_name(&mut self, token: Token<'_>) -> bool {
        let next = match (*self, token) {
            (_, Token::Punctuation(b';')) => Self::Start,
            (Self::Other, _) => return false,
            (_, Token::Word(word)) => self.after_word(word),
            _ => Self::Other,
        };
        let is_name = *self == Self::Name && next == Self::Other && matches!(token, Token::Word(_) | Token::Quoted(_));
        *self = next;
        // `DEALLOCATE ALL`; a savepoint cannot have this name.
        is_name && !matches!(token, Token::Word(word) if word.eq_ignore_ascii_case(b"all"))
    }

    fn after_word(self, word: &[u8]) -> Self {
        let is_any = |words: &[&[u8]]| words.iter().any(|known| word.eq_ignore_ascii_case(known));
        match self {
            Self::Start if is_any(&[b"savepoint", b"release", b"deallocate"]) => Self::Name,
            Self::Start if is_any(&[b"rollback"]) => Self::Rollback,
            Self::Rollback if is_any(&[b"to"]) => Self::Name,
            Self::Rollback if is_any(&[b"work", b"transaction"]) => Self::Rollback,
            Self::Name if is_any(&[b"savepoint", b"prepare"]) => Self::Name,
            _ => Self::Other,
        }
    }
}

fn ends_list(out: &[u8]) -> bool {
    out.ends_with(b"?,")
}

fn needs_space(last: Token<'_>, next: Token<'_>) -> bool {
    let opens = matches!(last, Token::Punctuation(b'(' | b'.' | b'[') | Token::Operator(b"::"));
    let joins = matches!(next, Token::Punctuation(b')' | b',' | b'.' | b'[' | b']' | b';') | Token::Operator(b"::"));
    let is_call = matches!((last, next), (Token::Word(_), Token::Punctuation(b'(')));
    !opens && !joins && !is_call
}

fn write_token(token: Token<'_>, out: &mut Vec<u8>) {
    match token {
        Token::Word(word) => {
            let from = out.len();
            out.extend_from_slice(word);
            out[from..].make_ascii_lowercase();
        }
        // Postgres treats both as one operator (`not_equals` in scan.l).
        Token::Operator(b"!=") => out.extend_from_slice(b"<>"),
        Token::Quoted(text) | Token::Operator(text) => out.extend_from_slice(text),
        Token::Literal => out.push(b'?'),
        Token::Punctuation(punctuation) => out.push(punctuation),
    }
}

struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// The text ends within quotes.
    is_open: bool,
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let from = self.at;
        let first = *self.text.get(from)?;
        Some(match first {
            b'\'' => self.string(false),
            b'"' => {
                self.at = self.end_of_quoted(from + 1, b'"', false);
                Token::Quoted(&self.text[from..self.at])
            }
            b'0'..=b'9' => self.number(),
            b'.' if self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) => self.number(),
            b'$' => self.dollar(),
            _ if is_word(first) => self.word(),
            _ if is_operator(first) => self.operator(),
            _ => {
                self.at += 1;
                Token::Punctuation(first)
            }
        })
    }
}

impl<'a> Lexer<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, is_open: false }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn run(&self, from: usize, is: impl Fn(u8) -> bool) -> usize {
        let rest = self.text.get(from..).unwrap_or_default();
        from + rest.iter().position(|byte| !is(*byte)).unwrap_or(rest.len())
    }

    /// [`run`](Self::run) of bytes of these classes.
    #[inline]
    fn run_of(&self, from: usize, classes: u8) -> usize {
        self.run(from, |byte| BYTE_CLASSES[usize::from(byte)] & classes != 0)
    }

    fn skip_blanks(&mut self) {
        loop {
            self.at = self.run_of(self.at, BLANK);
            match (self.peek(0), self.peek(1)) {
                (Some(b'-'), Some(b'-')) => self.at = end_of_line_comment(self.text, self.at),
                (Some(b'/'), Some(b'*')) => self.at = end_of_comment(self.text, self.at),
                _ => return,
            }
        }
    }

    /// Returns the offset after the closing quote. A doubled quote does not close.
    fn end_of_quoted(&mut self, mut at: usize, quote: u8, escapes: bool) -> usize {
        while let Some(&byte) = self.text.get(at) {
            match byte {
                b'\\' if escapes => at += 2,
                _ if byte == quote && self.text.get(at + 1) == Some(&quote) => at += 2,
                _ if byte == quote => return at + 1,
                _ => at += 1,
            }
        }
        self.is_open = true;
        self.text.len()
    }

    /// Reads a string whose opening quote is at the cursor.
    fn string(&mut self, escapes: bool) -> Token<'a> {
        self.at = self.end_of_quoted(self.at + 1, b'\'', escapes);
        while escapes && let Some(quote) = self.continued() {
            self.at = self.end_of_quoted(quote + 1, b'\'', escapes);
        }
        Token::Literal
    }

    /// Returns the offset of the opening quote that continues the string: after a line break, with the escapes of the first part
    /// (`quotecontinue` in scan.l). A string without escapes may be read as two.
    fn continued(&self) -> Option<usize> {
        let mut next = Self { at: self.at, ..Self::new(self.text) };
        next.skip_blanks();
        let breaks = self.text[self.at.min(next.at)..next.at].iter().any(|byte| matches!(byte, b'\n' | b'\r'));
        (breaks && next.peek(0) == Some(b'\'')).then_some(next.at)
    }

    fn number(&mut self) -> Token<'a> {
        let mut end = self.run_of(self.at, NUMERIC);
        let has_exponent = matches!(self.text[end - 1], b'e' | b'E') && !self.text[self.at..].starts_with(b"0x");
        let digit_at = |at: usize| self.text.get(at).is_some_and(u8::is_ascii_digit);
        if has_exponent && matches!(self.text.get(end), Some(b'+' | b'-')) && digit_at(end + 1) {
            end = self.run(end + 1, |byte| byte.is_ascii_digit());
        }
        self.at = end;
        Token::Literal
    }

    /// Reads a parameter, a dollar-quoted string, or a single dollar sign.
    fn dollar(&mut self) -> Token<'a> {
        let from = self.at;
        if self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) {
            self.at = self.run(from + 1, |byte| byte.is_ascii_digit());
            return Token::Literal;
        }
        let Some(quoted) = dollar_quoted(self.text, from) else {
            self.at += 1;
            return Token::Punctuation(b'$');
        };
        self.is_open |= quoted.is_open;
        self.at = quoted.end;
        Token::Literal
    }

    fn word(&mut self) -> Token<'a> {
        let from = self.at;
        self.at = self.run_of(from, IN_WORD);
        let word = &self.text[from..self.at];
        match (word, self.peek(0), self.peek(1)) {
            ([b'e' | b'E'], Some(b'\''), _) => self.string(true),
            ([b'b' | b'B' | b'x' | b'X' | b'n' | b'N'], Some(b'\''), _) => self.string(false),
            ([b'u' | b'U'], Some(b'&'), Some(b'\'')) => {
                self.at += 1;
                self.string(false)
            }
            _ => Token::Word(word),
        }
    }

    fn operator(&mut self) -> Token<'a> {
        let from = self.at;
        self.at += 1;
        // A colon belongs to `::` and `:=` only. The normalised form of a cast, `?::int`, therefore has three tokens.
        if self.text[from] == b':' {
            self.at += usize::from(matches!(self.peek(0), Some(b':' | b'=')));
            return Token::Operator(&self.text[from..self.at]);
        }
        while self.peek(0).is_some_and(|byte| is_operator(byte) && byte != b':') && !self.begins_comment() {
            self.at += 1;
        }
        // Trailing signs of an operator of the SQL standard are operators of their own (`operator` in scan.l): `a=-1`,
        // not `a=- 1`.
        let operator = &self.text[from..self.at];
        let signs = operator.iter().rev().take_while(|byte| matches!(byte, b'+' | b'-')).count();
        let is_of_sql = |byte: &u8| !b"~!@#^&|`?%".contains(byte);
        if signs > 0 && operator[..operator.len() - signs].iter().all(is_of_sql) {
            self.at = from + (operator.len() - signs).max(1);
        }
        Token::Operator(&self.text[from..self.at])
    }

    fn is_before_operator(&self) -> bool {
        let mut ahead = Self { at: self.at, ..Self::new(self.text) };
        ahead.skip_blanks();
        ahead.peek(0).is_some_and(is_operator)
    }

    /// Whether a literal comes next, or the `?` of a normalised text.
    fn is_before_literal(&self) -> bool {
        let mut ahead = Self { at: self.at, ..Self::new(self.text) };
        matches!(ahead.next(), Some(Token::Literal | Token::Operator(b"?")))
    }

    /// Whether a number comes next.
    fn is_before_number(&self) -> bool {
        let mut ahead = Self { at: self.at, ..Self::new(self.text) };
        ahead.skip_blanks();
        let is_digit = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_digit());
        is_digit(ahead.peek(0)) || (ahead.peek(0) == Some(b'.') && is_digit(ahead.peek(1)))
    }

    fn begins_comment(&self) -> bool {
        matches!((self.peek(0), self.peek(1)), (Some(b'-'), Some(b'-')) | (Some(b'/'), Some(b'*')))
    }
}

/// Classes of a byte.
const BLANK: u8 = 1;
const WORD: u8 = 2;
/// Allowed in a word after the first byte.
const IN_WORD: u8 = 4;
const OPERATOR: u8 = 8;
/// Allowed in a number after the first byte.
const NUMERIC: u8 = 16;

const BYTE_CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        if is_blank(byte) {
            classes[at] |= BLANK;
        }
        if begins_name(byte) {
            classes[at] |= WORD;
        }
        if is_name_byte(byte) {
            classes[at] |= IN_WORD;
        }
        if byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' {
            classes[at] |= NUMERIC;
        }
        at += 1;
    }
    let operators = b"+-*/<>=~!@#%^&|`?:";
    let mut at = 0;
    while at < operators.len() {
        classes[operators[at] as usize] |= OPERATOR;
        at += 1;
    }
    classes
};

#[inline]
fn is_word(byte: u8) -> bool {
    BYTE_CLASSES[usize::from(byte)] & WORD != 0
}

#[inline]
fn is_operator(byte: u8) -> bool {
    BYTE_CLASSES[usize::from(byte)] & OPERATOR != 0
}

/// The tokens of a text with their byte ranges.
pub(crate) fn tokens(text: &[u8]) -> impl Iterator<Item = (Range<usize>, Token<'_>)> {
    let mut tokens = Lexer::new(text);
    std::iter::from_fn(move || {
        tokens.skip_blanks();
        let from = tokens.at;
        let token = tokens.next()?;
        Some((from..tokens.at.min(text.len()), token))
    })
}

/// The byte ranges of the literals in a text.
pub(crate) fn literals(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    tokens(text).filter(|(_, token)| *token == Token::Literal).map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normalized(text: &str) -> String {
        let mut out = Vec::new();
        normalize(text.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn literals_blanks_and_comments_are_removed() {
        for (text, expected) in [
            (
                "SELECT abalance FROM pgbench_accounts WHERE aid = 4711;",
                "select abalance from pgbench_accounts where aid = ?",
            ),
            (
                "select  *\n\tfrom \"T\"  -- all\n where a='it''s' and b = $1",
                "select * from \"T\" where a = ? and b = ?",
            ),
            ("select /* a /* b */ c */ 1.5e-3, E'a\\'b', $x$ '; $x$, x'ff', .5, 0xFF", "select ?"),
            (
                "select a.b::int, count(*) from c where d in (1, 2,3) and e[1] > -5",
                "select a.b::int, count(*) from c where d in(?) and e[?] > ?",
            ),
            ("insert into t values (1, 'a'), ($1, null)", "insert into t values(?), (?)"),
            ("select t1.a2 from t1 where a->>'k' @> U&'x'", "select t1.a2 from t1 where a ->> ? @> ?"),
            ("select $a1$secret$a1$, $_9b$ $1 $_9b$ from t", "select ? from t"),
            ("select E'a' -- b\n 'c\\'d' from t", "select ? from t"),
            ("select E'a' 'b\\' from t", "select ? ? from t"),
            ("select 'a'\n'b\\' from t", "select ? ? from t"),
            ("select 'open", "select ?"),
            ("select 1e-- secret\n from t", "select ? from t"),
            ("  ;; ", ""),
            (" ; select 1", "select ?"),
            ("select 1; select 2", "select ?; select ?"),
            // A list consists of literals only.
            ("select a + 1, 2, 3 from t", "select a + ?, ? from t"),
            ("select f(1, 2, 3 + b, 4)", "select f(?, ? + b, ?)"),
            ("select 1, 2, 'a'::text, 3", "select ?, ?::text, ?"),
            ("select f(a := 1), b[1:2], c ?::text", "select f(a := ?), b[? : ?], c ?::text"),
        ] {
            assert_eq!(normalized(text), expected, "{text}");
            // Readers of the query journal normalise texts that may already be normalised.
            assert_eq!(normalized(expected), expected);
        }
    }

    /// Expected results from `pg_stat_statements`.
    #[test]
    fn a_sign_belongs_to_the_number() {
        for (text, expected) in [
            ("select -1", "select ?"),
            ("-1", "?"),
            ("select - /* b */ .5", "select ?"),
            ("insert into t values (-1, 2, - 3)", "insert into t values(?)"),
            ("update t set a=-1 where b>=-2 and c<>-3.5e-2", "update t set a = ? where b >= ? and c <> ?"),
            ("select a*-1, a- -1, a::int*-1, x[-1:-2]", "select a * ?, a - ?, a::int * ?, x[? : ?]"),
            ("select 1 where a between -5 and -3", "select ? where a between ? and ?"),
            ("select 1 where a NOT BETWEEN SYMMETRIC -5 AND -3", "select ? where a not between symmetric ? and ?"),
            ("select case when -1 then -2 else -3 end", "select case when ? then ? else ? end"),
            ("select f(b => -1); -2", "select f(b => ?); ?"),
            ("select substring(a from -1 for -2)", "select substring(a from ? for ?)"),
            ("set a to -1", "set a to ?"),
            // A minus with a left operand is a subtraction.
            ("select a -1", "select a - ?"),
            ("select 5-1, $1 -1, 'a' -1", "select ? - ?, ? - ?, ? - ?"),
            ("select (a)-1, a[1]-1, count(*)-1", "select(a) - ?, a[?] - ?, count(*) - ?"),
            ("select null -1, case when a then b end -1", "select ? - ?, case when a then b end - ?"),
            (
                "select \"select\" -1, t.limit -1, t.* -1, t . offset -1",
                "select \"select\" - ?, t.limit - ?, t.* - ?, t.offset - ?",
            ),
            ("select between -1", "select between - ?"),
            // Operands that are not numbers, and other operators.
            ("select -a, -$1, -'1', +1", "select - a, - ?, - ?, + ?"),
            ("select a @- 1, b ?- 2, c #-1", "select a @- ?, b ?- ?, c #- ?"),
            ("select a --1\n, 2", "select a, ?"),
        ] {
            assert_eq!(normalized(text), expected, "{text}");
        }
    }

    /// Expected results from `pg_stat_statements`.
    #[test]
    fn true_false_and_null_are_literals_as_values() {
        for (text, expected) in [
            ("select TRUE, null, false", "select ?"),
            ("select * from t where a = true and b != null", "select * from t where a = ? and b <> ?"),
            ("insert into t values (null, 1, true)", "insert into t values(?)"),
            ("update t set a = null, b = FALSE", "update t set a = ?, b = ?"),
            ("select f(a, true), null::int", "select f(a, ?), ?::int"),
            ("select case a when 1 then true else null end", "select case a when ? then ? else ? end"),
            (
                "select 1 from t join u on true where false and a in (1, null)",
                "select ? from t join u on ? where ? and a in(?)",
            ),
            // Not used as values: they are parts of the syntax.
            ("select a is null, b IS NOT NULL, c is true", "select a is null, b is not null, c is true"),
            ("create table t (a int not null, b int null)", "create table t(a int not null, b int null)"),
            ("alter table t alter a set not null", "alter table t alter a set not null"),
            (
                "create table t (a int references u on delete set null)",
                "create table t(a int references u on delete set null)",
            ),
            ("alter role r password null", "alter role r password null"),
            ("select a from t order by a nulls last", "select a from t order by a nulls last"),
            (
                "copy t from stdin with (format csv, null 'x', header true)",
                "copy t from stdin with(format csv, null ?, header true)",
            ),
            ("select t.null, \"true\", a as null from t", "select t.null, \"true\", a as null from t"),
        ] {
            assert_eq!(normalized(text), expected, "{text}");
            assert_eq!(normalized(expected), expected);
        }
    }

    /// Programs number their savepoints. Expected results from `pg_stat_statements`.
    #[test]
    fn names_of_savepoints_and_statements_are_literals() {
        for (text, expected) in [
            ("SAVEPOINT s1; savepoint \"s 2\"", "savepoint ?; savepoint ?"),
            ("release s1", "release ?"),
            ("release savepoint s1;", "release savepoint ?"),
            ("rollback to s1", "rollback to ?"),
            ("ROLLBACK TRANSACTION TO SAVEPOINT s1", "rollback transaction to savepoint ?"),
            ("rollback and chain", "rollback and chain"),
            ("rollback; begin", "rollback; begin"),
            ("deallocate s1", "deallocate ?"),
            ("deallocate prepare \"s1\"", "deallocate prepare ?"),
            ("DEALLOCATE ALL", "deallocate all"),
            ("select a savepoint, release b from t", "select a savepoint, release b from t"),
        ] {
            assert_eq!(normalized(text), expected, "{text}");
            assert_eq!(normalized(expected), expected);
        }
    }

    #[test]
    fn text_before_the_first_quote() {
        for (text, expected) in [
            ("select 1, $1, .5 from a", "select 1, $1, .5 from a"),
            ("select /* 'a' */ 1, 'a'b'", "select /* 'a' */ 1, "),
            ("select \"a 'b'", "select "),
            ("select E'a'", "select "),
            ("select $a1$b", "select "),
            ("select $$b", "select "),
            ("", ""),
        ] {
            assert_eq!(before_quotes(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn unbalanced_quotes_are_found() {
        for open in ["'O'Brien x'", "\"a", "select E'a\\'", "$a$ $b$", "'a' -- '\n '"] {
            assert!(ends_within_quotes(open.as_bytes()), "{open}");
        }
        for closed in ["", "'a', E'\\'', \"b\"\"\", $a$ ' $a$", "select 1 -- 'a", "/* ' */ $1", "U&'a'"] {
            assert!(!ends_within_quotes(closed.as_bytes()), "{closed}");
        }
    }

    #[test]
    fn fingerprints_ignore_literals() {
        let print = |text: &str| fingerprint(normalized(text).as_bytes());
        assert_eq!(print("select * from t where id = 5"), print("SELECT * FROM t\nWHERE id=$1"));
        assert_ne!(print("select * from t where id = 5"), print("select * from t where di = 5"));
        assert_eq!(fingerprint(b"select ?"), 0x73f8_9198_7385_bffc, "fingerprints of old journals stay comparable");
    }

    #[test]
    fn cached_and_fresh_results_are_equal() {
        let mut cache = crate::cache::NormalizeCache::default();
        for round in 0..40 {
            let (number, long) = (format!("select {round} -- {round}"), "x, ".repeat(2000));
            let string = format!("select 'b{}' from c where d = {round}", "''".repeat(round % 3));
            for text in ["select 1", &number, &string, &format!("select a{round}"), &long] {
                let found = cache.normalize_text(text.as_bytes());
                assert_eq!(found.text(), normalized(text).as_bytes(), "round {round}");
                assert_eq!(found.fingerprint(), fingerprint(normalized(text).as_bytes()));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_normalized(text in any::<Vec<u8>>()) {
            let (mut once, mut twice) = (Vec::new(), Vec::new());
            normalize(&text, &mut once);
            normalize(&once, &mut twice);
            prop_assert!(once.len() <= 2 * text.len());
        }

        #[test]
        fn no_literal_remains(secret in "[a-z]{6}", number in 100_000_u64..) {
            let text = format!("select '{secret}', $q${secret}$q$, {number} from t where E'\\'{secret}' = '{secret}''{number}'");
            let normalized = normalized(&text);
            prop_assert!(!normalized.contains(&secret) && !normalized.contains(&number.to_string()), "{}", normalized);
        }
    }
}
