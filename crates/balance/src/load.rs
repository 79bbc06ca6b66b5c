//! What is going on at an endpoint: who holds it, how long its answers take, how many failed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::latency::Latency;
use crate::slot::Slot;

/// The counters of one endpoint. They belong to the endpoint and not to a snapshot, so updates do not lose them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Load {
    pub(crate) slot: Slot,
    pub(crate) latency: Latency,
    reported: AtomicU32,
    successes: AtomicU32,
    failures: AtomicU32,
    /// Failures since the last success.
    streak: AtomicU32,
    epoch: Instant,
    decay: Duration,
}

/// Answers since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) successes: u32,
    pub(crate) failures: u32,
}

impl Load {
    pub(crate) fn new(epoch: Instant, decay: Duration) -> Self {
        Self {
            slot: Slot::new(),
            latency: Latency::new(),
            reported: AtomicU32::new(0),
            successes: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            epoch,
            decay,
        }
    }

    /// Leases that are held now.
    pub fn in_flight(&self) -> u32 {
        self.slot.holders()
    }

    /// Sets what the owner knows of load beyond the leases of this balancer, for instance the busy connections of a
    /// pool. Least request and peak EWMA add it to [`in_flight`](Self::in_flight).
    pub fn report(&self, load: u32) {
        self.reported.store(load, Ordering::Relaxed);
    }

    /// Leases that are held, and what was [reported](Self::report).
    pub fn outstanding(&self) -> u32 {
        self.in_flight().saturating_add(self.reported.load(Ordering::Relaxed))
    }

    /// The moving peak of the answers' time, in microseconds, as of `now` (or as of the last answer); zero before the
    /// first answer. Each failure doubles it.
    pub fn latency_us(&self, now: Option<Instant>) -> f32 {
        self.latency.cost_us(now.map(|now| self.millis(now)), self.decay)
    }

    fn millis(&self, now: Instant) -> u32 {
        // Wraps on purpose: `Latency` compares differences.
        now.saturating_duration_since(self.epoch).as_millis() as u32
    }

    pub(crate) fn succeeded(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// The length of the run of failures, this one included.
    pub(crate) fn failed(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.streak.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    pub(crate) fn answered(&self, began: Instant, now: Instant, well: bool) {
        let took = now.saturating_duration_since(began);
        if well {
            self.latency.observe(self.millis(now), took, self.decay);
        } else {
            self.latency.penalise(self.millis(now), took, self.decay);
        }
    }

    /// Takes the counts of an interval, and starts the next.
    pub(crate) fn take_volume(&self) -> Volume {
        Volume {
            successes: self.successes.swap(0, Ordering::Relaxed),
            failures: self.failures.swap(0, Ordering::Relaxed),
        }
    }

    pub(crate) fn forgive(&self) {
        self.streak.store(0, Ordering::Relaxed);
    }
}
