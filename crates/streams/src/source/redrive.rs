//! Dead letters of a file as a source: each line is a record with its key, headers and time, to be delivered again.

use std::task::{Context, Poll};

use base64::Engine as _;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tidegate_config::stream::OrderingKey;
use tidegate_lanes::{
    Epoch, Header, Lane, LaneCommit, PollLimit, Position, Record, Source, SourceEvent,
    source::{NdjsonError, NdjsonSource},
};

use super::with_key;

/// The records of dead letters.
#[derive(Debug)]
pub(crate) struct RedriveSource {
    lines: NdjsonSource,
    key: OrderingKey,
}

impl RedriveSource {
    pub(super) fn new(lines: NdjsonSource, key: OrderingKey) -> Self {
        Self { lines, key }
    }

    fn record_of(&self, line: Record) -> Record {
        let Some(text) = line.payload().filter(|_| line.decode_error().is_none()) else { return line };
        match serde_json::from_slice::<LetterLine<'_>>(text)
            .map_err(|error| error.to_string())
            .and_then(|letter| letter.record(&line))
        {
            Err(error) => line.undecodable(&format!("not a dead letter: {error}")),
            Ok(record) => match &self.key {
                OrderingKey::Record => record,
                OrderingKey::Pointer(pointer) => with_key(pointer, record),
            },
        }
    }
}

/// A line of a dead-letter file.
#[derive(Deserialize)]
struct LetterLine<'a> {
    /// Only dead letters have it.
    #[serde(rename = "attempts")]
    _attempts: u64,
    #[serde(default)]
    timestamp: i64,
    key: Value,
    #[serde(default)]
    headers: Vec<(String, Value)>,
    #[serde(borrow)]
    value: &'a RawValue,
    /// How a value that is not JSON is written: `text` or `base64`.
    encoding: Option<String>,
}

impl LetterLine<'_> {
    fn record(self, line: &Record) -> Result<Record, String> {
        let value = match self.encoding.as_deref() {
            None if self.value.get() == "null" => None,
            None => Some(self.value.get().as_bytes().to_vec()),
            Some(_) => bytes(&serde_json::from_str(self.value.get()).map_err(|error| error.to_string())?)?,
        };
        let key = bytes(&self.key)?;
        let header = |(name, value): (String, Value)| -> Result<Header, String> {
            Ok(Header { name: name.into(), value: bytes(&value)?.map(Into::into) })
        };
        let headers = self.headers.into_iter().map(header).collect::<Result<Vec<_>, _>>()?;
        let record = Record::new(line.lane(), line.epoch(), line.position(), key.as_deref(), value.as_deref());
        let record = if self.timestamp == 0 { record } else { record.with_timestamp_ms(self.timestamp) };
        Ok(if headers.is_empty() { record } else { record.with_headers(headers) })
    }
}

/// A text, `{"base64":"..."}`, or null.
fn bytes(value: &Value) -> Result<Option<Vec<u8>>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.as_bytes().to_vec())),
        other => {
            let encoded = other.get("base64").and_then(Value::as_str).ok_or("neither a text nor {\"base64\":...}")?;
            base64::engine::general_purpose::STANDARD.decode(encoded).map(Some).map_err(|error| error.to_string())
        }
    }
}

impl Source for RedriveSource {
    type Error = NdjsonError;

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        limit: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, NdjsonError>> {
        let before = batch.len();
        let polled = self.lines.poll(cx, limit, batch);
        let lines: Vec<Record> = batch.drain(before..).collect();
        batch.extend(lines.into_iter().map(|line| self.record_of(line)));
        polled
    }

    fn pause(&mut self, lane: Lane, epoch: Epoch) {
        self.lines.pause(lane, epoch);
    }

    fn resume(&mut self, lane: Lane, epoch: Epoch) {
        self.lines.resume(lane, epoch);
    }

    fn commit(&mut self, commits: &[LaneCommit]) {
        self.lines.commit(commits);
    }

    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        self.lines.release(lane, epoch, through);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NdjsonError>> {
        self.lines.poll_close(cx)
    }

    fn buffered_bytes(&self) -> usize {
        self.lines.buffered_bytes()
    }

    fn lane_name(&self, lane: Lane) -> String {
        self.lines.lane_name(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &str) -> Record {
        let source = RedriveSource::new(
            NdjsonSource::reader("letters", std::io::empty(), tidegate_lanes::source::NdjsonFormat::default())
                .expect("a thread"),
            OrderingKey::Record,
        );
        source.record_of(Record::new(Lane(0), Epoch(1), Position(7), None, Some(line.as_bytes())))
    }

    #[test]
    fn letter_becomes_the_record_it_was() {
        let letter = record(
            r#"{"stream":"s","attempts":3,"cause":"sink","error":"no","topic":"t","partition":1,"position":9,"timestamp":5,
                "key":{"base64":"/w=="},"headers":[["a","1"],["b",null]],"value":{"n":1.50,"t":"x"}}"#,
        );
        assert_eq!(letter.decode_error(), None);
        assert_eq!((letter.key(), letter.payload()), (Some(&[0xff][..]), Some(&br#"{"n":1.50,"t":"x"}"#[..])));
        assert_eq!((letter.timestamp_ms(), letter.position()), (5, Position(7)));
        let headers: Vec<_> = letter.headers().iter().map(|header| (&*header.name, header.value.as_deref())).collect();
        assert_eq!(headers, [("a", Some(&b"1"[..])), ("b", None)]);
        let value = |value: &str| {
            let record = record(&format!("{{\"attempts\":1,\"key\":null,\"value\":{value}}}"));
            record.payload().map(<[u8]>::to_vec)
        };
        assert_eq!(value("\"json\"").as_deref(), Some(&b"\"json\""[..]));
        assert_eq!(value("\"text\",\"encoding\":\"text\"").as_deref(), Some(&b"text"[..]));
        assert_eq!(value("{\"base64\":\"/w==\"},\"encoding\":\"base64\"").as_deref(), Some(&[0xff][..]));
        assert_eq!(value("null"), None);
    }

    #[test]
    fn other_lines_are_undecodable() {
        for line in ["{}", "7", "{\"attempts\":1,\"key\":7,\"value\":1}", "{\"k\":\"a\",\"n\":1}"] {
            assert!(record(line).decode_error().is_some_and(|error| error.starts_with("not a dead letter")), "{line}");
        }
    }
}
