//! Wakes a reader when records were written.

use std::{
    fmt,
    future::{Future as _, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use crate::{journal_context::JournalContext, producer::AckFuture, producer_record::Ack};

/// Waits for records to be written, so that a [`JournalReader`](crate::JournalReader) that follows does not poll.
/// [`Journal::watch`](crate::Journal::watch) creates one.
///
/// Create it before the first read, read until the reader returns `None`, then call [`written`](Self::written):
///
/// ```
/// use tidegate_journal::{AtEnd, Class, Journal, JournalConfig, JournalEntry, JournalReader, ProducerRecord, ReadFrom};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let (journal, _) = Journal::open(JournalConfig::new(folder.path()))?;
/// let mut watch = journal.watch();
/// let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Follow)?;
/// journal.producer().offer(ProducerRecord::new(Class::new(0), b"one"))?;
/// let read = loop {
///     if let Some(JournalEntry::Record(record)) = reader.read()? {
///         break record.payload.to_vec();
///     }
///     watch.written().await;
/// };
/// assert_eq!(read, b"one");
/// # Ok(())
/// # }
/// ```
pub struct WriteWatch {
    context: Arc<JournalContext>,
    /// The number of the next record to wait for, by stripe.
    next: Vec<u64>,
}

impl fmt::Debug for WriteWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteWatch").field("next", &self.next).finish_non_exhaustive()
    }
}

impl WriteWatch {
    pub(crate) fn new(context: Arc<JournalContext>) -> Self {
        let next = context.stripes.iter().map(|stripe| stripe.acks.written()).collect();
        Self { context, next }
    }

    /// Completes when a record was written to the operating system since the last call, or since the watch was created.
    /// Does not make the writer write earlier, and is pending forever once the journal is closed.
    ///
    /// # Cancel safety
    /// Safe: if the future is dropped, the next call completes for the same records.
    pub async fn written(&mut self) {
        let stripes = &self.context.stripes;
        let mut waits: Vec<AckFuture<'_>> = stripes
            .iter()
            .zip(&self.next)
            .map(|(stripe, next)| AckFuture::passive(stripe, *next, Ack::Written))
            .collect();
        let ready = poll_fn(|cx| {
            let ready = waits.iter_mut().position(|wait| Pin::new(wait).poll(cx).is_ready());
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        drop(waits);
        // A lost record counts as written: waiting for it again would complete immediately, again and again.
        self.next[ready] = self.next[ready].saturating_add(1).max(stripes[ready].acks.written());
    }
}
