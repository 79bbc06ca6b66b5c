//! Effects of calls of `set_config`.

use std::borrow::Cow;

use crate::lexical::{is_blank, is_name_byte};

use super::{ConfigValue, Pins, SessionChange, is_temporary_path, lexer::skip_token, trim_end, trim_start};

/// Parameters that every server version from 14 on reports (`GUC_REPORT`). Their new values need not be parsed.
const REPORTED: [&str; 6] =
    ["timezone", "datestyle", "intervalstyle", "client_encoding", "application_name", "standard_conforming_strings"];

/// Effects of one call, from the text after the function name.
///
/// Empty if the call is local to its transaction (`true`), or sets a reported parameter. Anything more complex than
/// `('name', value, true)` counts as an unknown setting.
///
pub(super) fn pins_of_set_config(after_name: &[u8]) -> Pins {
    let Some([name, value, is_local]) = arguments(after_name) else { return Pins::SETTING };
    let name = literal(name);
    if is_local.eq_ignore_ascii_case(b"true") {
        // An unknown name may be that of the search path.
        let may_be_path = name.is_none_or(|name| name.eq_ignore_ascii_case(b"search_path"));
        return if may_be_path { pins_of_path(value) } else { Pins::default() };
    }
    let is_reported = |name: &[u8]| REPORTED.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name));
    let is_tracked = is_local.eq_ignore_ascii_case(b"false") && name.is_some_and(is_reported);
    if is_tracked { Pins::default() } else { Pins::SETTING }
}

/// Objects created under a search path may be temporary and outlive the transaction. A parameter as value counts as an ordinary
/// path.
fn pins_of_path(value: &[u8]) -> Pins {
    match literal(value) {
        Some(path) if is_temporary_path(path) => Pins::TEMP,
        None if !is_parameter(value) => Pins::SETTING,
        _ => Pins::default(),
    }
}

/// Returns the text of a string literal without escapes, if the argument is nothing else.
fn literal(argument: &[u8]) -> Option<&[u8]> {
    let inside = argument.strip_prefix(b"'")?.strip_suffix(b"'")?;
    (!inside.contains(&b'\'')).then_some(inside)
}

/// `$1`, possibly with a cast: `$1::text`.
fn is_parameter(argument: &[u8]) -> bool {
    let is_of_cast = |byte: &u8| is_name_byte(*byte) || *byte == b':';
    argument.len() > 1 && argument[0] == b'$' && argument[1].is_ascii_digit() && argument.iter().all(is_of_cast)
}

/// Returns the three arguments of a call. `None` if the count differs, or if the text contains a comment or a backslash, which
/// may change where a string ends.
fn arguments(after_name: &[u8]) -> Option<[&[u8]; 3]> {
    let text = trim_start(after_name).strip_prefix(b"(")?;
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

/// Effects of a SELECT that consists of such calls.
#[derive(Debug, Default)]
pub(super) struct SetConfigCalls {
    pub(super) changes: Vec<SessionChange>,
    pub(super) pins: Pins,
}

/// Reads `SELECT set_config('name', value, false), ...` where each call runs exactly once with the written arguments: no FROM, no
/// WHERE, no expression around a call. `None` for any other statement. A text of comments alone has no calls.
pub(super) fn read_set_config_calls(statement: &[u8]) -> Option<SetConfigCalls> {
    // The end of a string with a backslash depends on settings.
    if memchr::memchr(b'\\', statement).is_some() {
        return None;
    }
    let mut reader =
        CallParser { tokens: CallLexer { text: statement, at: 0 }, ahead: None, calls: SetConfigCalls::default() };
    if reader.peek().is_none() {
        return Some(reader.calls);
    }
    reader.word("select").then_some(())?;
    loop {
        reader.item()?;
        match reader.next() {
            None => break,
            Some(CallToken::Symbol(b',')) => {}
            Some(_) => return None,
        }
    }
    reader.parameters_stand_once(statement)?;
    Some(reader.calls)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CallToken<'a> {
    /// A name or a keyword.
    Word(&'a [u8]),
    Quoted,
    String(Cow<'a, [u8]>),
    Number,
    Parameter(usize),
    Symbol(u8),
}

struct CallLexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Iterator for CallLexer<'a> {
    type Item = CallToken<'a>;

    fn next(&mut self) -> Option<CallToken<'a>> {
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
            // A doubled quote within a string.
            self.at = skip_token(self.text, self.at);
        }
        let token = &self.text[start..self.at];
        Some(match token[0] {
            b'\'' => string(token).map_or(CallToken::Symbol(b'\''), CallToken::String),
            b'"' => CallToken::Quoted,
            b'$' if token.len() == 1 => self.parameter(),
            first if first.is_ascii_digit() => {
                self.at += self.text[self.at..].iter().take_while(|byte| is_name_byte(**byte)).count();
                CallToken::Number
            }
            first if is_name_byte(first) && first != b'$' => CallToken::Word(token),
            symbol => CallToken::Symbol(symbol),
        })
    }
}

impl<'a> CallLexer<'a> {
    fn parameter(&mut self) -> CallToken<'a> {
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = str::from_utf8(&self.text[self.at..self.at + digits]).ok().and_then(|digits| digits.parse().ok());
        self.at += digits;
        number.map_or(CallToken::Symbol(b'$'), CallToken::Parameter)
    }
}

/// Returns the text of a string token.
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

struct CallParser<'a> {
    tokens: CallLexer<'a>,
    ahead: Option<CallToken<'a>>,
    calls: SetConfigCalls,
}

impl<'a> CallParser<'a> {
    fn next(&mut self) -> Option<CallToken<'a>> {
        self.ahead.take().or_else(|| self.tokens.next())
    }

    fn peek(&mut self) -> Option<&CallToken<'a>> {
        if self.ahead.is_none() {
            self.ahead = self.tokens.next();
        }
        self.ahead.as_ref()
    }

    fn symbol(&mut self, symbol: u8) -> bool {
        let is = self.peek() == Some(&CallToken::Symbol(symbol));
        if is {
            self.ahead = None;
        }
        is
    }

    fn word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(CallToken::Word(next)) if next.eq_ignore_ascii_case(word.as_bytes()));
        if is {
            self.ahead = None;
        }
        is
    }

    /// Reads a call or a constant, with an optional cast and column alias. A keyword such as FROM is read as an alias, but no
    /// comma follows it.
    fn item(&mut self) -> Option<()> {
        if !matches!(self.peek(), Some(CallToken::String(_) | CallToken::Number | CallToken::Parameter(_))) {
            self.call()?;
        } else {
            self.next();
        }
        self.cast()?;
        if self.word("as") || matches!(self.peek(), Some(CallToken::Word(_) | CallToken::Quoted)) {
            matches!(self.next()?, CallToken::Word(_) | CallToken::Quoted).then_some(())?;
        }
        Some(())
    }

    /// Reads an optional `::name`. Returns the name.
    fn cast(&mut self) -> Option<Option<&'a [u8]>> {
        if !self.symbol(b':') {
            return Some(None);
        }
        self.symbol(b':').then_some(())?;
        match self.next()? {
            CallToken::Word(name) => Some(Some(name)),
            _ => None,
        }
    }

    fn call(&mut self) -> Option<()> {
        if self.word("pg_catalog") {
            self.symbol(b'.').then_some(())?;
        }
        if self.word("current_setting") {
            self.symbol(b'(').then_some(())?;
            matches!(self.next()?, CallToken::String(_)).then_some(())?;
            if self.symbol(b',') {
                (self.word("true") || self.word("false")).then_some(())?;
            }
            return self.symbol(b')').then_some(());
        }
        (self.word("set_config") && self.symbol(b'(')).then_some(())?;
        let CallToken::String(name) = self.next()? else { return None };
        self.symbol(b',').then_some(())?;
        let value = self.value()?;
        self.symbol(b',').then_some(())?;
        let is_local = self.word("true");
        (is_local || self.word("false")).then_some(())?;
        self.symbol(b')').then_some(())?;
        self.record(str::from_utf8(&name).ok()?, value, is_local)
    }

    fn value(&mut self) -> Option<ConfigValue> {
        let token = self.next()?;
        let cast = self.cast()?;
        let is_text = |name: &[u8]| name.eq_ignore_ascii_case(b"text") || name.eq_ignore_ascii_case(b"varchar");
        cast.is_none_or(is_text).then_some(())?;
        match token {
            CallToken::String(text) => Some(ConfigValue::Text(str::from_utf8(&text).ok()?.to_owned())),
            CallToken::Parameter(number) => Some(ConfigValue::Parameter { number, is_cast: cast.is_some() }),
            _ => None,
        }
    }

    fn record(&mut self, name: &str, value: ConfigValue, is_local: bool) -> Option<()> {
        // `session_authorization` changes the session user. The others last for one transaction, or one random number.
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
            _ => self.calls.changes.push(SessionChange::SetConfig { name: name.to_owned(), value }),
        }
        Some(())
    }

    /// A parameter that occurs twice may have another type elsewhere, which affects how its value is read.
    fn parameters_stand_once(&self, statement: &[u8]) -> Option<()> {
        let mut seen = Vec::new();
        for token in (CallLexer { text: statement, at: 0 }) {
            if let CallToken::Parameter(number) = token {
                (!seen.contains(&number)).then_some(())?;
                seen.push(number);
            }
        }
        (seen.len() <= CALLS_MAX && self.calls.changes.len() <= CALLS_MAX).then_some(())
    }
}

/// Limit of parameters and calls per statement.
const CALLS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(call: &str) -> String {
        let at = call.find("set_config").map_or(0, |at| at + "set_config".len());
        pins_of_set_config(&call.as_bytes()[at..]).to_string()
    }

    #[test]
    fn transaction_local_calls_have_no_effects() {
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
    fn reported_parameters_do_not_pin() {
        for call in ["set_config('TimeZone', 'UTC', false)", "set_config('client_encoding', $1, FALSE)"] {
            assert_eq!(pins(call), "", "{call}");
        }
    }

    #[test]
    fn other_calls_pin() {
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

    fn tracked(statement: &str) -> Option<String> {
        let calls = read_set_config_calls(statement.as_bytes())?;
        let change = |change: &SessionChange| match change {
            SessionChange::SetConfig { name, value: ConfigValue::Text(text) } => format!("{name}={text}"),
            SessionChange::SetConfig { name, value: ConfigValue::Parameter { number, is_cast } } => {
                format!("{name}=${number}{}", if *is_cast { "::" } else { "" })
            }
            other => format!("{other:?}"),
        };
        let pins = Some(calls.pins.to_string()).filter(|pins| !pins.is_empty());
        Some(calls.changes.iter().map(change).chain(pins).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn select_of_set_config_calls_is_tracked() {
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
            ("/* select set_config('a', 'b', false) */", ""),
            ("/*  set_config('a.b', $1::texta /* b */ ", ""),
        ] {
            assert_eq!(tracked(sql).as_deref(), Some(expected), "{sql}");
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
            assert_eq!(tracked(sql), None, "{sql}");
        }
    }
}
