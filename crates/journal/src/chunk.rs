//! A run of whole frames on its way to the disk, and the part of the bound that it takes.

use crate::{
    frame::{self, Framed},
    time::Time,
};

#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    /// What it takes of the bound; it never grows beyond.
    charge: usize,
    /// Of the segment that its checks are of, if they were computed.
    salt: Option<u32>,
    records: u64,
    /// First and last number, if it holds any.
    seqs: (u64, u64),
    /// Earliest and latest time, if it holds any.
    times: (Time, Time),
    pinned: bool,
}

impl Chunk {
    pub(crate) fn new(mut buffer: Vec<u8>, charge: usize) -> Self {
        buffer.clear();
        let (seqs, times) = ((0, 0), (Time::MAX, Time::MIN));
        Self { bytes: buffer, charge, salt: None, records: 0, seqs, times, pinned: false }
    }

    /// Small, and outside of the bound: for the few bytes that tell of losses.
    pub(crate) fn outside_of_bound() -> Self {
        Self::new(Vec::new(), 0)
    }

    #[inline]
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= self.charge
    }

    #[inline]
    pub(crate) fn push(&mut self, framed: &Framed<'_>, seq: u64) {
        framed.write(seq, &mut self.bytes);
        self.note(seq, framed.time);
    }

    #[inline]
    fn note(&mut self, seq: u64, time: Time) {
        let first = if self.records == 0 { seq } else { self.seqs.0 };
        self.records += 1;
        self.seqs = (first, seq);
        self.times = (self.times.0.min(time), self.times.1.max(time));
    }

    /// Its records are waited for, so newer ones may not displace them.
    pub(crate) fn pin(&mut self) {
        self.pinned = true;
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Gives the frames the checks of the segment that they go to.
    pub(crate) fn check(&mut self, salt: u32) {
        if self.salt != Some(salt) {
            frame::check(&mut self.bytes, salt);
            self.salt = Some(salt);
        }
    }

    /// Takes out the frames that `drops` names; it sees each frame once, in order.
    pub(crate) fn strip(&mut self, mut drops: impl FnMut(&frame::Frame<'_>) -> bool) {
        let (mut from, mut to) = (0, 0);
        (self.records, self.times) = (0, (Time::MAX, Time::MIN));
        while from < self.bytes.len() {
            let staged = frame::staged_at(&self.bytes, from);
            let (len, seq, time) = (staged.bytes(), staged.seq, staged.time);
            if !drops(&staged) {
                self.note(seq, time);
                self.bytes.copy_within(from..from + len, to);
                to += len;
            }
            from += len;
        }
        self.bytes.truncate(to);
    }

    /// Takes over the frames of the chunk after it, if they fit. Both are staged.
    pub(crate) fn absorb(&mut self, next: &Self) -> bool {
        if !self.has_room_for(next.bytes.len()) {
            return false;
        }
        self.bytes.extend_from_slice(&next.bytes);
        let seqs = join(self.seqs(), next.seqs());
        self.seqs = seqs.unwrap_or_default();
        self.times = (self.times.0.min(next.times.0), self.times.1.max(next.times.1));
        self.records += next.records;
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    pub(crate) fn seqs(&self) -> Option<(u64, u64)> {
        (self.records > 0).then_some(self.seqs)
    }

    pub(crate) fn times(&self) -> Option<(Time, Time)> {
        (self.records > 0).then_some(self.times)
    }

    pub(crate) fn charge(&self) -> usize {
        self.charge
    }

    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

pub(crate) fn join<T: Ord + Copy>(one: Option<(T, T)>, other: Option<(T, T)>) -> Option<(T, T)> {
    match (one, other) {
        (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
        (one, other) => one.or(other),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{frame::Kind, note::Class};

    const SALT: u32 = 7;

    fn chunk(seqs: std::ops::Range<u64>) -> Chunk {
        let mut chunk = Chunk::new(Vec::new(), 1000);
        for seq in seqs {
            let (class, time, payload) = (Class::new(0), Time::from_unix_nanos(seq), seq.to_string());
            chunk.push(&Framed { kind: Kind::Record, class, time, payload: payload.as_bytes() }, seq);
        }
        chunk
    }

    fn seqs(mut chunk: Chunk) -> Vec<u64> {
        chunk.check(SALT);
        let (mut at, mut found) = (0, Vec::new());
        while at < chunk.bytes.len() {
            let frame::Decoded::Frame(frame) = frame::decode(&chunk.bytes[at..], SALT) else { panic!("whole") };
            found.push(frame.seq);
            at += frame.bytes();
        }
        found
    }

    #[test]
    fn what_is_stripped_is_gone_and_the_rest_is_whole() {
        let mut chunk = chunk(0..10);
        chunk.strip(|frame| frame.seq % 3 == 0);
        assert_eq!((chunk.records, chunk.seqs()), (6, Some((1, 8))));
        assert_eq!(chunk.times(), Some((Time::from_unix_nanos(1), Time::from_unix_nanos(8))));
        assert_eq!(seqs(chunk), [1, 2, 4, 5, 7, 8]);
    }

    #[test]
    fn a_chunk_without_records_has_neither_numbers_nor_times() {
        let mut chunk = chunk(0..2);
        chunk.strip(|_| true);
        assert_eq!((chunk.seqs(), chunk.times(), chunk.is_empty()), (None, None, true));
    }

    #[test]
    fn chunks_join_in_order_and_can_go_to_another_segment() {
        let mut first = chunk(0..3);
        assert!(first.absorb(&chunk(3..5)));
        first.check(9);
        assert_eq!(seqs(first), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_empty_chunk_takes_over_the_numbers_of_the_next_one() {
        let mut first = chunk(0..1);
        first.strip(|_| true);
        assert!(first.absorb(&chunk(4..6)));
        assert_eq!((first.records, first.seqs()), (2, Some((4, 5))));
    }
}
