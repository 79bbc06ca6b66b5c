//! Restarts of one operation: when the next one is due, and whether there is one.

use std::time::{Duration, Instant};

use crate::{Backoff, Budget, TokenBucket};

/// When an operation that ended is started again, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct RetryPolicy {
    /// Delay before each attempt.
    pub backoff: Backoff,
    /// Limit on the number of attempts.
    pub budget: Budget,
    /// A run of at least this duration resets the number of consecutive failures. `None` means [`Backoff::max`].
    pub reset_after: Option<Duration>,
}

impl RetryPolicy {
    /// Resets after a run of [`Backoff::max`].
    pub const fn new(backoff: Backoff, budget: Budget) -> Self {
        Self { backoff, budget, reset_after: None }
    }

    /// Returns the state of an operation that has not failed yet.
    pub fn start(&self) -> RetryState {
        RetryState { bucket: self.budget.bucket(), failures: 0 }
    }
}

/// Attempts of one operation under a [`RetryPolicy`].
#[derive(Clone, Copy, Debug)]
pub struct RetryState {
    bucket: TokenBucket,
    failures: u32,
}

impl RetryState {
    /// Returns the delay before the next attempt of an operation that ran for `ran` and ended at `now`; `None` if the
    /// budget is used up. `policy` must be the policy that [started](RetryPolicy::start) this state. `random` is from 0
    /// (shortest delay) to 1 (longest).
    pub fn next_delay(&mut self, policy: &RetryPolicy, now: Instant, ran: Duration, random: f64) -> Option<Duration> {
        if ran >= policy.reset_after.unwrap_or(policy.backoff.max) {
            self.failures = 0;
        }
        self.bucket.try_take(now).ok()?;
        self.failures = self.failures.saturating_add(1);
        Some(policy.backoff.delay(self.failures, random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_grow_until_a_long_run_resets_them() {
        let backoff = Backoff::new(SECOND, 8 * SECOND);
        let policy = RetryPolicy { reset_after: Some(3 * SECOND), ..RetryPolicy::new(backoff, Budget::unlimited()) };
        let (mut state, now) = (policy.start(), Instant::now());
        let runs = [0, 0, 2, 3, 0].map(|seconds| seconds * SECOND);
        let delays = runs.map(|ran| state.next_delay(&policy, now, ran, 1.0).map(|delay| delay.as_secs()));
        assert_eq!(delays, [1, 2, 4, 1, 2].map(Some));
    }

    #[test]
    fn run_as_long_as_max_resets_by_default() {
        let policy = RetryPolicy::new(Backoff::new(SECOND, 8 * SECOND), Budget::unlimited());
        let (mut state, now) = (policy.start(), Instant::now());
        let runs = [0, 7, 8].map(|seconds| seconds * SECOND);
        let delays = runs.map(|ran| state.next_delay(&policy, now, ran, 1.0).map(|delay| delay.as_secs()));
        assert_eq!(delays, [1, 2, 1].map(Some));
    }

    #[test]
    fn exhausted_budget_ends_the_retries() {
        let policy = RetryPolicy::new(Backoff::none(), Budget::new(2, 10 * SECOND));
        let (mut state, now) = (policy.start(), Instant::now());
        let delays = [(); 3].map(|()| state.next_delay(&policy, now, Duration::ZERO, 1.0));
        assert_eq!(delays, [Some(Duration::ZERO), Some(Duration::ZERO), None]);
        assert!(state.next_delay(&policy, now + 5 * SECOND, Duration::ZERO, 1.0).is_some());
    }
}
