//! Names and restart policies of the gateway's supervised tasks.
//!
//! Every task of the gateway is a child of a named scope of [`tidegate_supervise`], so that it is restarted, counted and stopped
//! by one rule. The keys below identify the tasks in `SHOW TASKS` and in the log. [`observed_scope`] logs failures;
//! [`unlimited_restarts`] is the policy of tasks that the gateway cannot do without.
//!
//! ```text
//! tidegate                  phase
//! ├── clients/N             0      clients of thread N, by id
//! ├── chores-N              0      logins, resets, cancel requests, deliveries and probes of thread N
//! ├── listen                0      accept tasks of each thread, and the hand-over socket
//! ├── metrics, /scrapes     0      accept tasks of GET /metrics, and their connections
//! ├── web, /connections     0      accept tasks of the web console, and its connections
//! ├── moves                 0      connections to the processes before and after this one
//! ├── look-ups              0      name look-ups, and blocking work
//! ├── hosts-DATABASE        0      the controller of a cluster, and its name resolution
//! ├── streams               0      streams, by name
//! ├── control               1      periodic tasks of the control plane
//! ├── sweeps                1      timers of the threads
//! └── servers               2      server connections of all pools, leased or idle, by id
//! ```
//!
//! Lower phases end first: tasks that may return a server connection have ended before the connections are awaited.
//!
//! ```
//! use tidegate_supervise::{Restart, Scope};
//! use tidegate_tasks::{ControlTask, observed_scope, unlimited_restarts};
//!
//! let root: Scope = Scope::root("tidegate");
//! let control = observed_scope(&root, "control").build::<ControlTask>();
//! let policy = unlimited_restarts(Restart::Permanent);
//! # let _ = (control, policy);
//! ```

use std::{fmt::Debug, sync::Arc, time::Duration};

use tidegate_supervise::{Backoff, Budget, Exit, Observe, Restart, RestartPolicy, Scope, ScopeBuilder};

/// Periodic tasks of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlTask {
    /// Reads the counters once per period.
    Averages,
    /// Resolves host names again.
    Names,
    /// Closes the pools when the process ends.
    Pools,
    /// Removes unused databases.
    Unused,
    /// Removes empty pools if there are many.
    Empty,
}

/// Key of a task that accepts connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenerKey {
    /// Accepts clients on this thread.
    Clients {
        /// The thread.
        thread: usize,
        /// Position of the listener in the configuration, starting at 0.
        listener: usize,
    },
    /// Accepts a process that takes over the listening sockets.
    Successor,
}

/// Key of a task that resolves an entry of a cluster's host list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FollowedName {
    /// Position in the list.
    pub entry: usize,
    /// The entry as written.
    pub host: String,
}

/// Key of work handed to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// Purpose of the work.
    pub what: String,
    /// Distinguishes work for the same purpose.
    pub number: u64,
}

const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Restart policy of tasks that the gateway cannot do without: unlimited restarts with exponential backoff.
#[must_use]
pub fn unlimited_restarts(restart: Restart) -> RestartPolicy {
    RestartPolicy::new(restart).budget(Budget::unlimited()).backoff(Backoff::new(WAIT_MIN, WAIT_MAX))
}

/// Builds a scope of the control plane whose failures are logged. Scopes of clients and servers have no observer, because their
/// starts and ends have to be cheap.
pub fn observed_scope(parent: &Scope, name: &str) -> ScopeBuilder {
    parent.child_builder(name).observer(Arc::new(FailureLog))
}

/// Logs failed tasks.
struct FailureLog;

impl Observe for FailureLog {
    fn exited(&self, scope: &str, exit: Exit, panic: Option<&str>) {
        if exit == Exit::Panicked {
            tracing::error!(scope, panic, "a task panicked");
        }
    }

    fn restarting(&self, scope: &str, key: &dyn Debug, exit: Exit, panic: Option<&str>, wait: Duration) {
        tracing::error!(scope, task = ?key, %exit, panic, again_in = ?wait, "task failed, restarting");
    }

    fn gave_up(&self, scope: &str, key: &dyn Debug, exit: Exit) {
        tracing::error!(scope, task = ?key, %exit, "task failed too often, not restarting");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tidegate_supervise::{ChildClass, Ctx, Tokio};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unlimited_restarts_never_give_up() {
        const FAILURES: u32 = 100;
        let root: Scope = Scope::root("tidegate");
        let scope = observed_scope(&root, "listen").build::<ListenerKey>();
        let (started, mut starts) = mpsc::unbounded_channel();
        let lives = AtomicU32::new(0);
        let class = ChildClass::new(unlimited_restarts(Restart::Transient), move |_: &ListenerKey, ctx: Ctx| {
            let life = lives.fetch_add(1, Ordering::Relaxed) + 1;
            started.send((life, tokio::time::Instant::now())).unwrap();
            async move {
                assert!(life > FAILURES, "life {life} ends");
                ctx.cancelled().await;
            }
        });
        scope.on(Tokio::current()).spawn_kept(ListenerKey::Successor, &class).unwrap();
        let mut before = None;
        for expected in 1..=FAILURES + 1 {
            let (life, at) = starts.recv().await.unwrap();
            assert_eq!(life, expected);
            let waited = before.replace(at).map_or(Duration::ZERO, |before| at - before);
            assert!(waited <= WAIT_MAX + Duration::from_millis(1), "life {life} began {waited:?} after the one before");
        }
        assert_eq!(scope.counts().restarts, u64::from(FAILURES));
        let report = root.stop(tokio::time::sleep, Duration::from_secs(60), Duration::ZERO).await;
        assert!(report.left == 0 && report.stuck.is_empty(), "{report}");
    }
}
