//! Statistics of a journal.

use std::time::Duration;

use crate::{
    gap_record::LossCause,
    health::JournalState,
    stripe::{Stripe, WriteProgress},
    timestamp::Timestamp,
};

/// Statistics of a journal, summed over its stripes without stopping them.
///
/// At rest, for each class: offered = accepted + losses before acceptance, and over all classes accepted + gaps = written
/// + displaced ([`LossCause::Oldest`]): gap records are written and not offered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JournalStats {
    /// Whether records can be written to the disk.
    pub state: JournalState,
    /// The last error, whenever it happened.
    pub last_error: Option<String>,
    /// Bytes of all segments on the disk.
    pub disk_bytes: u64,
    /// The number of segments.
    pub segments: u64,
    /// Bytes of records accepted and not yet written.
    pub queued_bytes: usize,
    /// The high-water mark of `reserved_bytes`; never more than `bytes_max`.
    pub reserved_bytes_max: usize,
    /// The memory reserved for records, in bytes: chunks being filled count whole.
    pub reserved_bytes: usize,
    /// The age of the oldest record that is not written.
    pub lag: Duration,
    /// The number of producers that wait for room.
    pub blocked: usize,
    /// The number of records and gaps that got a sequence number.
    pub numbered: u64,
    /// The number of these that are written: all but the waiting and the displaced ones.
    pub written: u64,
    /// The number of these that are durable.
    pub durable: u64,
    /// The number of write calls.
    pub writes: u64,
    /// Bytes written by these calls.
    pub written_bytes: u64,
    /// The number of syncs of open segments that a producer waited for.
    pub syncs: u64,
    /// The duration of the last such sync.
    pub sync_time_last: Duration,
    /// The number of segments abandoned after an error.
    pub segments_abandoned: u64,
    /// The counters of each class, in the order of the configuration.
    pub classes: Vec<ClassStats>,
}

impl JournalStats {
    pub(crate) fn new(state: JournalState, last_error: Option<String>) -> Self {
        Self {
            state,
            last_error,
            disk_bytes: 0,
            segments: 0,
            queued_bytes: 0,
            reserved_bytes_max: 0,
            reserved_bytes: 0,
            lag: Duration::ZERO,
            blocked: 0,
            numbered: 0,
            written: 0,
            durable: 0,
            writes: 0,
            written_bytes: 0,
            syncs: 0,
            sync_time_last: Duration::ZERO,
            segments_abandoned: 0,
            classes: Vec::new(),
        }
    }

    /// Adds a stripe. Returns the time of its oldest record that is not written.
    pub(crate) fn add(&mut self, stripe: &Stripe) -> Option<Timestamp> {
        let progress = stripe.progress();
        let WriteProgress { counts, open_bytes, in_flight_bytes, in_flight_oldest, written, durable, .. } = progress;
        let (staged_bytes, staged_oldest, counters) = stripe.staged();
        self.queued_bytes += staged_bytes + in_flight_bytes;
        self.disk_bytes += open_bytes;
        self.segments += u64::from(progress.is_open);
        self.numbered += stripe.next_seq() - stripe.first_seq();
        self.written += written;
        self.durable += durable;
        self.writes += counts.writes;
        self.written_bytes += counts.written_bytes;
        self.syncs += counts.syncs;
        self.sync_time_last = self.sync_time_last.max(counts.sync_time_last);
        self.segments_abandoned += counts.abandoned;
        for (class, counters) in self.classes.iter_mut().zip(&counters) {
            class.add(counters);
        }
        in_flight_oldest.or(staged_oldest)
    }
}

/// The counters of one class.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClassStats {
    /// The name of the class.
    pub name: String,
    /// The number of accepted records.
    pub accepted: u64,
    /// Bytes of their payloads.
    pub accepted_bytes: u64,
    lost: [u64; 5],
    lost_bytes: [u64; 5],
}

impl ClassStats {
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub(crate) fn add(&mut self, counters: &crate::staging::ClassCounters) {
        self.accepted += counters.accepted;
        self.accepted_bytes += counters.accepted_bytes;
        for cause in LossCause::ALL {
            self.lost[cause as usize] += counters.lost[cause as usize];
            self.lost_bytes[cause as usize] += counters.lost_bytes[cause as usize];
        }
    }

    /// The number of records lost to a cause.
    #[must_use]
    pub fn lost(&self, cause: LossCause) -> u64 {
        self.lost[cause as usize]
    }

    /// Bytes of payloads lost to a cause.
    #[must_use]
    pub fn lost_bytes(&self, cause: LossCause) -> u64 {
        self.lost_bytes[cause as usize]
    }

    /// The number of records lost to all causes.
    #[must_use]
    pub fn lost_total(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// The number of records that producers offered.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.accepted + self.lost_total() - self.lost(LossCause::Oldest)
    }
}
