//! Parked keys.

use super::keys::KeyState;
use super::state::Shard;
use crate::monotonic_time::MonotonicTime;
use crate::slab::NONE;

impl Shard {
    pub(super) fn park(&mut self, slot: u32) {
        let key = self.keys.get(slot);
        key.state = KeyState::Parked;
        key.retry_len = 0;
        self.held_records += key.len as usize;
        self.counters.keys_parked += 1;
    }

    /// Resumes the parked keys with this value, or all. Their first records get all attempts again, and their age
    /// restarts.
    pub(crate) fn unpark(&mut self, name: Option<&[u8]>, now: MonotonicTime) {
        for slot in self.keys.slots() {
            let key = self.keys.get(slot);
            let (state, head, len) = (key.state, key.head, key.len);
            let is_meant = state == KeyState::Parked
                && head != NONE
                && !self.is_halted(head)
                && name.is_none_or(|name| self.items[head].record.key() == Some(name));
            if is_meant {
                if !self.dead_letters.contains_key(&head) {
                    self.items[head].attempts = 0;
                }
                self.items[head].arrived = now.into();
                self.unhold_records(len);
                self.keys.make_ready(slot);
            }
        }
    }

    pub(super) fn unhold_records(&mut self, len: u32) {
        self.held_records -= len as usize;
        self.counters.keys_parked -= 1;
    }
}
