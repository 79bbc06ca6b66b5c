//! A set of numbers that come in runs.

use std::ops::Range;

/// Numbers, as stretches in order of which none touches another. The oldest of very many stand for all between them.
#[derive(Debug, Default)]
pub(crate) struct Stretches(Vec<Range<u64>>);

impl Stretches {
    /// As many stretches as are kept apart.
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

    pub(crate) fn has(&self, seq: u64) -> bool {
        let at = self.0.partition_point(|known| known.end <= seq);
        self.0.get(at).is_some_and(|known| known.start <= seq)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_what_was_added_and_nothing_else(ranges in prop::collection::vec((0_u64..100, 0_u64..10), 0..20)) {
            let (mut stretches, mut numbers) = (Stretches::default(), BTreeSet::new());
            for (start, len) in ranges {
                stretches.add(start..start + len);
                numbers.extend(start..start + len);
                let apart = stretches.0.windows(2).all(|pair| pair[0].end < pair[1].start);
                prop_assert!(apart && stretches.0.iter().all(|range| !range.is_empty()), "{:?}", stretches);
            }
            for number in 0..120 {
                prop_assert_eq!(stretches.has(number), numbers.contains(&number), "{}", number);
            }
        }
    }

    #[test]
    fn the_oldest_of_very_many_become_one() {
        let mut stretches = Stretches::default();
        for number in 0..2 * Stretches::MAX as u64 {
            stretches.add(2 * number..2 * number + 1);
        }
        assert_eq!(stretches.0.len(), Stretches::MAX);
        assert!(stretches.has(0) && stretches.has(1), "the oldest stand for those between them");
        let last = 4 * Stretches::MAX as u64 - 2;
        assert!(stretches.has(last) && !stretches.has(last - 1));
    }
}
