//! Bounds of what a slow consumer costs: WAL on the server, and bytes of a spool.

/// A bound for the WAL that the slot holds on the server, and what follows when it is passed.
///
/// The bound is compared with `held_wal_bytes` of the slot each [`ChangeOptions::watch_interval`].
///
/// [`ChangeOptions::watch_interval`]: crate::ChangeOptions::watch_interval
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalBound {
    /// Bytes of WAL.
    pub bytes_max: u64,
    /// Action at the bound.
    pub full: WalFull,
}

/// Action when the slot holds more WAL than its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalFull {
    /// An error is logged; the stream goes on.
    Alarm,
    /// The stream ends with [`ChangeStreamError::WalFull`](crate::ChangeStreamError::WalFull). The slot stays, and holds WAL.
    Stop,
    /// The slot is dropped, so that the server frees the WAL, and the stream ends with a [`LostChanges`](crate::LostChanges).
    DropSlot,
}

/// A share of a bound that is reported when it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FillLevel {
    /// Less than half.
    Low,
    /// Half of the bound.
    Half,
    /// Reached 80 % of the bound.
    High,
    /// The bound.
    Full,
}

impl FillLevel {
    const RISING: [(u64, Self); 3] = [(100, Self::Full), (80, Self::High), (50, Self::Half)];
    /// A level is left this many percent below its share, so that a value that varies is not reported again and again.
    const HYSTERESIS: u64 = 10;

    fn of(value: u64, bound: u64, slack: u64) -> Self {
        let percent = u64::try_from(u128::from(value) * 100 / u128::from(bound.max(1))).unwrap_or(u64::MAX);
        let reached = Self::RISING.iter().find(|(share, _)| percent >= share - slack);
        reached.map_or(Self::Low, |(_, level)| *level)
    }

    /// Updates the level. Returns it if it has risen.
    pub(crate) fn update(&mut self, value: u64, bound: u64) -> Option<Self> {
        let risen = Self::of(value, bound, 0);
        if risen > *self {
            *self = risen;
            return Some(risen);
        }
        *self = (*self).min(Self::of(value, bound, Self::HYSTERESIS));
        None
    }

    /// The share of the bound in percent.
    pub(crate) const fn percent(self) -> u64 {
        match self {
            Self::Low => 0,
            Self::Half => 50,
            Self::High => 80,
            Self::Full => 100,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_reported_once_on_the_way_up() {
        let mut level = FillLevel::Low;
        let mut update = |value| level.update(value, 1_000);
        assert_eq!(update(499), None);
        assert_eq!(update(500), Some(FillLevel::Half));
        assert_eq!([update(600), update(499), update(520)], [None; 3], "within the hysteresis");
        assert_eq!(update(850), Some(FillLevel::High));
        assert_eq!(update(5_000), Some(FillLevel::Full));
        assert_eq!(update(950), None);
        assert_eq!(update(1_000), None, "the bound was not left");
        assert_eq!(update(0), None);
        assert_eq!(update(1_000), Some(FillLevel::Full), "levels may be skipped");
    }

    #[test]
    fn extreme_bounds_do_not_overflow() {
        let mut level = FillLevel::Low;
        assert_eq!(level.update(u64::MAX, u64::MAX), Some(FillLevel::Full));
        assert_eq!(FillLevel::Low.update(0, 0), None);
    }
}
