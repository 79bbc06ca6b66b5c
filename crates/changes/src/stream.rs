//! The stream of events that a consumer reads.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tidegate_wire::replication::Lsn;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
};

use crate::{
    ack::Acknowledge,
    error::ChangeStreamError,
    event::ChangeEvent,
    options::ChangeOptions,
    position::StreamPosition,
    reader::{Reader, SlotMonitor, StopRequest},
    status::{ChangeStreamStatus, ConnectionState},
};

/// Changes of a database, in commit order.
///
/// Events are received in batches. The number of batches in memory is bounded; a consumer that stops reading makes the
/// server wait, and the connection stays alive meanwhile.
///
/// Dropping the stream closes its connection. [`ChangeStream::stop`] sends the last acknowledgement first.
#[derive(Debug)]
pub struct ChangeStream {
    batches: mpsc::Receiver<Result<Vec<ChangeEvent>, ChangeStreamError>>,
    ready: VecDeque<ChangeEvent>,
    acknowledge: Acknowledge,
    status: watch::Receiver<ChangeStreamStatus>,
    tasks: ReaderTasks,
}

/// The tasks of a stream, which end with it.
#[derive(Debug, Default)]
struct ReaderTasks {
    reader: Option<JoinHandle<()>>,
    monitor: Option<JoinHandle<()>>,
    stop: Option<watch::Sender<StopRequest>>,
}

impl Drop for ReaderTasks {
    fn drop(&mut self) {
        for task in [&self.reader, &self.monitor].into_iter().flatten() {
            task.abort();
        }
    }
}

/// Limit for the last status and the end of the connection.
const STOP_MAX: Duration = Duration::from_secs(10);

impl ChangeStream {
    /// Starts to connect and to read, in a task of the current tokio runtime. Errors are returned by
    /// [`ChangeStream::next`]. A second connection watches the slot and writes heartbeats.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time.
    #[must_use]
    pub fn start(options: ChangeOptions) -> Self {
        let (sender, batches) = mpsc::channel(channel_size(options.batches_max));
        let (stop, stopped) = watch::channel(StopRequest::None);
        let (publisher, status) = watch::channel(ChangeStreamStatus::default());
        let (acknowledge, publisher) = (Acknowledge::default(), Arc::new(publisher));
        let watching = SlotMonitor::new(&options, Arc::clone(&publisher), stop.clone());
        let reader = Reader::new(options, acknowledge.clone(), sender, stopped, publisher);
        let tasks = ReaderTasks {
            reader: Some(tokio::spawn(reader.run())),
            monitor: Some(tokio::spawn(watching.run())),
            stop: Some(stop),
        };
        Self { batches, ready: VecDeque::new(), acknowledge, status, tasks }
    }

    /// A stream of events that the caller sends, for tests of consumers. At most `batches_max` batches wait, and at least one.
    #[must_use]
    pub fn channel(batches_max: usize) -> (EventSender, Self) {
        let (sender, batches) = mpsc::channel(channel_size(batches_max));
        let (_, status) = watch::channel(ChangeStreamStatus::default());
        let acknowledge = Acknowledge::default();
        let (ready, tasks) = (VecDeque::new(), ReaderTasks::default());
        let stream = Self { batches, ready, acknowledge: acknowledge.clone(), status, tasks };
        (EventSender { batches: sender, acknowledge }, stream)
    }

    /// Returns the next event; `None` after the end of a stream that was stopped.
    ///
    /// # Errors
    /// The stream has ended by an error, which is returned once.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<ChangeEvent>, ChangeStreamError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.batches.recv().await {
                Some(batch) => self.ready.extend(batch?),
                None => return self.end(),
            }
        }
    }

    /// Returns the next events, at least one; `None` after the end of a stream that was stopped.
    ///
    /// # Errors
    /// The stream has ended by an error, which is returned once.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn next_batch(&mut self) -> Result<Option<Vec<ChangeEvent>>, ChangeStreamError> {
        if !self.ready.is_empty() {
            return Ok(Some(std::mem::take(&mut self.ready).into()));
        }
        loop {
            match self.batches.recv().await {
                Some(Ok(batch)) if batch.is_empty() => {}
                Some(batch) => return batch.map(Some),
                None => return self.end(),
            }
        }
    }

    /// The end of the channel: after a stop or an error, or because the reader panicked.
    fn end<T>(&mut self) -> Result<Option<T>, ChangeStreamError> {
        match self.tasks.reader.take() {
            Some(_) if self.status.borrow().connection != ConnectionState::Ended => Err(ChangeStreamError::Ended),
            _ => Ok(None),
        }
    }

    /// The present state of the stream.
    #[must_use]
    pub fn status(&self) -> ChangeStreamStatus {
        self.status.borrow().clone()
    }

    /// A handle that shows the status, and waits for changes of it.
    #[must_use]
    pub fn watch_status(&self) -> watch::Receiver<ChangeStreamStatus> {
        self.status.clone()
    }

    /// The position to store for [`ChangeOptions::resume`] when everything up to `lsn` is durable; `None` before the first
    /// connection.
    #[must_use]
    pub fn position(&self, lsn: Lsn) -> Option<StreamPosition> {
        self.status.borrow().identity.clone().map(|identity| StreamPosition { identity, lsn })
    }

    /// Sends what was acknowledged to the server, and closes the connection. Events that were not taken are dropped and
    /// come again on the next start. Returns the final status.
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is closed, and the last acknowledgement may be lost.
    pub async fn stop(mut self) -> ChangeStreamStatus {
        self.batches.close();
        while self.batches.try_recv().is_ok() {}
        if let Some(stop) = self.tasks.stop.take() {
            // The reader may have ended before.
            let _ = stop.send(StopRequest::Stop);
            if let Some(reader) = self.tasks.reader.as_mut() {
                let _ = tokio::time::timeout(STOP_MAX, reader).await;
            }
        }
        self.status.borrow().clone()
    }

    /// Declares everything up to this position durable. See [`Acknowledge::up_to`].
    pub fn acknowledge(&self, lsn: Lsn) {
        self.acknowledge.up_to(lsn);
    }

    /// A handle that acknowledges from elsewhere.
    #[must_use]
    pub fn acknowledger(&self) -> Acknowledge {
        self.acknowledge.clone()
    }
}

/// The number of batches as tokio's channel accepts it.
fn channel_size(batches_max: usize) -> usize {
    batches_max.clamp(1, Semaphore::MAX_PERMITS)
}

/// The sending half of [`ChangeStream::channel`].
#[derive(Debug)]
pub struct EventSender {
    batches: mpsc::Sender<Result<Vec<ChangeEvent>, ChangeStreamError>>,
    acknowledge: Acknowledge,
}

impl EventSender {
    /// Sends a batch, or the error that ends the stream. Waits while the channel is full. Returns whether the stream
    /// still exists.
    pub async fn send(&self, batch: Result<Vec<ChangeEvent>, ChangeStreamError>) -> bool {
        self.batches.send(batch).await.is_ok()
    }

    /// The acknowledgements of the stream's consumer.
    #[must_use]
    pub const fn acknowledgements(&self) -> &Acknowledge {
        &self.acknowledge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_keep_their_order_over_batches() {
        let (sender, mut stream) = ChangeStream::channel(2);
        let progress = |numbers: &[u64]| Ok(numbers.iter().map(|number| ChangeEvent::Progress(Lsn(*number))).collect());
        assert!(sender.send(progress(&[1, 2, 3])).await);
        assert!(sender.send(progress(&[4])).await);
        drop(sender);
        let mut found = Vec::new();
        let Some(ChangeEvent::Progress(first)) = stream.next().await.unwrap() else { panic!("no event") };
        found.push(first.0);
        while let Some(batch) = stream.next_batch().await.unwrap() {
            found.extend(batch.into_iter().filter_map(|event| match event {
                ChangeEvent::Progress(lsn) => Some(lsn.0),
                _ => None,
            }));
        }
        assert_eq!(found, [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn batch_has_at_least_one_event() {
        let (sender, mut stream) = ChangeStream::channel(2);
        assert!(sender.send(Ok(Vec::new())).await);
        assert!(sender.send(Ok(vec![ChangeEvent::Progress(Lsn(1))])).await);
        assert_eq!(stream.next_batch().await.unwrap().map(|batch| batch.len()), Some(1));
    }

    #[tokio::test]
    async fn acknowledgement_never_goes_back() {
        let (sender, stream) = ChangeStream::channel(1);
        stream.acknowledge(Lsn(9));
        sender.acknowledgements().changed().await;
        stream.acknowledger().up_to(Lsn(5));
        assert_eq!(sender.acknowledgements().acknowledged(), Lsn(9));
    }
}
