//! A shard: decides for its share of the keys which record runs next and what follows from its outcome.
//!
//! A shard is a pure core: it does not block, read a clock, or spawn. Records are enqueued, [`Shard::dispatch`] returns
//! what to run, outcomes of completions are applied, and reports state whether a record is finished or was dropped.
//!
//! A key is in exactly one state (`keys::KeyState`). Its queued records form a linked list in order, which never contains
//! the running record. Back-offs and quota windows share one heap. Deadlines are in the list of executions, which is
//! ordered by time. Only the drain of a lane scans all keys.

mod dispatch;
mod drain;
mod draining_lane;
mod executions;
mod exhaust;
mod hot_keys;
mod keys;
mod outcome;
mod park;
mod quota;
mod state;

use std::cmp::Reverse;
use std::mem;

use crate::counters::SubscriptionCounters;
use crate::failure::RecordFailure;
use crate::messages::{Arrival, ExecutionId, FailureEvent, LastStarted, RecordReport, ShardStatus};
use crate::monotonic_time::MonotonicTime;
use crate::policy::KeylessOrder;
use crate::record::Record;
use crate::slab::NONE;
use executions::ExecutionKind;
use keys::KeyState;
use state::{QueuedRecord, TimerKind};

pub(crate) use dispatch::Dispatch;
pub(crate) use hot_keys::HotKeyShare;
pub(crate) use state::Shard;

impl Shard {
    /// Adds a record to the queue of its key.
    pub(crate) fn enqueue(&mut self, arrival: Arrival, now: MonotonicTime) {
        let Arrival { record, hash, seq } = arrival;
        self.hot.record(&record);
        self.arrived += 1;
        let key = self.key_of(&record, hash);
        if self.policy.compact && self.replace_last(key, &record, seq, now) {
            return;
        }
        let item = self.items.insert(QueuedRecord { record, seq, next: NONE, arrived: now.into(), attempts: 0 });
        self.append(key, item);
        match self.keys.get(key).state {
            KeyState::Idle => {
                self.drop_idle_record(key);
                self.keys.make_ready(key);
            }
            KeyState::Parked => self.held_records += 1,
            _ => {}
        }
    }

    fn key_of(&mut self, record: &Record, hash: u64) -> u32 {
        if record.key().is_none() && self.policy.keyless == KeylessOrder::Unordered {
            return self.keys.insert_anonymous();
        }
        let (items, idle_key_records) = (&self.items, &self.idle_key_records);
        let found = self.keys.find(hash, |slot, key| {
            let known = match (key.head, key.running) {
                (NONE, NONE) => idle_key_records.get(&slot),
                (NONE, running) => Some(&items[running].record),
                (head, _) => Some(&items[head].record),
            };
            known.is_some_and(|known| known.lane() == record.lane() && known.key() == record.key())
        });
        found.unwrap_or_else(|| self.keys.insert_named(hash))
    }

    fn append(&mut self, key: u32, item: u32) {
        let key = self.keys.get(key);
        let last = mem::replace(&mut key.tail, item);
        key.len += 1;
        match last {
            NONE => key.head = item,
            last => self.items[last].next = item,
        }
    }

    /// Compaction: replaces the last queued record of the key, if no attempt has started. The replaced record is
    /// finished.
    fn replace_last(&mut self, key: u32, record: &Record, seq: u32, now: MonotonicTime) -> bool {
        let last = self.keys.get(key).tail;
        if last == NONE || record.key().is_none() || record.decode_error().is_some() {
            return false;
        }
        let item = &mut self.items[last];
        let is_fresh =
            item.attempts == 0 && item.record.decode_error().is_none() && item.record.epoch() == record.epoch();
        if !is_fresh {
            return false;
        }
        let newer = QueuedRecord { record: record.clone(), seq, next: NONE, arrived: now.into(), attempts: 0 };
        let older = mem::replace(item, newer);
        self.counters.compacted += 1;
        self.report(&older, true);
        true
    }

    /// The number of ready keys.
    pub(crate) fn ready(&self) -> usize {
        self.keys.ready()
    }

    /// The next execution, if a key is ready.
    pub(crate) fn dispatch(&mut self, now: MonotonicTime) -> Option<Dispatch> {
        loop {
            let key = self.keys.take_ready()?;
            if self.may_start(key, now) {
                return Some(self.start(key, now));
            }
        }
    }

    /// Whether the key may start its first record. If not, the key has left the state `Ready`.
    fn may_start(&mut self, key: u32, now: MonotonicTime) -> bool {
        let head = self.keys.get(key).head;
        if head == NONE {
            self.idle_key(key);
            return false;
        }
        if !self.halted.is_empty() && self.is_halted(head) {
            self.park(key);
            return false;
        }
        if !self.draining.is_empty() && self.withhold(key, head) {
            return false;
        }
        if !self.dead_letters.contains_key(&head)
            && let Some(reason) = self.items[head].record.decode_error()
        {
            let failure = RecordFailure::undecodable(reason);
            self.counters.undecodable += 1;
            self.exhaust(key, 1, failure, self.policy.exhausted);
            return false;
        }
        self.policy.quota.is_none_or(|quota| self.count_start(key, quota, now))
    }

    /// Fires timers that are due.
    pub(crate) fn fire_timers(&mut self, now: MonotonicTime) {
        while let Some(Reverse((at, key, kind))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            self.keys.end_timer(key);
            let state = self.keys.get(key).state;
            match (kind, state) {
                (TimerKind::Retry, KeyState::Waiting) => self.resume_key(key),
                (TimerKind::Window, _) => self.end_window(key),
                (_, KeyState::Idle) => self.idle_key(key),
                _ => {}
            }
        }
    }

    /// The first record of a running attempt, and whether it missed its deadline.
    pub(crate) fn attempt_record(&self, id: ExecutionId) -> Option<(&Record, bool)> {
        let execution = self.executions.get(id).filter(|execution| execution.kind == ExecutionKind::Handler)?;
        Some((&self.items[execution.first.head].record, execution.is_overdue))
    }

    /// The record of a delivery to the dead-letter queue.
    pub(crate) fn dead_letter_record(&self, id: ExecutionId) -> Option<&Record> {
        let execution = self.executions.get(id).filter(|execution| execution.kind == ExecutionKind::DeadLetter)?;
        Some(&self.items[execution.first.head].record)
    }

    /// When [`fire_timers`](Self::fire_timers) or [`take_overdue`](Self::take_overdue) is due.
    pub(crate) fn due_at(&self) -> Option<MonotonicTime> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let deadline = self.executions.oldest().map(|(_, from)| from.after(self.policy.deadline));
        timer.into_iter().chain(deadline).min()
    }

    /// Appends the reports since the last call to `into`.
    pub(crate) fn take_reports(&mut self, into: &mut Vec<RecordReport>) {
        into.append(&mut self.reports);
    }

    pub(crate) fn take_failure_events(&mut self) -> Vec<FailureEvent> {
        mem::take(&mut self.failure_events)
    }

    /// Takes the reports about draining lanes.
    pub(crate) fn take_last_started(&mut self) -> Vec<LastStarted> {
        mem::take(&mut self.last_started)
    }

    /// The status for the intake.
    pub(crate) fn status(&self) -> ShardStatus {
        ShardStatus { held_records: self.held_records, ready: self.keys.ready(), arrived: self.arrived }
    }

    /// Records that ever arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Counters and gauges.
    pub(crate) fn counters(&mut self) -> &SubscriptionCounters {
        let counters = &mut self.counters;
        counters.keys = self.keys.len();
        counters.keys_ready = self.keys.ready();
        counters.records_parked = self.held_records;
        counters.running = self.executions.len();
        counters
    }

    pub(crate) fn hot_keys(&self) -> Vec<HotKeyShare> {
        self.hot.list()
    }
}

#[cfg(test)]
mod tests;
