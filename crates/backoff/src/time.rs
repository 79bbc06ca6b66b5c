//! Additions of times that cannot overflow.

use std::time::{Duration, Instant};

/// 100 years: longer than any process runs, and short enough that adding it to an [`Instant`] cannot overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Returns `start + duration`, with `duration` limited to [`DURATION_MAX`].
///
/// Durations from configuration files and from peers can be as long as [`Duration::MAX`], which [`Instant`] cannot add.
pub fn instant_after(start: Instant, duration: Duration) -> Instant {
    start + duration.min(DURATION_MAX)
}
