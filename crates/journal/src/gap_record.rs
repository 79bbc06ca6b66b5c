//! Gap records: lost records, recorded in the log itself.

use crate::{producer_record::Class, timestamp::Timestamp};

/// The cause of a loss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LossCause {
    /// The journal was full and the class drops new records.
    Newest,
    /// The journal was full and newer records displaced old ones of the class.
    Oldest,
    /// The journal was more than half full and the class is sampled.
    Sampled,
    /// The journal stayed full until the deadline of the class.
    TimedOut,
    /// The record was larger than `record_bytes_max`.
    TooLarge,
}

impl LossCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Newest, Self::Oldest, Self::Sampled, Self::TimedOut, Self::TooLarge];

    /// The name of the cause, for tables and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
            Self::Sampled => "sampled",
            Self::TimedOut => "timed_out",
            Self::TooLarge => "too_large",
        }
    }
}

/// A run of losses of one class and cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The class of the lost records.
    pub class: Class,
    /// The cause of the losses.
    pub cause: LossCause,
    /// The number of lost records.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// The time of the earliest loss.
    pub first: Timestamp,
    /// The time of the latest loss.
    pub last: Timestamp,
}

const PAYLOAD_BYTES: usize = 33;

impl Gap {
    pub(crate) fn new(class: Class, cause: LossCause, bytes: usize, time: Timestamp) -> Self {
        Self { class, cause, records: 1, bytes: bytes as u64, first: time, last: time }
    }

    fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }

    pub(crate) fn payload(&self) -> [u8; PAYLOAD_BYTES] {
        let mut out = [0; PAYLOAD_BYTES];
        out[0] = self.cause as u8;
        let numbers = [self.records, self.bytes, self.first.unix_nanos(), self.last.unix_nanos()];
        for (place, number) in out[1..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(crate) fn from_payload(class: Class, payload: &[u8]) -> Option<Self> {
        let payload: &[u8; PAYLOAD_BYTES] = payload.try_into().ok()?;
        let cause = *LossCause::ALL.get(usize::from(payload[0]))?;
        let number = |index: usize| crate::frame::u64_at(payload, 1 + 8 * index);
        let (first, last) = (Timestamp::from_unix_nanos(number(2)), Timestamp::from_unix_nanos(number(3)));
        Some(Self { class, cause, records: number(0), bytes: number(1), first, last })
    }
}

/// Gaps that no record reports yet: at most one for each class and cause.
#[derive(Debug, Default)]
pub(crate) struct PendingGaps(Vec<Gap>);

impl PendingGaps {
    pub(crate) fn add(&mut self, gap: &Gap) {
        let same = |known: &&mut Gap| known.class == gap.class && known.cause == gap.cause;
        match self.0.iter_mut().find(same) {
            Some(known) => known.add(gap),
            None => self.0.push(*gap),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Gap> {
        self.0.drain(..)
    }
}
