//! Encodes records as lines: the value alone, or an envelope.

use std::io::Write as _;

use base64::Engine as _;
use serde::de::IgnoredAny;
use tidegate_lanes::{Header, Record, RecordFailure};

use super::lane_names::LaneNames;
use tidegate_config::stream::RecordForm;

/// Encodes records.
#[derive(Clone)]
pub(super) struct RecordEncoder {
    pub(super) form: RecordForm,
    pub(super) lanes: LaneNames,
}

impl RecordEncoder {
    /// Appends the record and a line break.
    pub(super) fn line(&self, record: &Record, out: &mut Vec<u8>) -> Result<(), RecordFailure> {
        match self.form {
            RecordForm::Envelope => self.envelope(record, out),
            RecordForm::Value => match record.payload() {
                None => out.extend_from_slice(b"null"),
                Some(value) if !value.contains(&b'\n') => out.extend_from_slice(value),
                Some(value) if is_json(value) => push_in_one_line(out, value),
                Some(_) => {
                    let text = "its value contains a line break: set form = \"envelope\"";
                    return Err(RecordFailure::permanent(text));
                }
            },
        }
        out.push(b'\n');
        Ok(())
    }

    /// Appends the record as the body of a request. A tombstone is an empty body.
    pub(super) fn body(&self, record: &Record, out: &mut Vec<u8>) {
        match self.form {
            RecordForm::Envelope => self.envelope(record, out),
            RecordForm::Value => out.extend_from_slice(record.payload().unwrap_or_default()),
        }
    }

    /// Appends `{"topic":...,"value":...}`.
    pub(super) fn envelope(&self, record: &Record, out: &mut Vec<u8>) {
        out.push(b'{');
        self.members(record, record.key(), out);
        out.push(b'}');
    }

    /// Appends the members of an envelope, without braces.
    pub(super) fn members(&self, record: &Record, key: Option<&[u8]>, out: &mut Vec<u8>) {
        let (topic, partition) = self.lanes.of(record.lane());
        match partition {
            Some(number) => {
                member(out, "topic", topic.as_bytes());
                let _ = write!(out, ",\"partition\":{number}");
            }
            None => member(out, "file", topic.as_bytes()),
        }
        let _ = write!(out, ",\"position\":{}", record.position());
        if record.timestamp_ms() != 0 {
            let _ = write!(out, ",\"timestamp\":{}", record.timestamp_ms());
        }
        out.extend_from_slice(b",\"key\":");
        push_text(out, key);
        if !record.headers().is_empty() {
            out.extend_from_slice(b",\"headers\":[");
            for (index, Header { name, value }) in record.headers().iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
                write_json(out, &**name);
                out.push(b',');
                push_text(out, value.as_deref());
                out.push(b']');
            }
            out.push(b']');
        }
        out.extend_from_slice(b",\"value\":");
        push_value(out, record.payload());
    }
}

/// Appends `"name":"text"`.
pub(super) fn member(out: &mut Vec<u8>, name: &str, text: &[u8]) {
    write_json(out, name);
    out.push(b':');
    push_text(out, Some(text));
}

fn write_json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // Writing to memory cannot fail, and strings and values are valid JSON.
    let _ = serde_json::to_writer(out, value);
}

/// Appends a JSON string. Bytes that are not UTF-8 become `{"base64":"..."}`, and `None` becomes null.
fn push_text(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes.map(std::str::from_utf8) {
        None => out.extend_from_slice(b"null"),
        Some(Ok(text)) => write_json(out, text),
        Some(Err(_)) => {
            let text = base64::engine::general_purpose::STANDARD.encode(bytes.unwrap_or_default());
            let _ = write!(out, "{{\"base64\":\"{text}\"}}");
        }
    }
}

/// How [`RecordEncoder::members`] writes a value that is not JSON; `None` if it is JSON or missing.
pub(super) fn value_encoding(payload: Option<&[u8]>) -> Option<&'static str> {
    let value = payload.filter(|value| !is_json(value))?;
    Some(if std::str::from_utf8(value).is_ok() { "text" } else { "base64" })
}

/// Appends a JSON value unchanged, and any other bytes as a string.
fn push_value(out: &mut Vec<u8>, payload: Option<&[u8]>) {
    let Some(value) = payload else { return out.extend_from_slice(b"null") };
    if is_json(value) { push_in_one_line(out, value) } else { push_text(out, payload) }
}

fn is_json(value: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(value).is_ok()
}

/// Appends JSON without its line breaks, which occur between tokens only.
fn push_in_one_line(out: &mut Vec<u8>, value: &[u8]) {
    let parts = value.trim_ascii().split(|byte| matches!(byte, b'\n' | b'\r'));
    parts.for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use tidegate_lanes::{Epoch, Lane, Position};

    use super::*;

    fn encoder(form: RecordForm) -> RecordEncoder {
        RecordEncoder { form, lanes: LaneNames::File { name: "orders".into(), progress: None } }
    }

    fn record(key: Option<&[u8]>, value: Option<&[u8]>) -> Record {
        Record::new(Lane(0), Epoch(1), Position(7), key, value)
    }

    fn line(form: RecordForm, record: &Record) -> Result<String, RecordFailure> {
        let mut out = Vec::new();
        encoder(form).line(record, &mut out)?;
        Ok(String::from_utf8(out).expect("lines are UTF-8"))
    }

    #[test]
    fn a_value_is_one_line() {
        let of = |value: Option<&[u8]>| line(RecordForm::Value, &record(None, value));
        assert_eq!(of(Some(b"{ \"a\": 1 }")).as_deref(), Ok("{ \"a\": 1 }\n"));
        let split = b"{\r\n\"b\": 12345678901234567890123,\n\"a\": 0.10\n}";
        let whole = "{\"b\": 12345678901234567890123,\"a\": 0.10}";
        assert_eq!(of(Some(split)), Ok(format!("{whole}\n")));
        let envelope = line(RecordForm::Envelope, &record(None, Some(split)));
        assert_eq!(envelope, Ok(format!("{{\"file\":\"orders\",\"position\":7,\"key\":null,\"value\":{whole}}}\n")));
        assert_eq!(of(None).as_deref(), Ok("null\n"));
        assert!(of(Some(b"two\nlines")).is_err_and(|failure| failure.is_permanent()));
    }

    #[test]
    fn an_envelope_holds_any_bytes() {
        let header = Header { name: "h".into(), value: Some(b"x"[..].into()) };
        let full = record(Some(b"k\"1"), Some(b"two\nlines")).with_timestamp_ms(5).with_headers(vec![header]);
        assert_eq!(
            line(RecordForm::Envelope, &full).as_deref(),
            Ok("{\"file\":\"orders\",\"position\":7,\"timestamp\":5,\"key\":\"k\\\"1\",\"headers\":[[\"h\",\"x\"]],\
                \"value\":\"two\\nlines\"}\n")
        );
        let json = record(None, Some(b"[1, 2]"));
        assert_eq!(
            line(RecordForm::Envelope, &json).as_deref(),
            Ok("{\"file\":\"orders\",\"position\":7,\"key\":null,\"value\":[1, 2]}\n")
        );
        let bytes = record(Some(&[0xff]), None);
        assert_eq!(
            line(RecordForm::Envelope, &bytes).as_deref(),
            Ok("{\"file\":\"orders\",\"position\":7,\"key\":{\"base64\":\"/w==\"},\"value\":null}\n")
        );
    }
}
