//! Counters of a shard: plain numbers with one owner, summed on demand.

use std::time::Duration;

/// Counters, gauges and latencies of a subscription.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SubscriptionCounters {
    /// Records finished by their handler.
    pub done: u64,
    /// Failed attempts.
    pub failed: u64,
    /// Failed attempts followed by another attempt.
    pub retried: u64,
    /// Failures by panic.
    pub panicked: u64,
    /// Failures by a dropped completion.
    pub dropped: u64,
    /// Missed deadlines.
    pub overdue: u64,
    /// Completions ignored because they came after their deadline or the end of their lane.
    pub late: u64,
    /// Records accepted by the dead-letter queue.
    pub dead_lettered: u64,
    /// Records refused by the dead-letter queue, per attempt.
    pub dead_letter_failures: u64,
    /// Skipped records.
    pub skipped: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Records replaced by a newer record of their key.
    pub compacted: u64,
    /// Executions abandoned because their lane was revoked or the subscription stopped.
    pub abandoned: u64,
    /// Times that a key had to wait for its quota.
    pub throttled: u64,
    /// Keys with records, now.
    pub keys: usize,
    /// Ready keys, now.
    pub keys_ready: usize,
    /// Parked keys, now.
    pub keys_parked: usize,
    /// Records of parked keys, now.
    pub records_parked: usize,
    /// Running executions, now.
    pub running: usize,
    /// Time from the arrival of a record to the start of its handler, for each attempt.
    pub wait: LatencyHistogram,
    /// Time from the start of a handler to its completion.
    pub run: LatencyHistogram,
}

impl SubscriptionCounters {
    /// Adds the counters of another shard.
    pub(crate) fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.retried += other.retried;
        self.panicked += other.panicked;
        self.dropped += other.dropped;
        self.overdue += other.overdue;
        self.late += other.late;
        self.dead_lettered += other.dead_lettered;
        self.dead_letter_failures += other.dead_letter_failures;
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

/// A histogram with buckets at powers of two microseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LatencyHistogram([u64; BUCKETS]);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl LatencyHistogram {
    pub(crate) fn record(&mut self, time: Duration) {
        let micros = time.as_micros() as u64;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.0[bucket.min(BUCKETS - 1)] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
    }

    /// The number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Upper bound and count of each bucket. A bucket holds samples below its bound and not below the bound before it.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.0.iter().enumerate().map(|(bucket, count)| (Duration::from_micros(1 << bucket), *count))
    }

    /// An upper bound of the quantile, exact within a factor of two; 0.99 is the 99th percentile.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let count = self.count();
        if count == 0 {
            return Duration::ZERO;
        }
        let rank = (count as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reached = self.buckets().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        reached.map_or(Duration::ZERO, |(bound, _)| bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut histogram = LatencyHistogram::default();
        for micros in 0..1000 {
            histogram.record(Duration::from_micros(micros));
        }
        assert_eq!(histogram.quantile(0.5), Duration::from_micros(512));
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(1024));
        assert_eq!((histogram.count(), LatencyHistogram::default().quantile(0.99)), (1000, Duration::ZERO));
    }
}
