//! What stands in a journal, taken out of it: a record, a loss, or what is missing or damaged.

use std::borrow::Cow;

use serde::Deserialize;
use tidegate_journal::{Class, DamageKind, DamagedRange, Gap, Timestamp};

use crate::entry::{Entry, Kind, Moment};

/// The classes of a gateway's journal, in the order of their numbers.
const CLASSES: [&str; 2] = ["queries", "connections"];

/// One entry of a journal.
pub(super) struct Item {
    /// When; what has no time of its own has that of the entry before it.
    pub(super) time: Moment,
    pub(super) what: What,
}

pub(super) enum What {
    /// A record, and the text it was read from.
    Record {
        entry: Box<Entry>,
        json: String,
    },
    /// A record of another journal than a gateway's.
    Text(String),
    Loss(Loss),
    /// Numbers that are in no segment.
    Missing {
        stripe: u16,
        records: u64,
    },
    Damage(DamagedRange),
}

/// Records that were lost to overload.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Loss {
    pub(super) class: String,
    pub(super) cause: String,
    pub(super) records: u64,
    pub(super) bytes: u64,
    #[serde(rename = "first_ns", deserialize_with = "from_nanos")]
    pub(super) first: Moment,
    #[serde(rename = "last_ns", deserialize_with = "from_nanos")]
    pub(super) last: Moment,
}

/// How a loss stands in the JSON format.
#[derive(Deserialize)]
struct LossLine {
    gap: Loss,
}

fn from_nanos<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
    u64::deserialize(deserializer).map(|nanos| Moment::from_micros(nanos / 1000))
}

impl Loss {
    pub(super) fn from_gap(gap: &Gap) -> Self {
        let (class, cause) = (class_name(gap.class), gap.cause.name().to_owned());
        let (first, last) = (moment(gap.first), moment(gap.last));
        Self { class, cause, records: gap.records, bytes: gap.bytes, first, last }
    }

    /// How a loss stands in the JSON format.
    pub(super) fn from_line(line: &[u8]) -> Option<Self> {
        let line = line.starts_with(b"{\"gap\":").then(|| serde_json::from_slice::<LossLine>(line).ok())?;
        line.map(|line| line.gap)
    }
}

pub(super) fn class_name(class: Class) -> String {
    let known = CLASSES.get(usize::from(class.index()));
    known.map_or_else(|| format!("class {}", class.index()), |name| (*name).to_owned())
}

impl What {
    /// What a record's payload is.
    pub(super) fn of_payload(payload: &[u8]) -> Self {
        if let Some(loss) = Loss::from_line(payload) {
            return Self::Loss(loss);
        }
        let json = String::from_utf8_lossy(payload).into_owned();
        match Entry::from_json(payload) {
            Ok(entry) => Self::Record { entry: Box::new(entry), json },
            Err(_) => Self::Text(json),
        }
    }

    /// The time that it says itself.
    pub(super) fn time(&self) -> Option<Moment> {
        match self {
            Self::Record { entry, .. } => Some(entry.time),
            Self::Loss(loss) => Some(loss.last),
            Self::Text(_) | Self::Missing { .. } | Self::Damage(_) => None,
        }
    }

    /// Whether it is something that was written down, and not a hole.
    pub(super) fn is_record(&self) -> bool {
        matches!(self, Self::Record { .. } | Self::Text(_))
    }
}

/// The class of a record, which lines do not say.
pub(super) fn class_of(kind: Kind) -> &'static str {
    if matches!(kind, Kind::Query | Kind::Transaction) { CLASSES[0] } else { CLASSES[1] }
}

pub(super) fn moment(time: Timestamp) -> Moment {
    Moment::from_micros(time.unix_nanos() / 1000)
}

pub(super) fn time(moment: Moment) -> Timestamp {
    Timestamp::from_unix_nanos(moment.micros().saturating_mul(1000))
}

/// The clock of lines: see [`tidegate_journal::LineTimestamp`]. The time is the first key of a record, always of one length, unless
/// somebody else has written it.
pub(super) fn clock(line: &[u8]) -> Option<Timestamp> {
    const BEFORE: &[u8] = b"{\"time\":\"";
    const TIME_BYTES: usize = "2026-03-01T12:00:00.000042Z".len();
    let Some(rest) = line.strip_prefix(BEFORE) else {
        return What::of_payload(line).time().map(time);
    };
    let text = rest.get(..TIME_BYTES).and_then(|text| std::str::from_utf8(text).ok())?;
    Moment::parse(text).map(time)
}

/// What kind of damage it is, in words.
pub(super) fn words_of(damage: &DamagedRange) -> Cow<'static, str> {
    Cow::Borrowed(match damage.kind {
        DamageKind::SegmentHeader => "the file does not begin as a segment does",
        DamageKind::Middle => "they changed after they were written, and records follow",
        DamageKind::Torn => "a write that was cut short, or is under way",
        DamageKind::Misplaced { stripe, number } => {
            return format!("the file says that it is segment {number} of stripe {stripe}, and has another's name")
                .into();
        }
        _ => "they are no records",
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
        assert!(matches!(What::of_payload(RECORD), What::Record { entry, .. } if class_of(entry.kind) == "queries"));
        assert!(matches!(What::of_payload(LOSS), What::Loss(loss) if loss.records == 3 && loss.last.micros() == 2));
        assert!(matches!(What::of_payload(b"hello"), What::Text(text) if text == "hello"));
    }

    #[test]
    fn the_clock_reads_records_and_losses_and_nothing_else() {
        assert_eq!(clock(RECORD).map(moment), Moment::parse("2026-03-01T12:00:00.000042Z"));
        assert_eq!(clock(LOSS).map(Timestamp::unix_nanos), Some(2000));
        for line in ["", "{\"time\":\"", "{\"time\":\"2026\"}", "hello"] {
            assert_eq!(clock(line.as_bytes()), None, "{line}");
        }
        let spaced = String::from_utf8_lossy(RECORD).replace(':', " : ").replace("12 : 00 : 00", "12:00:00");
        assert_eq!(clock(spaced.as_bytes()), clock(RECORD), "{spaced}");
    }
}
