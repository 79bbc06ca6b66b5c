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
    /// From 0 to 1. Spreads clients that failed together.
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

/// A time, longer or shorter by up to `jitter` of itself.
pub(crate) fn jittered(time: Duration, jitter: f64, random: f64) -> Duration {
    bounded(time).mul_f64(1.0 + jitter.clamp(0.0, 1.0) * (2.0 * random.clamp(0.0, 1.0) - 1.0))
}
