//! The CRC of any range of a buffer, in almost constant time.
//!
//! A search for frames in damaged bytes would otherwise read every candidate payload to its end: the number of bytes
//! times the length of a record. A CRC is linear, so the CRC of a range follows from the CRCs of the prefixes that end at
//! its two ends ("Fast CRC Computation", as in `crc32_combine` of zlib).

use std::ops::Range;

/// The distance between two stored prefix CRCs.
pub(crate) const STEP: usize = 1 << 10;
/// Shorter ranges are read.
const SHORT_RANGE: usize = 4 * STEP;
/// The polynomial of CRC32C, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// `ZEROS[index]`: the factor that appends `1 << index` zero bytes to a CRC.
const ZEROS: [u32; usize::BITS as usize] = zeros();

/// The prefix CRCs of a buffer, computed on demand.
#[derive(Debug, Default)]
pub(crate) struct CrcIndex {
    /// The offset of the buffer in the file.
    base: u64,
    /// The CRC of the bytes before `index * STEP` in the buffer, up to a constant start value.
    prefix_crcs: Vec<u32>,
}

impl CrcIndex {
    /// Continues `crc` over a range of a buffer that begins at `base` in its file. The content of the buffer must not
    /// change between calls, but its start may be dropped.
    pub(crate) fn append(&mut self, crc: u32, buffer: &[u8], base: u64, range: Range<usize>) -> u32 {
        if range.len() < SHORT_RANGE {
            return crc32c::crc32c_append(crc, &buffer[range]);
        }
        self.rebase(base);
        let (before, until) = (self.crc_before(buffer, range.start), self.crc_before(buffer, range.end));
        shift_by_zeros(crc ^ before, range.len()) ^ until
    }

    fn rebase(&mut self, base: u64) {
        let gone = usize::try_from(base - self.base).unwrap_or(usize::MAX);
        self.base = base;
        if !gone.is_multiple_of(STEP) || gone / STEP >= self.prefix_crcs.len() {
            self.prefix_crcs.clear();
            self.prefix_crcs.push(0);
        } else {
            self.prefix_crcs.drain(..gone / STEP);
        }
    }

    /// The CRC of the bytes before `end`.
    fn crc_before(&mut self, buffer: &[u8], end: usize) -> u32 {
        while let Some(known) = self.prefix_crcs.len().checked_sub(1)
            && known < end / STEP
        {
            self.prefix_crcs
                .push(crc32c::crc32c_append(self.prefix_crcs[known], &buffer[known * STEP..(known + 1) * STEP]));
        }
        crc32c::crc32c_append(self.prefix_crcs[end / STEP], &buffer[end / STEP * STEP..end])
    }
}

/// The CRC after appending zero bytes, without the contribution of the initial value.
fn shift_by_zeros(crc: u32, zeros: usize) -> u32 {
    (0..usize::BITS as usize).filter(|bit| zeros >> bit & 1 == 1).fold(crc, |crc, bit| product(ZEROS[bit], crc))
}

const fn zeros() -> [u32; usize::BITS as usize] {
    // x^8 is one byte; each power is the square of the previous one.
    let mut powers = [1 << 23; usize::BITS as usize];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = product(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
}

/// The product of two polynomials modulo `POLYNOMIAL`.
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
    fn crc_of_a_range_equals_the_one_from_reading() {
        let mut random = fastrand::Rng::with_seed(7);
        let all: Vec<u8> = (0..200_000).map(|_| random.u8(..)).collect();
        let (mut index, mut base) = (CrcIndex::default(), 0);
        for round in 0..2_000 {
            if round % 50 == 49 {
                base += if random.bool() { random.usize(..40) * STEP / 8 } else { random.usize(..4) * STEP };
                base = base.min(all.len() - 10 * SHORT_RANGE);
            }
            let buffer = &all[base..];
            let from = random.usize(..buffer.len());
            let to = random.usize(from..=buffer.len());
            let crc = random.u32(..);
            let read = crc32c::crc32c_append(crc, &buffer[from..to]);
            assert_eq!(index.append(crc, buffer, base as u64, from..to), read, "{base} {from} {to}");
        }
    }
}
