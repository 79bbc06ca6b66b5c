//! A connection while a client uses it.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    rc::Rc,
    time::Instant,
};

use crate::{Connection, ReleaseAction, core_pool::CorePool, pooled::PooledConnection};

/// A connection while a client uses it. Two words; derefs to the connection. [`release`](Self::release) returns the
/// connection to the pool. Dropping the lease closes it.
#[must_use = "a dropped lease closes its connection"]
pub struct Lease<C: Connection> {
    // `None` only after the release.
    connection: Option<Box<PooledConnection<C>>>,
    core: Rc<CorePool<C>>,
}

impl<C: Connection> Lease<C> {
    pub(crate) fn new(connection: Box<PooledConnection<C>>, core: Rc<CorePool<C>>) -> Self {
        Self { connection: Some(connection), core }
    }

    /// Returns the connection to the pool.
    #[inline]
    pub fn release(mut self, action: ReleaseAction, now: Instant) {
        if let Some(connection) = self.connection.take() {
            self.core.release(connection, action, now);
        }
    }

    /// When the connection was opened.
    #[must_use]
    pub fn opened_at(&self) -> Instant {
        self.connection().record.opened_at
    }

    /// The [`generation`](crate::Pool::generation) of the pool when the connect started.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.connection().record.generation
    }

    /// When the connection was last released; `None` during its first lease.
    #[must_use]
    pub fn released_at(&self) -> Option<Instant> {
        self.connection().record.released_at
    }

    /// The core that the connection belongs to.
    #[must_use]
    pub fn core(&self) -> usize {
        self.core.core
    }

    /// Returns the connection to its core without a client having used it.
    pub(crate) fn pass_on(mut self) {
        if let Some(connection) = self.connection.take() {
            self.core.pass_on(connection);
        }
    }

    fn connection(&self) -> &PooledConnection<C> {
        self.connection.as_deref().expect("a lease holds its connection until it is released")
    }
}

impl<C: Connection> Deref for Lease<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.connection().conn
    }
}

impl<C: Connection> DerefMut for Lease<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.connection.as_deref_mut().expect("a lease holds its connection until it is released").conn
    }
}

impl<C: Connection> Drop for Lease<C> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.core.release(connection, ReleaseAction::Close, self.core.now());
        }
    }
}

impl<C: Connection + fmt::Debug> fmt::Debug for Lease<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&**self).finish()
    }
}
