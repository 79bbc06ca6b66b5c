//! Comma-separated values, as RFC 4180 has them: one column for each key of a record.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::{
    entry::Entry,
    read::item::{Item, What, words_of},
};

/// The keys of a record, in the order in which they stand in it.
pub(in crate::read) const COLUMNS: &[&str] = &[
    "time",
    "kind",
    "client",
    "user",
    "database",
    "application",
    "session",
    "transaction",
    "statement",
    "fingerprint",
    "prepared",
    "parameters",
    "server",
    "server_pid",
    "wait_us",
    "server_us",
    "total_us",
    "queries",
    "rows",
    "bytes_in",
    "bytes_out",
    "tag",
    "sqlstate",
    "message",
    "reason",
];

pub(super) fn heading(out: &mut impl Write) -> io::Result<()> {
    write!(out, "{}\r\n", COLUMNS.join(","))
}

/// A hole is a row as well: its kind says what it is, its message how large.
pub(super) fn row(item: &Item, out: &mut impl Write) -> io::Result<()> {
    let (kind, message) = match &item.what {
        What::Record { entry, .. } => {
            for (at, column) in COLUMNS.iter().enumerate() {
                let cell = cell(entry, column).unwrap_or_default();
                write!(out, "{}{}", if at > 0 { "," } else { "" }, quoted(&cell))?;
            }
            return out.write_all(b"\r\n");
        }
        What::Text(text) => ("text", text.clone()),
        What::Loss(loss) => ("gap", format!("{} records of class {} lost ({})", loss.records, loss.class, loss.cause)),
        What::Missing { records, .. } => ("missing", format!("{records} records missing")),
        What::Damage(damage) => {
            let (bytes, at, file) = (damage.bytes, damage.at, damage.path.display());
            ("damage", format!("{bytes} bytes at {at} of {file} are no records: {}", words_of(damage)))
        }
    };
    for (at, column) in COLUMNS.iter().enumerate() {
        let cell = match *column {
            "time" => Cow::Owned(item.time.to_string()),
            "kind" => Cow::Borrowed(kind),
            "message" => quoted(&message),
            _ => Cow::Borrowed(""),
        };
        write!(out, "{}{cell}", if at > 0 { "," } else { "" })?;
    }
    out.write_all(b"\r\n")
}

/// The value of a key, if the record has it.
pub(super) fn cell<'a>(entry: &'a Entry, column: &str) -> Option<Cow<'a, str>> {
    let number = |number: Option<u64>| number.map(|number| Cow::Owned(number.to_string()));
    let text = |text: &'a Option<String>| text.as_deref().map(Cow::Borrowed);
    match column {
        "time" => Some(Cow::Owned(entry.time.to_string())),
        "kind" => Some(Cow::Borrowed(entry.kind.name())),
        "client" => text(&entry.client),
        "user" => text(&entry.user),
        "database" => text(&entry.database),
        "application" => text(&entry.application),
        "session" => number(entry.session),
        "transaction" => number(entry.transaction),
        "statement" => text(&entry.statement),
        "fingerprint" => text(&entry.fingerprint),
        "prepared" => text(&entry.prepared),
        "parameters" => entry.parameters.as_ref().map(|all| Cow::Owned(serde_json::json!(all).to_string())),
        "server" => text(&entry.server),
        "server_pid" => number(entry.server_pid.map(u64::from)),
        "wait_us" => number(entry.wait_us),
        "server_us" => number(entry.server_us),
        "total_us" => number(entry.total_us),
        "queries" => number(entry.queries),
        "rows" => number(entry.rows),
        "bytes_in" => number(entry.bytes_in),
        "bytes_out" => number(entry.bytes_out),
        "tag" => text(&entry.tag),
        "sqlstate" => text(&entry.sqlstate),
        "message" => text(&entry.message),
        "reason" => text(&entry.reason),
        _ => None,
    }
}

/// A cell in quotes if it needs them, and no formula: see [`without_formula`].
pub(in crate::read) fn quoted(cell: &str) -> Cow<'_, str> {
    let cell = without_formula(cell);
    if cell.contains([',', '"', '\n', '\r']) {
        return Cow::Owned(format!("\"{}\"", cell.replace('"', "\"\"")));
    }
    cell
}

/// What a spreadsheet takes for the beginning of a formula, in quotes or not (OWASP, "CSV Injection"); the wide forms too.
const BEGINS_FORMULA: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];

/// The cell with an apostrophe before it if a spreadsheet would take it for a formula: clients choose what statements,
/// user names and application names say. It can be undone: of a cell in which such a character stands behind apostrophes only,
/// the first apostrophe is ours.
fn without_formula(cell: &str) -> Cow<'_, str> {
    if cell.trim_start_matches('\'').starts_with(BEGINS_FORMULA) {
        return Cow::Owned(format!("'{cell}"));
    }
    Cow::Borrowed(cell)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::read::item::What;

    #[test]
    fn no_cell_is_a_formula() {
        for (cell, expected) in [
            ("=HYPERLINK(\"http://x\")", "\"'=HYPERLINK(\"\"http://x\"\")\""),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
            ("＝1", "'＝1"),
            ("'=1", "''=1"),
            ("'quoted'", "'quoted'"),
            ("select 1", "select 1"),
            ("", ""),
        ] {
            assert_eq!(quoted(cell), expected, "{cell:?}");
        }
    }

    proptest! {
        #[test]
        fn an_apostrophe_before_a_formula_can_be_undone(cell in "['=+@a-]{0,6}") {
            let written = without_formula(&cell);
            prop_assert!(!written.starts_with(BEGINS_FORMULA));
            let is_ours = written.starts_with('\'') && written.trim_start_matches('\'').starts_with(BEGINS_FORMULA);
            let read = if is_ours { &written[1..] } else { &*written };
            prop_assert_eq!(read, &*cell);
        }
    }

    #[test]
    fn every_key_of_a_record_has_its_column() {
        let documented = include_str!("../../../../../docs/src/guide/query-log.md");
        for column in COLUMNS {
            assert!(documented.contains(&format!("`{column}`")), "{column} is not in docs/src/guide/query-log.md");
        }
        let what = What::of_payload(
            br#"{"time":"2026-03-01T12:00:00Z","kind":"query","statement":"select \"a\",\n1","parameters":["1",null],"rows":2}"#,
        );
        let mut out = Vec::new();
        row(&Item { time: crate::entry::Moment::default(), what }, &mut out).expect("memory");
        let text = String::from_utf8(out).expect("text");
        assert!(
            text.starts_with(
                "2026-03-01T12:00:00.000000Z,query,,,,,,,\"select \"\"a\"\",\n1\",,,\"[\"\"1\"\",null]\","
            )
        );
        assert!(text.ends_with("\r\n") && text.contains(",2,,,,,,\r\n"), "{text}");
    }
}
