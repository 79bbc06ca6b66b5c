//! The interface between a shard's worker and its executor, which runs handlers.

mod contain_panics;

use std::fmt;
use std::task::Waker;

use crate::completion::Completion;
use crate::delivery::{Batch, Delivery};
use crate::record::HandlerRecords;
use crate::span::AttemptSpan;

pub(crate) use contain_panics::ContainPanics;

/// The input of a handler call.
#[derive(Debug)]
pub(crate) struct HandlerCall {
    pub(crate) records: HandlerRecords,
    pub(crate) completion: Completion,
    pub(crate) attempt: u32,
    pub(crate) span: AttemptSpan,
}

impl HandlerCall {
    pub(crate) fn into_delivery(self) -> Delivery {
        let record = match self.records {
            HandlerRecords::One(record) => record,
            HandlerRecords::Many(mut records) => records.swap_remove(0),
        };
        Delivery { record, completion: self.completion, attempt: self.attempt }
    }

    pub(crate) fn into_batch(self) -> Batch {
        let records = match self.records {
            HandlerRecords::One(record) => vec![record],
            HandlerRecords::Many(records) => records,
        };
        Batch { records, completion: self.completion, attempt: self.attempt }
    }
}

/// A handler that has started and not ended.
pub(crate) trait RunningHandler: Send + fmt::Debug {
    /// Aborts the handler if possible. `true` if it has ended.
    fn abort(&self) -> bool;

    /// Aborts the handler if possible; a queued handler does not start.
    fn cancel(&self) {
        self.abort();
    }
}

/// Runs the handlers of one shard.
pub(crate) trait HandlerExecutor: Send + 'static {
    type Running: RunningHandler + 'static;

    /// Starts the handler. `None` if it has ended already.
    fn run(&mut self, call: HandlerCall) -> Option<Self::Running>;

    /// Called after a series of `run` calls.
    fn flush(&mut self) {}

    /// Whether the queued calls keep the executor busy for a while. If so, it wakes `waker` once they do not.
    fn is_saturated(&self, _waker: &Waker) -> bool {
        false
    }
}
