//! What runs: each start with its ticket, the oldest first, so that a deadline looks at nothing that is not due.

use crate::completion::Ticket;
use crate::moment::Moment;
use crate::slab::{NONE, Slab};

/// What was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The handler.
    Run,
    /// The dead-letter.
    Bury,
}

#[derive(Clone, Debug)]
pub(super) struct Flight {
    /// Its records, linked.
    pub(super) head: u32,
    /// The key that waits for it; none after the key was released.
    pub(super) key: u32,
    pub(super) kind: Kind,
    pub(super) began: Moment,
    /// It missed its deadline and its handler was told to end.
    pub(super) is_overdue: bool,
    /// Its lane is being taken away: it is not tried again.
    pub(super) is_leaving: bool,
    start: u32,
    /// From when its deadline counts.
    counts_from: Moment,
    older: u32,
    newer: u32,
}

#[derive(Debug)]
pub(super) struct Flights {
    slab: Slab<Flight>,
    starts: u32,
    oldest: u32,
    newest: u32,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self { slab: Slab::new(), starts: 0, oldest: NONE, newest: NONE }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn begin(&mut self, head: u32, key: u32, kind: Kind, now: Moment) -> Ticket {
        self.starts = self.starts.wrapping_add(1);
        let start = self.starts;
        let (is_overdue, is_leaving, older, newer) = (false, false, NONE, NONE);
        let flight =
            Flight { head, key, kind, began: now, is_overdue, is_leaving, start, counts_from: now, older, newer };
        let place = self.slab.insert(flight);
        self.enlist(place, now);
        Ticket { flight: place, start }
    }

    /// The flight of a ticket, unless it ended.
    pub(super) fn get(&mut self, ticket: Ticket) -> Option<&mut Flight> {
        self.peek(ticket)?;
        Some(&mut self.slab[ticket.flight])
    }

    pub(super) fn peek(&self, ticket: Ticket) -> Option<&Flight> {
        self.slab.get(ticket.flight).filter(|flight| flight.start == ticket.start)
    }

    pub(super) fn at(&self, place: u32) -> &Flight {
        &self.slab[place]
    }

    pub(super) fn end(&mut self, ticket: Ticket) -> Flight {
        self.unlist(ticket.flight);
        self.slab.remove(ticket.flight)
    }

    /// The one whose deadline comes first, and from when that counts.
    pub(super) fn oldest(&self) -> Option<(Ticket, Moment)> {
        let flight = self.slab.get(self.oldest)?;
        Some((Ticket { flight: self.oldest, start: flight.start }, flight.counts_from))
    }

    /// Its deadline counts from now on.
    pub(super) fn extend(&mut self, ticket: Ticket, now: Moment) {
        self.unlist(ticket.flight);
        self.enlist(ticket.flight, now);
    }

    /// All tickets whose flight `is_meant`, by a walk over all.
    pub(super) fn tickets(&self, is_meant: impl Fn(&Flight) -> bool) -> Vec<Ticket> {
        let ticket = |flight| Ticket { flight, start: self.slab[flight].start };
        self.slab.places().into_iter().filter(|place| is_meant(&self.slab[*place])).map(ticket).collect()
    }

    fn enlist(&mut self, place: u32, now: Moment) {
        let newest = self.newest;
        let flight = &mut self.slab[place];
        (flight.counts_from, flight.older, flight.newer) = (now, newest, NONE);
        match newest {
            NONE => self.oldest = place,
            newest => self.slab[newest].newer = place,
        }
        self.newest = place;
    }

    fn unlist(&mut self, place: u32) {
        let (older, newer) = (self.slab[place].older, self.slab[place].newer);
        match older {
            NONE => self.oldest = newer,
            older => self.slab[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slab[newer].older = older,
        }
    }
}
