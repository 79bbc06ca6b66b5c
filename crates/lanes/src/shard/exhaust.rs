//! Applies the [`ExhaustedAction`] to a record that is not retried.

use super::keys::KeyState;
use super::state::{PendingDeadLetter, Shard};
use crate::failure::{ExhaustedAction, RecordFailure};
use crate::messages::FailureAction;

impl Shard {
    /// Applies the action to the first records of a key that neither is ready nor runs anything.
    pub(super) fn exhaust(&mut self, key: u32, records: u32, failure: RecordFailure, exhausted: ExhaustedAction) {
        self.keys.get(key).state = KeyState::Idle;
        let head = self.keys.get(key).head;
        match exhausted {
            ExhaustedAction::DeadLetter => {
                for item in self.chain(head).into_iter().take(records as usize) {
                    self.dead_letters.insert(item, PendingDeadLetter { failure: failure.clone(), attempts: 0 });
                }
                self.keys.make_ready(key);
            }
            ExhaustedAction::Skip => {
                for item in self.chain(head).into_iter().take(records as usize) {
                    self.failure_event(FailureAction::Skip, item, failure.clone());
                }
                self.skip(key, records);
            }
            ExhaustedAction::Park => {
                self.failure_event(FailureAction::ParkKey, head, failure);
                self.park(key);
            }
            ExhaustedAction::HaltLane => {
                let record = &self.items[head].record;
                self.halted.push((record.lane(), record.epoch()));
                self.failure_event(FailureAction::HaltLane, head, failure);
                self.park(key);
            }
            ExhaustedAction::Stop => {
                self.failure_event(FailureAction::Stop, head, failure);
                self.park(key);
            }
        }
    }

    fn skip(&mut self, key: u32, records: u32) {
        for left in (0..records).rev() {
            let head = self.unlink_head(key);
            if left == 0 {
                self.free_key(key, head);
            }
            let item = self.items.remove(head);
            self.counters.skipped += 1;
            self.report(&item, true);
        }
    }

    fn unlink_head(&mut self, slot: u32) -> u32 {
        let key = self.keys.get(slot);
        let head = key.head;
        key.head = self.items[head].next;
        key.len -= 1;
        if key.len == 0 {
            key.tail = key.head;
        }
        head
    }
}
