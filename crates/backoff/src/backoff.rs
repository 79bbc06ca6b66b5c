//! The delay after each failure.

use std::time::Duration;

use crate::time::DURATION_MAX;

/// Exponential backoff: the delay is `first` after one failure, and `factor` times the previous delay after each further
/// failure, up to `max`. [`Jitter`] is applied last.
///
/// ```
/// use std::time::Duration;
/// use tidegate_backoff::{Backoff, Jitter};
///
/// let backoff = Backoff { jitter: Jitter::NONE, ..Backoff::new(Duration::from_secs(1), Duration::from_secs(10)) };
/// let delays: Vec<u64> = (0..6).map(|failures| backoff.delay(failures, 0.5).as_secs()).collect();
/// assert_eq!(delays, [0, 1, 2, 4, 8, 10]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Delay after the first failure. `max` limits it as well.
    pub first: Duration,
    /// Longest delay before jitter.
    pub max: Duration,
    /// Growth from one delay to the next. A value that is not above 0 (NaN included) counts as 1.
    pub factor: f64,
    /// Random part of each delay.
    pub jitter: Jitter,
}

/// Random part of a delay. It spreads the retries of clients that failed at the same moment.
///
/// A fraction outside 0 to 1 is limited to that range; NaN counts as 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Shortens a delay by up to this fraction of it.
    Below(f64),
    /// Shortens or lengthens a delay by up to this fraction of it, as gRPC's connection backoff does.
    Around(f64),
}

impl Jitter {
    /// No random part.
    pub const NONE: Self = Self::Below(0.0);
    /// The delay is between half and all of its length ("equal jitter").
    pub const EQUAL: Self = Self::Below(0.5);
    /// The delay is between zero and its full length ("full jitter").
    pub const FULL: Self = Self::Below(1.0);

    /// Applies the random part to `delay`. `random` is from 0 (shortest) to 1 (longest).
    pub fn apply(self, delay: Duration, random: f64) -> Duration {
        let random = unit(random);
        let scale = match self {
            Self::Below(fraction) => 1.0 - unit(fraction) * (1.0 - random),
            Self::Around(fraction) => 1.0 + unit(fraction) * (2.0 * random - 1.0),
        };
        delay.min(DURATION_MAX).mul_f64(scale)
    }
}

/// Limits `value` to 0 to 1. `NaN` is 0.
fn unit(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

impl Backoff {
    /// Doubles from `first` to `max`, with [`Jitter::EQUAL`].
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, factor: 2.0, jitter: Jitter::EQUAL }
    }

    /// No delay.
    pub const fn none() -> Self {
        Self::new(Duration::ZERO, Duration::ZERO)
    }

    /// The connection backoff of gRPC: 1 s to 120 s, factor 1.6, jitter 20 % in both directions
    /// (<https://github.com/grpc/grpc/blob/master/doc/connection-backoff.md>).
    pub const fn grpc() -> Self {
        let (first, max) = (Duration::from_secs(1), Duration::from_secs(120));
        Self { first, max, factor: 1.6, jitter: Jitter::Around(0.2) }
    }

    /// Returns the delay after `failures` consecutive failures; zero after none. `random` is from 0 (shortest) to 1
    /// (longest).
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let Some(growths) = failures.checked_sub(1) else { return Duration::ZERO };
        if self.first.is_zero() {
            return Duration::ZERO;
        }
        let growths = i32::try_from(growths).unwrap_or(i32::MAX);
        let factor = if self.factor > 0.0 { self.factor } else { 1.0 };
        // `first` is not zero, so the product is not NaN unless the factor is: infinity becomes `max`.
        let delay = (self.first.as_secs_f64() * factor.powi(growths)).min(self.max.min(DURATION_MAX).as_secs_f64());
        self.jitter.apply(Duration::from_secs_f64(delay), random)
    }
}

impl Default for Backoff {
    /// 100 ms, doubled up to 30 s, with [`Jitter::EQUAL`].
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(30))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const UNUSUAL: [f64; 9] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 0.2, 1.0, 7.0, f64::MAX];

    #[test]
    fn delay_doubles_up_to_max() {
        let backoff = Backoff::new(SECOND, 10 * SECOND);
        let delays = [0, 1, 2, 3, 4, 5, 41, u32::MAX].map(|failures| backoff.delay(failures, 1.0).as_secs());
        assert_eq!(delays, [0, 1, 2, 4, 8, 10, 10, 10]);
        assert_eq!(backoff.delay(2, 0.0), SECOND);
    }

    #[test]
    fn max_limits_the_first_delay() {
        assert_eq!(Backoff::new(10 * SECOND, SECOND).delay(1, 1.0), SECOND);
    }

    #[test]
    fn zero_first_delay_stays_zero() {
        let backoff = Backoff::new(Duration::ZERO, SECOND);
        assert_eq!([1, 2, 2000, u32::MAX].map(|failures| backoff.delay(failures, 1.0)), [Duration::ZERO; 4]);
    }

    #[test]
    fn factor_below_one_shrinks_delays() {
        let backoff = Backoff { factor: 0.5, ..Backoff::new(4 * SECOND, 10 * SECOND) };
        assert_eq!([1, 2, 3].map(|failures| backoff.delay(failures, 1.0).as_secs()), [4, 2, 1]);
    }

    #[test]
    fn jitter_range_follows_its_kind() {
        let range = |jitter: Jitter| [0.0, 0.5, 1.0].map(|random| jitter.apply(100 * SECOND, random).as_secs());
        assert_eq!(range(Jitter::NONE), [100, 100, 100]);
        assert_eq!(range(Jitter::EQUAL), [50, 75, 100]);
        assert_eq!(range(Jitter::FULL), [0, 50, 100]);
        assert_eq!(range(Jitter::Around(0.25)), [75, 100, 125]);
        assert_eq!(range(Jitter::Around(f64::NAN)), [100, 100, 100]);
    }

    #[test]
    fn delay_is_bounded_for_unusual_numbers() {
        for (fraction, factor) in UNUSUAL.iter().flat_map(|fraction| UNUSUAL.map(|factor| (*fraction, factor))) {
            for (first, max) in [(1, 9), (0, 9), (9, 1)].map(|(first, max)| (first * SECOND, max * SECOND)) {
                for jitter in [Jitter::Below(fraction), Jitter::Around(fraction)] {
                    let backoff = Backoff { first, factor, max, jitter };
                    let mut delays = [1, 2, u32::MAX]
                        .into_iter()
                        .flat_map(|failures| UNUSUAL.map(|random| backoff.delay(failures, random)));
                    assert!(delays.all(|delay| delay <= max * 2), "{backoff:?}");
                }
            }
        }
        let longest = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(longest.delay(u32::MAX, 1.0), DURATION_MAX);
    }
}
