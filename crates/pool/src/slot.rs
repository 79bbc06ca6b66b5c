//! A connection that is to be opened.

use std::{fmt, rc::Rc, time::Instant};

use crate::{
    Connection,
    board::lower,
    held::{Held, Permit, Record},
    local::Inner,
};

/// The order to open one connection. Answer with [`fulfil`](Self::fulfil), [`fail`](Self::fail), [`retry`](Self::retry) or
/// [`withdraw`](Self::withdraw); dropped, it is to be retried.
#[must_use = "a slot wants to be fulfilled, failed, retried or withdrawn"]
pub struct Slot<C: Connection> {
    local: Rc<Inner<C>>,
    permit: Option<Permit<C>>,
    generation: u64,
}

impl<C: Connection> Slot<C> {
    pub(crate) fn new(local: Rc<Inner<C>>, permit: Permit<C>, generation: u64) -> Self {
        Self { local, permit: Some(permit), generation }
    }

    /// The connection is open: the oldest waiting client gets it, or it becomes idle.
    pub fn fulfil(mut self, conn: C, now: Instant) {
        let Some(mut permit) = self.permit.take() else {
            return;
        };
        permit.connected();
        lower(&self.local.line().connecting);
        let early = self.local.pool.connect_succeeded();
        let generation = self.generation;
        let record = Record { born: now, released: None, early, generation, judged: None, expires: None, permit };
        let held = Box::new(Held { conn, cleaning: false, record });
        self.local.opened(held, now);
    }

    /// The connect failed. If no connection is open and none is being opened, every waiting client gets the error.
    pub fn fail(mut self, error: C::Error, now: Instant) {
        self.end(Some(error), false, now);
    }

    /// The connect failed for a reason that may be gone at any time, and that costs the other side little to find out. As
    /// [`fail`](Self::fail), but the next client has it tried again without a pause. A client that waits for a connection
    /// that is open already has it tried again after [`Limits::retry_start`](crate::Limits::retry_start), at most a second.
    /// Without a client the pause grows.
    pub fn refuse(mut self, error: C::Error, now: Instant) {
        self.end(Some(error), true, now);
    }

    /// The connect failed, and clients keep waiting for one that does not. It is tried again as after
    /// [`fail`](Self::fail): after a pause, at a [`sweep`](crate::Local::sweep).
    pub fn retry(mut self, now: Instant) {
        self.end(None, false, now);
    }

    /// Nothing was tried, and need not be now: the order is given anew when somebody waits.
    pub fn withdraw(mut self, now: Instant) {
        if let Some(permit) = self.permit.take() {
            lower(&self.local.line().connecting);
            drop(permit);
            self.local.serve(now);
        }
    }

    /// Whether the connection would be of no use if it were open now: the pool was paused or closed, or all connections of
    /// its time are to be replaced. The host hears of a change when it is woken for this core, and may
    /// [`withdraw`](Self::withdraw) then.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        let control = self.local.pool.control();
        control.paused || control.closed.is_some() || control.generation != self.generation
    }

    /// The core that opens it.
    #[must_use]
    pub fn core(&self) -> usize {
        self.local.core
    }

    fn end(&mut self, error: Option<C::Error>, is_refusal: bool, now: Instant) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        lower(&self.local.line().connecting);
        // One that began before all were to be replaced says nothing of those that begin now.
        if self.generation == self.local.pool.generation() {
            self.local.pool.connect_failed(error, is_refusal, now, &self.local.limits());
        }
        drop(permit);
        self.local.serve(now);
    }
}

impl<C: Connection> Drop for Slot<C> {
    fn drop(&mut self) {
        let now = self.local.now();
        self.end(None, false, now);
    }
}

impl<C: Connection> fmt::Debug for Slot<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("core", &self.local.core).finish_non_exhaustive()
    }
}
