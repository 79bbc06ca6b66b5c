//! One line for people: time, duration, who, where from, session, result, statement.

use std::io::{self, Write};

use super::paint::Paint;
use crate::{
    entry::{Entry, Kind},
    read::{
        item::{Item, Loss, What, words_of},
        units::{bytes, counted, cut, duration, one_line},
        zone::Zone,
    },
};

/// From here on a duration stands out.
const SLOW_MICROS: u64 = 1_000_000;
/// Columns grow with what stands in them, up to this.
const WIDTH_MAX: usize = 32;
/// What is shown of a statement on a terminal.
const STATEMENT_CHARS: usize = 200;

pub(super) struct Line {
    pub(super) paint: Paint,
    zone: Zone,
    /// Statements are cut.
    cut: bool,
    widths: [usize; 4],
}

impl Line {
    pub(super) fn new(paint: Paint, zone: Zone, cut: bool) -> Self {
        Self { paint, zone, cut, widths: [16, 18, 6, 12] }
    }

    pub(super) fn write(&mut self, item: &Item, out: &mut impl Write) -> io::Result<()> {
        let time = self.zone.show(item.time);
        write!(out, "{}  ", self.paint.dim(&time))?;
        match &item.what {
            What::Record { entry, .. } => self.record(entry, out),
            What::Text(text) => writeln!(out, "{}", self.shortened(text)),
            What::Loss(loss) => {
                let text = format!("--- {}", words_of_loss(loss, &self.zone));
                writeln!(out, "{}", self.paint.yellow(&text))
            }
            What::Missing { stripe, records } => {
                let text = format!("--- {} missing in stripe {stripe}", counted(*records, "record"));
                writeln!(out, "{}", self.paint.red(&text))
            }
            What::Damage(damage) => {
                let (what, file) = (bytes(damage.bytes), damage.path.display());
                let text = format!("--- {what} at {} of {file} are no records: {}", damage.at, words_of(damage));
                writeln!(out, "{}", self.paint.red(&text))
            }
        }
    }

    fn record(&mut self, entry: &Entry, out: &mut impl Write) -> io::Result<()> {
        let took = entry.total_us.map_or_else(String::new, duration);
        let is_slow = entry.kind != Kind::Disconnect && entry.total_us.is_some_and(|took| took >= SLOW_MICROS);
        let took = format!("{took:>11}");
        write!(out, "{}", if is_slow { self.paint.bold(&took) } else { took.as_str().into() })?;
        let failed = entry.sqlstate.is_some();
        let rest = self.rest(entry);
        for (at, cell) in [who(entry), whence(entry), which(entry), result(entry)].iter().enumerate() {
            let cell = one_line(cell);
            let chars = cell.chars().count();
            self.widths[at] = self.widths[at].max(chars.min(WIDTH_MAX));
            // No blanks at the end of a line.
            let width = if at == 3 && rest.is_empty() { 0 } else { self.widths[at] };
            let padded = format!("{cell:<width$}");
            let painted = match at {
                0 => self.paint.cyan(&padded),
                3 if failed => self.paint.red(&padded),
                _ => padded.as_str().into(),
            };
            write!(out, "  {painted}")?;
        }
        if rest.is_empty() { writeln!(out) } else { writeln!(out, "  {rest}") }
    }

    /// What was said, and what came of it.
    fn rest(&self, entry: &Entry) -> String {
        let mut rest = entry.statement.as_deref().map_or_else(String::new, |text| self.shortened(text));
        if rest.is_empty() {
            rest = entry.fingerprint.as_ref().map_or_else(String::new, |print| format!("[{print}]"));
        }
        let outcome = entry.message.as_deref().or(entry.reason.as_deref());
        if let Some(outcome) = outcome {
            let gap = if rest.is_empty() { "" } else { "  -- " };
            let outcome = one_line(outcome);
            let outcome = if entry.sqlstate.is_some() { self.paint.red(&outcome) } else { outcome };
            rest = format!("{rest}{gap}{outcome}");
        }
        rest
    }

    fn shortened(&self, text: &str) -> String {
        let text = one_line(text);
        if self.cut { cut(&text, STATEMENT_CHARS).into_owned() } else { text.into_owned() }
    }
}

fn who(entry: &Entry) -> String {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}@{}", of(&entry.user), of(&entry.database))
}

fn whence(entry: &Entry) -> String {
    let client = entry.client.clone().unwrap_or_default();
    entry.application.as_ref().map_or_else(|| client.clone(), |application| format!("{client} ({application})"))
}

/// Session and transaction.
fn which(entry: &Entry) -> String {
    let session = entry.session.map_or_else(String::new, |session| session.to_string());
    entry.transaction.map_or_else(|| session.clone(), |transaction| format!("{session}/{transaction}"))
}

fn result(entry: &Entry) -> String {
    let tag = entry.tag.as_deref().filter(|tag| !tag.is_empty());
    match (entry.kind, &entry.sqlstate, tag) {
        (Kind::LoginFailed, state, _) => format!("login failed {}", state.as_deref().unwrap_or_default()),
        (_, Some(state), _) => format!("ERROR {state}"),
        (Kind::Query, None, Some(tag)) => tag.to_owned(),
        (Kind::Query, None, None) if entry.reason.is_some() => "no end".to_owned(),
        (Kind::Query, None, None) => String::new(),
        (Kind::Transaction, ..) => counted(entry.queries.unwrap_or(0), "statement"),
        (kind, ..) => kind.name().to_owned(),
    }
}

/// `12 records of class queries were lost (newest), 3.40 KiB, 13:00:00 to 13:00:02`
pub(in crate::read) fn words_of_loss(loss: &Loss, zone: &Zone) -> String {
    let Loss { class, cause, records, bytes: size, first, last } = loss;
    let (records, size) = (counted(*records, "record"), bytes(*size));
    let (first, last) = (zone.show_second(*first), zone.show_second(*last));
    format!("{records} of class {class} lost to overload ({cause}): {size}, from {first} to {last}")
}
