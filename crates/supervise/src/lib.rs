//! A named tree of tasks: start, restart, drain, stop by a deadline.
//!
//! # The problem
//!
//! A service that holds a task for every client has to know its tasks by name, start again what fails, and on the day of
//! a deploy stop all of them, each with its own clean-up, by a deadline. Done with one list, one lock or one process,
//! that last step is where services hang: a published account needed ten minutes for 200,000 tasks. Done with a tree of
//! cancellation tokens, every check of "must I stop?" costs a lock all year round.
//!
//! # The contract
//!
//! - A [`Scope`] is a named set of children; scopes form a tree. A child is a future in a [`Supervised`] wrapper, which
//!   its owner spawns on any executor; it need not be `Send`. [`Scope::on`] gives a [`Supervisor`] that spawns for you,
//!   on `Tokio` or `Compio` (features `tokio` and `compio`) or whatever implements [`Spawn`] and [`Timer`].
//! - A child gets a [`Ctx`]. [`Ctx::cancelled`] resolves when the child is to stop; to ask costs two loads of the child's
//!   own cache line: no lock, no shared write.
//! - **Every started child ends exactly once**, in one of the ways of [`Exit`]: it returned, failed, panicked, was aborted,
//!   or was dropped by its executor. At rest, `started` is the sum of the exits. A panic ends one child.
//! - A key names at most one living child of its scope, from before its first poll until after its exit was observed.
//! - [`Scope::stop`] refuses new children, tells all, lets each run its clean-up, aborts what is left after the grace, and
//!   returns a [`Report`] that names whoever still does not end. Scopes stop before the scope above them, lower phases
//!   before higher ones. There is one timer for the grace and one for the abort. A spawn that races a stop is refused or
//!   told: never lost.
//! - A child of a [`Class`] is started again after it ends, within its own [`Budget`] and that of its scope; members of a
//!   [`Group`] stand and fall together.
//!
//! What it cannot do: end a child that blocks its thread. Rust has no way to take a thread away from a poll that does not
//! return, so such a child is reported as [`Stuck`].
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
//!         // ... serve, until:
//!         ctx.cancelled().await;
//!         // ... say goodbye.
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
//! # Beside what tokio has
//!
//! `JoinSet` keeps the results of its tasks until they are joined, and aborts them when it is dropped: the right thing for
//! a handful whose results you collect. `TaskTracker` with a `CancellationToken` waits for any number and costs a lock for
//! every question whether to stop. Neither has deadlines, a report of who is left, restarts, limits or keys. This crate has
//! no set of results to iterate: a child's result is in the handle that the runtime gives, or is sent by the child.
//!
//! # How many shards
//!
//! Children live in shards, each with its own short lock. There are four for every core, whatever the number of
//! children, unless the environment variable [`SHARDS_VARIABLE`] or [`ScopeBuilder::shards`] says otherwise. The published
//! rule of one part for every 4,000 children had another reason: that supervisor scanned its mailbox once for every child
//! it stopped, so a part's cost grew with the square of its children, and 4,000 is about where a mailbox falls out of the
//! second-level cache. Here nothing is scanned: a stop walks each slot once, and the number of shards only decides how
//! many spawns and exits can happen at the same moment.

#[cfg(feature = "tokio")]
mod bell;
#[cfg(feature = "tokio")]
mod bundle;
mod child;
mod clock;
#[cfg(feature = "compio")]
mod compio;
mod error;
mod exit;
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
mod supervisor;
mod sync;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "tokio")]
pub use bundle::Bundled;
pub use child::{Cancelled, Child, Ctx, Ended, Held, Supervised, UntilCancelled};
#[cfg(feature = "compio")]
pub use compio::Compio;
pub use error::Refused;
pub use exit::{Completion, Exit, Exits};
pub use group::{Group, GroupEnd, Strategy};
pub use observe::Observe;
pub use restart::{OverBudget, Restart, RestartPolicy};
pub use restarting::{Class, Kept};
pub use runtime::{Spawn, Timer};
pub use scope::{Key, Permit, Presence, SHARDS_VARIABLE, Scope, ScopeBuilder, Unkeyed};
pub use shard::{ChildInfo, Counts};
pub use stop::{Report, Stuck, Sweep};
pub use supervisor::Supervisor;
pub use tidegate_backoff::{Backoff, Budget, Jitter, RetryPolicy};
#[cfg(feature = "tokio")]
pub use tokio::{Tokio, TokioSleep};
