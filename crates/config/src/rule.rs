//! `[[journal.rules]]`: which queries the journal writes down. The first rule that matches decides.

use std::time::Duration;

use super::keys::ParameterForm;
use super::raw::{Entry, Node, Value};
use super::setting::{Setting, Wrong, list, nearest, words};

words! {
    /// What a rule does with what it matches.
    pub enum Action {
        /// It is written down.
        Record = "record",
        /// It is not.
        Skip = "skip",
    }

    /// What kind of work a statement does.
    pub enum Work {
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
        /// COPY, both ways.
        Copy = "copy",
        /// CREATE, ALTER, DROP, TRUNCATE, COMMENT, GRANT, REVOKE.
        Ddl = "ddl",
        /// BEGIN, COMMIT, ROLLBACK, SAVEPOINT and the like.
        Transaction = "transaction",
        /// Anything else.
        Utility = "utility",
    }
}

/// A set of kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Works(u16);

impl Works {
    /// With one more.
    #[must_use]
    pub const fn with(self, work: Work) -> Self {
        Self(self.0 | 1 << work as u16)
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the two have any in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there are any, and all of them are among the others.
    #[must_use]
    pub const fn are_all_in(self, others: Self) -> bool {
        self.0 != 0 && self.0 & !others.0 == 0
    }

    /// There is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// One rule. Every condition that is written must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What happens then.
    pub action: Action,
    /// The client's user is one of these; empty for any.
    pub users: Vec<String>,
    /// The client's database is one of these; empty for any.
    pub databases: Vec<String>,
    /// It took at least so long in all; zero for any.
    pub min_duration: Duration,
    /// It does one of these; empty for any.
    pub statements: Works,
    /// It failed.
    pub errors: bool,
    /// What of the parameters is written down, where that differs from `journal.parameters`.
    pub parameters: Option<ParameterForm>,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            action: Action::Record,
            users: Vec::new(),
            databases: Vec::new(),
            min_duration: Duration::ZERO,
            statements: Works::default(),
            errors: false,
            parameters: None,
        }
    }
}

/// The rules, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules(pub Vec<Rule>);

impl Setting for Rules {
    fn read(value: &Value) -> Result<Self, Wrong> {
        let rules = list(value, "[[journal.rules]] begins a rule", |value| match value {
            Value::Table(table) => rule(&table.entries),
            other => {
                Err(Wrong::new(format!("expected a table, found {}", other.kind()), "begin it with [[journal.rules]]"))
            }
        });
        rules.map(Self)
    }

    fn show(&self) -> String {
        self.0.iter().map(shown).collect::<Vec<_>>().join("; ")
    }
}

const KEYS: &[&str] = &["action", "users", "databases", "min_duration", "statements", "errors", "parameters"];

fn rule(entries: &[Entry]) -> Result<Rule, Wrong> {
    let mut rule = Rule::default();
    for entry in entries {
        set(&mut rule, entry).map_err(|wrong| Wrong { at: wrong.at.or(Some(entry.node.at.clone())), ..wrong })?;
    }
    Ok(rule)
}

fn set(rule: &mut Rule, entry: &Entry) -> Result<(), Wrong> {
    let value = &entry.node.value;
    match entry.key.as_str() {
        "action" => rule.action = Action::read(value)?,
        "users" => rule.users = names(value)?,
        "databases" => rule.databases = names(value)?,
        "min_duration" => rule.min_duration = Duration::read(value)?,
        "statements" => rule.statements = works(value)?,
        "errors" => rule.errors = bool::read(value)?,
        "parameters" => rule.parameters = Some(ParameterForm::read(value)?),
        unknown => {
            let help = match nearest(unknown, KEYS.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the keys of a rule are {}", KEYS.join(", ")),
            };
            return Err(Wrong {
                at: Some(entry.key_at.clone()),
                ..Wrong::new(format!("unknown key `{unknown}`"), help)
            });
        }
    }
    Ok(())
}

/// A name, or a list of them.
fn names(value: &Value) -> Result<Vec<String>, Wrong> {
    if matches!(value, Value::List(_)) { Vec::read(value) } else { String::read(value).map(|name| vec![name]) }
}

fn works(value: &Value) -> Result<Works, Wrong> {
    let one = |value: &Value| Work::read(value);
    let all = match value {
        Value::List(nodes) => {
            let read = |node: &Node| one(&node.value).map_err(|wrong| Wrong { at: Some(node.at.clone()), ..wrong });
            nodes.iter().map(read).collect::<Result<Vec<_>, _>>()?
        }
        other => vec![one(other)?],
    };
    Ok(all.into_iter().fold(Works::default(), Works::with))
}

fn shown(rule: &Rule) -> String {
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

impl Works {
    const ALL: [Work; 9] = [
        Work::Select,
        Work::Insert,
        Work::Update,
        Work::Delete,
        Work::Merge,
        Work::Copy,
        Work::Ddl,
        Work::Transaction,
        Work::Utility,
    ];

    fn names(self) -> Vec<&'static str> {
        let among = |work: &&Work| self.meets(Self::default().with(**work));
        Self::ALL.iter().filter(among).map(|work| work.as_str()).collect()
    }
}
