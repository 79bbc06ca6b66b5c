//! The changes of a Postgres database as a source: one lane, acknowledged by transaction; and copies of tables before them,
//! or beside them.
//!
//! A copy is one of two. Tables with a key are read in chunks beside the stream ([`feed`]), when there is a place for their
//! progress. Other tables are read from an exported snapshot before the stream starts ([`copy`]).

pub(crate) mod control;
mod copy;
mod feed;
mod prepare;
mod single_lane;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tidegate_changes::{
    ChangeEvent, ChangeOptions, ChangeStream, ChangeStreamError, ChangeStreamStatus, ConnectOptions, ConnectionState,
    ErrorClass, EventSender, FileSpill, IdleAck, Lsn, SlotIdentity, SnapshotEvent, SnapshotOptions, SnapshotState,
    SnapshotStream, StreamingOptions, TableProgress, WalBound, WalFull,
    spool::{Spool, SpoolConfig, SpoolError, SpoolFull},
};
use tidegate_config::stream::{
    ChangeEnvelope, ChangesOrigin, RecordField, SnapshotMode, SpoolFullAction, StreamKeys, StreamSink, StreamSource,
    WalFullAction,
};
use tidegate_lanes::{Epoch, Lane, LaneCommit, PollLimit, Position, Record, RunError, Source, SourceEvent};

use crate::{
    capture::{CaptureHandle, DeliveryProgress, UnfinishedCommits},
    change::{ChangeTranslator, CopiedTable, OP, PendingRecord, PositionMap, TranslatedItem, TranslatorSettings},
    error::StreamError,
    lane_names::LaneNames,
    plan::StreamPlan,
    status,
};
pub(crate) use control::ControlSocket;
use copy::CopyPlan;
pub(crate) use copy::OpenCopy;
use feed::{ChangeFeed, FeedEvent};
pub(crate) use prepare::GapRecovery;
use prepare::{CheckedServer, StartFacts, clear, copies_new, may_create, prepare};
pub(crate) use prepare::{is_gap, wait_for_server};
use single_lane::{EPOCH, LANE, SingleLane};
use store::CopyStore;

/// The reason why the source ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeSourceError {
    #[error(transparent)]
    Stream(#[from] ChangeStreamError),
    /// The configuration ends the stream at a change of a table.
    #[error("{0}")]
    Stopped(String),
}

/// Whether a restart may help after this error of a source.
pub(crate) fn is_transient(error: &(dyn StdError + 'static)) -> bool {
    match error.downcast_ref::<ChangeSourceError>() {
        Some(ChangeSourceError::Stream(error)) => error.class() == ErrorClass::Retry,
        Some(ChangeSourceError::Stopped(_)) => false,
        // Sources other than this one.
        None => true,
    }
}

/// The error of a lost connection, after which a copy of tables starts again. Other errors are returned.
pub(crate) fn interruption(error: StreamError) -> Result<ChangeStreamError, StreamError> {
    match error {
        StreamError::Run(RunError::Source(source)) => {
            match source.downcast::<ChangeSourceError>().map(|error| *error) {
                Ok(ChangeSourceError::Stream(error)) if error.class() == ErrorClass::Retry => Ok(error),
                Ok(error) => Err(StreamError::Run(RunError::Source(Box::new(error)))),
                Err(source) => Err(StreamError::Run(RunError::Source(source))),
            }
        }
        other => Err(other),
    }
}

/// An open source, and what runs beside it.
pub(crate) struct OpenChanges {
    pub(crate) source: ChangeSource,
    pub(crate) lanes: LaneNames,
    pub(crate) spool: Option<RunningSpool>,
    /// Takes commands of other processes, if the stream has a folder.
    pub(crate) control: Option<ControlSocket>,
}

/// A spool between the slot and the source.
pub(crate) struct RunningSpool {
    spool: Spool,
    upstream: ChangeStream,
    consumer: EventSender,
}

impl RunningSpool {
    /// Runs until `stop` completes or a stream ends.
    pub(crate) async fn run(self, stop: impl Future<Output = ()>) {
        self.spool.run(self.upstream, self.consumer, stop).await;
    }
}

/// The spool while tables are copied: takes changes, and delivers none. They stay in the log until a later run delivers them.
pub(crate) struct SpoolMeanwhile {
    spool: RunningSpool,
    consumer: ChangeStream,
}

impl SpoolMeanwhile {
    /// Runs until `stop` completes.
    ///
    /// # Errors
    /// The slot or the spool has failed.
    pub(crate) async fn run(self, stop: impl Future<Output = ()>) -> Result<(), StreamError> {
        let Self { spool, mut consumer } = self;
        // Events that are not acknowledged stay in the log.
        let discard = async {
            while consumer.next_batch().await?.is_some() {}
            Ok(())
        };
        let (ended, ()) = tokio::join!(discard, spool.run(stop));
        ended.map_err(StreamError::Changes)
    }
}

/// Members of records that show their kind, or that only messages have; in a CloudEvent below `data`.
const KIND_POINTERS: [&str; 6] = ["/op", "/prefix", "/content", "/data/op", "/data/prefix", "/data/content"];
/// Batches between the slot and its spool.
const SLOT_BATCHES: usize = 2;
/// Batches between a spool and the source.
const SPOOL_BATCHES: usize = 4;

/// An open source of changes, or of the tables before them.
pub(crate) enum OpenedOrigin {
    Changes(Box<OpenChanges>),
    Copy(Box<OpenCopy>),
    /// The tables were copied before, and nothing follows.
    Ended,
}

/// The parts of a source that is being opened.
struct OriginStart<'a> {
    connect: ConnectOptions,
    keys: &'a StreamKeys,
    store: CopyStore,
    spool: Option<Spool>,
    state: SnapshotState,
    recovery: GapRecovery,
    /// The tables are copied again, because changes were lost: rows that the sink has are replaced.
    is_repeat: bool,
}

/// Where to log in.
fn connect_options(origin: &ChangesOrigin) -> Result<ConnectOptions, StreamError> {
    ConnectOptions::from_url(origin.location.reveal()).map_err(|error| StreamError::Changes(error.into()))
}

/// Prepares the next run after lost changes, if the configuration declares how to go on.
///
/// # Errors
/// The slot or the state cannot be replaced.
pub(crate) async fn recover(plan: &StreamPlan, error: &StreamError) -> Result<GapRecovery, StreamError> {
    match &plan.stream.keys.from {
        StreamSource::Postgres(origin) => prepare::recover(plan, &connect_options(origin)?, error).await,
        _ => Ok(GapRecovery::None),
    }
}

/// Opens the source. Tries again while the server cannot be reached.
pub(super) async fn open(
    origin: &ChangesOrigin,
    plan: &StreamPlan,
    status: &Arc<status::StreamStatus>,
    recovery: GapRecovery,
) -> Result<OpenedOrigin, StreamError> {
    let (mut failures, keys) = (0, &plan.stream.keys);
    loop {
        let error = match open_once(origin, plan, status, recovery).await {
            // The folder of the state does not become usable by itself.
            Err(StreamError::Changes(ChangeStreamError::Spool(error))) => {
                return Err(StreamError::Changes(error.into()));
            }
            Err(StreamError::Changes(error)) if error.class() == ErrorClass::Retry => StreamError::Changes(error),
            // The copy stores how far the stream is.
            Err(error @ StreamError::SinkAway(_)) => error,
            opened => return opened,
        };
        failures += 1;
        status.record_error(error.error_chain());
        match error {
            StreamError::Changes(error) => wait_for_server(keys, &error, failures).await,
            error => crate::sink::away::wait_for_sink(keys, &error, failures).await,
        }
    }
}

/// Checks the server, decides which tables are to be copied, and connects to the slot. Waits until the server has accepted the
/// stream.
async fn open_once(
    origin: &ChangesOrigin,
    plan: &StreamPlan,
    status: &Arc<status::StreamStatus>,
    recovery: GapRecovery,
) -> Result<OpenedOrigin, StreamError> {
    let keys = &plan.stream.keys;
    let (connect, store) = (connect_options(origin)?, CopyStore::of(plan)?);
    status.set_capture(Some(no_capture(keys)));
    let mut spool = open_spool(keys).await.map_err(StreamError::Changes)?;
    let stored = store.load().await?;
    let repeated = stored.clone().filter(|state| state.tables.is_empty() && state.repeats > 0);
    let is_repeat = repeated.is_some();
    if let Some(state) = repeated.filter(|_| recovery == GapRecovery::None) {
        // A recovery was interrupted: its spool may be that of the lost slot.
        drop(spool.take());
        clear(keys, &store, state).await?;
        spool = open_spool(keys).await.map_err(StreamError::Changes)?;
    }
    let has_position = spool.as_ref().is_some_and(|spool| spool.position().is_some()) || store.has_position().await?;
    let is_first = recovery != GapRecovery::None || is_repeat || (stored.is_none() && !has_position);
    let copies = copies_new(keys, recovery) || is_repeat;
    let facts = StartFacts {
        is_first,
        creates: may_create(keys, recovery) || is_repeat,
        // The slot shows that the copy has ended: it is created at its end.
        creates_slot: is_first
            && (may_create(keys, recovery) || is_repeat)
            && keys.snapshot != SnapshotMode::InitialOnly
            && !(copies && store.is_nowhere()),
        copies,
        streams: keys.snapshot != SnapshotMode::InitialOnly,
    };
    let server = prepare(&connect, keys, facts).await.map_err(StreamError::Changes)?;
    let is_repeat = is_repeat || recovery == GapRecovery::Resnapshot;
    let state = stored.clone().unwrap_or_default();
    let mut start = OriginStart { connect, keys, store, spool, state, recovery, is_repeat };
    let keyless = start.list_tables(&server, copies, stored.is_none() && has_position).await?;
    let whole = !server.has_slot && copies && start.store.is_nowhere();
    if keys.snapshot == SnapshotMode::InitialOnly && start.state.is_done() && !start.state.tables.is_empty() {
        tracing::info!(
            stream = keys.name,
            "the tables were copied before; remove the state of the stream to copy them again"
        );
        return Ok(OpenedOrigin::Ended);
    }
    if whole || keys.snapshot == SnapshotMode::InitialOnly || !keyless.is_empty() {
        return start.copy(&server, &keyless, status).await;
    }
    start.stream(&server, status).await.map(|changes| OpenedOrigin::Changes(Box::new(changes)))
}

impl OriginStart<'_> {
    /// Brings the list of tables up to date, and stores it before the stream starts. Returns the tables that cannot be copied
    /// in chunks.
    async fn list_tables(
        &mut self,
        server: &CheckedServer,
        copies: bool,
        is_old: bool,
    ) -> Result<Vec<TableProgress>, StreamError> {
        // A slot without a store: its tables were copied when it was created.
        let is_copied_by_slot =
            self.store.is_nowhere() && server.has_slot && self.keys.snapshot == SnapshotMode::Initial;
        if (!copies && self.state.is_done()) || is_copied_by_slot {
            return Ok(Vec::new());
        }
        let options = SnapshotOptions { new_tables: copies, ..self.options() };
        let publications = [self.keys.publication.clone()];
        let listed = self.state.list_tables(&self.connect, &publications, &options).await;
        let mut keyless = listed.map_err(StreamError::Changes)?;
        if self.is_repeat {
            self.state.tables.iter_mut().for_each(|table| table.replaces = true);
            keyless.iter_mut().for_each(|table| table.replaces = true);
        }
        let stays = |table: &&TableProgress| table.replaces && !table.is_done && table.last_key.is_none();
        if let Some(table) = self.state.tables.iter().find(stays).filter(|_| takes_rows_only(self.keys)) {
            tracing::warn!(
                stream = self.keys.name,
                table = table.full_name(),
                "the sink has no statement for a TRUNCATE: rows of an earlier copy stay; remove them by hand"
            );
        }
        if is_old {
            tracing::warn!(
                stream = self.keys.name,
                "the stream has run without a copy of the tables before; STREAM BACKFILL copies a table"
            );
            self.state.tables.iter_mut().for_each(|table| table.is_done = true);
            keyless.clear();
        }
        if let (Some(table), true) = (keyless.first(), self.store.is_sink()) {
            return Err(StreamError::Copy(format!(
                "{0} has no key, so that its copy cannot go on where it ended, and order = \"commit\" applies each row exactly \
                 once; run: ALTER TABLE {0} ADD PRIMARY KEY ..., or name the other tables in `tables`, or use another order",
                table.full_name()
            )));
        }
        if self.keys.snapshot != SnapshotMode::InitialOnly {
            self.store.save(&self.state).await?;
        }
        Ok(keyless)
    }

    fn options(&self) -> SnapshotOptions {
        SnapshotOptions {
            tables: self.keys.tables.clone(),
            new_tables: false,
            chunk_rows: self.keys.snapshot_chunk_rows,
            parallel: self.keys.snapshot_parallel as usize,
            // As for the stream itself: a server that is away comes back.
            attempts_max: u32::MAX,
            ..SnapshotOptions::default()
        }
    }

    /// Copies tables from an exported snapshot: all of them, or those without a key.
    async fn copy(
        mut self,
        server: &CheckedServer,
        keyless: &[TableProgress],
        status: &Arc<status::StreamStatus>,
    ) -> Result<OpenedOrigin, StreamError> {
        let is_only = self.keys.snapshot == SnapshotMode::InitialOnly;
        let is_whole = is_only || self.store.is_nowhere();
        let settings = settings(self.keys, self.connect.database().to_owned(), &self.state, &self.store);
        // Tables with a key are copied in chunks later.
        let mut chunked = Vec::new();
        let (mut capture, mut meanwhile) = (None, None);
        if !is_whole {
            let is_chunked =
                |table: &mut TableProgress| !table.is_done && !keyless.iter().any(|one| one.oid == table.oid);
            chunked.extend(self.state.tables.extract_if(.., is_chunked));
            let OpenSlot { stream, capture: shown, spool } = self.open_slot().await?;
            capture = Some(shown);
            meanwhile = spool.map(|spool| SpoolMeanwhile { spool, consumer: stream });
        }
        let capture = capture.unwrap_or_else(|| no_capture(self.keys));
        let lanes = lane_names(self.keys, &server.identity, capture);
        let creates_slot = is_whole && !server.has_slot && may_create(self.keys, self.recovery);
        let plan = CopyPlan {
            state: self.state,
            chunked,
            creates_slot,
            is_all: is_only,
            is_whole,
            store: self.store,
            lock: self.spool,
            meanwhile,
        };
        let opened = copy::open(self.connect, self.keys, plan, lanes, settings, status).await?;
        Ok(OpenedOrigin::Copy(Box::new(opened)))
    }

    /// Connects to the slot, with the spool behind it if there is one.
    async fn open_slot(&mut self) -> Result<OpenSlot, StreamError> {
        let keys = self.keys;
        let options = ChangeOptions {
            // Skipped changes are those between the position and the slot.
            resume: self.spool.as_ref().and_then(Spool::position).filter(|_| self.recovery != GapRecovery::Skip),
            // A position in the spool must not fall behind the slot.
            idle_ack: if self.spool.is_some() { IdleAck::Consumer } else { IdleAck::Automatic },
            // The marks of a copy are messages; the translator leaves others out where the sink takes rows only.
            messages: true,
            status_interval: keys.status_interval,
            streaming: streaming(keys).map_err(StreamError::Changes)?,
            wal_bound: wal_bound(keys),
            heartbeat: (!keys.heartbeat.is_zero()).then_some(keys.heartbeat),
            ..ChangeOptions::new(self.connect.clone(), &keys.slot, &keys.publication)
        };
        // The spool holds what the sink has not taken.
        let batches_max = if self.spool.is_some() { SLOT_BATCHES } else { options.batches_max };
        let options = ChangeOptions { batches_max, ..options };
        let wal_max = options.wal_bound.map(|bound| bound.bytes_max);
        let mut stream = ChangeStream::start(options);
        let capture = CaptureHandle::new(&keys.slot, wal_max, stream.watch_status());
        let identity = connected(&mut stream).await.map_err(StreamError::Changes)?;
        let spool = match self.spool.take() {
            Some(mut spool) => {
                spool.bind(&identity, &keys.publication).map_err(|error| StreamError::Changes(error.into()))?;
                capture.set_spool(spool.status());
                let (consumer, downstream) = ChangeStream::channel(SPOOL_BATCHES);
                let upstream = std::mem::replace(&mut stream, downstream);
                Some(RunningSpool { spool, upstream, consumer })
            }
            None => None,
        };
        Ok(OpenSlot { stream, capture, spool })
    }

    /// Connects to the slot, and copies tables beside the stream.
    async fn stream(
        mut self,
        server: &CheckedServer,
        status: &Arc<status::StreamStatus>,
    ) -> Result<OpenChanges, StreamError> {
        let OpenSlot { stream, capture, spool } = self.open_slot().await?;
        let keys = self.keys;
        let acknowledge = stream.acknowledger();
        let settings = settings(keys, self.connect.database().to_owned(), &self.state, &self.store);
        let (options, publications) = (self.options(), vec![keys.publication.clone()]);
        let stream = SnapshotStream::over(stream, self.connect, publications, options, self.state).await;
        let stream = stream.map_err(StreamError::Changes)?;
        let progress = capture.progress();
        let lanes = lane_names(self.keys, &server.identity, capture);
        let control = ControlSocket::bind(keys);
        let feed = ChangeFeed::start(stream, self.store, status, acknowledge);
        Ok(OpenChanges { source: ChangeSource::new(feed, &keys.slot, settings, progress), lanes, spool, control })
    }
}

/// A connection to the slot.
struct OpenSlot {
    /// Reads from the spool, if there is one.
    stream: ChangeStream,
    capture: CaptureHandle,
    spool: Option<RunningSpool>,
}

/// The capture of a stream that is not connected.
fn no_capture(keys: &StreamKeys) -> CaptureHandle {
    let (_, no_stream) = tokio::sync::watch::channel(ChangeStreamStatus::default());
    CaptureHandle::new(&keys.slot, None, no_stream)
}

/// Storage for transactions that the server sends before they commit, in the folder of the spool.
fn streaming(keys: &StreamKeys) -> Result<Option<StreamingOptions>, ChangeStreamError> {
    if keys.state.as_os_str().is_empty() || keys.tx_memory == 0 {
        return Ok(None);
    }
    let folder = keys.state.join(&keys.name).join("tx");
    let store = FileSpill::new(&folder, keys.spool_bytes).map_err(|source| SpoolError::Io { folder, source })?;
    let memory_max = usize::try_from(keys.tx_memory).unwrap_or(usize::MAX);
    Ok(Some(StreamingOptions { store: Box::new(store), memory_max }))
}

fn wal_bound(keys: &StreamKeys) -> Option<WalBound> {
    let full = match keys.wal_full {
        WalFullAction::Alarm => WalFull::Alarm,
        WalFullAction::Stop => WalFull::Stop,
        WalFullAction::DropSlot => WalFull::DropSlot,
    };
    (keys.wal_max > 0).then_some(WalBound { bytes_max: keys.wal_max, full })
}

async fn open_spool(keys: &StreamKeys) -> Result<Option<Spool>, ChangeStreamError> {
    let Some(folder) = store::folder(keys) else { return Ok(None) };
    let config = spool_config(keys, &folder);
    let opened = tokio::task::spawn_blocking(move || Spool::open(config)).await;
    Ok(Some(opened.map_err(|_| ChangeStreamError::Ended)??))
}

fn spool_config(keys: &StreamKeys, folder: &Path) -> SpoolConfig {
    SpoolConfig {
        folder: folder.to_owned(),
        bytes_max: keys.spool_bytes,
        full: match keys.spool_full {
            SpoolFullAction::Hold => SpoolFull::Hold,
            SpoolFullAction::Stop => SpoolFull::Stop,
        },
    }
}

/// Waits for the first connection.
async fn connected(stream: &mut ChangeStream) -> Result<SlotIdentity, ChangeStreamError> {
    let mut status = stream.watch_status();
    let is_decided = |status: &tidegate_changes::ChangeStreamStatus| {
        status.identity.is_some() || status.connection == ConnectionState::Ended
    };
    let identity = status.wait_for(is_decided).await.ok().and_then(|status| status.identity.clone());
    match identity {
        Some(identity) => Ok(identity),
        // The error that has ended the stream.
        None => Err(stream.next().await.err().unwrap_or(ChangeStreamError::Ended)),
    }
}

fn lane_names(keys: &StreamKeys, identity: &SlotIdentity, capture: CaptureHandle) -> LaneNames {
    LaneNames::Changes { stream: keys.name.as_str().into(), slot: described(identity).into(), capture }
}

fn described(identity: &SlotIdentity) -> String {
    let SlotIdentity { system_id, database, slot, .. } = identity;
    format!("slot {slot} of database {database}, system {system_id}")
}

/// Whether the sink is a statement whose parameters are parts of a row: another record would become a row of NULLs.
fn takes_rows_only(keys: &StreamKeys) -> bool {
    let is_statement = matches!(keys.to, StreamSink::Postgres(_) | StreamSink::Gateway(_));
    let names_kind = |field: &RecordField| match field {
        RecordField::Value => true,
        RecordField::Header(name) => name == OP,
        RecordField::Pointer(pointer) => KIND_POINTERS.contains(&pointer.as_str()),
        _ => false,
    };
    is_statement && !keys.params.0.iter().any(names_kind)
}

fn settings(keys: &StreamKeys, database: String, state: &SnapshotState, store: &CopyStore) -> TranslatorSettings {
    let copied: BTreeMap<_, _> =
        state.tables.iter().filter_map(|table| Some((table.oid, CopiedTable::of(table)?))).collect();
    let is_kafka = matches!(keys.to, StreamSink::Kafka(_));
    TranslatorSettings {
        stream: keys.name.clone(),
        database,
        envelope: keys.envelope,
        order: keys.order,
        key: keys.key.clone(),
        key_change: keys.key_change,
        schema_change: keys.schema_change,
        tombstones: is_kafka && keys.envelope != ChangeEnvelope::CloudEvents,
        headers: !matches!(keys.to, StreamSink::Stdout | StreamSink::Command(_)),
        rows_only: takes_rows_only(keys),
        tx_markers: keys.tx_markers,
        stores_positions: store.is_sink(),
        copied,
    }
}

/// Delivers changes as records.
pub(crate) struct ChangeSource {
    /// `None` once it is being closed.
    feed: Option<ChangeFeed>,
    closing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    translator: ChangeTranslator,
    positions: PositionMap,
    commits: UnfinishedCommits,
    /// Translated and not delivered.
    queue: VecDeque<TranslatedItem>,
    queued_bytes: usize,
    /// The task is woken when the lane is resumed, and when a commit may end a barrier.
    lane: SingleLane,
    /// The slot, in logs and errors.
    lane_name: String,
    has_ended: bool,
}

impl fmt::Debug for ChangeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeSource").field("positions", &self.positions).finish_non_exhaustive()
    }
}

impl ChangeSource {
    fn new(feed: ChangeFeed, slot: &str, settings: TranslatorSettings, progress: Arc<DeliveryProgress>) -> Self {
        Self {
            feed: Some(feed),
            closing: None,
            translator: ChangeTranslator::new(settings),
            positions: PositionMap::default(),
            commits: UnfinishedCommits::new(progress),
            queue: VecDeque::new(),
            queued_bytes: 0,
            lane: SingleLane::default(),
            lane_name: format!("slot {slot}"),
            has_ended: false,
        }
    }

    /// Delivers queued records up to the limit, and up to a barrier.
    fn take(&mut self, limit: PollLimit, batch: &mut Vec<Record>) -> Result<(), ChangeSourceError> {
        let (mut records, mut bytes) = (0, 0);
        while let Some(item) = self.queue.front_mut() {
            let is_full = records >= limit.records || (records > 0 && bytes >= limit.bytes);
            let is_held = is_full || self.lane.is_paused();
            match item {
                TranslatedItem::Complete(lsn) => {
                    let reached = self.positions.complete(*lsn);
                    self.queue.pop_front();
                    self.acknowledge(reached);
                }
                // Records before the stop are delivered first.
                TranslatedItem::Stop(_) if records > 0 || !self.positions.is_idle() => return Ok(()),
                TranslatedItem::Stop(reason) => return Err(ChangeSourceError::Stopped(reason.clone())),
                TranslatedItem::Record(record) => {
                    let size = record.bytes();
                    let is_full = records > 0 && bytes + size > limit.bytes;
                    if is_held || is_full || (record.waits && !self.positions.is_idle()) {
                        return Ok(());
                    }
                    (records, bytes) = (records + 1, bytes + size);
                    self.queued_bytes = self.queued_bytes.saturating_sub(size);
                    if let Some(TranslatedItem::Record(record)) = self.queue.pop_front() {
                        batch.push(positioned(*record, self.positions.assign()));
                    }
                }
                TranslatedItem::Rows { rows, next, waits } => {
                    if is_held || (*waits && *next == 0 && !self.positions.is_idle()) {
                        return Ok(());
                    }
                    if let Some(record) = self.translator.read(rows, *next) {
                        (*next, records, bytes) = (*next + 1, records + 1, bytes + record.bytes());
                        batch.push(positioned(record, self.positions.assign()));
                    } else {
                        let (progress, size) = (rows.progress.clone(), rows_bytes(rows));
                        self.queued_bytes = self.queued_bytes.saturating_sub(size);
                        *item = TranslatedItem::Copied(Box::new(progress));
                    }
                }
                TranslatedItem::Copied(progress) => match self.translator.copied(progress) {
                    Some(_) if is_held => return Ok(()),
                    Some(record) => {
                        records += 1;
                        batch.push(positioned(record, self.positions.assign()));
                        self.queue.pop_front();
                    }
                    None => {
                        self.positions.copied((**progress).clone());
                        self.queue.pop_front();
                        self.acknowledge(None);
                    }
                },
            }
        }
        Ok(())
    }

    /// Passes on what is finished: a position of the stream, and how far copies are.
    fn acknowledge(&mut self, reached: Option<Lsn>) {
        let Some(feed) = &self.feed else { return };
        if let Some(lsn) = reached {
            feed.acknowledge.up_to(lsn);
            self.commits.finish(lsn);
        }
        while let Some(progress) = self.positions.take_copied() {
            // A feed that has ended stores nothing: the rows are read again.
            let _ = feed.reached.send(progress);
        }
    }

    /// Translates the events of a batch.
    fn receive(&mut self, events: Vec<FeedEvent>) {
        for event in events {
            match event {
                FeedEvent::Stream(SnapshotEvent::Change(event)) => {
                    if let ChangeEvent::Commit(commit) = &event {
                        self.commits.push(commit.end_lsn, commit.commit_time);
                    }
                    self.translator.on_event(event, &mut self.queue);
                }
                FeedEvent::Stream(SnapshotEvent::Rows(rows)) => self.translator.on_rows(rows, &mut self.queue),
                FeedEvent::Begun(progress) => self.queue.push_back(TranslatedItem::Copied(Box::new(progress))),
                FeedEvent::Stream(SnapshotEvent::Complete(_)) => {}
            }
        }
        let bytes = |item: &TranslatedItem| match item {
            TranslatedItem::Record(record) => record.bytes(),
            TranslatedItem::Rows { rows, .. } => rows_bytes(rows),
            _ => 0,
        };
        self.queued_bytes = self.queue.iter().map(bytes).sum();
    }
}

fn rows_bytes(rows: &tidegate_changes::SnapshotRows) -> usize {
    usize::try_from(rows.bytes).unwrap_or(usize::MAX)
}

fn positioned(pending: PendingRecord, position: Position) -> Record {
    let PendingRecord { key, ordering_key, payload, headers, timestamp_ms, error, .. } = pending;
    let record = Record::new(LANE, EPOCH, position, key.as_deref(), payload.as_deref())
        .with_ordering_key(ordering_key.as_deref())
        .with_timestamp_ms(timestamp_ms);
    let record = if headers.is_empty() { record } else { record.with_headers(headers) };
    match error {
        Some(reason) => record.undecodable(&reason),
        None => record,
    }
}

impl Source for ChangeSource {
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
            self.take(limit, batch)?;
            if batch.len() > before {
                return Poll::Ready(Ok(SourceEvent::Records));
            }
            self.lane.register(cx);
            if !self.queue.is_empty() {
                return Poll::Pending;
            }
            if self.has_ended {
                return Poll::Ready(Ok(SourceEvent::Ended));
            }
            let Some(feed) = &mut self.feed else { return Poll::Ready(Ok(SourceEvent::Ended)) };
            match ready!(feed.batches.poll_recv(cx)) {
                Some(Ok(events)) => self.receive(events),
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => self.has_ended = true,
            }
        }
    }

    fn pause(&mut self, _: Lane, _: Epoch) {
        self.lane.pause();
    }

    fn resume(&mut self, _: Lane, _: Epoch) {
        self.lane.resume();
    }

    fn commit(&mut self, commits: &[LaneCommit]) {
        for commit in commits {
            let reached = self.positions.finish(commit.through);
            self.acknowledge(reached);
        }
        self.lane.wake();
    }

    fn release(&mut self, _: Lane, _: Epoch, through: Option<Position>) {
        let reached = through.and_then(|through| self.positions.finish(through));
        self.acknowledge(reached);
    }

    /// Sends the last acknowledgement to the server (CH-16).
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ChangeSourceError>> {
        if let Some(feed) = self.feed.take() {
            self.closing = Some(Box::pin(feed.stop()));
        }
        if let Some(closing) = &mut self.closing {
            ready!(closing.as_mut().poll(cx));
            self.closing = None;
        }
        Poll::Ready(Ok(()))
    }

    fn buffered_bytes(&self) -> usize {
        self.queued_bytes
    }

    fn lane_name(&self, _: Lane) -> String {
        self.lane_name.clone()
    }
}
