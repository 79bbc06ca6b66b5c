use serde_json::{Value, json};

use super::*;
use crate::table::tests::{column, table};

fn form(columns: &[usize]) -> RowForm {
    let columns_info =
        vec![column("id", "int8", Some(0)), column("name", "text", None), column("secret", "text", None)];
    RowForm::new(Arc::new(table("public", "items", columns_info)), columns.to_vec())
}

const ORIGIN: ChangeOrigin = ChangeOrigin { lsn: 77, op: 4, txid: 9 };

fn row(values: [Option<&str>; 3]) -> Vec<Option<&[u8]>> {
    values.iter().map(|value| value.map(str::as_bytes)).collect()
}

fn encoded(form: &RowForm, change: ShapeChange<'_>, replica: Replica) -> Vec<Value> {
    let messages = form.change(change, replica, ORIGIN);
    messages.iter().map(|message| serde_json::from_slice(&message.json).unwrap()).collect()
}

fn headers(operation: &str, op: u64) -> Value {
    json!({"operation": operation, "relation": ["public", "items"], "txids": [9], "lsn": "77", "op_position": op})
}

#[test]
fn snapshot_row_is_an_insert_without_lsn() {
    let mut out = Vec::new();
    form(&[1, 0]).push_snapshot_row(&mut out, &row([Some("1"), None, Some("x")]), b"");
    let expected = concat!(
        r#"{"key":"\"public\".\"items\"/\"1\"","value":{"id":"1","name":null},"#,
        r#""headers":{"operation":"insert","relation":["public","items"]}}"#
    );
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn updates_have_the_columns_of_replica() {
    let form = form(&[0, 1]);
    let (old, new) = (row([Some("1"), Some("a"), Some("x")]), row([Some("1"), Some("b"), Some("y")]));
    let change = ShapeChange::Update { old: &old, new: &new };
    let key = "\"public\".\"items\"/\"1\"";
    let default = json!({"key": key, "value": {"id": "1", "name": "b"}, "headers": headers("update", 4)});
    assert_eq!(encoded(&form, change, Replica::Default), [default]);
    let full = json!({"key": key, "value": {"id": "1", "name": "b"}, "old_value": {"name": "a"},
        "headers": headers("update", 4)});
    assert_eq!(encoded(&form, change, Replica::Full), [full]);
    let unchanged = row([Some("1"), Some("a"), Some("z")]);
    let change = ShapeChange::Update { old: &old, new: &unchanged };
    assert!(encoded(&form, change, Replica::Full).is_empty(), "only an unselected column changed");
}

/// SH-48.
#[test]
fn unselected_columns_are_never_sent() {
    let form = form(&[0, 1]);
    let (old, new) = (row([Some("1"), Some("a"), Some("hidden")]), row([Some("2"), Some("b"), Some("hidden")]));
    for change in [
        ShapeChange::Insert { new: &new },
        ShapeChange::Update { old: &old, new: &new },
        ShapeChange::Delete { old: &old },
    ] {
        for message in form.change(change, Replica::Full, ORIGIN) {
            assert!(!String::from_utf8(message.json).unwrap().contains("hidden"));
        }
    }
    assert!(!form.schema_header.contains("secret"));
}

#[test]
fn deletes_have_the_key_or_the_whole_row() {
    let old = row([Some("1"), Some("a"), None]);
    let values = |replica| encoded(&form(&[0, 1]), ShapeChange::Delete { old: &old }, replica)[0]["value"].clone();
    assert_eq!(values(Replica::Default), json!({"id": "1"}));
    assert_eq!(values(Replica::Full), json!({"id": "1", "name": "a"}));
}

/// SH-49.
#[test]
fn changed_key_is_a_delete_and_an_insert() {
    let (old, new) = (row([Some("1"), Some("a"), None]), row([Some("2"), Some("a"), None]));
    let messages = encoded(&form(&[0, 1]), ShapeChange::Update { old: &old, new: &new }, Replica::Default);
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0]["headers"]["key_change_to"], json!("\"public\".\"items\"/\"2\""));
    assert_eq!(messages[0]["headers"]["op_position"], json!(4));
    assert_eq!(messages[1]["headers"]["key_change_from"], json!("\"public\".\"items\"/\"1\""));
    assert_eq!(messages[1]["headers"]["op_position"], json!(5));
    assert_eq!(messages[1]["value"], json!({"id": "2", "name": "a"}));
}

#[test]
fn last_message_of_a_transaction_is_marked() {
    let new = row([Some("1"), None, None]);
    let message = &form(&[0]).change(ShapeChange::Insert { new: &new }, Replica::Default, ORIGIN)[0];
    let mut out = Vec::new();
    push_last(&mut out, &message.json);
    let read: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(read["headers"]["last"], json!(true));
}

/// SH-50: no two rows of any tables have one key.
#[test]
fn keys_of_different_rows_differ() {
    let names = ["a", "b", "a.b", "a/b", "a.", ".b", "/", "a/", "\"", "a\".\"b", "."];
    let values = [None, Some("_"), Some(""), Some("/"), Some("//"), Some("a"), Some("a\"/\"b"), Some("a/b"), Some("b")];
    let mut keys = std::collections::BTreeSet::new();
    let mut count = 0;
    for schema in names {
        for name in names {
            let columns = vec![column("x", "text", Some(0)), column("y", "text", Some(1))];
            let form = RowForm::new(Arc::new(table(schema, name, columns)), vec![0, 1]);
            for first in values {
                for second in values {
                    count += 1;
                    keys.insert(form.key(&[first.map(str::as_bytes), second.map(str::as_bytes)]));
                }
            }
        }
    }
    // A quote is not escaped (the protocol has it so), therefore names and values with quotes may collide.
    let unquoted = |text: &str| !text.contains('"');
    let names = names.iter().filter(|name| unquoted(name)).count();
    let values = values.iter().filter(|value| value.is_none_or(unquoted)).count();
    assert!(keys.len() >= names * names * values * values && keys.len() <= count);
}

/// SH-03, SH-04: 64-bit transaction IDs, beyond 2^31 and 2^32.
#[test]
fn snapshot_visibility_follows_postgres() {
    for base in [10_u64, 1 << 31, 1 << 32, (5 << 32) + 100] {
        let text = format!("{}:{}:{},{}", base, base + 10, base, base + 5);
        let snapshot = TransactionSnapshot::parse(&text).unwrap();
        let seen: Vec<u64> =
            (base - 1..base + 12).filter(|xid| snapshot.sees(*xid)).map(|xid| xid + 1 - base).collect();
        assert_eq!(seen, [0, 2, 3, 4, 5, 7, 8, 9, 10], "{text}");
    }
    assert_eq!(TransactionSnapshot::parse("5:5:"), Some(TransactionSnapshot { xmin: 5, xmax: 5, xip: Vec::new() }));
    assert!(["", "5", "5:6", "a:b:", "5:6:x", "5:6:7:8"].iter().all(|text| TransactionSnapshot::parse(text).is_none()));
}

#[test]
fn control_messages_have_strings() {
    let snapshot = TransactionSnapshot { xmin: 5, xmax: 9, xip: vec![5, 7] };
    let end: Value = serde_json::from_slice(&snapshot.end_message()).unwrap();
    let expected = json!({"control": "snapshot-end", "xmin": "5", "xmax": "9", "xip_list": ["5", "7"]});
    assert_eq!(end["headers"], expected);
    let up_to_date: Value = serde_json::from_str(&up_to_date_message(12)).unwrap();
    assert_eq!(up_to_date["headers"], json!({"control": "up-to-date", "global_last_seen_lsn": "12"}));
}
