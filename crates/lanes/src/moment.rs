//! Points of time inside a subscription: microseconds since it was built.

use std::time::Duration;

/// Microseconds since the subscription was built. The cores read no clock; they are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    pub(crate) fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(micros(wait)))
    }

    /// How long ago `earlier` was; nothing if it was not.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A moment in six bytes, since one lies in every waiting record. Good for nine years.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedMoment {
    high: u16,
    low: u32,
}

impl From<Moment> for PackedMoment {
    fn from(moment: Moment) -> Self {
        Self { high: (moment.0 >> 32) as u16, low: moment.0 as u32 }
    }
}

impl From<PackedMoment> for Moment {
    fn from(packed: PackedMoment) -> Self {
        Self(u64::from(packed.high) << 32 | u64::from(packed.low))
    }
}
