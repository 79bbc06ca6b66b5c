//! One open connection and what the pool knows of it.

use std::{sync::Arc, time::Instant};

use crate::{Connection, Pool};

/// The right to have one connection open. Dropping it gives the right back and tells whoever waits for it, so that no
/// way out of the pool can leak one.
pub(crate) struct Permit<C: Connection> {
    pool: Arc<Pool<C>>,
    state: State,
}

enum State {
    Connecting,
    Open,
    Shed,
}

impl<C: Connection> Permit<C> {
    /// See [`Permits::take`](crate::permits::Permits::take).
    pub(crate) fn take(pool: &Arc<Pool<C>>, open_max: usize, connecting_max: usize) -> Option<Self> {
        pool.permits.take(open_max, connecting_max).then(|| Self { pool: Arc::clone(pool), state: State::Connecting })
    }

    /// The connect succeeded.
    pub(crate) fn connected(&mut self) {
        self.state = State::Open;
        self.pool.permits.connected();
    }

    /// Give the permit back if more than `keep` connections are open. True: the connection must be closed.
    pub(crate) fn shed(&mut self, keep: usize) -> bool {
        let shed = self.pool.permits.shed(keep);
        if shed {
            self.state = State::Shed;
        }
        shed
    }
}

impl<C: Connection> Drop for Permit<C> {
    fn drop(&mut self) {
        match self.state {
            State::Connecting => self.pool.permits.give_back_connecting(),
            State::Open => self.pool.permits.give_back(),
            State::Shed => {}
        }
        self.pool.nudge_waiting();
    }
}

/// Why a pool closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retirement {
    /// It is older than [`Limits::lifetime`](crate::Limits::lifetime).
    Lifetime,
    /// Nobody has used it for [`Limits::idle_timeout`](crate::Limits::idle_timeout).
    Idle,
    /// All of its time are replaced, or the pool is closed.
    Replaced,
    /// There are more than there may be, or another pool needs its place.
    Surplus,
    /// [`Connection::is_usable`] says no.
    Unusable,
    /// Its client gave it back to be closed.
    Released,
}

/// What stays the same while a connection moves between cores.
pub(crate) struct Record<C: Connection> {
    pub(crate) born: Instant,
    /// When it was given back last, if it was ever.
    pub(crate) released: Option<Instant>,
    /// Which part of `Limits::lifetime_jitter` its life is shortened by: 0 to 1.
    pub(crate) early: f64,
    /// Count of `Pool::reconnect` calls when its opening began.
    pub(crate) generation: u64,
    /// The control epoch in which it was last compared with what operators want.
    pub(crate) judged: Option<u64>,
    /// When it ends, as found then.
    pub(crate) expires: Option<Instant>,
    pub(crate) permit: Permit<C>,
}

/// An open connection. Always boxed: the places it goes through move a pointer.
pub(crate) struct Held<C: Connection> {
    // Before the record: a connection is closed before its permit is given back.
    pub(crate) conn: C,
    pub(crate) cleaning: bool,
    pub(crate) record: Record<C>,
}
