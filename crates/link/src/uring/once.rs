//! An operation that is waited for once: on the way to a connection, or for its end.

use std::{
    cell::Cell,
    io,
    os::fd::AsFd,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use socket2::SockAddr;

use super::ring::Ring;

/// What is to be done.
pub(super) enum Deed {
    /// Wait until somebody connects to a listener. Of all who wait for that, one is told.
    AwaitArrival,
    /// Wait until the peer has closed its side.
    AwaitLeaving,
    /// Connect a socket.
    Connect(SockAddr),
}

/// What the kernel uses of an operation under way, and what it has come to.
pub(super) struct Once {
    pub(super) fd: Rc<dyn AsFd>,
    pub(super) deed: Deed,
    outcome: Cell<Option<io::Result<()>>>,
    waker: Cell<Option<Waker>>,
}

impl Once {
    pub(super) fn new(fd: Rc<dyn AsFd>, deed: Deed) -> Self {
        Self { fd, deed, outcome: Cell::default(), waker: Cell::default() }
    }

    /// The operation has ended.
    pub(super) fn complete(&self, outcome: io::Result<()>) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Waits for it; dropped, it ends the operation.
pub(super) struct Pending {
    once: Rc<Once>,
    slot: u32,
    ring: Rc<Ring>,
    is_over: bool,
}

impl Pending {
    /// Begins the operation.
    ///
    /// # Errors
    /// When the kernel takes nothing more.
    pub(super) fn begin(ring: &Rc<Ring>, once: Once) -> io::Result<Self> {
        let once = Rc::new(once);
        let slot = ring.begin_once(&once)?;
        Ok(Self { once, slot, ring: Rc::clone(ring), is_over: false })
    }

    /// Asks for its end, which comes all the same: it may have come before.
    pub(super) fn ask_to_stop(&self) {
        self.ring.cancel_once(self.slot);
    }

    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if let Some(outcome) = self.once.outcome.take() {
            self.is_over = true;
            return Poll::Ready(outcome);
        }
        self.once.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.once.waker.take();
        let outcome = self.once.outcome.take();
        if !self.is_over && outcome.is_none() {
            self.ring.cancel_once(self.slot);
        }
    }
}
