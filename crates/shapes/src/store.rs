//! Shape logs on disk.
//!
//! All shapes share segment files, so that 100,000 small shapes are not 100,000 files. One thread appends records and syncs
//! them in groups; a position record after each group contains the stored position of the stream, and only that is
//! acknowledged to Postgres (SH-14). A catalogue lists the shapes. Runs of one shape are merged when they become many,
//! and segments with little live data are copied and removed.
//!
//! `tidegate-journal` is not used: its retention is by age and size of whole logs, while here each record lives as long as its
//! shape, and readers need records by position.
//!
//! A replay after `kill -9` yields the same offsets: records are whole or absent (checksums), a transaction at or below the end
//! of a log is skipped (SH-18), and the ends of full chunks are stored.

mod catalogue;
mod record;
mod recovery;
mod segment;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tidegate_changes::SlotIdentity;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

pub(crate) use recovery::RecoveredStore;

use crate::offset::LogOffset;
use crate::shape::{Extent, Shape, ShapeId, ShapeLog, SnapshotFilter};
use crate::shape_index::ShapeIndex;
use crate::table::TableInfo;

/// Limit of the messages of a transaction that are in memory for one shape: more remove the shape, and clients load it again.
pub(crate) const RUN_BYTES_MAX: usize = 256 << 20;

/// Commands that wait for the writer.
const COMMANDS_MAX: usize = 1024;
/// Unit of the budget of unwritten bytes.
const BUDGET_UNIT: usize = 1 << 10;

/// Sizes of a store.
#[derive(Clone, Debug)]
pub(crate) struct StoreOptions {
    /// The folder.
    pub folder: PathBuf,
    /// A segment of this size is closed.
    pub segment_bytes: u64,
    /// Bytes of recent messages that are kept in memory.
    pub cache_bytes: usize,
    /// Bytes that wait to be written.
    pub unwritten_bytes: usize,
    /// Segments are copied sooner above this size.
    pub quota_bytes: u64,
}

impl StoreOptions {
    /// Defaults for a folder.
    #[must_use]
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            segment_bytes: 64 << 20,
            cache_bytes: 32 << 20,
            unwritten_bytes: 16 << 20,
            quota_bytes: 10 << 30,
        }
    }
}

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder cannot be read or written.
    #[error("cannot use the folder {folder} for shapes: {error}", folder = .0.display(), error = .1)]
    Folder(PathBuf, #[source] io::Error),
    /// Another process uses it.
    #[error("the folder {} is in use by another process; each server needs a folder of its own", .0.display())]
    InUse(PathBuf),
}

/// Messages of some transactions for one shape.
#[derive(Debug)]
pub(crate) struct RunWrite {
    /// The shape.
    pub shape: Arc<Shape>,
    /// First position.
    pub first: LogOffset,
    /// Last position.
    pub last: LogOffset,
    /// The items.
    pub bytes: Bytes,
    /// Ends of full chunks in it.
    pub chunk_ends: Vec<LogOffset>,
    /// Bytes since the last full chunk after it.
    pub open_chunk_bytes: u64,
}

/// The parts of a complete snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotSize {
    /// Number of chunks.
    pub chunks: u64,
    /// Number of pieces of all chunks.
    pub pieces: u64,
}

/// Work for the writer.
#[derive(Debug)]
enum StoreCommand {
    Source(SlotIdentity),
    Table(TableInfo),
    Create(Arc<Shape>),
    Piece { shape: Arc<Shape>, chunk: u64, piece: u64, bytes: Bytes },
    SnapshotDone { shape: Arc<Shape>, size: SnapshotSize, filter: SnapshotFilter },
    Parts(Vec<RunWrite>),
    Discard(Vec<Extent>),
    Commit { runs: Vec<RunWrite>, lsn: u64 },
    Remove(Arc<Shape>),
}

/// A command with its share of the budget.
struct Queued {
    command: StoreCommand,
    _budget: Option<OwnedSemaphorePermit>,
}

/// Progress of the writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreProgress {
    /// All transactions before this position are durable.
    pub durable_lsn: u64,
    /// Why nothing can be written, such as a full disk.
    pub error: Option<String>,
}

/// The store. Dropping the last clone ends the writer after its queue.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    commands: mpsc::Sender<Queued>,
    budget: Arc<Semaphore>,
    budget_units: u32,
    files: Arc<segment::SegmentFiles>,
    progress: watch::Receiver<StoreProgress>,
    used_bytes: Arc<AtomicU64>,
}

/// The writer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is closed")]
pub struct StoreClosed;

impl Store {
    /// Opens a folder, reads what is there, and starts the writer. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) fn open(options: StoreOptions, index: Arc<ShapeIndex>) -> Result<(Self, RecoveredStore), StoreError> {
        let (writer, recovered) = recovery::open(options.clone(), index)?;
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        let (progress_sender, progress) =
            watch::channel(StoreProgress { durable_lsn: recovered.durable_lsn, error: None });
        let budget_units = u32::try_from(options.unwritten_bytes / BUDGET_UNIT).unwrap_or(u32::MAX >> 4).max(1);
        let (files, used_bytes) = (Arc::clone(&writer.files), Arc::clone(&writer.used_bytes));
        let started = std::thread::Builder::new().name("shape-store".to_owned());
        let started = started.spawn(move || writer.run(queue, &progress_sender));
        started.map_err(|error| StoreError::Folder(options.folder, error))?;
        let budget = Arc::new(Semaphore::new(budget_units as usize));
        Ok((Self { commands, budget, budget_units, files, progress, used_bytes }, recovered))
    }

    /// Records the server and slot that positions belong to.
    ///
    /// # Errors
    /// If the writer has ended. The same holds for the methods below.
    pub(crate) async fn set_source(&self, source: SlotIdentity) -> Result<(), StoreClosed> {
        self.send(StoreCommand::Source(source), 0).await
    }

    /// Records the definition of a table.
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn put_table(&self, table: TableInfo) -> Result<(), StoreClosed> {
        self.send(StoreCommand::Table(table), 0).await
    }

    /// Records a new shape.
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn create(&self, shape: Arc<Shape>) -> Result<(), StoreClosed> {
        self.send(StoreCommand::Create(shape), 0).await
    }

    /// Stores a piece of a chunk of a snapshot. It is durable after [`Self::finish_snapshot`].
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn put_piece(
        &self,
        shape: Arc<Shape>,
        chunk: u64,
        piece: u64,
        bytes: Bytes,
    ) -> Result<(), StoreClosed> {
        let len = bytes.len();
        self.send(StoreCommand::Piece { shape, chunk, piece, bytes }, len).await
    }

    /// Records that a snapshot is complete.
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn finish_snapshot(
        &self,
        shape: Arc<Shape>,
        size: SnapshotSize,
        filter: SnapshotFilter,
    ) -> Result<(), StoreClosed> {
        self.send(StoreCommand::SnapshotDone { shape, size, filter }, 0).await
    }

    /// Stores the runs of transactions, and then that all transactions before `lsn` are stored.
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn commit(&self, runs: Vec<RunWrite>, lsn: u64) -> Result<(), StoreClosed> {
        let len = runs.iter().map(|run| run.bytes.len()).sum();
        self.send(StoreCommand::Commit { runs, lsn }, len).await
    }

    /// Stores parts of a transaction that is not complete.
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn put_parts(&self, parts: Vec<RunWrite>) -> Result<(), StoreClosed> {
        let len = parts.iter().map(|part| part.bytes.len()).sum();
        self.send(StoreCommand::Parts(parts), len).await
    }

    /// Frees the places of parts that belong to no transaction.
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn discard(&self, parts: Vec<Extent>) -> Result<(), StoreClosed> {
        self.send(StoreCommand::Discard(parts), 0).await
    }

    /// Removes a shape.
    ///
    /// # Errors
    /// If the writer has ended.
    pub(crate) async fn remove(&self, shape: Arc<Shape>) -> Result<(), StoreClosed> {
        self.send(StoreCommand::Remove(shape), 0).await
    }

    /// The durable position, and errors.
    #[must_use]
    pub(crate) fn progress(&self) -> watch::Receiver<StoreProgress> {
        self.progress.clone()
    }

    /// All transactions before this position are durable.
    #[must_use]
    pub(crate) fn durable_lsn(&self) -> u64 {
        self.progress.borrow().durable_lsn
    }

    /// Bytes of all segments.
    #[must_use]
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Reads an extent. Blocks unless it is cached.
    ///
    /// # Errors
    /// If the bytes cannot be read; `NotFound` if they have moved, and the log has to be looked at again.
    pub(crate) fn read(&self, extent: &Extent) -> io::Result<Bytes> {
        match (&extent.bytes, extent.place) {
            (Some(bytes), _) => Ok((**bytes).clone()),
            (None, Some(place)) => self.files.read(place).map(Bytes::from),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    async fn send(&self, command: StoreCommand, len: usize) -> Result<(), StoreClosed> {
        let units = u32::try_from(len.div_ceil(BUDGET_UNIT)).unwrap_or(u32::MAX).min(self.budget_units);
        let budget = match units {
            0 => None,
            units => Some(Arc::clone(&self.budget).acquire_many_owned(units).await.map_err(|_| StoreClosed)?),
        };
        self.commands.send(Queued { command, _budget: budget }).await.map_err(|_| StoreClosed)
    }
}

/// The run that ends at `last`, or that part of the open transaction.
fn find_run(log: &mut ShapeLog, last: LogOffset) -> Option<&mut Extent> {
    if let Ok(at) = log.runs.binary_search_by_key(&last, |run| run.last) {
        return log.runs.get_mut(at);
    }
    log.rare().parts.as_ref()?;
    log.rare_mut().parts.as_mut()?.extents.iter_mut().find(|part| part.last == last)
}

/// The id of a shape in a record.
fn shape_of(header: &record::RecordHeader) -> Option<ShapeId> {
    match header {
        record::RecordHeader::Piece { shape, .. } => Some(*shape),
        record::RecordHeader::Run(run) | record::RecordHeader::Part(run) => Some(run.shape),
        record::RecordHeader::Position { .. } => None,
    }
}

#[cfg(test)]
mod tests;
