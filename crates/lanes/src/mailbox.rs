//! What others leave for one owner, who takes all of it at once.
//!
//! A mutex with tiny sections (append, or swap) suffices: the owner takes whole batches, so it locks seldom. What is in
//! a mailbox is bounded by what its senders may have under way, not by the mailbox.

use std::mem;
use std::task::{Context, Poll, Waker};

use super::sync::{Arc, Mutex, lock};

/// Letters of one kind, or of several side by side.
pub(crate) trait Mail: Default {
    fn is_empty(&self) -> bool;
}

impl<T> Mail for Vec<T> {
    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

#[derive(Debug, Default)]
struct Inside<M> {
    mail: M,
    owner: Option<Waker>,
}

/// Shared by the owner and all senders.
#[derive(Debug)]
pub(crate) struct Mailbox<M>(Arc<Mutex<Inside<M>>>);

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Mail> Mailbox<M> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Inside { mail: M::default(), owner: None })))
    }

    /// Adds to the mail, and wakes the owner if it waits.
    pub(crate) fn post(&self, add: impl FnOnce(&mut M)) {
        let mut inside = lock(&self.0);
        add(&mut inside.mail);
        let owner = inside.owner.take();
        drop(inside);
        owner.into_iter().for_each(Waker::wake);
    }

    /// Swaps what is there for `into`, which is empty. Pending, if nothing is there; the next [`post`](Self::post) wakes.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, into: &mut M) -> Poll<()> {
        let mut inside = lock(&self.0);
        if inside.mail.is_empty() {
            inside.owner = Some(cx.waker().clone());
            return Poll::Pending;
        }
        mem::swap(&mut inside.mail, into);
        Poll::Ready(())
    }

    /// As [`poll_take`](Self::poll_take) without waiting. `false` if nothing is there.
    pub(crate) fn take(&self, into: &mut M) -> bool {
        let mut inside = lock(&self.0);
        let any = !inside.mail.is_empty();
        if any {
            mem::swap(&mut inside.mail, into);
        }
        any
    }
}
