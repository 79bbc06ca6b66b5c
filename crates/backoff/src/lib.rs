//! Retry delays: exponential backoff with jitter, and a token bucket that limits the number of retries.
//!
//! # Problem
//!
//! Clients that retry a failed server at a fixed interval, or all at the same moment, keep the server overloaded.
//! Each retry loop therefore needs a delay that grows, a random part that spreads clients, and a limit on the number of
//! attempts. Retry loops that also read a clock and a random source cannot be tested exactly.
//!
//! # Contract
//!
//! - **Pure.** No function reads a clock, draws a random number, sleeps or allocates. `now` is an [`Instant`] and `random`
//!   is a number from 0 to 1; both are arguments.
//! - **Bounded.** A delay never exceeds [`Backoff::max`] (plus [`Jitter::Around`]), for any input, NaN and infinity
//!   included. No function panics, and no addition of times overflows ([`instant_after`]).
//! - **Limited.** A [`TokenBucket`] admits at most twice its [`Budget`] in any period.
//!
//! [`Instant`]: std::time::Instant
//!
//! # Example
//!
//! ```
//! use std::time::{Duration, Instant};
//! use tidegate_backoff::{Backoff, Budget, RetryPolicy};
//!
//! // 100 ms, 200 ms, 400 ms ... 30 s, each shortened at random by up to a half; five restarts a minute.
//! let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
//! let policy = RetryPolicy::new(backoff, Budget::new(5, Duration::from_secs(60)));
//! let mut retries = policy.start();
//!
//! // The operation ran for 2 ms and failed.
//! let (now, ran, random) = (Instant::now(), Duration::from_millis(2), 1.0);
//! assert_eq!(retries.next_delay(&policy, now, ran, random), Some(Duration::from_millis(100)));
//! assert_eq!(retries.next_delay(&policy, now, ran, random), Some(Duration::from_millis(200)));
//! ```

mod backoff;
mod budget;
mod retry;
mod time;

pub use self::{
    backoff::{Backoff, Jitter},
    budget::{Budget, TokenBucket},
    retry::{RetryPolicy, RetryState},
    time::{DURATION_MAX, instant_after},
};
