//! Errors, and what of their texts must not be given away: values of literals and parameters.

use tidegate_wire::backend::ErrorFields;

use crate::normalize;

/// An error, as far as it is written down.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// SQLSTATE, five bytes.
    pub sqlstate: &'a [u8],
    /// The primary message.
    pub message: &'a [u8],
    /// The author of a function has made it up, with whatever SQLSTATE.
    is_raised: bool,
}

/// The source files in which the languages of functions report what a function raises.
const LANGUAGES: [&[u8]; 6] = [b"pl_exec.c", b"plpy_elog.c", b"plpy_plpymodule.c", b"plperl.c", b"pltcl.c", b"plv8.cc"];

/// SQLSTATE of a syntax error.
pub const SYNTAX_ERROR: &[u8] = b"42601";
const HIDDEN: &[u8] = b"***";
/// In one language or another.
const QUOTES: [char; 15] = ['"', '«', '»', '„', '“', '”', '‚', '‘', '’', '‹', '›', '「', '」', '『', '』'];

impl<'a> Failure<'a> {
    /// Takes code and message from the fields of an ErrorResponse.
    #[must_use]
    pub fn of(fields: &ErrorFields<'a>) -> Self {
        let field = |name| fields.get(name).unwrap_or_default();
        let (sqlstate, message) = (fields.get(b'C').unwrap_or(b"XX000"), field(b'M'));
        Self { sqlstate, message, is_raised: LANGUAGES.contains(&field(b'F')) }
    }

    /// Appends the message without values. `known` is what of the statement may be read.
    ///
    /// Messages of class 22 (data exception) quote the value that is at fault, or its numbers and bytes, and a syntax error
    /// the place where the server could not read on; what functions raise, and errors of P0 (PL/pgSQL), 38 (external
    /// routines) and of other people's classes, say whatever their author wanted. Names of what is not there or not right
    /// may come from a literal (`'name'::regclass`). The rest name objects only.
    pub fn hide_values(&self, known: &[u8], out: &mut Vec<u8>) {
        let Ok(message) = str::from_utf8(self.message) else { return out.extend_from_slice(HIDDEN) };
        match self.sqlstate {
            _ if self.is_raised => out.extend_from_slice(HIDDEN),
            [b'P', b'0', ..] | [b'3', b'8', ..] | [b'I'..=b'O' | b'Q'..=b'W' | b'Y' | b'Z', ..] => {
                out.extend_from_slice(HIDDEN);
            }
            [b'2', b'2', ..] | b"55P04" | SYNTAX_ERROR => hide_quoted(message, out),
            [b'4', b'2', ..] | [b'3', b'D' | b'F', ..] | [b'5', b'8', b'P', ..] | b"0A000" | b"54000" => {
                hide_strange_names(message, known, out);
            }
            _ => out.extend_from_slice(self.message),
        }
    }
}

/// The message of an error, without the values of the statement that it is about; names that stand in the statement stay.
#[must_use]
pub fn error_without_values(fields: &ErrorFields<'_>, statement: &[u8]) -> String {
    let (mut known, mut hidden) = (Vec::new(), Vec::new());
    normalize::normalize(statement, &mut known);
    Failure::of(fields).hide_values(&known, &mut hidden);
    String::from_utf8_lossy(&hidden).into_owned()
}

/// From the first quote to the last one, as what is quoted may have quotes in it; and numbers.
fn hide_quoted(message: &str, out: &mut Vec<u8>) {
    let Some((first, quote)) = message.char_indices().find(|(_, c)| QUOTES.contains(c)) else {
        return hide_numbers(message, out);
    };
    let last = message.rfind(QUOTES).filter(|last| *last > first).unwrap_or(message.len());
    let (before, after) = (&message[..first], &message[last..]);
    hide_numbers(before, out);
    out.extend_from_slice(quote.encode_utf8(&mut [0; 4]).as_bytes());
    out.extend_from_slice(HIDDEN);
    hide_numbers(after, out);
}

/// What is quoted, unless it stands in the statement as a name; and numbers.
fn hide_strange_names(message: &str, known: &[u8], out: &mut Vec<u8>) {
    let known = String::from_utf8_lossy(known).to_lowercase();
    let is_known = |name: &str| {
        let name = name.trim().to_lowercase();
        name.split('.').all(|part| known.contains(part))
    };
    let mut is_inside = false;
    for part in message.split_inclusive(QUOTES) {
        let text = part.trim_end_matches(QUOTES);
        if !is_inside {
            hide_numbers(text, out);
        } else if is_known(text) {
            out.extend_from_slice(text.as_bytes());
        } else {
            out.extend_from_slice(HIDDEN);
        }
        out.extend_from_slice(&part.as_bytes()[text.len()..]);
        is_inside = !is_inside;
    }
}

/// But for those of names (`t1`), parameters (`$1`) and types (`varying(10)`).
fn hide_numbers(text: &str, out: &mut Vec<u8>) {
    let (mut rest, mut is_of_type) = (text, false);
    while let Some(c) = rest.chars().next() {
        let before = text[..text.len() - rest.len()].chars().next_back();
        let is_in_word = before.is_some_and(|before| before.is_alphanumeric() || matches!(before, '_' | '$'));
        match c {
            '(' => is_of_type = is_in_word,
            ')' => is_of_type = false,
            _ => {}
        }
        let is_number = c.is_ascii_digit() && !is_in_word && !is_of_type;
        let len = if is_number {
            out.extend_from_slice(HIDDEN);
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '+');
            rest.find(|c| !is_part(c)).unwrap_or(rest.len())
        } else {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            c.len_utf8()
        };
        rest = &rest[len..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure<'a>(sqlstate: &'a str, message: &'a [u8]) -> Failure<'a> {
        Failure { sqlstate: sqlstate.as_bytes(), message, is_raised: false }
    }

    fn hidden(sqlstate: &str, message: &str, known: &str) -> String {
        let mut out = Vec::new();
        failure(sqlstate, message.as_bytes()).hide_values(known.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_error_gives_no_value_away() {
        for (sqlstate, message, expected) in [
            (
                "22P02",
                "invalid input syntax for type integer: \"secret\"",
                "invalid input syntax for type integer: \"***\"",
            ),
            ("22P02", "ungültige Syntax für Typ integer: »{\"a\": 1}«", "ungültige Syntax für Typ integer: »***«"),
            ("22003", "value \"7\" is out of range", "value \"***\" is out of range"),
            ("22P02", "in half: \"secret", "in half: \"***"),
            ("22012", "division by zero", "division by zero"),
            ("42601", "syntax error at or near \"'ann'\"", "syntax error at or near \"***\""),
            ("P0001", "no such customer: ann", "***"),
            ("38000", "no such customer: ann", "***"),
            ("42P01", "relation \"t\" does not exist", "relation \"t\" does not exist"),
        ] {
            assert_eq!(hidden(sqlstate, message, "select * from t"), expected);
        }
        let mut out = Vec::new();
        // In Latin 1.
        failure("22P02", b"ung\xfcltig: \xbbann\xab").hide_values(b"", &mut out);
        assert_eq!(out, HIDDEN);
    }

    #[test]
    fn a_value_that_is_not_quoted_is_none_the_less_one() {
        for (sqlstate, message, expected) in [
            ("22008", "date field value out of range: 1970-02-30", "date field value out of range: ***"),
            ("22008", "time field value out of range: 25:00:07.5", "time field value out of range: ***"),
            ("2202E", "index 4711 out of valid range, 0..3", "index *** out of valid range, ***"),
            (
                "22021",
                "invalid byte sequence for encoding \"UTF8\": 0xe4 0xf6",
                "invalid byte sequence for encoding \"***\": *** ***",
            ),
            (
                "22003",
                "setval: value 4711 is out of bounds for sequence \"s\" (1..100)",
                "setval: value *** is out of bounds for sequence \"***\" (***)",
            ),
            ("22001", "value too long for type character varying(10)", "value too long for type character varying(10)"),
            ("42P10", "ORDER BY position 4711 is not in select list", "ORDER BY position *** is not in select list"),
            ("42P02", "there is no parameter $1", "there is no parameter $1"),
            (
                "42883",
                "function f1(int4, numeric(3,1)) does not exist",
                "function f1(int4, numeric(3,1)) does not exist",
            ),
            (
                "54000",
                "requested character too large for encoding: 4711",
                "requested character too large for encoding: ***",
            ),
        ] {
            assert_eq!(hidden(sqlstate, message, "select * from t"), expected);
        }
    }

    #[test]
    fn a_name_that_is_none_of_the_statement_may_be_a_value() {
        let known = "select a.\"Col\" from shop.orders where c = ? :: regclass";
        for (message, expected) in [
            ("relation \"shop.orders\" does not exist", "relation \"shop.orders\" does not exist"),
            ("relation \"ann\" does not exist", "relation \"***\" does not exist"),
            ("column \"col\" of relation \"ann\" is no", "column \"col\" of relation \"***\" is no"),
            ("Relation »ann« existiert nicht", "Relation »***« existiert nicht"),
            ("half of \"ann", "half of \"***"),
        ] {
            assert_eq!(hidden("42P01", message, known), expected);
        }
        assert_eq!(hidden("23505", "violates unique constraint \"c1\"", known), "violates unique constraint \"c1\"");
    }
}
