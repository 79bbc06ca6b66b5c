//! Effects of SET in all its forms.

use crate::lexical::is_blank;

use super::{Pins, SessionChange, StatementEffects, lexer::WordLexer, record_change};

/// The parameter that `TIME ZONE` sets.
pub(super) const TIME_ZONE: &str = "timezone";

pub(super) fn classify_set(words: &mut WordLexer<'_>, single: bool, effects: &mut StatementEffects) {
    // An ambiguous name may be that of any parameter.
    let Some(mut name) = words.parameter() else { return effects.pins.add(Pins::SETTING) };
    if name == "session" {
        match words.parameter() {
            Some(next) if next == "characteristics" => return classify_set_characteristics(words, single, effects),
            Some(next) if next == "authorization" => {
                return effects.pins.add(if words.is_rest("default") { Pins::USER } else { Pins::SETTING });
            }
            Some(next) => name = next,
            None => return effects.pins.add(Pins::SETTING),
        }
    }
    match name.as_str() {
        "local" => classify_set_local(words, effects),
        // These last for one transaction, or one random number.
        "transaction" | "constraints" => {}
        "transaction_isolation" | "transaction_read_only" | "transaction_deferrable" | "seed" => {}
        // The server reports both, under other names.
        "names" if ["", "default"].iter().any(|own| words.is_rest(own)) => {
            record_change(SessionChange::Reset("client_encoding".to_owned()), single, effects);
        }
        "names" => record_reported("client_encoding", single, effects),
        "time" if words.next().is_some() && ["default", "local"].iter().any(|own| words.is_rest(own)) => {
            record_change(SessionChange::Reset(TIME_ZONE.to_owned()), single, effects);
        }
        "time" => record_reported(TIME_ZONE, single, effects),
        // The standard's form of `SET search_path`, with a string.
        "schema" => {
            let value = words.rest();
            if makes_temporary(&name, value) {
                return effects.pins.add(Pins::TEMP);
            }
            let change = SessionChange::Set { name: "search_path".to_owned(), value: portable_value(value) };
            record_change(change, single, effects);
        }
        "xml" => match (words.next().as_deref(), words.next()) {
            (Some("option"), value @ Some(_)) if words.is_rest("") => {
                record_change(SessionChange::Set { name: "xmloption".to_owned(), value }, single, effects);
            }
            _ => effects.pins.add(Pins::SETTING),
        },
        // The server reports it, but SET cannot apply it on another server.
        "session_authorization" => match words.value_of(&name) {
            Some(value) if value.eq_ignore_ascii_case(b"default") => effects.pins.add(Pins::USER),
            _ => effects.pins.add(Pins::SETTING),
        },
        _ => match words.value_of(&name) {
            Some(value) if makes_temporary(&name, value) => effects.pins.add(Pins::TEMP),
            Some(value) if value.eq_ignore_ascii_case(b"default") => {
                record_change(SessionChange::Reset(name), single, effects);
            }
            Some(value) => record_change(SessionChange::Set { name, value: portable_value(value) }, single, effects),
            None => effects.pins.add(Pins::SETTING),
        },
    }
}

/// `SET SESSION CHARACTERISTICS AS TRANSACTION ...` sets the `default_transaction_*` parameters. One mode per statement is
/// tracked, as drivers send it.
fn classify_set_characteristics(words: &mut WordLexer<'_>, single: bool, effects: &mut StatementEffects) {
    const WORDS_MAX: usize = 6;
    let modes = words.by_ref().take(WORDS_MAX).collect::<Vec<_>>().join(" ");
    let is_whole = words.next_or_symbol().is_none();
    let mode = modes.strip_prefix("as transaction ").filter(|_| is_whole);
    match mode.and_then(default_of_mode) {
        Some((name, value)) => {
            record_change(SessionChange::Set { name: name.to_owned(), value: Some(value.to_owned()) }, single, effects);
        }
        None => effects.pins.add(Pins::SETTING),
    }
}

/// Returns the parameter that sets this mode for new transactions, and its value in a SET statement.
fn default_of_mode(mode: &str) -> Option<(&'static str, &'static str)> {
    const ISOLATION: &str = "default_transaction_isolation";
    const READ_ONLY: &str = "default_transaction_read_only";
    const DEFERRABLE: &str = "default_transaction_deferrable";
    Some(match mode {
        "isolation level serializable" => (ISOLATION, "serializable"),
        "isolation level repeatable read" => (ISOLATION, "'repeatable read'"),
        "isolation level read committed" => (ISOLATION, "'read committed'"),
        "isolation level read uncommitted" => (ISOLATION, "'read uncommitted'"),
        "read only" => (READ_ONLY, "on"),
        "read write" => (READ_ONLY, "off"),
        "deferrable" => (DEFERRABLE, "on"),
        "not deferrable" => (DEFERRABLE, "off"),
        _ => return None,
    })
}

/// Records a change whose value only the server reports.
fn record_reported(name: &str, single: bool, effects: &mut StatementEffects) {
    if single {
        effects.change = Some(Box::new(SessionChange::Set { name: name.to_owned(), value: None }));
    }
}

fn portable_value(value: &[u8]) -> Option<String> {
    str::from_utf8(value).ok().filter(|text| !text.contains('\\')).map(str::to_owned)
}

/// `SET LOCAL` ends with its transaction; objects created meanwhile do not.
fn classify_set_local(words: &mut WordLexer<'_>, effects: &mut StatementEffects) {
    let Some(name) = words.next() else { return };
    let value = if name == "schema" { Some(words.rest()) } else { words.value_of(&name) };
    if value.is_some_and(|value| makes_temporary(&name, value)) {
        effects.pins.add(Pins::TEMP);
    }
}

/// Whether objects created from here on are temporary without `TEMP` in their statements.
fn makes_temporary(name: &str, value: &[u8]) -> bool {
    let is_path = ["search_path", "schema"].iter().any(|path| path.eq_ignore_ascii_case(name));
    is_path && is_temporary_path(value)
}

/// Whether a search path begins with the schema of temporary tables. `"$user"` before it is skipped, because most users have no
/// schema of their own name.
#[must_use]
pub fn is_temporary_path(path: &[u8]) -> bool {
    let is_between = |byte: &u8| is_blank(*byte) || matches!(byte, b'\'' | b'"' | b',');
    let first = |path: &[u8]| path.iter().take_while(|byte| is_between(byte)).count();
    let mut rest = &path[first(path)..];
    while let Some(rest_of_path) = rest.strip_prefix(b"$user") {
        rest = &rest_of_path[first(rest_of_path)..];
    }
    rest.first_chunk::<7>().is_some_and(|name| name.eq_ignore_ascii_case(b"pg_temp"))
}
