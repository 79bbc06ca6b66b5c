//! Rules of `[[journal.rules]]`: whether a query is recorded, and in which form its parameters are.

use std::time::Duration;

use tidegate_config as config;
use tidegate_config::{JournalRule, ParameterForm, RuleAction, StatementClass, StatementClasses};
use tidegate_sql::normalize;

/// Properties of a query or transaction that rules test.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleInput<'a> {
    pub(super) user: &'a str,
    pub(super) database: &'a str,
    pub(super) total: Duration,
    pub(super) classes: StatementClasses,
    pub(super) failed: bool,
}

/// The form of the parameters; `None` if the query is not recorded.
pub(super) fn apply_rules(settings: &config::QueryLogConfig, input: &RuleInput<'_>) -> Option<ParameterForm> {
    match settings.rules.0.iter().find(|rule| matches(rule, input)) {
        None => Some(settings.parameters),
        Some(rule) if rule.action == RuleAction::Record => Some(rule.parameters.unwrap_or(settings.parameters)),
        Some(_) => None,
    }
}

fn matches(rule: &JournalRule, input: &RuleInput<'_>) -> bool {
    // A query of several statements, or a transaction, is skipped only if all its statement classes are.
    let classes = |rule_classes: StatementClasses| match rule.action {
        RuleAction::Skip => input.classes.is_covered_by(rule_classes),
        RuleAction::Record => rule_classes.intersects(input.classes),
    };
    let among = |names: &[String], name: &str| names.is_empty() || names.iter().any(|known| known == name);
    among(&rule.users, input.user)
        && among(&rule.databases, input.database)
        && input.total >= rule.min_duration
        && (rule.statements.is_empty() || classes(rule.statements))
        && (!rule.errors || input.failed)
}

/// Whether any rule may record parameters in this form.
pub(super) fn may_record_parameters(settings: &config::QueryLogConfig, form: ParameterForm) -> bool {
    settings.parameters == form || settings.rules.0.iter().any(|rule| rule.parameters == Some(form))
}

/// Statement classes of a text, by its first word and the data-modifying words inside it. Empty for an empty text.
pub(super) fn statement_classes(text: &[u8]) -> StatementClasses {
    if text.is_empty() {
        return StatementClasses::default();
    }
    let first = statement_class(text);
    let mut classes = StatementClasses::default().with(first);
    if first == StatementClass::Select {
        // A `WITH` query may contain data-modifying statements, and `SELECT INTO` creates a table. A word in a string
        // counts as well: a false positive records more, not less.
        let is_with = normalize::first_word(text).eq_ignore_ascii_case(b"with");
        for word in text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_') {
            classes = match statement_class(word) {
                work @ (StatementClass::Insert
                | StatementClass::Update
                | StatementClass::Delete
                | StatementClass::Merge)
                    if is_with =>
                {
                    classes.with(work)
                }
                _ if word.eq_ignore_ascii_case(b"into") => classes.with(StatementClass::Ddl),
                _ => classes,
            };
        }
    }
    classes
}

/// Class of a statement, by its first word or by its command tag.
pub(super) fn statement_class(text: &[u8]) -> StatementClass {
    let word = normalize::first_word(text);
    let is = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
    let groups: [(StatementClass, &[&str]); 8] = [
        (StatementClass::Select, &["select", "with", "table", "values", "fetch", "show"]),
        (StatementClass::Insert, &["insert"]),
        (StatementClass::Update, &["update"]),
        (StatementClass::Delete, &["delete"]),
        (StatementClass::Merge, &["merge"]),
        (StatementClass::Copy, &["copy"]),
        (
            StatementClass::Transaction,
            &["begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"],
        ),
        (StatementClass::Ddl, &["create", "alter", "drop", "truncate", "comment", "grant", "revoke"]),
    ];
    groups.into_iter().find(|(_, words)| is(words)).map_or(StatementClass::Utility, |(work, _)| work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::JournalRules;

    fn input(user: &'static str, millis: u64, work: StatementClass, failed: bool) -> RuleInput<'static> {
        let classes = StatementClasses::default().with(work);
        RuleInput { user, database: "shop", total: Duration::from_millis(millis), classes, failed }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let rules = vec![
            JournalRule { action: RuleAction::Skip, users: vec!["monitor".to_owned()], ..JournalRule::default() },
            JournalRule { errors: true, parameters: Some(ParameterForm::On), ..JournalRule::default() },
            JournalRule { min_duration: Duration::from_millis(500), ..JournalRule::default() },
            JournalRule {
                action: RuleAction::Skip,
                statements: StatementClasses::default().with(StatementClass::Select),
                ..JournalRule::default()
            },
        ];
        let settings = config::QueryLogConfig { rules: JournalRules(rules), ..config::QueryLogConfig::default() };
        for (input, expected) in [
            (input("monitor", 900, StatementClass::Select, true), None),
            (input("ann", 1, StatementClass::Select, true), Some(ParameterForm::On)),
            (input("ann", 500, StatementClass::Select, false), Some(ParameterForm::Off)),
            (input("ann", 499, StatementClass::Select, false), None),
            (input("ann", 1, StatementClass::Update, false), Some(ParameterForm::Off)),
        ] {
            assert_eq!(apply_rules(&settings, &input), expected, "{input:?}");
        }
    }

    #[test]
    fn a_skip_rule_must_cover_all_statement_classes() {
        let reads = StatementClasses::default().with(StatementClass::Select).with(StatementClass::Transaction);
        let rules = vec![JournalRule { action: RuleAction::Skip, statements: reads, ..JournalRule::default() }];
        let settings = config::QueryLogConfig { rules: JournalRules(rules), ..config::QueryLogConfig::default() };
        let is_written = |classes: StatementClasses| {
            let input = RuleInput { classes, ..input("ann", 1, StatementClass::Select, false) };
            apply_rules(&settings, &input).is_some()
        };
        assert!(
            !is_written(reads)
                && is_written(reads.with(StatementClass::Ddl))
                && is_written(StatementClasses::default())
        );
        for (text, expected) in [
            ("with a as (select 1) select * from a", false),
            ("select updated_at, 'delete' from t for update", false),
            ("with d as (delete from t returning *) select * from d", true),
            ("WITH x AS (SELECT 1) DELETE FROM t", true),
            ("select 1 as a into t", true),
        ] {
            assert_eq!(is_written(statement_classes(text.as_bytes())), expected, "{text}");
        }
        assert!(statement_classes(b"").is_empty(), "its tags determine the classes");
    }

    #[test]
    fn the_first_word_determines_the_class() {
        for (text, work) in [
            ("  /* a */ SELECT 1", StatementClass::Select),
            ("(select 1)", StatementClass::Select),
            ("DROP TABLE", StatementClass::Ddl),
            ("INSERT 0 1", StatementClass::Insert),
            ("vacuum", StatementClass::Utility),
        ] {
            assert_eq!(statement_class(text.as_bytes()), work, "{text}");
            assert_eq!(statement_classes(text.as_bytes()), StatementClasses::default().with(work), "{text}");
        }
    }
}
