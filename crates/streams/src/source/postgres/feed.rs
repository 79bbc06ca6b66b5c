//! The task between the stream of changes and the source: copies tables beside the stream, and stores how far they are.

use std::sync::Arc;

use tidegate_changes::{Acknowledge, ChangeStreamError, SnapshotEvent, SnapshotState, SnapshotStream, TableProgress};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::store::CopyStore;
use crate::status::{BackfillRequest, StreamStatus};

/// An event for the source.
pub(super) enum FeedEvent {
    Stream(SnapshotEvent),
    /// A copy has begun.
    Begun(TableProgress),
}

type FeedBatch = Result<Vec<FeedEvent>, ChangeStreamError>;

/// The receiving end of the task, which ends with it.
pub(super) struct ChangeFeed {
    pub(super) batches: mpsc::Receiver<FeedBatch>,
    /// Progress that the sink has reached.
    pub(super) reached: mpsc::UnboundedSender<TableProgress>,
    pub(super) acknowledge: Acknowledge,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Drop for ChangeFeed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of the task.
struct FeedTask {
    stream: SnapshotStream,
    store: CopyStore,
    /// The state as far as the sink has reached it.
    stored: SnapshotState,
    status: Arc<StreamStatus>,
    sender: mpsc::Sender<FeedBatch>,
}

enum FeedWake {
    Stop,
    Reached(TableProgress),
    Backfill(BackfillRequest),
    Batch(Option<FeedBatch>),
}

/// Batches between the task and the source: each is bounded by a read of the socket, or by the chunks of a round.
const FEED_BATCHES: usize = 1;
/// Backfills that wait.
const BACKFILLS_MAX: usize = 16;

impl ChangeFeed {
    pub(super) fn start(
        stream: SnapshotStream,
        store: CopyStore,
        status: &Arc<StreamStatus>,
        acknowledge: Acknowledge,
    ) -> Self {
        let (sender, batches) = mpsc::channel(FEED_BATCHES);
        let (reached, reaching) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let (backfills, requests) = mpsc::channel(BACKFILLS_MAX);
        status.accept_backfills(backfills);
        let stored = stream.state().clone();
        if !stored.is_done() {
            status.begin_copy(&stored);
        }
        let task = FeedTask { stream, store, stored, status: Arc::clone(status), sender };
        let task = tokio::spawn(task.run(reaching, requests, stopped));
        Self { batches, reached, acknowledge, stop: Some(stop), task }
    }

    /// Stores what was reached, sends the last acknowledgement, and ends.
    pub(super) async fn stop(mut self) {
        self.batches.close();
        // The task may have ended.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = (&mut self.task).await;
    }
}

impl FeedTask {
    async fn run(
        mut self,
        mut reached: mpsc::UnboundedReceiver<TableProgress>,
        mut backfills: mpsc::Receiver<BackfillRequest>,
        mut stop: oneshot::Receiver<()>,
    ) {
        loop {
            let wake = tokio::select! {
                biased;
                _ = &mut stop => FeedWake::Stop,
                Some(progress) = reached.recv() => FeedWake::Reached(progress),
                Some(request) = backfills.recv() => FeedWake::Backfill(request),
                batch = next_batch(&self.sender, &mut self.stream) => FeedWake::Batch(batch),
            };
            match wake {
                FeedWake::Stop => break,
                FeedWake::Reached(progress) => self.reach(progress, &mut reached).await,
                FeedWake::Backfill(request) => self.backfill(request).await,
                // The stream or the source has ended.
                FeedWake::Batch(None) => break,
                FeedWake::Batch(Some(batch)) => {
                    let is_end = batch.is_err();
                    if let Ok(events) = &batch {
                        self.observe(events);
                    }
                    // A place was waited for.
                    if self.sender.try_send(batch).is_err() || is_end {
                        break;
                    }
                }
            }
        }
        if let Ok(progress) = reached.try_recv() {
            self.reach(progress, &mut reached).await;
        }
        self.stream.stop().await;
    }

    /// Stores the progress that the sink has reached. Takes all that was reported meanwhile, so that a slow disk writes less
    /// often.
    async fn reach(&mut self, progress: TableProgress, more: &mut mpsc::UnboundedReceiver<TableProgress>) {
        self.stored.update(progress);
        while let Ok(progress) = more.try_recv() {
            self.stored.update(progress);
        }
        if let Err(error) = self.store.save(&self.stored).await {
            // The rows are delivered again after a restart.
            tracing::error!(stream = self.status.name(), %error, "the progress of the copy was not stored");
        }
    }

    fn observe(&self, events: &[FeedEvent]) {
        for event in events {
            match event {
                FeedEvent::Stream(SnapshotEvent::Rows(_)) => self.status.record_copy(self.stream.state()),
                FeedEvent::Stream(SnapshotEvent::Complete(state)) => self.status.end_copy(state),
                _ => {}
            }
        }
    }

    async fn backfill(&mut self, request: BackfillRequest) {
        let BackfillRequest { schema, table, reply } = request;
        let begun = match self.stream.backfill(&schema, &table).await {
            Ok(progress) => {
                self.stored
                    .tables
                    .retain(|known| known.oid != progress.oid && known.full_name() != progress.full_name());
                self.stored.update(progress.clone());
                let saved = if self.store.is_sink() { Ok(()) } else { self.store.save(&self.stored).await };
                saved.map(|()| progress).map_err(|error| error.error_chain())
            }
            Err(error) => Err(error.to_string()),
        };
        let answer = match begun {
            Ok(progress) => {
                tracing::info!(stream = self.status.name(), table = progress.full_name(), "backfill begins");
                self.status.begin_copy(self.stream.state());
                let _ = self.sender.send(Ok(vec![FeedEvent::Begun(progress)])).await;
                Ok(())
            }
            Err(reason) => Err(reason),
        };
        // The console may not wait any more.
        let _ = reply.send(answer);
    }
}

/// Waits for a place in the channel, then for events. `None` at the end of the stream or of the source. Cancel-safe.
async fn next_batch(sender: &mpsc::Sender<FeedBatch>, stream: &mut SnapshotStream) -> Option<FeedBatch> {
    let place = sender.reserve().await.ok()?;
    let batch = stream.next_batch().await.transpose()?;
    drop(place);
    Some(batch.map(|events| events.into_iter().map(FeedEvent::Stream).collect()))
}
