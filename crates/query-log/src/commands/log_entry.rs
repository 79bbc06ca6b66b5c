//! Entries of a query log: a record, a loss, missing records or damage.

use std::borrow::Cow;

use serde::Deserialize;
use tidegate_journal::{Class, DamageKind, DamagedRange, Gap, Timestamp as JournalTimestamp};

use crate::record::{LogRecord, RecordKind, RecordTimestamp};

/// Classes of a query log by their numbers.
const CLASSES: [&str; 2] = ["queries", "connections"];

/// An entry of a query log.
pub(super) struct LogEntry {
    /// Time of the entry. An entry without a time has the time of the entry before it.
    pub(super) time: RecordTimestamp,
    pub(super) content: EntryContent,
}

pub(super) enum EntryContent {
    /// A record and its JSON text.
    Record {
        record: Box<LogRecord>,
        json: String,
    },
    /// A record that no gateway wrote.
    Text(String),
    Loss(Loss),
    /// Record numbers that no segment contains.
    Missing {
        stripe: u16,
        records: u64,
    },
    Damage(DamagedRange),
}

/// Records that were dropped because of overload.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Loss {
    pub(super) class: String,
    pub(super) cause: String,
    pub(super) records: u64,
    pub(super) bytes: u64,
    #[serde(rename = "first_ns", deserialize_with = "from_nanos")]
    pub(super) first: RecordTimestamp,
    #[serde(rename = "last_ns", deserialize_with = "from_nanos")]
    pub(super) last: RecordTimestamp,
}

/// A loss in the JSON format.
#[derive(Deserialize)]
struct LossLine {
    gap: Loss,
}

fn from_nanos<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<RecordTimestamp, D::Error> {
    u64::deserialize(deserializer).map(|nanos| RecordTimestamp::from_micros(nanos / 1000))
}

impl Loss {
    pub(super) fn from_gap(gap: &Gap) -> Self {
        let (class, cause) = (class_name(gap.class), gap.cause.name().to_owned());
        let (first, last) = (timestamp(gap.first), timestamp(gap.last));
        Self { class, cause, records: gap.records, bytes: gap.bytes, first, last }
    }

    /// Decodes a loss in the JSON format.
    pub(super) fn from_line(line: &[u8]) -> Option<Self> {
        let line = line.starts_with(b"{\"gap\":").then(|| serde_json::from_slice::<LossLine>(line).ok())?;
        line.map(|line| line.gap)
    }
}

pub(super) fn class_name(class: Class) -> String {
    let known = CLASSES.get(usize::from(class.index()));
    known.map_or_else(|| format!("class {}", class.index()), |name| (*name).to_owned())
}

impl EntryContent {
    /// Decodes the payload of a record.
    pub(super) fn from_payload(payload: &[u8]) -> Self {
        if let Some(loss) = Loss::from_line(payload) {
            return Self::Loss(loss);
        }
        let json = String::from_utf8_lossy(payload).into_owned();
        match LogRecord::from_json(payload) {
            Ok(record) => Self::Record { record: Box::new(record), json },
            Err(_) => Self::Text(json),
        }
    }

    /// The time that the content contains.
    pub(super) fn time(&self) -> Option<RecordTimestamp> {
        match self {
            Self::Record { record, .. } => Some(record.time),
            Self::Loss(loss) => Some(loss.last),
            Self::Text(_) | Self::Missing { .. } | Self::Damage(_) => None,
        }
    }

    /// Whether the entry is a record and not a gap.
    pub(super) fn is_record(&self) -> bool {
        matches!(self, Self::Record { .. } | Self::Text(_))
    }
}

/// Class of a record. The JSON format does not contain it.
pub(super) fn class_of_kind(kind: RecordKind) -> &'static str {
    if matches!(kind, RecordKind::Query | RecordKind::Transaction) { CLASSES[0] } else { CLASSES[1] }
}

pub(super) fn timestamp(time: JournalTimestamp) -> RecordTimestamp {
    RecordTimestamp::from_micros(time.unix_nanos() / 1000)
}

pub(super) fn time(timestamp: RecordTimestamp) -> JournalTimestamp {
    JournalTimestamp::from_unix_nanos(timestamp.micros().saturating_mul(1000))
}

/// Clock of the JSON format, see [`tidegate_journal::LineTimestamp`]. The time is the first key and has a fixed length, unless
/// another program wrote the line.
pub(super) fn line_clock(line: &[u8]) -> Option<JournalTimestamp> {
    const BEFORE: &[u8] = b"{\"time\":\"";
    const TIME_BYTES: usize = "2026-03-01T12:00:00.000042Z".len();
    let Some(rest) = line.strip_prefix(BEFORE) else {
        return EntryContent::from_payload(line).time().map(time);
    };
    let text = rest.get(..TIME_BYTES).and_then(|text| std::str::from_utf8(text).ok())?;
    RecordTimestamp::parse(text).map(time)
}

/// Describes the kind of damage.
pub(super) fn describe_damage(damage: &DamagedRange) -> Cow<'static, str> {
    Cow::Borrowed(match damage.kind {
        DamageKind::SegmentHeader => "the file does not start with the header of a segment",
        DamageKind::Middle => "changed after they were written, and records follow",
        DamageKind::Torn => "a write that was cut short, or is in progress",
        DamageKind::Misplaced { stripe, number } => {
            return format!("the file contains segment {number} of stripe {stripe}, but has the name of another")
                .into();
        }
        _ => "not records",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[u8] = br#"{"time":"2026-03-01T12:00:00.000042Z","kind":"query","tag":"SELECT 1"}"#;
    const LOSS: &[u8] =
        br#"{"gap":{"class":"queries","cause":"newest","records":3,"bytes":90,"first_ns":1000,"last_ns":2000}}"#;

    #[test]
    fn a_line_is_a_record_a_loss_or_a_text() {
        assert!(matches!(
            EntryContent::from_payload(RECORD),
            EntryContent::Record { record, .. } if class_of_kind(record.kind) == "queries"
        ));
        let EntryContent::Loss(loss) = EntryContent::from_payload(LOSS) else { panic!("a loss") };
        assert_eq!((loss.records, loss.last.micros()), (3, 2));
        assert!(matches!(EntryContent::from_payload(b"hello"), EntryContent::Text(text) if text == "hello"));
    }

    #[test]
    fn the_clock_reads_records_and_losses() {
        assert_eq!(line_clock(RECORD).map(timestamp), RecordTimestamp::parse("2026-03-01T12:00:00.000042Z"));
        assert_eq!(line_clock(LOSS).map(JournalTimestamp::unix_nanos), Some(2000));
        for line in ["", "{\"time\":\"", "{\"time\":\"2026\"}", "hello"] {
            assert_eq!(line_clock(line.as_bytes()), None, "{line}");
        }
        let spaced = String::from_utf8_lossy(RECORD).replace(':', " : ").replace("12 : 00 : 00", "12:00:00");
        assert_eq!(line_clock(spaced.as_bytes()), line_clock(RECORD), "{spaced}");
    }
}
