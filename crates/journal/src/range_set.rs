//! A set of sequence numbers, stored as ranges.

use std::ops::Range;

/// Sorted ranges that do not touch. Beyond [`RangeSet::MAX`], the oldest ranges are merged and include the numbers
/// between them.
#[derive(Debug, Default)]
pub(crate) struct RangeSet(Vec<Range<u64>>);

impl RangeSet {
    /// The largest number of ranges.
    const MAX: usize = 1024;

    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let from = self.0.partition_point(|known| known.end < range.start);
        let to = self.0.partition_point(|known| known.start <= range.end);
        let touched = &self.0[from..to];
        let start = touched.first().map_or(range.start, |first| first.start.min(range.start));
        let end = touched.last().map_or(range.end, |last| last.end.max(range.end));
        self.0.splice(from..to, std::iter::once(start..end));
        if self.0.len() > Self::MAX {
            self.0[0].end = self.0.remove(1).end;
        }
    }

    pub(crate) fn contains(&self, seq: u64) -> bool {
        let at = self.0.partition_point(|known| known.end <= seq);
        self.0.get(at).is_some_and(|known| known.start <= seq)
    }

    /// The smallest number.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.first().map(|first| first.start)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn contains_exactly_the_added_numbers(ranges in prop::collection::vec((0_u64..100, 0_u64..10), 0..20)) {
            let (mut set, mut numbers) = (RangeSet::default(), BTreeSet::new());
            for (start, len) in ranges {
                set.add(start..start + len);
                numbers.extend(start..start + len);
                let apart = set.0.windows(2).all(|pair| pair[0].end < pair[1].start);
                prop_assert!(apart && set.0.iter().all(|range| !range.is_empty()), "{:?}", set);
            }
            for number in 0..120 {
                prop_assert_eq!(set.contains(number), numbers.contains(&number), "{}", number);
            }
        }
    }

    #[test]
    fn merges_the_oldest_ranges_at_the_limit() {
        let mut set = RangeSet::default();
        for number in 0..2 * RangeSet::MAX as u64 {
            set.add(2 * number..2 * number + 1);
        }
        assert_eq!(set.0.len(), RangeSet::MAX);
        assert!(set.contains(0) && set.contains(1), "the merged range includes the numbers between");
        let last = 4 * RangeSet::MAX as u64 - 2;
        assert!(set.contains(last) && !set.contains(last - 1));
    }
}
