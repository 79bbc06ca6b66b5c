//! The only reader of the system clock.

use tokio::time::Instant;

use crate::monotonic_time::MonotonicTime;

/// Tokio's clock, so that tests can pause it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> MonotonicTime {
        MonotonicTime::default().after(self.0.elapsed())
    }

    pub(crate) fn instant(&self, moment: MonotonicTime) -> Instant {
        let since = moment.since(MonotonicTime::default());
        // Instants beyond the range of the clock become one year from the start: such a timer never fires in practice.
        self.0.checked_add(since).unwrap_or_else(|| self.0 + std::time::Duration::from_secs(365 * 24 * 3600))
    }
}
