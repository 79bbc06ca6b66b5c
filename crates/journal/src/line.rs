//! Producers that wait for room, first come, first served.
//!
//! Whoever finds the journal full joins the line, and whoever finds a line joins it. Room is promised from the front, by
//! the bytes that each one needs, and set aside for it: a wake-up finds what it was woken for, in whatever order those who
//! were woken come, and whoever came later and did not wait cannot take it from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    task::Waker,
    time::Instant,
};

/// A place in the line; smaller came earlier.
pub(crate) type Turn = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Waiting,
    /// There is room: try again.
    Granted,
    /// The deadline has passed.
    Expired,
}

#[derive(Debug)]
struct Place {
    need: usize,
    waker: Waker,
    deadline: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Line {
    next: Turn,
    waiting: BTreeMap<Turn, Place>,
    deadlines: BTreeSet<(Instant, Turn)>,
    /// The bytes that were set aside for those who were told to try again.
    granted: BTreeMap<Turn, usize>,
}

impl Line {
    /// Joins at the end.
    pub(crate) fn join(&mut self, need: usize, waker: Waker, deadline: Option<Instant>) -> Turn {
        self.next += 1;
        let turn = self.next;
        self.deadlines.extend(deadline.map(|at| (at, turn)));
        self.waiting.insert(turn, Place { need, waker, deadline });
        turn
    }

    /// How it stands at a place, with the waker to use from now on.
    pub(crate) fn look(&mut self, turn: Turn, waker: &Waker) -> Standing {
        if let Some(place) = self.waiting.get_mut(&turn) {
            place.waker.clone_from(waker);
            return Standing::Waiting;
        }
        if self.granted.contains_key(&turn) { Standing::Granted } else { Standing::Expired }
    }

    /// In its turn, or given up. Returns the bytes that were set aside for it: they are the caller's from now on.
    pub(crate) fn leave(&mut self, turn: Turn) -> usize {
        if let Some(place) = self.waiting.remove(&turn) {
            place.deadline.map(|at| self.deadlines.remove(&(at, turn)));
        }
        self.granted.remove(&turn).unwrap_or(0)
    }

    /// Promises room to those in front, as long as `set_aside` has as much as the next one needs. Returns whom to wake,
    /// after the lock.
    pub(crate) fn grant(&mut self, mut set_aside: impl FnMut(usize) -> bool) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.first_entry().filter(|first| set_aside(first.get().need)) {
            let (turn, place) = first.remove_entry();
            place.deadline.map(|at| self.deadlines.remove(&(at, turn)));
            self.granted.insert(turn, place.need);
            woken.push(place.waker);
        }
        woken
    }

    /// Takes out who waited too long. Returns whom to wake, and when to look again.
    pub(crate) fn expire(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let mut woken = Vec::new();
        while let Some(&(at, turn)) = self.deadlines.first() {
            if at > now {
                return (woken, Some(at));
            }
            self.deadlines.pop_first();
            woken.extend(self.waiting.remove(&turn).map(|place| place.waker));
        }
        (woken, None)
    }

    /// Sends everybody to try again: the journal was closed.
    pub(crate) fn dismiss(&mut self) -> Vec<Waker> {
        self.deadlines.clear();
        let waiting = mem::take(&mut self.waiting);
        self.granted.extend(waiting.keys().map(|turn| (*turn, 0)));
        waiting.into_values().map(|place| place.waker).collect()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a deadline is nearer than any other.
    pub(crate) fn is_nearest(&self, deadline: Instant) -> bool {
        self.deadlines.first().is_none_or(|(first, _)| *first >= deadline)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn join(line: &mut Line, need: usize) -> Turn {
        line.join(need, Waker::noop().clone(), None)
    }

    /// How many are promised something, of so much that is free.
    fn grant(line: &mut Line, free: &mut usize) -> usize {
        let set_aside = |need| free.checked_sub(need).map(|rest| *free = rest).is_some();
        line.grant(set_aside).len()
    }

    #[test]
    fn room_is_promised_from_the_front_and_once() {
        let (mut line, mut free) = (Line::default(), 100);
        let turns = [40, 40, 40].map(|need| join(&mut line, need));
        assert_eq!((grant(&mut line, &mut free), free), (2, 20));
        assert_eq!(grant(&mut line, &mut free), 0, "promised already");
        assert_eq!(line.look(turns[2], Waker::noop()), Standing::Waiting);
        free += line.leave(turns[0]);
        assert_eq!(line.leave(turns[0]), 0, "given back once");
        assert_eq!(grant(&mut line, &mut free), 1);
    }

    #[test]
    fn a_large_one_in_front_is_not_overtaken() {
        let (mut line, mut free) = (Line::default(), 50);
        let (large, small) = (join(&mut line, 100), join(&mut line, 1));
        assert_eq!(grant(&mut line, &mut free), 0);
        assert_eq!(line.look(small, Waker::noop()), Standing::Waiting);
        assert_eq!(line.leave(large), 0, "nothing was promised to it");
        assert_eq!(grant(&mut line, &mut free), 1);
    }

    #[test]
    fn deadlines_expire_in_their_order() {
        let (mut line, now) = (Line::default(), Instant::now());
        let second = Duration::from_secs(1);
        let late = line.join(1, Waker::noop().clone(), Some(now + 2 * second));
        let soon = line.join(1, Waker::noop().clone(), Some(now + second));
        let (woken, next) = line.expire(now + second);
        assert_eq!((woken.len(), next), (1, Some(now + 2 * second)));
        assert_eq!(line.look(soon, Waker::noop()), Standing::Expired);
        assert_eq!(line.look(late, Waker::noop()), Standing::Waiting);
    }
}
