//! The state of a shard and its basic transitions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::draining_lane::DrainingLane;
use super::executions::Executions;
use super::hot_keys::HotKeyTracker;
use super::keys::KeyTable;
use crate::counters::SubscriptionCounters;
use crate::failure::RecordFailure;
use crate::messages::{FailureAction, FailureEvent, LastStarted, RecordReport};
use crate::monotonic_time::{MonotonicTime, PackedTime};
use crate::policy::SubscriptionPolicy;
use crate::record::{Epoch, Lane, Record};
use crate::slab::{NONE, Slab};

/// A record of the shard.
#[derive(Debug)]
pub(super) struct QueuedRecord {
    pub(super) record: Record,
    pub(super) seq: u32,
    /// The next record of its key or execution.
    pub(super) next: u32,
    pub(super) arrived: PackedTime,
    pub(super) attempts: u16,
}

const _: () = assert!(size_of::<Option<QueuedRecord>>() <= 72, "every queued record costs this much memory");

/// A record on its way to the dead-letter queue.
#[derive(Debug)]
pub(super) struct PendingDeadLetter {
    pub(super) failure: RecordFailure,
    pub(super) attempts: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum TimerKind {
    /// The end of a key's back-off.
    Retry,
    /// The end of a key's quota window.
    Window,
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(super) policy: Arc<SubscriptionPolicy>,
    pub(super) keys: KeyTable,
    pub(super) items: Slab<QueuedRecord>,
    pub(super) executions: Executions,
    pub(super) timers: BinaryHeap<Reverse<(MonotonicTime, u32, TimerKind)>>,
    /// Records for the dead-letter queue, by item.
    pub(super) dead_letters: HashMap<u32, PendingDeadLetter>,
    /// The last record of each key that a timer keeps in the table without records, so that it is found by name.
    pub(super) idle_key_records: HashMap<u32, Record>,
    pub(super) halted: Vec<(Lane, Epoch)>,
    /// Draining assignments with records in this shard.
    pub(super) draining: Vec<DrainingLane>,
    /// Records of parked keys.
    pub(super) held_records: usize,
    /// Batches that are repeated as they are: numbers them.
    pub(super) batches: u32,
    /// Records that ever arrived.
    pub(super) arrived: u64,
    pub(super) hot: HotKeyTracker,
    pub(super) random: fastrand::Rng,
    pub(super) reports: Vec<RecordReport>,
    pub(super) failure_events: Vec<FailureEvent>,
    pub(super) last_started: Vec<LastStarted>,
    pub(super) counters: SubscriptionCounters,
}

impl Shard {
    pub(crate) fn new(policy: Arc<SubscriptionPolicy>, seed: u64) -> Self {
        Self {
            policy,
            keys: KeyTable::new(),
            items: Slab::new(),
            executions: Executions::new(),
            timers: BinaryHeap::new(),
            dead_letters: HashMap::new(),
            idle_key_records: HashMap::new(),
            halted: Vec::new(),
            draining: Vec::new(),
            held_records: 0,
            batches: 0,
            arrived: 0,
            hot: HotKeyTracker::new(seed),
            random: fastrand::Rng::with_seed(seed),
            reports: Vec::new(),
            failure_events: Vec::new(),
            last_started: Vec::new(),
            counters: SubscriptionCounters::default(),
        }
    }

    /// Marks the key as idle and frees it if no timer is pending.
    pub(super) fn idle_key(&mut self, key: u32) {
        if !self.keys.set_idle(key) {
            self.drop_idle_record(key);
        }
    }

    pub(super) fn report(&mut self, item: &QueuedRecord, is_done: bool) {
        let record = &item.record;
        let (lane, epoch, bytes) = (record.lane(), record.epoch(), record.size_bytes());
        self.reports.push(RecordReport { lane, epoch, seq: item.seq, bytes, is_done });
        if !self.draining.is_empty() {
            self.count_drained(lane, epoch);
        }
    }

    /// Makes the key ready if it has queued records.
    pub(super) fn resume_key(&mut self, key: u32) {
        self.keys.get(key).running = NONE;
        if self.keys.get(key).len > 0 {
            self.keys.make_ready(key);
        } else {
            self.idle_key(key);
        }
    }

    pub(super) fn chain(&self, head: u32) -> Vec<u32> {
        let next = |item: &u32| Some(self.items[*item].next).filter(|next| *next != NONE);
        std::iter::successors(Some(head), next).collect()
    }

    pub(super) fn is_halted(&self, item: u32) -> bool {
        let record = &self.items[item].record;
        self.halted.contains(&(record.lane(), record.epoch()))
    }

    pub(super) fn drop_idle_record(&mut self, slot: u32) {
        if self.policy.quota.is_some() {
            self.idle_key_records.remove(&slot);
        }
    }

    /// Counts a record that left the shard.
    pub(super) fn count_drained(&mut self, lane: Lane, epoch: Epoch) {
        for draining in self.draining.iter_mut().filter(|draining| (draining.lane, draining.epoch) == (lane, epoch)) {
            draining.open -= 1;
        }
        // A lane that withholds keys is kept until `drop_after` resumes them.
        self.draining.retain(|lane| lane.open > 0 || !lane.withheld.is_empty());
    }

    pub(super) fn failure_event(&mut self, kind: FailureAction, item: u32, failure: RecordFailure) {
        let record = &self.items[item].record;
        let (lane, epoch, position) = (record.lane(), record.epoch(), record.position());
        let key = record.key().map(Into::into);
        self.failure_events.push(FailureEvent { kind, lane, epoch, position, key, failure });
    }
}
