//! A connection pool for thread-per-core servers: bounded, fair, with idle connections on each core.
//!
//! # Problem
//!
//! Every piece of work uses a pool twice: to get a connection and to return it. One lock or one task for all cores makes
//! these two calls more expensive than many queries. Separate pools per core starve clients on one core while connections
//! are idle on another.
//!
//! # Contract
//!
//! - **One destination.** A [`Pool`] holds connections to one destination. The caller keeps the map from keys to pools.
//! - **Per core.** Each core has a [`LocalPool`] with its own idle connections, last in, first out. A checkout from it and a
//!   release to it take no lock and send no message. The pool asks other cores for a connection only if the core has none.
//! - **Bounded.** [`Limits::size`] (plus the reserve) and [`Limits::connecting_max`] hold over all cores at every moment. A
//!   destructor gives a permit back, so no exit path leaks one.
//! - **Fair.** The clients of one core are served first in, first out. A core that serves a client of its own never passes
//!   over a client of another core that arrived more than [`Limits::overtake_max`] earlier, unless a connection is on its
//!   way to that client.
//! - **No lost wake-ups.** A waiting client is served when a connection becomes free on any core.
//! - **No leaks.** A dropped [`Checkout`] leaves the queue and passes its connection on. A dropped [`Lease`] closes its
//!   connection. A dropped [`PendingConnect`] is retried, as after a
//!   failed connect, and clients keep waiting.
//! - **No runtime.** The crate reads no clock, sets no timer, spawns no task and does no I/O. `now` is an argument; a
//!   [`ManageConnection`] does everything else. It works with any executor, or none.
//!
//! The owner of a core calls [`LocalPool::process_messages`] when the pool's `wake` names that core, and
//! [`LocalPool::maintain`] about once a second.
//!
//! # Example
//!
//! ```
//! use std::{convert::Infallible, task::{Context, Poll, Waker}, time::Instant};
//! use tidegate_pool::{Connection, Limits, LocalPool, ManageConnection, PendingConnect, Pool, ReleaseAction};
//!
//! struct Conn(u32);
//!
//! impl Connection for Conn {
//!     type Detached = Self;
//!     type Error = Infallible;
//!     fn is_usable(&mut self) -> bool { true }
//!     fn detach(self) -> Self { self }
//!     fn attach(detached: Self) -> Self { detached }
//! }
//!
//! struct Manager;
//!
//! impl ManageConnection<Conn> for Manager {
//!     // A real manager spawns a task that connects and then ends the pending connect.
//!     fn connect(&self, pending: PendingConnect<Conn>) { pending.succeed(Conn(7), Instant::now()) }
//! }
//!
//! let now = Instant::now();
//! let pool = Pool::new(1, Limits::default(), 42, now, |_core| ());
//! let local = LocalPool::new(&pool, 0, now, Manager);
//!
//! let mut checkout = std::pin::pin!(local.checkout(now));
//! let mut cx = Context::from_waker(Waker::noop());
//! let Poll::Ready(Ok(lease)) = checkout.as_mut().poll(&mut cx) else { panic!("not connected") };
//! assert_eq!(lease.0, 7);
//! assert_eq!(pool.counts().active, 1);
//! lease.release(ReleaseAction::Reuse, now);
//! assert_eq!(pool.counts().idle, 1);
//! ```

mod checkout;
mod connect_backoff;
mod connection;
mod core_pool;
mod core_table;
mod error;
mod lease;
mod limits;
mod local;
mod mailbox;
mod maintenance;
mod manage;
mod pending_connect;
mod permit;
mod pool;
mod pooled;
mod sync;
mod transfer;
mod wait_queue;

pub use self::{
    checkout::Checkout,
    connection::Connection,
    error::CheckoutError,
    lease::Lease,
    limits::Limits,
    local::LocalPool,
    manage::ManageConnection,
    pending_connect::PendingConnect,
    pool::{Pool, PoolCounts},
    pooled::{CloseReason, ReleaseAction},
    transfer::Transfer,
};
