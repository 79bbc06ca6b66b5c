//! The entries of a journal, and where a reader begins and ends.

use super::position::ReaderPosition;
use crate::{gap_record::Gap, producer_record::Class, recovery::DamagedRange, timestamp::Timestamp};

/// An entry of a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JournalEntry<'a> {
    /// A record.
    Record(JournalRecord<'a>),
    /// Records were lost to overload and counted.
    Gap(Gap),
    /// Sequence numbers are missing: records displaced by newer ones (a gap record follows that counts them), or lost
    /// with damage.
    Missing {
        /// The stripe.
        stripe: u16,
        /// The number of missing records.
        records: u64,
    },
    /// Bytes that are not valid records.
    Damage(DamagedRange),
}

/// A record as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalRecord<'a> {
    /// The stripe.
    pub stripe: u16,
    /// The sequence number within the stripe; in JSON and text, the number of the line within the segment.
    pub seq: u64,
    /// The timestamp; in JSON and text, the result of the reader's [`LineTimestamp`], or [`Timestamp::MIN`].
    pub time: Timestamp,
    /// The class; in JSON and text, the first class.
    pub class: Class,
    /// The payload of the record.
    pub payload: &'a [u8],
}

/// Where reading begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ReadFrom {
    /// The oldest record.
    #[default]
    Beginning,
    /// The end: only records written from now on.
    End,
    /// The first record that is not older. Segments with only older records, according to their summary, are skipped.
    Timestamp(Timestamp),
    /// The result of [`JournalReader::position`](super::JournalReader::position).
    Position(ReaderPosition),
}

/// The behaviour of the reader at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtEnd {
    /// Reading ends. A partial record is reported as damage.
    #[default]
    Stop,
    /// More may be written: a partial record may become whole, and a missing or replaced folder is read again.
    Follow,
}

/// Reads the timestamp of a JSON or text record from its line.
pub type LineTimestamp = fn(&[u8]) -> Option<Timestamp>;
