//! Quota windows of keys.

use std::cmp::Reverse;

use super::keys::KeyState;
use super::state::{Shard, TimerKind};
use crate::monotonic_time::MonotonicTime;
use crate::policy::Quota;

impl Shard {
    /// Counts a start against the key's quota. If the quota is used up, the key waits for the end of its window.
    pub(super) fn count_start(&mut self, slot: u32, quota: Quota, now: MonotonicTime) -> bool {
        let key = self.keys.get(slot);
        if key.started >= quota.records.max(1) {
            key.state = KeyState::Throttled;
            self.counters.throttled += 1;
            return false;
        }
        key.started += 1;
        if key.started == 1 {
            self.keys.add_timer(slot);
            self.timers.push(Reverse((now.after(quota.window), slot, TimerKind::Window)));
        }
        true
    }

    /// How many more records of the key may start in its window.
    pub(super) fn quota_left(&mut self, slot: u32) -> usize {
        let started = self.keys.get(slot).started;
        self.policy.quota.map_or(usize::MAX - 1, |quota| quota.records.saturating_sub(started).into())
    }

    pub(super) fn end_window(&mut self, slot: u32) {
        let key = self.keys.get(slot);
        key.started = 0;
        match key.state {
            KeyState::Throttled => self.resume_key(slot),
            KeyState::Idle => self.idle_key(slot),
            _ => {}
        }
    }

    /// Keeps the last record of a key whose quota window is open, so that the key is found by name.
    pub(super) fn keep_idle_record(&mut self, slot: u32, head: u32) {
        let key = self.keys.get(slot);
        if key.len == 0 && key.started > 0 && self.keys.is_named(slot) {
            self.idle_key_records.insert(slot, self.items[head].record.clone());
        }
    }
}
