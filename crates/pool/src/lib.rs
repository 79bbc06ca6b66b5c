//! Leases of anything that can be connected, checked and closed: bounded, fair, spread over cores.
//!
//! # The problem
//!
//! A pool is asked twice for each piece of work: for a connection, and to take it back. When all cores ask one
//! process, or one lock, that question costs more than many an answer. And a pool that lets each core keep its own
//! connections without looking at the others starves clients here while connections lie idle there.
//!
//! # The contract
//!
//! - **One place.** A [`Pool`] holds connections to one place; a map from keys to pools is the caller's.
//! - **Spread.** Each core has a [`Local`] with its own idle connections, last in, first out. Taking one and putting
//!   it back touches no lock and sends no message; a connection of another core is asked for only when the own core
//!   has none.
//! - **Bounded.** [`Limits::size`] (and the reserve) holds over all cores at every moment; so does
//!   [`Limits::connecting_max`]. A permit is given back by a destructor, so it cannot leak.
//! - **Fair.** The clients of a core are served first in, first out. Whenever a core serves a client of its own, no
//!   client elsewhere to whom nothing is on the way came more than [`Limits::overtake_max`] earlier.
//! - **No wake-up is lost.** A client that waits is served when a connection comes free on any core.
//! - **Nothing is leaked by a drop.** A dropped [`Checkout`] leaves the queue and passes on what it was given; a dropped
//!   [`Lease`] closes its connection; a dropped [`Slot`] is a failed connect.
//! - **Quiet.** The crate reads no clock, sets no timer, spawns nothing, does no I/O; `now` is an argument, everything
//!   else is asked of the [`Host`]. It works under any executor, or none.
//!
//! The owner of a core calls [`Local::process_mail`] when the pool's `wake` names that core, and [`Local::sweep`] about
//! once a second.
//!
//! # Example
//!
//! ```
//! use std::{convert::Infallible, task::{Context, Poll, Waker}, time::Instant};
//! use tidegate_pool::{Connection, Fate, Host, Limits, Pool, Slot};
//!
//! struct Line(u32);
//!
//! impl Connection for Line {
//!     type Parked = Self;
//!     type Error = Infallible;
//!     fn is_usable(&mut self) -> bool { true }
//!     fn park(self) -> Self { self }
//!     fn unpark(parked: Self) -> Self { parked }
//! }
//!
//! struct Exchange;
//!
//! impl Host<Line> for Exchange {
//!     // A real host starts a task that connects and then answers the slot.
//!     fn connect(&self, slot: Slot<Line>) { slot.fulfil(Line(7), Instant::now()) }
//! }
//!
//! let now = Instant::now();
//! let pool = Pool::new(1, Limits::default(), 42, now, |_core| ());
//! let local = pool.local(0, now, Exchange);
//!
//! let mut checkout = std::pin::pin!(local.checkout(now));
//! let mut cx = Context::from_waker(Waker::noop());
//! let Poll::Ready(Ok(lease)) = checkout.as_mut().poll(&mut cx) else { panic!("connected at once") };
//! assert_eq!(lease.0, 7);
//! assert_eq!(pool.counts().active, 1);
//! lease.release(Fate::Reuse, now);
//! assert_eq!(pool.counts().idle, 1);
//! ```

mod atomic;
mod backoff;
mod board;
mod checkout;
mod courier;
mod error;
mod held;
mod lease;
mod limits;
mod local;
mod mail;
mod permits;
mod pool;
mod queue;
mod slot;
mod sweep;

use std::{
    error::Error,
    task::{Context, Poll},
};

pub use self::{
    checkout::Checkout,
    courier::Courier,
    error::CheckoutError,
    held::Retirement,
    lease::{Fate, Lease},
    limits::Limits,
    local::Local,
    pool::{Counts, Pool},
    slot::Slot,
};

/// What a pooled thing is able to do. Closing is its `Drop`.
pub trait Connection: Sized + 'static {
    /// The form in which it may move to another thread.
    type Parked: Send + 'static;
    /// Why opening one failed, or why the pool was closed.
    type Error: Error + Send + Sync + 'static;

    /// May a client have it? Called when it leaves the idle ones, when it arrives from another core and by each sweep.
    /// Must not wait; false (bytes or an end of stream arrived while it was idle) closes it.
    fn is_usable(&mut self) -> bool;

    /// It becomes idle. The place to begin listening for the end of the connection; nothing by default.
    fn rest(&mut self) {}

    /// Get ready to leave this core, for instance cancel a pending read. Once ready, [`park`](Self::park) follows at
    /// once. The first poll comes with a waker that does nothing; if that is pending, the host runs a [`Courier`].
    fn poll_park(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }

    /// Take it off this core.
    fn park(self) -> Self::Parked;

    /// Bring it to life on the calling core.
    fn unpark(parked: Self::Parked) -> Self;
}

/// What the pool asks of the owner of a core. Called in the middle of pool operations of that core, but at points where
/// it may use the pool freely. A host that keeps a [`Local`] of the same pool keeps itself alive; let its tasks do so.
pub trait Host<C: Connection> {
    /// Open one more connection and answer the slot, at once or later.
    fn connect(&self, slot: Slot<C>);

    /// Clean a connection that was released with [`Fate::Clean`], and release it again. By default it is closed.
    fn clean(&self, lease: Lease<C>) {
        drop(lease);
    }

    /// The pool is about to close a connection, for this reason: for logs. Nothing by default.
    fn retire(&self, conn: &C, why: Retirement) {
        let _ = (conn, why);
    }

    /// Run this future: a connection goes to another core and was not ready to do so at once. By default it is closed.
    fn send(&self, courier: Courier<C>) {
        drop(courier);
    }
}
