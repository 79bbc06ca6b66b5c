//! Timestamps of records, in nanoseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The precision of the timestamp of records that have none of their own
/// ([`ProducerRecord::at`](crate::ProducerRecord::at)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimestampPrecision {
    /// The resolution of the clock. On a virtual machine, reading this clock may cost as much as the rest of an append.
    #[default]
    Exact,
    /// The time of the last tick of the kernel, 1 to 10 ms old (`CLOCK_REALTIME_COARSE`). Reading it costs a tenth of the
    /// exact time. Stripes are merged by time, so records of different stripes are unordered within a tick; those of one
    /// stripe stay in order.
    Tick,
}

/// A point in time, in nanoseconds since 1970-01-01T00:00:00Z, without leap seconds.
///
/// The wall clock may go backwards. The order of records does not depend on it, except that
/// [`JournalReader`](crate::JournalReader) merges stripes by timestamp.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start of 1970, before every record.
    pub const MIN: Self = Self(0);
    /// A timestamp after every record.
    pub const MAX: Self = Self(u64::MAX);

    /// The current time of the system clock.
    #[must_use]
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// The current time with the given precision.
    #[inline]
    pub(crate) fn read(times: TimestampPrecision) -> Self {
        match times {
            TimestampPrecision::Exact => Self::now(),
            TimestampPrecision::Tick => {
                let time = clock_gettime(ClockId::RealtimeCoarse);
                let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
                Self(seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0)))
            }
        }
    }

    /// A timestamp from nanoseconds since 1970.
    #[must_use]
    pub const fn from_unix_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The timestamp in nanoseconds since 1970.
    #[must_use]
    pub const fn unix_nanos(self) -> u64 {
        self.0
    }

    /// The duration since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    /// Clamps times before 1970 to 1970 and times after 2554 to 2554.
    fn from(time: SystemTime) -> Self {
        let Ok(since) = time.duration_since(UNIX_EPOCH) else { return Self::MIN };
        Self(since.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(since.subsec_nanos())))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_nanos(time.0)
    }
}
