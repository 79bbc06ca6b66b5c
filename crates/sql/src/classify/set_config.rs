//! Calls of `set_config`, as far as their text says what is left of them.

use std::borrow::Cow;

use super::{
    Change, ConfigValue, Pins, is_temporary_path, trim_end, trim_start,
    words::{is_blank, is_of_name, skip_token},
};

/// What every server says of itself when it changes (`GUC_REPORT` in all versions from 14 on), so that it need not be read here.
const REPORTED: [&str; 6] =
    ["timezone", "datestyle", "intervalstyle", "client_encoding", "application_name", "standard_conforming_strings"];

/// What a call leaves behind on its server, by the text behind the function's name.
///
/// Nothing, if it is for its transaction alone (`true`), or sets what the server reports. Whatever is harder to read than
/// `('name', value, true)` counts as a setting that nobody knows.
pub(super) fn pins_of_set_config(behind: &[u8]) -> Pins {
    let Some([name, value, is_local]) = arguments(behind) else { return Pins::SETTING };
    let name = literal(name);
    if is_local.eq_ignore_ascii_case(b"true") {
        // One of which the name is not known may be the search path as well.
        let may_be_path = name.is_none_or(|name| name.eq_ignore_ascii_case(b"search_path"));
        return if may_be_path { pins_of_path(value) } else { Pins::default() };
    }
    let is_reported = |name: &[u8]| REPORTED.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name));
    let is_followed = is_local.eq_ignore_ascii_case(b"false") && name.is_some_and(is_reported);
    if is_followed { Pins::default() } else { Pins::SETTING }
}

/// What is created under a search path may be temporary, and outlive it. That of a parameter is taken not to be.
fn pins_of_path(value: &[u8]) -> Pins {
    match literal(value) {
        Some(path) if is_temporary_path(path) => Pins::TEMP,
        None if !is_parameter(value) => Pins::SETTING,
        _ => Pins::default(),
    }
}

/// The text within quotes, if there is nothing else, and no quote in it.
fn literal(argument: &[u8]) -> Option<&[u8]> {
    let inside = argument.strip_prefix(b"'")?.strip_suffix(b"'")?;
    (!inside.contains(&b'\'')).then_some(inside)
}

/// `$1`, or with a cast, `$1::text`.
fn is_parameter(argument: &[u8]) -> bool {
    let is_of_cast = |byte: &u8| is_of_name(*byte) || *byte == b':';
    argument.len() > 1 && argument[0] == b'$' && argument[1].is_ascii_digit() && argument.iter().all(is_of_cast)
}

/// The three arguments of a call. None if there are more or fewer, or comments, or a backslash, behind which a string may end
/// elsewhere.
fn arguments(behind: &[u8]) -> Option<[&[u8]; 3]> {
    let text = trim_start(behind).strip_prefix(b"(")?;
    let (mut found, mut count, mut from, mut at, mut depth) = ([&text[..0]; 3], 0, 0, 0, 0_usize);
    loop {
        let byte = *text.get(at)?;
        let ends = depth == 0 && matches!(byte, b',' | b')');
        if ends {
            *found.get_mut(count)? = trim_end(trim_start(&text[from..at]));
            (count, from) = (count + 1, at + 1);
            if byte == b')' {
                return (count == found.len()).then_some(found);
            }
        }
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.checked_sub(1)?,
            b'-' | b'/' if matches!(text.get(at + 1), Some(b'-' | b'*')) => return None,
            _ => {}
        }
        let next = skip_token(text, at);
        if memchr::memchr(b'\\', &text[at..next]).is_some() {
            return None;
        }
        at = next;
    }
}

/// The effect of a SELECT that consists of such calls alone.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) changes: Vec<Change>,
    pub(super) pins: Pins,
}

/// Reads `SELECT set_config('name', value, false), ...` and the like, where each call is carried out once and as it is written:
/// there is no FROM, no WHERE and no expression around a call. `None` if the statement is anything else.
pub(super) fn calls_that_are_followed(statement: &[u8]) -> Option<Calls> {
    // Where a string with a backslash ends depends on settings.
    if memchr::memchr(b'\\', statement).is_some() {
        return None;
    }
    let mut reader = Reader { tokens: Tokens { text: statement, at: 0 }, ahead: None, calls: Calls::default() };
    reader.word("select").then_some(())?;
    loop {
        reader.item()?;
        match reader.next() {
            None => break,
            Some(Token::Symbol(b',')) => {}
            Some(_) => return None,
        }
    }
    reader.parameters_stand_once(statement)?;
    Some(reader.calls)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A name or a keyword.
    Word(&'a [u8]),
    Quoted,
    String(Cow<'a, [u8]>),
    Number,
    Parameter(usize),
    Symbol(u8),
}

struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
            if is_blank(rest[0]) {
                self.at += 1;
            } else if rest.starts_with(b"--") || rest.starts_with(b"/*") {
                self.at = skip_token(self.text, self.at);
            } else {
                break;
            }
        }
        let start = self.at;
        self.at = skip_token(self.text, start);
        while self.text[start] == b'\'' && self.text.get(self.at) == Some(&b'\'') {
            // Two quotes within a string are one.
            self.at = skip_token(self.text, self.at);
        }
        let token = &self.text[start..self.at];
        Some(match token[0] {
            b'\'' => string(token).map_or(Token::Symbol(b'\''), Token::String),
            b'"' => Token::Quoted,
            b'$' if token.len() == 1 => self.parameter(),
            first if first.is_ascii_digit() => {
                self.at += self.text[self.at..].iter().take_while(|byte| is_of_name(**byte)).count();
                Token::Number
            }
            first if is_of_name(first) && first != b'$' => Token::Word(token),
            symbol => Token::Symbol(symbol),
        })
    }
}

impl<'a> Tokens<'a> {
    fn parameter(&mut self) -> Token<'a> {
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = str::from_utf8(&self.text[self.at..self.at + digits]).ok().and_then(|digits| digits.parse().ok());
        self.at += digits;
        number.map_or(Token::Symbol(b'$'), Token::Parameter)
    }
}

/// The text of a string token.
fn string(token: &[u8]) -> Option<Cow<'_, [u8]>> {
    let inside = token.strip_prefix(b"'")?.strip_suffix(b"'")?;
    if !inside.contains(&b'\'') {
        return Some(Cow::Borrowed(inside));
    }
    let mut text = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter();
    while let Some(byte) = bytes.next() {
        text.push(*byte);
        if *byte == b'\'' {
            bytes.next();
        }
    }
    Some(Cow::Owned(text))
}

struct Reader<'a> {
    tokens: Tokens<'a>,
    ahead: Option<Token<'a>>,
    calls: Calls,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        self.ahead.take().or_else(|| self.tokens.next())
    }

    fn peek(&mut self) -> Option<&Token<'a>> {
        if self.ahead.is_none() {
            self.ahead = self.tokens.next();
        }
        self.ahead.as_ref()
    }

    fn symbol(&mut self, symbol: u8) -> bool {
        let is = self.peek() == Some(&Token::Symbol(symbol));
        if is {
            self.ahead = None;
        }
        is
    }

    fn word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Word(next)) if next.eq_ignore_ascii_case(word.as_bytes()));
        if is {
            self.ahead = None;
        }
        is
    }

    /// A call or a constant, with a cast and a name for its column or without. A word that would begin a FROM or the like is
    /// taken for such a name, but what follows it then is no comma.
    fn item(&mut self) -> Option<()> {
        if !matches!(self.peek(), Some(Token::String(_) | Token::Number | Token::Parameter(_))) {
            self.call()?;
        } else {
            self.next();
        }
        self.cast()?;
        if self.word("as") || matches!(self.peek(), Some(Token::Word(_) | Token::Quoted)) {
            matches!(self.next()?, Token::Word(_) | Token::Quoted).then_some(())?;
        }
        Some(())
    }

    /// `::name`, if it is there; the name.
    fn cast(&mut self) -> Option<Option<&'a [u8]>> {
        if !self.symbol(b':') {
            return Some(None);
        }
        self.symbol(b':').then_some(())?;
        match self.next()? {
            Token::Word(name) => Some(Some(name)),
            _ => None,
        }
    }

    fn call(&mut self) -> Option<()> {
        if self.word("pg_catalog") {
            self.symbol(b'.').then_some(())?;
        }
        if self.word("current_setting") {
            self.symbol(b'(').then_some(())?;
            matches!(self.next()?, Token::String(_)).then_some(())?;
            if self.symbol(b',') {
                (self.word("true") || self.word("false")).then_some(())?;
            }
            return self.symbol(b')').then_some(());
        }
        (self.word("set_config") && self.symbol(b'(')).then_some(())?;
        let Token::String(name) = self.next()? else { return None };
        self.symbol(b',').then_some(())?;
        let value = self.value()?;
        self.symbol(b',').then_some(())?;
        let is_local = self.word("true");
        (is_local || self.word("false")).then_some(())?;
        self.symbol(b')').then_some(())?;
        self.note(str::from_utf8(&name).ok()?, value, is_local)
    }

    fn value(&mut self) -> Option<ConfigValue> {
        let token = self.next()?;
        let cast = self.cast()?;
        let is_text = |name: &[u8]| name.eq_ignore_ascii_case(b"text") || name.eq_ignore_ascii_case(b"varchar");
        cast.is_none_or(is_text).then_some(())?;
        match token {
            Token::String(text) => Some(ConfigValue::Text(str::from_utf8(&text).ok()?.to_owned())),
            Token::Parameter(number) => Some(ConfigValue::Parameter { number, is_cast: cast.is_some() }),
            _ => None,
        }
    }

    fn note(&mut self, name: &str, value: ConfigValue, is_local: bool) -> Option<()> {
        // The first makes the session another user's; the others last for the transaction only, or for the next random number.
        const OF_USER: &str = "session_authorization";
        const OF_TRANSACTION: [&str; 4] =
            ["transaction_isolation", "transaction_read_only", "transaction_deferrable", "seed"];
        let is = |other: &&str| other.eq_ignore_ascii_case(name);
        if is(&OF_USER) {
            return None;
        }
        match &value {
            ConfigValue::Text(path) if is(&"search_path") && is_temporary_path(path.as_bytes()) => {
                self.calls.pins.add(Pins::TEMP);
            }
            _ if is_local || OF_TRANSACTION.iter().any(is) => {}
            _ => self.calls.changes.push(Change::SetConfig { name: name.to_owned(), value }),
        }
        Some(())
    }

    /// A parameter that stands elsewhere as well may have another type there, by which its value is read.
    fn parameters_stand_once(&self, statement: &[u8]) -> Option<()> {
        let mut seen = Vec::new();
        for token in (Tokens { text: statement, at: 0 }) {
            if let Token::Parameter(number) = token {
                (!seen.contains(&number)).then_some(())?;
                seen.push(number);
            }
        }
        (seen.len() <= CALLS_MAX && self.calls.changes.len() <= CALLS_MAX).then_some(())
    }
}

/// More in one statement are not followed.
const CALLS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(call: &str) -> String {
        let at = call.find("set_config").map_or(0, |at| at + "set_config".len());
        pins_of_set_config(&call.as_bytes()[at..]).to_string()
    }

    #[test]
    fn what_ends_with_its_transaction_leaves_nothing() {
        for call in [
            "set_config('app.user', 'ann', true)",
            "set_config ( 'app.user' , $1 , TRUE )",
            "set_config('request.jwt.claims', json_build_object('a', array[1, 2], 'b', ')')::text, true), 1",
            "set_config('search_path', '\"public\", extensions', true)",
            "set_config('search_path', $2::text, true)",
            "set_config($1, $2, true)",
            "set_config($1::text, 'x, y', true)",
            "set_config('a.b', $a$ it's (, $a$, true)",
            "set_config('role', $1, true), set_config('request.jwt.claims', $2, true)",
        ] {
            assert_eq!(pins(call), "", "{call}");
        }
    }

    #[test]
    fn what_the_server_reports_is_followed() {
        for call in ["set_config('TimeZone', 'UTC', false)", "set_config('client_encoding', $1, FALSE)"] {
            assert_eq!(pins(call), "", "{call}");
        }
    }

    #[test]
    fn what_stays_or_is_hard_to_read_keeps_its_server() {
        for call in [
            "set_config('work_mem', '7MB', false)",
            "set_config('work_mem', '7MB', $1)",
            "set_config('work_mem', '7MB', not true)",
            "set_config('work_mem', '7MB', is_local => false)",
            "set_config($1, $2, false)",
            "set_config('TimeZone' || '', 'UTC', false)",
            "set_config('a.b', 'c', /* false */ true)",
            "set_config('a.b', 'c' -- ', true)\n, false)",
            "set_config('a.b', E'\\', true)', false)",
            "set_config(''a.b'', ''c'', true)",
            "set_config('search_path', current_setting('a.b'), true)",
            "set_config('a.b', 'c', false, true)",
            "set_config('a.b', true)",
            "set_config('a.b', ']', [true)",
            "set_config('a.b', 'c', true",
            "set_config",
            "set_config\"('a.b', 'c', true)",
        ] {
            assert_eq!(pins(call), "setting", "{call}");
        }
        assert_eq!(pins("set_config('search_path', 'pg_temp, public', true)"), "temp");
        assert_eq!(pins("set_config($1, 'pg_temp', true)"), "temp");
    }

    fn followed(statement: &str) -> Option<String> {
        let calls = calls_that_are_followed(statement.as_bytes())?;
        let change = |change: &Change| match change {
            Change::SetConfig { name, value: ConfigValue::Text(text) } => format!("{name}={text}"),
            Change::SetConfig { name, value: ConfigValue::Parameter { number, is_cast } } => {
                format!("{name}=${number}{}", if *is_cast { "::" } else { "" })
            }
            other => format!("{other:?}"),
        };
        let pins = Some(calls.pins.to_string()).filter(|pins| !pins.is_empty());
        Some(calls.changes.iter().map(change).chain(pins).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn calls_in_a_select_of_their_own_are_followed() {
        for (sql, expected) in [
            ("SELECT set_config('jit', 'off', false)", "jit=off"),
            ("\n SELECT\n current_setting('jit') AS cur,\n set_config('jit', 'off', false) AS new\n", "jit=off"),
            ("select set_config('jit', $1, false)", "jit=$1"),
            ("select pg_catalog.set_config('a.b', $2::text, FALSE)::text, $1 x", "a.b=$2::"),
            ("/* app */ select set_config('a.b', 'it''s', false) -- here", "a.b=it's"),
            (
                "select set_config('a', '', false), set_config('b', 'c', true), set_config('d', 'e', false) \"x\"",
                "a= d=e",
            ),
            ("select set_config('search_path', 'pg_temp', false)", "temp"),
            ("select set_config('transaction_isolation', 'serializable', false)", ""),
            ("select current_setting('a', true), 1, 'two'", ""),
        ] {
            assert_eq!(followed(sql).as_deref(), Some(expected), "{sql}");
        }
        for sql in [
            "select set_config('a', 'b', false) from t",
            "select set_config('a', 'b', false) where false",
            "select set_config('a', 'b', false) limit 0",
            "select set_config('a', 'b', false) into t",
            "select set_config('a', 'b', false) union select ''",
            "select case when true then set_config('a', 'b', false) end",
            "select distinct set_config('a', 'b', false)",
            "select set_config('a', 'b', false) || 'c'",
            "select set_config('a', E'b', false)",
            "select set_config('a', 'b'\n'c', false)",
            "select set_config('a', 'b' || 'c', false)",
            "select set_config('a', null, false)",
            "select set_config($1, 'b', false)",
            "select set_config('a', $1, $2)",
            "select set_config('a', $1::int::text, false)",
            "select set_config('a', $1, false), $1",
            "select set_config('a', 'b', false), f()",
            "select set_config('session_authorization', 'b', false)",
            "select set_config('a', 'b', false),",
            "select set_config('a', 'b', false",
            "select other.set_config('a', 'b', false)",
            "with a as (select 1) select set_config('a', 'b', false)",
            "explain select set_config('a', 'b', false)",
            "select set_config('a', 'b\\', false)",
            "values (set_config('a', 'b', false))",
        ] {
            assert_eq!(followed(sql), None, "{sql}");
        }
    }
}
