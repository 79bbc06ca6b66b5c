//! Random transactions: inserts, updates, changed keys, equal rows, NULL, long values, savepoints, rollbacks.

use std::fmt::Write as _;

use fastrand::Rng;

/// Rows have ids below this, so that transactions meet.
const IDS: u64 = 60;

/// The table of the transactions.
pub(crate) const TABLE: &str = "CREATE TABLE items (id int8 PRIMARY KEY, n int, s text, b bool NOT NULL)";

/// A table for subqueries on it.
pub(crate) const GROUPS: &str = "CREATE TABLE groups (id int8 PRIMARY KEY, n int, kind int NOT NULL, b bool)";

/// Creates a transaction as a script.
pub(crate) fn transaction(rng: &mut Rng) -> String {
    transaction_of(rng, statement)
}

/// A transaction of both tables.
pub(crate) fn transaction_with_groups(rng: &mut Rng) -> String {
    transaction_of(rng, |rng| if rng.u8(..3) == 0 { groups_statement(rng) } else { statement(rng) })
}

/// A transaction of both tables without their primary keys: rows may be equal.
pub(crate) fn transaction_without_keys(rng: &mut Rng) -> String {
    transaction_of(rng, |rng| match rng.u8(..12) {
        0 => copy_statement(rng, "items"),
        1 => copy_statement(rng, "groups"),
        2..=5 => groups_statement(rng),
        _ => statement(rng),
    })
}

/// Copies a row, or changes one of several equal rows.
fn copy_statement(rng: &mut Rng, table: &str) -> String {
    let id = rng.u64(..14);
    let one = format!("ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE id = {id} LIMIT 1))");
    match rng.u8(..5) {
        0..=2 => format!("INSERT INTO {table} SELECT * FROM {table} WHERE id = {id} LIMIT 2"),
        3 => format!("UPDATE {table} SET n = {} WHERE {one}", number(rng)),
        _ => format!("DELETE FROM {table} WHERE {one}"),
    }
}

fn groups_statement(rng: &mut Rng) -> String {
    let (id, kind) = (rng.u64(..14), rng.u8(..4));
    let n = if rng.u8(..12) == 0 { "NULL".to_owned() } else { rng.u8(..10).to_string() };
    match rng.u8(..8) {
        0..=2 => format!("INSERT INTO groups VALUES ({id}, {n}, {kind}, {}) ON CONFLICT DO NOTHING", rng.bool()),
        3 => format!("UPDATE groups SET n = {n} WHERE id = {id}"),
        4 => format!("UPDATE groups SET kind = {kind}, b = NULL WHERE id = {id}"),
        5 => format!("UPDATE groups SET b = NOT b WHERE kind = {kind}"),
        _ => format!("DELETE FROM groups WHERE id = {id} OR n = 11"),
    }
}

fn transaction_of(rng: &mut Rng, statement: fn(&mut Rng) -> String) -> String {
    let mut sql = "BEGIN;".to_owned();
    for _ in 0..rng.usize(1..8) {
        if rng.u8(..8) == 0 {
            let inner = statement(rng);
            let end = if rng.bool() { "ROLLBACK TO SAVEPOINT a" } else { "RELEASE SAVEPOINT a" };
            let _ = write!(sql, "SAVEPOINT a; {inner}; {end};");
        } else {
            let _ = write!(sql, "{};", statement(rng));
        }
    }
    sql + if rng.u8(..6) == 0 { "ROLLBACK" } else { "COMMIT" }
}

fn statement(rng: &mut Rng) -> String {
    let id = rng.u64(..IDS);
    match rng.u8(..10) {
        0..=3 => {
            let (n, s, b) = (number(rng), text(rng), rng.bool());
            format!("INSERT INTO items VALUES ({id}, {n}, {s}, {b}) ON CONFLICT DO NOTHING")
        }
        4 | 5 => format!("UPDATE items SET n = {} WHERE id = {id}", number(rng)),
        6 => format!("UPDATE items SET s = {}, b = NOT b WHERE id % 7 = {}", text(rng), id % 7),
        7 => {
            let to = rng.u64(..IDS);
            format!("UPDATE items SET id = {to} WHERE id = {id} AND NOT EXISTS (SELECT FROM items WHERE id = {to})")
        }
        8 => format!("DELETE FROM items WHERE id = {id}"),
        _ => format!("UPDATE items SET n = n + 1 WHERE id BETWEEN {id} AND {}", id + 5),
    }
}

fn number(rng: &mut Rng) -> String {
    if rng.u8(..6) == 0 { "NULL".to_owned() } else { rng.u8(..10).to_string() }
}

fn text(rng: &mut Rng) -> String {
    match rng.u8(..8) {
        0 => "NULL".to_owned(),
        1 => "''".to_owned(),
        // Long enough for TOAST, and not compressible to nothing.
        2 => {
            let long: String = (0..3000).map(|_| rng.alphanumeric()).collect();
            format!("'{long}'")
        }
        _ => format!("'{}/\"\\{}'", rng.alphabetic(), rng.u8(..5)),
    }
}
