//! A connection that moves to another core.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use crate::{
    Connection,
    core_pool::CorePool,
    mailbox::{CoreMessage, DetachedConnection, TransferReservation},
    pooled::PooledConnection,
};

/// Moves a connection to another core: a future that polls [`Connection::poll_detach`] and then sends the connection.
///
/// It must be run to its end on the core where it was created. Dropping it closes the connection.
#[must_use = "a transfer is a future; dropped, it closes its connection"]
pub struct Transfer<C: Connection> {
    load: Option<(Box<PooledConnection<C>>, TransferReservation)>,
    origin: Rc<CorePool<C>>,
}

impl<C: Connection> Transfer<C> {
    pub(crate) fn new(
        connection: Box<PooledConnection<C>>,
        reservation: TransferReservation,
        origin: Rc<CorePool<C>>,
    ) -> Self {
        Self { load: Some((connection, reservation)), origin }
    }

    /// The receiving core; `None` after the connection was sent.
    #[must_use]
    pub fn destination(&self) -> Option<usize> {
        self.load.as_ref().map(|(_, reservation)| reservation.core)
    }
}

impl<C: Connection> Future for Transfer<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some((connection, _)) = self.load.as_mut() else {
            return Poll::Ready(());
        };
        if connection.conn.poll_detach(cx).is_pending() {
            return Poll::Pending;
        }
        if let Some((connection, reservation)) = self.load.take() {
            let PooledConnection { conn, record, .. } = *connection;
            let core = reservation.core;
            let detached = DetachedConnection { conn: conn.detach(), record, reservation };
            self.origin.pool.post(core, CoreMessage::Connection(detached));
        }
        Poll::Ready(())
    }
}

impl<C: Connection> Unpin for Transfer<C> {}

impl<C: Connection> fmt::Debug for Transfer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("destination", &self.destination()).finish()
    }
}
