//! A bounded list of wakers; every publication wakes all of them.

use std::collections::BTreeMap;
use std::mem;
use std::task::Waker;

use crate::sync::{Mutex, lock};

/// Wakers of waiting callers, by ticket.
#[derive(Debug)]
pub(crate) struct Waiters {
    list: Mutex<WakerList>,
    max: usize,
}

#[derive(Debug, Default)]
struct WakerList {
    next_ticket: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Waiters {
    pub(crate) fn new(max: usize) -> Self {
        Self { list: Mutex::new(WakerList::default()), max }
    }

    /// Adds a waker, or replaces the caller's previous one.
    ///
    /// # Errors
    ///
    /// The number of waiting callers, if the list is full.
    pub(crate) fn join(&self, ticket: &mut Option<u64>, waker: &Waker) -> Result<(), usize> {
        let mut list = lock(&self.list);
        let listed = ticket.is_some_and(|ticket| list.wakers.contains_key(&ticket));
        if !listed && list.wakers.len() >= self.max {
            return Err(list.wakers.len());
        }
        let number = ticket.unwrap_or(list.next_ticket);
        list.next_ticket = list.next_ticket.max(number + 1);
        list.wakers.insert(number, waker.clone());
        *ticket = Some(number);
        Ok(())
    }

    pub(crate) fn leave(&self, ticket: u64) {
        let waker = lock(&self.list).wakers.remove(&ticket);
        drop(waker);
    }

    /// Wakes all callers and empties the list. Wakers run after the lock is released.
    pub(crate) fn wake_all(&self) {
        let woken = mem::take(&mut lock(&self.list).wakers);
        woken.into_values().for_each(Waker::wake);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.list).wakers.len()
    }
}
