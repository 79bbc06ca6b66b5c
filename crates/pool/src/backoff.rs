//! When the next connect may be tried, after one has failed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The failures in a row, and until when nothing is tried because of them.
pub(crate) struct Backoff<E> {
    failures: u32,
    until: Option<Instant>,
    refusal: Option<Refusal>,
    error: Option<Arc<E>>,
    random: fastrand::Rng,
}

/// The last failure was a refusal, whose cause may be gone at any time.
#[derive(Clone, Copy)]
struct Refusal {
    at: Instant,
    /// Until when clients that may get another connection wait for it.
    until: Instant,
}

/// For whom a connection would be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seeker {
    /// For no client: to have some open ([`Limits::min`](crate::Limits::min)).
    Nobody,
    /// For a waiting client that no open connection can serve.
    Client,
    /// For a waiting client that an open connection can serve later.
    ClientBehindOthers,
}

/// The shortest pause.
const MOMENT: Duration = Duration::from_nanos(1);

/// The longest pause of waiting clients after a refusal: the cause may be gone, and one attempt a second costs little.
const REFUSAL_PAUSE_MAX: Duration = Duration::from_secs(1);

impl<E> Backoff<E> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { failures: 0, until: None, refusal: None, error: None, random: fastrand::Rng::with_seed(seed) }
    }

    /// A connect failed; the next may be tried after a pause that doubles with each failure in a row. Connects that
    /// were under way together count as one failure. Without an error clients wait for the next.
    pub(crate) fn failed(&mut self, now: Instant, error: Option<Arc<E>>, start: Duration, max: Duration) {
        self.error = error;
        self.refusal = None;
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        let pause = start.saturating_mul(1 << self.failures.min(20)).min(max);
        self.failures += 1;
        // Between half and all of it, so that cores and pools do not knock in step.
        let pause = pause.mul_f64(0.5 + self.random.f64() / 2.0);
        // Never within the same moment: those who wait hear of it first, and a host that refuses at once is not asked again
        // and again in one call.
        self.until = Some(now + pause.max(MOMENT));
    }

    /// A connect was refused: the next may be tried at the next moment for a client that no other connection can serve, after
    /// `start` but at most a second for other clients, and else as after [`failed`](Self::failed).
    pub(crate) fn refused(&mut self, now: Instant, error: Option<Arc<E>>, start: Duration, max: Duration) {
        self.failed(now, error, start, max);
        self.refusal = Some(Refusal { at: now, until: now + start.clamp(MOMENT, REFUSAL_PAUSE_MAX) });
    }

    /// A connect succeeded, or an operator wants it tried at once.
    pub(crate) fn clear(&mut self) {
        (self.failures, self.until, self.refusal, self.error) = (0, None, None, None);
    }

    pub(crate) fn pausing(&self, now: Instant, seeker: Seeker) -> bool {
        let until = match (self.refusal, seeker) {
            (Some(refusal), Seeker::Client) => Some(refusal.at + MOMENT),
            (Some(refusal), Seeker::ClientBehindOthers) => Some(refusal.until),
            (_, Seeker::Nobody) | (None, _) => self.until,
        };
        until.is_some_and(|until| now < until)
    }

    pub(crate) fn error(&self) -> Option<Arc<E>> {
        self.error.clone()
    }

    /// A random number from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.random.f64()
    }
}
