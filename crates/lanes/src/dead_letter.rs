//! Where records go that could not be done.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::failure::Failure;
use crate::record::Record;

/// A record that could not be done, and why.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The record as it came; its key is its [own](Record::own_key).
    pub record: Record,
    /// The last failure.
    pub failure: Failure,
    /// How often a handler tried; 0 if none saw it.
    pub attempts: u32,
    /// The name of the subscription.
    pub subscription: Arc<str>,
}

/// The answer of a [`DeadLetter`].
pub type Taken = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

/// Takes the records that could not be done: a topic, a table, a file.
///
/// A topic from which the records come back later (a retry topic) fits as well, but breaks the order of a key: the
/// records behind go on before it.
pub trait DeadLetter: Send + Sync + 'static {
    /// Keeps the letter. The future answers when it is kept for certain: only then is the record done. An error, a panic
    /// or a future that is dropped leaves it open, and it is given again, so a letter may arrive more than once.
    fn send(&self, letter: Letter) -> Taken;
}

impl<F, A> DeadLetter for F
where
    F: Fn(Letter) -> A + Send + Sync + 'static,
    A: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    fn send(&self, letter: Letter) -> Taken {
        Box::pin(self(letter))
    }
}
