//! A lane is taken away: what has begun ends and is not tried again, what stands before it is done as well, so that nothing
//! that was done comes again, and the rest is dropped.
//!
//! The records of a lane are spread over all shards, so it takes two steps. Each shard says how far it has begun, and begins
//! nothing behind that ([`Shard::leave`]). When the intake has heard all of them, it says how far the lane has begun, and what
//! stands behind that is dropped ([`Shard::leave_behind`]).

use super::keys::State;
use super::{Begun, Shard};
use crate::completion::Ticket;
use crate::record::{Epoch, Lane, Record};
use crate::slab::NONE;

/// An assignment that is being given back.
#[derive(Debug)]
pub(super) struct Leaver {
    lane: Lane,
    epoch: Epoch,
    /// Records of it that are here.
    open: usize,
    reach: Reach,
    /// Keys whose turn came beyond that.
    withheld: Vec<u32>,
}

/// How far records of it begin.
#[derive(Clone, Copy, Debug)]
enum Reach {
    /// To this number, if to any.
    Through(Option<u32>),
    /// What is still here.
    All,
}

/// Whether the number `seq` was given out after `other`. They wrap around.
pub(crate) fn is_later(seq: u32, other: u32) -> bool {
    seq.wrapping_sub(other).cast_signed() > 0
}

impl Leaver {
    fn is_of(&self, record: &Record) -> bool {
        (self.lane, self.epoch) == (record.lane(), record.epoch())
    }

    fn reaches(&self, seq: u32) -> bool {
        match self.reach {
            Reach::Through(last) => last.is_some_and(|last| !is_later(seq, last)),
            Reach::All => true,
        }
    }
}

impl Shard {
    /// Begins nothing more of the assignment that stands behind what it has begun, and tries nothing again. Walks over all
    /// keys.
    pub(crate) fn leave(&mut self, lane: Lane, epoch: Epoch) {
        self.halted.retain(|halted| *halted != (lane, epoch));
        for key in self.keys.places() {
            // It would hold the lane up until its back-off is over, or for ever.
            if matches!(self.keys.get(key).state, State::Waiting | State::Parked) {
                self.drop_waiting(key, (lane, epoch), None);
            }
        }
        let last = self.mark_running(lane, epoch);
        self.begun.push(Begun { lane, epoch, last });
        let is_of = |item: &u32| (self.items[*item].record.lane(), self.items[*item].record.epoch()) == (lane, epoch);
        let open = self.items.places().iter().filter(|item| is_of(item)).count();
        if open > 0 {
            let reach = Reach::Through(last);
            self.leavers.push(Leaver { lane, epoch, open, reach, withheld: Vec::new() });
        }
    }

    /// Marks what runs of the assignment, and returns the last number among it.
    fn mark_running(&mut self, lane: Lane, epoch: Epoch) -> Option<u32> {
        let mut last = None;
        for ticket in self.running_of(lane, epoch) {
            let Some(flight) = self.flights.get(ticket) else { continue };
            flight.is_leaving = true;
            let head = flight.head;
            for item in self.chain(head) {
                let seq = self.items[item].seq;
                last = Some(last.filter(|last| is_later(*last, seq)).unwrap_or(seq));
            }
        }
        last
    }

    /// Drops what waits of the assignment behind the number `last`, or all of it, and lets the rest run.
    pub(crate) fn leave_behind(&mut self, lane: Lane, epoch: Epoch, last: Option<u32>) {
        self.halted.retain(|halted| *halted != (lane, epoch));
        for key in self.keys.places() {
            let is_parked = self.keys.get(key).state == State::Parked;
            self.drop_waiting(key, (lane, epoch), last.filter(|_| !is_parked));
        }
        let leaver = self.leavers.iter_mut().find(|leaver| (leaver.lane, leaver.epoch) == (lane, epoch));
        let withheld = leaver.map(|leaver| {
            leaver.reach = Reach::All;
            std::mem::take(&mut leaver.withheld)
        });
        for key in withheld.unwrap_or_default() {
            self.go_on(key);
        }
        self.leavers.retain(|leaver| leaver.open > 0);
    }

    /// Lets the key wait if its first record stands behind what may begin of a lane on its way out.
    pub(super) fn withhold(&mut self, key: u32, head: u32) -> bool {
        let item = &self.items[head];
        let leaver = self.leavers.iter_mut().find(|leaver| leaver.is_of(&item.record));
        let Some(leaver) = leaver.filter(|leaver| !leaver.reaches(item.seq)) else { return false };
        leaver.withheld.push(key);
        self.keys.get(key).state = State::Waiting;
        true
    }

    /// Whether the record may begin, for all that its lane has to say.
    pub(super) fn is_reached(&self, item: u32) -> bool {
        let item = &self.items[item];
        self.leavers.iter().all(|leaver| !leaver.is_of(&item.record) || leaver.reaches(item.seq))
    }

    pub(super) fn is_leaving(&self, record: &Record) -> bool {
        self.leavers.iter().any(|leaver| leaver.is_of(record))
    }

    /// A record of the assignment is here no more.
    pub(super) fn count_left(&mut self, lane: Lane, epoch: Epoch) {
        for leaver in self.leavers.iter_mut().filter(|leaver| (leaver.lane, leaver.epoch) == (lane, epoch)) {
            leaver.open -= 1;
        }
        // Whoever still keeps keys back is asked for them.
        self.leavers.retain(|leaver| leaver.open > 0 || !leaver.withheld.is_empty());
    }

    /// What waits of a record's key would overtake it, now that it is given up.
    pub(super) fn drop_followers(&mut self, key: u32, head: u32) {
        let record = &self.items[head].record;
        let assignment = (record.lane(), record.epoch());
        if key != NONE && !self.leavers.is_empty() {
            self.drop_waiting(key, assignment, None);
        }
    }

    /// What still runs of the assignment, and is to be ended by [`abandon`](Self::abandon).
    pub(crate) fn running_of(&self, lane: Lane, epoch: Epoch) -> Vec<Ticket> {
        self.flights.tickets(|flight| {
            let record = &self.items[flight.head].record;
            (record.lane(), record.epoch()) == (lane, epoch)
        })
    }

    /// Gives up what runs; whatever its completion says is late.
    pub(crate) fn abandon(&mut self, ticket: Ticket) {
        if self.flights.get(ticket).is_some() {
            let flight = self.flights.end(ticket);
            self.tally.abandoned += 1;
            self.give_up(&flight);
        }
    }

    /// Drops the waiting records of a key that are of the assignment and stand behind the number `last`, if there is one.
    fn drop_waiting(&mut self, place: u32, (lane, epoch): (Lane, Epoch), last: Option<u32>) {
        let head = self.keys.get(place).head;
        if head == NONE {
            return;
        }
        let (leaving, staying): (Vec<u32>, Vec<u32>) = self.chain(head).into_iter().partition(|item| {
            let item = &self.items[*item];
            let is_of = (item.record.lane(), item.record.epoch()) == (lane, epoch);
            is_of && last.is_none_or(|last| is_later(item.seq, last))
        });
        if leaving.is_empty() {
            return;
        }
        self.keep_only(place, &staying);
        for item in leaving {
            self.verdicts.remove(&item);
            let item = self.items.remove(item);
            self.report(&item, false);
        }
    }

    fn keep_only(&mut self, place: u32, staying: &[u32]) {
        for pair in staying.windows(2) {
            self.items[pair[0]].next = pair[1];
        }
        if let Some(last) = staying.last() {
            self.items[*last].next = NONE;
        }
        let key = self.keys.get(place);
        let (state, before) = (key.state, key.len);
        key.head = staying.first().copied().unwrap_or(NONE);
        key.tail = staying.last().copied().unwrap_or(NONE);
        key.len = staying.len() as u32;
        if state == State::Parked {
            // Whatever it was parked for has left, or stands at its head again.
            self.unhold(before);
            self.go_on(place);
        } else if staying.is_empty() && state != State::Running {
            // Its turn or its timer lets it go. Until then nothing says what its name is.
            self.keys.unname(place);
        }
    }
}
