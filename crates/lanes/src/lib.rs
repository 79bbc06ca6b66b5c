//! Concurrent processing across keys, serial processing within a key, with at-least-once commits.
//!
//! # The problem
//!
//! A consumer of an ordered source (a Kafka partition, a replication slot, a file) must run its handler concurrently to
//! use the machine, serially per key to be correct, and commit only finished records to lose nothing. A fixed number of
//! threads leaves the machine idle while handlers wait. Handlers that finish later lose the order of their key, and a
//! handler that never finishes blocks every commit. Errors that are logged and then committed lose records.
//!
//! # The contract
//!
//! - A [`Subscription`] takes records from the lanes of a [`Source`] and runs a handler for each record: concurrently
//!   across keys, one record at a time within a key. Equal keys of different lanes are different keys.
//! - A handler receives a [`Delivery`]: the record and a [`Completion`]. The handler finishes the completion, fails it,
//!   or drops it, which counts as a failure. **The key stays blocked until its completion ends**, also when the
//!   completion has moved to another task.
//! - **No commit passes an unfinished record.** A record is finished when its completion is finished, when the
//!   [`DeadLetterQueue`] has accepted it, or when it is skipped by configuration.
//! - A failed record is retried in place ([`RecordRetryPolicy`]). [`ExhaustedAction`] decides what happens after the last
//!   attempt, [`OverdueAction`] what happens to a completion that misses its deadline.
//! - Queued records are bounded ([`Bounds`]) and running handlers are limited. Both limits can be changed at run time
//!   ([`SubscriptionHandle`]).
//! - A revoked lane drains alone, until a deadline. Every record carries the [`Epoch`] of its assignment; outcomes of an
//!   earlier epoch have no effect.
//!
//! A handler that blocks its thread cannot be aborted.
//!
//! # Example
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use std::sync::Arc;
//! use tidegate_lanes::source::MemorySource;
//! use tidegate_lanes::{Lane, Position, Record, Subscription};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (source, feed) = MemorySource::new();
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
//! let counters = subscription.run().await?;
//! assert_eq!((counters.done, sum.load(Relaxed)), (3, 42));
//! assert_eq!(feed.committed(Lane(0)), Some(Position(2)));
//! # Ok(())
//! # }
//! ```
//!
//! `examples/payments.rs` needs no server and shows retries, a dead-letter queue and an interceptor. `examples/kafka.rs`
//! is a member of a consumer group.
//!
//! # Ordering
//!
//! Ready keys take turns, one record each, so a hot key does not starve other keys. Retries keep the order, because the
//! key stays blocked. A retry topic, [`Completion::release_key`], and the end of a lane's drain while a handler blocks
//! its thread do not keep the order.
//!
//! # Where handlers run
//!
//! - **[`AsyncTasks`]**, the default: handlers run on the tokio runtime on which the subscription is built, beside its
//!   other tasks. A handler may compute for a while, call `block_in_place`, and share clients and connections of that
//!   runtime. Tasks that a handler spawns outlive the subscription. The runtime needs timers (`enable_time`); building a
//!   subscription on a runtime without timers panics.
//! - **[Own threads](SubscriptionBuilder::own_threads)**: each shard has a thread with its own runtime. Use this for very
//!   many handlers that mostly wait (for timers, timeouts, replies) and compute little. Workers of one runtime share its
//!   timers behind a lock; without that lock such a handler costs about half. A handler that computes for long delays the
//!   other keys of its shard, and tasks that it spawns end with the subscription.
//! - **[`BlockingThreads`]**: a fixed number of threads, for handlers that block.

mod assignments;
mod backpressure;
mod bounds;
mod builder;
mod clock;
mod completion;
mod counters;
mod dead_letter;
mod delivery;
mod error;
mod executor;
mod failure;
mod frontier;
mod handle;
mod intake;
mod interceptor;
mod job_queue;
mod limiter;
#[cfg(test)]
mod limiter_tests;
#[cfg(test)]
mod loom_tests;
mod mailbox;
mod messages;
mod metrics;
mod monotonic_time;
mod panic;
mod policy;
mod record;
mod runtime;
mod shard;
mod shard_runtime;
mod slab;
pub mod source;
mod span;
mod subscription;
mod sync;
mod task_executor;
mod thread_executor;
mod worker;

pub use assignments::LaneStatus;
pub use bounds::Bounds;
pub use builder::{NoSource, SubscriptionBuilder};
pub use completion::Completion;
pub use counters::{LatencyHistogram, SubscriptionCounters};
pub use dead_letter::{DeadLetter, DeadLetterQueue, SendFuture};
pub use delivery::{Batch, Delivery};
pub use error::{BuildError, RunError};
pub use failure::{ExhaustedAction, FailureCause, OverdueAction, RecordFailure, RecordRetryPolicy};
pub use handle::SubscriptionHandle;
pub use interceptor::Interceptor;
pub use metrics::{HotKey, SubscriptionMetrics};
pub use policy::{KeylessOrder, Quota};
pub use record::{Epoch, Header, Lane, Position, Record};
pub use runtime::{AsyncTasks, BlockingThreads};
pub use source::{LaneCommit, PollLimit, Source, SourceEvent};
pub use subscription::Subscription;
