//! A connection that is to be opened.

use std::{fmt, rc::Rc, time::Instant};

use crate::{
    Connection,
    core_pool::CorePool,
    core_table::decrement,
    permit::OpenPermit,
    pooled::{ConnectionRecord, PooledConnection},
};

/// A request to open one connection. Exactly one of [`succeed`](Self::succeed), [`fail`](Self::fail),
/// [`refuse`](Self::refuse), [`retry`](Self::retry) and [`cancel`](Self::cancel) ends it. Dropping it
/// is [`retry`](Self::retry).
#[must_use = "a pending connect must end in success, failure, retry or cancellation"]
pub struct PendingConnect<C: Connection> {
    core: Rc<CorePool<C>>,
    permit: Option<OpenPermit>,
    generation: u64,
}

impl<C: Connection> PendingConnect<C> {
    pub(crate) fn new(core: Rc<CorePool<C>>, permit: OpenPermit, generation: u64) -> Self {
        Self { core, permit: Some(permit), generation }
    }

    /// The connection is open. The oldest waiting client gets it, or it becomes idle.
    pub fn succeed(mut self, conn: C, now: Instant) {
        let Some(mut permit) = self.permit.take() else {
            return;
        };
        permit.connected();
        decrement(&self.core.status().connecting);
        let record = ConnectionRecord {
            opened_at: now,
            released_at: None,
            jitter_share: self.core.pool.connect_succeeded(self.generation),
            generation: self.generation,
            checked_epoch: None,
            expires_at: None,
            permit,
        };
        let connection = Box::new(PooledConnection { conn, cleaning: false, record });
        self.core.opened(connection, now);
    }

    /// The connect failed. If no connection is open and no other connect is in progress, every waiting client gets the error.
    pub fn fail(mut self, error: C::Error, now: Instant) {
        self.end(Some(error), false, now);
    }

    /// The connect failed for a cause that is cheap to retry and may end at any time. Like [`fail`](Self::fail), but the next
    /// client retries it without a pause. For a client that waits for a connection that is already open, it is retried after
    /// [`Limits::retry_start`](crate::Limits::retry_start), at most a second. Without a client the pause grows.
    pub fn refuse(mut self, error: C::Error, now: Instant) {
        self.end(Some(error), true, now);
    }

    /// The connect failed, and clients keep waiting. It is retried by [`LocalPool::maintain`](crate::LocalPool::maintain)
    /// after the same pause as after [`fail`](Self::fail).
    pub fn retry(mut self, now: Instant) {
        self.end(None, false, now);
    }

    /// No connect was attempted, or its result is not needed. A new connect starts when a client waits.
    pub fn cancel(mut self, now: Instant) {
        if let Some(permit) = self.permit.take() {
            decrement(&self.core.status().connecting);
            drop(permit);
            self.core.serve(now);
        }
    }

    /// Returns whether the connection would be useless now: the pool was paused or closed, or a
    /// [`Pool::reconnect`](crate::Pool::reconnect) came after its start. The manager can check it whenever the pool wakes this
    /// core, and then [`cancel`](Self::cancel).
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        let control = self.core.pool.control();
        control.paused || control.closed.is_some() || control.generation != self.generation
    }

    /// The core that opens it.
    #[must_use]
    pub fn core(&self) -> usize {
        self.core.core
    }

    fn end(&mut self, error: Option<C::Error>, is_refusal: bool, now: Instant) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        decrement(&self.core.status().connecting);
        // A failure of an earlier generation does not delay connects that start now.
        if self.generation == self.core.pool.generation() {
            self.core.pool.connect_failed(error, is_refusal, now, &self.core.limits());
        }
        drop(permit);
        self.core.serve(now);
    }
}

impl<C: Connection> Drop for PendingConnect<C> {
    fn drop(&mut self) {
        let now = self.core.now();
        self.end(None, false, now);
    }
}

impl<C: Connection> fmt::Debug for PendingConnect<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingConnect").field("core", &self.core.core).finish_non_exhaustive()
    }
}
