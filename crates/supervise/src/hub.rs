//! What the shards of one scope share: its name, who observes it, its limit, and who waits for it to be empty.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::limit::Limit;
use crate::node::Node;
use crate::restart::{OverBudget, ScopeBudget};
use crate::stop;
use crate::sync::{Mutex, lock};
use crate::{Exit, Observe};

pub(crate) struct Hub {
    pub(crate) path: Arc<str>,
    pub(crate) observer: Option<Arc<dyn Observe>>,
    pub(crate) limit: Option<Limit>,
    pub(crate) restarts: Option<ScopeBudget>,
    /// The scope itself, for a child whose restarts are too many for it.
    pub(crate) node: OnceLock<Weak<Node>>,
    waiting: Mutex<Vec<Waker>>,
}

impl Hub {
    pub(crate) fn new(path: Arc<str>, observer: Option<Arc<dyn Observe>>) -> Self {
        let (node, waiting) = (OnceLock::new(), Mutex::new(Vec::new()));
        Self { path, observer, limit: None, restarts: None, node, waiting }
    }

    /// How long a restart has to wait for its scope; `None` if the scope's budget allows no more.
    pub(crate) fn restart_turn(&self, now: Instant) -> Option<Duration> {
        let Some(restarts) = &self.restarts else { return Some(Duration::ZERO) };
        let turn = restarts.admit(now);
        if turn.is_none()
            && restarts.over_budget == OverBudget::StopScope
            && let Some(node) = self.node.get().and_then(Weak::upgrade)
        {
            stop::tell(&node);
        }
        turn
    }

    pub(crate) fn observe(&self, tell: impl FnOnce(&dyn Observe, &str)) {
        if let Some(observer) = &self.observer {
            // An observer's panic must cost neither the child its accounting nor the caller its thread.
            let _ = catch_unwind(AssertUnwindSafe(|| tell(observer.as_ref(), &self.path)));
        }
    }

    pub(crate) fn observe_exit(&self, exit: Exit, panic: Option<&str>) {
        self.observe(|observer, scope| observer.exited(scope, exit, panic));
    }

    /// Wakes `waker` when a shard that takes no more children loses its last one.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    pub(crate) fn shard_emptied(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waker in waiting {
            waker.wake();
        }
    }
}
