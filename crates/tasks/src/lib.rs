//! The tree of tasks: by what names its children go, and what is done when one fails.
//!
//! ```text
//! tidegate                  phase
//! ├── clients/N             0      clients of thread N, by their ids
//! ├── chores-N              0      logins, resets, cancel requests, deliveries and probes of thread N
//! ├── listen                0      who accepts on which thread, and who waits for a process that takes over
//! ├── metrics, /scrapes     0      who answers GET /metrics, and each connection there
//! ├── look-ups              0      name look-ups, and work that may block
//! ├── hosts-DATABASE        0      who decides which server is which; below it one for each name that is followed
//! ├── streams               0      streams, by their names
//! ├── control               1      what the control plane does again and again
//! ├── sweeps                1      the timers of the threads
//! └── servers               2      server connections of all pools, leased or idle, by their ids
//! ```
//!
//! A lower phase ends first, so whoever may give a server connection back has done so before those are waited for.

use std::{fmt::Debug, sync::Arc, time::Duration};

use tidegate_supervise::{Backoff, Budget, Exit, Observe, Restart, RestartPolicy, Scope, ScopeBuilder};

/// What the control plane does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Reads the counters once per period.
    Averages,
    /// Looks names up again.
    Names,
    /// Closes the pools when the process ends.
    Pools,
    /// Forgets databases that nobody uses.
    Unused,
    /// Forgets pools that are empty, if there are many.
    Empty,
}

/// Who takes newcomers in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ear {
    /// Clients, on this thread.
    Clients {
        /// The thread.
        thread: usize,
        /// The place of the listener in the configuration, from 0.
        listener: usize,
    },
    /// A process that takes over.
    Successor,
}

/// A name that is followed, or a server that stands for itself: an entry in the list of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Followed {
    /// Its place in the list.
    pub entry: usize,
    /// As it is written there.
    pub host: String,
}

/// Work that was handed to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// What it is about.
    pub what: String,
    /// Tells it from others about the same.
    pub number: u64,
}

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// For tasks without which the gateway is not whole: started again for as long as it runs, ever more slowly if they go on
/// failing.
#[must_use]
pub fn kept(restart: Restart) -> RestartPolicy {
    RestartPolicy::new(restart).budget(Budget::unlimited()).backoff(Backoff::new(FIRST_WAIT, LONGEST_WAIT))
}

/// A scope of the control plane: what fails there is logged. Those of clients and servers have no observer, since a start
/// and an end there is to cost as little as it can.
pub fn control(parent: &Scope, name: &str) -> ScopeBuilder {
    parent.child_builder(name).observer(Arc::new(Chronicle))
}

/// Tells the log of tasks that fail.
struct Chronicle;

impl Observe for Chronicle {
    fn exited(&self, scope: &str, exit: Exit, panic: Option<&str>) {
        if exit == Exit::Panicked {
            tracing::error!(scope, panic, "a task panicked");
        }
    }

    fn restarting(&self, scope: &str, key: &dyn Debug, exit: Exit, panic: Option<&str>, wait: Duration) {
        tracing::error!(scope, task = ?key, %exit, panic, again_in = ?wait, "a task failed, and is started again");
    }

    fn gave_up(&self, scope: &str, key: &dyn Debug, exit: Exit) {
        tracing::error!(scope, task = ?key, %exit, "a task failed too often, and is not started again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tidegate_supervise::{Class, Ctx, Tokio};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_started_again_however_often_it_fails() {
        const FAILURES: u32 = 100;
        let root: Scope = Scope::root("tidegate");
        let scope = control(&root, "listen").build::<Ear>();
        let (started, mut starts) = mpsc::unbounded_channel();
        let lives = AtomicU32::new(0);
        let class = Class::new(kept(Restart::Transient), move |_: &Ear, ctx: Ctx| {
            let life = lives.fetch_add(1, Ordering::Relaxed) + 1;
            started.send((life, tokio::time::Instant::now())).unwrap();
            async move {
                assert!(life > FAILURES, "life {life} ends");
                ctx.cancelled().await;
            }
        });
        scope.on(Tokio::current()).spawn_kept(Ear::Successor, &class).unwrap();
        let mut before = None;
        for expected in 1..=FAILURES + 1 {
            let (life, at) = starts.recv().await.unwrap();
            assert_eq!(life, expected);
            let waited = before.replace(at).map_or(Duration::ZERO, |before| at - before);
            assert!(
                waited <= LONGEST_WAIT + Duration::from_millis(1),
                "life {life} began {waited:?} after the one before"
            );
        }
        assert_eq!(scope.counts().restarts, u64::from(FAILURES));
        let report = root.stop(tokio::time::sleep, Duration::from_secs(60), Duration::ZERO).await;
        assert!(report.left == 0 && report.stuck.is_empty(), "{report}");
    }
}
