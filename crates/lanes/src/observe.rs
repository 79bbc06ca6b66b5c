//! What a subscription tells about itself while it runs.

use std::sync::Arc;
use std::time::Duration;

use crate::assigned::LaneStatus;
use crate::failure::Failure;
use crate::moment::Moment;
use crate::record::{Lane, Record};
use crate::shard::Heat;
use crate::sync::{Mutex, lock};
use crate::tally::Tally;

/// Is told of every attempt: of its beginning and of its end, once each. What is given to the dead-letter is no attempt.
/// It runs on the path of the records, so it should be quick; its panics are contained and change nothing.
pub trait Interceptor: Send + Sync + 'static {
    /// A handler is about to get the record.
    fn before(&self, record: &Record, attempt: u32) {
        let _ = (record, attempt);
    }

    /// The attempt has ended, or is not waited for any more: it was overdue, or [abandoned](crate::Cause::Abandoned). Of
    /// a batch, the first record stands for all.
    fn after(&self, record: &Record, result: Result<(), &Failure>) {
        let _ = (record, result);
    }
}

/// A key of which many of the recent records were.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct HotKey {
    /// Its lane.
    pub lane: Lane,
    /// The key.
    pub key: Box<[u8]>,
    /// Its part of the recent records of all lanes, 0 to 1: an estimate from a sample, from below.
    pub share: f64,
}

/// What a subscription has counted, and what it holds.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Counts and times.
    pub tally: Tally,
    /// Records that were taken and are not done.
    pub pending: usize,
    /// Their bytes.
    pub pending_bytes: usize,
    /// How long the oldest of them has been here.
    pub oldest_age: Option<Duration>,
    /// Nothing is taken from the source, since a bound over all lanes is reached.
    pub is_full: bool,
    /// Starts that were permitted and have not ended.
    pub in_flight: usize,
    /// Commits that did not succeed and were repeated.
    pub commits_failed: u64,
    /// Every lane that is ours.
    pub lanes: Vec<LaneStatus>,
    /// Keys with more than one in a hundred of the recent records, the hottest first.
    pub hot_keys: Vec<HotKey>,
}

/// What the shards and the intake last wrote down.
#[derive(Debug)]
pub(crate) struct Board {
    shards: Vec<Mutex<Tally>>,
    hot: Vec<Mutex<Hot>>,
    intake: Mutex<IntakeStatus>,
}

/// What a shard knows of hot keys, and how many records it had lately: the shard of a hot key has more than the others.
#[derive(Debug, Default)]
struct Hot {
    keys: Vec<Heat>,
    arrived: u64,
    /// Those that are [`HALF_LIFE`] old count half.
    recent: f64,
    at: Moment,
}

const HALF_LIFE: Duration = Duration::from_secs(10);

impl Hot {
    fn note(&mut self, keys: Vec<Heat>, arrived: u64, now: Moment) {
        self.recent = self.recent_at(now) + (arrived - self.arrived) as f64;
        (self.keys, self.arrived, self.at) = (keys, arrived, now);
    }

    fn recent_at(&self, now: Moment) -> f64 {
        self.recent * 0.5_f64.powf(now.since(self.at).div_duration_f64(HALF_LIFE))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct IntakeStatus {
    pub(crate) pending: usize,
    pub(crate) pending_bytes: usize,
    pub(crate) oldest: Option<Moment>,
    pub(crate) is_full: bool,
    pub(crate) commits_failed: u64,
    pub(crate) lanes: Vec<LaneStatus>,
}

impl Board {
    pub(crate) fn new(shards: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            hot: (0..shards).map(|_| Mutex::default()).collect(),
            intake: Mutex::default(),
        })
    }

    pub(crate) fn write_shard(&self, shard: usize, tally: &Tally) {
        lock(&self.shards[shard]).clone_from(tally);
    }

    /// `arrived` is how many records the shard ever had.
    pub(crate) fn write_hot(&self, shard: usize, keys: Vec<Heat>, arrived: u64, now: Moment) {
        lock(&self.hot[shard]).note(keys, arrived, now);
    }

    pub(crate) fn write_intake(&self, status: IntakeStatus) {
        *lock(&self.intake) = status;
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.shards.iter().for_each(|shard| sum.add(&lock(shard)));
        sum
    }

    pub(crate) fn read(&self, now: Moment, in_flight: usize) -> Metrics {
        let status = lock(&self.intake).clone();
        Metrics {
            tally: self.tally(),
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

    /// Of all shards, each with its part of what arrived lately.
    fn hot_keys(&self) -> Vec<HotKey> {
        let latest = self.hot.iter().map(|hot| lock(hot).at).max().unwrap_or_default();
        let recent: f64 = self.hot.iter().map(|hot| lock(hot).recent_at(latest)).sum();
        let mut keys = Vec::new();
        for hot in &self.hot {
            let hot = lock(hot);
            let part = hot.recent_at(latest) / recent.max(f64::MIN_POSITIVE);
            let of = |heat: &Heat| HotKey { lane: heat.lane, key: heat.key.clone(), share: heat.share * part };
            keys.extend(hot.keys.iter().map(of).filter(|key| key.share >= 0.01));
        }
        keys.sort_by(|a, b| b.share.total_cmp(&a.share));
        keys
    }
}
