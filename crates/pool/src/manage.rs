//! The work that a core's owner does for the pool.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Waker},
};

use crate::{
    CloseReason, Connection, Lease, PendingConnect, Transfer,
    core_pool::{CoreCallbacks, CorePool},
    mailbox::TransferReservation,
    permit::OpenPermit,
    pooled::PooledConnection,
};

/// Opens, cleans and moves connections for the pool, on one core.
///
/// The pool calls these methods in the middle of its operations on that core, at points where they may use the pool. A
/// manager that owns a [`LocalPool`](crate::LocalPool) of the same pool is a reference cycle; its tasks should own it.
pub trait ManageConnection<C: Connection> {
    /// Opens one more connection and ends `pending`, now or later.
    fn connect(&self, pending: PendingConnect<C>);

    /// Cleans a connection that was released with [`ReleaseAction::Clean`](crate::ReleaseAction::Clean), and releases it again.
    /// The default closes it.
    fn clean(&self, lease: Lease<C>) {
        drop(lease);
    }

    /// The pool is about to close a connection: for logs. Does nothing by default.
    fn on_close(&self, conn: &C, reason: CloseReason) {
        let _ = (conn, reason);
    }

    /// Runs `transfer`: its connection moves to another core and could not be detached in the first poll. The default closes
    /// it.
    fn run_transfer(&self, transfer: Transfer<C>) {
        drop(transfer);
    }
}

/// Wraps what a core passes to its manager into the manager's types.
pub(crate) struct ManagerCallbacks<M>(pub(crate) M);

impl<C: Connection, M: ManageConnection<C>> CoreCallbacks<C> for ManagerCallbacks<M> {
    fn connect(&self, core: Rc<CorePool<C>>, permit: OpenPermit, generation: u64) {
        self.0.connect(PendingConnect::new(core, permit, generation));
    }

    fn clean(&self, core: Rc<CorePool<C>>, connection: Box<PooledConnection<C>>) {
        self.0.clean(Lease::new(connection, core));
    }

    fn closing(&self, conn: &C, reason: CloseReason) {
        self.0.on_close(conn, reason);
    }

    fn transfer(&self, core: Rc<CorePool<C>>, connection: Box<PooledConnection<C>>, reservation: TransferReservation) {
        let mut transfer = Transfer::new(connection, reservation, core);
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut transfer).poll(&mut cx).is_pending() {
            self.0.run_transfer(transfer);
        }
    }
}
