//! The FIFO queue of producers that wait for room.
//!
//! A producer that finds the journal full, or the queue not empty, joins the queue. Room is granted from the front, by
//! the bytes that each waiter needs, and set aside for it: a woken waiter finds its room in whatever order the woken ones
//! run, and a later producer cannot take it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    task::Waker,
    time::Instant,
};

/// A waiter in the queue; smaller tickets came earlier.
pub(crate) type QueueTicket = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitStatus {
    Waiting,
    /// Room was granted: try again.
    Granted,
    /// The deadline has passed.
    Expired,
}

#[derive(Debug)]
struct QueuedWaiter {
    need: usize,
    waker: Waker,
    deadline: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct MemoryWaitQueue {
    next: QueueTicket,
    waiting: BTreeMap<QueueTicket, QueuedWaiter>,
    deadlines: BTreeSet<(Instant, QueueTicket)>,
    /// The bytes set aside for waiters that were granted room.
    granted: BTreeMap<QueueTicket, usize>,
}

impl MemoryWaitQueue {
    /// Joins the queue at the end.
    pub(crate) fn enqueue(&mut self, need: usize, waker: Waker, deadline: Option<Instant>) -> QueueTicket {
        self.next += 1;
        let ticket = self.next;
        self.deadlines.extend(deadline.map(|at| (at, ticket)));
        self.waiting.insert(ticket, QueuedWaiter { need, waker, deadline });
        ticket
    }

    /// The status of a waiter. Stores the waker to use from now on.
    pub(crate) fn status(&mut self, ticket: QueueTicket, waker: &Waker) -> WaitStatus {
        if let Some(waiter) = self.waiting.get_mut(&ticket) {
            waiter.waker.clone_from(waker);
            return WaitStatus::Waiting;
        }
        if self.granted.contains_key(&ticket) { WaitStatus::Granted } else { WaitStatus::Expired }
    }

    /// Leaves the queue, served or cancelled. Returns the bytes that were set aside for the ticket: they now belong to
    /// the caller.
    pub(crate) fn leave(&mut self, ticket: QueueTicket) -> usize {
        if let Some(waiter) = self.waiting.remove(&ticket) {
            waiter.deadline.map(|at| self.deadlines.remove(&(at, ticket)));
        }
        self.granted.remove(&ticket).unwrap_or(0)
    }

    /// Grants room to waiters from the front while `try_reserve` succeeds for the next one. Returns the wakers to call
    /// after the lock is released.
    pub(crate) fn grant(&mut self, mut try_reserve: impl FnMut(usize) -> bool) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.first_entry().filter(|first| try_reserve(first.get().need)) {
            let (ticket, waiter) = first.remove_entry();
            waiter.deadline.map(|at| self.deadlines.remove(&(at, ticket)));
            self.granted.insert(ticket, waiter.need);
            woken.push(waiter.waker);
        }
        woken
    }

    /// Expires waiters whose deadline has passed. Returns the wakers to call, and the next deadline.
    pub(crate) fn expire(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let mut woken = Vec::new();
        while let Some(&(at, ticket)) = self.deadlines.first() {
            if at > now {
                return (woken, Some(at));
            }
            self.deadlines.pop_first();
            woken.extend(self.waiting.remove(&ticket).map(|waiter| waiter.waker));
        }
        (woken, None)
    }

    /// Makes all waiters try again: the journal was closed.
    pub(crate) fn release_all(&mut self) -> Vec<Waker> {
        self.deadlines.clear();
        let waiting = mem::take(&mut self.waiting);
        self.granted.extend(waiting.keys().map(|ticket| (*ticket, 0)));
        waiting.into_values().map(|waiter| waiter.waker).collect()
    }

    pub(crate) fn len(&self) -> usize {
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

    fn enqueue(queue: &mut MemoryWaitQueue, need: usize) -> QueueTicket {
        queue.enqueue(need, Waker::noop().clone(), None)
    }

    /// The number of waiters that were granted room out of `free` bytes.
    fn grant(queue: &mut MemoryWaitQueue, free: &mut usize) -> usize {
        let try_reserve = |need| free.checked_sub(need).map(|rest| *free = rest).is_some();
        queue.grant(try_reserve).len()
    }

    #[test]
    fn grants_from_the_front_and_once() {
        let (mut queue, mut free) = (MemoryWaitQueue::default(), 100);
        let tickets = [40, 40, 40].map(|need| enqueue(&mut queue, need));
        assert_eq!((grant(&mut queue, &mut free), free), (2, 20));
        assert_eq!(grant(&mut queue, &mut free), 0, "already granted");
        assert_eq!(queue.status(tickets[2], Waker::noop()), WaitStatus::Waiting);
        free += queue.leave(tickets[0]);
        assert_eq!(queue.leave(tickets[0]), 0, "returned once");
        assert_eq!(grant(&mut queue, &mut free), 1);
    }

    #[test]
    fn does_not_overtake_a_large_waiter() {
        let (mut queue, mut free) = (MemoryWaitQueue::default(), 50);
        let (large, small) = (enqueue(&mut queue, 100), enqueue(&mut queue, 1));
        assert_eq!(grant(&mut queue, &mut free), 0);
        assert_eq!(queue.status(small, Waker::noop()), WaitStatus::Waiting);
        assert_eq!(queue.leave(large), 0, "no room was set aside for it");
        assert_eq!(grant(&mut queue, &mut free), 1);
    }

    #[test]
    fn deadlines_expire_in_order() {
        let (mut queue, now) = (MemoryWaitQueue::default(), Instant::now());
        let second = Duration::from_secs(1);
        let late = queue.enqueue(1, Waker::noop().clone(), Some(now + 2 * second));
        let soon = queue.enqueue(1, Waker::noop().clone(), Some(now + second));
        let (woken, next) = queue.expire(now + second);
        assert_eq!((woken.len(), next), (1, Some(now + 2 * second)));
        assert_eq!(queue.status(soon, Waker::noop()), WaitStatus::Expired);
        assert_eq!(queue.status(late, Waker::noop()), WaitStatus::Waiting);
    }
}
