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
pub(crate) struct PackedMoment([u16; 3]);

impl From<Moment> for PackedMoment {
    fn from(moment: Moment) -> Self {
        Self([moment.0 as u16, (moment.0 >> 16) as u16, (moment.0 >> 32) as u16])
    }
}

impl From<PackedMoment> for Moment {
    fn from(PackedMoment([low, middle, high]): PackedMoment) -> Self {
        Self(u64::from(low) | u64::from(middle) << 16 | u64::from(high) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_moment_is_small_and_comes_back_as_it_was() {
        assert_eq!(size_of::<PackedMoment>(), 6);
        for micros in [0, 0xffff, 0x1_0000, 0x1234_5678_9abc, (1 << 48) - 1] {
            assert_eq!(Moment::from(PackedMoment::from(Moment(micros))), Moment(micros));
        }
    }
}
