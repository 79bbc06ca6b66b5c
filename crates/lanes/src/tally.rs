//! What a shard has counted: plain numbers of one owner, added up when somebody asks.

use std::time::Duration;

/// Counts and times of a subscription, or of a part of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Records whose handler finished them.
    pub done: u64,
    /// Attempts that failed, for whatever reason.
    pub failed: u64,
    /// Attempts that failed and were followed by another.
    pub retried: u64,
    /// Failures that were panics.
    pub panicked: u64,
    /// Failures that were dropped completions.
    pub dropped: u64,
    /// Deadlines that were missed.
    pub overdue: u64,
    /// Completions that came after their deadline or their lane's end, and were ignored.
    pub late: u64,
    /// Records that the dead-letter took.
    pub dead_lettered: u64,
    /// Attempts to give a record to the dead-letter that failed.
    pub not_dead_lettered: u64,
    /// Records that were skipped.
    pub skipped: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Records that were done because a newer one of their key took their place.
    pub compacted: u64,
    /// Starts that were still under way when their lane had to go.
    pub abandoned: u64,
    /// Times at which a key had to wait for its quota.
    pub throttled: u64,
    /// Keys that have records now.
    pub keys: usize,
    /// Keys whose turn may come now.
    pub keys_ready: usize,
    /// Keys that are parked now.
    pub keys_parked: usize,
    /// Records of parked keys now.
    pub records_parked: usize,
    /// Starts under way now.
    pub running: usize,
    /// From the arrival of a record to the start of its handler, of every attempt.
    pub wait: Histogram,
    /// From the start to the completion.
    pub run: Histogram,
}

impl Tally {
    /// Adds what another part has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.retried += other.retried;
        self.panicked += other.panicked;
        self.dropped += other.dropped;
        self.overdue += other.overdue;
        self.late += other.late;
        self.dead_lettered += other.dead_lettered;
        self.not_dead_lettered += other.not_dead_lettered;
        self.skipped += other.skipped;
        self.undecodable += other.undecodable;
        self.compacted += other.compacted;
        self.abandoned += other.abandoned;
        self.throttled += other.throttled;
        self.keys += other.keys;
        self.keys_ready += other.keys_ready;
        self.keys_parked += other.keys_parked;
        self.records_parked += other.records_parked;
        self.running += other.running;
        self.wait.add(&other.wait);
        self.run.add(&other.run);
    }
}

const BUCKETS: usize = 40;

/// How often a time fell between two powers of two of microseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram([u64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    pub(crate) fn note(&mut self, time: Duration) {
        let micros = time.as_micros() as u64;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.0[bucket.min(BUCKETS - 1)] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
    }

    /// How many times were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Upper bounds and counts of its buckets: so many times were shorter than that, and not shorter than the bound before.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.0.iter().enumerate().map(|(bucket, count)| (Duration::from_micros(1 << bucket), *count))
    }

    /// A time that so many of all were shorter than, up to a factor of two; 0.99 asks for the 99th percentile.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let count = self.count();
        if count == 0 {
            return Duration::ZERO;
        }
        let wanted = (count as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reached = self.buckets().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(Duration::ZERO, |(bound, _)| bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut histogram = Histogram::default();
        for micros in 0..1000 {
            histogram.note(Duration::from_micros(micros));
        }
        assert_eq!(histogram.quantile(0.5), Duration::from_micros(512));
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(1024));
        assert_eq!((histogram.count(), Histogram::default().quantile(0.99)), (1000, Duration::ZERO));
    }
}
