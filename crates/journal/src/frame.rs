//! One record as bytes: a head of 24 bytes and the payload.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | length of the payload |
//! | 4 | 4 | check |
//! | 8 | 8 | time, nanoseconds since 1970 |
//! | 16 | 6 | sequence number within the stripe |
//! | 22 | 1 | class |
//! | 23 | 1 | kind |
//!
//! All numbers are little-endian. The check is the CRC32C of length, class, kind, two zeros, time and payload,
//! XORed with a word made of the segment's salt and the sequence number, so a record that an earlier life of a recycled
//! segment left behind fails its check although its bytes are intact.
//!
//! A staged frame has no check yet. Whoever writes it computes it ([`check`]), away from the stripe's lock and from
//! producers: only then is it known which segment the frame goes to.

use crate::{note::Class, time::Time};

pub(crate) const HEAD_BYTES: usize = 24;
/// No record is larger, whatever the configuration; a reader refuses a longer length before it reads on.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 16 << 20;
const SEQ_MAX: u64 = (1 << 48) - 1;
/// Two words, so that the checksum of a head is two instructions.
const HEAD_CHECKED: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Record = 1,
    /// Records were lost here.
    Gap = 2,
    /// The segment ends here, and the payload sums it up.
    Seal = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Record),
            2 => Some(Self::Gap),
            3 => Some(Self::Seal),
            _ => None,
        }
    }
}

/// A record that is ready but for its number and its check. The payload is at most [`PAYLOAD_BYTES_MAX`] bytes; whoever
/// makes one has seen to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framed<'a> {
    pub(crate) time: Time,
    pub(crate) class: Class,
    pub(crate) kind: Kind,
    pub(crate) payload: &'a [u8],
}

impl Framed<'_> {
    pub(crate) fn bytes(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }

    /// Without a check.
    #[inline]
    pub(crate) fn write(&self, seq: u64, out: &mut Vec<u8>) {
        let last = (seq & SEQ_MAX) | u64::from(self.class.index()) << 48 | (self.kind as u64) << 56;
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&(self.payload.len() as u64).to_le_bytes());
        head[8..16].copy_from_slice(&self.time.unix_nanos().to_le_bytes());
        head[16..].copy_from_slice(&last.to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(self.payload);
    }

    /// With the check of a segment.
    pub(crate) fn write_checked(&self, seq: u64, salt: u32, out: &mut Vec<u8>) {
        let from = out.len();
        self.write(seq, out);
        check(&mut out[from..], salt);
    }
}

/// The CRC32C of what a check covers.
#[inline]
fn crc(head: &[u8; HEAD_BYTES], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc_of_head(head), payload)
}

#[inline]
fn crc_of_head(head: &[u8; HEAD_BYTES]) -> u32 {
    // Two whole words: parts of one that are stored apart cannot be loaded as one at once.
    let first = u64::from(u32_at(head, 0)) | u64::from(head[22]) << 32 | u64::from(head[23]) << 40;
    let mut checked = [0; HEAD_CHECKED];
    checked[..8].copy_from_slice(&first.to_le_bytes());
    checked[8..].copy_from_slice(&head[8..16]);
    crc32c::crc32c(&checked)
}

/// The word that ties a check to its segment and its place in it.
#[inline]
fn binding(salt: u32, seq: u64) -> u32 {
    let mixed = (seq ^ (u64::from(salt) << 16)).wrapping_add(u64::from(salt)).wrapping_mul(MIX);
    (mixed >> 32) as u32
}

const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// The salts with which the frame at the beginning of `bytes` would hold. There is one, more or less, as a salt has as many
/// bits as the word that binds a check; which one it is the other frames have to tell.
pub(crate) fn salts(bytes: &[u8]) -> Vec<u32> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Vec::new() };
    let payload = plausible(head).and_then(|(len, _)| bytes.get(HEAD_BYTES..HEAD_BYTES + len));
    payload.map_or_else(Vec::new, |payload| unbind(crc(head, payload) ^ u32_at(head, 4), seq_of(head)))
}

/// The salts of which [`binding`] makes a word. The halves of a salt go into the sum by two addends, and the word is the upper
/// half of that sum, but for what the lower one carries: for each lower half of a salt, the upper one is looked up by its
/// addend.
fn unbind(word: u32, seq: u64) -> Vec<u32> {
    const BUCKETS: usize = 1 << 16;
    let low_seq = seq & u64::from(u32::MAX);
    let upper = |half: u64| (((seq >> 32) ^ half) << 32).wrapping_add(half << 16).wrapping_mul(MIX);
    let lower = |half: u64| (low_seq ^ (half << 16)).wrapping_add(half).wrapping_mul(MIX);
    // Upper halves whose addends begin with the same 16 bits: the last of them, and of each the one before it.
    let (mut last, mut before) = (vec![0_u32; BUCKETS], vec![0_u32; BUCKETS]);
    for (half, before) in (0_u32..).zip(&mut before) {
        let bucket = (upper(u64::from(half)) >> 48) as usize;
        *before = std::mem::replace(&mut last[bucket], half + 1);
    }
    let mut found = Vec::new();
    for half in 0..BUCKETS as u64 {
        let (addend, salt) = (lower(half), half as u32);
        let rest = word.wrapping_sub((addend >> 32) as u32);
        let buckets = [rest >> 16, rest.wrapping_sub(1) >> 16];
        for bucket in &buckets[..if buckets[0] == buckets[1] { 1 } else { 2 }] {
            let mut next = last[*bucket as usize];
            while let Some(half) = next.checked_sub(1) {
                if (upper(u64::from(half)).wrapping_add(addend) >> 32) as u32 == word {
                    found.push(half << 16 | salt);
                }
                next = before[half as usize];
            }
        }
    }
    found
}

/// A frame whose check holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) time: Time,
    pub(crate) seq: u64,
    pub(crate) class: Class,
    pub(crate) kind: Kind,
    pub(crate) payload: &'a [u8],
}

impl Frame<'_> {
    pub(crate) fn bytes(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }
}

/// What stands at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decoded<'a> {
    Frame(Frame<'a>),
    /// It may be a frame, if there are at least so many bytes in all.
    Short(usize),
    Bad,
}

/// Reads the frame at the beginning of `bytes`. Allocates nothing and trusts nothing.
pub(crate) fn decode(bytes: &[u8], salt: u32) -> Decoded<'_> {
    decode_by(bytes, salt, crc32c::crc32c_append)
}

/// [`decode`] by somebody who knows how the CRC32C of the head goes on over the payload.
pub(crate) fn decode_by(bytes: &[u8], salt: u32, append: impl FnOnce(u32, &[u8]) -> u32) -> Decoded<'_> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
        return Decoded::Short(HEAD_BYTES);
    };
    let Some((len, kind)) = plausible(head) else {
        return Decoded::Bad;
    };
    let Some(payload) = bytes.get(HEAD_BYTES..HEAD_BYTES + len) else {
        return Decoded::Short(HEAD_BYTES + len);
    };
    let (time, seq) = (Time::from_unix_nanos(u64_at(head, 8)), seq_of(head));
    if append(crc_of_head(head), payload) ^ binding(salt, seq) != u32_at(head, 4) {
        return Decoded::Bad;
    }
    Decoded::Frame(Frame { time, seq, class: Class::new(head[22]), kind, payload })
}

fn plausible(head: &[u8; HEAD_BYTES]) -> Option<(usize, Kind)> {
    let len = u32_at(head, 0) as usize;
    let kind = Kind::of(head[23])?;
    (len <= PAYLOAD_BYTES_MAX).then_some((len, kind))
}

/// The length of the frame at `at`, in bytes that this process wrote.
pub(crate) fn len_at(bytes: &[u8], at: usize) -> usize {
    let head = bytes[at..].first_chunk::<HEAD_BYTES>().expect("staged frames are whole");
    HEAD_BYTES + u32_at(head, 0) as usize
}

/// The class, the number and the time of the frame at `at`, in bytes that this process wrote.
pub(crate) fn staged_at(bytes: &[u8], at: usize) -> Frame<'_> {
    let head = bytes[at..].first_chunk::<HEAD_BYTES>().expect("staged frames are whole");
    let payload = &bytes[at + HEAD_BYTES..at + len_at(bytes, at)];
    let kind = Kind::of(head[23]).expect("staged frames have a kind");
    let (time, seq) = (Time::from_unix_nanos(u64_at(head, 8)), seq_of(head));
    Frame { time, seq, class: Class::new(head[22]), kind, payload }
}

/// Gives whole staged frames the checks of a segment, whatever they had before.
pub(crate) fn check(mut frames: &mut [u8], salt: u32) {
    while !frames.is_empty() {
        let len = len_at(frames, 0);
        let (frame, rest) = frames.split_at_mut(len);
        let (head, payload) = frame.split_first_chunk_mut::<HEAD_BYTES>().expect("staged frames are whole");
        let check = crc(head, payload) ^ binding(salt, seq_of(head));
        head[4..8].copy_from_slice(&check.to_le_bytes());
        frames = rest;
    }
}

fn seq_of(head: &[u8; HEAD_BYTES]) -> u64 {
    u64_at(head, 16) & SEQ_MAX
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn written(seq: u64, salt: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let (class, time) = (Class::new(3), Time::from_unix_nanos(77));
        Framed { kind: Kind::Record, class, time, payload }.write_checked(seq, salt, &mut out);
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = written(9, 5, b"hello");
        let Decoded::Frame(frame) = decode(&bytes, 5) else { panic!("a frame") };
        assert_eq!((frame.seq, frame.class.index(), frame.payload), (9, 3, b"hello".as_slice()));
        assert_eq!(frame.time.unix_nanos(), 77);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let bytes = written(9, 5, b"hello");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&flipped, 5), Decoded::Frame(_)), "bit {bit}");
        }
    }

    #[test]
    fn a_frame_is_bound_to_its_segment_and_can_be_bound_to_another() {
        let mut bytes = [written(9, 5, b"hello"), written(10, 5, b"")].concat();
        assert_eq!(decode(&bytes, 6), Decoded::Bad);
        check(&mut bytes, 6);
        assert!(matches!(decode(&bytes, 6), Decoded::Frame(_)));
        assert!(matches!(decode(&bytes[len_at(&bytes, 0)..], 6), Decoded::Frame(frame) if frame.seq == 10));
    }

    #[test]
    fn a_frame_tells_the_salt_that_it_was_written_with() {
        let mut random = fastrand::Rng::with_seed(7);
        for seq in [0, 1, u64::from(u32::MAX), SEQ_MAX, random.u64(..=SEQ_MAX)] {
            for salt in [0, 1, 0xffff, 0x10000, u32::MAX, random.u32(..)] {
                let found = salts(&written(seq, salt, b"hello"));
                assert!(found.contains(&salt) && found.len() < 32, "{seq} {salt}: {found:?}");
                let is_bound = |salt: &u32| matches!(decode(&written(seq, *salt, b""), *salt), Decoded::Frame(_));
                assert!(found.iter().all(is_bound));
            }
        }
        assert!(salts(&written(9, 5, b"hello")[..28]).is_empty(), "it is not there whole");
    }

    #[test]
    fn zeros_are_no_frame_and_a_part_is_short() {
        assert_eq!(decode(&[0; 64], 0), Decoded::Bad);
        let bytes = written(9, 5, b"hello");
        for len in 0..bytes.len() {
            assert!(matches!(decode(&bytes[..len], 5), Decoded::Short(_)), "{len}");
        }
    }
}
