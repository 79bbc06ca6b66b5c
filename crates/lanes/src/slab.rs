//! A slab that grows by chunks, without copying.

use std::ops::{Index, IndexMut};

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

const CHUNK: usize = 512;

/// Values by slot number. Memory is freed when the last value is removed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Box<[Option<T>]>>,
    free: Vec<u32>,
    /// Slots in use since the slab was last empty.
    used: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), used: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| self.fresh());
        *self.slot(slot) = Some(value);
        self.len += 1;
        slot
    }

    fn fresh(&mut self) -> u32 {
        let slot = self.used;
        if slot as usize == self.chunks.len() * CHUNK {
            self.chunks.push((0..CHUNK).map(|_| None).collect());
        }
        self.used += 1;
        slot
    }

    fn slot(&mut self, slot: u32) -> &mut Option<T> {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    /// # Panics
    /// Panics if the slot is empty: every holder of a slot number owns its value.
    pub(crate) fn remove(&mut self, slot: u32) -> T {
        let value = self.slot(slot).take().expect("slot is occupied");
        self.len -= 1;
        self.free.push(slot);
        if self.len == 0 {
            self.shrink();
        }
        value
    }

    /// Resets an empty slab to one chunk.
    fn shrink(&mut self) {
        self.used = 0;
        self.free.clear();
        if self.chunks.len() > 1 {
            self.chunks.truncate(1);
            self.chunks.shrink_to_fit();
            self.free.shrink_to_fit();
        }
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.chunks.get(slot as usize / CHUNK)?[slot as usize % CHUNK].as_ref()
    }

    /// All occupied slots, found by a full scan.
    pub(crate) fn slots(&self) -> Vec<u32> {
        (0..self.used).filter(|slot| self.get(*slot).is_some()).collect()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.get(slot).expect("slot is occupied")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.slot(slot).as_mut().expect("slot is occupied")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_memory_is_freed() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..2000).map(|value| slab.insert(value)).collect();
        assert_eq!((slab[slots[7]], slab.len()), (7, 2000));
        assert_eq!(slab.remove(slots[7]), 7);
        assert_eq!(slab.insert(8), slots[7]);
        for slot in &slots {
            slab.remove(*slot);
        }
        assert_eq!((slab.len(), slab.chunks.len(), slab.slots()), (0, 1, vec![]));
    }
}
