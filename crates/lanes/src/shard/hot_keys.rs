//! Finds hot keys with the space-saving algorithm, over a sample of the arriving records.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005. A
//! key without a counter takes over the smallest counter, whose count becomes its error bound. Counts are halved
//! regularly, so that old hot keys fade.

use crate::record::{Lane, Record};

const COUNTED: usize = 64;
/// The sampling interval: one of this many records, at random: with a fixed step, keys in rotation could always hit the same
/// sample.
const SAMPLE: u32 = 16;
const HALVED_AFTER: u32 = 8192;

/// A key and its share of the recent records.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HotKeyShare {
    pub(crate) lane: Lane,
    pub(crate) key: Box<[u8]>,
    pub(crate) share: f64,
}

#[derive(Debug)]
struct Counted {
    lane: Lane,
    key: Box<[u8]>,
    count: u32,
    error: u32,
}

#[derive(Debug)]
pub(crate) struct HotKeyTracker {
    counted: Vec<Counted>,
    /// Records to skip before the next sample.
    passes: u32,
    /// Sampled records, with or without a key.
    sampled: u32,
    random: fastrand::Rng,
}

impl HotKeyTracker {
    pub(crate) fn new(seed: u64) -> Self {
        Self { counted: Vec::new(), passes: 0, sampled: 0, random: fastrand::Rng::with_seed(seed) }
    }

    pub(crate) fn record(&mut self, record: &Record) {
        if self.passes > 0 {
            self.passes -= 1;
            return;
        }
        self.passes = self.random.u32(0..2 * SAMPLE - 1);
        self.sampled += 1;
        if let Some(key) = record.key() {
            self.sample(record.lane(), key);
        }
        if self.sampled >= HALVED_AFTER {
            self.halve();
        }
    }

    fn sample(&mut self, lane: Lane, key: &[u8]) {
        let known = self.counted.iter_mut().find(|counted| counted.lane == lane && *counted.key == *key);
        if let Some(counted) = known {
            counted.count += 1;
        } else if self.counted.len() < COUNTED {
            self.counted.push(Counted { lane, key: key.into(), count: 1, error: 0 });
        } else if let Some(least) = self.counted.iter_mut().min_by_key(|counted| counted.count) {
            let error = least.count;
            *least = Counted { lane, key: key.into(), count: error + 1, error };
        }
    }

    fn halve(&mut self) {
        self.sampled /= 2;
        for counted in &mut self.counted {
            counted.count /= 2;
            counted.error /= 2;
        }
        self.counted.retain(|counted| counted.count > 0);
    }

    /// Keys with at least 1 % of the records, the hottest first. The share is a lower bound.
    pub(crate) fn list(&self) -> Vec<HotKeyShare> {
        let share = |counted: &Counted| f64::from(counted.count - counted.error) / f64::from(self.sampled.max(1));
        let heat =
            |counted: &Counted| HotKeyShare { lane: counted.lane, key: counted.key.clone(), share: share(counted) };
        let mut list: Vec<HotKeyShare> = self.counted.iter().map(heat).filter(|heat| heat.share >= 0.01).collect();
        list.sort_by(|a, b| b.share.total_cmp(&a.share));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Epoch, Position};

    fn shares(keys: impl Iterator<Item = Option<u32>>) -> Vec<(u32, f64)> {
        let mut hot = HotKeyTracker::new(7);
        for (at, key) in keys.enumerate() {
            let key = key.map(u32::to_be_bytes);
            let key = key.as_ref().map(<[u8; 4]>::as_slice);
            hot.record(&Record::new(Lane(0), Epoch(1), Position(at as u64), key, None));
        }
        let share = |heat: HotKeyShare| (u32::from_be_bytes((*heat.key).try_into().unwrap()), heat.share);
        hot.list().into_iter().map(share).collect()
    }

    #[test]
    fn round_robin_keys_are_not_hot() {
        let shares = shares((0..100_000).map(|at| Some(at % 32)));
        assert_eq!(shares.len(), 32, "{shares:?}");
        assert!(shares.iter().all(|(_, share)| (0.02..0.05).contains(share)), "{shares:?}");
    }

    #[test]
    fn keyless_records_count_in_the_share() {
        let shares = shares((0..100_000).map(|at| (at % 10 == 0).then_some(5)));
        assert!(matches!(shares[..], [(5, share)] if (0.08..0.12).contains(&share)), "{shares:?}");
    }
}
