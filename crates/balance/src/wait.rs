//! Callers that wait for an endpoint: a bounded list of wakers, all woken by each publication.

use std::collections::BTreeMap;
use std::mem;
use std::task::Waker;

use crate::sync::{Mutex, lock};

/// The wakers of those who wait, by a ticket.
#[derive(Debug)]
pub(crate) struct Waiters {
    list: Mutex<List>,
    most: usize,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Waiters {
    pub(crate) fn new(most: usize) -> Self {
        Self { list: Mutex::new(List::default()), most }
    }

    /// Puts a waker on the list, in place of the one it left before. `Err`: the list is full, of so many.
    pub(crate) fn join(&self, ticket: &mut Option<u64>, waker: &Waker) -> Result<(), usize> {
        let mut list = lock(&self.list);
        let known = ticket.is_some_and(|ticket| list.wakers.contains_key(&ticket));
        if !known && list.wakers.len() >= self.most {
            return Err(list.wakers.len());
        }
        let number = ticket.unwrap_or(list.next);
        list.next = list.next.max(number + 1);
        list.wakers.insert(number, waker.clone());
        *ticket = Some(number);
        Ok(())
    }

    pub(crate) fn leave(&self, ticket: u64) {
        let waker = lock(&self.list).wakers.remove(&ticket);
        drop(waker);
    }

    /// Wakes all; they look again, and join again if they must. Keep the list's lock out of what wakers do.
    pub(crate) fn wake_all(&self) {
        let woken = mem::take(&mut lock(&self.list).wakers);
        woken.into_values().for_each(Waker::wake);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.list).wakers.len()
    }
}
