//! The trait of pooled connections.

use std::{
    error::Error,
    task::{Context, Poll},
};

/// A pooled connection. Its `Drop` closes it.
pub trait Connection: Sized + 'static {
    /// The connection while it moves to another thread.
    type Detached: Send + 'static;
    /// Why a connect failed, or why the pool was closed.
    type Error: Error + Send + Sync + 'static;

    /// Returns whether a client may get the connection. False closes it: for example bytes or an end of stream arrived while
    /// it was idle.
    ///
    /// The pool calls it when an idle connection is taken, when a connection arrives from another core, and in
    /// [`LocalPool::maintain`](crate::LocalPool::maintain). It must not block.
    fn is_usable(&mut self) -> bool;

    /// The connection becomes idle, and may begin to watch for the end of its stream. Does nothing by default.
    fn on_idle(&mut self) {}

    /// Prepares the connection to leave this core, for example cancels a pending read. [`detach`](Self::detach) follows as
    /// soon as it is ready.
    ///
    /// The first poll has a waker that does nothing. If it is pending,
    /// [`ManageConnection::run_transfer`](crate::ManageConnection::run_transfer) gets a [`Transfer`](crate::Transfer).
    fn poll_detach(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }

    /// Detaches the connection from this core.
    fn detach(self) -> Self::Detached;

    /// Attaches a connection to the calling core.
    fn attach(detached: Self::Detached) -> Self;
}
