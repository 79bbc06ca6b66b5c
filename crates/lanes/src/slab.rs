//! Numbered places that are reused, in chunks, so that growing copies nothing.

use std::ops::{Index, IndexMut};

/// No place.
pub(crate) const NONE: u32 = u32::MAX;

const CHUNK: usize = 512;

/// Things by number. When the last one leaves, the memory is given back.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Box<[Option<T>]>>,
    free: Vec<u32>,
    /// Places that have ever been used since the slab was last empty.
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
        let place = self.free.pop().unwrap_or_else(|| self.fresh());
        *self.place(place) = Some(value);
        self.len += 1;
        place
    }

    fn fresh(&mut self) -> u32 {
        let place = self.used;
        if place as usize == self.chunks.len() * CHUNK {
            self.chunks.push((0..CHUNK).map(|_| None).collect());
        }
        self.used += 1;
        place
    }

    fn place(&mut self, place: u32) -> &mut Option<T> {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    /// # Panics
    /// If the place is free: whoever holds a number holds the thing.
    pub(crate) fn remove(&mut self, place: u32) -> T {
        let value = self.place(place).take().expect("the place is taken");
        self.len -= 1;
        self.free.push(place);
        if self.len == 0 {
            self.shrink();
        }
        value
    }

    /// All places are free: start over with one chunk.
    fn shrink(&mut self) {
        self.used = 0;
        self.free.clear();
        if self.chunks.len() > 1 {
            self.chunks.truncate(1);
            self.chunks.shrink_to_fit();
            self.free.shrink_to_fit();
        }
    }

    pub(crate) fn get(&self, place: u32) -> Option<&T> {
        self.chunks.get(place as usize / CHUNK)?[place as usize % CHUNK].as_ref()
    }

    /// Every number in use, by a walk over all places.
    pub(crate) fn places(&self) -> Vec<u32> {
        (0..self.used).filter(|place| self.get(*place).is_some()).collect()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, place: u32) -> &T {
        self.get(place).expect("the place is taken")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        self.place(place).as_mut().expect("the place is taken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reused_and_memory_is_given_back() {
        let mut slab = Slab::new();
        let places: Vec<u32> = (0..2000).map(|value| slab.insert(value)).collect();
        assert_eq!((slab[places[7]], slab.len()), (7, 2000));
        assert_eq!(slab.remove(places[7]), 7);
        assert_eq!(slab.insert(8), places[7]);
        for place in &places {
            slab.remove(*place);
        }
        assert_eq!((slab.len(), slab.chunks.len(), slab.places()), (0, 1, vec![]));
    }
}
