//! Counters of an endpoint: leases, latency, failures.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::in_flight::InFlightCount;
use crate::latency::LatencyAverage;

/// Counters of one endpoint. They belong to the endpoint and not to a snapshot, so they survive updates.
#[derive(Debug)]
#[repr(align(128))]
pub struct EndpointLoad {
    pub(crate) in_flight: InFlightCount,
    pub(crate) latency: LatencyAverage,
    reported: AtomicU32,
    successes: AtomicU32,
    failures: AtomicU32,
    /// Failures since the last success.
    streak: AtomicU32,
    epoch: Instant,
    decay: Duration,
}

/// Number of answers in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallVolume {
    pub(crate) successes: u32,
    pub(crate) failures: u32,
}

impl EndpointLoad {
    pub(crate) fn new(epoch: Instant, decay: Duration) -> Self {
        Self {
            in_flight: InFlightCount::new(),
            latency: LatencyAverage::new(),
            reported: AtomicU32::new(0),
            successes: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            epoch,
            decay,
        }
    }

    /// Number of leases.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// Sets load beyond the leases of this balancer, for example the busy connections of a pool.
    /// [`LeastRequest`](crate::LeastRequest) and [`PeakEwma`](crate::PeakEwma) add it to [`in_flight`](Self::in_flight).
    pub fn set_reported(&self, load: u32) {
        self.reported.store(load, Ordering::Relaxed);
    }

    /// Number of leases plus the [reported](Self::set_reported) load.
    pub fn outstanding(&self) -> u32 {
        self.in_flight().saturating_add(self.reported.load(Ordering::Relaxed))
    }

    /// Peak EWMA of the latency in microseconds, as of `now`, or as of the last answer. Zero before the first answer; each
    /// failure doubles it.
    pub fn latency_us(&self, now: Option<Instant>) -> f32 {
        self.latency.cost_us(now.map(|now| self.millis(now)), self.decay)
    }

    fn millis(&self, now: Instant) -> u32 {
        // Truncated: `LatencyAverage` compares differences.
        now.saturating_duration_since(self.epoch).as_millis() as u32
    }

    pub(crate) fn succeeded(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure. Returns the number of consecutive failures, this one included.
    pub(crate) fn failed(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.streak.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    pub(crate) fn answered(&self, began: Instant, now: Instant, success: bool) {
        let took = now.saturating_duration_since(began);
        if success {
            self.latency.record(self.millis(now), took, self.decay);
        } else {
            self.latency.record_failure(self.millis(now), took, self.decay);
        }
    }

    /// Returns the counts of the interval, and starts the next interval.
    pub(crate) fn take_volume(&self) -> CallVolume {
        CallVolume {
            successes: self.successes.swap(0, Ordering::Relaxed),
            failures: self.failures.swap(0, Ordering::Relaxed),
        }
    }

    pub(crate) fn reset_streak(&self) {
        self.streak.store(0, Ordering::Relaxed);
    }
}
