//! The one place that reads the time.

use tokio::time::Instant;

use crate::moment::Moment;

/// Tokio's clock, so that tests can stop it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::default().after(self.0.elapsed())
    }

    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        let since = moment.since(Moment::default());
        // Whatever is due in more than a year is not due.
        self.0.checked_add(since).unwrap_or_else(|| self.0 + std::time::Duration::from_secs(365 * 24 * 3600))
    }
}
