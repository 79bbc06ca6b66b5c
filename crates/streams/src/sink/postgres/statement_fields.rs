//! Decides by the parameters of a statement which records of changes it takes.
//!
//! A parameter that points at a part that the record does not have is NULL. For a change of a row that would be a guess: a value
//! that Postgres did not send would be overwritten with NULL, and a deleted row would come back as a row of NULLs. Such records
//! are refused unless the parameters show that the statement handles them.

use serde_json::Value;
use tidegate_config::stream::RecordField;
use tidegate_lanes::Record;

use crate::change::{COMMIT_LSN, OP, TABLE, header, is_unchanged};

/// The parts of a change that the parameters of a statement read.
#[derive(Debug, Clone, Default)]
pub(super) struct StatementFields {
    pointers: Vec<String>,
    /// Columns of `unchanged:COLUMN`.
    unchanged: Vec<String>,
    reads_value: bool,
    reads_operation: bool,
}

/// The decision about a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StatementVerdict {
    Execute,
    /// The record has no row for the parameters.
    Skip,
    /// The parameters would differ from the change; the reason and the remedy.
    Refuse(String),
}

impl StatementFields {
    pub(super) fn of(fields: &[RecordField]) -> Self {
        let mut read = Self::default();
        for field in fields {
            match field {
                RecordField::Value => read.reads_value = true,
                RecordField::Header(name) => read.reads_operation |= name == OP,
                RecordField::Unchanged(column) => read.unchanged.push(column.clone()),
                RecordField::Pointer(pointer) => read.pointers.push(pointer.clone()),
                _ => {}
            }
        }
        read
    }

    /// The verdict on a record. Only records of changes are judged, also those that were read from a Kafka topic.
    pub(super) fn judge(&self, record: &Record, value: Option<&Value>) -> StatementVerdict {
        let (Some(operation), Some(_)) = (header(record, OP), header(record, COMMIT_LSN)) else {
            return StatementVerdict::Execute;
        };
        let change = ChangeValue::of(value);
        let pointers: Vec<&str> = self.pointers.iter().filter_map(|pointer| change.inner(pointer)).collect();
        let reads = |member: &str| pointers.iter().any(|pointer| is_inside(pointer, member));
        let reads_operation = self.reads_value || self.reads_operation || reads("/op");
        let reads_row = ["/key", "/after", "/before"].into_iter().any(reads);
        let reads_message = ["/prefix", "/content", "/content_base64", "/message"].into_iter().any(reads);
        let table = header(record, TABLE).unwrap_or_default();
        // The empty record that follows a delete in Kafka.
        let is_tombstone = record.payload().is_none();
        match operation {
            "schema" if !reads_operation || reads_row && !reads("/columns") => StatementVerdict::Skip,
            "begin" | "end" if !reads_operation => StatementVerdict::Skip,
            "message" if !reads_message && (!reads_operation || reads_row) => StatementVerdict::Skip,
            "truncate" if !reads_operation && change.is_copy() => StatementVerdict::Skip,
            "truncate" if !reads_operation => StatementVerdict::Refuse(format!(
                "TRUNCATE of {table} has no row for the parameters of sql: add header:op to params and handle it in sql, or \
                 leave it out of the publication: ALTER PUBLICATION ... SET (publish = 'insert, update, delete')"
            )),
            "delete" if !reads_operation && reads("/after") => StatementVerdict::Refuse(format!(
                "delete from {table}: a deleted row has no `after`, so the parameters of sql would be NULL: add header:op to \
                 params and handle it in sql, or leave it out of the publication: ALTER PUBLICATION ... SET (publish = \
                 'insert, update'); an update that changes the key is a delete, too"
            )),
            "delete" if is_tombstone && reads_row => StatementVerdict::Skip,
            "insert" | "update" | "delete" | "read" => {
                let refusal = self.missing_value(operation, table, &change, &pointers);
                refusal
                    .or_else(|| missing_key(operation, table, &change, &pointers))
                    .map_or(StatementVerdict::Execute, StatementVerdict::Refuse)
            }
            _ => StatementVerdict::Execute,
        }
    }

    /// The refusal of a record without a value that a parameter needs.
    fn missing_value(
        &self,
        operation: &str,
        table: &str,
        change: &ChangeValue<'_>,
        pointers: &[&str],
    ) -> Option<String> {
        if pointers.iter().any(|pointer| is_inside(pointer, "/unchanged")) {
            return None;
        }
        // The row that had the value is deleted by the first half of a change of the key.
        let is_new = operation == "insert";
        let (pointer, column) = pointers.iter().find_map(|pointer| {
            let column = column_of(pointer, "/after")?;
            let is_missing = change.is_unchanged(&column) && (is_new || !self.unchanged.contains(&column));
            is_missing.then_some((pointer, column))
        })?;
        let missing = format!(
            "{operation} of {table}: column {column} was not changed, and Postgres did not send its large value (TOAST), so \
             {pointer} has none"
        );
        let full = format!("ALTER TABLE {table} REPLICA IDENTITY FULL");
        Some(if is_new {
            format!(
                "{missing}: run {full} before keys of rows are changed; for this record, use `exhausted`, and copy the table \
                 again (backfill)"
            )
        } else {
            format!(
                "{missing}: add unchanged:{column} to params and keep the value in sql: set {column} = case when $N then \
                 TABLE.{column} else excluded.{column} end; or, for later changes, run {full}"
            )
        })
    }
}

/// The refusal of a row whose record does not name its key.
fn missing_key(operation: &str, table: &str, change: &ChangeValue<'_>, pointers: &[&str]) -> Option<String> {
    if change.has_key() {
        return None;
    }
    let reads = |member: &str| pointers.iter().any(|pointer| is_inside(pointer, member));
    let (pointer, column) = pointers.iter().find_map(|pointer| Some((pointer, column_of(pointer, "/key")?)))?;
    if reads(&format!("/before/{}", escaped(&column))) {
        return None;
    }
    Some(format!(
        "{operation} of {table}: {pointer} has no value, because the replica identity is FULL or NOTHING and names no key: read \
         /before/{column} (of updates and deletes) and /after/{column} in its place"
    ))
}

/// The value of a record of a change, in any envelope.
struct ChangeValue<'v> {
    /// The members of the change; `None` for a tombstone.
    members: Option<&'v Value>,
    is_cloud_event: bool,
}

impl<'v> ChangeValue<'v> {
    fn of(value: Option<&'v Value>) -> Self {
        let is_cloud_event = value.is_some_and(|value| value.get("specversion").is_some());
        Self { members: if is_cloud_event { value.and_then(|value| value.get("data")) } else { value }, is_cloud_event }
    }

    /// The pointer inside of the change; `None` if it points at a member of the CloudEvent around it.
    fn inner<'p>(&self, pointer: &'p str) -> Option<&'p str> {
        if !self.is_cloud_event {
            return Some(pointer);
        }
        pointer.strip_prefix("/data").filter(|inner| inner.starts_with('/'))
    }

    fn member(&self, name: &str) -> Option<&'v Value> {
        self.members?.get(name)
    }

    fn is_unchanged(&self, column: &str) -> bool {
        self.members.is_some_and(|members| is_unchanged(members, column))
    }

    /// Whether the record empties a table before a new copy.
    fn is_copy(&self) -> bool {
        self.member("copy").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether the record names the key of its row. Debezium's envelope has it in the key of the record only.
    fn has_key(&self) -> bool {
        self.member("key").is_none_or(|key| !key.is_null())
    }
}

/// Whether a pointer is the member or a part of it.
fn is_inside(pointer: &str, member: &str) -> bool {
    pointer.strip_prefix(member).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The column that a pointer names in a member.
fn column_of(pointer: &str, member: &str) -> Option<String> {
    let column = pointer.strip_prefix(member)?.strip_prefix('/')?.split('/').next()?;
    Some(column.replace("~1", "/").replace("~0", "~"))
}

/// A column as a part of a pointer (RFC 6901).
fn escaped(column: &str) -> String {
    column.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_lanes::{Epoch, Header, Lane, Position};

    use super::*;

    fn record(operation: &str, payload: Option<&[u8]>) -> Record {
        let texts = [(OP, operation), (COMMIT_LSN, "0/1"), (TABLE, "public.doc")];
        let headers = texts.map(|(name, text)| Header { name: name.into(), value: Some(text.as_bytes().into()) });
        Record::new(Lane(0), Epoch(1), Position(1), None, payload).with_headers(headers.into())
    }

    fn judge(params: &[&str], value: &Value) -> StatementVerdict {
        let field = |written: &&str| match written.split_once(':') {
            Some(("header", name)) => RecordField::Header(name.to_owned()),
            Some((_, column)) => RecordField::Unchanged(column.to_owned()),
            None if *written == "value" => RecordField::Value,
            None => RecordField::Pointer((*written).to_owned()),
        };
        let fields: Vec<_> = params.iter().map(field).collect();
        let change = if value.get("specversion").is_some() { &value["data"] } else { value };
        let operation = match change["op"].as_str().unwrap() {
            "u" => "update",
            other => other,
        };
        let record = record(operation, Some(value.to_string().as_bytes()));
        StatementFields::of(&fields).judge(&record, Some(value))
    }

    fn refusal(params: &[&str], value: &Value) -> String {
        match judge(params, value) {
            StatementVerdict::Refuse(reason) => reason,
            other => panic!("{params:?}: {other:?}"),
        }
    }

    fn update() -> Value {
        json!({"op": "update", "key": {"id": 1}, "after": {"id": 1, "n": 2}, "before": null, "unchanged": ["a/b", "body"]})
    }

    #[test]
    fn value_that_was_not_sent_is_refused() {
        let reason = refusal(&["/key/id", "/after/body"], &update());
        for part in ["update of public.doc", "column body", "REPLICA IDENTITY FULL", "unchanged:body"] {
            assert!(reason.contains(part), "{reason}");
        }
        let event = json!({"specversion": "1.0", "data": update()});
        assert!(refusal(&["/data/after/body/title"], &event).contains("/after/body/title has none"));
        assert!(refusal(&["/after/a~1b"], &update()).contains("column a/b"));
        let debezium = json!({"op": "u", "before": null, "after": {"id": 1, "body": "__debezium_unavailable_value"}});
        assert!(refusal(&["/after/body"], &debezium).contains("unchanged:body"));
        // Another column does not count.
        assert!(refusal(&["/after/body", "unchanged:n"], &update()).contains("column body"));
    }

    #[test]
    fn new_key_without_a_value_is_refused() {
        let mut insert = update();
        (insert["op"], insert["before"]) = ("insert".into(), json!({"id": 0}));
        let reason = refusal(&["/after/body", "unchanged:body"], &insert);
        assert!(reason.contains("before keys of rows are changed"), "{reason}");
        assert_eq!(judge(&["/after/body", "/unchanged"], &insert), StatementVerdict::Execute);
    }

    #[test]
    fn handled_value_that_was_not_sent_is_executed() {
        let cases: [&[&str]; 5] = [
            &["/key/id", "/after/n"],
            &["/after/body", "unchanged:body"],
            &["/after/body", "/unchanged"],
            &["value"],
            &["/key/id", "/after"],
        ];
        for params in cases {
            assert_eq!(judge(params, &update()), StatementVerdict::Execute, "{params:?}");
        }
        let event = json!({"specversion": "1.0", "data": update()});
        assert_eq!(judge(&["/data/after/body", "/data/unchanged"], &event), StatementVerdict::Execute);
    }

    #[test]
    fn delete_needs_a_statement_that_reads_the_operation() {
        let delete = json!({"op": "delete", "key": {"id": 1}, "after": null, "before": {"id": 1}});
        for params in [&["/key/id", "/after/n"][..], &["/after"]] {
            let reason = refusal(params, &delete);
            assert!(reason.contains("delete from public.doc") && reason.contains("header:op"), "{reason}");
        }
        for params in [&["header:op", "/key/id", "/after/n"][..], &["/op", "/after/n"], &["/key/id"], &["value"]] {
            assert_eq!(judge(params, &delete), StatementVerdict::Execute, "{params:?}");
        }
        let tombstone = record("delete", None);
        let fields = [RecordField::Header(OP.to_owned()), RecordField::Pointer("/key/id".to_owned())];
        assert_eq!(StatementFields::of(&fields).judge(&tombstone, None), StatementVerdict::Skip);
    }

    #[test]
    fn record_without_a_row_is_skipped() {
        let schema = json!({"op": "schema", "version": 2, "columns": [], "added": [], "removed": []});
        let message = json!({"op": "message", "prefix": "p", "content": "x"});
        for value in [&schema, &message] {
            for params in [&["/after/id"][..], &["header:op", "/after/id"], &["/op", "/key/id"], &["key"]] {
                assert_eq!(judge(params, value), StatementVerdict::Skip, "{params:?}");
            }
            assert_eq!(judge(&["header:op", "value"], value), StatementVerdict::Execute);
        }
        assert_eq!(judge(&["header:op", "/after/id", "/columns"], &schema), StatementVerdict::Execute);
        assert_eq!(judge(&["header:op", "/after/id", "/content"], &message), StatementVerdict::Execute);
        let truncate = json!({"op": "truncate", "cascade": false});
        assert!(refusal(&["/after/id"], &truncate).contains("TRUNCATE of public.doc has no row"));
        assert_eq!(judge(&["header:op", "/after/id"], &truncate), StatementVerdict::Execute);
    }

    #[test]
    fn key_without_a_replica_identity_is_refused() {
        let full = json!({"op": "delete", "key": null, "after": null, "before": {"id": 1}, "before_is": "full"});
        assert!(refusal(&["header:op", "/key/id"], &full).contains("/before/id"));
        assert_eq!(judge(&["header:op", "/key/id", "/before/id"], &full), StatementVerdict::Execute);
    }

    #[test]
    fn records_of_other_sources_are_not_judged() {
        let value = json!({"op": "delete", "after": null});
        let record = Record::new(Lane(0), Epoch(1), Position(1), None, Some(b"{}"));
        let fields = StatementFields::of(&[RecordField::Pointer("/after/id".to_owned())]);
        assert_eq!(fields.judge(&record, Some(&value)), StatementVerdict::Execute);
    }
}
