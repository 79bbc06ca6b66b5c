//! Which keys are hot: the space-saving algorithm over a sample of what arrives.
//!
//! Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005. A key that
//! is not among the counted takes the place of the one counted least, and inherits its count as a possible error.
//! Counts are halved now and then, so that yesterday's hot key cools.

use crate::record::{Lane, Record};

const COUNTED: usize = 64;
/// One of so many records is looked at.
const SAMPLE: u32 = 16;
const HALVED_AFTER: u32 = 8192;

/// A key and how much of the recent records were its own.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Heat {
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

#[derive(Debug, Default)]
pub(crate) struct HotKeys {
    counted: Vec<Counted>,
    seen: u32,
    sampled: u32,
}

impl HotKeys {
    pub(crate) fn note(&mut self, record: &Record) {
        self.seen = self.seen.wrapping_add(1);
        if self.seen.is_multiple_of(SAMPLE)
            && let Some(key) = record.key()
        {
            self.sample(record.lane(), key);
        }
    }

    fn sample(&mut self, lane: Lane, key: &[u8]) {
        self.sampled += 1;
        let known = self.counted.iter_mut().find(|counted| counted.lane == lane && *counted.key == *key);
        if let Some(counted) = known {
            counted.count += 1;
        } else if self.counted.len() < COUNTED {
            self.counted.push(Counted { lane, key: key.into(), count: 1, error: 0 });
        } else if let Some(least) = self.counted.iter_mut().min_by_key(|counted| counted.count) {
            let error = least.count;
            *least = Counted { lane, key: key.into(), count: error + 1, error };
        }
        if self.sampled >= HALVED_AFTER {
            self.halve();
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

    /// The hottest first, with the share that each has for certain, of those above one in a hundred.
    pub(crate) fn list(&self) -> Vec<Heat> {
        let share = |counted: &Counted| f64::from(counted.count - counted.error) / f64::from(self.sampled.max(1));
        let heat = |counted: &Counted| Heat { lane: counted.lane, key: counted.key.clone(), share: share(counted) };
        let mut list: Vec<Heat> = self.counted.iter().map(heat).filter(|heat| heat.share >= 0.01).collect();
        list.sort_by(|a, b| b.share.total_cmp(&a.share));
        list
    }
}
