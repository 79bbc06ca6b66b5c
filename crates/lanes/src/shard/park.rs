//! Keys that wait for somebody, and keys that wait for their quota.

use std::cmp::Reverse;

use super::keys::State;
use super::{Due, Shard};
use crate::moment::Moment;
use crate::policy::Quota;
use crate::slab::NONE;

impl Shard {
    pub(super) fn park(&mut self, place: u32) {
        let key = self.keys.get(place);
        key.state = State::Parked;
        self.held += key.len as usize;
        self.tally.keys_parked += 1;
    }

    pub(super) fn is_halted(&self, item: u32) -> bool {
        let record = &self.items[item].record;
        self.halted.contains(&(record.lane(), record.epoch()))
    }

    /// Lets the parked keys of this name go on, or all; their first records are tried afresh, and their age
    /// counts from now.
    pub(crate) fn unpark(&mut self, name: Option<&[u8]>, now: Moment) {
        for place in self.keys.places() {
            let key = self.keys.get(place);
            let (state, head, len) = (key.state, key.head, key.len);
            let is_meant = state == State::Parked
                && head != NONE
                && !self.is_halted(head)
                && name.is_none_or(|name| self.items[head].record.key() == Some(name));
            if is_meant {
                self.items[head].attempts = 0;
                self.items[head].arrived = now.into();
                self.unhold(len);
                self.keys.make_ready(place);
            }
        }
    }

    pub(super) fn unhold(&mut self, len: u32) {
        self.held -= len as usize;
        self.tally.keys_parked -= 1;
    }

    /// Counts a start against the key's quota; if that is used up, the key waits for the end of its window.
    pub(super) fn count_start(&mut self, place: u32, quota: Quota, now: Moment) -> bool {
        let key = self.keys.get(place);
        if key.started >= quota.records.max(1) {
            key.state = State::Throttled;
            self.tally.throttled += 1;
            return false;
        }
        key.started += 1;
        if key.started == 1 {
            self.keys.add_timer(place);
            self.due.push(Reverse((now.after(quota.window), place, Due::Window)));
        }
        true
    }

    /// How many more records of the key may start in its window.
    pub(super) fn left_of_quota(&mut self, place: u32) -> usize {
        let started = self.keys.get(place).started;
        self.policy.quota.map_or(usize::MAX - 1, |quota| quota.records.saturating_sub(started).into())
    }

    pub(super) fn end_window(&mut self, place: u32) {
        let key = self.keys.get(place);
        key.started = 0;
        match key.state {
            State::Throttled => self.go_on(place),
            State::Idle => self.rest(place),
            _ => {}
        }
    }

    pub(super) fn forget_name(&mut self, place: u32) {
        if self.policy.quota.is_some() {
            self.namesakes.remove(&place);
        }
    }

    /// A key that a timer will keep here without records is known by the one that ran last.
    pub(super) fn keep_name(&mut self, place: u32, head: u32) {
        let key = self.keys.get(place);
        if key.len == 0 && key.started > 0 && self.keys.is_named(place) {
            self.namesakes.insert(place, self.items[head].record.clone());
        }
    }
}
