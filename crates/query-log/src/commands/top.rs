//! `top`: statements by time, calls, errors or rows, grouped by fingerprint.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;
use tidegate_journal::AtEnd;

use super::{
    durations::DurationHistogram,
    filter::{FilterOutcome, RangeEnd, RecordFilter},
    log_entry::{EntryContent, LogEntry},
    print::{AnsiStyle, Output, OutputFormat, write_row},
    progress::ReadProgress,
    source::{self, LogLocation, MergedSources},
    stats::Gaps,
    units::{count, count_noun, duration, one_line, percent, terminal_width, truncate},
    zone::Zone,
};
use tidegate_config::escape::{escaped, escaped_json};
use tidegate_sql::normalize;

use crate::{
    options::{self, TopOrder},
    record::{LogRecord, RecordKind, RecordTimestamp},
};

/// Maximum number of groups in memory; further fingerprints are counted as one group.
const GROUPS_MAX: usize = 100_000;
/// Statement of the group of further fingerprints.
const OTHERS: &str = "(all others: more than 100 000 fingerprints)";
/// Maximum number of users that a group lists.
const USERS_MAX: usize = 100;
/// Maximum length of a statement in a table.
const STATEMENT_CHARS: usize = 100;
/// Columns from which a group is one line.
const WIDE_TABLE: usize = 160;

/// Calls of one fingerprint.
#[derive(Default)]
struct StatementGroup {
    fingerprint: String,
    statement: String,
    took: DurationHistogram,
    wait_us: u64,
    rows: u64,
    errors: u64,
    users: BTreeSet<String>,
}

#[derive(Default)]
struct StatementGroups {
    by_key: HashMap<String, StatementGroup>,
    /// Calls of fingerprints beyond [`GROUPS_MAX`].
    others: StatementGroup,
    total_us: u64,
    calls: u64,
    errors: u64,
    times: Option<(RecordTimestamp, RecordTimestamp)>,
    gaps: Gaps,
}

pub(super) fn run(top: &options::TopArgs) -> Result<()> {
    let zone = Zone::new(top.display.utc);
    let filter = RecordFilter::new(&top.filter, &zone)?;
    let mut sources = MergedSources::open(&source::locations(&top.source)?, filter.since, AtEnd::Stop)?;
    let mut progress = ReadProgress::new();
    let mut groups = StatementGroups::default();
    let mut end = RangeEnd::default();
    while let Some(entry) = sources.next()? {
        progress.step(|| sources.progress());
        let outcome = filter.evaluate(&entry);
        if end.is_reached(outcome) {
            break;
        }
        if outcome == FilterOutcome::Match {
            groups.add(&entry);
        }
    }
    drop(progress);
    end.warn();
    let mut out = Output::new(None)?;
    groups.print(top, &zone, &mut out)?;
    out.finish()
}

/// The statements that took most time in the period before now, as JSON with the fields of `top --json`. Reads at most
/// `records_max` records, the oldest first; `is_complete` reports whether there are no more.
///
/// # Errors
/// If the folder cannot be read.
pub fn slow_queries(folder: &Path, period: Duration, records_max: u64, lines: usize) -> Result<serde_json::Value> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let begin = now.saturating_sub(period).as_micros();
    let since = RecordTimestamp::from_micros(u64::try_from(begin).unwrap_or(u64::MAX));
    let location = LogLocation::find_if_present(folder)?;
    let mut sources = MergedSources::open(location.as_slice(), Some(since), AtEnd::Stop)?;
    let mut groups = StatementGroups::default();
    let (mut records, mut is_complete) = (0, true);
    while let Some(entry) = sources.next()? {
        if entry.time < since {
            continue;
        }
        records += 1;
        if records > records_max {
            is_complete = false;
            break;
        }
        groups.add(&entry);
    }
    let (sorted, found) = groups.sorted(&options::TopArgs { lines, ..options::TopArgs::default() });
    let statements: Vec<_> = sorted.iter().map(|group| group.json(groups.total_us)).collect();
    Ok(json!({
        "statements": statements, "calls": groups.calls, "total_us": groups.total_us, "errors": groups.errors,
        "fingerprints": found, "is_complete": is_complete, "gaps": groups.gaps.json(),
    }))
}

impl StatementGroups {
    fn add(&mut self, entry: &LogEntry) {
        let EntryContent::Record { record, .. } = &entry.content else { return self.gaps.add(&entry.content) };
        if !matches!(record.kind, RecordKind::Query | RecordKind::Transaction) {
            return;
        }
        let took = record.total_us.unwrap_or(0);
        self.calls += 1;
        self.total_us = self.total_us.saturating_add(took);
        self.errors += u64::from(record.sqlstate.is_some());
        let (first, last) = self.times.unwrap_or((record.time, record.time));
        self.times = Some((first.min(record.time), last.max(record.time)));
        let group = self.group(record);
        group.took.add(took);
        group.wait_us = group.wait_us.saturating_add(record.wait_us.unwrap_or(0));
        group.rows = group.rows.saturating_add(record.rows.unwrap_or(0));
        group.errors += u64::from(record.sqlstate.is_some());
        if let Some(user) = &record.user
            && group.users.len() < USERS_MAX
            && !group.users.contains(user)
        {
            group.users.insert(user.clone());
        }
    }

    fn group(&mut self, record: &LogRecord) -> &mut StatementGroup {
        let key = group_key(record);
        let is_full = self.by_key.len() >= GROUPS_MAX;
        if is_full && !self.by_key.contains_key(key) {
            if self.others.statement.is_empty() {
                OTHERS.clone_into(&mut self.others.statement);
            }
            return &mut self.others;
        }
        if !self.by_key.contains_key(key) {
            let (fingerprint, statement) = (record.fingerprint.clone().unwrap_or_default(), group_statement(record));
            self.by_key.insert(key.to_owned(), StatementGroup { fingerprint, statement, ..StatementGroup::default() });
        }
        self.by_key.entry(key.to_owned()).or_default()
    }

    /// The first groups in the requested order, and the number of all groups.
    fn sorted(&self, top: &options::TopArgs) -> (Vec<&StatementGroup>, usize) {
        let others = Some(&self.others).filter(|others| others.took.count > 0);
        let mut all: Vec<&StatementGroup> = self.by_key.values().chain(others).collect();
        let by = |group: &StatementGroup| match top.by {
            TopOrder::Time => group.took.total,
            TopOrder::Calls => group.took.count,
            TopOrder::Mean => group.took.mean(),
            TopOrder::P99 => group.took.percentile(99),
            TopOrder::Errors => group.errors,
            TopOrder::Rows => group.rows,
            TopOrder::Wait => group.wait_us,
        };
        // Ties are broken by time, calls and fingerprint, so that the output is deterministic.
        let rank = |group: &&StatementGroup| {
            (std::cmp::Reverse((by(group), group.took.total, group.took.count)), group.fingerprint.clone())
        };
        all.sort_by_cached_key(rank);
        let found = all.len();
        all.truncate(top.lines);
        (all, found)
    }

    fn print(&self, top: &options::TopArgs, zone: &Zone, out: &mut impl Write) -> Result<()> {
        let (groups, found) = self.sorted(top);
        match OutputFormat::of(&top.display, false) {
            OutputFormat::Json => self.print_json(&groups, found, out),
            OutputFormat::Csv => self.print_csv(&groups, out),
            _ => self.print_table(&groups, found, top, zone, out),
        }
    }

    fn print_json(&self, groups: &[&StatementGroup], found: usize, out: &mut impl Write) -> Result<()> {
        for group in groups {
            writeln!(out, "{}", escaped_json(&group.json(self.total_us).to_string()))?;
        }
        let times = self.times.map(|(first, last)| [first.to_string(), last.to_string()]);
        let all = json!({
            "calls": self.calls, "total_us": self.total_us, "errors": self.errors, "fingerprints": found, "times": times,
            "gaps": self.gaps.json(),
        });
        writeln!(out, "{}", json!({ "all": all }))?;
        Ok(())
    }

    fn print_csv(&self, groups: &[&StatementGroup], out: &mut impl Write) -> Result<()> {
        let is_terminal = std::io::stdout().is_terminal();
        let columns = [
            "fingerprint",
            "calls",
            "share",
            "total_us",
            "mean_us",
            "p50_us",
            "p99_us",
            "max_us",
            "wait_us",
            "rows",
            "errors",
            "users",
            "statement",
        ];
        write_row(columns.map(Cow::Borrowed), out)?;
        for group in groups {
            let StatementGroup { fingerprint, statement, took, wait_us, rows, errors, users } = group;
            let users: Vec<&str> = users.iter().map(String::as_str).collect();
            let (share, mean) = (share(took.total, self.total_us), took.mean());
            let (p50, p99) = (took.percentile(50), took.percentile(99));
            // Cells must not contain control characters on a terminal.
            let shown = |text: &str| if is_terminal { escaped(text).into_owned() } else { text.to_owned() };
            let DurationHistogram { count, total, max, .. } = took;
            let numbers =
                [*count, *total, mean, p50, p99, *max, *wait_us, *rows, *errors].map(|number| number.to_string());
            let [count, rest @ ..] = numbers;
            let mut cells = vec![fingerprint.to_string(), count, format!("{share:.4}")];
            cells.extend(rest);
            cells.extend([shown(&users.join(" ")), shown(statement)]);
            write_row(cells.into_iter().map(Cow::Owned), out)?;
        }
        for gap in self.gaps.lines(&Zone::new(true)) {
            eprintln!("tidegate: not counted: {}", one_line(&gap.to_string()));
        }
        Ok(())
    }

    fn print_table(
        &self,
        groups: &[&StatementGroup],
        found: usize,
        top: &options::TopArgs,
        zone: &Zone,
        out: &mut impl Write,
    ) -> Result<()> {
        let style = AnsiStyle::new(top.display.color);
        if let Some(width) = terminal_width().filter(|width| *width < WIDE_TABLE && !top.display.full) {
            self.print_narrow(groups, style, width, out)?;
        } else {
            self.print_wide(groups, style, top, out)?;
        }
        self.print_summary(groups.len(), found, style, zone, out)
    }

    /// Prints a line per group.
    fn print_wide(
        &self,
        groups: &[&StatementGroup],
        style: AnsiStyle,
        top: &options::TopArgs,
        out: &mut impl Write,
    ) -> Result<()> {
        let head = format!(
            "{:<16}  {:>9}  {:>7}  {:>11}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}  {:>7}  {:>10}  {}",
            "fingerprint",
            "calls",
            "share",
            "total",
            "mean",
            "p50",
            "p99",
            "max",
            "rows",
            "errors",
            "wait",
            "statement"
        );
        writeln!(out, "{}", style.bold(&head))?;
        for group in groups {
            let errors = format!("{:>7}", count(group.errors));
            let errors = if group.errors > 0 { style.red(&errors) } else { errors.as_str().into() };
            let statement = one_line(&group.statement);
            let statement = if top.display.full { statement } else { truncate(&statement, STATEMENT_CHARS) };
            writeln!(out, "{}  {errors}  {:>10}  {statement}", group.figures(self.total_us), duration(group.wait_us))?;
        }
        Ok(())
    }

    /// Two lines per group, for narrow terminals: figures, and the statement below.
    fn print_narrow(
        &self,
        groups: &[&StatementGroup],
        style: AnsiStyle,
        width: usize,
        out: &mut impl Write,
    ) -> Result<()> {
        let head = format!(
            "{:<16} {:>9} {:>7} {:>10} {:>9} {:>9} {:>7}",
            "fingerprint", "calls", "share", "total", "mean", "p99", "errors"
        );
        writeln!(out, "{}", style.bold(&head))?;
        for group in groups {
            let errors = format!("{:>7}", count(group.errors));
            let errors = if group.errors > 0 { style.red(&errors) } else { errors.as_str().into() };
            writeln!(out, "{} {errors}", group.narrow_figures(self.total_us))?;
            writeln!(out, "  {}", truncate(&one_line(&group.statement), width.saturating_sub(2)))?;
        }
        Ok(())
    }

    fn print_summary(
        &self,
        shown: usize,
        found: usize,
        style: AnsiStyle,
        zone: &Zone,
        out: &mut impl Write,
    ) -> Result<()> {
        let (calls, total, errors) =
            (count_noun(self.calls, "call"), duration(self.total_us), count_noun(self.errors, "error"));
        writeln!(out, "\n{shown} of {}; {calls}, {total}, {errors}", count_noun(found as u64, "fingerprint"))?;
        if let Some((first, last)) = self.times {
            writeln!(out, "{} to {}", zone.format_second(first), zone.format_second(last))?;
        }
        for gap in self.gaps.lines(zone) {
            writeln!(out, "{}", style.yellow(&format!("not counted: {gap}")))?;
        }
        Ok(())
    }
}

impl StatementGroup {
    fn narrow_figures(&self, of_us: u64) -> String {
        let took = &self.took;
        format!(
            "{:<16} {:>9} {:>7} {:>10} {:>9} {:>9}",
            self.fingerprint,
            count(took.count),
            percent(took.total, of_us),
            duration(took.total),
            duration(took.mean()),
            duration(took.percentile(99)),
        )
    }

    fn figures(&self, of_us: u64) -> String {
        let took = &self.took;
        format!(
            "{:<16}  {:>9}  {:>7}  {:>11}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}",
            self.fingerprint,
            count(took.count),
            percent(took.total, of_us),
            duration(took.total),
            duration(took.mean()),
            duration(took.percentile(50)),
            duration(took.percentile(99)),
            duration(took.max),
            count(self.rows),
        )
    }

    fn json(&self, of_us: u64) -> serde_json::Value {
        let took = &self.took;
        json!({
            "fingerprint": self.fingerprint,
            "statement": self.statement,
            "calls": took.count,
            "share": share(took.total, of_us),
            "total_us": took.total,
            "mean_us": took.mean(),
            "p50_us": took.percentile(50),
            "p99_us": took.percentile(99),
            "max_us": took.max,
            "wait_us": self.wait_us,
            "rows": self.rows,
            "errors": self.errors,
            "users": self.users,
        })
    }
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// The fingerprint, or the first word of the command tag without one.
fn group_key(record: &LogRecord) -> &str {
    let tag = || record.tag.as_deref().and_then(|tag| tag.split([' ', ';']).next());
    record.fingerprint.as_deref().or_else(tag).unwrap_or_default()
}

/// The statement with its literals replaced.
pub(super) fn group_statement(record: &LogRecord) -> String {
    let Some(statement) = &record.statement else {
        let tag = group_key(record);
        let is_tag = record.fingerprint.is_none() && !tag.is_empty();
        return if is_tag { format!("({tag}, not recorded)") } else { "(not recorded)".to_owned() };
    };
    let mut out = Vec::new();
    normalize::normalize(statement.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(lines: &[&str]) -> StatementGroups {
        let mut groups = StatementGroups::default();
        for line in lines {
            groups.add(&LogEntry {
                time: RecordTimestamp::default(),
                content: EntryContent::from_payload(line.as_bytes()),
            });
        }
        groups
    }

    fn line(fingerprint: &str, statement: &str, took: u64, more: &str) -> String {
        format!(
            concat!(
                r#"{{"time":"2026-03-01T12:00:00Z","kind":"query","user":"ann","statement":"{statement}","#,
                r#""fingerprint":"{fingerprint}","total_us":{took}{more}}}"#,
            ),
            statement = statement,
            fingerprint = fingerprint,
            took = took,
            more = more
        )
    }

    #[test]
    fn calls_of_a_fingerprint_are_summed() {
        let lines: Vec<String> =
            (1..=100).map(|took| line("aa", &format!("select {took}"), took, r#","rows":2"#)).collect();
        let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let other = line("bb", "select x", 5050, r#","sqlstate":"42703","wait_us":7"#);
        lines.push(&other);
        let groups = groups(&lines);
        let top = |by| options::TopArgs { by, lines: 1, ..options::TopArgs::default() };
        let first = |by| groups.sorted(&top(by)).0[0].fingerprint.clone();
        assert_eq!((first(TopOrder::Calls), first(TopOrder::Rows)), ("aa".to_owned(), "aa".to_owned()));
        assert_eq!(
            (first(TopOrder::P99), first(TopOrder::Errors), first(TopOrder::Wait)),
            ("bb".into(), "bb".into(), "bb".into())
        );
        let (found, all) = groups.sorted(&top(TopOrder::Calls));
        assert_eq!((found.len(), all), (1, 2));
        let json = found[0].json(groups.total_us);
        assert_eq!((&json["calls"], &json["p50_us"], &json["p99_us"]), (&100.into(), &50.into(), &99.into()));
        assert_eq!((&json["share"], &json["rows"], &json["statement"]), (&0.5.into(), &200.into(), &"select ?".into()));
    }

    #[test]
    fn narrow_table_fits_into_80_columns() {
        let statement = format!("select {} from t", "a_long_column, ".repeat(20));
        let lines = [line("0123456789abcdef", &statement, 123_456_789, r#","sqlstate":"42703""#)];
        let groups = groups(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let (found, _) = groups.sorted(&options::TopArgs { lines: 9, ..options::TopArgs::default() });
        let mut out = Vec::new();
        groups.print_narrow(&found, AnsiStyle::new(options::ColorChoice::Never), 80, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("0123456789abcdef") && text.contains("select a_long_column"), "{text}");
    }

    #[test]
    fn fingerprints_beyond_the_limit_are_one_group() {
        let mut groups = StatementGroups::default();
        let keys = |number: usize| (format!("{number:016x}"), StatementGroup::default());
        groups.by_key.extend((0..GROUPS_MAX).map(keys));
        for _ in 0..2 {
            let more = line("ffffffffffffffff", "select 1", 7, "");
            groups.add(&LogEntry {
                time: RecordTimestamp::default(),
                content: EntryContent::from_payload(more.as_bytes()),
            });
        }
        let top = options::TopArgs { lines: 1, ..options::TopArgs::default() };
        let (shown, _) = groups.sorted(&top);
        assert_eq!((shown[0].statement.as_str(), shown[0].took.count), (OTHERS, 2));
    }

    #[test]
    fn statements_without_fingerprint_are_grouped_by_tag() {
        let line = r#"{"time":"2026-03-01T12:00:00Z","kind":"query","tag":"SELECT 1","total_us":3}"#;
        let groups = groups(&[line, line, r#"{"time":"2026-03-01T12:00:00Z","kind":"login"}"#]);
        let (found, _) = groups.sorted(&options::TopArgs { lines: 9, ..options::TopArgs::default() });
        assert_eq!((found.len(), found[0].took.count), (1, 2));
        assert_eq!(found[0].statement, "(SELECT, not recorded)");
    }
}
