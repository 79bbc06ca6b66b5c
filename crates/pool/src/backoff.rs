//! When the next connect may be tried, after one has failed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The failures in a row, and until when nothing is tried because of them.
pub(crate) struct Backoff<E> {
    failures: u32,
    until: Option<Instant>,
    error: Option<Arc<E>>,
    random: fastrand::Rng,
}

impl<E> Backoff<E> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { failures: 0, until: None, error: None, random: fastrand::Rng::with_seed(seed) }
    }

    /// A connect failed; the next may be tried after a pause that doubles with each failure in a row. Connects that
    /// were under way together count as one failure. Without an error clients wait for the next.
    pub(crate) fn failed(&mut self, now: Instant, error: Option<Arc<E>>, start: Duration, max: Duration) {
        self.error = error;
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        let pause = start.saturating_mul(1 << self.failures.min(20)).min(max);
        self.failures += 1;
        // Between half and all of it, so that cores and pools do not knock in step.
        let pause = pause.mul_f64(0.5 + self.random.f64() / 2.0);
        // Never within the same moment: those who wait hear of it first, and a host that refuses at once is not asked again
        // and again in one call.
        self.until = Some(now + pause.max(Duration::from_nanos(1)));
    }

    /// A connect failed, and the next may be tried at the next moment.
    pub(crate) fn failed_for_now(&mut self, now: Instant, error: Option<Arc<E>>) {
        self.error = error;
        self.until = Some(now + Duration::from_nanos(1));
    }

    /// A connect succeeded, or an operator wants it tried at once.
    pub(crate) fn clear(&mut self) {
        (self.failures, self.until, self.error) = (0, None, None);
    }

    pub(crate) fn pausing(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    pub(crate) fn error(&self) -> Option<Arc<E>> {
        self.error.clone()
    }

    /// A random number from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.random.f64()
    }
}
