//! Running executions, ordered by the start of their deadline, so that a deadline check visits only those that are due.

use crate::messages::ExecutionId;
use crate::monotonic_time::MonotonicTime;
use crate::slab::{NONE, Slab};

/// The job of an execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExecutionKind {
    /// A handler.
    Handler,
    /// A delivery to the dead-letter queue.
    DeadLetter,
}

/// The records of one key in an execution.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExecutionPart {
    /// The key that it blocks; none after the key was released.
    pub(super) key: u32,
    /// The first of its records, a linked list.
    pub(super) head: u32,
}

#[derive(Debug)]
pub(super) struct Execution {
    pub(super) first: ExecutionPart,
    /// The other keys of a batch across keys, all of the lane of the first.
    pub(super) others: Vec<ExecutionPart>,
    pub(super) kind: ExecutionKind,
    pub(super) began: MonotonicTime,
    /// The deadline passed and the handler was aborted.
    pub(super) is_overdue: bool,
    /// The lane drains: no retry.
    pub(super) is_draining: bool,
    generation: u32,
    /// The start of the deadline.
    counts_from: MonotonicTime,
    older: u32,
    newer: u32,
}

impl Execution {
    pub(super) fn parts(&self) -> impl Iterator<Item = ExecutionPart> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Takes the keys that it blocks, with the first record of each.
    pub(super) fn release_keys(&mut self) -> Vec<ExecutionPart> {
        let parts = self.parts().filter(|part| part.key != NONE).collect();
        self.first.key = NONE;
        self.others.iter_mut().for_each(|part| part.key = NONE);
        parts
    }
}

#[derive(Debug)]
pub(super) struct Executions {
    slab: Slab<Execution>,
    generations: u32,
    oldest: u32,
    newest: u32,
}

impl Executions {
    pub(super) fn new() -> Self {
        Self { slab: Slab::new(), generations: 0, oldest: NONE, newest: NONE }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn start(
        &mut self,
        first: ExecutionPart,
        others: Vec<ExecutionPart>,
        kind: ExecutionKind,
        now: MonotonicTime,
    ) -> ExecutionId {
        self.generations = self.generations.wrapping_add(1);
        let generation = self.generations;
        let (is_overdue, is_draining, older, newer) = (false, false, NONE, NONE);
        let execution = Execution {
            first,
            others,
            kind,
            began: now,
            is_overdue,
            is_draining,
            generation,
            counts_from: now,
            older,
            newer,
        };
        let slot = self.slab.insert(execution);
        self.link_newest(slot, now);
        ExecutionId { slot, generation }
    }

    /// The running execution with this id.
    pub(super) fn get_mut(&mut self, id: ExecutionId) -> Option<&mut Execution> {
        self.get(id)?;
        Some(&mut self.slab[id.slot])
    }

    pub(super) fn get(&self, id: ExecutionId) -> Option<&Execution> {
        self.slab.get(id.slot).filter(|execution| execution.generation == id.generation)
    }

    pub(super) fn end(&mut self, id: ExecutionId) -> Execution {
        self.unlink(id.slot);
        self.slab.remove(id.slot)
    }

    /// The execution with the earliest deadline, and the start of that deadline.
    pub(super) fn oldest(&self) -> Option<(ExecutionId, MonotonicTime)> {
        let execution = self.slab.get(self.oldest)?;
        Some((ExecutionId { slot: self.oldest, generation: execution.generation }, execution.counts_from))
    }

    /// Restarts the deadline.
    pub(super) fn extend(&mut self, id: ExecutionId, now: MonotonicTime) {
        self.unlink(id.slot);
        self.link_newest(id.slot, now);
    }

    /// The ids of all executions that match, by a full scan.
    pub(super) fn ids(&self, is_meant: impl Fn(&Execution) -> bool) -> Vec<ExecutionId> {
        let id = |slot| ExecutionId { slot, generation: self.slab[slot].generation };
        self.slab.slots().into_iter().filter(|slot| is_meant(&self.slab[*slot])).map(id).collect()
    }

    fn link_newest(&mut self, slot: u32, now: MonotonicTime) {
        let newest = self.newest;
        let execution = &mut self.slab[slot];
        (execution.counts_from, execution.older, execution.newer) = (now, newest, NONE);
        match newest {
            NONE => self.oldest = slot,
            newest => self.slab[newest].newer = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let (older, newer) = (self.slab[slot].older, self.slab[slot].newer);
        match older {
            NONE => self.oldest = newer,
            older => self.slab[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slab[newer].older = older,
        }
    }
}
