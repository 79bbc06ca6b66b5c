//! Which work is finished, when work finishes out of order.
//!
//! A lane hands out positions that rise, with gaps, and wants to know one number: everything up to here is done.
//! [`Frontier`] gives each position a dense sequence number, keeps one bit for each that was handed out, and
//! moves on by whole words of ones. It never reads a clock, never waits, never spawns.
//!
//! Invariant: `through()` never decreases, and never passes an open position.
//!
//! Positions are kept as distances from the first one of their block, four bytes each. Where a gap is too wide for that,
//! the rest of the block is left out: its bits are set, as if nothing there was ever open.

use std::collections::VecDeque;

use crate::record::Position;

const BLOCK: u32 = u64::BITS;

#[derive(Debug)]
struct Block {
    /// One for each number that is done or was never handed out... but those behind `used` in the last block are zero.
    done: u64,
    first: Position,
    distance: [u32; BLOCK as usize],
}

/// The open positions of one lane.
#[derive(Debug)]
pub(crate) struct Frontier {
    blocks: VecDeque<Block>,
    /// The sequence number of the first bit of the first block; a multiple of the block's length.
    base: u32,
    /// Numbers handed out in the last block; all of a block that is not the last.
    used: u32,
    /// The last position of the blocks that were let go.
    passed: Option<Position>,
    open: usize,
}

impl Frontier {
    pub(crate) fn new() -> Self {
        Self { blocks: VecDeque::new(), base: 0, used: 0, passed: None, open: 0 }
    }

    /// Opens a position, and returns the number by which it is closed.
    pub(crate) fn open(&mut self, position: Position) -> u32 {
        self.open += 1;
        self.append(position)
    }

    /// Notes that nothing is to be done up to and including `position`.
    pub(crate) fn pass(&mut self, position: Position) {
        let seq = self.append(position);
        self.set(seq);
    }

    fn append(&mut self, position: Position) -> u32 {
        if self.last_distance(position).is_none() {
            self.start_block(position);
        }
        let distance = self.last_distance(position).unwrap_or_default();
        let place = self.used;
        if let Some(block) = self.blocks.back_mut() {
            block.distance[place as usize] = distance;
        }
        self.used += 1;
        self.base.wrapping_add(self.before_last() + place)
    }

    /// The distance in the last block, if the position fits into it.
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
        self.let_go();
    }

    fn before_last(&self) -> u32 {
        (self.blocks.len() as u32 - 1) * BLOCK
    }

    /// Closes a number. `false` if it is not open: it was closed before.
    pub(crate) fn close(&mut self, seq: u32) -> bool {
        let closed = self.set(seq);
        self.open -= usize::from(closed);
        closed
    }

    fn set(&mut self, seq: u32) -> bool {
        let place = seq.wrapping_sub(self.base);
        let (index, bit) = ((place / BLOCK) as usize, 1 << (place % BLOCK));
        let handed_out = !self.blocks.is_empty() && place < self.before_last() + self.used;
        let Some(block) = self.blocks.get_mut(index).filter(|block| handed_out && block.done & bit == 0) else {
            return false;
        };
        block.done |= bit;
        if index == 0 && block.done == u64::MAX {
            self.let_go();
        }
        true
    }

    /// Lets go of the blocks at the front in which all is done.
    fn let_go(&mut self) {
        while let Some(block) = self.blocks.front().filter(|block| block.done == u64::MAX) {
            self.passed = Some(block.at(BLOCK - 1));
            self.base = self.base.wrapping_add(BLOCK);
            self.blocks.pop_front();
        }
    }

    /// The last position that is done, as are all before it.
    pub(crate) fn through(&self) -> Option<Position> {
        let front = self.blocks.front();
        let done = front.map_or(0, |block| block.done.trailing_ones());
        front.filter(|_| done > 0).map(|block| block.at(done - 1)).or(self.passed)
    }

    /// The first position that is not done.
    #[cfg(test)]
    pub(crate) fn head(&self) -> Option<Position> {
        let block = self.blocks.front().filter(|_| self.open > 0)?;
        Some(block.at(block.done.trailing_ones()))
    }

    /// The number of the first position that is not done, or of the next one to come.
    pub(crate) fn head_seq(&self) -> u32 {
        self.base.wrapping_add(self.blocks.front().map_or(0, |block| block.done.trailing_ones()))
    }

    /// Positions that are open.
    pub(crate) fn open_count(&self) -> usize {
        self.open
    }

    /// Numbers between the first open position and the last one handed out: what the memory is bounded by.
    pub(crate) fn span(&self) -> usize {
        self.blocks.front().map_or(0, |block| self.before_last() + self.used - block.done.trailing_ones()) as usize
    }
}

impl Block {
    fn at(&self, place: u32) -> Position {
        Position(self.first.0 + u64::from(self.distance[place as usize]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_frontier_has_nothing_done() {
        let frontier = Frontier::new();
        assert_eq!((frontier.through(), frontier.head(), frontier.span()), (None, None, 0));
    }

    #[test]
    fn a_number_is_closed_once() {
        let mut frontier = Frontier::new();
        let seq = frontier.open(Position(9));
        assert!(frontier.close(seq) && !frontier.close(seq) && !frontier.close(seq + 1));
        assert_eq!((frontier.through(), frontier.open_count()), (Some(Position(9)), 0));
    }

    #[test]
    fn what_was_passed_is_done_when_all_before_it_is() {
        let mut frontier = Frontier::new();
        let seq = frontier.open(Position(1));
        frontier.pass(Position(8));
        assert_eq!(frontier.through(), None);
        frontier.close(seq);
        assert_eq!(frontier.through(), Some(Position(8)));
    }

    /// A step of the model: open after a gap, pass over a gap, or close one of the open ones.
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
        #[test]
        fn la_03_the_frontier_never_passes_an_open_record(steps in prop::collection::vec(step(), 1..800)) {
            let (mut frontier, mut at, mut open, mut last) = (Frontier::new(), 0, Vec::new(), None);
            for step in steps {
                match step {
                    Step::Open(gap) => {
                        at += gap;
                        open.push((at, frontier.open(Position(at))));
                    }
                    Step::Pass(gap) => {
                        at += gap;
                        frontier.pass(Position(at));
                    }
                    Step::Close(index) if !open.is_empty() => {
                        let (_, seq) = open.swap_remove(index.index(open.len()));
                        prop_assert!(frontier.close(seq) && !frontier.close(seq));
                    }
                    Step::Close(_) => {}
                }
                let through = frontier.through();
                prop_assert!(through >= last, "it went back from {last:?} to {through:?}");
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
    fn numbers_may_wrap() {
        let mut frontier = Frontier::new();
        frontier.base = u32::MAX - BLOCK + 1;
        for at in 0..1000 {
            let seq = frontier.open(Position(at));
            assert!(frontier.close(seq));
            assert_eq!(frontier.through(), Some(Position(at)));
        }
    }
}
