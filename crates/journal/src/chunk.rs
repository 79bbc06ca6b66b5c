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
    salt: u32,
    records: u64,
    /// First and last number, if it holds any.
    seqs: Option<(u64, u64)>,
    /// Earliest and latest time.
    times: Option<(Time, Time)>,
    pinned: bool,
}

impl Chunk {
    pub(crate) fn new(mut buffer: Vec<u8>, charge: usize) -> Self {
        buffer.clear();
        Self { bytes: buffer, charge, salt: 0, records: 0, seqs: None, times: None, pinned: false }
    }

    /// Small, and outside of the bound: for the few bytes that tell of losses.
    pub(crate) fn outside_of_bound() -> Self {
        Self::new(Vec::new(), 0)
    }

    #[must_use]
    pub(crate) fn with_salt(mut self, salt: u32) -> Self {
        self.salt = salt;
        self
    }

    #[inline]
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= self.charge
    }

    #[inline]
    pub(crate) fn push(&mut self, framed: &Framed<'_>, seq: u64) {
        framed.write(seq, self.salt, &mut self.bytes);
        self.note(seq, framed.time);
    }

    #[inline]
    fn note(&mut self, seq: u64, time: Time) {
        self.records += 1;
        self.seqs = Some((self.seqs.map_or(seq, |(first, _)| first), seq));
        self.times = Some(self.times.map_or((time, time), |(first, last)| (first.min(time), last.max(time))));
    }

    /// Its records are waited for, so newer ones may not displace them.
    pub(crate) fn pin(&mut self) {
        self.pinned = true;
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Binds the frames to the segment that they go to.
    pub(crate) fn rebind(&mut self, salt: u32) {
        if self.salt != salt {
            frame::rebind(&mut self.bytes, self.salt, salt);
            self.salt = salt;
        }
    }

    /// Takes out the frames that `drops` names; it sees each frame once, in order.
    pub(crate) fn strip(&mut self, mut drops: impl FnMut(&frame::Frame<'_>) -> bool) {
        let (mut from, mut to) = (0, 0);
        (self.records, self.seqs, self.times) = (0, None, None);
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

    /// Takes over the frames of the chunk after it, if they fit.
    pub(crate) fn absorb(&mut self, next: &Self) -> bool {
        if next.salt != self.salt || self.bytes.len() + next.bytes.len() > self.charge {
            return false;
        }
        self.bytes.extend_from_slice(&next.bytes);
        self.records += next.records;
        self.seqs = join(self.seqs, next.seqs);
        self.times = join(self.times, next.times);
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
        self.seqs
    }

    pub(crate) fn times(&self) -> Option<(Time, Time)> {
        self.times
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

    fn chunk(seqs: std::ops::Range<u64>) -> Chunk {
        let mut chunk = Chunk::new(Vec::new(), 1000).with_salt(7);
        for seq in seqs {
            let payload = seq.to_string();
            let framed = Framed::new(Kind::Record, Class::new(0), Time::from_unix_nanos(seq), payload.as_bytes());
            chunk.push(&framed, seq);
        }
        chunk
    }

    fn seqs(chunk: &Chunk) -> Vec<u64> {
        let (mut at, mut found) = (0, Vec::new());
        while at < chunk.bytes.len() {
            let frame::Decoded::Frame(frame) = frame::decode(&chunk.bytes[at..], chunk.salt) else { panic!("whole") };
            found.push(frame.seq);
            at += frame.bytes();
        }
        found
    }

    #[test]
    fn what_is_stripped_is_gone_and_the_rest_is_whole() {
        let mut chunk = chunk(0..10);
        chunk.strip(|frame| frame.seq % 3 == 0);
        assert_eq!(seqs(&chunk), [1, 2, 4, 5, 7, 8]);
        assert_eq!((chunk.records, chunk.seqs), (6, Some((1, 8))));
    }

    #[test]
    fn chunks_join_in_order_and_can_be_bound_to_another_segment() {
        let mut first = chunk(0..3);
        assert!(first.absorb(&chunk(3..5)));
        first.rebind(9);
        assert_eq!(seqs(&first), [0, 1, 2, 3, 4]);
        assert!(!first.absorb(&chunk(5..6)), "bound to another segment");
    }
}
