//! Edits a chunk while it is relayed: pieces are removed, replaced or inserted.
//!
//! Almost every chunk is unchanged and is sent without a copy. The first change copies the chunk into a vector.

use crate::Chunk;

/// Output for the part of a chunk that is already processed. Ranges outside of the chunk panic.
#[derive(Debug, Default)]
pub struct Splice {
    /// Length of the unchanged prefix; unused once `changed` is set.
    kept: usize,
    changed: Option<Vec<u8>>,
}

impl Splice {
    /// Keeps `chunk[from..to]`.
    #[inline]
    pub fn pass(&mut self, chunk: &[u8], from: usize, to: usize) {
        match &mut self.changed {
            None if from == self.kept => self.kept = to,
            _ => self.change(chunk).extend_from_slice(&chunk[from..to]),
        }
    }

    /// Inserts bytes.
    #[inline]
    pub fn put(&mut self, chunk: &[u8], bytes: &[u8]) {
        self.change(chunk).extend_from_slice(bytes);
    }

    /// Inserts a message that has its own allocation, which becomes the output if the message is first.
    #[inline]
    pub fn put_vec(&mut self, chunk: &[u8], bytes: Vec<u8>) {
        if self.kept == 0 && self.changed.is_none() {
            self.changed = Some(bytes);
        } else {
            self.put(chunk, &bytes);
        }
    }

    /// Output vector, for writing messages directly.
    #[inline]
    pub fn change(&mut self, chunk: &[u8]) -> &mut Vec<u8> {
        self.changed.get_or_insert_with(|| chunk[..self.kept].to_vec())
    }

    /// Bytes written to the output vector, which may exceed the chunk's size. An unchanged prefix does not count.
    #[inline]
    #[must_use]
    pub fn written(&self) -> usize {
        self.changed.as_ref().map_or(0, Vec::len)
    }

    /// Returns the output.
    #[inline]
    #[must_use]
    pub fn finish(self, mut chunk: Chunk) -> Chunk {
        match self.changed {
            Some(bytes) => bytes.into(),
            None => {
                chunk.truncate(self.kept);
                chunk
            }
        }
    }

    /// Returns the output, and the rest of the chunk from `at` on unless empty. The smaller of the two is copied.
    #[inline]
    #[must_use]
    pub fn finish_before(self, mut chunk: Chunk, at: usize) -> (Chunk, Option<Chunk>) {
        let sent = match self.changed {
            Some(bytes) => Chunk::from(bytes),
            None if chunk.len() - at < self.kept => {
                let rest = chunk[at..].to_vec();
                chunk.truncate(self.kept);
                return (chunk, Some(rest.into()).filter(|rest: &Chunk| !rest.is_empty()));
            }
            None => chunk[..self.kept].to_vec().into(),
        };
        chunk.advance(at);
        (sent, Some(chunk.park()).filter(|rest| !rest.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> Chunk {
        b"abcdef".to_vec().into()
    }

    #[test]
    fn unchanged_prefix_is_not_copied() {
        let mut splice = Splice::default();
        splice.pass(&chunk(), 0, 2);
        splice.pass(&chunk(), 2, 5);
        assert!(splice.changed.is_none());
        assert_eq!(&*splice.finish(chunk()), b"abcde");
    }

    #[test]
    fn finish_before_copies_the_smaller_part() {
        let place = |chunk: &Chunk| chunk.as_ptr() as usize;
        for (at, kept_in_place) in [(0, true), (2, true), (5, false)] {
            let (mut splice, chunk) = (Splice::default(), chunk());
            let start = place(&chunk);
            splice.pass(&chunk, 0, at);
            let (sent, kept) = splice.finish_before(chunk, at);
            let kept = kept.unwrap();
            assert_eq!((&*sent, &*kept), b"abcdef".split_at(at));
            assert_eq!(place(&kept) == start + at, kept_in_place, "from {at}");
        }
        let mut changed = Splice::default();
        changed.put(&chunk(), b"X");
        let (sent, kept) = changed.finish_before(chunk(), 6);
        assert!(kept.is_none() && *sent == *b"X");
    }

    #[test]
    fn pieces_are_removed_and_inserted_in_place() {
        let mut splice = Splice::default();
        splice.pass(&chunk(), 0, 1);
        splice.put(&chunk(), b"X");
        splice.pass(&chunk(), 1, 2);
        splice.pass(&chunk(), 4, 6);
        assert_eq!(&*splice.finish(chunk()), b"aXbef");
        let mut gap = Splice::default();
        gap.pass(&chunk(), 3, 6);
        assert_eq!(&*gap.finish(chunk()), b"def");
        let mut whole = Splice::default();
        whole.put_vec(&chunk(), b"carried".to_vec());
        whole.pass(&chunk(), 2, 3);
        assert_eq!(&*whole.finish(chunk()), b"carriedc");
    }
}
