//! Maps positions of records to the LSNs that are acknowledged when they are finished.

use std::collections::VecDeque;

use tidegate_changes::{Lsn, TableProgress};
use tidegate_lanes::Position;

/// Positions of one run: a dense counter from 1, because many records share an LSN.
///
/// Holds one entry for each transaction that is not finished, so it is bounded by the records in flight.
#[derive(Debug, Default)]
pub(crate) struct PositionMap {
    last: u64,
    finished: u64,
    /// The last position of a transaction, and where the transaction ends.
    ends: VecDeque<(u64, Lsn)>,
    /// The last position of the rows of a table, and how far its copy is with them.
    copied: VecDeque<(u64, TableProgress)>,
}

impl PositionMap {
    /// The position of the next record.
    pub(crate) fn assign(&mut self) -> Position {
        self.last += 1;
        Position(self.last)
    }

    /// Everything up to `lsn` was assigned a position. Returns the LSN to acknowledge, if all of it is finished.
    pub(crate) fn complete(&mut self, lsn: Lsn) -> Option<Lsn> {
        match self.ends.back_mut() {
            Some((last, end)) if *last == self.last => *end = lsn.max(*end),
            _ => self.ends.push_back((self.last, lsn)),
        }
        self.take_finished()
    }

    /// All records up to `through` are finished. Returns the LSN to acknowledge, if it has risen.
    pub(crate) fn finish(&mut self, through: Position) -> Option<Lsn> {
        self.finished = through.0.max(self.finished);
        self.take_finished()
    }

    /// Whether all assigned positions are finished.
    pub(crate) const fn is_idle(&self) -> bool {
        self.finished >= self.last
    }

    /// The copy of a table is so far with all positions that were assigned.
    pub(crate) fn copied(&mut self, progress: TableProgress) {
        self.copied.push_back((self.last, progress));
    }

    /// Returns how far the copy of a table is with finished positions.
    pub(crate) fn take_copied(&mut self) -> Option<TableProgress> {
        self.copied.pop_front_if(|(last, _)| *last <= self.finished).map(|(_, progress)| progress)
    }

    fn take_finished(&mut self) -> Option<Lsn> {
        let mut reached = None;
        while let Some((_, lsn)) = self.ends.pop_front_if(|(last, _)| *last <= self.finished) {
            reached = Some(lsn);
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CH-03, CH-05: empty transactions wait for earlier ones, and a partial transaction is not acknowledged.
    #[test]
    fn lsn_is_acknowledged_when_its_records_are_finished() {
        let mut map = PositionMap::default();
        assert_eq!(map.complete(Lsn(10)), Some(Lsn(10)), "nothing is in flight");
        let (first, second) = (map.assign(), map.assign());
        assert!(!map.is_idle());
        assert_eq!(map.complete(Lsn(20)), None);
        assert_eq!(map.complete(Lsn(25)), None, "an empty transaction after an unfinished one");
        let third = map.assign();
        assert_eq!(map.finish(first), None);
        assert_eq!(map.finish(second), Some(Lsn(25)));
        assert_eq!(map.finish(third), None, "its transaction has not ended");
        assert!(map.is_idle());
        assert_eq!(map.complete(Lsn(30)), Some(Lsn(30)));
        assert_eq!(map.finish(first), None, "an older report changes nothing");
    }
}
