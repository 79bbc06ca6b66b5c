//! Selection of entries by the arguments of a command.

use std::time::Duration;

use anyhow::{Context, Result};
use regex::{Regex, RegexBuilder};

use super::{
    log_entry::{EntryContent, LogEntry},
    units::count_noun,
    zone::Zone,
};
use crate::{
    options,
    record::{LogRecord, RecordKind, RecordTimestamp},
};

/// Maximum time by which an entry may precede an earlier one in the log: threads append records a little after the event.
const UNORDERED_MICROS: u64 = 10_000_000;

/// Result of a filter for one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FilterOutcome {
    Match,
    NoMatch,
    /// The entry is later than `--until`, and so are those that follow, unless the clock was changed.
    PastEnd,
}

/// Consecutive entries that are later than `--until`, after which no earlier one is expected.
const LATE_MAX: u64 = 10_000;

/// Finds the end of the range of `--until`. A few records with a later time, written while the clock was wrong, are passed over.
#[derive(Default)]
pub(super) struct RangeEnd {
    late: u64,
    passed_over: u64,
}

impl RangeEnd {
    /// Whether the end has been reached.
    pub(super) fn is_reached(&mut self, outcome: FilterOutcome) -> bool {
        if outcome == FilterOutcome::PastEnd {
            self.late += 1;
            return self.late >= LATE_MAX;
        }
        self.passed_over += std::mem::take(&mut self.late);
        false
    }

    /// A warning about entries that were passed over.
    pub(super) fn warning(&self) -> Option<String> {
        (self.passed_over > 0).then(|| {
            let entries = count_noun(self.passed_over, "record");
            format!("{entries} later than --until came before earlier ones: the clock of the gateway was changed")
        })
    }

    /// Prints the warning to standard error.
    pub(super) fn warn(&self) {
        if let Some(warning) = self.warning() {
            eprintln!("tidegate: {warning}");
        }
    }
}

pub(super) struct RecordFilter {
    args: options::FilterArgs,
    statements: Vec<Regex>,
    pub(super) since: Option<RecordTimestamp>,
    until: Option<RecordTimestamp>,
}

impl RecordFilter {
    pub(super) fn new(args: &options::FilterArgs, zone: &Zone) -> Result<Self> {
        let parse = |text: &Option<String>| text.as_deref().map(|text| zone.parse(text)).transpose();
        let pattern = |pattern: &str| {
            let built = RegexBuilder::new(pattern).case_insensitive(args.ignore_case).build();
            built.with_context(|| {
                format!("--grep needs a regular expression; use --contains to search for the text `{pattern}`")
            })
        };
        let greps = args.grep.iter().map(|grep| pattern(grep));
        let texts = args.contains.iter().map(|text| pattern(&regex::escape(text)));
        let statements = greps.chain(texts).collect::<Result<_>>()?;
        let (since, until) = (parse(&args.since)?, parse(&args.until)?);
        Ok(Self { statements, since, until, args: args.clone() })
    }

    /// Whether no later entry can match.
    pub(super) fn is_past_end(&self, now: RecordTimestamp) -> bool {
        self.is_late(now, UNORDERED_MICROS)
    }

    fn is_late(&self, time: RecordTimestamp, grace: u64) -> bool {
        self.until.is_some_and(|until| time.micros() > until.micros().saturating_add(grace))
    }

    pub(super) fn evaluate(&self, entry: &LogEntry) -> FilterOutcome {
        let is_late = |grace: u64| self.is_late(entry.time, grace);
        match &entry.content {
            // A loss matches if it started in the time range, because records of the range may be among the lost ones.
            EntryContent::Loss(loss) if self.until.is_none_or(|until| loss.first <= until) => FilterOutcome::Match,
            _ if is_late(UNORDERED_MICROS) => FilterOutcome::PastEnd,
            EntryContent::Missing { .. } | EntryContent::Damage(_) => FilterOutcome::Match,
            _ if is_late(0) || self.since.is_some_and(|since| entry.time < since) => FilterOutcome::NoMatch,
            EntryContent::Record { record, .. } if self.matches_record(record) => FilterOutcome::Match,
            EntryContent::Text(text) if self.matches_text(text) => FilterOutcome::Match,
            _ => FilterOutcome::NoMatch,
        }
    }

    fn matches_record(&self, record: &LogRecord) -> bool {
        let args = &self.args;
        let failed = record.sqlstate.as_deref();
        any_matches(&args.user, record.user.as_deref(), glob_matches)
            && any_matches(&args.database, record.database.as_deref(), glob_matches)
            && any_matches(&args.application, record.application.as_deref(), glob_matches)
            && any_matches(&args.client, record.client.as_deref(), has_prefix)
            && any_matches(&args.server, record.server.as_deref(), has_prefix)
            && any_matches(&args.sqlstate, failed, has_code_prefix)
            && any_matches(&args.fingerprint, record.fingerprint.as_deref(), has_code_prefix)
            && any_matches(&args.kind, Some(record.kind.name()), glob_matches)
            && one_of(&args.session, record.session)
            && one_of(&args.transaction, record.transaction)
            && (!args.errors || failed.is_some())
            && args.min_duration.is_none_or(|least| self.lasted(record, least))
            && self.matches_statement(record.statement.as_deref())
    }

    /// Whether the record lasted `least`. The duration of a session counts only if a kind of record is requested.
    fn lasted(&self, record: &LogRecord, least: Duration) -> bool {
        (record.kind != RecordKind::Disconnect || !self.args.kind.is_empty())
            && record.total_us.is_some_and(|took| u128::from(took) >= least.as_micros())
    }

    /// A text has no keys, so an argument that tests a key does not match.
    fn matches_text(&self, text: &str) -> bool {
        let options::FilterArgs { grep, contains, ignore_case, since, until, .. } = self.args.clone();
        let text_args =
            options::FilterArgs { grep, contains, ignore_case, since, until, ..options::FilterArgs::default() };
        self.args == text_args && self.matches_statement(Some(text))
    }

    fn matches_statement(&self, statement: Option<&str>) -> bool {
        let is_match = |pattern: &Regex| statement.is_some_and(|statement| pattern.is_match(statement));
        self.statements.is_empty() || self.statements.iter().any(is_match)
    }
}

fn any_matches(values: &[String], found: Option<&str>, matches: fn(&str, &str) -> bool) -> bool {
    values.is_empty() || found.is_some_and(|found| values.iter().any(|value| matches(value, found)))
}

fn one_of(values: &[u64], found: Option<u64>) -> bool {
    values.is_empty() || found.is_some_and(|found| values.contains(&found))
}

fn has_prefix(prefix: &str, found: &str) -> bool {
    found.starts_with(prefix)
}

/// Compares without regard to case, because codes contain letters.
fn has_code_prefix(prefix: &str, found: &str) -> bool {
    found.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Compares a name with a pattern in which `*` matches any text.
fn glob_matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(json: &str) -> LogEntry {
        let content = EntryContent::from_payload(json.as_bytes());
        let time = match &content {
            EntryContent::Record { record, .. } => record.time,
            EntryContent::Loss(loss) => loss.last,
            _ => RecordTimestamp::default(),
        };
        LogEntry { time, content }
    }

    const QUERY: &str = concat!(
        r#"{"time":"2026-03-01T12:00:00Z","kind":"query","client":"10.1.2.3:4567","user":"ann","database":"shop","#,
        r#""application":"till 4","session":7,"transaction":3,"statement":"select * from Orders","fingerprint":"00ab","#,
        r#""server":"db:5432","total_us":250000,"sqlstate":"40P01"}"#,
    );

    fn evaluate(filter: &options::FilterArgs, json: &str) -> FilterOutcome {
        RecordFilter::new(filter, &Zone::new(true)).expect("a filter").evaluate(&entry(json))
    }

    fn matches_record(filter: &options::FilterArgs) -> bool {
        evaluate(filter, QUERY) == FilterOutcome::Match
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn sessions_are_not_slow_queries() {
        let session = r#"{"time":"2026-03-01T12:00:00Z","kind":"disconnect","total_us":9000000}"#;
        let slow = options::FilterArgs { min_duration: Some(Duration::from_secs(1)), ..options::FilterArgs::default() };
        assert_eq!(evaluate(&slow, session), FilterOutcome::NoMatch);
        let sessions = options::FilterArgs { kind: words(&["disconnect"]), ..slow };
        assert_eq!(evaluate(&sessions, session), FilterOutcome::Match);
    }

    #[test]
    fn every_key_can_be_filtered() {
        use options::FilterArgs as S;
        let check = |yes: S, no: S| assert!(matches_record(&yes) && !matches_record(&no), "{yes:?} {no:?}");
        check(S { user: words(&["eve", "a*"]), ..S::default() }, S { user: words(&["an"]), ..S::default() });
        check(S { database: words(&["s*p"]), ..S::default() }, S { database: words(&["s*q"]), ..S::default() });
        check(S { client: words(&["10.1."]), ..S::default() }, S { client: words(&["unix"]), ..S::default() });
        check(
            S { application: words(&["till*"]), ..S::default() },
            S { application: words(&["till"]), ..S::default() },
        );
        check(S { server: words(&["db"]), ..S::default() }, S { server: words(&["other"]), ..S::default() });
        check(S { session: vec![1, 7], ..S::default() }, S { session: vec![1], ..S::default() });
        check(S { transaction: vec![3], ..S::default() }, S { transaction: vec![1], ..S::default() });
        check(S { kind: words(&["query"]), ..S::default() }, S { kind: words(&["login"]), ..S::default() });
        check(S { sqlstate: words(&["40"]), ..S::default() }, S { sqlstate: words(&["23"]), ..S::default() });
        assert!(matches_record(&S { fingerprint: words(&["00AB"]), sqlstate: words(&["40p01"]), ..S::default() }));
        check(S { fingerprint: words(&["00ab"]), ..S::default() }, S { fingerprint: words(&["01"]), ..S::default() });
        let millis = |millis| Some(Duration::from_millis(millis));
        check(S { min_duration: millis(250), ..S::default() }, S { min_duration: millis(251), ..S::default() });
        check(S { grep: words(&["from O.*s$"]), ..S::default() }, S { grep: words(&["^from"]), ..S::default() });
        check(S { contains: words(&["* from"]), ..S::default() }, S { contains: words(&["orders"]), ..S::default() });
        assert!(matches_record(&S { contains: words(&["orders"]), ignore_case: true, ..S::default() }));
        assert!(matches_record(&S { errors: true, ..S::default() }));
        assert!(
            !matches_record(&S { errors: true, user: words(&["eve"]), ..S::default() }),
            "all that are given must hold"
        );
    }

    #[test]
    fn time_bounds_are_applied() {
        let until = |text: &str| options::FilterArgs { until: Some(text.to_owned()), ..options::FilterArgs::default() };
        let since = |text: &str| options::FilterArgs { since: Some(text.to_owned()), ..options::FilterArgs::default() };
        assert_eq!(evaluate(&until("2026-03-01 12:00"), QUERY), FilterOutcome::Match);
        assert_eq!(
            evaluate(&until("2026-03-01 11:59:59"), QUERY),
            FilterOutcome::NoMatch,
            "an earlier entry may follow"
        );
        assert_eq!(evaluate(&until("2026-03-01 11:59"), QUERY), FilterOutcome::PastEnd);
        assert_eq!(evaluate(&since("2026-03-01 12:00"), QUERY), FilterOutcome::Match);
        assert_eq!(evaluate(&since("2026-03-01 12:00:01"), QUERY), FilterOutcome::NoMatch);
    }

    #[test]
    fn record_with_a_future_time_hides_no_other() {
        let mut end = RangeEnd::default();
        let outcomes = [FilterOutcome::Match, FilterOutcome::PastEnd, FilterOutcome::NoMatch];
        assert!(outcomes.into_iter().all(|outcome| !end.is_reached(outcome)));
        assert!(end.warning().is_some_and(|warning| warning.starts_with("1 record later than --until")));
        let mut end = RangeEnd::default();
        let read = (1..).find(|_| end.is_reached(FilterOutcome::PastEnd));
        assert_eq!((read, end.warning()), (Some(LATE_MAX), None));
    }

    #[test]
    fn a_loss_passes_every_filter_of_its_time() {
        let loss =
            r#"{"gap":{"class":"queries","cause":"newest","records":3,"bytes":90,"first_ns":1000,"last_ns":2000}}"#;
        let filter = options::FilterArgs { user: words(&["ann"]), errors: true, ..options::FilterArgs::default() };
        assert_eq!(evaluate(&filter, loss), FilterOutcome::Match);
        let long = loss.replace("2000", "3600000000000");
        let until = |text: &str| options::FilterArgs { until: Some(text.to_owned()), ..options::FilterArgs::default() };
        assert_eq!(evaluate(&until("1970-01-01 00:10"), &long), FilterOutcome::Match, "it began before");
        assert_eq!(
            evaluate(&until("1970-01-01 00:10"), &long.replace("1000", "3500000000000")),
            FilterOutcome::PastEnd
        );
    }

    #[test]
    fn an_invalid_pattern_has_help() {
        let filter = options::FilterArgs { grep: words(&["("]), ..options::FilterArgs::default() };
        let error = RecordFilter::new(&filter, &Zone::new(true)).err().expect("an invalid pattern");
        assert!(format!("{error:#}").contains("--contains"), "{error:#}");
    }

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("a*", "ab", true),
            ("*b*", "abc", true),
            ("a*b*c", "a-b-c", true),
            ("a*c", "ab", false),
            ("aa*a", "aa", false),
            ("ab", "abc", false),
        ] {
            assert_eq!(glob_matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
