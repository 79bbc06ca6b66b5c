//! The promise that a record will be finished, as a value that can be moved but not forgotten silently.

use std::fmt;
use std::mem;
use std::thread;

use crate::failure::{Cause, Failure};
use crate::mailbox::Mailbox;
use crate::panic;
use crate::shard::ShardMail;

/// Which start of which work: a place in the shard's list of flights, and the number of the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub(crate) flight: u32,
    pub(crate) start: u32,
}

/// How a start ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    Failed(Box<Failure>),
    /// Not the end: the key may go on.
    KeyReleased,
}

/// What a completion says to its shard.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) ticket: Ticket,
    pub(crate) outcome: Outcome,
}

/// The promise that the record (or batch) will be finished.
///
/// Exactly one of three things happens to it: [`finish`](Self::finish), [`fail`](Self::fail), or it is dropped, which is a
/// failure. Until then the key of the record waits. It may be moved to another task or thread and finished there, long
/// after the handler returned. After the subscription's deadline, or after its lane was taken away, it has no effect any
/// more.
#[must_use = "a completion that is dropped is a failure"]
pub struct Completion {
    post: Option<Mailbox<ShardMail>>,
    ticket: Ticket,
}

impl Completion {
    pub(crate) fn new(post: Mailbox<ShardMail>, ticket: Ticket) -> Self {
        Self { post: Some(post), ticket }
    }

    /// The record is done.
    pub fn finish(self) {
        self.end(Outcome::Done);
    }

    /// The record is not done.
    pub fn fail(self, failure: Failure) {
        self.end(Outcome::Failed(Box::new(failure)));
    }

    /// Lets the next records of the key begin though this one is not finished. It still holds back the commit; if it
    /// fails, it is tried again beside or behind the others. To call it again changes nothing.
    pub fn release_key(&self) {
        self.say(Outcome::KeyReleased);
    }

    pub(crate) fn panicked(self, words: String) {
        self.end(Outcome::Failed(Box::new(Failure::of(Cause::Panic, words))));
    }

    fn end(mut self, outcome: Outcome) {
        self.say(outcome);
        self.post = None;
    }

    fn say(&self, outcome: Outcome) {
        let word = Word { ticket: self.ticket, outcome };
        if let Some(post) = &self.post {
            post.post(|mail| mail.words.push(word));
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some(post) = mem::take(&mut self.post) else { return };
        let completion = Self { post: Some(post), ticket: self.ticket };
        let completion = if thread::panicking() { panic::leave(completion) } else { Some(completion) };
        if let Some(completion) = completion {
            let cause = if thread::panicking() { Cause::Panic } else { Cause::Dropped };
            completion.fail(Failure::of(cause, "its completion was dropped"));
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Completion").field(&self.ticket).finish()
    }
}
