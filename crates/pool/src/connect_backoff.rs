//! When the next connect may start, after one has failed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate_backoff::Backoff;

/// Consecutive connect failures of a pool, and the pause that they cause.
pub(crate) struct ConnectBackoff<E> {
    failures: u32,
    retry_at: Option<Instant>,
    refusal: Option<Refusal>,
    last_error: Option<Arc<E>>,
    random: fastrand::Rng,
}

/// Set when the last failure was a refusal, whose cause may end at any time.
#[derive(Clone, Copy)]
struct Refusal {
    at: Instant,
    /// When a connect may start for clients that an open connection can serve too.
    retry_at: Instant,
}

/// Why a connection would be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectDemand {
    /// No client: [`Limits::min`](crate::Limits::min).
    Minimum,
    /// A waiting client, while no connection is open.
    OnlyChance,
    /// A waiting client that an open connection can serve later.
    BesideOpen,
}

/// The shortest pause. A failed connect is never retried within one instant: waiting clients get the error first, and a
/// host that refuses synchronously is not retried in a loop within one call.
const PAUSE_MIN: Duration = Duration::from_nanos(1);

/// The longest pause of waiting clients after a refusal: its cause may have ended, and one connect per second costs little.
const REFUSAL_PAUSE_MAX: Duration = Duration::from_secs(1);

impl<E> ConnectBackoff<E> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { failures: 0, retry_at: None, refusal: None, last_error: None, random: fastrand::Rng::with_seed(seed) }
    }

    /// Records a failed connect and starts a pause. Connects that fail during a pause count as one failure with the first.
    /// Without an error, clients wait for the next connect.
    pub(crate) fn failed(&mut self, now: Instant, error: Option<Arc<E>>, backoff: Backoff) {
        self.last_error = error;
        self.refusal = None;
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let pause = backoff.delay(self.failures, self.random.f64());
        self.retry_at = Some(now + pause.max(PAUSE_MIN));
    }

    /// Records a refused connect. It is retried after the shortest pause for a client that no open connection can serve, after
    /// `backoff.first` but at most a second for other clients, and without a client after the pause of
    /// [`failed`](Self::failed).
    pub(crate) fn refused(&mut self, now: Instant, error: Option<Arc<E>>, backoff: Backoff) {
        self.failed(now, error, backoff);
        self.refusal = Some(Refusal { at: now, retry_at: now + backoff.first.clamp(PAUSE_MIN, REFUSAL_PAUSE_MAX) });
    }

    /// Ends the pause: a connect succeeded, or an operator asked for a retry.
    pub(crate) fn reset(&mut self) {
        (self.failures, self.retry_at, self.refusal, self.last_error) = (0, None, None, None);
    }

    pub(crate) fn is_pausing(&self, now: Instant, demand: ConnectDemand) -> bool {
        let retry_at = match (self.refusal, demand) {
            (Some(refusal), ConnectDemand::OnlyChance) => Some(refusal.at + PAUSE_MIN),
            (Some(refusal), ConnectDemand::BesideOpen) => Some(refusal.retry_at),
            (_, ConnectDemand::Minimum) | (None, _) => self.retry_at,
        };
        retry_at.is_some_and(|retry_at| now < retry_at)
    }

    pub(crate) fn last_error(&self) -> Option<Arc<E>> {
        self.last_error.clone()
    }

    /// Returns a random number from 0 to 1.
    pub(crate) fn random(&mut self) -> f64 {
        self.random.f64()
    }
}
