//! Passwords in statements, which no record has, however much of a statement is written down.
//!
//! Hidden are:
//! - what stands behind `PASSWORD`, `CONNECTION` or `IDENTIFIED BY`: strings of every form, also one that goes on in the next
//!   line. In a statement about roles, servers, subscriptions or settings, or with an unknown command, also anything that
//!   should have been a string; nobody knows where that ends, so the rest of the text is hidden with it,
//! - in `OPTIONS (...)`, strings behind names such as `sslpassword` or `secret_key`; of a user mapping, all but the user,
//! - in these statements, in `COPY ... PROGRAM` and in calls of dblink, a string that has a connection's password
//!   (`'host=a password=b'`, `'scheme://user:password@host'`) or sets one (`'alter role a password ''b'''`),
//! - the body of `DO`, of a function or of a procedure that names a password: it may put one together from any of its strings,
//! - the strings in a call of pgcrypto, any of which may be a key.
//!
//! Other strings are the data of the application; `journal.statement` decides about them.

use std::{borrow::Cow, ops::Range};

use crate::normalize::{self, Token};

const HIDDEN: &[u8] = b"***";

/// The text with `***` in place of each password, and of what may be a part of one.
#[must_use]
pub fn without_passwords(text: &[u8]) -> Cow<'_, [u8]> {
    let places = places(text);
    if places.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut out, mut from) = (Vec::with_capacity(text.len()), 0);
    for place in places {
        out.extend_from_slice(&text[from..place.start]);
        out.extend_from_slice(HIDDEN);
        from = place.end;
    }
    out.extend_from_slice(&text[from..]);
    Cow::Owned(out)
}

/// Whether there is one, which an error may quote. Of a text that is cut, one may have stood behind the cut.
pub fn sets_password(text: &[u8], is_cut: bool) -> bool {
    matches!(without_passwords(text), Cow::Owned(_)) || (is_cut && !is_common(normalize::first_word(text)))
}

/// Whether there may be something to hide in statements of this shape.
pub(crate) fn may_hide(shape: &[u8]) -> bool {
    // What a statement has that is common and has something to hide nevertheless.
    let names = |word: &[u8]| memchr::memmem::find(shape, word).is_some();
    let is_one = memchr::memchr(b';', shape).is_none();
    !is_one
        || !is_common(normalize::first_word(shape))
        || [&b"passw"[..], b"dblink", b"program", b"crypt", b"pgp_", b"hmac"].into_iter().any(names)
}

/// First words of statements that have no place for the password of a role or a server; and constants, of which a shape does
/// not tell.
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

/// What `CREATE` and `ALTER` make that has no password either.
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

/// A statement, as far as it decides what in it is hidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// It reads or writes data, or makes what holds data.
    Data,
    /// It runs or makes code.
    Code,
    /// It is about roles, servers, subscriptions or settings, or its command is unknown.
    Accounts {
        /// It is about a user mapping, whose options are secrets unless known otherwise.
        is_mapping: bool,
    },
}

type Placed<'a> = (Range<usize>, Token<'a>);

impl Kind {
    fn of(tokens: &[Placed<'_>]) -> Self {
        // As far as `first_word` looks.
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

/// Where something is to be hidden, in the order of the text and apart from each other.
fn places(text: &[u8]) -> Vec<Range<usize>> {
    let tokens: Vec<_> = normalize::tokens(text).collect();
    let mut places: Vec<Range<usize>> = Vec::new();
    for statement in tokens.split(|(_, token)| *token == Token::Mark(b';')) {
        let mut reader = Reader { text, tokens: statement, kind: Kind::of(statement), places: Vec::new() };
        reader.read();
        places.append(&mut reader.places);
    }
    if let Some(first) = places.first().filter(|_| normalize::ends_within_quotes(text)) {
        // There is a quote too many, perhaps within a password.
        let from = first.start;
        places.clear();
        places.push(from..text.len());
    }
    places.sort_by_key(|place| place.start);
    places.dedup_by(|next, last| {
        let overlaps = next.start <= last.end;
        if overlaps {
            last.end = last.end.max(next.end);
        }
        overlaps
    });
    places
}

/// One statement.
struct Reader<'t> {
    text: &'t [u8],
    tokens: &'t [Placed<'t>],
    kind: Kind,
    places: Vec<Range<usize>>,
}

impl<'t> Reader<'t> {
    fn token(&self, at: usize) -> Option<Token<'t>> {
        self.tokens.get(at).map(|(_, token)| *token)
    }

    fn is_word(&self, at: usize, word: &[u8]) -> bool {
        matches!(self.token(at), Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
    }

    /// A name in lower case, with or without quotes. In quotes it keeps its case in the shape, by which common statements are
    /// told from those that are looked at.
    fn name(&self, at: usize) -> Option<Vec<u8>> {
        match self.token(at)? {
            Token::Word(word) => Some(word.to_ascii_lowercase()),
            Token::Quoted(name) if self.kind == Kind::Data => Some(unquoted(name).to_vec()),
            Token::Quoted(name) => Some(unquoted(name).to_ascii_lowercase()),
            _ => None,
        }
    }

    /// A string in one of its forms, and neither a number nor a parameter.
    fn is_string(&self, at: usize) -> bool {
        let is_string = |place: &Range<usize>| match &self.text[place.clone()] {
            [b'$', digits @ ..] => digits.iter().any(|byte| !byte.is_ascii_digit()),
            [first, ..] => !first.is_ascii_digit() && *first != b'.',
            [] => false,
        };
        self.tokens.get(at).is_some_and(|(place, token)| *token == Token::Literal && is_string(place))
    }

    fn read(&mut self) {
        for at in 0..self.tokens.len() {
            if self.is_string(at) && self.tells_password(at) {
                self.hide(at, at);
            }
            let Some(name) = self.name(at) else { continue };
            let is_followed = |mark| self.token(at + 1) == Some(Token::Mark(mark));
            if name == b"options" && is_followed(b'(') {
                self.options(at + 2);
            } else if is_of_pgcrypto(&name) && is_followed(b'(') {
                self.call(at + 2);
            } else if names_password(&name) || self.is_connection(at, &name) {
                self.value(at + 1);
            } else if name == b"identified" && self.is_word(at + 1, b"by") {
                self.value(at + 2);
            }
        }
    }

    /// Whether a connection string follows, of a subscription; `CONNECTION LIMIT` is an option of roles.
    fn is_connection(&self, at: usize, name: &[u8]) -> bool {
        name == b"connection" && !self.is_word(at + 1, b"limit") && self.kind != Kind::Data
    }

    /// Whether a string has a password in it, or may have one, as code or as a command.
    fn tells_password(&self, at: usize) -> bool {
        let literal = &self.text[self.tokens[at].0.clone()];
        match self.kind {
            Kind::Code => names_anywhere(literal),
            Kind::Accounts { .. } => has_password(literal),
            Kind::Data if !names_anywhere(literal) && !has_url_with_password(literal) => false,
            Kind::Data => {
                let is_telling = |name: Vec<u8>| name == b"program" || name.starts_with(b"dblink");
                (0..self.tokens.len()).filter_map(|at| self.name(at)).any(is_telling)
            }
        }
    }

    /// Hides what stands behind a word that announces a password.
    fn value(&mut self, from: usize) {
        let is_strict = matches!(self.kind, Kind::Accounts { .. });
        let is_joint = |at: usize| {
            let is_operator = matches!(self.token(at), Some(Token::Operator(b"=" | b":=" | b"=>")));
            is_operator || self.is_word(at, b"to") || self.is_word(at, b"as")
        };
        let at = if is_strict && is_joint(from) { from + 1 } else { from };
        match self.token(at) {
            None | Some(Token::Mark(b',' | b')')) => {}
            Some(Token::Literal) if is_strict || self.is_string(at) => self.strings(at),
            Some(Token::Word(word)) if word.eq_ignore_ascii_case(b"null") => {}
            Some(_) if is_strict => self.hide_rest(at),
            Some(_) => {}
        }
    }

    /// Hides a string, and those behind it: it may go on in the next line. What clings to it was meant to be a part of it.
    fn strings(&mut self, from: usize) {
        let mut to = from;
        while self.token(to + 1) == Some(Token::Literal) {
            to += 1;
        }
        self.hide(from, to);
        match self.tokens.get(to + 1) {
            Some((_, Token::Mark(b',' | b')'))) | None => {}
            Some((place, _)) if place.start == self.tokens[to].0.end => self.hide_rest(to + 1),
            Some(_) => {}
        }
    }

    /// `OPTIONS (...)`, from behind its bracket on.
    fn options(&mut self, from: usize) {
        for at in from..self.tokens.len() {
            if self.token(at) == Some(Token::Mark(b')')) {
                return;
            }
            if !self.is_string(at) {
                continue;
            }
            let name = self.name(at - 1).unwrap_or_default();
            let is_user = [&b"user"[..], b"username"].contains(&&*name);
            let is_unknown = self.kind == Kind::Accounts { is_mapping: true } && !is_user;
            if is_unknown || is_secret_option(&name) || has_password(&self.text[self.tokens[at].0.clone()]) {
                self.strings(at);
            }
        }
    }

    /// The arguments of a call, from behind its bracket on.
    fn call(&mut self, from: usize) {
        let mut depth = 1_usize;
        for at in from..self.tokens.len() {
            match self.token(at) {
                Some(Token::Mark(b'(')) => depth += 1,
                Some(Token::Mark(b')')) if depth == 1 => return,
                Some(Token::Mark(b')')) => depth -= 1,
                _ if self.is_string(at) => self.hide(at, at),
                _ => {}
            }
        }
    }

    fn hide(&mut self, from: usize, to: usize) {
        self.places.push(self.tokens[from].0.start..self.tokens[to].0.end);
    }

    fn hide_rest(&mut self, from: usize) {
        self.places.push(self.tokens[from].0.start..self.text.len());
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

/// Whether the value of an option is a secret, by its name: wrappers of foreign data call theirs what they like.
fn is_secret_option(name: &[u8]) -> bool {
    const PARTS: [&[u8]; 7] = [b"pass", b"pwd", b"secret", b"token", b"credential", b"key", b"auth"];
    PARTS.iter().any(|part| memchr::memmem::find(name, part).is_some())
}

fn is_of_pgcrypto(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [b"crypt", b"encrypt", b"decrypt", b"encrypt_iv", b"decrypt_iv", b"hmac"];
    NAMES.contains(&name) || name.starts_with(b"pgp_sym_") || name.starts_with(b"pgp_pub_decrypt")
}

/// What stands behind each `passw`, in whatever case, the rest of that word included.
fn behind_password(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    const WORD: &[u8] = b"passw";
    let is_here = |at: usize| text[at..].get(..WORD.len()).is_some_and(|word| word.eq_ignore_ascii_case(WORD));
    let found = memchr::memchr2_iter(b'w', b'W', text).filter_map(|at| at.checked_sub(WORD.len() - 1));
    found.filter(move |at| is_here(*at)).map(|at| &text[at + WORD.len()..])
}

fn names_anywhere(text: &[u8]) -> bool {
    behind_password(text).next().is_some()
}

/// Whether a string has `password=...`, sets a password, or has a URL with one.
fn has_password(literal: &[u8]) -> bool {
    let has_value = |rest: &[u8]| {
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(rest.len());
        matches!(rest[end..].trim_ascii_start(), [b'=' | b'\\', ..] | [b'\'', _, ..])
    };
    behind_password(literal).any(has_value) || has_url_with_password(literal)
}

/// Whether a text has `://user:password@`.
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
