//! How much is worth taking: no more than shards can begin soon.
//!
//! What only waits lies in memory until it has gone cold in every cache. So while each shard has enough keys whose turn
//! may come, the source keeps the rest.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::shard::Standing;

/// How many ready keys are enough for a shard. Set by the intake, read by the shards.
#[derive(Debug)]
pub(crate) struct Pace {
    enough: AtomicUsize,
    shards: usize,
    is_kept: bool,
}

impl Pace {
    /// Without effect unless it `is_kept`.
    pub(crate) fn new(ready_max: usize, shards: usize, is_kept: bool) -> Self {
        let pace = Self { enough: AtomicUsize::new(0), shards, is_kept };
        pace.set(ready_max);
        pace
    }

    pub(crate) fn set(&self, ready_max: usize) {
        let enough = if self.is_kept { ready_max.div_ceil(self.shards) } else { usize::MAX };
        self.enough.store(enough, Ordering::Relaxed);
    }

    fn enough(&self) -> usize {
        self.enough.load(Ordering::Relaxed)
    }

    /// Below it a shard says that it wants more; a shard with nothing does in any case.
    pub(crate) fn low(&self) -> usize {
        if self.is_kept { (self.enough() / 2).max(1) } else { 0 }
    }
}

/// What the intake knows of the shards.
#[derive(Debug)]
pub(crate) struct Appetite {
    shards: Vec<Shard>,
}

#[derive(Clone, Debug, Default)]
struct Shard {
    sent: u64,
    standing: Standing,
}

impl Appetite {
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards: vec![Shard::default(); shards] }
    }

    pub(crate) fn sent(&mut self, shard: usize, records: usize) {
        self.shards[shard].sent += records as u64;
    }

    pub(crate) fn note(&mut self, shard: usize, standing: Standing) {
        self.shards[shard].standing = standing;
    }

    /// Every shard has enough to begin, counting what is on its way to it.
    pub(crate) fn is_sated(&self, pace: &Pace) -> bool {
        let enough = pace.enough();
        let has_enough = |shard: &Shard| {
            let coming = (shard.sent - shard.standing.arrived) as usize;
            shard.standing.ready.saturating_add(coming) >= enough
        };
        self.shards.iter().all(has_enough)
    }

    /// Records of parked keys.
    pub(crate) fn held(&self) -> usize {
        self.shards.iter().map(|shard| shard.standing.held).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn standing(ready: usize, arrived: u64) -> Standing {
        Standing { held: 0, ready, arrived }
    }

    #[test]
    fn what_is_on_its_way_counts_and_one_hungry_shard_is_enough_to_go_on() {
        let (pace, mut appetite) = (Pace::new(20, 2, true), Appetite::new(2));
        appetite.sent(0, 10);
        assert!(!appetite.is_sated(&pace), "the other one has nothing");
        appetite.sent(1, 10);
        assert!(appetite.is_sated(&pace));
        appetite.note(1, standing(9, 10));
        assert!(!appetite.is_sated(&pace));
        pace.set(18);
        assert!(appetite.is_sated(&pace));
    }

    #[test]
    fn a_shard_speaks_when_it_wants_more_than_was_last_said() {
        let pace = Pace::new(20, 2, true);
        assert!(standing(4, 10).is_news(&standing(5, 10), pace.low()), "it fell below");
        assert!(standing(4, 11).is_news(&standing(3, 10), pace.low()), "what was on its way has begun");
        assert!(!standing(4, 10).is_news(&standing(3, 10), pace.low()), "it has said so");
        assert!(!standing(9, 11).is_news(&standing(9, 10), pace.low()), "it has enough");
    }

    #[test]
    fn without_a_pace_nothing_is_enough() {
        let (pace, mut appetite) = (Pace::new(1, 1, false), Appetite::new(1));
        appetite.sent(0, 1 << 40);
        assert!(!appetite.is_sated(&pace));
    }
}
