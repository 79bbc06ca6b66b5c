//! Hides passwords in statements before they are recorded or logged.
//!
//! Hidden are:
//! - Strings after `PASSWORD`, `CONNECTION` or `IDENTIFIED BY`, in every form, including continued strings. In a statement about
//!   roles, servers, subscriptions or settings, or with an unknown command, also malformed strings; their end is unknown, so the
//!   rest of the text is hidden.
//! - In `OPTIONS (...)`, strings after names such as `sslpassword` or `secret_key`; of a user mapping, all options except the
//!   user.
//! - In these statements, in `COPY ... PROGRAM` and in calls of dblink, a string that contains a connection's password
//!   (`'host=a password=b'`, `'scheme://user:password@host'`) or sets one (`'alter role a password ''b'''`).
//! - The body of `DO`, of a function or of a procedure that mentions a password, because it may build one from any of its
//!   strings.
//! - Strings in a call of pgcrypto, each of which may be a key.
//!
//! Other strings are data of the application; the key `journal.statement` decides about them.

use std::{borrow::Cow, ops::Range};

use crate::normalize::{self, Token};

const HIDDEN: &[u8] = b"***";

/// Returns the text with `***` in place of each password and of every possible part of one.
#[must_use]
pub fn without_passwords(text: &[u8]) -> Cow<'_, [u8]> {
    let hidden_ranges = hidden_ranges(text);
    if hidden_ranges.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut out, mut from) = (Vec::with_capacity(text.len()), 0);
    for range in hidden_ranges {
        out.extend_from_slice(&text[from..range.start]);
        out.extend_from_slice(HIDDEN);
        from = range.end;
    }
    out.extend_from_slice(&text[from..]);
    Cow::Owned(out)
}

/// Whether the text contains a password, which an error may quote. A truncated text may have contained one after its end.
pub fn sets_password(text: &[u8], is_cut: bool) -> bool {
    matches!(without_passwords(text), Cow::Owned(_)) || (is_cut && !is_common(normalize::first_word(text)))
}

/// Whether statements with this normalised text may contain a secret.
pub(crate) fn may_hide(normalized: &[u8]) -> bool {
    // Words of common statements that may contain a secret.
    let names = |word: &[u8]| memchr::memmem::find(normalized, word).is_some();
    let is_one = memchr::memchr(b';', normalized).is_none();
    !is_one
        || !is_common(normalize::first_word(normalized))
        || [&b"passw"[..], b"dblink", b"program", b"crypt", b"pgp_", b"hmac"].into_iter().any(names)
}

/// First words of statements that cannot contain the password of a role or a server, and of constants, which normalised texts do
/// not show.
const COMMON: [&[u8]; 50] = [
    b"abort",
    b"analyze",
    b"begin",
    b"call",
    b"checkpoint",
    b"close",
    b"cluster",
    b"comment",
    b"commit",
    b"copy",
    b"deallocate",
    b"declare",
    b"delete",
    b"discard",
    b"drop",
    b"end",
    b"execute",
    b"explain",
    b"false",
    b"fetch",
    b"grant",
    b"import",
    b"insert",
    b"listen",
    b"load",
    b"lock",
    b"merge",
    b"move",
    b"notify",
    b"null",
    b"prepare",
    b"reassign",
    b"refresh",
    b"reindex",
    b"release",
    b"revoke",
    b"rollback",
    b"savepoint",
    b"security",
    b"select",
    b"show",
    b"start",
    b"table",
    b"true",
    b"truncate",
    b"unlisten",
    b"update",
    b"vacuum",
    b"values",
    b"with",
];

fn is_common(word: &[u8]) -> bool {
    word.is_empty() || COMMON.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Objects of `CREATE` and `ALTER` that have no password.
const OBJECTS: [&[u8]; 33] = [
    b"access",
    b"aggregate",
    b"cast",
    b"collation",
    b"constraint",
    b"conversion",
    b"database",
    b"default",
    b"domain",
    b"event",
    b"extension",
    b"foreign",
    b"index",
    b"language",
    b"large",
    b"materialized",
    b"operator",
    b"policy",
    b"publication",
    b"rule",
    b"schema",
    b"sequence",
    b"statistics",
    b"table",
    b"tablespace",
    b"temp",
    b"temporary",
    b"text",
    b"transform",
    b"trigger",
    b"type",
    b"unlogged",
    b"view",
];

/// Class of a statement; decides what is hidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StatementClass {
    /// Reads or writes data, or creates objects for data.
    Data,
    /// Runs or creates code.
    Code,
    /// Concerns roles, servers, subscriptions or settings, or has an unknown command.
    Accounts {
        /// A user mapping: all its options are secrets, except known ones.
        is_mapping: bool,
    },
}

type SpannedToken<'a> = (Range<usize>, Token<'a>);

impl StatementClass {
    fn of(tokens: &[SpannedToken<'_>]) -> Self {
        // The same limit as in `first_word`.
        let mut words = tokens.iter().take(8).filter_map(|(_, token)| match token {
            Token::Word(word) => Some(word.to_ascii_lowercase()),
            _ => None,
        });
        let first = words.next().unwrap_or_default();
        match &*first {
            b"do" => return Self::Code,
            b"create" | b"alter" => {}
            first if is_common(first) => return Self::Data,
            _ => return Self::Accounts { is_mapping: false },
        }
        let is_beside = |word: &[u8]| [&b"or"[..], b"replace", b"trusted", b"procedural"].contains(&word);
        let object = words.find(|word| !is_beside(word)).unwrap_or_default();
        match &*object {
            b"function" | b"procedure" | b"routine" => Self::Code,
            b"user" => Self::Accounts { is_mapping: words.next().as_deref() == Some(b"mapping") },
            object if OBJECTS.contains(&object) => Self::Data,
            _ => Self::Accounts { is_mapping: false },
        }
    }
}

/// Returns the ranges to hide, sorted and disjoint.
fn hidden_ranges(text: &[u8]) -> Vec<Range<usize>> {
    let tokens: Vec<_> = normalize::tokens(text).collect();
    let mut hidden_ranges: Vec<Range<usize>> = Vec::new();
    for statement in tokens.split(|(_, token)| *token == Token::Punctuation(b';')) {
        let mut reader =
            SecretFinder { text, tokens: statement, class: StatementClass::of(statement), hidden_ranges: Vec::new() };
        reader.read();
        hidden_ranges.append(&mut reader.hidden_ranges);
    }
    if let Some(first) = hidden_ranges.first().filter(|_| normalize::ends_within_quotes(text)) {
        // An unbalanced quote, possibly within a password.
        let from = first.start;
        hidden_ranges.clear();
        hidden_ranges.push(from..text.len());
    }
    hidden_ranges.sort_by_key(|range| range.start);
    hidden_ranges.dedup_by(|next, last| {
        let overlaps = next.start <= last.end;
        if overlaps {
            last.end = last.end.max(next.end);
        }
        overlaps
    });
    hidden_ranges
}

/// Finds the secrets of one statement.
struct SecretFinder<'t> {
    text: &'t [u8],
    tokens: &'t [SpannedToken<'t>],
    class: StatementClass,
    hidden_ranges: Vec<Range<usize>>,
}

impl<'t> SecretFinder<'t> {
    fn token(&self, at: usize) -> Option<Token<'t>> {
        self.tokens.get(at).map(|(_, token)| *token)
    }

    fn is_word(&self, at: usize, word: &[u8]) -> bool {
        matches!(self.token(at), Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
    }

    /// Returns a name in lower case, with or without quotes. In statements of class `Data`, a quoted name keeps its case, as in
    /// the normalised text that decides whether the statement is searched.
    fn name(&self, at: usize) -> Option<Vec<u8>> {
        match self.token(at)? {
            Token::Word(word) => Some(word.to_ascii_lowercase()),
            Token::Quoted(name) if self.class == StatementClass::Data => Some(unquoted(name).to_vec()),
            Token::Quoted(name) => Some(unquoted(name).to_ascii_lowercase()),
            _ => None,
        }
    }

    /// Whether a token is a string, in contrast to a number or a parameter.
    fn is_string(&self, at: usize) -> bool {
        let is_string = |range: &Range<usize>| match &self.text[range.clone()] {
            [b'$', digits @ ..] => digits.iter().any(|byte| !byte.is_ascii_digit()),
            [first, ..] => !first.is_ascii_digit() && *first != b'.',
            [] => false,
        };
        self.tokens.get(at).is_some_and(|(range, token)| *token == Token::Literal && is_string(range))
    }

    fn read(&mut self) {
        for at in 0..self.tokens.len() {
            if self.is_string(at) && self.may_contain_password(at) {
                self.hide(at, at);
            }
            let Some(name) = self.name(at) else { continue };
            let is_followed = |mark| self.token(at + 1) == Some(Token::Punctuation(mark));
            if name == b"options" && is_followed(b'(') {
                self.options(at + 2);
            } else if is_pgcrypto_function(&name) && is_followed(b'(') {
                self.call(at + 2);
            } else if names_password(&name) || self.is_connection(at, &name) {
                self.value(at + 1);
            } else if name == b"identified" && self.is_word(at + 1, b"by") {
                self.value(at + 2);
            }
        }
    }

    /// Whether a connection string of a subscription follows. `CONNECTION LIMIT` is an option of roles.
    fn is_connection(&self, at: usize, name: &[u8]) -> bool {
        name == b"connection" && !self.is_word(at + 1, b"limit") && self.class != StatementClass::Data
    }

    /// Whether a string contains a password, or code or a command that may contain one.
    fn may_contain_password(&self, at: usize) -> bool {
        let literal = &self.text[self.tokens[at].0.clone()];
        match self.class {
            StatementClass::Code => mentions_password(literal),
            StatementClass::Accounts { .. } => has_password(literal),
            StatementClass::Data if !mentions_password(literal) && !has_url_with_password(literal) => false,
            StatementClass::Data => {
                let is_suspicious = |name: Vec<u8>| name == b"program" || name.starts_with(b"dblink");
                (0..self.tokens.len()).filter_map(|at| self.name(at)).any(is_suspicious)
            }
        }
    }

    /// Hides the value after a word that announces a password.
    fn value(&mut self, from: usize) {
        let is_strict = matches!(self.class, StatementClass::Accounts { .. });
        let is_assignment = |at: usize| {
            let is_operator = matches!(self.token(at), Some(Token::Operator(b"=" | b":=" | b"=>")));
            is_operator || self.is_word(at, b"to") || self.is_word(at, b"as")
        };
        let at = if is_strict && is_assignment(from) { from + 1 } else { from };
        match self.token(at) {
            None | Some(Token::Punctuation(b',' | b')')) => {}
            Some(Token::Literal) if is_strict || self.is_string(at) => self.strings(at),
            Some(Token::Word(word)) if word.eq_ignore_ascii_case(b"null") => {}
            Some(_) if is_strict => self.hide_rest(at),
            Some(_) => {}
        }
    }

    /// Hides a string and the strings after it, which may continue it. Adjacent characters were meant as a part of it.
    fn strings(&mut self, from: usize) {
        let mut to = from;
        while self.token(to + 1) == Some(Token::Literal) {
            to += 1;
        }
        self.hide(from, to);
        match self.tokens.get(to + 1) {
            Some((_, Token::Punctuation(b',' | b')'))) | None => {}
            Some((range, _)) if range.start == self.tokens[to].0.end => self.hide_rest(to + 1),
            Some(_) => {}
        }
    }

    /// Reads `OPTIONS (...)`, starting after its parenthesis.
    fn options(&mut self, from: usize) {
        for at in from..self.tokens.len() {
            if self.token(at) == Some(Token::Punctuation(b')')) {
                return;
            }
            if !self.is_string(at) {
                continue;
            }
            let name = self.name(at - 1).unwrap_or_default();
            let is_user = [&b"user"[..], b"username"].contains(&&*name);
            let is_unknown = self.class == StatementClass::Accounts { is_mapping: true } && !is_user;
            if is_unknown || is_secret_option(&name) || has_password(&self.text[self.tokens[at].0.clone()]) {
                self.strings(at);
            }
        }
    }

    /// Reads the arguments of a call, starting after its parenthesis.
    fn call(&mut self, from: usize) {
        let mut depth = 1_usize;
        for at in from..self.tokens.len() {
            match self.token(at) {
                Some(Token::Punctuation(b'(')) => depth += 1,
                Some(Token::Punctuation(b')')) if depth == 1 => return,
                Some(Token::Punctuation(b')')) => depth -= 1,
                _ if self.is_string(at) => self.hide(at, at),
                _ => {}
            }
        }
    }

    fn hide(&mut self, from: usize, to: usize) {
        self.hidden_ranges.push(self.tokens[from].0.start..self.tokens[to].0.end);
    }

    fn hide_rest(&mut self, from: usize) {
        self.hidden_ranges.push(self.tokens[from].0.start..self.text.len());
    }
}

fn unquoted(name: &[u8]) -> &[u8] {
    let name = name.strip_prefix(b"\"").unwrap_or(name);
    name.strip_suffix(b"\"").unwrap_or(name)
}

/// Whether a name is that of a password: `password`, `sslpassword`, `db_password`.
fn names_password(name: &[u8]) -> bool {
    name.ends_with(b"password") || name.ends_with(b"passwd") || name.ends_with(b"passphrase")
}

/// Whether the name of an option suggests a secret. Foreign data wrappers choose names freely.
fn is_secret_option(name: &[u8]) -> bool {
    const PARTS: [&[u8]; 7] = [b"pass", b"pwd", b"secret", b"token", b"credential", b"key", b"auth"];
    PARTS.iter().any(|part| memchr::memmem::find(name, part).is_some())
}

fn is_pgcrypto_function(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [b"crypt", b"encrypt", b"decrypt", b"encrypt_iv", b"decrypt_iv", b"hmac"];
    NAMES.contains(&name) || name.starts_with(b"pgp_sym_") || name.starts_with(b"pgp_pub_decrypt")
}

/// Returns the text after each `passw` (any case), including the rest of that word.
fn after_password(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    const WORD: &[u8] = b"passw";
    let is_here = |at: usize| text[at..].get(..WORD.len()).is_some_and(|word| word.eq_ignore_ascii_case(WORD));
    let found = memchr::memchr2_iter(b'w', b'W', text).filter_map(|at| at.checked_sub(WORD.len() - 1));
    found.filter(move |at| is_here(*at)).map(|at| &text[at + WORD.len()..])
}

fn mentions_password(text: &[u8]) -> bool {
    after_password(text).next().is_some()
}

/// Whether a string contains `password=...`, sets a password, or contains a URL with one.
fn has_password(literal: &[u8]) -> bool {
    let has_value = |rest: &[u8]| {
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(rest.len());
        matches!(rest[end..].trim_ascii_start(), [b'=' | b'\\', ..] | [b'\'', _, ..])
    };
    after_password(literal).any(has_value) || has_url_with_password(literal)
}

/// Whether a text contains `://user:password@`.
fn has_url_with_password(text: &[u8]) -> bool {
    memchr::memmem::find_iter(text, b"://").any(|at| {
        let rest = &text[at + 3..];
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let login = rest[..end].iter().rposition(|byte| *byte == b'@').map(|at| &rest[..at]);
        login.is_some_and(|login| login.contains(&b':'))
    })
}

#[cfg(test)]
mod tests;
