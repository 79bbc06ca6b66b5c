//! The check of any stretch of some bytes, in a time that hardly depends on its length.
//!
//! Who looks for frames among bytes that only look like some would else read what each of them may be to its end: bytes times
//! the length of a record. A CRC is linear, so that of a stretch follows from those of what stands before its two ends
//! ("Fast CRC Computation", as in `crc32_combine` of zlib).

use std::ops::Range;

/// Between two places whose check is kept.
pub(crate) const STEP: usize = 1 << 10;
/// A stretch of less is read.
const SHORT: usize = 4 * STEP;
/// Of CRC32C, the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// By what a check is multiplied for `1 << index` zero bytes behind it.
const ZEROS: [u32; usize::BITS as usize] = zeros();

/// The checks of the beginnings of a buffer, as far as somebody asked for them.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// Where in the file the buffer begins.
    base: u64,
    /// Of the first `index * STEP` bytes of the buffer, and of what was before it.
    marks: Vec<u32>,
}

impl Prefixes {
    /// `crc` goes on over a stretch of a buffer that begins at `base` in its file. What is in the buffer does not change from one
    /// call to the next, but its beginning may be gone.
    pub(crate) fn append(&mut self, crc: u32, buffer: &[u8], base: u64, stretch: Range<usize>) -> u32 {
        if stretch.len() < SHORT {
            return crc32c::crc32c_append(crc, &buffer[stretch]);
        }
        self.begin_at(base);
        let (before, until) = (self.of(buffer, stretch.start), self.of(buffer, stretch.end));
        behind_zeros(crc ^ before, stretch.len()) ^ until
    }

    fn begin_at(&mut self, base: u64) {
        let gone = usize::try_from(base - self.base).unwrap_or(usize::MAX);
        self.base = base;
        if !gone.is_multiple_of(STEP) || gone / STEP >= self.marks.len() {
            self.marks.clear();
            self.marks.push(0);
        } else {
            self.marks.drain(..gone / STEP);
        }
    }

    /// The check of what stands before `end`.
    fn of(&mut self, buffer: &[u8], end: usize) -> u32 {
        while let Some(known) = self.marks.len().checked_sub(1)
            && known < end / STEP
        {
            self.marks.push(crc32c::crc32c_append(self.marks[known], &buffer[known * STEP..(known + 1) * STEP]));
        }
        crc32c::crc32c_append(self.marks[end / STEP], &buffer[end / STEP * STEP..end])
    }
}

/// The check of the same bytes with zeros behind them, but for what those do to the check of nothing.
fn behind_zeros(crc: u32, zeros: usize) -> u32 {
    (0..usize::BITS as usize).filter(|bit| zeros >> bit & 1 == 1).fold(crc, |crc, bit| product(ZEROS[bit], crc))
}

const fn zeros() -> [u32; usize::BITS as usize] {
    // x^8 is one byte; each is the square of the one before it.
    let mut powers = [1 << 23; usize::BITS as usize];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = product(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
}

/// Of two polynomials, modulo that of the check.
const fn product(left: u32, mut right: u32) -> u32 {
    let (mut sum, mut bit) = (0, 1 << 31);
    while bit != 0 {
        if left & bit != 0 {
            sum ^= right;
        }
        right = right >> 1 ^ if right & 1 == 1 { POLYNOMIAL } else { 0 };
        bit >>= 1;
    }
    sum
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_check_of_a_stretch_is_the_one_that_reading_it_gives() {
        let mut random = fastrand::Rng::with_seed(7);
        let all: Vec<u8> = (0..200_000).map(|_| random.u8(..)).collect();
        let (mut prefixes, mut base) = (Prefixes::default(), 0);
        for round in 0..2_000 {
            if round % 50 == 49 {
                base += if random.bool() { random.usize(..40) * STEP / 8 } else { random.usize(..4) * STEP };
                base = base.min(all.len() - 10 * SHORT);
            }
            let buffer = &all[base..];
            let from = random.usize(..buffer.len());
            let to = random.usize(from..=buffer.len());
            let crc = random.u32(..);
            let read = crc32c::crc32c_append(crc, &buffer[from..to]);
            assert_eq!(prefixes.append(crc, buffer, base as u64, from..to), read, "{base} {from} {to}");
        }
    }
}
