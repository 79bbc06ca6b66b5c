//! SET and what it does, in all its forms.

use super::{
    Change, Pins, Traits, change,
    words::{Words, is_blank},
};

/// What `TIME ZONE` sets.
pub(super) const TIME_ZONE: &str = "timezone";

pub(super) fn look_at_set(words: &mut Words<'_>, single: bool, traits: &mut Traits) {
    // One that is hard to read may be that of a parameter nevertheless.
    let Some(mut name) = words.parameter() else { return traits.pins.add(Pins::SETTING) };
    if name == "session" {
        match words.parameter() {
            Some(next) if next == "characteristics" => return look_at_characteristics(words, single, traits),
            Some(next) if next == "authorization" => {
                return traits.pins.add(if words.is_rest("default") { Pins::USER } else { Pins::SETTING });
            }
            Some(next) => name = next,
            None => return traits.pins.add(Pins::SETTING),
        }
    }
    match name.as_str() {
        "local" => look_at_local(words, traits),
        // These last for the transaction only, or for the next random number, under whichever name.
        "transaction" | "constraints" => {}
        "transaction_isolation" | "transaction_read_only" | "transaction_deferrable" | "seed" => {}
        // The server reports both, under other names.
        "names" if ["", "default"].iter().any(|own| words.is_rest(own)) => {
            change(Change::Reset("client_encoding".to_owned()), single, traits);
        }
        "names" => report("client_encoding", single, traits),
        "time" if words.next().is_some() && ["default", "local"].iter().any(|own| words.is_rest(own)) => {
            change(Change::Reset(TIME_ZONE.to_owned()), single, traits);
        }
        "time" => report(TIME_ZONE, single, traits),
        // Which the server reports as well, but nobody can take over by a SET of his own.
        "session_authorization" => match words.value_of(&name) {
            Some(value) if value.eq_ignore_ascii_case(b"default") => traits.pins.add(Pins::USER),
            _ => traits.pins.add(Pins::SETTING),
        },
        _ => match words.value_of(&name) {
            Some(value) if makes_temporary(&name, value) => traits.pins.add(Pins::TEMP),
            Some(value) if value.eq_ignore_ascii_case(b"default") => change(Change::Reset(name), single, traits),
            Some(value) => change(Change::Set { name, value: sayable(value) }, single, traits),
            None => traits.pins.add(Pins::SETTING),
        },
    }
}

/// `SET SESSION CHARACTERISTICS AS TRANSACTION ...` sets parameters by other names: one of them is followed, as drivers send it.
fn look_at_characteristics(words: &mut Words<'_>, single: bool, traits: &mut Traits) {
    const WORDS_MAX: usize = 6;
    let modes = words.by_ref().take(WORDS_MAX).collect::<Vec<_>>().join(" ");
    let is_whole = words.next_or_symbol().is_none();
    let mode = modes.strip_prefix("as transaction ").filter(|_| is_whole);
    match mode.and_then(default_of_mode) {
        Some((name, value)) => {
            change(Change::Set { name: name.to_owned(), value: Some(value.to_owned()) }, single, traits);
        }
        None => traits.pins.add(Pins::SETTING),
    }
}

/// The parameter that gives new transactions this mode, and its value as a SET says it.
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

/// A parameter is changed whose value is known from the server alone.
fn report(name: &str, single: bool, traits: &mut Traits) {
    if single {
        traits.change = Some(Box::new(Change::Set { name: name.to_owned(), value: None }));
    }
}

fn sayable(value: &[u8]) -> Option<String> {
    str::from_utf8(value).ok().filter(|text| !text.contains('\\')).map(str::to_owned)
}

/// `SET LOCAL` ends with its transaction, but not so what is made meanwhile.
fn look_at_local(words: &mut Words<'_>, traits: &mut Traits) {
    let Some(name) = words.next() else { return };
    let value = if name == "schema" { Some(words.rest()) } else { words.value_of(&name) };
    if value.is_some_and(|value| makes_temporary(&name, value)) {
        traits.pins.add(Pins::TEMP);
    }
}

/// Whether what is created from here on is temporary although no statement says so.
fn makes_temporary(name: &str, value: &[u8]) -> bool {
    let is_path = ["search_path", "schema"].iter().any(|path| path.eq_ignore_ascii_case(name));
    is_path && is_temporary_path(value)
}

/// Whether a search path begins with the schema of temporary tables, or with one of the user's own name, which most have not,
/// and then with that.
#[must_use]
pub fn is_temporary_path(path: &[u8]) -> bool {
    let is_between = |byte: &u8| is_blank(*byte) || matches!(byte, b'\'' | b'"' | b',');
    let first = |path: &[u8]| path.iter().take_while(|byte| is_between(byte)).count();
    let mut rest = &path[first(path)..];
    while let Some(behind) = rest.strip_prefix(b"$user") {
        rest = &behind[first(behind)..];
    }
    rest.first_chunk::<7>().is_some_and(|name| name.eq_ignore_ascii_case(b"pg_temp"))
}
