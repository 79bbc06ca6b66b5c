//! A connection while a client has it.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    rc::Rc,
    time::Instant,
};

use crate::{Connection, held::Held, local::Inner};

/// What becomes of a connection that its client has done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is as good as new: the next client may have it.
    Reuse,
    /// It is given to [`Host::clean`](crate::Host::clean) first.
    Clean,
    /// It is closed and makes room for a new one.
    Close,
}

/// A connection on loan; two words. It carries the connection itself and derefs to it. Give it back with
/// [`release`](Self::release); dropped, its connection is closed.
#[must_use = "a dropped lease closes its connection"]
pub struct Lease<C: Connection> {
    // None only once it was given back.
    held: Option<Box<Held<C>>>,
    local: Rc<Inner<C>>,
}

impl<C: Connection> Lease<C> {
    pub(crate) fn new(held: Box<Held<C>>, local: Rc<Inner<C>>) -> Self {
        Self { held: Some(held), local }
    }

    /// Give the connection back.
    #[inline]
    pub fn release(mut self, fate: Fate, now: Instant) {
        if let Some(held) = self.held.take() {
            self.local.release(held, fate, now);
        }
    }

    /// When the connection was opened.
    #[must_use]
    pub fn born(&self) -> Instant {
        self.held().record.born
    }

    /// The [`generation`](crate::Pool::generation) of the pool when its opening began.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.held().record.generation
    }

    /// When it was given back last; `None` if this is its first loan.
    #[must_use]
    pub fn released(&self) -> Option<Instant> {
        self.held().record.released
    }

    /// The core it belongs to.
    #[must_use]
    pub fn core(&self) -> usize {
        self.local.core
    }

    pub(crate) fn local(&self) -> &Rc<Inner<C>> {
        &self.local
    }

    pub(crate) fn dismantle(mut self) -> Option<Box<Held<C>>> {
        self.held.take()
    }

    fn held(&self) -> &Held<C> {
        self.held.as_deref().expect("a lease holds its connection until it is given back")
    }
}

impl<C: Connection> Deref for Lease<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.held().conn
    }
}

impl<C: Connection> DerefMut for Lease<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.held.as_deref_mut().expect("a lease holds its connection until it is given back").conn
    }
}

impl<C: Connection> Drop for Lease<C> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.local.release(held, Fate::Close, self.local.now());
        }
    }
}

impl<C: Connection + fmt::Debug> fmt::Debug for Lease<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&**self).finish()
    }
}
