//! Several statements in one query that change settings.

use super::{
    Pins, SessionChange, StatementEffects,
    lexer::{StatementSplitter, WordLexer},
    single_statement_effects,
};

/// Limit of changes per text; beyond it, the client is pinned.
const SETS_MAX: usize = 64;

/// Reads several statements that set known parameters, as Sequelize sends them on a new connection, or reset them, as drivers'
/// pools do before reuse. The statements succeed or fail together, so the end of the query decides about all of them. The same
/// holds for an explicit transaction block, such as the gateway sends to apply the settings of a client.
pub(super) fn tracked(sql: &[u8]) -> Option<StatementEffects> {
    if memchr::memchr(b'\\', sql).is_some() {
        // The backslash may be within a string.
        return None;
    }
    let (mut pins, mut changes, mut position, mut runs_code) =
        (Pins::default(), Vec::new(), BlockPosition::First, false);
    for statement in StatementSplitter::new(sql) {
        let mut words = WordLexer::new(statement);
        let Some(first) = words.next() else {
            if words.next_or_symbol().is_some() {
                position = position.next()?;
            }
            continue;
        };
        match first.as_str() {
            "begin" | "start" if position == BlockPosition::First => {}
            "commit" | "end" if position != BlockPosition::Last && is_whole_commit(&words) => {
                position = BlockPosition::Last;
                continue;
            }
            "begin" | "start" | "commit" | "end" | "rollback" | "abort" | "prepare" => return None,
            _ => {
                let effects = single_statement_effects(statement);
                pins.add(effects.pins);
                runs_code |= effects.runs_code;
                match effects.change.map(|change| *change) {
                    Some(SessionChange::Sets(sets)) => changes.extend(sets),
                    change => changes.extend(change),
                }
            }
        }
        position = position.next()?;
        if changes.len() > SETS_MAX {
            return None;
        }
    }
    let is_tracked = |change: &SessionChange| {
        matches!(
            change,
            SessionChange::Set { .. }
                | SessionChange::SetConfig { .. }
                | SessionChange::Reset(_)
                | SessionChange::ResetAll
        )
    };
    let change = match changes.pop()? {
        last @ (SessionChange::Reset(_) | SessionChange::ResetAll) if changes.is_empty() => last,
        // The order of the statements decides whether a role among them survives.
        last if !pins.has(Pins::USER) => {
            changes.push(last);
            SessionChange::Sets(changes)
        }
        _ => return None,
    };
    let are_tracked = match &change {
        SessionChange::Sets(sets) => sets.iter().all(is_tracked),
        _ => true,
    };
    (are_tracked && !pins.has(Pins::SETTING)).then(|| StatementEffects {
        pins,
        change: Some(Box::new(change)),
        runs_code,
        ..StatementEffects::default()
    })
}

/// Position of a statement in the query.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockPosition {
    First,
    Middle,
    /// After COMMIT, where no other statement may follow.
    Last,
}

impl BlockPosition {
    fn next(self) -> Option<Self> {
        (self != Self::Last).then_some(Self::Middle)
    }
}

/// Whether COMMIT has no clause that opens another transaction or names a prepared one.
fn is_whole_commit(rest_of_commit: &WordLexer<'_>) -> bool {
    ["", "work", "transaction"].iter().any(|rest| rest_of_commit.is_rest(rest))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ConfigValue, classify},
        *,
    };

    #[test]
    fn transaction_block_of_sets_is_tracked() {
        let set = |name: &str, value: &str| SessionChange::Set { name: name.to_owned(), value: Some(value.to_owned()) };
        let config = |name: &str, value: &str| SessionChange::SetConfig {
            name: name.to_owned(),
            value: ConfigValue::Text(value.to_owned()),
        };
        let of_gateway = "BEGIN;RESET \"role\";SET \"my\".\"var\" TO 1, 2;\
                          SELECT pg_catalog.set_config('search_path','a, \"b''c\"',false);RESET \"work_mem\";COMMIT";
        let changes = vec![
            SessionChange::Reset("role".into()),
            set("my.var", "1, 2"),
            config("search_path", "a, \"b'c\""),
            SessionChange::Reset("work_mem".into()),
        ];
        for (sql, changes) in [
            (of_gateway, changes),
            ("begin read only; set a = 1; end work;", vec![set("a", "1")]),
            ("start transaction; set a = 1", vec![set("a", "1")]),
            ("set a = 1; reset b; commit", vec![set("a", "1"), SessionChange::Reset("b".into())]),
            ("reset all; set a = 1", vec![SessionChange::ResetAll, set("a", "1")]),
        ] {
            let effects = classify(sql.as_bytes());
            assert_eq!(effects.change, Some(Box::new(SessionChange::Sets(changes))), "{sql}");
            assert!(effects.pins.is_empty(), "{sql}");
        }
    }

    #[test]
    fn multiple_sets_of_one_query_are_parsed() {
        let of_sequelize = "SET standard_conforming_strings=on;SET client_min_messages TO warning;\
                            SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE;";
        let set = |name: &str, value: Option<&str>| SessionChange::Set {
            name: name.to_owned(),
            value: value.map(str::to_owned),
        };
        for (sql, sets) in [
            (
                of_sequelize,
                vec![
                    set("standard_conforming_strings", Some("on")),
                    set("client_min_messages", Some("warning")),
                    set("timezone", None),
                ],
            ),
            ("select 1; set a to 2", vec![set("a", Some("2"))]),
        ] {
            let effects = classify(sql.as_bytes());
            assert_eq!(effects.change, Some(Box::new(SessionChange::Sets(sets))), "{sql}");
            assert!(effects.pins.is_empty(), "{sql}");
        }
        assert!(!classify("set a = 1;".repeat(2 * SETS_MAX).as_bytes()).pins.is_empty());
    }
}
