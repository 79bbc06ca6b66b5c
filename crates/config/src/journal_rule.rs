//! `[[journal.rules]]`: selects the queries that the query log records. The first matching rule decides.

use std::time::Duration;

use super::keys::ParameterForm;
use super::raw::{RawEntry, RawValue, SpannedValue};
use super::setting::{Setting, ValueError, list, nearest, words};

words! {
    /// Action of a matching rule.
    pub enum RuleAction {
        /// The query is recorded.
        Record = "record",
        /// The query is not recorded.
        Skip = "skip",
    }

    /// Class of a statement.
    pub enum StatementClass {
        /// SELECT, TABLE, VALUES, FETCH, SHOW.
        Select = "select",
        /// INSERT.
        Insert = "insert",
        /// UPDATE.
        Update = "update",
        /// DELETE.
        Delete = "delete",
        /// MERGE.
        Merge = "merge",
        /// COPY in both directions.
        Copy = "copy",
        /// CREATE, ALTER, DROP, TRUNCATE, COMMENT, GRANT, REVOKE.
        Ddl = "ddl",
        /// BEGIN, COMMIT, ROLLBACK, SAVEPOINT and similar.
        Transaction = "transaction",
        /// Other statements.
        Utility = "utility",
    }
}

/// A set of statement classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatementClasses(u16);

impl StatementClasses {
    /// Adds a class.
    #[must_use]
    pub const fn with(self, class: StatementClass) -> Self {
        Self(self.0 | 1 << class as u16)
    }

    /// The union of two sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets have a common class.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set is not empty and a subset of `others`.
    #[must_use]
    pub const fn is_covered_by(self, others: Self) -> bool {
        self.0 != 0 && self.0 & !others.0 == 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A rule. All conditions that are set must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRule {
    /// Action for a matching query.
    pub action: RuleAction,
    /// User of the client; empty for any.
    pub users: Vec<String>,
    /// Database of the client; empty for any.
    pub databases: Vec<String>,
    /// Minimum total duration; zero for any.
    pub min_duration: Duration,
    /// Statement classes; empty for any.
    pub statements: StatementClasses,
    /// Only failed queries.
    pub errors: bool,
    /// Form of the parameters, if it differs from `journal.parameters`.
    pub parameters: Option<ParameterForm>,
}

impl Default for JournalRule {
    fn default() -> Self {
        Self {
            action: RuleAction::Record,
            users: Vec::new(),
            databases: Vec::new(),
            min_duration: Duration::ZERO,
            statements: StatementClasses::default(),
            errors: false,
            parameters: None,
        }
    }
}

/// The rules in file order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JournalRules(pub Vec<JournalRule>);

impl Setting for JournalRules {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let rules = list(value, "[[journal.rules]] starts a rule", |value| match value {
            RawValue::Table(table) => rule(&table.entries),
            other => Err(ValueError::new(
                format!("expected a table, found {}", other.kind()),
                "start it with [[journal.rules]]",
            )),
        });
        rules.map(Self)
    }

    fn show(&self) -> String {
        self.0.iter().map(show_rule).collect::<Vec<_>>().join("; ")
    }
}

const KEYS: &[&str] = &["action", "users", "databases", "min_duration", "statements", "errors", "parameters"];

fn rule(entries: &[RawEntry]) -> Result<JournalRule, ValueError> {
    let mut rule = JournalRule::default();
    for entry in entries {
        set(&mut rule, entry).map_err(|error| ValueError { at: error.at.or(Some(entry.node.at.clone())), ..error })?;
    }
    Ok(rule)
}

fn set(rule: &mut JournalRule, entry: &RawEntry) -> Result<(), ValueError> {
    let value = &entry.node.value;
    match entry.key.as_str() {
        "action" => rule.action = RuleAction::read(value)?,
        "users" => rule.users = names(value)?,
        "databases" => rule.databases = names(value)?,
        "min_duration" => rule.min_duration = Duration::read(value)?,
        "statements" => rule.statements = statement_classes(value)?,
        "errors" => rule.errors = bool::read(value)?,
        "parameters" => rule.parameters = Some(ParameterForm::read(value)?),
        unknown => {
            let help = match nearest(unknown, KEYS.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the keys of a rule are {}", KEYS.join(", ")),
            };
            return Err(ValueError {
                at: Some(entry.key_at.clone()),
                ..ValueError::new(format!("unknown key `{unknown}`"), help)
            });
        }
    }
    Ok(())
}

/// Reads a name or a list of names.
fn names(value: &RawValue) -> Result<Vec<String>, ValueError> {
    if matches!(value, RawValue::List(_)) { Vec::read(value) } else { String::read(value).map(|name| vec![name]) }
}

fn statement_classes(value: &RawValue) -> Result<StatementClasses, ValueError> {
    let one = |value: &RawValue| StatementClass::read(value);
    let all = match value {
        RawValue::List(nodes) => {
            let read = |node: &SpannedValue| {
                one(&node.value).map_err(|error| ValueError { at: Some(node.at.clone()), ..error })
            };
            nodes.iter().map(read).collect::<Result<Vec<_>, _>>()?
        }
        other => vec![one(other)?],
    };
    Ok(all.into_iter().fold(StatementClasses::default(), StatementClasses::with))
}

fn show_rule(rule: &JournalRule) -> String {
    let mut words = vec![rule.action.to_string()];
    let mut push = |key: &str, value: String| {
        if !value.is_empty() {
            words.push(format!("{key}={value}"));
        }
    };
    push("users", rule.users.join(","));
    push("databases", rule.databases.join(","));
    push("min_duration", if rule.min_duration.is_zero() { String::new() } else { rule.min_duration.show() });
    push("statements", rule.statements.names().join(","));
    push("errors", if rule.errors { "true".to_owned() } else { String::new() });
    push("parameters", rule.parameters.map(|form| form.to_string()).unwrap_or_default());
    words.join(" ")
}

impl StatementClasses {
    const ALL: [StatementClass; 9] = [
        StatementClass::Select,
        StatementClass::Insert,
        StatementClass::Update,
        StatementClass::Delete,
        StatementClass::Merge,
        StatementClass::Copy,
        StatementClass::Ddl,
        StatementClass::Transaction,
        StatementClass::Utility,
    ];

    fn names(self) -> Vec<&'static str> {
        let among = |class: &&StatementClass| self.intersects(Self::default().with(**class));
        Self::ALL.iter().filter(among).map(|class| class.as_str()).collect()
    }
}
