//! Messages between cores. Used only when a client has to wait or an operator changes something.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Connection, core_table::CoreTable, pooled::ConnectionRecord};

/// Owner of the messages and the figures of all cores. A trait, so that reservations do not depend on the pool.
pub(crate) trait NotifiesCores: Send + Sync {
    fn core_table(&self) -> &CoreTable;

    /// Makes `core` check whether its waiting clients can be served.
    fn notify_core(&self, core: usize);
}

/// Announces a connection to a core, so that no second one is sent for the same client. Ends when the connection arrives,
/// or when it is dropped on the way.
pub(crate) struct TransferReservation {
    pool: Arc<dyn NotifiesCores>,
    pub(crate) core: usize,
    arrived: bool,
}

impl TransferReservation {
    /// Announces a connection to `core`; `None` if a connection is on its way to each of its waiting clients.
    pub(crate) fn new<P: NotifiesCores + 'static>(pool: &Arc<P>, core: usize) -> Option<Self> {
        let reserved = pool.core_table().reserve_incoming(core);
        reserved.then(|| Self { pool: Arc::<P>::clone(pool), core, arrived: false })
    }

    pub(crate) fn arrived(mut self) {
        self.arrived = true;
    }
}

impl Drop for TransferReservation {
    fn drop(&mut self) {
        self.pool.core_table().end_incoming(self.core);
        if !self.arrived {
            self.pool.notify_core(self.core);
        }
    }
}

/// A connection in a mailbox.
pub(crate) struct DetachedConnection<C: Connection> {
    // Drop order: the connection, then its permit, then the notification of the core that waits for it.
    pub(crate) conn: C::Detached,
    pub(crate) record: ConnectionRecord,
    pub(crate) reservation: TransferReservation,
}

/// A message to a core.
pub(crate) enum CoreMessage<C: Connection> {
    /// The state has changed: check whether waiting clients can be served.
    Check,
    /// A client of another core waits for an idle connection of this core.
    RequestIdle,
    /// An idle connection must make room.
    Evict,
    Connection(DetachedConnection<C>),
}

/// Result of posting a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// The message is the first unread one: the core must be woken.
    First,
    Queued,
    Dropped,
}

/// Messages that the core has not read. A mutex is enough: it is held to push or to take, off the fast path.
pub(crate) struct CoreMailbox<C: Connection>(Mutex<UnreadMessages<C>>);

pub(crate) struct UnreadMessages<C: Connection> {
    /// The core has a [`LocalPool`](crate::LocalPool).
    open: bool,
    pub(crate) check: bool,
    pub(crate) idle_requested: bool,
    pub(crate) evict: bool,
    pub(crate) connections: Vec<DetachedConnection<C>>,
}

impl<C: Connection> CoreMailbox<C> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(UnreadMessages::empty(false)))
    }

    /// Adds a message, or drops it if the core has no [`LocalPool`](crate::LocalPool).
    pub(crate) fn post(&self, message: CoreMessage<C>) -> Posted {
        let mut unread = self.lock();
        if !unread.open {
            // Not under the lock: the drop of a connection's reservation posts to this mailbox.
            drop(unread);
            return Posted::Dropped;
        }
        let first = !unread.check && !unread.idle_requested && !unread.evict && unread.connections.is_empty();
        match message {
            CoreMessage::Check => unread.check = true,
            CoreMessage::RequestIdle => unread.idle_requested = true,
            CoreMessage::Evict => unread.evict = true,
            CoreMessage::Connection(connection) => unread.connections.push(connection),
        }
        if first { Posted::First } else { Posted::Queued }
    }

    pub(crate) fn take(&self) -> UnreadMessages<C> {
        let mut unread = self.lock();
        let open = unread.open;
        std::mem::replace(&mut unread, UnreadMessages::empty(open))
    }

    /// Starts to accept messages. Returns false if the mailbox accepts messages already.
    pub(crate) fn open(&self) -> bool {
        !std::mem::replace(&mut self.lock().open, true)
    }

    /// Stops accepting messages, and returns the unread ones.
    pub(crate) fn close(&self) -> UnreadMessages<C> {
        std::mem::replace(&mut self.lock(), UnreadMessages::empty(false))
    }

    fn lock(&self) -> MutexGuard<'_, UnreadMessages<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connection> UnreadMessages<C> {
    fn empty(open: bool) -> Self {
        Self { open, check: false, idle_requested: false, evict: false, connections: Vec::new() }
    }
}
