//! What becomes of a start: done, failed, late, or overdue.

use std::cmp::Reverse;

use super::flights::{Flight, Kind};
use super::keys::State;
use super::{Due, Shard};
use crate::completion::{Outcome, Ticket, Word};
use crate::failure::{Cause, Exhausted, Failure, Overdue};
use crate::moment::Moment;
use crate::slab::NONE;

impl Shard {
    /// Takes the word of a completion. `true` if its start is over with it; a word that comes too late changes nothing.
    pub(crate) fn resolve(&mut self, word: Word, now: Moment) -> bool {
        let Word { ticket, outcome } = word;
        if self.flights.get(ticket).is_none() {
            self.tally.late += u64::from(!matches!(outcome, Outcome::KeyReleased));
            return false;
        }
        match outcome {
            Outcome::KeyReleased => self.release_key(ticket),
            Outcome::Done => self.done(ticket, now),
            Outcome::Failed(failure) => self.failed(ticket, *failure, now),
        }
        self.flights.get(ticket).is_none()
    }

    fn release_key(&mut self, ticket: Ticket) {
        let Some(flight) = self.flights.get(ticket) else { return };
        let key = std::mem::replace(&mut flight.key, NONE);
        if key != NONE {
            // While it has nothing to run, no record says what its name is.
            self.leave_flight(key, ticket);
        }
    }

    fn done(&mut self, ticket: Ticket, now: Moment) {
        let flight = self.flights.end(ticket);
        self.tally.run.note(now.since(flight.began));
        self.free_key(flight.key, flight.head);
        let ended = self.let_go(&flight, true);
        let counter = if flight.kind == Kind::Bury { &mut self.tally.dead_lettered } else { &mut self.tally.done };
        *counter += ended;
    }

    /// Removes the records of a flight, and says how many they were.
    fn let_go(&mut self, flight: &Flight, is_done: bool) -> u64 {
        let (mut next, mut count) = (flight.head, 0);
        while next != NONE {
            if flight.kind == Kind::Bury {
                self.verdicts.remove(&next);
            }
            let item = self.items.remove(next);
            self.report(&item, is_done);
            (next, count) = (item.next, count + 1);
        }
        count
    }

    /// The key's record does not run any more: the next one may.
    pub(super) fn free_key(&mut self, key: u32, head: u32) {
        if key != NONE {
            self.keep_name(key, head);
            self.go_on(key);
        }
    }

    fn leave_flight(&mut self, key: u32, ticket: Ticket) {
        let head = self.flights.at(ticket.flight).head;
        self.free_key(key, head);
    }

    fn failed(&mut self, ticket: Ticket, failure: Failure, now: Moment) {
        let flight = self.flights.end(ticket);
        self.count_failure(&flight, &failure);
        if flight.is_leaving {
            self.give_up(&flight);
        } else if flight.kind == Kind::Bury {
            self.not_buried(&flight, &failure, now);
        } else {
            let failure = if flight.is_overdue { self.overdue_failure() } else { failure };
            self.retry(&flight, failure, now);
        }
    }

    fn count_failure(&mut self, flight: &Flight, failure: &Failure) {
        let tally = &mut self.tally;
        tally.failed += u64::from(flight.kind == Kind::Run);
        tally.panicked += u64::from(failure.cause() == Cause::Panic);
        tally.dropped += u64::from(failure.cause() == Cause::Dropped && !flight.is_overdue);
    }

    pub(super) fn give_up(&mut self, flight: &Flight) {
        self.drop_followers(flight.key, flight.head);
        self.free_key(flight.key, flight.head);
        self.let_go(flight, false);
    }

    fn not_buried(&mut self, flight: &Flight, failure: &Failure, now: Moment) {
        self.tally.not_dead_lettered += 1;
        let tries = self.verdicts.get_mut(&flight.head).map_or(1, |verdict| {
            verdict.tries += 1;
            verdict.tries
        });
        let wait = failure.wait().unwrap_or_else(|| self.policy.retry.wait(tries, self.random.f64()));
        let key = self.put_back(flight);
        self.alarm(super::AlarmKind::NotBuried, flight.head, failure.clone());
        self.wait(key, now.after(wait));
    }

    /// Another attempt, or none.
    fn retry(&mut self, flight: &Flight, failure: Failure, now: Moment) {
        let item = &self.items[flight.head];
        let is_batch = item.next != NONE;
        let (attempts, age) = (u32::from(item.attempts), now.since(item.arrived.into()));
        let key = self.put_back(flight);
        let forced = self.forced(&failure);
        let wait = failure.wait().unwrap_or_else(|| self.policy.retry.wait(attempts, self.random.f64()));
        let is_exhausted = failure.is_permanent() || self.policy.retry.is_exhausted(attempts, age.saturating_add(wait));
        if let Some(exhausted) = forced.filter(|_| !is_batch) {
            self.exhaust(key, failure, exhausted);
        } else if is_exhausted && !is_batch {
            self.exhaust(key, failure, self.policy.exhausted);
        } else {
            self.tally.retried += 1;
            self.wait(key, now.after(wait));
        }
    }

    /// What the deadline's own rule makes of an overdue record.
    fn forced(&self, failure: &Failure) -> Option<Exhausted> {
        match self.policy.overdue {
            _ if failure.cause() != Cause::Overdue => None,
            Overdue::DeadLetter => Some(Exhausted::DeadLetter),
            Overdue::HaltLane => Some(Exhausted::HaltLane),
            Overdue::Retry | Overdue::Extend => None,
        }
    }

    /// Puts the records of a flight back at the head of their key, or of a key of their own.
    fn put_back(&mut self, flight: &Flight) -> u32 {
        let chain = self.chain(flight.head);
        let place = if flight.key == NONE { self.keys.insert_nameless() } else { flight.key };
        let key = self.keys.get(place);
        key.flight = NONE;
        key.len += chain.len() as u32;
        let behind = std::mem::replace(&mut key.head, flight.head);
        let last = chain.last().copied().unwrap_or(flight.head);
        if behind == NONE {
            key.tail = last;
        }
        self.items[last].next = behind;
        // A batch that failed is tried record by record.
        for item in &chain[1..] {
            self.items[*item].attempts = self.items[flight.head].attempts;
        }
        place
    }

    pub(super) fn wait(&mut self, key: u32, until: Moment) {
        self.keys.get(key).state = State::Waiting;
        self.keys.add_timer(key);
        self.due.push(Reverse((until, key, Due::Retry)));
    }

    /// Starts whose deadline has passed, and that something is to be done about: their handler is to be aborted if it still
    /// runs, and [`expire`](Self::expire) follows if not.
    pub(crate) fn overdue(&mut self, now: Moment) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        while let Some((ticket, from)) = self.flights.oldest()
            && from.after(self.policy.deadline) <= now
        {
            self.tally.overdue += 1;
            self.flights.extend(ticket, now);
            if self.policy.overdue != Overdue::Extend {
                tickets.push(ticket);
            }
        }
        tickets
    }

    /// The handler of an overdue start was told to end: when it does, it failed by being overdue.
    pub(crate) fn expect_end(&mut self, ticket: Ticket) {
        self.flights.get(ticket).into_iter().for_each(|flight| flight.is_overdue = true);
    }

    /// An overdue start whose handler does not run: its completion is somewhere, and of no use any more.
    pub(crate) fn expire(&mut self, ticket: Ticket, now: Moment) {
        if self.flights.get(ticket).is_some() {
            let failure = self.overdue_failure();
            self.failed(ticket, failure, now);
        }
    }

    pub(crate) fn overdue_failure(&self) -> Failure {
        Failure::of(Cause::Overdue, format!("not finished within {:?}", self.policy.deadline))
    }
}
