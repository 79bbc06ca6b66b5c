//! Comma-separated values as in RFC 4180, one column per key of a record.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::{
    commands::log_entry::{EntryContent, LogEntry, describe_damage},
    record::LogRecord,
};

/// Keys of a record, in the order of its fields.
pub(in crate::commands) const COLUMNS: &[&str] = &[
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
    "traceparent",
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
    write_row(COLUMNS.iter().map(|column| Cow::Borrowed(*column)), out)
}

/// Writes one row. A cell that a spreadsheet would interpret as a formula is escaped; see [`without_formula`].
pub(in crate::commands) fn write_row<'a>(
    cells: impl IntoIterator<Item = Cow<'a, str>>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut writer = ::csv::WriterBuilder::new().terminator(::csv::Terminator::CRLF).from_writer(out);
    for cell in cells {
        writer.write_field(without_formula(&cell).as_bytes())?;
    }
    writer.write_record(None::<&[u8]>)?;
    writer.flush()
}

/// Prints an entry as a row. The row of a gap has its kind and a message.
pub(super) fn row(entry: &LogEntry, out: &mut impl Write) -> io::Result<()> {
    let (kind, message) = match &entry.content {
        EntryContent::Record { record, .. } => {
            return write_row(COLUMNS.iter().map(|column| cell(record, column).unwrap_or_default()), out);
        }
        EntryContent::Text(text) => ("text", text.clone()),
        EntryContent::Loss(loss) => {
            ("gap", format!("{} records of class {} lost ({})", loss.records, loss.class, loss.cause))
        }
        EntryContent::Missing { records, .. } => ("missing", format!("{records} records missing")),
        EntryContent::Damage(damage) => {
            let (bytes, at, file) = (damage.bytes, damage.at, damage.path.display());
            ("damage", format!("{bytes} bytes at {at} of {file} are not records: {}", describe_damage(damage)))
        }
    };
    let cells = COLUMNS.iter().map(|column| match *column {
        "time" => Cow::Owned(entry.time.to_string()),
        "kind" => Cow::Borrowed(kind),
        "message" => Cow::Borrowed(&*message),
        _ => Cow::Borrowed(""),
    });
    write_row(cells, out)
}

/// The value of a key, if the record has it.
pub(super) fn cell<'a>(record: &'a LogRecord, column: &str) -> Option<Cow<'a, str>> {
    let number = |number: Option<u64>| number.map(|number| Cow::Owned(number.to_string()));
    let text = |text: &'a Option<String>| text.as_deref().map(Cow::Borrowed);
    match column {
        "time" => Some(Cow::Owned(record.time.to_string())),
        "kind" => Some(Cow::Borrowed(record.kind.name())),
        "client" => text(&record.client),
        "user" => text(&record.user),
        "database" => text(&record.database),
        "application" => text(&record.application),
        "session" => number(record.session),
        "transaction" => number(record.transaction),
        "statement" => text(&record.statement),
        "fingerprint" => text(&record.fingerprint),
        "prepared" => text(&record.prepared),
        "parameters" => record.parameters.as_ref().map(|all| Cow::Owned(serde_json::json!(all).to_string())),
        "traceparent" => text(&record.traceparent),
        "server" => text(&record.server),
        "server_pid" => number(record.server_pid.map(u64::from)),
        "wait_us" => number(record.wait_us),
        "server_us" => number(record.server_us),
        "total_us" => number(record.total_us),
        "queries" => number(record.queries),
        "rows" => number(record.rows),
        "bytes_in" => number(record.bytes_in),
        "bytes_out" => number(record.bytes_out),
        "tag" => text(&record.tag),
        "sqlstate" => text(&record.sqlstate),
        "message" => text(&record.message),
        "reason" => text(&record.reason),
        _ => None,
    }
}

/// Characters with which spreadsheets start a formula, in quotes or not (OWASP, "CSV Injection"), with their full-width
/// forms.
const BEGINS_FORMULA: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];

/// Prefixes a cell that a spreadsheet would interpret as a formula with an apostrophe: clients choose statements, user
/// names and application names. The change can be undone: if such a character follows apostrophes only, the first
/// apostrophe was added.
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
    use crate::commands::log_entry::EntryContent;

    #[test]
    fn formulas_are_escaped() {
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
            let mut row = Vec::new();
            write_row(["a", cell].map(Cow::Borrowed), &mut row).expect("memory");
            assert_eq!(String::from_utf8(row).expect("text"), format!("a,{expected}\r\n"), "{cell:?}");
        }
    }

    proptest! {
        #[test]
        fn formula_escape_can_be_undone(cell in "['=+@a-]{0,6}") {
            let written = without_formula(&cell);
            prop_assert!(!written.starts_with(BEGINS_FORMULA));
            let is_ours = written.starts_with('\'') && written.trim_start_matches('\'').starts_with(BEGINS_FORMULA);
            let read = if is_ours { &written[1..] } else { &*written };
            prop_assert_eq!(read, &*cell);
        }
    }

    #[test]
    fn every_column_is_documented() {
        let documented = include_str!("../../../../../docs/src/guide/query-log.md");
        for column in COLUMNS {
            assert!(documented.contains(&format!("`{column}`")), "{column} is not in docs/src/guide/query-log.md");
        }
        let content = EntryContent::from_payload(
            br#"{"time":"2026-03-01T12:00:00Z","kind":"query","statement":"select \"a\",\n1","parameters":["1",null],"rows":2}"#,
        );
        let mut out = Vec::new();
        row(&LogEntry { time: crate::record::RecordTimestamp::default(), content }, &mut out).expect("memory");
        let text = String::from_utf8(out).expect("text");
        assert!(
            text.starts_with(
                "2026-03-01T12:00:00.000000Z,query,,,,,,,\"select \"\"a\"\",\n1\",,,\"[\"\"1\"\",null]\","
            )
        );
        assert!(text.ends_with("\r\n") && text.contains(",2,,,,,,\r\n"), "{text}");
    }
}
