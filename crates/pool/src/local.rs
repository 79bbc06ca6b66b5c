//! The pool as seen from one core.

use std::{fmt, rc::Rc, sync::Arc, time::Instant};

use crate::{Checkout, Connection, Lease, ManageConnection, Pool, core_pool::CorePool, manage::ManagerCallbacks};

/// The pool as seen from one core. The handle stays on the thread where it was created; clones share the same state.
///
/// When the last clone and all its leases, checkouts and pending connects are dropped, the idle connections of the core are
/// closed, and the core can get a new `LocalPool`.
pub struct LocalPool<C: Connection>(Rc<CorePool<C>>);

impl<C: Connection> Clone for LocalPool<C> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<C: Connection> LocalPool<C> {
    /// Creates the handle of `core`.
    ///
    /// # Panics
    ///
    /// If the pool has no such core, or if the core has a `LocalPool` already.
    #[must_use]
    pub fn new(pool: &Arc<Pool<C>>, core: usize, now: Instant, manager: impl ManageConnection<C> + 'static) -> Self {
        assert!(core < pool.cores(), "core {core} of a pool for {} cores", pool.cores());
        assert!(pool.mailbox(core).open(), "core {core} has a LocalPool already");
        Self(Rc::new(CorePool::new(Arc::clone(pool), core, Box::new(ManagerCallbacks(manager)), now)))
    }

    /// Requests a connection. The client joins the queue now, if it has to wait.
    #[inline]
    pub fn checkout(&self, now: Instant) -> Checkout<C> {
        if let Some(lease) = self.try_checkout(now) {
            return Checkout::decided(Ok(lease), now);
        }
        match self.0.join(now) {
            Ok(waiter) => Checkout::waiting(Rc::clone(&self.0), waiter, now),
            Err(error) => Checkout::decided(Err(error), now),
        }
    }

    /// Takes an idle connection of this core, unless another client has waited longer.
    #[inline]
    pub fn try_checkout(&self, now: Instant) -> Option<Lease<C>> {
        let connection = self.0.take(now)?;
        Some(Lease::new(connection, Rc::clone(&self.0)))
    }

    /// Adds a connection that was opened elsewhere, at `opened_at`, as the lease of a client. The limits do not apply: a
    /// connection beyond them is closed when it is released.
    pub fn adopt(&self, conn: C, opened_at: Instant, now: Instant) -> Lease<C> {
        Lease::new(self.0.adopt(conn, opened_at, now), Rc::clone(&self.0))
    }

    /// Reads the messages of other cores and of operators. Must be called soon after `wake` was called for this core.
    pub fn process_messages(&self, now: Instant) {
        self.0.process_messages(now);
    }

    /// Closes idle connections that are unusable, outdated, idle for too long or beyond the limits. Opens connections up to
    /// [`Limits::min`](crate::Limits::min), opens the reserve, and retries failed connects. Must be called about once a second.
    pub fn maintain(&self, now: Instant) {
        self.0.maintain(now);
    }

    /// Returns whether a new client would have to wait for a release: no connection is idle on any core, and none can be
    /// opened now. A hint for clients that several pools can serve; it may have changed by the next call.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.0.is_exhausted()
    }

    /// Returns whether this core has an idle connection.
    #[must_use]
    pub fn has_idle(&self) -> bool {
        !self.0.idle.borrow().is_empty()
    }

    /// Calls `visit` for each idle connection of this core, with the time when it was opened and the time when it was last
    /// released. `visit` must not use the pool.
    pub fn for_each_idle(&self, mut visit: impl FnMut(&C, Instant, Option<Instant>)) {
        let idle = self.0.idle.borrow();
        idle.iter().for_each(|pooled| visit(&pooled.conn, pooled.record.opened_at, pooled.record.released_at));
    }

    /// The pool of this core.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<C>> {
        &self.0.pool
    }

    /// Number of this core.
    #[must_use]
    pub fn core(&self) -> usize {
        self.0.core
    }
}

impl<C: Connection> fmt::Debug for LocalPool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalPool").field("core", &self.0.core).finish_non_exhaustive()
    }
}
