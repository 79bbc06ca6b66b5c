//! A spool: a durable, bounded log between the slot and its consumer.
//!
//! Without a spool, the slot is confirmed only when the consumer has acknowledged a transaction, so a consumer that is slow
//! or away makes Postgres keep WAL. With a spool, the slot is confirmed when the transaction is durable in the log. The
//! consumer reads the log at its own pace, through the same [`ChangeStream`], and its acknowledgements remove what it has
//! finished.
//!
//! ```text
//! slot ──> ChangeStream ──> writer ──> journal ──> reader ──> ChangeStream ──> consumer
//!   ^                                     │ durable       ^                       │
//!   └──────────── acknowledge ────────────┘               └── release, checkpoint ┘
//! ```
//!
//! - **Bound.** At [`SpoolConfig::bytes_max`] the writer waits, and WAL is kept by Postgres; or the stream ends
//!   ([`SpoolFull`]).
//! - **Large transactions.** Whole transactions are removed when they are acknowledged. One of more than half the bound
//!   passes through instead: its frames are removed when they were read, the slot is confirmed only when the consumer has
//!   acknowledged it, and nothing is stored behind it until then. After a crash it comes again from the slot, whole.
//! - **Crash.** The log is read from the checkpoint, which is written at most [`CHECKPOINT_EVERY`] after an acknowledgement:
//!   transactions that were acknowledged later than that arrive again, with the same [`ChangeId`](crate::ChangeId)s. A
//!   transaction without its commit comes again from the slot, and its first part in the log is not delivered.
//! - **Identity.** A spool belongs to one cluster, database, slot and publication, and refuses others.
//!
//! It lives in this crate, and not with the consumer, because live queries need the same log.

mod files;
mod frame;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate_journal::{
    ClassConfig, Journal, JournalConfig, JournalEvent, OverloadPolicy, ReaderPosition, SegmentPolicy,
};
use tidegate_wire::replication::Lsn;
use tokio::sync::{Notify, watch};

pub use crate::spool_error::SpoolError;
use crate::{
    ack::Acknowledge,
    error::ChangeStreamError,
    position::{SlotIdentity, StreamPosition},
    stream::{ChangeStream, EventSender},
    wal_bound::FillLevel,
};
use files::{LAYOUT_VERSION, RelationFile, SpoolCheckpoint, SpoolMeta};
use reader::TornTransactions;

/// The longest time between an acknowledgement and its checkpoint.
pub const CHECKPOINT_EVERY: Duration = Duration::from_millis(200);
/// The smallest bound of a spool, in bytes.
pub const SPOOL_BYTES_MIN: u64 = 16 << 20;
const SEGMENT_BYTES: (u64, u64) = (1 << 20, 64 << 20);
/// The wait for room in memory has no deadline: the bound of the disk decides.
const NO_DEADLINE: Duration = Duration::from_secs(u32::MAX as u64);

/// The configuration of a spool.
#[derive(Clone, Debug)]
pub struct SpoolConfig {
    /// The folder. It is created if it is missing, and belongs to one stream.
    pub folder: PathBuf,
    /// The largest size of the log, in bytes; at least [`SPOOL_BYTES_MIN`].
    pub bytes_max: u64,
    /// Action at the bound.
    pub full: SpoolFull,
}

/// Action when the log has reached its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpoolFull {
    /// The reader stops reading the slot until there is room. Postgres keeps the WAL.
    Hold,
    /// The stream ends with [`SpoolError::Full`].
    Stop,
}

/// An open spool.
#[derive(Debug)]
pub struct Spool {
    config: SpoolConfig,
    journal: Arc<Journal>,
    relations: RelationFile,
    meta: Option<SpoolMeta>,
    checkpoint: Option<SpoolCheckpoint>,
    /// Transactions without a commit, that an earlier run left behind.
    torn: TornTransactions,
    status: SpoolStatus,
    is_full: watch::Receiver<bool>,
}

/// The state of a spool, for tables and metrics. Clones show the same spool.
#[derive(Clone, Debug)]
pub struct SpoolStatus {
    /// Weak: the folder is free again when the spool has ended.
    journal: Weak<Journal>,
    bytes_max: u64,
    durable: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
}

impl SpoolStatus {
    /// The bound of the log, in bytes.
    #[must_use]
    pub const fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes of the log on the disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.journal.upgrade().map_or(0, |journal| journal.stats().disk_bytes)
    }

    /// The end of the last transaction that is durable in the log.
    #[must_use]
    pub fn durable_lsn(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    /// The position up to which the consumer has acknowledged.
    #[must_use]
    pub fn acknowledged_lsn(&self) -> Lsn {
        Lsn(self.acknowledged.load(Ordering::Acquire))
    }
}

/// Positions of the log from which reading may start.
#[derive(Default)]
struct Marks {
    /// Before the first transaction that is not acknowledged; transactions after it may be acknowledged too.
    reached: Option<ReaderPosition>,
    /// Ends of delivered transactions, and the position after them.
    delivered: VecDeque<(Lsn, ReaderPosition)>,
    /// A position within a transaction that does not need the log, and the end of the last one before it that does.
    passing: Option<(Lsn, ReaderPosition)>,
}

impl Marks {
    /// The newest position that an acknowledgement reaches; `None` before the log is open.
    fn reach(&mut self, lsn: Lsn) -> Option<ReaderPosition> {
        while let Some((_, position)) = self.delivered.pop_front_if(|(end, _)| *end <= lsn) {
            self.reached = Some(position);
        }
        self.reached.clone()
    }

    /// The position that frames are passed up to, once everything before them is acknowledged.
    fn passed(&mut self, acknowledged: Lsn) -> Option<ReaderPosition> {
        self.passing.take_if(|(end, _)| *end <= acknowledged).map(|(_, position)| position)
    }
}

/// Shared state of the parts of a running spool.
struct SpoolShared {
    config: SpoolConfig,
    journal: Arc<Journal>,
    relations: Mutex<RelationFile>,
    marks: Mutex<Marks>,
    status: SpoolStatus,
    /// Notified when frames were passed that do not need the log.
    has_passed: Notify,
    /// The position of the stored checkpoint.
    stored: watch::Sender<Lsn>,
}

impl SpoolShared {
    fn relations(&self) -> MutexGuard<'_, RelationFile> {
        self.relations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn io(&self, source: io::Error) -> SpoolError {
        SpoolError::Io { folder: self.config.folder.clone(), source }
    }
}

impl Spool {
    /// Opens or creates the spool of a folder, and finds how far it reaches: reads the log from its checkpoint on. Blocks.
    ///
    /// # Errors
    /// Returns [`SpoolError`] if the folder is in use, damaged, or of an unknown layout.
    pub fn open(config: SpoolConfig) -> Result<Self, SpoolError> {
        let io = |source| SpoolError::Io { folder: config.folder.clone(), source };
        let (set_full, is_full) = watch::channel(false);
        let listener = move |event: &JournalEvent| {
            tracing::warn!(%event, "spool");
            match event {
                JournalEvent::Degraded(_) => drop(set_full.send_replace(true)),
                JournalEvent::Recovered => drop(set_full.send_replace(false)),
                _ => {}
            }
        };
        let storage = Arc::new(tidegate_journal::FileStorage);
        let (journal, _) = Journal::open_with(journal_config(&config), storage, listener)?;
        let meta = files::read_meta(&config.folder).map_err(io)?;
        if let Some(meta) = meta.as_ref().filter(|meta| meta.version != LAYOUT_VERSION) {
            return Err(SpoolError::Layout { folder: config.folder, version: meta.version });
        }
        let checkpoint = files::read_checkpoint(&config.folder);
        let relations = RelationFile::open(&config.folder).map_err(io)?;
        let acknowledged = checkpoint.as_ref().map_or(Lsn::ZERO, |checkpoint| checkpoint.lsn);
        let (durable, torn) = reader::survey(&config.folder, checkpoint.as_ref())?;
        let durable = durable.max(acknowledged);
        let journal = Arc::new(journal);
        let status = SpoolStatus {
            journal: Arc::downgrade(&journal),
            bytes_max: config.bytes_max,
            durable: Arc::new(AtomicU64::new(durable.0)),
            acknowledged: Arc::new(AtomicU64::new(acknowledged.0)),
        };
        Ok(Self { config, journal, relations, meta, checkpoint, torn, status, is_full })
    }

    /// The position from which the slot has to be read; `None` for a new spool.
    #[must_use]
    pub fn position(&self) -> Option<StreamPosition> {
        let meta = self.meta.as_ref()?;
        let lsn = self.status.durable_lsn();
        (lsn > Lsn::ZERO).then(|| StreamPosition { identity: meta.identity.clone(), lsn })
    }

    /// The state of the spool.
    #[must_use]
    pub fn status(&self) -> SpoolStatus {
        self.status.clone()
    }

    /// Declares which stream the spool holds from now on. A promotion raises the timeline; whether the new primary has all
    /// that the spool has is to be checked before.
    ///
    /// # Errors
    /// [`SpoolError::Foreign`] if it holds another stream.
    pub fn bind(&mut self, identity: &SlotIdentity, publication: &str) -> Result<(), SpoolError> {
        let meta =
            SpoolMeta { version: LAYOUT_VERSION, identity: identity.clone(), publication: publication.to_owned() };
        if let Some(found) = &self.meta {
            let is_same = found.identity.system_id == identity.system_id
                && found.identity.database == identity.database
                && found.identity.slot == identity.slot
                && found.identity.timeline <= identity.timeline
                && found.publication == publication;
            if !is_same {
                let (found, expected) = (describe(found), describe(&meta));
                return Err(SpoolError::Foreign { folder: self.config.folder.clone(), found, expected });
            }
        }
        let io = |source| SpoolError::Io { folder: self.config.folder.clone(), source };
        if self.meta.as_ref() != Some(&meta) {
            files::write_meta(&self.config.folder, &meta).map_err(io)?;
            self.meta = Some(meta);
        }
        Ok(())
    }

    /// Stores the events of `upstream`, acknowledges them there when they are durable, and sends them to `consumer`. Ends
    /// when a stream ends, or with `stop`; the consumer gets the error.
    ///
    /// # Cancel safety
    /// The future may be dropped; the spool continues from its last checkpoint when it is opened again.
    pub async fn run(self, mut upstream: ChangeStream, consumer: EventSender, stop: impl Future<Output = ()>) {
        let Self { config, journal, relations, meta, checkpoint, torn, status, is_full } = self;
        let shared = SpoolShared {
            config,
            journal,
            relations: Mutex::new(relations),
            marks: Mutex::default(),
            stored: watch::Sender::new(status.acknowledged_lsn()),
            status,
            has_passed: Notify::new(),
        };
        let acknowledged = consumer.acknowledgements().clone();
        let ended = tokio::select! {
            ended = async {
                tokio::try_join!(
                    writer::run(&shared, &mut upstream, meta, is_full),
                    reader::run(&shared, &consumer, checkpoint, torn),
                    release(&shared, &acknowledged),
                )
            } => ended.err(),
            () = stop => None,
        };
        if let Err(error) = store_checkpoint(&shared, acknowledged.acknowledged()).await {
            tracing::warn!(%error, "the last checkpoint of the spool was not written");
        }
        upstream.stop().await;
        // Closing the log waits for the disk.
        let _ = tokio::task::spawn_blocking(move || drop(shared)).await;
        if let Some(error) = ended.flatten() {
            consumer.send(Err(error)).await;
        }
    }
}

fn describe(meta: &SpoolMeta) -> String {
    let SpoolMeta { identity: SlotIdentity { system_id, timeline, database, slot }, publication, .. } = meta;
    format!("slot {slot} of database {database} (system {system_id}, timeline {timeline}, publication {publication})")
}

fn journal_config(config: &SpoolConfig) -> JournalConfig {
    let bytes_max = config.bytes_max.max(SPOOL_BYTES_MIN);
    let mut journal = JournalConfig::new(&config.folder);
    "spool".clone_into(&mut journal.name);
    journal.record_bytes_max = frame::PART_BYTES_MAX + 1;
    journal.segment_bytes = (bytes_max / 16).clamp(SEGMENT_BYTES.0, SEGMENT_BYTES.1);
    journal.segment_policy = SegmentPolicy::UntilReleased { disk_bytes_max: bytes_max };
    journal.classes = vec![ClassConfig::new("changes").overload(OverloadPolicy::Block { deadline: NO_DEADLINE })];
    journal
}

/// Stores acknowledgements, and removes what they cover from the log.
async fn release(shared: &SpoolShared, acknowledged: &Acknowledge) -> Result<(), Option<ChangeStreamError>> {
    loop {
        tokio::select! {
            () = acknowledged.changed() => {}
            () = shared.has_passed.notified() => {}
        }
        let lsn = acknowledged.acknowledged();
        // The slot may be confirmed up to here, so the position is stored before the log loses what is behind it.
        store_checkpoint(shared, lsn).await.map_err(|error| Some(error.into()))?;
        // Transactions that an earlier run has finished are not delivered, and so not acknowledged, in this one.
        let finished = lsn.max(shared.status.acknowledged_lsn());
        if let Some(position) = shared.marks().passed(finished) {
            shared.journal.release(&position);
        }
        tokio::time::sleep(CHECKPOINT_EVERY).await;
    }
}

/// Reports how full the log is.
struct FillReport {
    level: FillLevel,
    reported_at: Option<Instant>,
}

impl FillReport {
    /// A log that swings around a share of its bound is not reported more often.
    const EVERY: Duration = Duration::from_secs(60);

    const fn new() -> Self {
        Self { level: FillLevel::Low, reported_at: None }
    }

    fn update(&mut self, shared: &SpoolShared) {
        let (bytes, bytes_max) = (shared.status.bytes(), shared.config.bytes_max);
        let Some(level) = self.level.update(bytes, bytes_max) else { return };
        if level < FillLevel::Full && self.reported_at.is_some_and(|at| at.elapsed() < Self::EVERY) {
            return;
        }
        self.reported_at = Some(Instant::now());
        let (folder, percent) = (shared.config.folder.display(), level.percent());
        tracing::warn!(%folder, bytes, bytes_max, percent, "the spool fills: its consumer is slower than the database");
    }
}

/// Stores how far the consumer is. The position may be before that, and then the reader skips what is acknowledged.
async fn store_checkpoint(shared: &SpoolShared, lsn: Lsn) -> Result<(), SpoolError> {
    if lsn <= shared.status.acknowledged_lsn() {
        return Ok(());
    }
    let reached = shared.marks().reach(lsn);
    let Some(position) = reached else { return Ok(()) };
    let checkpoint = SpoolCheckpoint { lsn, position: position.to_string() };
    let folder = shared.config.folder.clone();
    let stored = tokio::task::spawn_blocking(move || files::write_checkpoint(&folder, &checkpoint)).await;
    stored.map_err(io::Error::other).and_then(|stored| stored).map_err(|error| shared.io(error))?;
    shared.journal.release(&position);
    shared.status.acknowledged.store(lsn.0, Ordering::Release);
    shared.stored.send_replace(lsn);
    Ok(())
}
