//! Which entries are wanted.

use anyhow::{Context, Result};
use regex::{Regex, RegexBuilder};

use super::{
    item::{Item, What},
    zone::Zone,
};
use crate::{
    entry::{Entry, Moment},
    options,
};

/// How much earlier than an entry before it another may be: threads of a gateway hand in what they saw a little ago.
const UNORDERED_MICROS: u64 = 10_000_000;

/// Whether an entry is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Wanted,
    Unwanted,
    /// It and all that follow are too late.
    Over,
}

pub(super) struct Sieve {
    asked: options::Sieve,
    statements: Vec<Regex>,
    pub(super) since: Option<Moment>,
    until: Option<Moment>,
}

impl Sieve {
    pub(super) fn new(asked: &options::Sieve, zone: &Zone) -> Result<Self> {
        let read = |text: &Option<String>| text.as_deref().map(|text| zone.read(text)).transpose();
        let pattern = |pattern: &str| {
            let built = RegexBuilder::new(pattern).case_insensitive(asked.ignore_case).build();
            built.with_context(|| format!("--grep takes a regular expression; --contains takes `{pattern}` as it is"))
        };
        let greps = asked.grep.iter().map(|grep| pattern(grep));
        let texts = asked.contains.iter().map(|text| pattern(&regex::escape(text)));
        let statements = greps.chain(texts).collect::<Result<_>>()?;
        let (since, until) = (read(&asked.since)?, read(&asked.until)?);
        Ok(Self { statements, since, until, asked: asked.clone() })
    }

    /// Whether nothing that is wanted can come any more.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.is_late(now, UNORDERED_MICROS)
    }

    fn is_late(&self, time: Moment, grace: u64) -> bool {
        self.until.is_some_and(|until| time.micros() > until.micros().saturating_add(grace))
    }

    pub(super) fn judge(&self, item: &Item) -> Verdict {
        let late = |grace: u64| self.is_late(item.time, grace);
        match &item.what {
            // A hole is shown if it may have had something of the time in it, however long after that it ended.
            What::Loss(loss) if self.until.is_none_or(|until| loss.first <= until) => Verdict::Wanted,
            _ if late(UNORDERED_MICROS) => Verdict::Over,
            What::Missing { .. } | What::Damage(_) => Verdict::Wanted,
            _ if late(0) || self.since.is_some_and(|since| item.time < since) => Verdict::Unwanted,
            What::Record { entry, .. } if self.takes(entry) => Verdict::Wanted,
            What::Text(text) if self.takes_text(text) => Verdict::Wanted,
            _ => Verdict::Unwanted,
        }
    }

    fn takes(&self, entry: &Entry) -> bool {
        let asked = &self.asked;
        let failed = entry.sqlstate.as_deref();
        any(&asked.user, entry.user.as_deref(), matches)
            && any(&asked.database, entry.database.as_deref(), matches)
            && any(&asked.application, entry.application.as_deref(), matches)
            && any(&asked.client, entry.client.as_deref(), begins)
            && any(&asked.server, entry.server.as_deref(), begins)
            && any(&asked.sqlstate, failed, begins_code)
            && any(&asked.fingerprint, entry.fingerprint.as_deref(), begins_code)
            && any(&asked.kind, Some(entry.kind.name()), matches)
            && one_of(&asked.session, entry.session)
            && one_of(&asked.transaction, entry.transaction)
            && (!asked.errors || failed.is_some())
            && asked
                .min_duration
                .is_none_or(|least| entry.total_us.is_some_and(|took| u128::from(took) >= least.as_micros()))
            && self.says(entry.statement.as_deref())
    }

    /// A text has no keys, so whoever asks for one does not want it.
    fn takes_text(&self, text: &str) -> bool {
        let options::Sieve { grep, contains, ignore_case, since, until, .. } = self.asked.clone();
        let asked_of_texts = options::Sieve { grep, contains, ignore_case, since, until, ..options::Sieve::default() };
        self.asked == asked_of_texts && self.says(Some(text))
    }

    fn says(&self, statement: Option<&str>) -> bool {
        let said = |pattern: &Regex| statement.is_some_and(|statement| pattern.is_match(statement));
        self.statements.is_empty() || self.statements.iter().any(said)
    }
}

fn any(asked: &[String], found: Option<&str>, fits: fn(&str, &str) -> bool) -> bool {
    asked.is_empty() || found.is_some_and(|found| asked.iter().any(|asked| fits(asked, found)))
}

fn one_of(asked: &[u64], found: Option<u64>) -> bool {
    asked.is_empty() || found.is_some_and(|found| asked.contains(&found))
}

fn begins(asked: &str, found: &str) -> bool {
    found.starts_with(asked)
}

/// Letters of codes may be written either way.
fn begins_code(asked: &str, found: &str) -> bool {
    found.get(..asked.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(asked))
}

/// A name, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
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

    fn item(json: &str) -> Item {
        let what = What::of_payload(json.as_bytes());
        let time = match &what {
            What::Record { entry, .. } => entry.time,
            What::Loss(loss) => loss.last,
            _ => Moment::default(),
        };
        Item { time, what }
    }

    const QUERY: &str = concat!(
        r#"{"time":"2026-03-01T12:00:00Z","kind":"query","client":"10.1.2.3:4567","user":"ann","database":"shop","#,
        r#""application":"till 4","session":7,"transaction":3,"statement":"select * from Orders","fingerprint":"00ab","#,
        r#""server":"db:5432","total_us":250000,"sqlstate":"40P01"}"#,
    );

    fn judge(sieve: &options::Sieve, json: &str) -> Verdict {
        Sieve::new(sieve, &Zone::new(true)).expect("a sieve").judge(&item(json))
    }

    fn takes(sieve: &options::Sieve) -> bool {
        judge(sieve, QUERY) == Verdict::Wanted
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn every_key_can_be_asked_for() {
        use options::Sieve as S;
        let asked = |yes: S, no: S| assert!(takes(&yes) && !takes(&no), "{yes:?} {no:?}");
        asked(S { user: words(&["eve", "a*"]), ..S::default() }, S { user: words(&["an"]), ..S::default() });
        asked(S { database: words(&["s*p"]), ..S::default() }, S { database: words(&["s*q"]), ..S::default() });
        asked(S { client: words(&["10.1."]), ..S::default() }, S { client: words(&["unix"]), ..S::default() });
        asked(
            S { application: words(&["till*"]), ..S::default() },
            S { application: words(&["till"]), ..S::default() },
        );
        asked(S { server: words(&["db"]), ..S::default() }, S { server: words(&["other"]), ..S::default() });
        asked(S { session: vec![1, 7], ..S::default() }, S { session: vec![1], ..S::default() });
        asked(S { transaction: vec![3], ..S::default() }, S { transaction: vec![1], ..S::default() });
        asked(S { kind: words(&["query"]), ..S::default() }, S { kind: words(&["login"]), ..S::default() });
        asked(S { sqlstate: words(&["40"]), ..S::default() }, S { sqlstate: words(&["23"]), ..S::default() });
        assert!(takes(&S { fingerprint: words(&["00AB"]), sqlstate: words(&["40p01"]), ..S::default() }));
        asked(S { fingerprint: words(&["00ab"]), ..S::default() }, S { fingerprint: words(&["01"]), ..S::default() });
        let millis = |millis| Some(std::time::Duration::from_millis(millis));
        asked(S { min_duration: millis(250), ..S::default() }, S { min_duration: millis(251), ..S::default() });
        asked(S { grep: words(&["from O.*s$"]), ..S::default() }, S { grep: words(&["^from"]), ..S::default() });
        asked(S { contains: words(&["* from"]), ..S::default() }, S { contains: words(&["orders"]), ..S::default() });
        assert!(takes(&S { contains: words(&["orders"]), ignore_case: true, ..S::default() }));
        assert!(takes(&S { errors: true, ..S::default() }));
        assert!(!takes(&S { errors: true, user: words(&["eve"]), ..S::default() }), "all that are given must hold");
    }

    #[test]
    fn times_bound_it_and_what_is_much_later_ends_it() {
        let until = |text: &str| options::Sieve { until: Some(text.to_owned()), ..options::Sieve::default() };
        let since = |text: &str| options::Sieve { since: Some(text.to_owned()), ..options::Sieve::default() };
        assert_eq!(judge(&until("2026-03-01 12:00"), QUERY), Verdict::Wanted);
        assert_eq!(judge(&until("2026-03-01 11:59:59"), QUERY), Verdict::Unwanted, "one that is earlier may follow");
        assert_eq!(judge(&until("2026-03-01 11:59"), QUERY), Verdict::Over);
        assert_eq!(judge(&since("2026-03-01 12:00"), QUERY), Verdict::Wanted);
        assert_eq!(judge(&since("2026-03-01 12:00:01"), QUERY), Verdict::Unwanted);
    }

    #[test]
    fn a_loss_passes_every_sieve_of_its_time() {
        let loss =
            r#"{"gap":{"class":"queries","cause":"newest","records":3,"bytes":90,"first_ns":1000,"last_ns":2000}}"#;
        let sieve = options::Sieve { user: words(&["ann"]), errors: true, ..options::Sieve::default() };
        assert_eq!(judge(&sieve, loss), Verdict::Wanted);
        let long = loss.replace("2000", "3600000000000");
        let until = |text: &str| options::Sieve { until: Some(text.to_owned()), ..options::Sieve::default() };
        assert_eq!(judge(&until("1970-01-01 00:10"), &long), Verdict::Wanted, "it began before");
        assert_eq!(judge(&until("1970-01-01 00:10"), &long.replace("1000", "3500000000000")), Verdict::Over);
    }

    #[test]
    fn a_pattern_that_is_none_says_so() {
        let sieve = options::Sieve { grep: words(&["("]), ..options::Sieve::default() };
        let error = Sieve::new(&sieve, &Zone::new(true)).err().expect("it is no expression");
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
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
