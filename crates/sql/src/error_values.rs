//! Removes values of literals and parameters from error messages.

use tidegate_wire::backend::ErrorFields;

use crate::normalize;

/// An error as it is logged or recorded.
#[derive(Clone, Copy, Debug)]
pub struct ReportedError<'a> {
    /// SQLSTATE, five bytes.
    pub sqlstate: &'a [u8],
    /// The primary message.
    pub message: &'a [u8],
    /// Raised by a function: its author chose the text and the SQLSTATE.
    is_raised: bool,
}

/// Source files in which procedural languages report raised errors (field `F` of ErrorResponse).
const LANGUAGE_SOURCES: [&[u8]; 6] =
    [b"pl_exec.c", b"plpy_elog.c", b"plpy_plpymodule.c", b"plperl.c", b"pltcl.c", b"plv8.cc"];

/// SQLSTATE of a syntax error.
pub const SYNTAX_ERROR: &[u8] = b"42601";
const HIDDEN: &[u8] = b"***";
/// Quotation marks of all languages that Postgres has translations for.
const QUOTES: [char; 15] = ['"', '«', '»', '„', '“', '”', '‚', '‘', '’', '‹', '›', '「', '」', '『', '』'];

impl<'a> ReportedError<'a> {
    /// Reads SQLSTATE and message from the fields of an ErrorResponse.
    #[must_use]
    pub fn new(fields: &ErrorFields<'a>) -> Self {
        let field = |name| fields.get(name).unwrap_or_default();
        let (sqlstate, message) = (fields.get(b'C').unwrap_or(b"XX000"), field(b'M'));
        Self { sqlstate, message, is_raised: LANGUAGE_SOURCES.contains(&field(b'F')) }
    }

    /// Appends the message without values. Names that occur in `known`, the readable part of the statement, stay.
    ///
    /// Messages of class 22 (data exception) quote the invalid value, its numbers or its bytes. A syntax error quotes the text
    /// around its position. Errors raised by functions, and errors of P0 (PL/pgSQL), of 38 (external routines) and of
    /// user-defined classes, have an arbitrary text. Names of missing or invalid objects may come from a literal
    /// (`'name'::regclass`). All other messages name objects only.
    pub fn hide_values(&self, known: &[u8], out: &mut Vec<u8>) {
        let Ok(message) = str::from_utf8(self.message) else { return out.extend_from_slice(HIDDEN) };
        match self.sqlstate {
            _ if self.is_raised => out.extend_from_slice(HIDDEN),
            [b'P', b'0', ..] | [b'3', b'8', ..] | [b'I'..=b'O' | b'Q'..=b'W' | b'Y' | b'Z', ..] => {
                out.extend_from_slice(HIDDEN);
            }
            [b'2', b'2', ..] | b"55P04" | SYNTAX_ERROR => hide_quoted(message, out),
            [b'4', b'2', ..] | [b'3', b'D' | b'F', ..] | [b'5', b'8', b'P', ..] | b"0A000" | b"54000" => {
                hide_unknown_names(message, known, out);
            }
            _ => out.extend_from_slice(self.message),
        }
    }
}

/// Returns the message of an error without the values of its statement. Names that occur in the statement stay.
#[must_use]
pub fn error_without_values(fields: &ErrorFields<'_>, statement: &[u8]) -> String {
    let (mut known, mut hidden) = (Vec::new(), Vec::new());
    normalize::normalize(statement, &mut known);
    ReportedError::new(fields).hide_values(&known, &mut hidden);
    String::from_utf8_lossy(&hidden).into_owned()
}

/// Hides the text from the first quotation mark to the last, because quoted text may contain quotation marks, and numbers.
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

/// Hides quoted text that does not occur as a name in the statement, and numbers.
fn hide_unknown_names(message: &str, known: &[u8], out: &mut Vec<u8>) {
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

/// Hides numbers, except in names (`t1`), parameters (`$1`) and types (`varying(10)`).
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

    fn failure<'a>(sqlstate: &'a str, message: &'a [u8]) -> ReportedError<'a> {
        ReportedError { sqlstate: sqlstate.as_bytes(), message, is_raised: false }
    }

    fn hidden(sqlstate: &str, message: &str, known: &str) -> String {
        let mut out = Vec::new();
        failure(sqlstate, message.as_bytes()).hide_values(known.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn quoted_values_are_hidden() {
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
        // Latin 1.
        failure("22P02", b"ung\xfcltig: \xbbann\xab").hide_values(b"", &mut out);
        assert_eq!(out, HIDDEN);
    }

    #[test]
    fn unquoted_values_are_hidden() {
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
    fn names_outside_of_the_statement_are_hidden() {
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
