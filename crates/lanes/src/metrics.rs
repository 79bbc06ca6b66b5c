//! Metrics of a running subscription.

use std::sync::Arc;
use std::time::Duration;

use crate::assignments::LaneStatus;
use crate::counters::SubscriptionCounters;
use crate::monotonic_time::MonotonicTime;
use crate::record::Lane;
use crate::shard::HotKeyShare;
use crate::sync::{Mutex, lock};

/// A key with a large share of the recent records.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct HotKey {
    /// The lane of the key.
    pub lane: Lane,
    /// The key.
    pub key: Box<[u8]>,
    /// The share of the recent records of all lanes, 0 to 1: a lower bound, estimated from a sample.
    pub share: f64,
}

/// A snapshot of counters and gauges.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct SubscriptionMetrics {
    /// Counters and latencies.
    pub counters: SubscriptionCounters,
    /// Records taken and not finished.
    pub pending: usize,
    /// Bytes of these records.
    pub pending_bytes: usize,
    /// The age of the oldest of these records.
    pub oldest_age: Option<Duration>,
    /// No records are taken because a bound over all lanes is reached.
    pub is_full: bool,
    /// Executions that hold a permit.
    pub in_flight: usize,
    /// Failed commits, which are retried.
    pub commits_failed: u64,
    /// All assigned lanes.
    pub lanes: Vec<LaneStatus>,
    /// Keys with more than 1 % of the recent records, the hottest first.
    pub hot_keys: Vec<HotKey>,
}

/// The values last published by shards and intake.
#[derive(Debug)]
pub(crate) struct MetricsStore {
    shards: Vec<Mutex<SubscriptionCounters>>,
    hot: Vec<Mutex<ShardHotKeys>>,
    intake: Mutex<IntakeStatus>,
}

/// The hot keys of a shard, and its recent records, which weight the shares: a shard with a hot key has more records than
/// others.
#[derive(Debug, Default)]
struct ShardHotKeys {
    keys: Vec<HotKeyShare>,
    arrived: u64,
    /// Records that are [`HALF_LIFE`] old count half.
    recent: f64,
    at: MonotonicTime,
}

const HALF_LIFE: Duration = Duration::from_secs(10);

impl ShardHotKeys {
    fn update(&mut self, keys: Vec<HotKeyShare>, arrived: u64, now: MonotonicTime) {
        self.recent = self.recent_at(now) + (arrived - self.arrived) as f64;
        (self.keys, self.arrived, self.at) = (keys, arrived, now);
    }

    fn recent_at(&self, now: MonotonicTime) -> f64 {
        self.recent * 0.5_f64.powf(now.since(self.at).div_duration_f64(HALF_LIFE))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct IntakeStatus {
    pub(crate) pending: usize,
    pub(crate) pending_bytes: usize,
    pub(crate) oldest: Option<MonotonicTime>,
    pub(crate) is_full: bool,
    pub(crate) commits_failed: u64,
    pub(crate) lanes: Vec<LaneStatus>,
}

impl MetricsStore {
    pub(crate) fn new(shards: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            hot: (0..shards).map(|_| Mutex::default()).collect(),
            intake: Mutex::default(),
        })
    }

    pub(crate) fn store_shard(&self, shard: usize, counters: &SubscriptionCounters) {
        lock(&self.shards[shard]).clone_from(counters);
    }

    /// Publishes hot keys; `arrived` counts all records that the shard ever received.
    pub(crate) fn store_hot_keys(&self, shard: usize, keys: Vec<HotKeyShare>, arrived: u64, now: MonotonicTime) {
        lock(&self.hot[shard]).update(keys, arrived, now);
    }

    pub(crate) fn store_intake(&self, status: IntakeStatus) {
        *lock(&self.intake) = status;
    }

    pub(crate) fn counters(&self) -> SubscriptionCounters {
        let mut sum = SubscriptionCounters::default();
        self.shards.iter().for_each(|shard| sum.add(&lock(shard)));
        sum
    }

    pub(crate) fn read(&self, now: MonotonicTime, in_flight: usize) -> SubscriptionMetrics {
        let status = lock(&self.intake).clone();
        SubscriptionMetrics {
            counters: self.counters(),
            pending: status.pending,
            pending_bytes: status.pending_bytes,
            oldest_age: status.oldest.map(|oldest| now.since(oldest)),
            is_full: status.is_full,
            in_flight,
            commits_failed: status.commits_failed,
            lanes: status.lanes,
            hot_keys: self.hot_keys(),
        }
    }

    /// The hot keys of all shards, weighted by each shard's share of the recent records.
    fn hot_keys(&self) -> Vec<HotKey> {
        let latest = self.hot.iter().map(|hot| lock(hot).at).max().unwrap_or_default();
        let recent: f64 = self.hot.iter().map(|hot| lock(hot).recent_at(latest)).sum();
        let mut keys = Vec::new();
        for hot in &self.hot {
            let hot = lock(hot);
            let part = hot.recent_at(latest) / recent.max(f64::MIN_POSITIVE);
            let hot_key =
                |share: &HotKeyShare| HotKey { lane: share.lane, key: share.key.clone(), share: share.share * part };
            keys.extend(hot.keys.iter().map(hot_key).filter(|key| key.share >= 0.01));
        }
        keys.sort_by(|a, b| b.share.total_cmp(&a.share));
        keys
    }
}
