//! Moments to come, however far: times of a caller's are not trusted to be short.

use std::time::{Duration, Instant};

/// A hundred years: for ever, as far as a program is concerned, and within what an [`Instant`] can name.
const EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A time, `EVER` at most.
pub(crate) fn bounded(time: Duration) -> Duration {
    time.min(EVER)
}

/// So much later.
pub(crate) fn after(moment: Instant, time: Duration) -> Instant {
    moment + bounded(time)
}
