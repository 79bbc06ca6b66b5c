//! Backpressure to the source: takes no more records than shards can start soon.
//!
//! A queued record falls out of the CPU caches. While every shard has enough ready keys, the source keeps the rest.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::messages::ShardStatus;

/// The number of ready keys per shard that is enough. Set by the intake, read by the shards.
#[derive(Debug)]
pub(crate) struct ReadyLimit {
    per_shard: AtomicUsize,
    shards: usize,
    is_enabled: bool,
}

impl ReadyLimit {
    /// No limit applies unless `is_enabled`.
    pub(crate) fn new(ready_max: usize, shards: usize, is_enabled: bool) -> Self {
        let limit = Self { per_shard: AtomicUsize::new(0), shards, is_enabled };
        limit.set(ready_max);
        limit
    }

    pub(crate) fn set(&self, ready_max: usize) {
        let per_shard = if self.is_enabled { ready_max.div_ceil(self.shards) } else { usize::MAX };
        self.per_shard.store(per_shard, Ordering::Relaxed);
    }

    fn per_shard(&self) -> usize {
        self.per_shard.load(Ordering::Relaxed)
    }

    /// Below this number of ready keys a shard requests more records; an empty shard always does.
    pub(crate) fn low_watermark(&self) -> usize {
        if self.is_enabled { (self.per_shard() / 2).max(1) } else { 0 }
    }
}

/// The load of each shard, as known to the intake.
#[derive(Debug)]
pub(crate) struct ShardLoads {
    shards: Vec<ShardLoad>,
}

#[derive(Clone, Debug, Default)]
struct ShardLoad {
    on_sent: u64,
    status: ShardStatus,
}

impl ShardLoads {
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards: vec![ShardLoad::default(); shards] }
    }

    pub(crate) fn on_sent(&mut self, shard: usize, records: usize) {
        self.shards[shard].on_sent += records as u64;
    }

    pub(crate) fn update(&mut self, shard: usize, status: ShardStatus) {
        self.shards[shard].status = status;
    }

    /// Whether every shard has enough ready keys, including records in transit.
    pub(crate) fn has_enough_ready(&self, limit: &ReadyLimit) -> bool {
        let per_shard = limit.per_shard();
        let has_enough = |shard: &ShardLoad| {
            let coming = (shard.on_sent - shard.status.arrived) as usize;
            shard.status.ready.saturating_add(coming) >= per_shard
        };
        self.shards.iter().all(has_enough)
    }

    /// Records of parked keys.
    pub(crate) fn held_records(&self) -> usize {
        self.shards.iter().map(|shard| shard.status.held_records).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn status(ready: usize, arrived: u64) -> ShardStatus {
        ShardStatus { held_records: 0, ready, arrived }
    }

    #[test]
    fn records_in_transit_count_as_ready() {
        let (limit, mut loads) = (ReadyLimit::new(20, 2, true), ShardLoads::new(2));
        loads.on_sent(0, 10);
        assert!(!loads.has_enough_ready(&limit), "shard 1 is empty");
        loads.on_sent(1, 10);
        assert!(loads.has_enough_ready(&limit));
        loads.update(1, status(9, 10));
        assert!(!loads.has_enough_ready(&limit));
        limit.set(18);
        assert!(loads.has_enough_ready(&limit));
    }

    #[test]
    fn shard_reports_when_it_falls_below_the_watermark() {
        let limit = ReadyLimit::new(20, 2, true);
        assert!(status(4, 10).needs_report(&status(5, 10), limit.low_watermark()), "fell below the watermark");
        assert!(status(4, 11).needs_report(&status(3, 10), limit.low_watermark()), "records in transit have started");
        assert!(!status(4, 10).needs_report(&status(3, 10), limit.low_watermark()), "reported before");
        assert!(!status(9, 11).needs_report(&status(9, 10), limit.low_watermark()), "above the watermark");
    }

    #[test]
    fn disabled_limit_is_never_reached() {
        let (limit, mut loads) = (ReadyLimit::new(1, 1, false), ShardLoads::new(1));
        loads.on_sent(0, 1 << 40);
        assert!(!loads.has_enough_ready(&limit));
    }
}
