//! Statement parameters from parts of a record, in text format.

use serde_json::Value;
use tidegate_lanes::{Record, RecordFailure};

use super::{change::is_unchanged, lane_names::LaneNames};
use tidegate_config::stream::RecordField;

/// Returns the parameters of a record; `None` means NULL.
///
/// # Errors
/// If a pointer needs a value that is not JSON, or a part is not text.
pub(super) fn parameters(
    fields: &[RecordField],
    record: &Record,
    lanes: &LaneNames,
) -> Result<Vec<Option<String>>, RecordFailure> {
    parameters_of(fields, record, parsed_value(fields, record)?.as_ref(), lanes)
}

/// The value of a record, if a field points into it.
///
/// # Errors
/// If the value is not JSON.
pub(super) fn parsed_value(fields: &[RecordField], record: &Record) -> Result<Option<Value>, RecordFailure> {
    let needs_json = fields.iter().any(|field| matches!(field, RecordField::Pointer(_) | RecordField::Unchanged(_)));
    let Some(payload) = record.payload().filter(|_| needs_json) else { return Ok(None) };
    let parsed = serde_json::from_slice(payload);
    parsed.map(Some).map_err(|error| RecordFailure::permanent(format!("its value is not JSON: {error}")))
}

/// Returns the parameters of a record with a parsed value.
///
/// # Errors
/// If a part is not text.
pub(super) fn parameters_of(
    fields: &[RecordField],
    record: &Record,
    value: Option<&Value>,
    lanes: &LaneNames,
) -> Result<Vec<Option<String>>, RecordFailure> {
    fields.iter().map(|field| parameter(field, record, lanes, value)).collect()
}

fn parameter(
    field: &RecordField,
    record: &Record,
    lanes: &LaneNames,
    value: Option<&Value>,
) -> Result<Option<String>, RecordFailure> {
    let (topic, partition) = match field {
        RecordField::Topic | RecordField::Partition => lanes.of(record.lane()),
        _ => ("".into(), None),
    };
    Ok(match field {
        RecordField::Key => text("key", record.key())?,
        RecordField::Value => text("value", record.payload())?,
        RecordField::Topic => Some(topic.to_string()),
        RecordField::Partition => partition.map(|number| number.to_string()),
        RecordField::Position => Some(record.position().to_string()),
        RecordField::Timestamp => (record.timestamp_ms() != 0).then(|| record.timestamp_ms().to_string()),
        RecordField::Header(name) => {
            let header = record.headers().iter().rfind(|header| *header.name == **name);
            text("header", header.and_then(|header| header.value.as_deref()))?
        }
        RecordField::Unchanged(column) => Some(value.is_some_and(|value| is_unchanged(value, column)).to_string()),
        RecordField::Pointer(pointer) => value.and_then(|value| value.pointer(pointer)).and_then(scalar),
    })
}

/// Text for Postgres must be UTF-8 without zero bytes.
fn text(what: &str, bytes: Option<&[u8]>) -> Result<Option<String>, RecordFailure> {
    let Some(bytes) = bytes else { return Ok(None) };
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(RecordFailure::permanent(format!("its {what} is not UTF-8, as a parameter has to be"))),
    }
}

/// Returns a string unchanged, null as NULL, and any other value as JSON.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_lanes::{Epoch, Header, Lane, Position};

    use super::*;

    fn lanes() -> LaneNames {
        LaneNames::File { name: "orders".into(), progress: None }
    }

    #[test]
    fn parts_become_parameters() {
        let headers = ["1", "2"].map(|value| Header { name: "h".into(), value: Some(value.as_bytes().into()) });
        let value = br#"{"a":{"b":"x"},"n":12345678901234567890.50,"l":[1,2],"z":null}"#;
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(value)).with_headers(headers.into());
        let fields = [
            RecordField::Key,
            RecordField::Position,
            RecordField::Timestamp,
            RecordField::Topic,
            RecordField::Partition,
            RecordField::Header("h".to_owned()),
            RecordField::Header("none".to_owned()),
        ];
        let read = parameters(&fields, &record, &lanes()).expect("valid parameters");
        let read: Vec<_> = read.iter().map(Option::as_deref).collect();
        assert_eq!(read, [Some("k"), Some("7"), None, Some("orders"), None, Some("2"), None]);
        let pointers = ["/a/b", "/n", "/l", "/z", "/none"].map(|pointer| RecordField::Pointer(pointer.to_owned()));
        let read = parameters(&pointers, &record, &lanes()).expect("valid parameters");
        let read: Vec<_> = read.iter().map(Option::as_deref).collect();
        assert_eq!(read, [Some("x"), Some("12345678901234567890.50"), Some("[1,2]"), None, None]);
    }

    #[test]
    fn unchanged_column_becomes_a_boolean() {
        let values = [
            (r#"{"after":{"id":1},"unchanged":["doc"]}"#, "true"),
            (r#"{"specversion":"1.0","data":{"unchanged":["doc"]}}"#, "true"),
            (r#"{"after":{"doc":"__debezium_unavailable_value"}}"#, "true"),
            (r#"{"after":{"doc":"new"},"unchanged":["other"]}"#, "false"),
            (r#"{"after":null}"#, "false"),
        ];
        for (value, expected) in values {
            let record = Record::new(Lane(0), Epoch(1), Position(7), None, Some(value.as_bytes()));
            let read = parameters(&[RecordField::Unchanged("doc".to_owned())], &record, &lanes());
            assert_eq!(read, Ok(vec![Some(expected.to_owned())]), "{value}");
        }
    }

    #[test]
    fn invalid_parameters_fail_permanently() {
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(&[0xff]), Some(b"no json"));
        for field in [RecordField::Key, RecordField::Pointer("/a".to_owned())] {
            let failure = parameters(&[field], &record, &lanes()).expect_err("an invalid parameter");
            assert!(failure.is_permanent(), "{failure}");
        }
        let tombstone = Record::new(Lane(0), Epoch(1), Position(7), None, None);
        let fields = [RecordField::Value, RecordField::Pointer("/a".to_owned())];
        assert_eq!(parameters(&fields, &tombstone, &lanes()), Ok(vec![None, None]));
    }
}
