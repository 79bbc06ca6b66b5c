//! Drains a lane: running records end without a retry, queued records that precede a started record still run, and the
//! rest is dropped. Otherwise records that are finished behind an unfinished one would be delivered again.
//!
//! The records of a lane are spread over all shards, so the drain has two steps. Each shard reports its last started
//! record and starts nothing beyond it ([`Shard::begin_drain`]). Once the intake has all reports, it sends the last
//! started record of the lane, and queued records beyond it are dropped ([`Shard::drop_after`]).

use super::draining_lane::{DrainingLane, StartBound};
use super::keys::KeyState;
use super::state::Shard;
use crate::frontier::is_later;
use crate::messages::{ExecutionId, LastStarted};
use crate::record::{Epoch, Lane, Record};
use crate::slab::NONE;

impl Shard {
    /// Starts nothing of the assignment beyond its last started record, and retries nothing. Scans all keys.
    pub(crate) fn begin_drain(&mut self, lane: Lane, epoch: Epoch) {
        self.halted.retain(|halted| *halted != (lane, epoch));
        for key in self.keys.slots() {
            // A waiting or parked record would delay the drain until its back-off ends, or forever.
            if matches!(self.keys.get(key).state, KeyState::Waiting | KeyState::Parked) {
                self.drop_waiting(key, (lane, epoch), None);
            }
        }
        let last = self.mark_running(lane, epoch);
        self.last_started.push(LastStarted { lane, epoch, last });
        let is_of = |item: &u32| (self.items[*item].record.lane(), self.items[*item].record.epoch()) == (lane, epoch);
        let open = self.items.slots().iter().filter(|item| is_of(item)).count();
        if open > 0 {
            let bound = StartBound::Through(last);
            self.draining.push(DrainingLane { lane, epoch, open, bound, withheld: Vec::new() });
        }
    }

    /// Marks running executions of the assignment and returns the last sequence number among them.
    fn mark_running(&mut self, lane: Lane, epoch: Epoch) -> Option<u32> {
        let mut last = None;
        for id in self.executions_of(lane, epoch) {
            let Some(execution) = self.executions.get_mut(id) else { continue };
            execution.is_draining = true;
            let heads: Vec<u32> = execution.parts().map(|part| part.head).collect();
            for item in heads.into_iter().flat_map(|head| self.chain(head)) {
                let seq = self.items[item].seq;
                last = Some(last.filter(|last| is_later(*last, seq)).unwrap_or(seq));
            }
        }
        last
    }

    /// Drops queued records of the assignment after `last`, or all of them, and lets the rest run.
    pub(crate) fn drop_after(&mut self, lane: Lane, epoch: Epoch, last: Option<u32>) {
        self.halted.retain(|halted| *halted != (lane, epoch));
        for key in self.keys.slots() {
            let is_parked = self.keys.get(key).state == KeyState::Parked;
            self.drop_waiting(key, (lane, epoch), last.filter(|_| !is_parked));
        }
        let draining = self.draining.iter_mut().find(|draining| (draining.lane, draining.epoch) == (lane, epoch));
        let withheld = draining.map(|draining| {
            draining.bound = StartBound::All;
            std::mem::take(&mut draining.withheld)
        });
        for key in withheld.unwrap_or_default() {
            self.resume_key(key);
        }
        self.draining.retain(|lane| lane.open > 0);
    }

    /// Withholds a key whose first record is beyond the start bound of its draining lane.
    pub(super) fn withhold(&mut self, key: u32, head: u32) -> bool {
        let item = &self.items[head];
        let draining = self.draining.iter_mut().find(|lane| lane.is_of(&item.record));
        let Some(lane) = draining.filter(|lane| !lane.allows(item.seq)) else { return false };
        lane.withheld.push(key);
        self.keys.get(key).state = KeyState::Waiting;
        true
    }

    /// Whether the record is within the start bound of its lane.
    pub(super) fn is_within_bound(&self, item: u32) -> bool {
        let item = &self.items[item];
        self.draining.iter().all(|lane| !lane.is_of(&item.record) || lane.allows(item.seq))
    }

    pub(super) fn is_draining(&self, record: &Record) -> bool {
        self.draining.iter().any(|lane| lane.is_of(record))
    }

    /// Drops queued records of the key, which would otherwise overtake its dropped record.
    pub(super) fn drop_followers(&mut self, key: u32, head: u32) {
        let record = &self.items[head].record;
        let assignment = (record.lane(), record.epoch());
        if key != NONE && !self.draining.is_empty() {
            self.drop_waiting(key, assignment, None);
        }
    }

    /// The running executions of the assignment.
    pub(crate) fn executions_of(&self, lane: Lane, epoch: Epoch) -> Vec<ExecutionId> {
        self.executions.ids(|execution| {
            let record = &self.items[execution.first.head].record;
            (record.lane(), record.epoch()) == (lane, epoch)
        })
    }

    /// Ends an execution without an outcome; its completion has no effect any more.
    pub(crate) fn abandon(&mut self, id: ExecutionId) {
        if self.executions.get_mut(id).is_some() {
            let execution = self.executions.end(id);
            self.counters.abandoned += 1;
            self.give_up(&execution);
        }
    }

    /// Drops queued records of a key that belong to the assignment and come after `last`, or all of them.
    fn drop_waiting(&mut self, slot: u32, (lane, epoch): (Lane, Epoch), last: Option<u32>) {
        let head = self.keys.get(slot).head;
        if head == NONE {
            return;
        }
        let (dropped, kept): (Vec<u32>, Vec<u32>) = self.chain(head).into_iter().partition(|item| {
            let item = &self.items[*item];
            let is_of = (item.record.lane(), item.record.epoch()) == (lane, epoch);
            is_of && last.is_none_or(|last| is_later(item.seq, last))
        });
        if dropped.is_empty() {
            return;
        }
        self.keep_only(slot, &kept);
        for item in dropped {
            self.dead_letters.remove(&item);
            let item = self.items.remove(item);
            self.report(&item, false);
        }
    }

    fn keep_only(&mut self, slot: u32, kept: &[u32]) {
        for pair in kept.windows(2) {
            self.items[pair[0]].next = pair[1];
        }
        if let Some(last) = kept.last() {
            self.items[*last].next = NONE;
        }
        let key = self.keys.get(slot);
        let (state, before) = (key.state, key.len);
        key.retry_len = 0;
        key.head = kept.first().copied().unwrap_or(NONE);
        key.tail = kept.last().copied().unwrap_or(NONE);
        key.len = kept.len() as u32;
        if state == KeyState::Parked {
            // The record for which the key was parked is gone, or is at the head again.
            self.unhold_records(before);
            self.resume_key(slot);
        } else if kept.is_empty() && state != KeyState::Running {
            // The key's turn or timer frees its slot. Until then no record holds its name.
            self.keys.remove_name(slot);
        }
    }
}
