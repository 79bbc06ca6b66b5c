//! Several statements in one query that change settings.

use super::{
    Change, Pins, Traits, traits_of_one,
    words::{Statements, Words},
};

/// More in one text are not followed.
const SETS_MAX: usize = 64;

/// Several statements that set what is known, as Sequelize sends them with a new connection, or take it back, as pools of drivers
/// do before another uses a connection. They succeed together or not at all, so that the end of the query tells what has become
/// of them. So it is with a block of their own, as the gateway itself gives a server the settings of a client.
pub(super) fn followed(sql: &[u8]) -> Option<Traits> {
    if memchr::memchr(b'\\', sql).is_some() {
        // Which may be in a string.
        return None;
    }
    let (mut pins, mut changes, mut place, mut runs_code) = (Pins::default(), Vec::new(), Place::First, false);
    for statement in Statements::new(sql) {
        let mut words = Words::new(statement);
        let Some(first) = words.next() else {
            if words.next_or_symbol().is_some() {
                place = place.next()?;
            }
            continue;
        };
        match first.as_str() {
            "begin" | "start" if place == Place::First => {}
            "commit" | "end" if place != Place::Last && is_whole_commit(&words) => {
                place = Place::Last;
                continue;
            }
            "begin" | "start" | "commit" | "end" | "rollback" | "abort" | "prepare" => return None,
            _ => {
                let traits = traits_of_one(statement);
                pins.add(traits.pins);
                runs_code |= traits.runs_code;
                match traits.change.map(|change| *change) {
                    Some(Change::Sets(sets)) => changes.extend(sets),
                    change => changes.extend(change),
                }
            }
        }
        place = place.next()?;
        if changes.len() > SETS_MAX {
            return None;
        }
    }
    let is_followed = |change: &Change| {
        matches!(change, Change::Set { .. } | Change::SetConfig { .. } | Change::Reset(_) | Change::ResetAll)
    };
    let change = match changes.pop()? {
        last @ (Change::Reset(_) | Change::ResetAll) if changes.is_empty() => last,
        // A role among them would be gone, or not, by their order.
        last if !pins.has(Pins::USER) => {
            changes.push(last);
            Change::Sets(changes)
        }
        _ => return None,
    };
    let are_followed = match &change {
        Change::Sets(sets) => sets.iter().all(is_followed),
        _ => true,
    };
    (are_followed && !pins.has(Pins::SETTING)).then(|| Traits { pins, change: Some(Box::new(change)), runs_code })
}

/// Where a statement of several stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Middle,
    /// Behind the COMMIT, where no other may stand.
    Last,
}

impl Place {
    fn next(self) -> Option<Self> {
        (self != Self::Last).then_some(Self::Middle)
    }
}

/// Whether nothing stands behind a COMMIT that opens another transaction, or is about one that was prepared.
fn is_whole_commit(behind: &Words<'_>) -> bool {
    ["", "work", "transaction"].iter().any(|rest| behind.is_rest(rest))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ConfigValue, classify},
        *,
    };

    #[test]
    fn a_block_that_sets_and_resets_is_followed() {
        let set = |name: &str, value: &str| Change::Set { name: name.to_owned(), value: Some(value.to_owned()) };
        let config = |name: &str, value: &str| Change::SetConfig {
            name: name.to_owned(),
            value: ConfigValue::Text(value.to_owned()),
        };
        let of_gateway = "BEGIN;RESET \"role\";SET \"my\".\"var\" TO 1, 2;\
                          SELECT pg_catalog.set_config('search_path','a, \"b''c\"',false);RESET \"work_mem\";COMMIT";
        let changes = vec![
            Change::Reset("role".into()),
            set("my.var", "1, 2"),
            config("search_path", "a, \"b'c\""),
            Change::Reset("work_mem".into()),
        ];
        for (sql, changes) in [
            (of_gateway, changes),
            ("begin read only; set a = 1; end work;", vec![set("a", "1")]),
            ("start transaction; set a = 1", vec![set("a", "1")]),
            ("set a = 1; reset b; commit", vec![set("a", "1"), Change::Reset("b".into())]),
            ("reset all; set a = 1", vec![Change::ResetAll, set("a", "1")]),
        ] {
            let traits = classify(sql.as_bytes());
            assert_eq!(traits.change, Some(Box::new(Change::Sets(changes))), "{sql}");
            assert!(traits.pins.is_empty(), "{sql}");
        }
    }

    #[test]
    fn several_sets_of_one_query_are_read() {
        let of_sequelize = "SET standard_conforming_strings=on;SET client_min_messages TO warning;\
                            SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE;";
        let set =
            |name: &str, value: Option<&str>| Change::Set { name: name.to_owned(), value: value.map(str::to_owned) };
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
            let traits = classify(sql.as_bytes());
            assert_eq!(traits.change, Some(Box::new(Change::Sets(sets))), "{sql}");
            assert!(traits.pins.is_empty(), "{sql}");
        }
        assert!(!classify("set a = 1;".repeat(2 * SETS_MAX).as_bytes()).pins.is_empty());
    }
}
