//! Text lines of entries: time, duration, user, client, session, result and statement.

use std::io::{self, Write};

use super::ansi::AnsiStyle;
use crate::{
    commands::{
        log_entry::{EntryContent, LogEntry, Loss, describe_damage},
        units::{bytes, count_noun, duration, one_line, terminal_width, truncate},
        zone::Zone,
    },
    record::{LogRecord, RecordKind},
};

/// Duration from which a query is printed in bold.
const SLOW_MICROS: u64 = 1_000_000;
/// Maximum width to which a column grows with its content.
const WIDTH_MAX: usize = 32;
/// Maximum length of a statement on a terminal.
const STATEMENT_CHARS: usize = 200;
/// Width of user and database on a narrow terminal.
const NARROW_USER_CHARS: usize = 16;

pub(super) struct LinePrinter {
    pub(super) style: AnsiStyle,
    zone: Zone,
    /// Whether statements are truncated.
    truncate: bool,
    widths: [usize; 4],
    /// Columns of a narrow terminal, into which each line fits.
    narrow: Option<usize>,
}

/// Columns from which a terminal shows all cells.
const WIDE_LINES: usize = 150;

impl LinePrinter {
    pub(super) fn new(style: AnsiStyle, zone: Zone, truncate: bool) -> Self {
        let narrow = terminal_width().filter(|columns| truncate && *columns < WIDE_LINES);
        Self { style, zone, truncate, widths: [16, 18, 6, 12], narrow }
    }

    /// Time of day, duration, user and database, result and statement, within the columns of a terminal. `--long` and `--full`
    /// have the rest.
    fn narrow_record(&self, time: &str, record: &LogRecord, columns: usize, out: &mut impl Write) -> io::Result<()> {
        let took = record.total_us.map_or_else(String::new, duration);
        let user = user_at_database(record);
        let user = truncate(&one_line(&user), NARROW_USER_CHARS).into_owned();
        let outcome = match result(record) {
            failed if record.sqlstate.is_some() => failed,
            _ if record.statement.is_some() => String::new(),
            other => other,
        };
        let head = format!("{took:>9} {user:<NARROW_USER_CHARS$}");
        let texts = [outcome.as_str(), record.statement.as_deref().unwrap_or_default()];
        let texts = texts.into_iter().chain(record.message.as_deref().or(record.reason.as_deref()));
        let rest = texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        let room = columns.saturating_sub(time.chars().count() + head.chars().count() + 2);
        let rest = one_line(&rest);
        let rest = truncate(&rest, room);
        let rest = if record.sqlstate.is_some() { self.style.red(&rest) } else { rest };
        writeln!(out, "{} {head} {rest}", self.style.dim(time))
    }

    pub(super) fn write(&mut self, entry: &LogEntry, out: &mut impl Write) -> io::Result<()> {
        if let (Some(columns), EntryContent::Record { record, .. }) = (self.narrow, &entry.content) {
            return self.narrow_record(&self.zone.format_clock(entry.time), record, columns, out);
        }
        let time = self.zone.format(entry.time);
        write!(out, "{}  ", self.style.dim(&time))?;
        match &entry.content {
            EntryContent::Record { record, .. } => self.record(record, out),
            EntryContent::Text(text) => writeln!(out, "{}", self.shortened(text)),
            EntryContent::Loss(loss) => {
                let text = format!("--- {}", describe_loss(loss, &self.zone));
                writeln!(out, "{}", self.style.yellow(&text))
            }
            EntryContent::Missing { stripe, records } => {
                let text = format!("--- {} missing in stripe {stripe}", count_noun(*records, "record"));
                writeln!(out, "{}", self.style.red(&text))
            }
            EntryContent::Damage(damage) => {
                let (size, file) = (bytes(damage.bytes), damage.path.display());
                let text =
                    format!("--- {size} at {} of {file} are not records: {}", damage.at, describe_damage(damage));
                writeln!(out, "{}", self.style.red(&text))
            }
        }
    }

    fn record(&mut self, record: &LogRecord, out: &mut impl Write) -> io::Result<()> {
        let took = record.total_us.map_or_else(String::new, duration);
        let is_slow = record.kind != RecordKind::Disconnect && record.total_us.is_some_and(|took| took >= SLOW_MICROS);
        let took = format!("{took:>11}");
        write!(out, "{}", if is_slow { self.style.bold(&took) } else { took.as_str().into() })?;
        let failed = record.sqlstate.is_some();
        let rest = self.rest(record);
        for (at, cell) in
            [user_at_database(record), client_and_application(record), session_and_transaction(record), result(record)]
                .iter()
                .enumerate()
        {
            let cell = one_line(cell);
            let chars = cell.chars().count();
            self.widths[at] = self.widths[at].max(chars.min(WIDTH_MAX));
            // The last column is not padded, so that lines do not end with blanks.
            let width = if at == 3 && rest.is_empty() { 0 } else { self.widths[at] };
            let padded = format!("{cell:<width$}");
            let painted = match at {
                0 => self.style.cyan(&padded),
                3 if failed => self.style.red(&padded),
                _ => padded.as_str().into(),
            };
            write!(out, "  {painted}")?;
        }
        if rest.is_empty() { writeln!(out) } else { writeln!(out, "  {rest}") }
    }

    /// The statement and the error or reason.
    fn rest(&self, record: &LogRecord) -> String {
        let mut rest = record.statement.as_deref().map_or_else(String::new, |text| self.shortened(text));
        if rest.is_empty() {
            rest = record.fingerprint.as_ref().map_or_else(String::new, |print| format!("[{print}]"));
        }
        let outcome = record.message.as_deref().or(record.reason.as_deref());
        if let Some(outcome) = outcome {
            let gap = if rest.is_empty() { "" } else { "  -- " };
            let outcome = one_line(outcome);
            let outcome = if record.sqlstate.is_some() { self.style.red(&outcome) } else { outcome };
            rest = format!("{rest}{gap}{outcome}");
        }
        rest
    }

    fn shortened(&self, text: &str) -> String {
        let text = one_line(text);
        if self.truncate { truncate(&text, STATEMENT_CHARS).into_owned() } else { text.into_owned() }
    }
}

fn user_at_database(record: &LogRecord) -> String {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}@{}", of(&record.user), of(&record.database))
}

fn client_and_application(record: &LogRecord) -> String {
    let client = record.client.clone().unwrap_or_default();
    record.application.as_ref().map_or_else(|| client.clone(), |application| format!("{client} ({application})"))
}

/// Session and transaction.
fn session_and_transaction(record: &LogRecord) -> String {
    let session = record.session.map_or_else(String::new, |session| session.to_string());
    record.transaction.map_or_else(|| session.clone(), |transaction| format!("{session}/{transaction}"))
}

fn result(record: &LogRecord) -> String {
    let tag = record.tag.as_deref().filter(|tag| !tag.is_empty());
    match (record.kind, &record.sqlstate, tag) {
        (RecordKind::LoginFailed, state, _) => format!("login failed {}", state.as_deref().unwrap_or_default()),
        (_, Some(state), _) => format!("ERROR {state}"),
        (RecordKind::Query, None, Some(tag)) => tag.to_owned(),
        (RecordKind::Query, None, None) if record.reason.is_some() => "aborted".to_owned(),
        (RecordKind::Query, None, None) => String::new(),
        (RecordKind::Transaction, ..) => count_noun(record.queries.unwrap_or(0), "statement"),
        (kind, ..) => kind.name().to_owned(),
    }
}

/// Formats as `12 records of class queries lost to overload (newest): 3.40 KiB, from ... to ...`.
pub(in crate::commands) fn describe_loss(loss: &Loss, zone: &Zone) -> String {
    let Loss { class, cause, records, bytes: size, first, last } = loss;
    let (records, size) = (count_noun(*records, "record"), bytes(*size));
    let (first, last) = (zone.format_second(*first), zone.format_second(*last));
    format!("{records} of class {class} lost to overload ({cause}): {size}, from {first} to {last}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{options::ColorChoice, record::RecordTimestamp};

    #[test]
    fn narrow_lines_fit_into_80_columns() {
        let zone = Zone::new(true);
        let mut printer = LinePrinter::new(AnsiStyle::new(ColorChoice::Never), zone, true);
        printer.narrow = Some(80);
        let query = r#"{"time":"2026-03-01T12:00:00Z","kind":"query","user":"a_long_name_of_a_user","database":"shop",
            "statement":"select a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s from t","total_us":1234"#;
        for end in ["}", r#","sqlstate":"42703","message":"column \"s\" does not exist, and more text"}"#] {
            let content = EntryContent::from_payload(format!("{query}{end}").as_bytes());
            let mut out = Vec::new();
            printer.write(&LogEntry { time: RecordTimestamp::default(), content }, &mut out).expect("written");
            let line = String::from_utf8(out).expect("text");
            assert!(line.trim_end().chars().count() <= 80, "{line}");
            assert!(line.contains("1.23 ms a_long_name_of") && line.contains("select a, b"), "{line}");
        }
    }
}
