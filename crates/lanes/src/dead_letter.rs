//! The dead-letter queue.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::failure::RecordFailure;
use crate::record::Record;

/// A record that failed permanently, and the reason.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The record; its original key is [`source_key`](Record::source_key).
    pub record: Record,
    /// The last failure.
    pub failure: RecordFailure,
    /// The number of attempts; 0 if no handler received the record.
    pub attempts: u32,
    /// The name of the subscription.
    pub subscription: Arc<str>,
}

/// The future of [`DeadLetterQueue::send`].
pub type SendFuture = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

/// Stores records that failed permanently: a topic, a table, a file.
///
/// A retry topic, from which records return later, also fits, but breaks the order of a key: later records of the key
/// continue without it.
pub trait DeadLetterQueue: Send + Sync + 'static {
    /// Stores a dead letter. The future resolves to `Ok` once the letter is stored durably; only then is the record
    /// finished. After an error, a panic or a dropped future the letter is sent again, so it may arrive more than once. After a
    /// [permanent](RecordFailure::permanent) failure it is not: its key is parked until
    /// [`unpark`](crate::SubscriptionHandle::unpark).
    fn send(&self, letter: DeadLetter) -> SendFuture;
}

impl<F, A> DeadLetterQueue for F
where
    F: Fn(DeadLetter) -> A + Send + Sync + 'static,
    A: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    fn send(&self, letter: DeadLetter) -> SendFuture {
        Box::pin(self(letter))
    }
}
