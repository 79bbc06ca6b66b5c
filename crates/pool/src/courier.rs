//! A connection on its way to another core.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    Connection, Pool,
    held::{Held, Record},
    local::Inner,
    mail::Mail,
};

/// The promise of a connection to a core; ends when it arrives, or when it never will.
pub(crate) struct Promise<C: Connection> {
    pool: Arc<Pool<C>>,
    pub(crate) core: usize,
    kept: bool,
}

impl<C: Connection> Promise<C> {
    /// Promise a connection to `core`, if it has clients who are promised none.
    pub(crate) fn to(pool: &Arc<Pool<C>>, core: usize) -> Option<Self> {
        pool.board.promise(core).then(|| Self { pool: Arc::clone(pool), core, kept: false })
    }

    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl<C: Connection> Drop for Promise<C> {
    fn drop(&mut self) {
        self.pool.board.promise_ends(self.core);
        if !self.kept {
            self.pool.post(self.core, Mail::Look);
        }
    }
}

/// A parked connection in a mailbox.
pub(crate) struct Parcel<C: Connection> {
    // Dropped in this order: the connection, its permit, and then the core that waits for it is told.
    pub(crate) parked: C::Parked,
    pub(crate) record: Record<C>,
    pub(crate) promise: Promise<C>,
}

/// A connection that has to get ready before it can leave its core. A future: it runs
/// [`Connection::poll_park`] and then posts the connection. Run it to its end on the core where it was made; dropping
/// it closes the connection.
#[must_use = "a courier is a future; dropped, it closes its connection"]
pub struct Courier<C: Connection> {
    load: Option<(Box<Held<C>>, Promise<C>)>,
    origin: Rc<Inner<C>>,
}

impl<C: Connection> Courier<C> {
    pub(crate) fn new(held: Box<Held<C>>, promise: Promise<C>, origin: Rc<Inner<C>>) -> Self {
        Self { load: Some((held, promise)), origin }
    }

    /// The core it goes to.
    #[must_use]
    pub fn destination(&self) -> Option<usize> {
        self.load.as_ref().map(|(_, promise)| promise.core)
    }
}

impl<C: Connection> Future for Courier<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some((held, _)) = self.load.as_mut() else {
            return Poll::Ready(());
        };
        if held.conn.poll_park(cx).is_pending() {
            return Poll::Pending;
        }
        if let Some((held, promise)) = self.load.take() {
            let Held { conn, record, .. } = *held;
            let core = promise.core;
            let parcel = Parcel { parked: conn.park(), record, promise };
            self.origin.pool.post(core, Mail::Parcel(parcel));
        }
        Poll::Ready(())
    }
}

impl<C: Connection> Unpin for Courier<C> {}

impl<C: Connection> fmt::Debug for Courier<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Courier").field("destination", &self.destination()).finish()
    }
}
