//! Writes events to the log, and acknowledges them when they are durable.

use std::{pin::pin, sync::atomic::Ordering, time::Duration};

use tidegate_journal::{Ack, Class, Producer, ProducerRecord, RecordId};
use tidegate_wire::replication::Lsn;
use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};

use super::{
    FillReport, SpoolError, SpoolFull, SpoolMeta, SpoolShared, files,
    frame::{PART_BYTES_MAX, SpoolFrame, split},
};
use crate::{error::ChangeStreamError, event::ChangeEvent, position::SlotIdentity, stream::ChangeStream};

/// Positions without transactions are stored at most this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Commits that wait for a sync.
const UNSYNCED_MAX: usize = 4_096;

pub(super) async fn run(
    shared: &SpoolShared,
    upstream: &mut ChangeStream,
    mut meta: Option<SpoolMeta>,
    is_full: watch::Receiver<bool>,
) -> Result<(), Option<ChangeStreamError>> {
    let producer = shared.journal.producer();
    let acknowledge = upstream.acknowledger();
    let (unsynced, synced) = mpsc::channel(UNSYNCED_MAX);
    let mut writer = SpoolWriter {
        shared,
        producer: producer.clone(),
        is_full,
        unsynced,
        end: shared.status.durable_lsn(),
        skips: false,
        transaction_bytes: 0,
        current: Lsn::ZERO,
        is_passing: false,
        fill: FillReport::new(),
        progress: None,
        buffer: Vec::new(),
    };
    let mut status = upstream.watch_status();
    let mut ticks = tokio::time::interval(PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut syncing = pin!(sync(shared, &producer, synced, |lsn| acknowledge.up_to(lsn)));
    loop {
        let step = async {
            tokio::select! {
                batch = upstream.next_batch() => match batch.map_err(Some)? {
                    Some(events) => {
                        if status.has_changed().unwrap_or(false) {
                            let identity = status.borrow_and_update().identity.clone();
                            raise_timeline(shared, &mut meta, identity).map_err(|error| Some(error.into()))?;
                        }
                        writer.write(events).await.map_err(|error| Some(error.into())).map(|()| true)
                    }
                    None => Ok(false),
                },
                _ = ticks.tick() => writer.write_progress().await.map_err(|error| Some(error.into())).map(|()| true),
            }
        };
        tokio::select! {
            goes_on = step => if !goes_on? { break },
            failed = &mut syncing => return failed.map_err(|error: SpoolError| Some(error.into())),
        }
    }
    drop(writer);
    syncing.await.map_err(|error| Some(error.into()))?;
    // The slot has ended: the consumer reads what is left, and then gets the end.
    Err(None)
}

/// Stores the timeline after a promotion, before any position behind it: the reader has checked that the new primary has all
/// that was received before.
fn raise_timeline(
    shared: &SpoolShared,
    meta: &mut Option<SpoolMeta>,
    identity: Option<SlotIdentity>,
) -> Result<(), SpoolError> {
    let (Some(meta), Some(identity)) = (meta.as_mut(), identity) else { return Ok(()) };
    if identity.timeline > meta.identity.timeline {
        meta.identity = identity;
        files::write_meta(&shared.config.folder, meta).map_err(|source| shared.io(source))?;
    }
    Ok(())
}

/// Acknowledges what is durable. Many commits share a sync.
async fn sync(
    shared: &SpoolShared,
    producer: &Producer,
    mut unsynced: mpsc::Receiver<(Option<RecordId>, Lsn)>,
    acknowledge: impl Fn(Lsn),
) -> Result<(), SpoolError> {
    let mut record = None;
    while let Some((first, mut lsn)) = unsynced.recv().await {
        record = first.or(record);
        while let Ok((next, next_lsn)) = unsynced.try_recv() {
            (record, lsn) = (next.or(record), next_lsn);
        }
        if let Some(record) = record {
            producer.wait_through(record, Ack::Durable).await.map_err(|_| SpoolError::Lost)?;
        }
        shared.status.durable.fetch_max(lsn.0, Ordering::AcqRel);
        acknowledge(lsn);
    }
    Ok(())
}

struct SpoolWriter<'a> {
    shared: &'a SpoolShared,
    producer: Producer,
    is_full: watch::Receiver<bool>,
    unsynced: mpsc::Sender<(Option<RecordId>, Lsn)>,
    /// The end of the last transaction in the log.
    end: Lsn,
    /// The current transaction is in the log already: the server sends it again after a reconnect.
    skips: bool,
    transaction_bytes: u64,
    /// The commit position of the current transaction.
    current: Lsn,
    /// The current transaction is too large to be kept as a whole.
    is_passing: bool,
    fill: FillReport,
    /// A position without a transaction that is not written yet.
    progress: Option<Lsn>,
    buffer: Vec<u8>,
}

impl SpoolWriter<'_> {
    async fn write(&mut self, events: Vec<ChangeEvent>) -> Result<(), SpoolError> {
        for event in events {
            match event {
                ChangeEvent::Begin(begin) => {
                    self.skips = begin.commit_lsn < self.end;
                    (self.transaction_bytes, self.current, self.is_passing) = (0, begin.commit_lsn, false);
                    if !self.skips {
                        self.append(&SpoolFrame::Begin(begin)).await?;
                    }
                }
                ChangeEvent::Schema(change) => self.shared.relations().update(&change.after),
                ChangeEvent::Change(change) if !self.skips => {
                    let frame = SpoolFrame::of_change(&change, |oid| self.shared.relations().version(oid));
                    self.append(&frame).await?;
                }
                ChangeEvent::Commit(commit) if !self.skips => {
                    self.sync_relations()?;
                    let record = self.append(&SpoolFrame::Commit(commit)).await?;
                    if std::mem::take(&mut self.is_passing) {
                        self.passed(commit.end_lsn).await;
                    }
                    self.finish(record, commit.end_lsn).await;
                }
                ChangeEvent::Commit(commit) => self.finish(None, commit.end_lsn.min(self.end)).await,
                ChangeEvent::Message(message) if message.end_lsn > self.end => {
                    let end_lsn = message.end_lsn;
                    let record = self.append(&SpoolFrame::Message(message)).await?;
                    self.finish(record, end_lsn).await;
                }
                ChangeEvent::Progress(lsn) => self.progress = Some(lsn),
                _ => {}
            }
        }
        Ok(())
    }

    /// Stores the newest position without a transaction.
    async fn write_progress(&mut self) -> Result<(), SpoolError> {
        self.fill.update(self.shared);
        let Some(lsn) = self.progress.take().filter(|lsn| *lsn > self.end) else { return Ok(()) };
        let record = self.append(&SpoolFrame::Progress(lsn)).await?;
        self.finish(record, lsn).await;
        Ok(())
    }

    /// Waits until the consumer has acknowledged a transaction that the log does not have as a whole. Without its
    /// acknowledgement the slot must not be confirmed past it, and so nothing is stored behind it.
    async fn passed(&self, end_lsn: Lsn) {
        // The sender lives as long as the writer.
        let _ = self.shared.stored.subscribe().wait_for(|stored| *stored >= end_lsn).await;
    }

    async fn finish(&mut self, record: Option<RecordId>, lsn: Lsn) {
        self.end = lsn.max(self.end);
        // The receiver reports its own error.
        let _ = self.unsynced.send((record, lsn)).await;
    }

    fn sync_relations(&self) -> Result<(), SpoolError> {
        self.shared.relations().sync().map_err(|error| self.shared.io(error))
    }

    /// Appends a frame. Waits for room.
    async fn append(&mut self, frame: &SpoolFrame) -> Result<Option<RecordId>, SpoolError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        // The kind of a whole frame.
        buffer.push(0);
        frame.encode(&mut buffer);
        let (bytes, bytes_max) = (buffer.len() as u64, self.shared.config.bytes_max);
        if bytes > bytes_max / 2 {
            return Err(SpoolError::ChangeTooLarge { bytes_max });
        }
        if let SpoolFrame::Change { .. } = frame {
            self.transaction_bytes += bytes;
            if self.transaction_bytes > bytes_max / 2 && !self.is_passing {
                self.pass().await?;
            }
        }
        let mut last = None;
        if buffer.len() - 1 <= PART_BYTES_MAX {
            last = Some(self.append_record(&buffer).await?);
        } else {
            for (kind, part) in split(&buffer[1..]) {
                last = Some(self.append_record(&[&[kind], part].concat()).await?);
            }
        }
        // A frame of a large value does not stay in memory.
        buffer.shrink_to(PART_BYTES_MAX);
        self.buffer = buffer;
        Ok(last)
    }

    /// Begins to pass the current transaction through.
    async fn pass(&mut self) -> Result<(), SpoolError> {
        let (folder, bytes_max) = (self.shared.config.folder.display(), self.shared.config.bytes_max);
        tracing::info!(%folder, commit_lsn = %self.current, bytes_max, "a large transaction passes through the spool");
        self.is_passing = true;
        let mut record = vec![0];
        SpoolFrame::Passing(self.current).encode(&mut record);
        self.append_record(&record).await.map(drop)
    }

    async fn append_record(&mut self, record: &[u8]) -> Result<RecordId, SpoolError> {
        let producer = self.producer.clone();
        let appended = producer.append(ProducerRecord::new(Class::new(0), record));
        // The log is full of a transaction that passes through whenever its consumer is slower than the server.
        if self.shared.config.full == SpoolFull::Hold || self.is_passing {
            return appended.await.map_err(|_| SpoolError::Lost);
        }
        tokio::select! {
            biased;
            _ = self.is_full.wait_for(|is_full| *is_full) => {
                Err(SpoolError::Full { bytes_max: self.shared.config.bytes_max })
            }
            appended = appended => appended.map_err(|_| SpoolError::Lost),
        }
    }
}
