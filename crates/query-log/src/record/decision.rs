//! Whether something is written down, and what of its parameters.

use std::time::Duration;

use tidegate_config as config;
use tidegate_config::{Action, ParameterForm, Rule, Work, Works};
use tidegate_sql::normalize;

/// What rules ask about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) user: &'a str,
    pub(super) database: &'a str,
    pub(super) total: Duration,
    pub(super) works: Works,
    pub(super) failed: bool,
}

/// What is written of the parameters; `None` if nothing is written at all.
pub(super) fn decide(settings: &config::Journal, facts: &Facts<'_>) -> Option<ParameterForm> {
    match settings.rules.0.iter().find(|rule| matches(rule, facts)) {
        None => Some(settings.parameters),
        Some(rule) if rule.action == Action::Record => Some(rule.parameters.unwrap_or(settings.parameters)),
        Some(_) => None,
    }
}

fn matches(rule: &Rule, facts: &Facts<'_>) -> bool {
    // A query of several statements, or a transaction, is skipped if all that it does is to be skipped.
    let works = |wanted: Works| match rule.action {
        Action::Skip => facts.works.are_all_in(wanted),
        Action::Record => wanted.meets(facts.works),
    };
    let among = |names: &[String], name: &str| names.is_empty() || names.iter().any(|known| known == name);
    among(&rule.users, facts.user)
        && among(&rule.databases, facts.database)
        && facts.total >= rule.min_duration
        && (rule.statements.is_empty() || works(rule.statements))
        && (!rule.errors || facts.failed)
}

/// In which forms parameters may be asked for, by any rule.
pub(super) fn wants(settings: &config::Journal, form: ParameterForm) -> bool {
    settings.parameters == form || settings.rules.0.iter().any(|rule| rule.parameters == Some(form))
}

/// What the statements of a text do, as far as their first words and those of their parts say so. Nothing for no text.
pub(super) fn works_of(text: &[u8]) -> Works {
    if text.is_empty() {
        return Works::default();
    }
    let first = work_of(text);
    let mut works = Works::default().with(first);
    if first == Work::Select {
        // What changes something may stand within. A word in a string counts as well: then more is written down.
        let is_with = normalize::first_word(text).eq_ignore_ascii_case(b"with");
        for word in text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_') {
            works = match work_of(word) {
                work @ (Work::Insert | Work::Update | Work::Delete | Work::Merge) if is_with => works.with(work),
                _ if word.eq_ignore_ascii_case(b"into") => works.with(Work::Ddl),
                _ => works,
            };
        }
    }
    works
}

/// What a statement does, by its first word or by its command tag.
pub(super) fn work_of(text: &[u8]) -> Work {
    let word = normalize::first_word(text);
    let is = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
    let groups: [(Work, &[&str]); 8] = [
        (Work::Select, &["select", "with", "table", "values", "fetch", "show"]),
        (Work::Insert, &["insert"]),
        (Work::Update, &["update"]),
        (Work::Delete, &["delete"]),
        (Work::Merge, &["merge"]),
        (Work::Copy, &["copy"]),
        (Work::Transaction, &["begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"]),
        (Work::Ddl, &["create", "alter", "drop", "truncate", "comment", "grant", "revoke"]),
    ];
    groups.into_iter().find(|(_, words)| is(words)).map_or(Work::Utility, |(work, _)| work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Rules;

    fn facts(user: &'static str, millis: u64, work: Work, failed: bool) -> Facts<'static> {
        let works = Works::default().with(work);
        Facts { user, database: "shop", total: Duration::from_millis(millis), works, failed }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = vec![
            Rule { action: Action::Skip, users: vec!["monitor".to_owned()], ..Rule::default() },
            Rule { errors: true, parameters: Some(ParameterForm::On), ..Rule::default() },
            Rule { min_duration: Duration::from_millis(500), ..Rule::default() },
            Rule { action: Action::Skip, statements: Works::default().with(Work::Select), ..Rule::default() },
        ];
        let settings = config::Journal { rules: Rules(rules), ..config::Journal::default() };
        for (facts, expected) in [
            (facts("monitor", 900, Work::Select, true), None),
            (facts("ann", 1, Work::Select, true), Some(ParameterForm::On)),
            (facts("ann", 500, Work::Select, false), Some(ParameterForm::Off)),
            (facts("ann", 499, Work::Select, false), None),
            (facts("ann", 1, Work::Update, false), Some(ParameterForm::Off)),
        ] {
            assert_eq!(decide(&settings, &facts), expected, "{facts:?}");
        }
    }

    /// What is to be read later may hide behind what is not.
    #[test]
    fn what_changes_something_is_not_skipped_with_what_it_comes_with() {
        let reads = Works::default().with(Work::Select).with(Work::Transaction);
        let rules = vec![Rule { action: Action::Skip, statements: reads, ..Rule::default() }];
        let settings = config::Journal { rules: Rules(rules), ..config::Journal::default() };
        let is_written = |works: Works| {
            let facts = Facts { works, ..facts("ann", 1, Work::Select, false) };
            decide(&settings, &facts).is_some()
        };
        assert!(!is_written(reads) && is_written(reads.with(Work::Ddl)) && is_written(Works::default()));
        for (text, expected) in [
            ("with a as (select 1) select * from a", false),
            ("select updated_at, 'delete' from t for update", false),
            ("with d as (delete from t returning *) select * from d", true),
            ("WITH x AS (SELECT 1) DELETE FROM t", true),
            ("select 1 as a into t", true),
        ] {
            assert_eq!(is_written(works_of(text.as_bytes())), expected, "{text}");
        }
        assert!(works_of(b"").is_empty(), "its tags say what it did");
    }

    #[test]
    fn a_statement_is_known_by_its_first_word() {
        for (text, work) in [
            ("  /* a */ SELECT 1", Work::Select),
            ("(select 1)", Work::Select),
            ("DROP TABLE", Work::Ddl),
            ("INSERT 0 1", Work::Insert),
            ("vacuum", Work::Utility),
        ] {
            assert_eq!(work_of(text.as_bytes()), work, "{text}");
            assert_eq!(works_of(text.as_bytes()), Works::default().with(work), "{text}");
        }
    }
}
