//! Monotonic time of a subscription.

use std::time::Duration;

/// Microseconds since the subscription was built. Pure cores take this as an argument and read no clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct MonotonicTime(pub(crate) u64);

impl MonotonicTime {
    pub(crate) fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(micros(wait)))
    }

    /// Time elapsed since `earlier`; zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A time in six bytes, because every queued record stores one. Overflows after nine years.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedTime([u16; 3]);

impl From<MonotonicTime> for PackedTime {
    fn from(moment: MonotonicTime) -> Self {
        Self([moment.0 as u16, (moment.0 >> 16) as u16, (moment.0 >> 32) as u16])
    }
}

impl From<PackedTime> for MonotonicTime {
    fn from(PackedTime([low, middle, high]): PackedTime) -> Self {
        Self(u64::from(low) | u64::from(middle) << 16 | u64::from(high) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_time_is_six_bytes_and_round_trips() {
        assert_eq!(size_of::<PackedTime>(), 6);
        for micros in [0, 0xffff, 0x1_0000, 0x1234_5678_9abc, (1 << 48) - 1] {
            assert_eq!(MonotonicTime::from(PackedTime::from(MonotonicTime(micros))), MonotonicTime(micros));
        }
    }
}
