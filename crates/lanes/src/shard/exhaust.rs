//! What becomes of a record that is not tried again.

use super::keys::State;
use super::{Alarm, AlarmKind, Shard, Verdict};
use crate::failure::{Exhausted, Failure};

impl Shard {
    /// Does with the first record of a key that has no turn and runs nothing what `exhausted` says.
    pub(super) fn exhaust(&mut self, key: u32, failure: Failure, exhausted: Exhausted) {
        self.keys.get(key).state = State::Idle;
        let head = self.keys.get(key).head;
        match exhausted {
            Exhausted::DeadLetter => {
                self.verdicts.insert(head, Verdict { failure, tries: 0 });
                self.keys.make_ready(key);
            }
            Exhausted::Skip => {
                self.alarm(AlarmKind::Skipped, head, failure);
                self.skip(key);
            }
            Exhausted::Park => {
                self.alarm(AlarmKind::Parked, head, failure);
                self.park(key);
            }
            Exhausted::HaltLane => {
                let record = &self.items[head].record;
                self.halted.push((record.lane(), record.epoch()));
                self.alarm(AlarmKind::Halt, head, failure);
                self.park(key);
            }
            Exhausted::Stop => {
                self.alarm(AlarmKind::Stop, head, failure);
                self.park(key);
            }
        }
    }

    fn skip(&mut self, key: u32) {
        let head = self.unlink_head(key);
        self.free_key(key, head);
        let item = self.items.remove(head);
        self.tally.skipped += 1;
        self.report(&item, true);
    }

    fn unlink_head(&mut self, place: u32) -> u32 {
        let key = self.keys.get(place);
        let head = key.head;
        key.head = self.items[head].next;
        key.len -= 1;
        if key.len == 0 {
            key.tail = key.head;
        }
        head
    }

    pub(super) fn alarm(&mut self, kind: AlarmKind, item: u32, failure: Failure) {
        let record = &self.items[item].record;
        let (lane, epoch, position) = (record.lane(), record.epoch(), record.position());
        let key = record.key().map(Into::into);
        self.alarms.push(Alarm { kind, lane, epoch, position, key, failure });
    }
}
