//! The framing of one record: a header of 24 bytes and the payload.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | length of the payload |
//! | 4 | 4 | checksum |
//! | 8 | 8 | time, nanoseconds since 1970 |
//! | 16 | 6 | sequence number within the stripe |
//! | 22 | 1 | class |
//! | 23 | 1 | kind |
//!
//! All numbers are little-endian. The checksum is the CRC32C of length, class, kind, two zeros, time and payload, XORed
//! with a mask made of the segment's salt and the sequence number. A record from an earlier use of a recycled segment
//! therefore fails its checksum although its bytes are intact.
//!
//! A staged frame has no checksum yet. The writer thread computes it ([`write_checksums`]) outside the stripe's lock: only then
//! is the segment of the frame known, and producers do not pay for it.

use crate::{producer_record::Class, timestamp::Timestamp};

pub(crate) const HEAD_BYTES: usize = 24;
/// The largest payload in any configuration; the reader rejects a longer length before it reads on.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 16 << 20;
const SEQ_MAX: u64 = (1 << 48) - 1;
/// Two words, so that the checksum of a header takes two instructions.
const CHECKSUMMED_HEADER_BYTES: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    Record = 1,
    /// Records were lost here.
    Gap = 2,
    /// The last frame of a segment; its payload is the summary.
    Seal = 3,
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Record),
            2 => Some(Self::Gap),
            3 => Some(Self::Seal),
            _ => None,
        }
    }
}

/// A frame to write, without sequence number and checksum. The caller ensures a payload of at most [`PAYLOAD_BYTES_MAX`]
/// bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameInput<'a> {
    pub(crate) time: Timestamp,
    pub(crate) class: Class,
    pub(crate) kind: FrameKind,
    pub(crate) payload: &'a [u8],
}

impl FrameInput<'_> {
    pub(crate) fn bytes(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }

    /// Writes the frame without a checksum.
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

    /// Writes the frame with the checksum of a segment.
    pub(crate) fn write_with_checksum(&self, seq: u64, salt: u32, out: &mut Vec<u8>) {
        let from = out.len();
        self.write(seq, out);
        write_checksums(&mut out[from..], salt);
    }
}

/// The CRC32C of the covered fields.
#[inline]
fn crc(head: &[u8; HEAD_BYTES], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(header_crc(head), payload)
}

#[inline]
fn header_crc(head: &[u8; HEAD_BYTES]) -> u32 {
    // Whole words, because a wide load of bytes that were stored separately stalls (store forwarding).
    let first = u64::from(u32_at(head, 0)) | u64::from(head[22]) << 32 | u64::from(head[23]) << 40;
    let mut checked = [0; CHECKSUMMED_HEADER_BYTES];
    checked[..8].copy_from_slice(&first.to_le_bytes());
    checked[8..].copy_from_slice(&head[8..16]);
    crc32c::crc32c(&checked)
}

/// The mask that binds a checksum to its segment and sequence number.
#[inline]
fn checksum_mask(salt: u32, seq: u64) -> u32 {
    let mixed = (seq ^ (u64::from(salt) << 16)).wrapping_add(u64::from(salt)).wrapping_mul(MIX);
    (mixed >> 32) as u32
}

const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// The salts with which the checksum of the frame at the start of `bytes` would match. On average there is one, as a salt
/// has as many bits as the mask; other frames have to confirm it.
pub(crate) fn candidate_salts(bytes: &[u8]) -> Vec<u32> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Vec::new() };
    let payload = parse_header(head).and_then(|(len, _)| bytes.get(HEAD_BYTES..HEAD_BYTES + len));
    payload.map_or_else(Vec::new, |payload| salts_of_mask(crc(head, payload) ^ u32_at(head, 4), seq_of(head)))
}

/// The salts for which [`checksum_mask`] yields `word`. The halves of a salt enter the sum by two addends, and the mask
/// is the upper half of that sum, apart from the carry of the lower one: for each lower half of a salt, the upper one is
/// looked up by its addend.
fn salts_of_mask(word: u32, seq: u64) -> Vec<u32> {
    const BUCKETS: usize = 1 << 16;
    let low_seq = seq & u64::from(u32::MAX);
    let upper = |half: u64| (((seq >> 32) ^ half) << 32).wrapping_add(half << 16).wrapping_mul(MIX);
    let lower = |half: u64| (low_seq ^ (half << 16)).wrapping_add(half).wrapping_mul(MIX);
    // Upper halves whose addends begin with the same 16 bits: the last of them, and for each the previous one.
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

/// A frame with a valid checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JournalFrame<'a> {
    pub(crate) time: Timestamp,
    pub(crate) seq: u64,
    pub(crate) class: Class,
    pub(crate) kind: FrameKind,
    pub(crate) payload: &'a [u8],
}

impl JournalFrame<'_> {
    pub(crate) fn bytes(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }
}

/// The result of decoding at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DecodeResult<'a> {
    Frame(JournalFrame<'a>),
    /// Possibly a frame, if there are at least this many bytes in all.
    Incomplete(usize),
    Invalid,
}

/// Decodes the frame at the start of `bytes`. Does not allocate and does not trust the input.
pub(crate) fn decode(bytes: &[u8], salt: u32) -> DecodeResult<'_> {
    decode_with(bytes, salt, crc32c::crc32c_append)
}

/// Like [`decode`], with a function that continues the CRC32C of the header over the payload.
pub(crate) fn decode_with(bytes: &[u8], salt: u32, append: impl FnOnce(u32, &[u8]) -> u32) -> DecodeResult<'_> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
        return DecodeResult::Incomplete(HEAD_BYTES);
    };
    let Some((len, kind)) = parse_header(head) else {
        return DecodeResult::Invalid;
    };
    let Some(payload) = bytes.get(HEAD_BYTES..HEAD_BYTES + len) else {
        return DecodeResult::Incomplete(HEAD_BYTES + len);
    };
    let (time, seq) = (Timestamp::from_unix_nanos(u64_at(head, 8)), seq_of(head));
    if append(header_crc(head), payload) ^ checksum_mask(salt, seq) != u32_at(head, 4) {
        return DecodeResult::Invalid;
    }
    DecodeResult::Frame(JournalFrame { time, seq, class: Class::new(head[22]), kind, payload })
}

fn parse_header(head: &[u8; HEAD_BYTES]) -> Option<(usize, FrameKind)> {
    let len = u32_at(head, 0) as usize;
    let kind = FrameKind::of(head[23])?;
    (len <= PAYLOAD_BYTES_MAX).then_some((len, kind))
}

/// The length of the frame at `at`, in bytes that this process wrote.
pub(crate) fn frame_len_at(bytes: &[u8], at: usize) -> usize {
    let head = bytes[at..].first_chunk::<HEAD_BYTES>().expect("staged frames are whole");
    HEAD_BYTES + u32_at(head, 0) as usize
}

/// The class, the sequence number and the time of the frame at `at`, in bytes that this process wrote.
pub(crate) fn staged_frame_at(bytes: &[u8], at: usize) -> JournalFrame<'_> {
    let head = bytes[at..].first_chunk::<HEAD_BYTES>().expect("staged frames are whole");
    let payload = &bytes[at + HEAD_BYTES..at + frame_len_at(bytes, at)];
    let kind = FrameKind::of(head[23]).expect("staged frames have a kind");
    let (time, seq) = (Timestamp::from_unix_nanos(u64_at(head, 8)), seq_of(head));
    JournalFrame { time, seq, class: Class::new(head[22]), kind, payload }
}

/// Overwrites the checksums of whole staged frames with those of a segment.
pub(crate) fn write_checksums(mut frames: &mut [u8], salt: u32) {
    while !frames.is_empty() {
        let len = frame_len_at(frames, 0);
        let (frame, rest) = frames.split_at_mut(len);
        let (head, payload) = frame.split_first_chunk_mut::<HEAD_BYTES>().expect("staged frames are whole");
        let checksum = crc(head, payload) ^ checksum_mask(salt, seq_of(head));
        head[4..8].copy_from_slice(&checksum.to_le_bytes());
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
        let (class, time) = (Class::new(3), Timestamp::from_unix_nanos(77));
        FrameInput { kind: FrameKind::Record, class, time, payload }.write_with_checksum(seq, salt, &mut out);
        out
    }

    #[test]
    fn decodes_what_was_written() {
        let bytes = written(9, 5, b"hello");
        let DecodeResult::Frame(frame) = decode(&bytes, 5) else { panic!("a frame") };
        assert_eq!((frame.seq, frame.class.index(), frame.payload), (9, 3, b"hello".as_slice()));
        assert_eq!(frame.time.unix_nanos(), 77);
    }

    #[test]
    fn detects_every_bit_flip() {
        let bytes = written(9, 5, b"hello");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&flipped, 5), DecodeResult::Frame(_)), "bit {bit}");
        }
    }

    #[test]
    fn checksum_is_bound_to_segment() {
        let mut bytes = [written(9, 5, b"hello"), written(10, 5, b"")].concat();
        assert_eq!(decode(&bytes, 6), DecodeResult::Invalid);
        write_checksums(&mut bytes, 6);
        assert!(matches!(decode(&bytes, 6), DecodeResult::Frame(_)));
        assert!(matches!(decode(&bytes[frame_len_at(&bytes, 0)..], 6), DecodeResult::Frame(frame) if frame.seq == 10));
    }

    #[test]
    fn finds_the_salt_of_a_frame() {
        let mut random = fastrand::Rng::with_seed(7);
        for seq in [0, 1, u64::from(u32::MAX), SEQ_MAX, random.u64(..=SEQ_MAX)] {
            for salt in [0, 1, 0xffff, 0x10000, u32::MAX, random.u32(..)] {
                let found = candidate_salts(&written(seq, salt, b"hello"));
                assert!(found.contains(&salt) && found.len() < 32, "{seq} {salt}: {found:?}");
                let is_bound = |salt: &u32| matches!(decode(&written(seq, *salt, b""), *salt), DecodeResult::Frame(_));
                assert!(found.iter().all(is_bound));
            }
        }
        assert!(candidate_salts(&written(9, 5, b"hello")[..28]).is_empty(), "the frame is incomplete");
    }

    #[test]
    fn zeros_are_no_frame_and_partial_is_incomplete() {
        assert_eq!(decode(&[0; 64], 0), DecodeResult::Invalid);
        let bytes = written(9, 5, b"hello");
        for len in 0..bytes.len() {
            assert!(matches!(decode(&bytes[..len], 5), DecodeResult::Incomplete(_)), "{len}");
        }
    }
}
