//! What an endpoint's answers cost lately: a moving average that jumps up at once and comes down slowly.
//!
//! Peak EWMA as in Twitter's Finagle: a sample above the average replaces it, one below moves it by `1 - e^(-dt/decay)`.
//! Cost in microseconds (f32) and time in milliseconds (u32, wraps after 49 days) share one word, so that an update is
//! one compare-and-swap and a read is one load; the decay since then is applied by the reader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Latency(AtomicU64);

/// What a first failure costs at least.
const PENALTY_MIN_US: f32 = 1e3;
/// What failures cost at most, however many there are: one second.
const PENALTY_MAX_US: f32 = 1e6;

/// The cost at a time.
#[derive(Clone, Copy)]
struct Sample {
    cost_us: f32,
    at_ms: u32,
}

impl Sample {
    fn pack(self) -> u64 {
        (u64::from(self.cost_us.to_bits()) << 32) | u64::from(self.at_ms)
    }

    fn unpack(word: u64) -> Self {
        Self { cost_us: f32::from_bits((word >> 32) as u32), at_ms: word as u32 }
    }

    /// What is left of the cost at `now_ms`.
    fn decayed(self, now_ms: u32, decay: Duration) -> f32 {
        // A reader whose clock is a little behind the writer's sees no time passed, not 49 days.
        let passed_ms = now_ms.wrapping_sub(self.at_ms);
        if passed_ms > u32::MAX / 2 || passed_ms == 0 {
            return self.cost_us;
        }
        self.cost_us * (-(passed_ms as f32) / (decay.as_millis().max(1) as f32)).exp()
    }
}

impl Latency {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes a sample into account.
    pub(crate) fn observe(&self, now_ms: u32, took: Duration, decay: Duration) {
        let took_us = took.as_secs_f32() * 1e6;
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let before = Sample::unpack(word);
            let left = before.decayed(now_ms, decay);
            let share = if before.cost_us > 0.0 { left / before.cost_us } else { 0.0 };
            let cost_us = if took_us >= left { took_us } else { left + took_us * (1.0 - share) };
            Some(Sample { cost_us, at_ms: now_ms }.pack())
        });
    }

    /// Takes a failure into account. It may come fast, and would draw more calls to who fails if its time counted: it
    /// doubles the cost instead, which comes down as that of any peak, so that who fails is tried ever less often.
    pub(crate) fn penalise(&self, now_ms: u32, took: Duration, decay: Duration) {
        let took_us = took.as_secs_f32() * 1e6;
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let left = Sample::unpack(word).decayed(now_ms, decay);
            let penalty = (left * 2.0).clamp(PENALTY_MIN_US, PENALTY_MAX_US);
            Some(Sample { cost_us: penalty.max(left).max(took_us), at_ms: now_ms }.pack())
        });
    }

    /// The cost as of `now_ms`, in microseconds; zero if nothing was observed.
    pub(crate) fn cost_us(&self, now_ms: Option<u32>, decay: Duration) -> f32 {
        let sample = Sample::unpack(self.0.load(Ordering::Relaxed));
        now_ms.map_or(sample.cost_us, |now_ms| sample.decayed(now_ms, decay))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DECAY: Duration = Duration::from_secs(10);

    #[test]
    fn a_peak_is_taken_at_once_and_forgotten_slowly() {
        let latency = Latency::new();
        latency.observe(0, Duration::from_millis(1), DECAY);
        latency.observe(1, Duration::from_millis(100), DECAY);
        assert!((latency.cost_us(Some(1), DECAY) - 100_000.0).abs() < 1.0);
        latency.observe(2, Duration::from_millis(1), DECAY);
        assert!(latency.cost_us(Some(2), DECAY) > 99_000.0);
        assert!(latency.cost_us(Some(60_000), DECAY) < 1_000.0);
    }

    #[test]
    fn a_failure_costs_more_the_more_there_were() {
        let latency = Latency::new();
        let cost_ms = |latency: &Latency| (latency.cost_us(Some(0), DECAY) / 1e3).round();
        for expected in [1.0, 2.0, 4.0, 8.0] {
            latency.penalise(0, Duration::from_micros(10), DECAY);
            assert_eq!(cost_ms(&latency), expected);
        }
        (0..200).for_each(|_| latency.penalise(0, Duration::ZERO, DECAY));
        assert_eq!(cost_ms(&latency), 1e3);
        latency.penalise(0, Duration::from_secs(5), DECAY);
        latency.penalise(0, Duration::ZERO, DECAY);
        assert_eq!(cost_ms(&latency), 5e3, "a real peak is not taken back");
        assert!(latency.cost_us(Some(100_000), DECAY) < 1e3, "and is forgotten as any");
    }

    #[test]
    fn the_clock_may_wrap_and_go_back_a_little() {
        let latency = Latency::new();
        latency.observe(u32::MAX, Duration::from_millis(10), DECAY);
        assert!(latency.cost_us(Some(u32::MAX - 5), DECAY) > 9_999.0);
        let later = latency.cost_us(Some(5_000), DECAY);
        assert!(later > 5_000.0 && later < 7_000.0, "{later}");
    }
}
