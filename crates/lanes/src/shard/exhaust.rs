//! Applies the [`ExhaustedAction`] to a record that is not retried.

use super::keys::KeyState;
use super::state::{PendingDeadLetter, Shard};
use crate::failure::{ExhaustedAction, RecordFailure};
use crate::messages::FailureAction;

impl Shard {
    /// Applies the action to the first record of a key that neither is ready nor runs anything.
    pub(super) fn exhaust(&mut self, key: u32, failure: RecordFailure, exhausted: ExhaustedAction) {
        self.keys.get(key).state = KeyState::Idle;
        let head = self.keys.get(key).head;
        match exhausted {
            ExhaustedAction::DeadLetter => {
                self.dead_letters.insert(head, PendingDeadLetter { failure, attempts: 0 });
                self.keys.make_ready(key);
            }
            ExhaustedAction::Skip => {
                self.failure_event(FailureAction::Skip, head, failure);
                self.skip(key);
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

    fn skip(&mut self, key: u32) {
        let head = self.unlink_head(key);
        self.free_key(key, head);
        let item = self.items.remove(head);
        self.counters.skipped += 1;
        self.report(&item, true);
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
