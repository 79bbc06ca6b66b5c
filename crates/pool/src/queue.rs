//! The waiting clients of one core, first in, first out, each able to leave at once.
//!
//! Waiters live in a slab and are linked through it, so that joining, serving and leaving are a few index writes. A
//! waiter that has got its answer is unlinked but keeps its place in the slab until its client collects the answer.

use std::task::Waker;

use crate::board::Stamp;

/// Place of a waiter in the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u32);

const NONE: u32 = u32::MAX;

struct Waiter<T> {
    waker: Option<Waker>,
    answer: Option<T>,
    stamp: Stamp,
    ticket: u64,
    before: u32,
    after: u32,
    linked: bool,
}

/// What a client finds when it asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left<T> {
    /// It was still waiting.
    Waiting,
    /// It had been given this.
    Answered(T),
}

pub(crate) struct Queue<T> {
    slab: Vec<Waiter<T>>,
    free: Vec<u32>,
    head: u32,
    tail: u32,
    len: usize,
    tickets: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { slab: Vec::new(), free: Vec::new(), head: NONE, tail: NONE, len: 0, tickets: 0 }
    }

    /// Clients still waiting.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Since when the first in line waits.
    pub(crate) fn oldest(&self) -> Option<Stamp> {
        (self.head != NONE).then(|| self.slab[self.head as usize].stamp)
    }

    /// How many of the first in line, up to `most`, have waited since `stamp` or longer.
    pub(crate) fn waiting_since(&self, stamp: Stamp, most: usize) -> usize {
        let mut at = self.head;
        let mut count = 0;
        while at != NONE && count < most && self.slab[at as usize].stamp <= stamp {
            at = self.slab[at as usize].after;
            count += 1;
        }
        count
    }

    /// Join at the end.
    pub(crate) fn join(&mut self, stamp: Stamp) -> Key {
        let ticket = self.tickets;
        self.tickets += 1;
        let waiter = Waiter { waker: None, answer: None, stamp, ticket, before: self.tail, after: NONE, linked: true };
        let at = self.place(waiter);
        match self.tail {
            NONE => self.head = at,
            tail => self.slab[tail as usize].after = at,
        }
        self.tail = at;
        self.len += 1;
        Key(at)
    }

    /// Answer the first in line. Returns what wakes it, or gives the answer back if nobody waits.
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

    /// Ask for the answer. None yet: `waker` is remembered, and a former one returned to be dropped by the caller.
    pub(crate) fn poll(&mut self, key: Key, waker: &Waker) -> (Option<T>, Option<Waker>) {
        let waiter = &mut self.slab[key.0 as usize];
        if let Some(answer) = waiter.answer.take() {
            self.free.push(key.0);
            return (Some(answer), None);
        }
        if waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return (None, None);
        }
        (None, waiter.waker.replace(waker.clone()))
    }

    /// Leave. What had been answered is returned for somebody else, the waker to be dropped by the caller.
    pub(crate) fn leave(&mut self, key: Key) -> (Left<T>, Option<Waker>) {
        let waiter = &mut self.slab[key.0 as usize];
        let answer = waiter.answer.take();
        let waker = waiter.waker.take();
        if waiter.linked {
            self.unlink(key.0);
        }
        self.free.push(key.0);
        (answer.map_or(Left::Waiting, Left::Answered), waker)
    }

    /// Upper bound of the clients before this one: those who joined earlier, less those before the first in line.
    pub(crate) fn ahead(&self, key: Key) -> usize {
        let waiter = &self.slab[key.0 as usize];
        match self.head {
            head if waiter.linked && head != NONE => (waiter.ticket - self.slab[head as usize].ticket) as usize,
            _ => 0,
        }
    }

    fn place(&mut self, waiter: Waiter<T>) -> u32 {
        if let Some(at) = self.free.pop() {
            self.slab[at as usize] = waiter;
            return at;
        }
        self.slab.push(waiter);
        (self.slab.len() - 1) as u32
    }

    fn unlink(&mut self, at: u32) {
        let waiter = &mut self.slab[at as usize];
        let (before, after) = (waiter.before, waiter.after);
        waiter.linked = false;
        match before {
            NONE => self.head = after,
            before => self.slab[before as usize].after = after,
        }
        match after {
            NONE => self.tail = before,
            after => self.slab[after as usize].before = before,
        }
        self.len -= 1;
    }
}
