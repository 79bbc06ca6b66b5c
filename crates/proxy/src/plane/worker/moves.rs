//! Sessions of one thread that move to another process.

use std::cell::Cell;

use tidegate_config::{Dialect, PoolPlan};
use tidegate_pg_client::ConnectError;

use super::Worker;
use crate::plane::RegisteredClient;

/// Progress of a thread whose sessions move.
#[derive(Default)]
pub(super) struct MoveProgress {
    is_moving: Cell<bool>,
    /// Place of the client that was woken last.
    cursor: Cell<usize>,
}

impl Worker {
    /// Whether sessions between transactions leave for another process.
    #[inline]
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.moves.is_moving.get()
    }

    /// Lets sessions leave, or stops it. The tasks of up to `limit` idle clients are woken; the others leave when their
    /// transaction ends.
    pub fn move_sessions(&self, is_moving: bool, limit: usize) {
        self.moves.is_moving.set(is_moving);
        if is_moving {
            self.registry.wake_movable(&self.moves.cursor, limit);
        }
    }

    /// The announced process id of a client of this thread.
    #[must_use]
    pub fn pid_of(&self, entry: &RegisteredClient) -> u32 {
        entry.pid(self.gateway.moves.thread_number(self.index))
    }

    /// Whether clients wait while a server cannot be connected. A client that waits for one of several servers moves on to the
    /// next. While sessions arrive, the previous process has connections that it will close.
    pub(super) fn waits_for_server(&self, plan: &PoolPlan, is_alone: bool, error: &ConnectError) -> bool {
        // Clients of PgBouncer wait until the certificate is right.
        let is_waited_for = error.is_transient() || plan.dialect == Dialect::Pgbouncer && error.is_untrusted();
        (plan.pool.wait_for_server && is_alone && is_waited_for)
            || (self.gateway.moves.is_arriving() && error.is_out_of_resources())
    }
}
