//! Starts the first records of a ready key, or of several keys for a batch across keys.

use std::mem;

use super::executions::{ExecutionKind, ExecutionPart};
use super::keys::{KeyEntry, KeyState};
use super::state::Shard;
use crate::failure::RecordFailure;
use crate::messages::ExecutionId;
use crate::monotonic_time::MonotonicTime;
use crate::record::HandlerRecords;
use crate::slab::NONE;

/// The job of the worker: a handler call, or a delivery to the dead-letter queue.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) id: ExecutionId,
    pub(crate) records: HandlerRecords,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u32,
    /// The failure, for a delivery to the dead-letter queue.
    pub(crate) dead_letter: Option<RecordFailure>,
}

impl Shard {
    /// Starts the first records of a key, or the delivery of the first one to the dead-letter queue.
    pub(super) fn start(&mut self, key: u32, now: MonotonicTime) -> Dispatch {
        let first = ExecutionPart { key, head: self.keys.get(key).head };
        let pending = self.dead_letters.get(&first.head).map(|pending| pending.failure.clone());
        let (kind, others) = if pending.is_some() {
            self.take_records(first, 1);
            (ExecutionKind::DeadLetter, Vec::new())
        } else {
            (ExecutionKind::Handler, self.take_batch(first, now))
        };
        let records = self.handler_records(first, &others, kind);
        let item = &self.items[first.head];
        let (waited, attempt) = (now.since(item.arrived.into()), u32::from(item.attempts));
        if kind == ExecutionKind::Handler {
            self.counters.wait.record(waited);
        }
        let id = self.executions.start(first, others, kind, now);
        if !self.draining.is_empty() && self.is_draining(&self.items[first.head].record) {
            self.executions.get_mut(id).into_iter().for_each(|execution| execution.is_draining = true);
        }
        Dispatch { id, records, attempt, dead_letter: pending }
    }

    /// Takes the records of a handler call from the queue of the first key, and for a batch across keys from those of other
    /// keys, which are returned.
    fn take_batch(&mut self, first: ExecutionPart, now: MonotonicTime) -> Vec<ExecutionPart> {
        let (key, is_fresh) = (self.keys.get(first.key), self.items[first.head].attempts == 0);
        let repeated = (key.retry_len > 0 && self.draining.is_empty()).then_some(key.retry_batch);
        let mut room = self.policy.batch_max;
        room -= self.take_attempt(first, room);
        let mut others = Vec::new();
        if room == 0 || !self.policy.batches_across_keys || !(is_fresh || repeated.is_some()) {
            return others;
        }
        for key in self.take_members(first.head, repeated, room) {
            if self.may_start(key, now) {
                let other = ExecutionPart { key, head: self.keys.get(key).head };
                room = room.saturating_sub(self.take_attempt(other, room));
                others.push(other);
            }
        }
        others
    }

    /// Takes ready keys for a batch from their list: the keys of a failed batch that is repeated, or keys that were not started
    /// yet.
    fn take_members(&mut self, head: u32, repeated: Option<u32>, mut room: usize) -> Vec<u32> {
        let (items, dead_letters) = (&self.items, &self.dead_letters);
        let first = &items[head].record;
        let joins = |key: &KeyEntry| {
            if key.head == NONE || room == 0 {
                return false;
            }
            let (item, is_held) = (&items[key.head], key.retry_len > 0);
            let is_member = match repeated {
                Some(batch) => is_held && key.retry_batch == batch,
                None => item.attempts == 0,
            };
            let joins = is_member
                && (item.record.lane(), item.record.epoch()) == (first.lane(), first.epoch())
                && item.record.decode_error().is_none()
                && !dead_letters.contains_key(&key.head);
            if joins {
                room = room.saturating_sub(if is_held { key.retry_len } else { key.len } as usize);
            }
            joins
        };
        self.keys.take_ready_if(joins)
    }

    /// Takes the records of a key for one attempt, and returns their number.
    fn take_attempt(&mut self, part: ExecutionPart, room: usize) -> usize {
        let held = mem::take(&mut self.keys.get(part.key).retry_len) as usize;
        let is_fresh = self.items[part.head].attempts == 0;
        let count = match held {
            1.. if self.draining.is_empty() => held,
            _ if is_fresh => self.fresh_records(part, room),
            _ => 1,
        };
        let item = &mut self.items[part.head];
        item.attempts = item.attempts.saturating_add(1);
        self.take_records(part, count);
        count
    }

    /// How many of the first records of a key may start together.
    fn fresh_records(&mut self, part: ExecutionPart, room: usize) -> usize {
        let most = room.min(1 + self.quota_left(part.key));
        let (mut last, mut count) = (part.head, 1);
        while count < most && self.belongs(part.head, self.items[last].next) {
            last = self.items[last].next;
            count += 1;
        }
        count
    }

    /// Removes the first records from the queue of the key, which runs them.
    fn take_records(&mut self, part: ExecutionPart, count: usize) {
        let last = (1..count).fold(part.head, |last, _| self.items[last].next);
        let rest = mem::replace(&mut self.items[last].next, NONE);
        let key = self.keys.get(part.key);
        (key.head, key.running, key.state) = (rest, part.head, KeyState::Running);
        key.len -= count as u32;
        if self.policy.quota.is_some() {
            // The first record was counted when the start was allowed.
            key.started = key.started.saturating_add(count as u16 - 1);
        }
        if rest == NONE {
            key.tail = NONE;
        }
    }

    /// The records in the order of their lane.
    fn handler_records(&self, first: ExecutionPart, others: &[ExecutionPart], kind: ExecutionKind) -> HandlerRecords {
        if self.policy.batch_max == 1 || kind == ExecutionKind::DeadLetter {
            return HandlerRecords::One(self.items[first.head].record.clone());
        }
        let heads = std::iter::once(first.head).chain(others.iter().map(|other| other.head));
        let items = heads.flat_map(|head| self.chain(head));
        let mut records: Vec<_> = items.map(|item| self.items[item].record.clone()).collect();
        if !others.is_empty() {
            records.sort_by_key(crate::record::Record::position);
        }
        HandlerRecords::Many(records)
    }

    /// Whether the record may run in one batch with `head`.
    fn belongs(&self, head: u32, other: u32) -> bool {
        other != NONE && (self.draining.is_empty() || self.is_within_bound(other)) && {
            let (head, other) = (&self.items[head], &self.items[other]);
            other.attempts == 0 && other.record.decode_error().is_none() && other.record.epoch() == head.record.epoch()
        }
    }
}
