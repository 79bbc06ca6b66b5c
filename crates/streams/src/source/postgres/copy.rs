//! Tables as a source that ends: the rows of an exported snapshot, for copies without chunks.
//!
//! A copy of all tables that ends early leaves nothing behind: the slot of its snapshot is temporary. The permanent slot is made
//! from it when the sink has all rows, so that its existence shows that the copy has ended.
//!
//! A copy of tables without a key has the slot already. Its changes go to the spool meanwhile, and their transactions are
//! compared with the snapshot later. If it ends early, the next one begins with a record that empties the tables in the sink.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tidegate_changes::{
    ChangeStreamError, ConnectOptions, ExportedSnapshot, SnapshotRows, SnapshotState, TableProgress, slots::NewSlot,
    spool::Spool,
};
use tidegate_config::stream::StreamKeys;
use tidegate_lanes::{Epoch, Lane, LaneCommit, PollLimit, Position, Record, Source, SourceEvent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{ChangeSourceError, SpoolMeanwhile, positioned, rows_bytes, single_lane::SingleLane, store::CopyStore};
use crate::{
    change::{ChangeTranslator, PositionMap, TranslatedItem, TranslatorSettings},
    error::StreamError,
    lane_names::LaneNames,
    status::StreamStatus,
};

/// The steps after the sink has all rows.
pub(crate) struct CopyEnd {
    snapshot: Arc<ExportedSnapshot>,
    /// The permanent slot that begins at the snapshot, and whether it is synchronised to standbys.
    slot: Option<(String, bool)>,
    store: CopyStore,
    state: SnapshotState,
    /// Tables that are copied later.
    chunked: Vec<TableProgress>,
    /// Keeps other processes away from the state.
    lock: Option<Spool>,
    /// Whether the stream ends with the copy.
    pub(crate) is_all: bool,
}

/// A copy to run.
pub(crate) struct OpenCopy {
    pub(crate) source: CopySource,
    pub(crate) lanes: LaneNames,
    pub(crate) end: CopyEnd,
    /// Takes the changes meanwhile.
    pub(crate) meanwhile: Option<SpoolMeanwhile>,
}

/// The copy of some tables.
pub(super) struct CopyPlan {
    /// The tables to copy, and those that are complete.
    pub(super) state: SnapshotState,
    /// Tables that are copied later.
    pub(super) chunked: Vec<TableProgress>,
    /// Creates the permanent slot at the end.
    pub(super) creates_slot: bool,
    pub(super) is_all: bool,
    /// Whether the snapshot is that of a new slot.
    pub(super) is_whole: bool,
    pub(super) store: CopyStore,
    pub(super) lock: Option<Spool>,
    pub(super) meanwhile: Option<SpoolMeanwhile>,
}

impl CopyEnd {
    /// Creates the slot, and stores that the tables were copied.
    pub(crate) async fn finish(self, status: &StreamStatus) -> Result<(), StreamError> {
        let Self { snapshot, slot, store, mut state, chunked, lock, .. } = self;
        if let Some((name, failover)) = slot {
            snapshot.keep(&name, failover).await.map_err(StreamError::Changes)?;
            tracing::info!(stream = status.name(), slot = name, from = %snapshot.consistent_point(), "replication slot created");
        }
        state.tables.iter_mut().filter(|table| !table.is_done).for_each(|table| table.is_done = true);
        status.end_copy(&state);
        state.tables.extend(chunked);
        store.save(&state).await?;
        close(lock).await;
        Ok(())
    }

    /// Ends a copy that is not complete.
    pub(crate) async fn abandon(self) {
        close(self.lock).await;
    }
}

/// Closing a spool waits for the disk.
async fn close(lock: Option<Spool>) {
    let _ = tokio::task::spawn_blocking(move || drop(lock)).await;
}

/// Exports a snapshot, and begins to read it.
pub(super) async fn open(
    connect: ConnectOptions,
    keys: &StreamKeys,
    mut plan: CopyPlan,
    lanes: LaneNames,
    settings: TranslatorSettings,
    status: &Arc<StreamStatus>,
) -> Result<OpenCopy, StreamError> {
    let publications = vec![keys.publication.clone()];
    let snapshot = if plan.is_whole {
        let slot = NewSlot { temporary: true, ..NewSlot::new(temporary_name()) };
        ExportedSnapshot::create(connect, slot, publications).await
    } else {
        ExportedSnapshot::open(connect, publications).await
    };
    let snapshot = Arc::new(snapshot.map_err(StreamError::Changes)?);
    let mut tables = snapshot.tables().await.map_err(StreamError::Changes)?;
    tables.retain(|table| plan.state.tables.iter().any(|known| known.oid == table.oid && !known.is_done));
    for table in &mut tables {
        table.replaces = plan.state.tables.iter().any(|known| known.oid == table.oid && known.replaces);
        plan.state.update(table.clone());
    }
    // Tables that were dropped meanwhile.
    plan.state.tables.retain(|known| known.is_done || tables.iter().any(|table| table.oid == known.oid));
    if !plan.is_whole {
        plan.save_begun().await?;
    }
    tracing::info!(
        stream = keys.name, tables = tables.len(), position = %snapshot.consistent_point(), "copying tables from a snapshot"
    );
    status.begin_copy(&plan.state);
    let (sender, rows) = mpsc::channel(1);
    let reader = TableReader {
        snapshot: Arc::clone(&snapshot),
        tables,
        parallel: keys.snapshot_parallel as usize,
        state: plan.state.clone(),
        status: Arc::clone(status),
        sender,
    };
    let source = CopySource {
        rows,
        task: tokio::spawn(reader.run()),
        translator: ChangeTranslator::new(settings),
        positions: PositionMap::default(),
        queue: VecDeque::new(),
        lane: SingleLane::default(),
    };
    let end = CopyEnd {
        snapshot,
        slot: plan.creates_slot.then(|| (keys.slot.clone(), keys.failover)),
        store: plan.store,
        state: plan.state,
        chunked: plan.chunked,
        lock: plan.lock,
        is_all: plan.is_all,
    };
    Ok(OpenCopy { source, lanes, end, meanwhile: plan.meanwhile })
}

impl CopyPlan {
    /// Stores that rows of these tables may have been delivered: the next copy replaces them.
    async fn save_begun(&self) -> Result<(), StreamError> {
        let mut begun = self.state.clone();
        begun.tables.iter_mut().filter(|table| !table.is_done).for_each(|table| table.replaces = true);
        begun.tables.extend(self.chunked.iter().cloned());
        self.store.save(&begun).await
    }
}

fn temporary_name() -> String {
    format!("tidegate_copy_{:016x}", fastrand::u64(..))
}

/// Reads the tables one after another, each by several connections.
struct TableReader {
    snapshot: Arc<ExportedSnapshot>,
    tables: Vec<TableProgress>,
    parallel: usize,
    state: SnapshotState,
    status: Arc<StreamStatus>,
    sender: mpsc::Sender<Result<SnapshotRows, ChangeStreamError>>,
}

impl TableReader {
    async fn run(mut self) {
        if let Err(error) = self.read().await {
            // The source may be gone.
            let _ = self.sender.send(Err(error)).await;
        }
    }

    async fn read(&mut self) -> Result<(), ChangeStreamError> {
        for mut table in std::mem::take(&mut self.tables) {
            let mut rows = self.snapshot.read(&table, self.parallel).await?;
            while let Some(batch) = rows.next().await? {
                table.rows += batch.rows.len() as u64;
                table.bytes += batch.bytes;
                self.state.update(table.clone());
                self.status.record_copy(&self.state);
                if self.sender.send(Ok(batch)).await.is_err() {
                    return Ok(());
                }
            }
            table.is_done = true;
            self.state.update(table);
        }
        Ok(())
    }
}

/// The rows of the tables.
pub(crate) struct CopySource {
    rows: mpsc::Receiver<Result<SnapshotRows, ChangeStreamError>>,
    task: JoinHandle<()>,
    translator: ChangeTranslator,
    positions: PositionMap,
    /// Translated and not delivered: one batch of rows, and the record before it.
    queue: VecDeque<TranslatedItem>,
    /// Also woken when a commit may end a barrier.
    lane: SingleLane,
}

impl fmt::Debug for CopySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopySource").field("positions", &self.positions).finish_non_exhaustive()
    }
}

impl Drop for CopySource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CopySource {
    fn take(&mut self, limit: PollLimit, batch: &mut Vec<Record>) {
        let (mut records, mut bytes) = (0, 0);
        while records < limit.records && bytes < limit.bytes && !self.lane.is_paused() {
            let record = match self.queue.front_mut() {
                Some(TranslatedItem::Record(record)) if record.waits && !self.positions.is_idle() => return,
                Some(TranslatedItem::Rows { next: 0, waits: true, .. }) if !self.positions.is_idle() => return,
                Some(TranslatedItem::Rows { rows, next, .. }) => {
                    *next += 1;
                    self.translator.read(rows, *next - 1)
                }
                None => return,
                Some(_) => None,
            };
            let record = match record {
                Some(record) => record,
                None => match self.queue.pop_front() {
                    Some(TranslatedItem::Record(record)) => *record,
                    // All rows were delivered.
                    _ => continue,
                },
            };
            (records, bytes) = (records + 1, bytes + record.bytes());
            batch.push(positioned(record, self.positions.assign()));
        }
    }
}

impl Source for CopySource {
    type Error = ChangeSourceError;

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        limit: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, ChangeSourceError>> {
        if let Some(assigned) = self.lane.take_assignment() {
            return Poll::Ready(Ok(assigned));
        }
        let before = batch.len();
        loop {
            self.take(limit, batch);
            if batch.len() > before {
                return Poll::Ready(Ok(SourceEvent::Records));
            }
            if !self.queue.is_empty() {
                self.lane.register(cx);
                return Poll::Pending;
            }
            match ready!(self.rows.poll_recv(cx)) {
                Some(Ok(rows)) => self.translator.on_rows(rows, &mut self.queue),
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Ok(SourceEvent::Ended)),
            }
        }
    }

    fn pause(&mut self, _: Lane, _: Epoch) {
        self.lane.pause();
    }

    fn resume(&mut self, _: Lane, _: Epoch) {
        self.lane.resume();
    }

    /// Stores no position: the copy is stored when the sink has all rows.
    fn commit(&mut self, commits: &[LaneCommit]) {
        for commit in commits {
            self.positions.finish(commit.through);
        }
        self.lane.wake();
    }

    fn release(&mut self, _: Lane, _: Epoch, through: Option<Position>) {
        through.map(|through| self.positions.finish(through));
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ChangeSourceError>> {
        Poll::Ready(Ok(()))
    }

    fn buffered_bytes(&self) -> usize {
        let bytes = |item: &TranslatedItem| match item {
            TranslatedItem::Rows { rows, .. } => rows_bytes(rows),
            _ => 0,
        };
        self.queue.iter().map(bytes).sum()
    }

    fn lane_name(&self, _: Lane) -> String {
        "tables".to_owned()
    }
}
