//! A draining assignment, and the bound up to which its records may start.

use crate::frontier::is_later;
use crate::record::{Epoch, Lane, Record};

/// A draining assignment.
#[derive(Debug)]
pub(super) struct DrainingLane {
    pub(super) lane: Lane,
    pub(super) epoch: Epoch,
    /// Records of the assignment in this shard.
    pub(super) open: usize,
    pub(super) bound: StartBound,
    /// Keys withheld because their first record is beyond the bound.
    pub(super) withheld: Vec<u32>,
}

/// The bound up to which records may start.
#[derive(Clone, Copy, Debug)]
pub(super) enum StartBound {
    /// Up to this sequence number, or none.
    Through(Option<u32>),
    /// All records that are left.
    All,
}

impl DrainingLane {
    pub(super) fn is_of(&self, record: &Record) -> bool {
        (self.lane, self.epoch) == (record.lane(), record.epoch())
    }

    pub(super) fn allows(&self, seq: u32) -> bool {
        match self.bound {
            StartBound::Through(last) => last.is_some_and(|last| !is_later(seq, last)),
            StartBound::All => true,
        }
    }
}
