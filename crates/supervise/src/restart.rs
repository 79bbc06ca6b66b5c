//! When a child that ended is started again: the policy of one child, and the restart budget of a scope.

use std::time::{Duration, Instant};

use tidegate_backoff::{Backoff, Budget, RetryPolicy, TokenBucket};

use crate::Exit;
use crate::sync::{Mutex, lock};

/// After which exits a child is started again. A child that was stopped or aborted is never started again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Restart {
    /// After every exit.
    #[default]
    Permanent,
    /// After a failure or a panic.
    Transient,
    /// Never.
    Temporary,
}

impl Restart {
    /// Returns whether a child that ended in `exit` is started again.
    pub fn applies_to(self, exit: Exit) -> bool {
        match (self, exit) {
            (_, Exit::Aborted | Exit::Dropped) | (Self::Temporary, _) => false,
            (Self::Permanent, _) => true,
            (Self::Transient, exit) => exit != Exit::Returned,
        }
    }
}

/// When and how often a child is started again.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct RestartPolicy {
    /// After which exits.
    pub restart: Restart,
    /// Delays and restart budget of each child.
    pub retry: RetryPolicy,
}

impl RestartPolicy {
    /// `restart` with the default budget and backoff.
    pub fn new(restart: Restart) -> Self {
        Self { restart, ..Self::default() }
    }

    /// Sets the restart budget of each child.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.retry.budget = budget;
        self
    }

    /// Sets the delay before each restart.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.retry.backoff = backoff;
        self
    }

    /// Sets how long a child must run for its next restart to begin again at the first delay; [`Backoff::max`] by default.
    #[must_use]
    pub fn reset_after(mut self, ran: Duration) -> Self {
        self.retry.reset_after = Some(ran);
        self
    }
}

/// Action of a scope on a restart that exceeds its own restart budget.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum OverBudget {
    /// The restart waits until the budget admits it: the budget limits the rate of restarts.
    #[default]
    Wait,
    /// The child is not started again.
    GiveUp,
    /// The child is not started again, and the scope with all scopes below it is stopped.
    StopScope,
}

/// Restart budget of a scope, shared by all its shards.
pub(crate) struct ScopeBudget {
    bucket: Mutex<TokenBucket>,
    pub(crate) over_budget: OverBudget,
}

impl ScopeBudget {
    pub(crate) fn new(budget: Budget, over_budget: OverBudget) -> Self {
        Self { bucket: Mutex::new(budget.bucket()), over_budget }
    }

    /// Returns how long a restart must wait; `None` if the budget does not admit it.
    pub(crate) fn admit(&self, now: Instant) -> Option<Duration> {
        let mut bucket = lock(&self.bucket);
        match self.over_budget {
            OverBudget::Wait => bucket.reserve(now),
            OverBudget::GiveUp | OverBudget::StopScope => bucket.try_take(now).ok().map(|()| Duration::ZERO),
        }
    }
}
