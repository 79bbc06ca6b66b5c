//! Latency of an endpoint: a moving average that follows a rise immediately and a fall slowly.
//!
//! Peak EWMA as in Twitter's Finagle: a sample above the average replaces it, a sample below moves it by `1 - e^(-dt/decay)`.
//! Cost in microseconds (f32) and time in milliseconds (u32, wraps after 49 days) share one word: an update is one
//! compare-and-swap, a read is one load. The reader applies the decay since the last update.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct LatencyAverage(AtomicU64);

/// Minimum cost of a failure.
const PENALTY_MIN_US: f32 = 1e3;
/// Maximum cost of any number of failures: one second.
const PENALTY_MAX_US: f32 = 1e6;

/// The average at a time.
#[derive(Clone, Copy)]
struct AverageAt {
    cost_us: f32,
    at_ms: u32,
}

impl AverageAt {
    fn pack(self) -> u64 {
        (u64::from(self.cost_us.to_bits()) << 32) | u64::from(self.at_ms)
    }

    fn unpack(word: u64) -> Self {
        Self { cost_us: f32::from_bits((word >> 32) as u32), at_ms: word as u32 }
    }

    /// The cost that remains at `now_ms`.
    fn decayed(self, now_ms: u32, decay: Duration) -> f32 {
        // A reader whose clock is slightly behind the writer's must see no time passed, not 49 days.
        let passed_ms = now_ms.wrapping_sub(self.at_ms);
        if passed_ms > u32::MAX / 2 || passed_ms == 0 {
            return self.cost_us;
        }
        self.cost_us * (-(passed_ms as f32) / (decay.as_millis().max(1) as f32)).exp()
    }
}

impl LatencyAverage {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds a sample.
    pub(crate) fn record(&self, now_ms: u32, took: Duration, decay: Duration) {
        let took_us = took.as_secs_f32() * 1e6;
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let before = AverageAt::unpack(word);
            let left = before.decayed(now_ms, decay);
            let share = if before.cost_us > 0.0 { left / before.cost_us } else { 0.0 };
            let cost_us = if took_us >= left { took_us } else { left + took_us * (1.0 - share) };
            Some(AverageAt { cost_us, at_ms: now_ms }.pack())
        });
    }

    /// Adds a failure, which doubles the cost. Its own duration does not count unless it is longer: an endpoint that fails fast
    /// would attract calls.
    pub(crate) fn record_failure(&self, now_ms: u32, took: Duration, decay: Duration) {
        let took_us = took.as_secs_f32() * 1e6;
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let left = AverageAt::unpack(word).decayed(now_ms, decay);
            let penalty = (left * 2.0).clamp(PENALTY_MIN_US, PENALTY_MAX_US);
            Some(AverageAt { cost_us: penalty.max(left).max(took_us), at_ms: now_ms }.pack())
        });
    }

    /// The cost as of `now_ms`, in microseconds; zero without samples.
    pub(crate) fn cost_us(&self, now_ms: Option<u32>, decay: Duration) -> f32 {
        let average = AverageAt::unpack(self.0.load(Ordering::Relaxed));
        now_ms.map_or(average.cost_us, |now_ms| average.decayed(now_ms, decay))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DECAY: Duration = Duration::from_secs(10);

    #[test]
    fn average_follows_a_peak_and_decays_slowly() {
        let latency = LatencyAverage::new();
        latency.record(0, Duration::from_millis(1), DECAY);
        latency.record(1, Duration::from_millis(100), DECAY);
        assert!((latency.cost_us(Some(1), DECAY) - 100_000.0).abs() < 1.0);
        latency.record(2, Duration::from_millis(1), DECAY);
        assert!(latency.cost_us(Some(2), DECAY) > 99_000.0);
        assert!(latency.cost_us(Some(60_000), DECAY) < 1_000.0);
    }

    #[test]
    fn failures_double_the_cost_up_to_a_limit() {
        let latency = LatencyAverage::new();
        let cost_ms = |latency: &LatencyAverage| (latency.cost_us(Some(0), DECAY) / 1e3).round();
        for expected in [1.0, 2.0, 4.0, 8.0] {
            latency.record_failure(0, Duration::from_micros(10), DECAY);
            assert_eq!(cost_ms(&latency), expected);
        }
        (0..200).for_each(|_| latency.record_failure(0, Duration::ZERO, DECAY));
        assert_eq!(cost_ms(&latency), 1e3);
        latency.record_failure(0, Duration::from_secs(5), DECAY);
        latency.record_failure(0, Duration::ZERO, DECAY);
        assert_eq!(cost_ms(&latency), 5e3, "a measured peak is kept");
        assert!(latency.cost_us(Some(100_000), DECAY) < 1e3, "the peak decays");
    }

    #[test]
    fn clock_may_wrap_and_step_back() {
        let latency = LatencyAverage::new();
        latency.record(u32::MAX, Duration::from_millis(10), DECAY);
        assert!(latency.cost_us(Some(u32::MAX - 5), DECAY) > 9_999.0);
        let later = latency.cost_us(Some(5_000), DECAY);
        assert!(later > 5_000.0 && later < 7_000.0, "{later}");
    }
}
