//! A chunk of whole frames for the writer, with its share of the memory bound.

use crate::{
    frame::{self, FrameInput},
    timestamp::Timestamp,
};

#[derive(Debug)]
pub(crate) struct FrameChunk {
    bytes: Vec<u8>,
    /// The share of the memory bound; the chunk never grows beyond it.
    budget_bytes: usize,
    /// The salt of the segment whose checksums the frames have, if computed.
    salt: Option<u32>,
    records: u64,
    /// The first and last sequence number, if there are records.
    seqs: (u64, u64),
    /// The earliest and latest time, if there are records.
    times: (Timestamp, Timestamp),
    pinned: bool,
}

impl FrameChunk {
    pub(crate) fn new(mut buffer: Vec<u8>, budget_bytes: usize) -> Self {
        buffer.clear();
        let (seqs, times) = ((0, 0), (Timestamp::MAX, Timestamp::MIN));
        Self { bytes: buffer, budget_bytes, salt: None, records: 0, seqs, times, pinned: false }
    }

    /// A small chunk outside the bound: for gap records.
    pub(crate) fn unbudgeted() -> Self {
        Self::new(Vec::new(), 0)
    }

    #[inline]
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes <= self.budget_bytes
    }

    #[inline]
    pub(crate) fn push(&mut self, framed: &FrameInput<'_>, seq: u64) {
        framed.write(seq, &mut self.bytes);
        self.add_record(seq, framed.time);
    }

    #[inline]
    fn add_record(&mut self, seq: u64, time: Timestamp) {
        let first = if self.records == 0 { seq } else { self.seqs.0 };
        self.records += 1;
        self.seqs = (first, seq);
        self.times = (self.times.0.min(time), self.times.1.max(time));
    }

    /// Marks the chunk as waited for, so that newer records may not displace it.
    pub(crate) fn pin(&mut self) {
        self.pinned = true;
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Computes the checksums for the segment with this salt.
    pub(crate) fn write_checksums(&mut self, salt: u32) {
        if self.salt != Some(salt) {
            frame::write_checksums(&mut self.bytes, salt);
            self.salt = Some(salt);
        }
    }

    /// Removes the frames for which `drops` returns true; it is called once per frame, in order.
    pub(crate) fn remove_frames(&mut self, mut drops: impl FnMut(&frame::JournalFrame<'_>) -> bool) {
        let (mut from, mut to) = (0, 0);
        (self.records, self.times) = (0, (Timestamp::MAX, Timestamp::MIN));
        while from < self.bytes.len() {
            let staged = frame::staged_frame_at(&self.bytes, from);
            let (len, seq, time) = (staged.bytes(), staged.seq, staged.time);
            if !drops(&staged) {
                self.add_record(seq, time);
                self.bytes.copy_within(from..from + len, to);
                to += len;
            }
            from += len;
        }
        self.bytes.truncate(to);
    }

    /// Appends the frames of the following chunk, if they fit. Both are staged.
    pub(crate) fn append_chunk(&mut self, next: &Self) -> bool {
        if !self.has_room_for(next.bytes.len()) {
            return false;
        }
        self.bytes.extend_from_slice(&next.bytes);
        let seqs = merge_ranges(self.seqs(), next.seqs());
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

    pub(crate) fn times(&self) -> Option<(Timestamp, Timestamp)> {
        (self.records > 0).then_some(self.times)
    }

    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

pub(crate) fn merge_ranges<T: Ord + Copy>(one: Option<(T, T)>, other: Option<(T, T)>) -> Option<(T, T)> {
    match (one, other) {
        (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
        (one, other) => one.or(other),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{frame::FrameKind, producer_record::Class};

    const SALT: u32 = 7;

    fn chunk(seqs: std::ops::Range<u64>) -> FrameChunk {
        let mut chunk = FrameChunk::new(Vec::new(), 1000);
        for seq in seqs {
            let (class, time, payload) = (Class::new(0), Timestamp::from_unix_nanos(seq), seq.to_string());
            chunk.push(&FrameInput { kind: FrameKind::Record, class, time, payload: payload.as_bytes() }, seq);
        }
        chunk
    }

    fn seqs(mut chunk: FrameChunk) -> Vec<u64> {
        chunk.write_checksums(SALT);
        let (mut at, mut found) = (0, Vec::new());
        while at < chunk.bytes.len() {
            let frame::DecodeResult::Frame(frame) = frame::decode(&chunk.bytes[at..], SALT) else { panic!("whole") };
            found.push(frame.seq);
            at += frame.bytes();
        }
        found
    }

    #[test]
    fn removes_frames_and_keeps_the_rest_whole() {
        let mut chunk = chunk(0..10);
        chunk.remove_frames(|frame| frame.seq % 3 == 0);
        assert_eq!((chunk.records, chunk.seqs()), (6, Some((1, 8))));
        assert_eq!(chunk.times(), Some((Timestamp::from_unix_nanos(1), Timestamp::from_unix_nanos(8))));
        assert_eq!(seqs(chunk), [1, 2, 4, 5, 7, 8]);
    }

    #[test]
    fn chunk_without_records_has_no_range() {
        let mut chunk = chunk(0..2);
        chunk.remove_frames(|_| true);
        assert_eq!((chunk.seqs(), chunk.times(), chunk.is_empty()), (None, None, true));
    }

    #[test]
    fn chunks_join_and_can_change_segment() {
        let mut first = chunk(0..3);
        assert!(first.append_chunk(&chunk(3..5)));
        first.write_checksums(9);
        assert_eq!(seqs(first), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn empty_chunk_takes_the_range_of_the_next() {
        let mut first = chunk(0..1);
        first.remove_frames(|_| true);
        assert!(first.append_chunk(&chunk(4..6)));
        assert_eq!((first.records, first.seqs()), (2, Some((4, 5))));
    }
}
