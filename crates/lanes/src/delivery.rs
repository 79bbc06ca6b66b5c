//! The input of a handler: one record, or several records of one key, and their completion.

use std::fmt;
use std::ops::Deref;

use crate::completion::Completion;
use crate::failure::RecordFailure;
use crate::record::Record;

/// A record and its completion. Dereferences to the record.
#[derive(Debug)]
#[must_use = "a delivery that is dropped is a failure"]
pub struct Delivery {
    /// The record.
    pub record: Record,
    /// Ends the attempt.
    pub completion: Completion,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

/// Several records of one key, in order, and one completion for all of them. With
/// [`batches_across_keys`](crate::SubscriptionBuilder::batches_across_keys), records of several keys of one lane, in the order
/// of the lane.
#[derive(Debug)]
#[must_use = "a batch that is dropped is a failure"]
pub struct Batch {
    /// The records, at least one. After a failure each record is retried alone, unless the failure
    /// [keeps the batch](RecordFailure::keep_batch).
    pub records: Vec<Record>,
    /// Ends the attempt for all records.
    pub completion: Completion,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

impl Delivery {
    /// Finishes the record.
    pub fn finish(self) {
        self.completion.finish();
    }

    /// Fails the attempt.
    pub fn fail(self, failure: RecordFailure) {
        self.completion.fail(failure);
    }

    /// Finishes or fails the record by `result`. An error is retryable, unless it is a permanent [`RecordFailure`].
    pub fn end<E: fmt::Display + 'static>(self, result: Result<(), E>) {
        end(self.completion, result);
    }
}

impl Deref for Delivery {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl Batch {
    /// Finishes all records.
    pub fn finish(self) {
        self.completion.finish();
    }

    /// Fails the attempt; each record is retried alone, or all of them together
    /// ([`RecordFailure::keep_batch`]).
    pub fn fail(self, failure: RecordFailure) {
        self.completion.fail(failure);
    }

    /// Finishes or fails the records by `result`. An error is retryable, unless it is a permanent [`RecordFailure`].
    pub fn end<E: fmt::Display + 'static>(self, result: Result<(), E>) {
        end(self.completion, result);
    }
}

pub(crate) fn end(completion: Completion, result: Result<(), impl fmt::Display + 'static>) {
    match result {
        Ok(()) => completion.finish(),
        Err(error) => completion.fail(RecordFailure::returned(error)),
    }
}
