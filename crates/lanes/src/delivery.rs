//! What a handler gets: one record or several of one key, and the promise to finish them.

use std::fmt;
use std::ops::Deref;

use crate::completion::Completion;
use crate::failure::Failure;
use crate::record::Record;

/// One record, and its completion. It is the record, for reading; take it apart to keep one half.
#[derive(Debug)]
#[must_use = "a delivery that is dropped is a failure"]
pub struct Delivery {
    /// The record.
    pub record: Record,
    /// The promise to finish it.
    pub completion: Completion,
    /// The how many-eth attempt this is, from 1.
    pub attempt: u32,
}

/// Several records of one key in their order, and one completion for all of them.
#[derive(Debug)]
#[must_use = "a batch that is dropped is a failure"]
pub struct Batch {
    /// The records, at least one. After a failure they come one by one.
    pub records: Vec<Record>,
    /// The promise to finish all of them.
    pub completion: Completion,
    /// The how many-eth attempt this is, from 1.
    pub attempt: u32,
}

impl Delivery {
    /// The record is done.
    pub fn finish(self) {
        self.completion.finish();
    }

    /// The record is not done.
    pub fn fail(self, failure: Failure) {
        self.completion.fail(failure);
    }

    /// Done or not, as the result says. An error is tried again, unless it is a [`Failure`] that says otherwise.
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
    /// All records are done.
    pub fn finish(self) {
        self.completion.finish();
    }

    /// Not all records are done: each is tried again.
    pub fn fail(self, failure: Failure) {
        self.completion.fail(failure);
    }

    /// Done or not, as the result says. An error is tried again, unless it is a [`Failure`] that says otherwise.
    pub fn end<E: fmt::Display + 'static>(self, result: Result<(), E>) {
        end(self.completion, result);
    }
}

pub(crate) fn end(completion: Completion, result: Result<(), impl fmt::Display + 'static>) {
    match result {
        Ok(()) => completion.finish(),
        Err(error) => completion.fail(Failure::returned(error)),
    }
}
