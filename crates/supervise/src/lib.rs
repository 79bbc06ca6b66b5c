//! A named tree of supervised tasks: start, restart, drain, and stop by a deadline.
//!
//! # The problem
//!
//! A service with one task per client must identify each task, restart failed tasks, and stop all of them on deploy by a
//! deadline, each with its own cleanup. With a single list, lock or supervisor process, the stop is where services hang: one
//! published report measured ten minutes for 200,000 tasks. With a tree of cancellation tokens, every check for cancellation
//! takes a lock.
//!
//! # The contract
//!
//! - A [`Scope`] is a named set of children; scopes form a tree. A child is a future in a [`Supervised`] wrapper. The caller
//!   spawns the wrapper on any executor; the future need not be `Send`. [`Scope::on`] returns a [`Supervisor`] that spawns
//!   children on `Tokio` or `Compio` (features `tokio` and `compio`) or any type that implements [`Spawn`] and [`Timer`].
//! - A child gets a [`Ctx`]. [`Ctx::cancelled`] resolves when the child must stop. A check costs two loads of the child's own
//!   cache line: no lock, no shared write.
//! - **Every started child ends exactly once**, in one of the ways of [`Exit`]: returned, failed, panicked, aborted, or
//!   dropped by its executor. When no child runs, `started` equals the sum of the exits. A panic ends one child only.
//! - A key identifies at most one live child of its scope, from before its first poll until after its exit was observed.
//! - [`Scope::stop`] refuses new children, signals all children, waits for their cleanup, aborts the remaining children after
//!   the grace period, and returns a [`Report`] that lists children that still run. Scopes stop before their parent scope,
//!   lower phases before higher ones. One timer covers the grace period and one the abort. A spawn that races a stop is
//!   refused or signalled, never lost.
//! - A child of a [`ChildClass`] restarts after it ends, within its own [`Budget`] and that of its scope. Members of a [`Group`]
//!   restart together.
//!
//! Limitation: a child that blocks its thread cannot be ended. Rust cannot interrupt a poll that does not return, so such a
//! child is reported as [`Stuck`].
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use tidegate_supervise::Scope;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let root = Scope::root::<&str>("service");
//! let clients = root.child::<u64>("clients");
//!
//! for id in 0..1000 {
//!     let client = clients.wrap_as(id, |ctx| async move {
//!         // Serve until the scope stops.
//!         ctx.cancelled().await;
//!         // Run the cleanup.
//!     })?;
//!     tokio::spawn(client);
//! }
//! assert!(clients.get(&7).is_some());
//!
//! let report = root.stop(tokio::time::sleep, Duration::from_secs(5), Duration::from_secs(1)).await;
//! assert_eq!((report.clean(), report.left), (1000, 0));
//! # Ok(())
//! # }
//! ```
//!
//! # Comparison with tokio
//!
//! `JoinSet` keeps the results of its tasks until they are joined and aborts its tasks on drop: choose it for a few tasks
//! whose results are collected. `TaskTracker` with a `CancellationToken` waits for any number of tasks and takes a lock for
//! every check for cancellation. Neither has deadlines, a report of remaining tasks, restarts, limits or keys. This crate has
//! no set of results to iterate: a child's result is in the handle that the runtime returns, or the child sends it.
//!
//! # Number of shards
//!
//! Children are distributed over shards, each with its own short lock. The default is four shards per core, independent of
//! the number of children; the environment variable [`SHARDS_VARIABLE`] or [`ScopeBuilder::shards`] overrides it. The
//! published rule of one partition per 4,000 children has another reason: that supervisor scans its mailbox once per stopped
//! child, so a partition's cost grows with the square of its children, and at about 4,000 children a mailbox exceeds the
//! second-level cache. This crate scans nothing: a stop visits each slot once, and the number of shards only limits how many
//! spawns and exits run concurrently.

#[cfg(feature = "tokio")]
mod bundle;
mod child;
mod clock;
#[cfg(feature = "compio")]
mod compio;
#[cfg(feature = "tokio")]
mod deadline;
mod error;
mod exit;
mod exit_watch;
mod group;
mod hub;
mod limit;
mod node;
mod observe;
mod restart;
mod restarting;
mod runtime;
mod scope;
mod shard;
mod slot;
mod span;
mod stop;
mod stuck;
mod supervisor;
mod sync;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "tokio")]
pub use bundle::Bundled;
pub use child::{Cancelled, Child, Ctx, Ended, HeldChild, Supervised, UntilCancelled};
#[cfg(feature = "compio")]
pub use compio::Compio;
pub use error::Refused;
pub use exit::{ChildOutput, Exit, Exits};
pub use group::{Group, GroupEnd, Strategy};
pub use observe::Observe;
pub use restart::{OverBudget, Restart, RestartPolicy};
pub use restarting::{ChildClass, RestartLoop};
pub use runtime::{Spawn, Timer};
pub use scope::{Key, Permit, SHARDS_VARIABLE, Scope, ScopeBuilder, SpawnOutcome, Unkeyed};
pub use shard::{ChildInfo, Counts};
pub use stop::{Report, Sweep};
pub use stuck::Stuck;
pub use supervisor::Supervisor;
pub use tidegate_backoff::{Backoff, Budget, Jitter, RetryPolicy};
#[cfg(feature = "tokio")]
pub use tokio::{Tokio, TokioSleep};
