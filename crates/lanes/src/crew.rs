//! Who runs handlers: light tasks, or threads.

mod guarded;
mod queue;
mod tasks;
mod threads;

use std::fmt;
use std::task::Waker;

use crate::completion::Completion;
use crate::delivery::{Batch, Delivery};
use crate::shard::Records;
use crate::span::AttemptSpan;
use crate::sync;

pub(crate) use guarded::Guarded;
pub(crate) use tasks::{Task, TaskCrew};
pub(crate) use threads::{Pool, ThreadCrew, permits};

/// Records, and the promise to finish them, on their way to a handler.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) records: Records,
    pub(crate) completion: Completion,
    pub(crate) attempt: u32,
    pub(crate) span: AttemptSpan,
}

impl Work {
    pub(crate) fn into_delivery(self) -> Delivery {
        let record = match self.records {
            Records::One(record) => record,
            Records::Many(mut records) => records.swap_remove(0),
        };
        Delivery { record, completion: self.completion, attempt: self.attempt }
    }

    pub(crate) fn into_batch(self) -> Batch {
        let records = match self.records {
            Records::One(record) => vec![record],
            Records::Many(records) => records,
        };
        Batch { records, completion: self.completion, attempt: self.attempt }
    }
}

/// A handler that was started and did not end at once.
pub(crate) trait Running: Send + fmt::Debug {
    /// Makes it end, if that is possible. `true` if it does not run any more.
    fn abort(&self) -> bool;

    /// Makes it end, if that is possible; and if it waits for a thread, it need not begin.
    fn give_up(&self) {
        self.abort();
    }
}

/// Runs the handlers of one shard.
pub(crate) trait Crew: Send + 'static {
    type Running: Running + 'static;

    /// Starts the handler. Nothing, if it has already returned.
    fn run(&mut self, work: Work) -> Option<Self::Running>;

    /// Some were started, and for now no more.
    fn hand_over(&mut self) {}

    /// Whether what it was given will keep it busy for a while. If so, it wakes `waker` when it is not so any more.
    fn has_enough(&self, _waker: &Waker) -> bool {
        false
    }
}
