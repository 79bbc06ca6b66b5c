//! Starts the first records of a ready key.

use std::mem;

use super::executions::ExecutionKind;
use super::keys::KeyState;
use super::state::Shard;
use crate::failure::RecordFailure;
use crate::messages::ExecutionId;
use crate::monotonic_time::MonotonicTime;
use crate::record::KeyRecords;
use crate::slab::NONE;

/// The job of the worker: a handler call, or a delivery to the dead-letter queue.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) id: ExecutionId,
    pub(crate) records: KeyRecords,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u32,
    /// The failure, for a delivery to the dead-letter queue.
    pub(crate) dead_letter: Option<RecordFailure>,
}

impl Shard {
    /// Starts the first record of a key, or its delivery to the dead-letter queue.
    pub(super) fn start(&mut self, key: u32, now: MonotonicTime) -> Dispatch {
        let head = self.keys.get(key).head;
        let pending = self.dead_letters.get(&head).map(|pending| pending.failure.clone());
        let kind = if pending.is_some() { ExecutionKind::DeadLetter } else { ExecutionKind::Handler };
        let records = self.take_records(key, head, kind);
        let item = &mut self.items[head];
        let waited = now.since(item.arrived.into());
        if kind == ExecutionKind::Handler {
            item.attempts = item.attempts.saturating_add(1);
            self.counters.wait.record(waited);
        }
        let attempt = u32::from(item.attempts);
        let id = self.executions.start(head, key, kind, now);
        if !self.draining.is_empty() && self.is_draining(&self.items[head].record) {
            self.executions.get_mut(id).into_iter().for_each(|execution| execution.is_draining = true);
        }
        let key = self.keys.get(key);
        (key.state, key.execution) = (KeyState::Running, id.slot);
        Dispatch { id, records, attempt, dead_letter: pending }
    }

    /// Removes the first record from the queue of the key, or the first few for a batch.
    fn take_records(&mut self, key: u32, head: u32, kind: ExecutionKind) -> KeyRecords {
        let is_fresh = kind == ExecutionKind::Handler && self.items[head].attempts == 0;
        let more = if is_fresh { self.policy.batch_max.min(1 + self.quota_left(key)) } else { 1 };
        let mut last = head;
        let mut count = 1;
        while count < more as u32 && self.belongs(head, self.items[last].next) {
            last = self.items[last].next;
            count += 1;
        }
        let rest = mem::replace(&mut self.items[last].next, NONE);
        let key = self.keys.get(key);
        key.head = rest;
        key.len -= count;
        if self.policy.quota.is_some() {
            // The first record was counted when the start was allowed.
            key.started += count as u16 - 1;
        }
        if rest == NONE {
            key.tail = NONE;
        }
        if self.policy.batch_max == 1 || kind == ExecutionKind::DeadLetter {
            return KeyRecords::One(self.items[head].record.clone());
        }
        KeyRecords::Many(self.chain(head).into_iter().map(|item| self.items[item].record.clone()).collect())
    }

    /// Whether the record may run in one batch with `head`.
    fn belongs(&self, head: u32, other: u32) -> bool {
        other != NONE && (self.draining.is_empty() || self.is_within_bound(other)) && {
            let (head, other) = (&self.items[head], &self.items[other]);
            other.attempts == 0 && other.record.decode_error().is_none() && other.record.epoch() == head.record.epoch()
        }
    }
}
