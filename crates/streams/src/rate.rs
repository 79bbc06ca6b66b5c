//! Rates from counters.

use std::time::Instant;

/// Computes a rate from two readings of a counter.
pub(super) struct RateMeter {
    at: Instant,
    done: u64,
}

impl RateMeter {
    pub(super) fn new() -> Self {
        Self { at: Instant::now(), done: 0 }
    }

    pub(super) fn rate(&mut self, done: u64) -> u64 {
        let (now, before) = (Instant::now(), std::mem::replace(&mut self.done, done));
        let seconds = now.duration_since(std::mem::replace(&mut self.at, now)).as_secs_f64();
        if seconds > 0.0 { (done.saturating_sub(before) as f64 / seconds).round() as u64 } else { 0 }
    }
}
