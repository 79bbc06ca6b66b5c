//! Tracks which records are finished when records finish out of order.
//!
//! A lane hands out increasing positions, with gaps, and commits one number: every position up to it is finished.
//! [`Frontier`] assigns each position a dense sequence number, stores one bit per number, and advances by whole words. It
//! does not read a clock, block, or spawn.
//!
//! Invariant: `through()` never decreases and never passes an open position.
//!
//! Positions are stored as offsets from the first position of their block, four bytes each. Where a gap is too wide for
//! that, the rest of the block is left unused and its bits are set.

use std::collections::VecDeque;

use crate::record::Position;

const BLOCK: u32 = u64::BITS;

#[derive(Debug)]
struct Block {
    /// A set bit is a number that is finished or unused. Bits beyond `used` in the last block are zero.
    done: u64,
    first: Position,
    distance: [u32; BLOCK as usize],
}

/// The open positions of one lane.
#[derive(Debug)]
pub(crate) struct Frontier {
    blocks: VecDeque<Block>,
    /// The sequence number of the first bit of the first block; a multiple of the block length.
    base: u32,
    /// Numbers used in the last block. All other blocks are full.
    used: u32,
    /// The last position of the released blocks.
    released_through: Option<Position>,
    open: usize,
}

impl Frontier {
    pub(crate) fn new() -> Self {
        Self { blocks: VecDeque::new(), base: 0, used: 0, released_through: None, open: 0 }
    }

    /// Opens a position and returns its sequence number.
    pub(crate) fn open(&mut self, position: Position) -> u32 {
        self.open += 1;
        self.append(position)
    }

    /// Marks everything up to and including `position` as finished.
    pub(crate) fn skip_to(&mut self, position: Position) {
        let seq = self.append(position);
        self.set(seq);
    }

    fn append(&mut self, position: Position) -> u32 {
        if self.last_distance(position).is_none() {
            self.start_block(position);
        }
        let distance = self.last_distance(position).unwrap_or_default();
        let slot = self.used;
        if let Some(block) = self.blocks.back_mut() {
            block.distance[slot as usize] = distance;
        }
        self.used += 1;
        self.base.wrapping_add(self.before_last() + slot)
    }

    /// The offset in the last block, if the position fits.
    fn last_distance(&self, position: Position) -> Option<u32> {
        let block = self.blocks.back().filter(|_| self.used < BLOCK)?;
        u32::try_from(position.0.checked_sub(block.first.0)?).ok()
    }

    fn start_block(&mut self, first: Position) {
        let used = self.used;
        if let Some(block) = self.blocks.back_mut()
            && used < BLOCK
        {
            block.done |= u64::MAX << used;
            let last = block.distance[used as usize - 1];
            block.distance[used as usize..].fill(last);
        }
        self.blocks.push_back(Block { done: 0, first, distance: [0; BLOCK as usize] });
        self.used = 0;
        self.release_done();
    }

    fn before_last(&self) -> u32 {
        (self.blocks.len() as u32 - 1) * BLOCK
    }

    /// Closes a sequence number. `false` if it is not open.
    pub(crate) fn close(&mut self, seq: u32) -> bool {
        let closed = self.set(seq);
        self.open -= usize::from(closed);
        closed
    }

    fn set(&mut self, seq: u32) -> bool {
        let slot = seq.wrapping_sub(self.base);
        let (index, bit) = ((slot / BLOCK) as usize, 1 << (slot % BLOCK));
        let handed_out = !self.blocks.is_empty() && slot < self.before_last() + self.used;
        let Some(block) = self.blocks.get_mut(index).filter(|block| handed_out && block.done & bit == 0) else {
            return false;
        };
        block.done |= bit;
        if index == 0 && block.done == u64::MAX {
            self.release_done();
        }
        true
    }

    /// Releases finished blocks at the front.
    fn release_done(&mut self) {
        while let Some(block) = self.blocks.front().filter(|block| block.done == u64::MAX) {
            self.released_through = Some(block.at(BLOCK - 1));
            self.base = self.base.wrapping_add(BLOCK);
            self.blocks.pop_front();
        }
    }

    /// The last position such that it and all positions before it are finished.
    pub(crate) fn through(&self) -> Option<Position> {
        let front = self.blocks.front();
        let done = front.map_or(0, |block| block.done.trailing_ones());
        front.filter(|_| done > 0).map(|block| block.at(done - 1)).or(self.released_through)
    }

    /// The first open position.
    #[cfg(test)]
    pub(crate) fn head(&self) -> Option<Position> {
        let block = self.blocks.front().filter(|_| self.open > 0)?;
        Some(block.at(block.done.trailing_ones()))
    }

    /// The sequence number of the first open position, or the next number.
    pub(crate) fn head_seq(&self) -> u32 {
        self.base.wrapping_add(self.blocks.front().map_or(0, |block| block.done.trailing_ones()))
    }

    /// The number of open positions.
    pub(crate) fn open_count(&self) -> usize {
        self.open
    }

    /// Sequence numbers from the first open position to the last one used; determines the memory.
    pub(crate) fn span(&self) -> usize {
        self.blocks.front().map_or(0, |block| self.before_last() + self.used - block.done.trailing_ones()) as usize
    }
}

impl Block {
    fn at(&self, slot: u32) -> Position {
        Position(self.first.0 + u64::from(self.distance[slot as usize]))
    }
}

/// Whether `seq` was assigned after `other`. Sequence numbers wrap.
pub(crate) fn is_later(seq: u32, other: u32) -> bool {
    seq.wrapping_sub(other).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_frontier_has_no_finished_position() {
        let frontier = Frontier::new();
        assert_eq!((frontier.through(), frontier.head(), frontier.span()), (None, None, 0));
    }

    #[test]
    fn sequence_number_closes_once() {
        let mut frontier = Frontier::new();
        let seq = frontier.open(Position(9));
        assert!(frontier.close(seq) && !frontier.close(seq) && !frontier.close(seq + 1));
        assert_eq!((frontier.through(), frontier.open_count()), (Some(Position(9)), 0));
    }

    #[test]
    fn skipped_position_finishes_after_earlier_ones() {
        let mut frontier = Frontier::new();
        let seq = frontier.open(Position(1));
        frontier.skip_to(Position(8));
        assert_eq!(frontier.through(), None);
        frontier.close(seq);
        assert_eq!(frontier.through(), Some(Position(8)));
    }

    /// A step of the model: open after a gap, skip a gap, or close an open position.
    #[derive(Clone, Debug)]
    enum Step {
        Open(u64),
        Pass(u64),
        Close(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        let gap = prop_oneof![8 => Just(1_u64), 2 => 2..100_u64, 1 => Just(u64::from(u32::MAX) + 5)];
        prop_oneof![
            4 => gap.clone().prop_map(Step::Open),
            1 => gap.prop_map(Step::Pass),
            4 => any::<prop::sample::Index>().prop_map(Step::Close),
        ]
    }

    proptest! {
        /// LA-03: frontier never passes an open record.
        #[test]
        fn frontier_never_passes_an_open_record(steps in prop::collection::vec(step(), 1..800)) {
            let (mut frontier, mut at, mut open, mut last) = (Frontier::new(), 0, Vec::new(), None);
            for step in steps {
                match step {
                    Step::Open(gap) => {
                        at += gap;
                        open.push((at, frontier.open(Position(at))));
                    }
                    Step::Pass(gap) => {
                        at += gap;
                        frontier.skip_to(Position(at));
                    }
                    Step::Close(index) if !open.is_empty() => {
                        let (_, seq) = open.swap_remove(index.index(open.len()));
                        prop_assert!(frontier.close(seq) && !frontier.close(seq));
                    }
                    Step::Close(_) => {}
                }
                let through = frontier.through();
                prop_assert!(through >= last, "decreased from {last:?} to {through:?}");
                last = through;
                let head = open.iter().map(|(at, _)| *at).min();
                prop_assert_eq!(frontier.head(), head.map(Position));
                prop_assert!(head.is_none_or(|head| through.is_none_or(|through| through.0 < head)));
                prop_assert!(head.is_some() || at == 0 || through == Some(Position(at)));
                prop_assert_eq!(frontier.open_count(), open.len());
            }
        }
    }

    #[test]
    fn sequence_numbers_may_wrap() {
        let mut frontier = Frontier::new();
        frontier.base = u32::MAX - BLOCK + 1;
        for at in 0..1000 {
            let seq = frontier.open(Position(at));
            assert!(frontier.close(seq));
            assert_eq!(frontier.through(), Some(Position(at)));
        }
    }
}
