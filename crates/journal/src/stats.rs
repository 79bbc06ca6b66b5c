//! A journal in figures.

use std::time::Duration;

use crate::{
    gap::Cause,
    health::State,
    stripe::{Progress, Stripe},
    time::Time,
};

/// A journal in figures, summed over its stripes without stopping them.
///
/// At rest, for each class: offered = accepted + lost at the door, and over all classes accepted + gaps = written +
/// displaced (lost to [`Cause::Oldest`]): gap records are written and not offered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// How the disk does.
    pub state: State,
    /// The last thing that went wrong, whenever that was.
    pub last_error: Option<String>,
    /// Bytes of all segments on the disk.
    pub disk_bytes: u64,
    /// How many segments there are.
    pub segments: u64,
    /// Bytes of records accepted and not yet written.
    pub queued_bytes: usize,
    /// The most memory that records took at a time, in bytes; never more than `bytes_max`.
    pub reserved_bytes_max: usize,
    /// The memory that records take now, in bytes: chunks being filled count whole.
    pub reserved_bytes: usize,
    /// The age of the oldest record that is not written.
    pub lag: Duration,
    /// Producers that wait for room.
    pub blocked: usize,
    /// Records (and gaps) that were numbered.
    pub numbered: u64,
    /// Of these, how many are written: all but those that wait and those that were displaced.
    pub written: u64,
    /// Of these, how many are durable.
    pub durable: u64,
    /// Calls to write.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Syncs of open segments that somebody waited for.
    pub syncs: u64,
    /// How long the last of them took.
    pub sync_time_last: Duration,
    /// Segments given up after an error.
    pub poisoned: u64,
    /// The books of each class, in the order of the configuration.
    pub classes: Vec<ClassStats>,
}

impl Stats {
    pub(crate) fn new(state: State, last_error: Option<String>) -> Self {
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
            poisoned: 0,
            classes: Vec::new(),
        }
    }

    /// Adds a stripe; returns the time of its oldest record that is not written.
    pub(crate) fn add(&mut self, stripe: &Stripe) -> Option<Time> {
        let progress = stripe.progress();
        let Progress { counts, open_bytes, in_flight_bytes, in_flight_oldest, written, durable, .. } = progress;
        let (staged_bytes, staged_oldest, books) = stripe.staged();
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
        self.poisoned += counts.poisoned;
        for (class, books) in self.classes.iter_mut().zip(&books) {
            class.add(books);
        }
        in_flight_oldest.or(staged_oldest)
    }
}

/// The books of one class.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClassStats {
    /// Its name.
    pub name: String,
    /// Records taken in.
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

    pub(crate) fn add(&mut self, books: &crate::staging::ClassBooks) {
        self.accepted += books.accepted;
        self.accepted_bytes += books.accepted_bytes;
        for cause in Cause::ALL {
            self.lost[cause as usize] += books.lost[cause as usize];
            self.lost_bytes[cause as usize] += books.lost_bytes[cause as usize];
        }
    }

    /// Records lost to a cause.
    #[must_use]
    pub fn lost(&self, cause: Cause) -> u64 {
        self.lost[cause as usize]
    }

    /// Bytes of payloads lost to a cause.
    #[must_use]
    pub fn lost_bytes(&self, cause: Cause) -> u64 {
        self.lost_bytes[cause as usize]
    }

    /// Records lost to all causes.
    #[must_use]
    pub fn lost_in_all(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Records handed in.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.accepted + self.lost_in_all() - self.lost(Cause::Oldest)
    }
}
