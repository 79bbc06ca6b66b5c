//! Parts of a record as texts, which a server reads as whatever the parameter is.

use serde_json::Value;
use tidegate_lanes::{Record, RecordFailure};

use super::place::Places;
use tidegate_config::stream::Field;

/// The parts of a record, in the order of the parameters; `None` is NULL.
///
/// # Errors
/// A pointer asks for a value that is no JSON, or a part is no text.
pub(super) fn texts(fields: &[Field], record: &Record, places: &Places) -> Result<Vec<Option<String>>, RecordFailure> {
    let wants_json = fields.iter().any(|field| matches!(field, Field::Pointer(_)));
    let value: Option<Value> = match record.payload().filter(|_| wants_json) {
        None => None,
        Some(payload) => {
            let parsed = serde_json::from_slice(payload);
            Some(parsed.map_err(|error| RecordFailure::permanent(format!("its value is no JSON: {error}")))?)
        }
    };
    fields.iter().map(|field| one(field, record, places, value.as_ref())).collect()
}

fn one(
    field: &Field,
    record: &Record,
    places: &Places,
    value: Option<&Value>,
) -> Result<Option<String>, RecordFailure> {
    let (topic, partition) = match field {
        Field::Topic | Field::Partition => places.of(record.lane()),
        _ => ("".into(), None),
    };
    Ok(match field {
        Field::Key => text("key", record.key())?,
        Field::Value => text("value", record.payload())?,
        Field::Topic => Some(topic.to_string()),
        Field::Partition => partition.map(|number| number.to_string()),
        Field::Position => Some(record.position().to_string()),
        Field::Timestamp => (record.timestamp_ms() != 0).then(|| record.timestamp_ms().to_string()),
        Field::Header(name) => {
            let header = record.headers().iter().rfind(|header| *header.name == **name);
            text("header", header.and_then(|header| header.value.as_deref()))?
        }
        Field::Pointer(pointer) => value.and_then(|value| value.pointer(pointer)).and_then(scalar),
    })
}

/// Text of the server must be UTF-8 and hold no zero byte.
fn text(what: &str, bytes: Option<&[u8]>) -> Result<Option<String>, RecordFailure> {
    let Some(bytes) = bytes else { return Ok(None) };
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(RecordFailure::permanent(format!("its {what} is not UTF-8, which a parameter must be"))),
    }
}

/// A string as it is, null as NULL, anything else as its JSON.
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

    fn places() -> Places {
        Places::File { name: "orders".into(), path: None }
    }

    #[test]
    fn parts_become_the_texts_of_parameters() {
        let headers = ["1", "2"].map(|value| Header { name: "h".into(), value: Some(value.as_bytes().into()) });
        let value = br#"{"a":{"b":"x"},"n":12345678901234567890.50,"l":[1,2],"z":null}"#;
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(b"k"), Some(value)).with_headers(headers.into());
        let fields = [
            Field::Key,
            Field::Position,
            Field::Timestamp,
            Field::Topic,
            Field::Partition,
            Field::Header("h".to_owned()),
            Field::Header("none".to_owned()),
        ];
        let read = texts(&fields, &record, &places()).expect("parts");
        let read: Vec<_> = read.iter().map(Option::as_deref).collect();
        assert_eq!(read, [Some("k"), Some("7"), None, Some("orders"), None, Some("2"), None]);
        let pointers = ["/a/b", "/n", "/l", "/z", "/none"].map(|pointer| Field::Pointer(pointer.to_owned()));
        let read = texts(&pointers, &record, &places()).expect("parts");
        let read: Vec<_> = read.iter().map(Option::as_deref).collect();
        assert_eq!(read, [Some("x"), Some("12345678901234567890.50"), Some("[1,2]"), None, None]);
    }

    #[test]
    fn what_cannot_be_a_parameter_is_not_tried_again() {
        let record = Record::new(Lane(0), Epoch(1), Position(7), Some(&[0xff]), Some(b"no json"));
        for field in [Field::Key, Field::Pointer("/a".to_owned())] {
            let failure = texts(&[field], &record, &places()).expect_err("no parameter");
            assert!(failure.is_permanent(), "{failure}");
        }
        let tombstone = Record::new(Lane(0), Epoch(1), Position(7), None, None);
        let fields = [Field::Value, Field::Pointer("/a".to_owned())];
        assert_eq!(texts(&fields, &tombstone, &places()), Ok(vec![None, None]));
    }
}
