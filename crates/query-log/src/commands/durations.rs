//! A histogram of durations: percentiles exact to 1 %, in memory that grows with the number of distinct durations.
//!
//! Each power of two is split into 64 buckets of equal width, as in HdrHistogram (hdrhistogram.org). Only buckets with samples
//! are stored: `top` keeps up to 100,000 histograms, and the array of the crate `hdrhistogram` has 20 KiB for durations of up
//! to a minute.

/// Binary logarithm of the number of buckets per power of two.
const SPLIT: u32 = 6;

#[derive(Clone, Debug, Default)]
pub(super) struct DurationHistogram {
    /// Index and count of each bucket with samples, in ascending order.
    buckets: Vec<(u16, u64)>,
    pub(super) count: u64,
    pub(super) total: u64,
    pub(super) max: u64,
}

impl DurationHistogram {
    pub(super) fn add(&mut self, micros: u64) {
        self.count += 1;
        self.total = self.total.saturating_add(micros);
        self.max = self.max.max(micros);
        let bucket = bucket_of(micros);
        match self.buckets.binary_search_by_key(&bucket, |(known, _)| *known) {
            Ok(at) => self.buckets[at].1 += 1,
            Err(at) => self.buckets.insert(at, (bucket, 1)),
        }
    }

    /// The percentile in microseconds; 0 without samples.
    pub(super) fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= rank {
                return middle_of(*bucket).min(self.max);
            }
        }
        self.max
    }

    pub(super) fn mean(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }
}

fn bucket_of(micros: u64) -> u16 {
    let power = u64::BITS - micros.leading_zeros();
    let shift = power.saturating_sub(SPLIT + 1);
    // The highest index is 58 times 64 plus the 127 of the last shift.
    ((u64::from(shift) << SPLIT) + (micros >> shift)) as u16
}

fn middle_of(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    let shift = (bucket >> SPLIT).saturating_sub(1);
    let low = (bucket - (shift << SPLIT)) << shift;
    low + (1_u64 << shift) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentile_is_the_value_of_its_rank() {
        let mut durations = DurationHistogram::default();
        assert_eq!((durations.percentile(50), durations.mean()), (0, 0));
        (1..=100).for_each(|micros| durations.add(micros));
        assert_eq!((durations.percentile(50), durations.percentile(99), durations.max), (50, 99, 100));
        assert_eq!((durations.count, durations.total, durations.mean()), (100, 5050, 50));
    }

    proptest! {
        #[test]
        fn bucket_is_within_one_percent(micros in any::<u64>()) {
            let middle = middle_of(bucket_of(micros));
            prop_assert!(middle.abs_diff(micros) as f64 <= 0.01 * micros as f64 + 0.5, "{} {}", micros, middle);
        }

        #[test]
        fn longer_durations_have_later_buckets(one in any::<u64>(), other in any::<u64>()) {
            prop_assert!((one <= other) <= (bucket_of(one) <= bucket_of(other)));
        }
    }
}
