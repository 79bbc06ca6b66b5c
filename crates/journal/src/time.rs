//! When something happened, as it stands in a record: nanoseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::config::Times;

/// A point in time, in nanoseconds since 1970-01-01T00:00:00Z, without leap seconds.
///
/// It is the clock of the wall and may go backwards. The order of records never depends on it, except that
/// [`Reader`](crate::Reader) merges stripes by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The beginning of 1970, before every record.
    pub const MIN: Self = Self(0);
    /// After every record.
    pub const MAX: Self = Self(u64::MAX);

    /// Now, by the clock of the system.
    #[must_use]
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// Now, as exact as asked.
    #[inline]
    pub(crate) fn read(times: Times) -> Self {
        match times {
            Times::Exact => Self::now(),
            Times::Tick => {
                let time = clock_gettime(ClockId::RealtimeCoarse);
                let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
                Self(seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0)))
            }
        }
    }

    /// From nanoseconds since 1970.
    #[must_use]
    pub const fn from_unix_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since 1970.
    #[must_use]
    pub const fn unix_nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was, or nothing if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Time {
    /// A time before 1970 becomes 1970, one after 2554 becomes 2554.
    fn from(time: SystemTime) -> Self {
        let Ok(since) = time.duration_since(UNIX_EPOCH) else { return Self::MIN };
        Self(since.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(since.subsec_nanos())))
    }
}

impl From<Time> for SystemTime {
    fn from(time: Time) -> Self {
        UNIX_EPOCH + Duration::from_nanos(time.0)
    }
}
