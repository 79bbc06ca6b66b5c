//! Whether something is written down, and what of its parameters.

use std::time::Duration;

use super::shape;
use crate::config::{self, Action, ParameterForm, Rule, Work, Works};

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
    let among = |names: &[String], name: &str| names.is_empty() || names.iter().any(|known| known == name);
    among(&rule.users, facts.user)
        && among(&rule.databases, facts.database)
        && facts.total >= rule.min_duration
        && (rule.statements.is_empty() || rule.statements.meets(facts.works))
        && (!rule.errors || facts.failed)
}

/// In which forms parameters may be asked for, by any rule.
pub(super) fn wants(settings: &config::Journal, form: ParameterForm) -> bool {
    settings.parameters == form || settings.rules.0.iter().any(|rule| rule.parameters == Some(form))
}

/// What a statement does, by its first word or by its command tag.
pub(super) fn work_of(text: &[u8]) -> Work {
    let word = shape::first_word(text);
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
    use crate::config::Rules;

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

    #[test]
    fn a_statement_is_known_by_its_first_word() {
        for (text, work) in [
            ("  /* a */ SELECT 1", Work::Select),
            ("(select 1)", Work::Select),
            ("DROP TABLE", Work::Ddl),
            ("INSERT 0 1", Work::Insert),
            ("vacuum", Work::Utility),
            ("", Work::Utility),
        ] {
            assert_eq!(work_of(text.as_bytes()), work, "{text}");
        }
    }
}
