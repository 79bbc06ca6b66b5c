//! A lane is taken away: what has not begun is dropped, what runs is not tried again.

use super::Shard;
use super::keys::State;
use crate::completion::Ticket;
use crate::record::{Epoch, Lane};
use crate::slab::NONE;

impl Shard {
    /// Gives up every record of the assignment that does not run, and lets what runs end. Walks over all keys.
    pub(crate) fn leave(&mut self, lane: Lane, epoch: Epoch) {
        self.halted.retain(|halted| *halted != (lane, epoch));
        for key in self.keys.places() {
            self.drop_waiting(key, lane, epoch);
        }
        for ticket in self.running_of(lane, epoch) {
            self.flights.get(ticket).into_iter().for_each(|flight| flight.is_leaving = true);
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

    fn drop_waiting(&mut self, place: u32, lane: Lane, epoch: Epoch) {
        let head = self.keys.get(place).head;
        if head == NONE {
            return;
        }
        let (leaving, staying): (Vec<u32>, Vec<u32>) = self.chain(head).into_iter().partition(|item| {
            let record = &self.items[*item].record;
            (record.lane(), record.epoch()) == (lane, epoch)
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
