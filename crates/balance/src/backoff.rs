//! When to try again, after so many failures in a row.

use std::time::Duration;

use crate::moment::bounded;

/// Pauses that grow with each failure: `first`, then `factor` times more each time, up to `most`; each randomly longer
/// or shorter by up to `jitter` of itself. The defaults are those of gRPC's connection backoff.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first pause.
    pub first: Duration,
    /// How much longer each pause is than the one before.
    pub factor: f64,
    /// The longest pause, before jitter.
    pub most: Duration,
    /// From 0 to 1; none if it is no number. Spreads clients that failed together.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), factor: 1.6, most: Duration::from_secs(120), jitter: 0.2 }
    }
}

impl Backoff {
    /// The pause after so many `failures` in a row; none after zero. `random` is from 0 to 1.
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let Some(grown) = failures.checked_sub(1) else { return Duration::ZERO };
        let grown = i32::try_from(grown).unwrap_or(i32::MAX);
        let most = bounded(self.most).as_secs_f64();
        let plain = (self.first.as_secs_f64() * self.factor.max(1.0).powi(grown)).min(most);
        jittered(Duration::from_secs_f64(plain.max(0.0)), self.jitter, random)
    }
}

/// A time, longer or shorter by up to `jitter` of itself; by nothing if that is no number.
pub(crate) fn jittered(time: Duration, jitter: f64, random: f64) -> Duration {
    let part = jitter.clamp(0.0, 1.0) * (2.0 * random.clamp(0.0, 1.0) - 1.0);
    bounded(time).mul_f64(1.0 + if part.is_nan() { 0.0 } else { part })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t41_a_pause_is_within_its_bounds_whatever_the_rules_say() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 0.2, 1.0, 7.0, f64::MAX];
        for (jitter, factor) in odd.iter().flat_map(|jitter| odd.map(|factor| (*jitter, factor))) {
            for (first, most) in [(1, 9), (0, 9), (9, 1)].map(|(a, b)| (Duration::from_secs(a), Duration::from_secs(b)))
            {
                let backoff = Backoff { first, factor, most, jitter };
                let pauses =
                    [1, 2, u32::MAX].into_iter().flat_map(|times| odd.map(|random| backoff.pause(times, random)));
                assert!(pauses.into_iter().all(|pause| pause <= most * 2), "{backoff:?}");
            }
        }
        let plain = Backoff { jitter: f64::NAN, ..Backoff::default() };
        assert_eq!(plain.pause(1, 0.9), Duration::from_secs(1));
    }
}
