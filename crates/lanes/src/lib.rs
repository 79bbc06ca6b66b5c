//! Parallel across keys, serial within a key, and the frontier of what is done.
//!
//! # The problem
//!
//! A consumer of an ordered source has to do three things at once: run its handler concurrently, to use the machine; run it
//! serially per key, to be correct; and confirm to the source only what is done, to lose nothing. With a fixed number of
//! threads the machine idles while handlers wait. With handlers that finish later, the order of a key is lost, and one that
//! is never finished stops everything. With errors that are logged and confirmed, records are gone.
//!
//! # The contract
//!
//! - A [`Subscription`] takes records from the lanes of a [`Source`] and runs a handler for each: concurrently across keys,
//!   one after another within a key. Keys of different lanes are different keys.
//! - A handler gets a [`Delivery`]: the record, and a [`Completion`] that it finishes, fails, or drops, which is a failure.
//!   **A key waits for its completion**, wherever that was moved to.
//! - **Nothing is committed past an open record.** A record is closed by its completion, by the [`DeadLetter`] that took it,
//!   or because it was chosen that it be skipped.
//! - A failed record is tried again in place ([`Retry`]); then comes what was chosen ([`Exhausted`]). A completion that is
//!   forgotten meets its deadline ([`Overdue`]).
//! - What waits is bounded ([`Bounds`]), and what runs is limited; both can be changed while it runs ([`Handle`]).
//! - A lane that is taken away drains alone, until a deadline. Every record carries the [`Epoch`] of its assignment, and what
//!   is left of an earlier one changes nothing.
//!
//! What it cannot do: end a handler that blocks its thread.
//!
//! # Example
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use std::sync::Arc;
//! use tidegate_lanes::source::Memory;
//! use tidegate_lanes::{Lane, Position, Record, Subscription};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (source, feed) = Memory::new();
//! let epoch = feed.assign(Lane(0));
//! for (position, (account, amount)) in [("ann", "5"), ("bob", "7"), ("ann", "30")].into_iter().enumerate() {
//!     let (key, payload) = (Some(account.as_bytes()), Some(amount.as_bytes()));
//!     feed.push(Record::new(Lane(0), epoch, Position(position as u64), key, payload));
//! }
//! feed.end();
//!
//! let sum = Arc::new(AtomicU64::new(0));
//! let total = Arc::clone(&sum);
//! let subscription = Subscription::builder("payments").source(source).process(move |record| {
//!     let total = Arc::clone(&total);
//!     async move {
//!         let amount: u64 = std::str::from_utf8(record.payload().unwrap_or_default())?.parse()?;
//!         total.fetch_add(amount, Relaxed);
//!         Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//!     }
//! })?;
//! let tally = subscription.run().await?;
//! assert_eq!((tally.done, sum.load(Relaxed)), (3, 42));
//! assert_eq!(feed.committed(Lane(0)), Some(Position(2)));
//! # Ok(())
//! # }
//! ```
//!
//! Two programs to read next: `examples/payments.rs` (no server: retries, a dead-letter, an interceptor) and
//! `examples/kafka.rs` (a member of a consumer group).
//!
//! # Order
//!
//! One record of a key has its turn, then all other keys that wait have theirs: a hot key starves nobody. Retries keep the
//! order, since the key waits. A retry topic, a [release](Completion::release_key), and the end of a lane's drain while a
//! handler blocks its thread do not.
//!
//! # Where handlers run
//!
//! - **Tasks**, the default: on the tokio runtime on which the subscription is built, among its other tasks. Right for
//!   whatever has no reason for something else: a handler may compute for a while, use `block_in_place`, and share clients
//!   and connections that belong to that runtime; what it spawns and leaves behind lives on. The runtime needs timers
//!   (`enable_time`): to build a subscription on one without them panics, as tokio says it.
//! - **[Own threads](Builder::own_threads)**: each shard has a thread with a runtime. Right for very many handlers that
//!   mostly wait (for timers, timeouts, answers) and compute little: the workers of one runtime share its timers behind a
//!   lock, and without that such a handler costs about half. It is not the default, since a handler that computes for long
//!   holds up the other keys of its shard, and since what it spawns ends with the subscription.
//! - **[`Threads`]**: a fixed number of threads, for handlers that block.

mod assigned;
mod bounds;
mod builder;
mod clock;
mod completion;
mod crew;
mod dead_letter;
mod delivery;
mod error;
mod failure;
mod frontier;
mod gate;
#[cfg(test)]
mod gate_tests;
mod handle;
mod home;
mod intake;
#[cfg(test)]
mod interleavings;
mod mailbox;
mod moment;
mod observe;
mod pace;
mod panic;
mod policy;
mod record;
mod runtime;
mod shard;
mod slab;
pub mod source;
mod span;
mod subscription;
mod sync;
mod tally;
mod worker;

pub use assigned::LaneStatus;
pub use bounds::Bounds;
pub use builder::{Builder, NoSource};
pub use completion::Completion;
pub use dead_letter::{DeadLetter, Letter, Taken};
pub use delivery::{Batch, Delivery};
pub use error::{BuildError, RunError};
pub use failure::{Cause, Exhausted, Failure, Overdue, Retry};
pub use handle::Handle;
pub use observe::{HotKey, Interceptor, Metrics};
pub use policy::{Keyless, Quota};
pub use record::{Epoch, Header, Lane, Position, Record};
pub use runtime::{Tasks, Threads};
pub use source::{Event, Mark, Room, Source};
pub use subscription::Subscription;
pub use tally::{Histogram, Tally};
