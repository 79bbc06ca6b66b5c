//! The changes of a Postgres database as a source: one lane, acknowledged by transaction.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tidegate_changes::{
    Acknowledge, ChangeEvent, ChangeOptions, ChangeStream, ConnectOptions, ConnectionState, ErrorClass, EventSender,
    FileSpill, IdleAck, Lsn, SlotIdentity, StreamError as ChangeStreamError, StreamingOptions, WalBound, WalFull,
    spool::{Spool, SpoolConfig, SpoolError, SpoolFull},
};
use tidegate_config::stream::{
    ChangeEnvelope, ChangesOrigin, RecordField, SpoolFullAction, StreamKeys, StreamSink, WalFullAction,
};
use tidegate_lanes::{Epoch, Lane, LaneCommit, PollLimit, Position, Record, Source, SourceEvent};

use crate::{
    capture::{CaptureHandle, DeliveryProgress, UnfinishedCommits},
    change::{ChangeTranslator, OP, PendingRecord, PositionMap, TranslatedItem, TranslatorSettings},
    error::StreamError,
    lane_names::LaneNames,
};

/// The slot is one lane, and a run is one assignment of it.
const LANE: Lane = Lane(0);
const EPOCH: Epoch = Epoch(1);

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

/// An open source, and what runs beside it.
pub(crate) struct OpenChanges {
    pub(crate) source: ChangeSource,
    pub(crate) lanes: LaneNames,
    pub(crate) spool: Option<RunningSpool>,
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

/// Members of records that name their kind, or that only messages have; in a CloudEvent below `data`.
const KIND_POINTERS: [&str; 6] = ["/op", "/prefix", "/content", "/data/op", "/data/prefix", "/data/content"];
/// Batches between a spool and the source.
const SPOOL_BATCHES: usize = 4;

/// Connects to the slot, and waits until the server has accepted the stream.
pub(super) async fn open(origin: &ChangesOrigin, keys: &StreamKeys) -> Result<OpenChanges, StreamError> {
    let connect =
        ConnectOptions::from_url(origin.location.reveal()).map_err(|error| StreamError::Changes(error.into()))?;
    let database = connect.database().to_owned();
    let mut spool = open_spool(keys).await.map_err(StreamError::Changes)?;
    let options = ChangeOptions {
        resume: spool.as_ref().and_then(Spool::position),
        // A position in the spool must not fall behind the slot.
        idle_ack: if spool.is_some() { IdleAck::Consumer } else { IdleAck::Automatic },
        messages: !takes_rows_only(keys),
        status_interval: keys.status_interval,
        streaming: streaming(keys).map_err(StreamError::Changes)?,
        wal_bound: wal_bound(keys),
        heartbeat: (!keys.heartbeat.is_zero()).then_some(keys.heartbeat),
        ..ChangeOptions::new(connect, &keys.slot, &keys.publication)
    };
    let wal_max = options.wal_bound.map(|bound| bound.bytes_max);
    let mut stream = ChangeStream::start(options);
    let capture = CaptureHandle::new(&keys.slot, wal_max, stream.watch_status());
    let identity = connected(&mut stream).await.map_err(StreamError::Changes)?;
    let spool = match spool.take() {
        Some(mut spool) => {
            spool.bind(&identity, &keys.publication).map_err(|error| StreamError::Changes(error.into()))?;
            capture.set_spool(spool.status());
            let (consumer, downstream) = ChangeStream::channel(SPOOL_BATCHES);
            let upstream = std::mem::replace(&mut stream, downstream);
            Some(RunningSpool { spool, upstream, consumer })
        }
        None => None,
    };
    let progress = capture.progress();
    let lanes = LaneNames::Changes { stream: keys.name.as_str().into(), slot: described(&identity).into(), capture };
    let source = ChangeSource::new(stream, settings(keys, database), progress);
    Ok(OpenChanges { source, lanes, spool })
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
    if keys.state.as_os_str().is_empty() {
        return Ok(None);
    }
    let config = SpoolConfig {
        folder: keys.state.join(&keys.name),
        bytes_max: keys.spool_bytes,
        full: match keys.spool_full {
            SpoolFullAction::Hold => SpoolFull::Hold,
            SpoolFullAction::Stop => SpoolFull::Stop,
        },
    };
    let opened = tokio::task::spawn_blocking(move || Spool::open(config)).await;
    Ok(Some(opened.map_err(|_| ChangeStreamError::Ended)??))
}

/// Waits for the first connection.
async fn connected(stream: &mut ChangeStream) -> Result<SlotIdentity, ChangeStreamError> {
    let mut status = stream.watch_status();
    let is_decided = |status: &tidegate_changes::StreamStatus| {
        status.identity.is_some() || status.connection == ConnectionState::Ended
    };
    let identity = status.wait_for(is_decided).await.ok().and_then(|status| status.identity.clone());
    match identity {
        Some(identity) => Ok(identity),
        // The error that has ended the stream.
        None => Err(stream.next().await.err().unwrap_or(ChangeStreamError::Ended)),
    }
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

fn settings(keys: &StreamKeys, database: String) -> TranslatorSettings {
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
    }
}

/// Delivers changes as records.
pub(crate) struct ChangeSource {
    /// `None` once it is being closed.
    stream: Option<ChangeStream>,
    closing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    acknowledge: Acknowledge,
    translator: ChangeTranslator,
    positions: PositionMap,
    commits: UnfinishedCommits,
    /// Translated and not delivered.
    queue: VecDeque<TranslatedItem>,
    queued_bytes: usize,
    is_assigned: bool,
    is_paused: bool,
    has_ended: bool,
    /// Woken when a commit may end a barrier, and when the lane is resumed.
    waker: Option<Waker>,
}

impl fmt::Debug for ChangeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeSource").field("positions", &self.positions).finish_non_exhaustive()
    }
}

impl ChangeSource {
    pub(crate) fn new(stream: ChangeStream, settings: TranslatorSettings, progress: Arc<DeliveryProgress>) -> Self {
        Self {
            acknowledge: stream.acknowledger(),
            stream: Some(stream),
            closing: None,
            translator: ChangeTranslator::new(settings),
            positions: PositionMap::default(),
            commits: UnfinishedCommits::new(progress),
            queue: VecDeque::new(),
            queued_bytes: 0,
            is_assigned: false,
            is_paused: false,
            has_ended: false,
            waker: None,
        }
    }

    /// The sink has everything up to a position.
    fn acknowledge(&mut self, reached: Option<Lsn>) {
        if let Some(lsn) = reached {
            self.acknowledge.up_to(lsn);
            self.commits.finish(lsn);
        }
    }

    /// Translates events into records.
    fn translate(&mut self, events: Vec<ChangeEvent>) {
        for event in events {
            if let ChangeEvent::Commit(commit) = &event {
                self.commits.push(commit.end_lsn, commit.commit_time);
            }
            self.translator.on_event(event, &mut self.queue);
        }
        let bytes = |item: &TranslatedItem| match item {
            TranslatedItem::Record(record) => record.bytes(),
            _ => 0,
        };
        self.queued_bytes = self.queue.iter().map(bytes).sum();
    }

    /// Delivers queued records up to the limit, and up to a barrier.
    fn take(&mut self, limit: PollLimit, batch: &mut Vec<Record>) -> Result<(), ChangeSourceError> {
        let (mut records, mut bytes) = (0, 0);
        while let Some(item) = self.queue.front() {
            match item {
                TranslatedItem::Complete(lsn) => {
                    let reached = self.positions.complete(*lsn);
                    self.queue.pop_front();
                    self.acknowledge(reached);
                }
                TranslatedItem::Stop(_) if records > 0 => return Ok(()),
                TranslatedItem::Stop(reason) => return Err(ChangeSourceError::Stopped(reason.clone())),
                TranslatedItem::Record(record) => {
                    let size = record.bytes();
                    let is_full = records >= limit.records || (records > 0 && bytes + size > limit.bytes);
                    if is_full || self.is_paused || (record.waits && !self.positions.is_idle()) {
                        return Ok(());
                    }
                    (records, bytes) = (records + 1, bytes + size);
                    self.queued_bytes = self.queued_bytes.saturating_sub(size);
                    if let Some(TranslatedItem::Record(record)) = self.queue.pop_front() {
                        batch.push(positioned(*record, self.positions.assign()));
                    }
                }
            }
        }
        Ok(())
    }
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
        if !std::mem::replace(&mut self.is_assigned, true) {
            return Poll::Ready(Ok(SourceEvent::Assigned { lane: LANE, epoch: EPOCH }));
        }
        let before = batch.len();
        loop {
            self.take(limit, batch)?;
            if batch.len() > before {
                return Poll::Ready(Ok(SourceEvent::Records));
            }
            self.waker = Some(cx.waker().clone());
            if !self.queue.is_empty() {
                return Poll::Pending;
            }
            if self.has_ended {
                return Poll::Ready(Ok(SourceEvent::Ended));
            }
            // A dropped future of `next_batch` loses no event, and the channel keeps the waker.
            let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(SourceEvent::Ended)) };
            let polled = pin!(stream.next_batch()).poll(cx);
            match polled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Some(events))) => self.translate(events),
                Poll::Ready(Ok(None)) => self.has_ended = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn pause(&mut self, _: Lane, _: Epoch) {
        self.is_paused = true;
    }

    fn resume(&mut self, _: Lane, _: Epoch) {
        self.is_paused = false;
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn commit(&mut self, commits: &[LaneCommit]) {
        for commit in commits {
            let reached = self.positions.finish(commit.through);
            self.acknowledge(reached);
        }
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn release(&mut self, _: Lane, _: Epoch, through: Option<Position>) {
        let reached = through.and_then(|through| self.positions.finish(through));
        self.acknowledge(reached);
    }

    /// Sends the last acknowledgement to the server (CH-16).
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ChangeSourceError>> {
        if let Some(stream) = self.stream.take() {
            self.closing = Some(Box::pin(async move { drop(stream.stop().await) }));
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
        "slot".to_owned()
    }
}
