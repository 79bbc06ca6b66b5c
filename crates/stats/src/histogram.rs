//! How long things took, by their leading bits.
//!
//! The buckets are those of Prometheus' native histograms of schema 3: bucket `i` holds what is longer than 2^((i-1)/8)
//! seconds and at most 2^(i/8), so each is 9 % wider than the one below it. Which one a time belongs to is read off the bits
//! of its floating-point form: the exponent names the power of two, the upper bits of the mantissa name the eighth, but for
//! one comparison. Recording is that, and a plain increment; a histogram has memory for the powers of two that it has met.

use std::{cell::OnceCell, time::Duration};

use super::Counter;

/// Buckets of a power of two.
const PARTS: usize = 8;
/// Prometheus' number for eight buckets in a power of two: the logarithm of that.
pub const SCHEMA: i32 = 3;
/// Times up to 2 to this many seconds, about a microsecond, are as good as none.
const ZERO_EXPONENT: i32 = -20;
/// The same in seconds.
const ZERO: f64 = 1.0 / (1_u64 << -ZERO_EXPONENT) as f64;
/// The exponent of what is a little longer, as a floating-point number has it.
const FIRST_EXPONENT_BITS: usize = (f64::MAX_EXP - 1 + ZERO_EXPONENT) as usize;
/// Powers of two above it. The last bucket ends at 2^17 s, and holds what is longer as well.
const OCTAVES: usize = 37;
/// Where the last bucket ends, in seconds.
const LONGEST: f64 = (1_u64 << (OCTAVES as i32 + ZERO_EXPONENT)) as f64;
/// The number, in Prometheus' count, of the first bucket.
const FIRST: i32 = ZERO_EXPONENT * PARTS as i32 + 1;

const MANTISSA_BITS: u32 = 52;
const MANTISSA: u64 = (1 << MANTISSA_BITS) - 1;

/// 2^(1/8), 2^(2/8) and so on as mantissas, with a sentinel above all.
const BOUNDS: [u64; PARTS] = [
    1.090_507_732_665_257_7_f64.to_bits() & MANTISSA,
    1.189_207_115_002_721_f64.to_bits() & MANTISSA,
    1.296_839_554_651_009_6_f64.to_bits() & MANTISSA,
    std::f64::consts::SQRT_2.to_bits() & MANTISSA,
    1.542_210_825_407_940_7_f64.to_bits() & MANTISSA,
    1.681_792_830_507_429_f64.to_bits() & MANTISSA,
    1.834_008_086_409_342_4_f64.to_bits() & MANTISSA,
    u64::MAX,
];

/// Bits of a mantissa that narrow it down to two neighbouring buckets.
const INDEX_BITS: u32 = 4;

/// How many of [`BOUNDS`] are at most a mantissa with these upper bits and nothing behind them.
const PASSED: [u8; 1 << INDEX_BITS] = passed();

const fn passed() -> [u8; 1 << INDEX_BITS] {
    let mut table = [0; 1 << INDEX_BITS];
    let mut at = 0;
    while at < table.len() {
        let mantissa = (at as u64) << (MANTISSA_BITS - INDEX_BITS);
        while BOUNDS[table[at] as usize] <= mantissa {
            table[at] += 1;
        }
        at += 1;
    }
    table
}

/// Times, counted by one thread.
#[derive(Debug)]
pub struct Histogram {
    zero: Counter,
    octaves: [OnceCell<Box<[Counter; PARTS]>>; OCTAVES],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { zero: Counter::default(), octaves: [const { OnceCell::new() }; OCTAVES] }
    }
}

impl Histogram {
    /// Counts a time.
    #[inline]
    pub fn record(&self, time: Duration) {
        self.record_several(time, 1);
    }

    /// Counts so many that took as long as that.
    #[inline]
    pub fn record_several(&self, time: Duration, count: u32) {
        if cfg!(feature = "uncounted") {
            return;
        }
        match place(time) {
            None => self.zero.add(count.into()),
            Some((octave, close_with)) => self.octaves[octave].get_or_init(Box::default)[close_with].add(count.into()),
        }
    }

    /// Counts no time at all.
    #[inline]
    pub fn record_none(&self) {
        self.zero.add(1);
    }

    /// The distribution. `sum_us` is the sum of the durations, which the caller keeps.
    #[must_use]
    pub fn distribution(&self, sum_us: u64) -> Distribution {
        let counts = |octave: &OnceCell<Box<[Counter; PARTS]>>| match octave.get() {
            Some(parts) => parts.each_ref().map(Counter::get),
            None => [0; PARTS],
        };
        Distribution { sum_us, zero: self.zero.get(), counts: self.octaves.iter().flat_map(counts).collect() }
    }
}

/// The power of two and the eighth of it that a time belongs to; `None` if it is as good as none.
#[inline]
fn place(time: Duration) -> Option<(usize, usize)> {
    let whole = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let seconds = f64::from(whole) + f64::from(time.subsec_nanos()) * 1e-9;
    if seconds <= ZERO {
        return None;
    }
    // Buckets include their upper bound: one bit less, and each begins where its mantissa does.
    let bits = seconds.min(LONGEST).to_bits() - 1;
    let octave = (bits >> MANTISSA_BITS) as usize - FIRST_EXPONENT_BITS;
    let mantissa = bits & MANTISSA;
    let passed = PASSED[(mantissa >> (MANTISSA_BITS - INDEX_BITS)) as usize] as usize;
    Some((octave, passed + usize::from(mantissa >= BOUNDS[passed])))
}

/// The sum of one or several histograms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// All times together, in microseconds.
    pub sum_us: u64,
    /// Times that were as good as none.
    pub zero: u64,
    /// The buckets from the shortest on.
    counts: Vec<u64>,
}

impl Distribution {
    /// Upper bound of the zero bucket, in seconds.
    #[must_use]
    pub const fn zero_threshold() -> f64 {
        ZERO
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
        self.zero = self.zero.wrapping_add(other.zero);
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.wrapping_add(*more);
        }
    }

    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.zero.wrapping_add(self.counts.iter().copied().fold(0, u64::wrapping_add))
    }

    /// How many were at most 2 to this many seconds.
    #[must_use]
    pub fn at_most(&self, exponent: i32) -> u64 {
        let parts = usize::try_from(exponent - ZERO_EXPONENT).map_or(0, |octaves| octaves * PARTS);
        self.zero.wrapping_add(self.counts.iter().take(parts).copied().fold(0, u64::wrapping_add))
    }

    /// The buckets that are not empty: their numbers in Prometheus' count, and what they hold.
    pub fn buckets(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        (FIRST..).zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(time: Duration) -> Option<i32> {
        place(time).map(|(octave, close_with)| FIRST + (octave * PARTS + close_with) as i32)
    }

    #[test]
    fn what_ends_a_bucket_is_in_it() {
        for (nanos, expected) in [
            (0, None),
            (953, None),
            (954, Some(FIRST)),
            (500_000_000, Some(-8)),
            (500_000_001, Some(-7)),
            (1_000_000_000, Some(0)),
            (1_000_000_001, Some(1)),
            (1_090_507_732, Some(1)),
            (1_090_507_733, Some(2)),
            (2_000_000_000, Some(8)),
            (4_000_000_000, Some(16)),
            (131_072_000_000_000, Some(17 * 8)),
            (u64::MAX, Some(17 * 8)),
        ] {
            assert_eq!(number(Duration::from_nanos(nanos)), expected, "{nanos} ns");
        }
        assert_eq!(number(Duration::MAX), Some(17 * 8));
    }

    #[test]
    fn no_two_bounds_begin_with_the_same_bits() {
        let cells: Vec<_> = BOUNDS[..PARTS - 1].iter().map(|bound| bound >> (MANTISSA_BITS - INDEX_BITS)).collect();
        assert!(cells.is_sorted_by(|a, b| a < b), "{cells:?}");
    }

    proptest! {
        #[test]
        fn a_time_is_between_the_bounds_of_its_bucket(exponent in 10_u32..46, fraction: u64) {
            let nanos = (1_u64 << exponent) + fraction % (1 << exponent);
            let number = number(Duration::from_nanos(nanos)).expect("more than a microsecond");
            let bound = |number: i32| (f64::from(number) / 8.0).exp2();
            let seconds = nanos as f64 * 1e-9;
            // Powers are not computed to the last bit.
            let (below, above) = (bound(number - 1) * (1.0 - 1e-12), bound(number) * (1.0 + 1e-12));
            prop_assert!(below < seconds && seconds <= above, "{nanos} ns in {number}");
        }
    }

    #[test]
    fn threads_are_added_up() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.record(Duration::from_secs(1));
        one.record_none();
        other.record(Duration::from_secs(1));
        other.record(Duration::from_millis(3));
        let mut all = Distribution::default();
        all.add(&one.distribution(1_000_000));
        all.add(&other.distribution(1_003_000));
        assert_eq!((all.count(), all.zero, all.sum_us), (4, 1, 2_003_000));
        assert_eq!(
            (all.at_most(-30), all.at_most(-20), all.at_most(-8), all.at_most(0), all.at_most(40)),
            (1, 1, 2, 4, 4)
        );
        assert_eq!(all.buckets().collect::<Vec<_>>(), [(-67, 1), (0, 2)]);
    }
}
