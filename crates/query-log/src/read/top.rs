//! `top`: where the time went, by fingerprint.

use std::collections::{BTreeSet, HashMap};
use std::io::{IsTerminal, Write};

use anyhow::Result;
use serde_json::json;
use tidegate_journal::AtEnd;

use super::{
    durations::Durations,
    item::{Item, What},
    print::{Form, Paint, Sink, quoted},
    progress::Progress,
    sieve::{Sieve, Verdict},
    source::{self, Sources},
    stats::Holes,
    units::{count, counted, cut, duration, one_line, percent},
    zone::Zone,
};
use tidegate_config::escape::{escaped, escaped_json};
use tidegate_sql::normalize;

use crate::{
    entry::{Entry, Kind, Moment},
    options::{self, By},
};

/// More fingerprints than a person looks at; the rest is summed up.
const GROUPS_MAX: usize = 100_000;
/// What stands for the statement of that rest.
const OTHERS: &str = "(all others: there are more than 100 000 fingerprints)";
/// Users that are named; with more, it says how many.
const USERS_MAX: usize = 100;
/// What is shown of a statement in a table.
const STATEMENT_CHARS: usize = 100;

/// Calls of one fingerprint.
#[derive(Default)]
struct Group {
    fingerprint: String,
    statement: String,
    took: Durations,
    wait_us: u64,
    rows: u64,
    errors: u64,
    users: BTreeSet<String>,
}

#[derive(Default)]
struct Groups {
    by_key: HashMap<String, Group>,
    /// Those of fingerprints beyond [`GROUPS_MAX`].
    others: Group,
    total_us: u64,
    calls: u64,
    errors: u64,
    times: Option<(Moment, Moment)>,
    holes: Holes,
}

pub(super) fn run(top: &options::Top) -> Result<()> {
    let zone = Zone::new(top.look.utc);
    let sieve = Sieve::new(&top.sieve, &zone)?;
    let mut sources = Sources::open(&source::places(&top.places)?, sieve.since, AtEnd::Stop)?;
    let mut progress = Progress::new();
    let mut groups = Groups::default();
    while let Some(item) = sources.next()? {
        progress.step(|| sources.progress());
        match sieve.judge(&item) {
            Verdict::Over => break,
            Verdict::Unwanted => {}
            Verdict::Wanted => groups.add(&item),
        }
    }
    drop(progress);
    let mut out = Sink::new(None)?;
    groups.print(top, &zone, &mut out)?;
    out.finish()
}

impl Groups {
    fn add(&mut self, item: &Item) {
        let What::Record { entry, .. } = &item.what else { return self.holes.add(&item.what) };
        if !matches!(entry.kind, Kind::Query | Kind::Transaction) {
            return;
        }
        let took = entry.total_us.unwrap_or(0);
        self.calls += 1;
        self.total_us = self.total_us.saturating_add(took);
        self.errors += u64::from(entry.sqlstate.is_some());
        let (first, last) = self.times.unwrap_or((entry.time, entry.time));
        self.times = Some((first.min(entry.time), last.max(entry.time)));
        let group = self.group(entry);
        group.took.add(took);
        group.wait_us = group.wait_us.saturating_add(entry.wait_us.unwrap_or(0));
        group.rows = group.rows.saturating_add(entry.rows.unwrap_or(0));
        group.errors += u64::from(entry.sqlstate.is_some());
        if let Some(user) = &entry.user
            && group.users.len() < USERS_MAX
            && !group.users.contains(user)
        {
            group.users.insert(user.clone());
        }
    }

    fn group(&mut self, entry: &Entry) -> &mut Group {
        let key = key_of(entry);
        let is_full = self.by_key.len() >= GROUPS_MAX;
        if is_full && !self.by_key.contains_key(key) {
            if self.others.statement.is_empty() {
                OTHERS.clone_into(&mut self.others.statement);
            }
            return &mut self.others;
        }
        if !self.by_key.contains_key(key) {
            let (fingerprint, statement) = (entry.fingerprint.clone().unwrap_or_default(), statement_of(entry));
            self.by_key.insert(key.to_owned(), Group { fingerprint, statement, ..Group::default() });
        }
        self.by_key.entry(key.to_owned()).or_default()
    }

    /// Those that come first by what was asked for, and how many there are.
    fn sorted(&self, top: &options::Top) -> (Vec<&Group>, usize) {
        let others = Some(&self.others).filter(|others| others.took.count > 0);
        let mut all: Vec<&Group> = self.by_key.values().chain(others).collect();
        let by = |group: &Group| match top.by {
            By::Time => group.took.total,
            By::Calls => group.took.count,
            By::Mean => group.took.mean(),
            By::P99 => group.took.percentile(99),
            By::Errors => group.errors,
            By::Rows => group.rows,
            By::Wait => group.wait_us,
        };
        // Of those that are equal, the one with more time, so that a table is the same each time.
        let rank = |group: &&Group| {
            (std::cmp::Reverse((by(group), group.took.total, group.took.count)), group.fingerprint.clone())
        };
        all.sort_by_cached_key(rank);
        let found = all.len();
        all.truncate(top.lines);
        (all, found)
    }

    fn print(&self, top: &options::Top, zone: &Zone, out: &mut impl Write) -> Result<()> {
        let (groups, found) = self.sorted(top);
        match Form::of(&top.look, false) {
            Form::Json => self.print_json(&groups, found, out),
            Form::Csv => self.print_csv(&groups, out),
            _ => self.print_table(&groups, found, top, zone, out),
        }
    }

    fn print_json(&self, groups: &[&Group], found: usize, out: &mut impl Write) -> Result<()> {
        for group in groups {
            writeln!(out, "{}", escaped_json(&group.json(self.total_us).to_string()))?;
        }
        let times = self.times.map(|(first, last)| [first.to_string(), last.to_string()]);
        let all = json!({
            "calls": self.calls, "total_us": self.total_us, "errors": self.errors, "fingerprints": found, "times": times,
            "holes": self.holes.json(),
        });
        writeln!(out, "{}", json!({ "all": all }))?;
        Ok(())
    }

    fn print_csv(&self, groups: &[&Group], out: &mut impl Write) -> Result<()> {
        let is_looked_at = std::io::stdout().is_terminal();
        write!(
            out,
            "fingerprint,calls,share,total_us,mean_us,p50_us,p99_us,max_us,wait_us,rows,errors,users,statement\r\n"
        )?;
        for group in groups {
            let Group { fingerprint, statement, took, wait_us, rows, errors, users } = group;
            let users: Vec<&str> = users.iter().map(String::as_str).collect();
            let (share, mean) = (share(took.total, self.total_us), took.mean());
            let (p50, p99) = (took.percentile(50), took.percentile(99));
            // Nothing in a cell may move the cursor of somebody who looks on.
            let shown = |text: &str| if is_looked_at { escaped(text).into_owned() } else { text.to_owned() };
            let (users, statement) = (quoted(&shown(&users.join(" "))).into_owned(), shown(statement));
            let Durations { count, total, max, .. } = took;
            write!(
                out,
                "{fingerprint},{count},{share:.4},{total},{mean},{p50},{p99},{max},{wait_us},{rows},{errors},{users},{}\r\n",
                quoted(&statement)
            )?;
        }
        for hole in self.holes.lines(&Zone::new(true)) {
            eprintln!("tidegate: not counted: {}", one_line(&hole.to_string()));
        }
        Ok(())
    }

    fn print_table(
        &self,
        groups: &[&Group],
        found: usize,
        top: &options::Top,
        zone: &Zone,
        out: &mut impl Write,
    ) -> Result<()> {
        let paint = Paint::new(top.look.color);
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
        writeln!(out, "{}", paint.bold(&head))?;
        for group in groups {
            let errors = format!("{:>7}", count(group.errors));
            let errors = if group.errors > 0 { paint.red(&errors) } else { errors.as_str().into() };
            let statement = one_line(&group.statement);
            let statement = if top.look.full { statement } else { cut(&statement, STATEMENT_CHARS) };
            writeln!(out, "{}  {errors}  {:>10}  {statement}", group.figures(self.total_us), duration(group.wait_us))?;
        }
        let (calls, total, errors) =
            (counted(self.calls, "call"), duration(self.total_us), counted(self.errors, "error"));
        writeln!(out, "\n{} of {}; {calls}, {total}, {errors}", groups.len(), counted(found as u64, "fingerprint"))?;
        if let Some((first, last)) = self.times {
            writeln!(out, "{} to {}", zone.show_second(first), zone.show_second(last))?;
        }
        for hole in self.holes.lines(zone) {
            writeln!(out, "{}", paint.yellow(&format!("not counted: {hole}")))?;
        }
        Ok(())
    }
}

impl Group {
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

/// The fingerprint, or what there is instead.
fn key_of(entry: &Entry) -> &str {
    let tag = || entry.tag.as_deref().and_then(|tag| tag.split([' ', ';']).next());
    entry.fingerprint.as_deref().or_else(tag).unwrap_or_default()
}

/// The statement without its literals.
fn statement_of(entry: &Entry) -> String {
    let Some(statement) = &entry.statement else {
        let tag = key_of(entry);
        let is_tag = entry.fingerprint.is_none() && !tag.is_empty();
        return if is_tag { format!("({tag}, not journalled)") } else { "(not journalled)".to_owned() };
    };
    let mut out = Vec::new();
    normalize::normalize(statement.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(lines: &[&str]) -> Groups {
        let mut groups = Groups::default();
        for line in lines {
            groups.add(&Item { time: Moment::default(), what: What::of_payload(line.as_bytes()) });
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
    fn calls_of_a_fingerprint_are_added_up() {
        let lines: Vec<String> =
            (1..=100).map(|took| line("aa", &format!("select {took}"), took, r#","rows":2"#)).collect();
        let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let other = line("bb", "select x", 5050, r#","sqlstate":"42703","wait_us":7"#);
        lines.push(&other);
        let groups = groups(&lines);
        let top = |by| options::Top { by, lines: 1, ..options::Top::default() };
        let first = |by| groups.sorted(&top(by)).0[0].fingerprint.clone();
        assert_eq!((first(By::Calls), first(By::Rows)), ("aa".to_owned(), "aa".to_owned()));
        assert_eq!((first(By::P99), first(By::Errors), first(By::Wait)), ("bb".into(), "bb".into(), "bb".into()));
        let (found, all) = groups.sorted(&top(By::Calls));
        assert_eq!((found.len(), all), (1, 2));
        let json = found[0].json(groups.total_us);
        assert_eq!((&json["calls"], &json["p50_us"], &json["p99_us"]), (&100.into(), &50.into(), &99.into()));
        assert_eq!((&json["share"], &json["rows"], &json["statement"]), (&0.5.into(), &200.into(), &"select ?".into()));
    }

    #[test]
    fn what_is_beyond_the_limit_is_one_line_that_says_so() {
        let mut groups = Groups::default();
        let keys = |number: usize| (format!("{number:016x}"), Group::default());
        groups.by_key.extend((0..GROUPS_MAX).map(keys));
        for _ in 0..2 {
            let more = line("ffffffffffffffff", "select 1", 7, "");
            groups.add(&Item { time: Moment::default(), what: What::of_payload(more.as_bytes()) });
        }
        let top = options::Top { lines: 1, ..options::Top::default() };
        let (shown, _) = groups.sorted(&top);
        assert_eq!((shown[0].statement.as_str(), shown[0].took.count), (OTHERS, 2));
    }

    #[test]
    fn what_has_no_fingerprint_goes_by_its_tag() {
        let line = r#"{"time":"2026-03-01T12:00:00Z","kind":"query","tag":"SELECT 1","total_us":3}"#;
        let groups = groups(&[line, line, r#"{"time":"2026-03-01T12:00:00Z","kind":"login"}"#]);
        let (found, _) = groups.sorted(&options::Top { lines: 9, ..options::Top::default() });
        assert_eq!((found.len(), found[0].took.count), (1, 2));
        assert_eq!(found[0].statement, "(SELECT, not journalled)");
    }
}
