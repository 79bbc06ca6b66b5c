//! Waiting clients of one core, first in, first out. Each can leave at any time.
//!
//! Waiters are entries of a slab, linked by index, so that joining, answering and leaving are a few index writes. An answered
//! waiter is unlinked, but keeps its slab entry until its client collects the answer.

use std::task::Waker;

use crate::core_table::PoolTime;

/// Slab index of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterId(u32);

const NONE: u32 = u32::MAX;

struct Waiter<T> {
    waker: Option<Waker>,
    answer: Option<T>,
    since: PoolTime,
    ticket: u64,
    previous: u32,
    next: u32,
    linked: bool,
}

/// State of a waiter that left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaiterLeft<T> {
    Waiting,
    Answered(T),
}

pub(crate) struct WaitQueue<T> {
    slab: Vec<Waiter<T>>,
    free: Vec<u32>,
    head: u32,
    tail: u32,
    len: usize,
    next_ticket: u64,
}

impl<T> WaitQueue<T> {
    pub(crate) fn new() -> Self {
        Self { slab: Vec::new(), free: Vec::new(), head: NONE, tail: NONE, len: 0, next_ticket: 0 }
    }

    /// Number of waiters without an answer.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When the first waiter joined.
    pub(crate) fn oldest(&self) -> Option<PoolTime> {
        (self.head != NONE).then(|| self.slab[self.head as usize].since)
    }

    /// Number of waiters, at most `max`, that joined at `since` or earlier.
    pub(crate) fn waiting_since(&self, since: PoolTime, max: usize) -> usize {
        let mut at = self.head;
        let mut count = 0;
        while at != NONE && count < max && self.slab[at as usize].since <= since {
            at = self.slab[at as usize].next;
            count += 1;
        }
        count
    }

    /// Adds a waiter at the end.
    pub(crate) fn join(&mut self, since: PoolTime) -> WaiterId {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let waiter = Waiter { waker: None, answer: None, since, ticket, previous: self.tail, next: NONE, linked: true };
        let at = self.insert(waiter);
        match self.tail {
            NONE => self.head = at,
            tail => self.slab[tail as usize].next = at,
        }
        self.tail = at;
        self.len += 1;
        WaiterId(at)
    }

    /// Answers the first waiter. Returns its waker, or the answer if the queue is empty.
    pub(crate) fn answer(&mut self, answer: T) -> Result<Option<Waker>, T> {
        if self.head == NONE {
            return Err(answer);
        }
        let at = self.head;
        self.unlink(at);
        let waiter = &mut self.slab[at as usize];
        waiter.answer = Some(answer);
        Ok(waiter.waker.take())
    }

    /// Takes the answer. Without one, stores `waker` and returns the previous waker, which the caller must drop outside any
    /// borrow of the queue.
    pub(crate) fn poll(&mut self, id: WaiterId, waker: &Waker) -> (Option<T>, Option<Waker>) {
        let waiter = &mut self.slab[id.0 as usize];
        if let Some(answer) = waiter.answer.take() {
            self.free.push(id.0);
            return (Some(answer), None);
        }
        if waiter.waker.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
            return (None, None);
        }
        (None, waiter.waker.replace(waker.clone()))
    }

    /// Removes a waiter. Returns an answer that it did not collect, and its waker, which the caller must drop outside any
    /// borrow of the queue.
    pub(crate) fn leave(&mut self, id: WaiterId) -> (WaiterLeft<T>, Option<Waker>) {
        let waiter = &mut self.slab[id.0 as usize];
        let answer = waiter.answer.take();
        let waker = waiter.waker.take();
        if waiter.linked {
            self.unlink(id.0);
        }
        self.free.push(id.0);
        (answer.map_or(WaiterLeft::Waiting, WaiterLeft::Answered), waker)
    }

    /// Upper bound of the number of waiters before this one: waiters that left between the first and this one are counted.
    pub(crate) fn ahead(&self, id: WaiterId) -> usize {
        let waiter = &self.slab[id.0 as usize];
        match self.head {
            head if waiter.linked && head != NONE => (waiter.ticket - self.slab[head as usize].ticket) as usize,
            _ => 0,
        }
    }

    fn insert(&mut self, waiter: Waiter<T>) -> u32 {
        if let Some(at) = self.free.pop() {
            self.slab[at as usize] = waiter;
            return at;
        }
        self.slab.push(waiter);
        (self.slab.len() - 1) as u32
    }

    fn unlink(&mut self, at: u32) {
        let waiter = &mut self.slab[at as usize];
        let (previous, next) = (waiter.previous, waiter.next);
        waiter.linked = false;
        match previous {
            NONE => self.head = next,
            previous => self.slab[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.slab[next as usize].previous = previous,
        }
        self.len -= 1;
    }
}
