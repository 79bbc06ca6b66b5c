//! An open connection and the pool's record of it.

use std::time::Instant;

use crate::{Connection, permit::OpenPermit};

/// Why a pool closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Older than [`Limits::lifetime`](crate::Limits::lifetime).
    Lifetime,
    /// Idle for longer than [`Limits::idle_timeout`](crate::Limits::idle_timeout).
    IdleTimeout,
    /// Opened before the last [`Pool::reconnect`](crate::Pool::reconnect), or the pool is closed.
    Replaced,
    /// More connections are open than the limits allow, or another pool needs its place.
    Surplus,
    /// [`Connection::is_usable`] returned false.
    Unusable,
    /// Released with [`ReleaseAction::Close`], or its lease was dropped.
    Released,
}

/// Treatment of a connection that its client releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAction {
    /// The next client gets it.
    Reuse,
    /// [`ManageConnection::clean`](crate::ManageConnection::clean) gets it first.
    Clean,
    /// The connection is closed and makes room for a new one.
    Close,
}

/// The part of a connection that stays the same when it moves between cores.
pub(crate) struct ConnectionRecord {
    pub(crate) opened_at: Instant,
    /// `None` before the first release.
    pub(crate) released_at: Option<Instant>,
    /// Random share, from 0 to 1, of `Limits::lifetime_jitter` that shortens the lifetime.
    pub(crate) jitter_share: f64,
    /// Number of `Pool::reconnect` calls before its connect began.
    pub(crate) generation: u64,
    /// The control epoch for which `generation` and `expires_at` were last computed.
    pub(crate) checked_epoch: Option<u64>,
    pub(crate) expires_at: Option<Instant>,
    pub(crate) permit: OpenPermit,
}

/// An open connection. Always boxed: moves between owners move a pointer.
pub(crate) struct PooledConnection<C: Connection> {
    // Before the record: a connection is closed before its permit is given back.
    pub(crate) conn: C,
    pub(crate) cleaning: bool,
    pub(crate) record: ConnectionRecord,
}
