//! Operations with a single completion: accept readiness, peer close, connect.

use std::{
    cell::Cell,
    io,
    os::fd::AsFd,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use socket2::SockAddr;

use super::ring::Ring;

/// The operation.
pub(super) enum OneShotKind {
    /// Wait for a connection on a listener. The kernel wakes one waiter per connection.
    AwaitConnection,
    /// Wait until the peer has closed its side.
    AwaitPeerClosed,
    /// Connect a socket.
    Connect(SockAddr),
}

/// The operands that the kernel uses during the operation, and its outcome.
pub(super) struct OneShot {
    pub(super) fd: Rc<dyn AsFd>,
    pub(super) kind: OneShotKind,
    outcome: Cell<Option<io::Result<()>>>,
    waker: Cell<Option<Waker>>,
}

impl OneShot {
    pub(super) fn new(fd: Rc<dyn AsFd>, kind: OneShotKind) -> Self {
        Self { fd, kind, outcome: Cell::default(), waker: Cell::default() }
    }

    /// Stores the outcome and wakes the task.
    pub(super) fn complete(&self, outcome: io::Result<()>) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Waits for the outcome; dropping it cancels the operation.
pub(super) struct Pending {
    one_shot: Rc<OneShot>,
    slot: u32,
    ring: Rc<Ring>,
    is_done: bool,
}

impl Pending {
    /// Submits the operation.
    ///
    /// # Errors
    /// The kernel accepts no more operations.
    pub(super) fn submit(ring: &Rc<Ring>, one_shot: OneShot) -> io::Result<Self> {
        let one_shot = Rc::new(one_shot);
        let slot = ring.submit_one_shot(&one_shot)?;
        Ok(Self { one_shot, slot, ring: Rc::clone(ring), is_done: false })
    }

    /// Cancels the operation. Its completion comes in any case, and may have come before.
    pub(super) fn cancel(&self) {
        self.ring.cancel_one_shot(self.slot);
    }

    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if let Some(outcome) = self.one_shot.outcome.take() {
            self.is_done = true;
            return Poll::Ready(outcome);
        }
        self.one_shot.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.one_shot.waker.take();
        let outcome = self.one_shot.outcome.take();
        if !self.is_done && outcome.is_none() {
            self.ring.cancel_one_shot(self.slot);
        }
    }
}
