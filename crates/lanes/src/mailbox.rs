//! A mailbox with many senders and one receiver, which takes all messages in one swap.
//!
//! A mutex with short sections (append or swap) suffices: the receiver takes whole batches and locks rarely. The limits
//! of the senders bound the mailbox.

use std::mem;
use std::task::{Context, Poll, Waker};

use super::sync::{Arc, Mutex, lock};

/// A container of messages.
pub(crate) trait MailboxContents: Default {
    fn is_empty(&self) -> bool;
}

impl<T> MailboxContents for Vec<T> {
    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

#[derive(Debug, Default)]
struct MailboxState<M> {
    contents: M,
    owner: Option<Waker>,
}

/// The shared handle of the receiver and all senders.
#[derive(Debug)]
pub(crate) struct ShardMailbox<M>(Arc<Mutex<MailboxState<M>>>);

impl<M> Clone for ShardMailbox<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: MailboxContents> ShardMailbox<M> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(MailboxState { contents: M::default(), owner: None })))
    }

    /// Adds messages and wakes the receiver.
    pub(crate) fn post(&self, add: impl FnOnce(&mut M)) {
        let mut state = lock(&self.0);
        add(&mut state.contents);
        let owner = state.owner.take();
        drop(state);
        owner.into_iter().for_each(Waker::wake);
    }

    /// Swaps the messages with `into`, which must be empty. Pending if there are none; the next [`post`](Self::post)
    /// wakes the task.
    pub(crate) fn poll_receive(&self, cx: &mut Context<'_>, into: &mut M) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.contents.is_empty() {
            state.owner = Some(cx.waker().clone());
            return Poll::Pending;
        }
        mem::swap(&mut state.contents, into);
        Poll::Ready(())
    }

    /// Like [`poll_receive`](Self::poll_receive), without waiting. `false` if there are no messages.
    pub(crate) fn try_receive(&self, into: &mut M) -> bool {
        let mut state = lock(&self.0);
        let any = !state.contents.is_empty();
        if any {
            mem::swap(&mut state.contents, into);
        }
        any
    }
}
