//! State that the shards of one scope share: path, observer, limit, restart budget, and waiters for an empty scope.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::limit::Limit;
use crate::restart::{OverBudget, ScopeBudget};
use crate::sync::{Mutex, lock};
use crate::{Exit, Observe};

/// A tree of scopes.
pub(crate) trait StopTree: Send + Sync {
    /// Closes the tree and signals all its children to stop, synchronously on this thread.
    fn stop_tree(self: Arc<Self>);
}

pub(crate) struct Hub {
    pub(crate) path: Arc<str>,
    pub(crate) observer: Option<Arc<dyn Observe>>,
    pub(crate) limit: Option<Limit>,
    pub(crate) restarts: Option<ScopeBudget>,
    /// Node of the scope, for a restart that exceeds the budget and stops the scope.
    pub(crate) node: OnceLock<Weak<dyn StopTree>>,
    waiting: Mutex<Vec<Waker>>,
}

impl Hub {
    pub(crate) fn new(path: Arc<str>, observer: Option<Arc<dyn Observe>>) -> Self {
        let (node, waiting) = (OnceLock::new(), Mutex::new(Vec::new()));
        Self { path, observer, limit: None, restarts: None, node, waiting }
    }

    /// Returns how long a restart must wait for the scope's budget; `None` if the budget does not admit it.
    pub(crate) fn restart_turn(&self, now: Instant) -> Option<Duration> {
        let Some(restarts) = &self.restarts else { return Some(Duration::ZERO) };
        let turn = restarts.admit(now);
        if turn.is_none()
            && restarts.over_budget == OverBudget::StopScope
            && let Some(node) = self.node.get().and_then(Weak::upgrade)
        {
            node.stop_tree();
        }
        turn
    }

    pub(crate) fn observe(&self, notify: impl FnOnce(&dyn Observe, &str)) {
        if let Some(observer) = &self.observer {
            // A panic of an observer must affect neither the child's accounting nor the caller's thread.
            let _ = catch_unwind(AssertUnwindSafe(|| notify(observer.as_ref(), &self.path)));
        }
    }

    pub(crate) fn observe_exit(&self, exit: Exit, panic: Option<&str>) {
        self.observe(|observer, scope| observer.exited(scope, exit, panic));
    }

    /// Wakes `waker` when a shard that accepts no more children loses its last child.
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
