//! Writes batches to the open segment of a stripe.
//!
//! A batch is kept until it has reached its ack level. If a write or a sync fails, the segment is abandoned, because a
//! second fsync reports success for pages that the kernel has dropped. The whole batch is then written to a new segment;
//! readers skip records that they have seen by their sequence number. Records of earlier batches in the abandoned segment
//! that no sync has reached are reported as not durable. A full disk on a write does not abandon the segment: the partial
//! write is truncated, and the batch is retried on the same segment.

use std::{
    collections::VecDeque,
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use crate::{
    chunk::{self, FrameChunk},
    config::{JournalConfig, SegmentPolicy},
    disk_bound::DiskBound,
    folder::{FolderLock, FolderStatus},
    frame::{FrameInput, FrameKind},
    line_format,
    producer_record::{Ack, Class},
    segment::{self, HEADER_BYTES, SEAL_BYTES, SegmentHeader, SegmentName, SegmentSummary},
    segment_format::SegmentFormat,
    staging::WriteBatch,
    storage::{SegmentFile, Storage},
    timestamp::Timestamp,
};

/// How often the path of the open segment is checked, to detect a rename or removal.
const PATH_CHECK_EVERY: Duration = Duration::from_secs(1);

/// A segment that was ended and may still have to be synced.
#[derive(Debug)]
pub(crate) struct SealedSegment {
    pub(crate) file: Box<dyn SegmentFile>,
    pub(crate) path: PathBuf,
    /// The sequence numbers that no sync has reached.
    pub(crate) seqs: Range<u64>,
    /// The folder entry is durable.
    pub(crate) is_named: bool,
    /// The offset where the current batch begins.
    batch: u64,
}

/// An error that prevents storing a batch for now.
#[derive(Debug)]
pub(crate) struct SegmentWriteError {
    pub(crate) error: io::Error,
    pub(crate) path: PathBuf,
    /// The segment was abandoned.
    pub(crate) abandoned: bool,
}

impl SegmentWriteError {
    /// Whether the disk or the quota is full.
    pub(crate) fn is_full(&self) -> bool {
        is_full(&self.error)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[derive(Debug)]
struct OpenSegment {
    file: Box<dyn SegmentFile>,
    path: PathBuf,
    salt: u32,
    /// The length of the whole frames, from the start of the file.
    bytes: u64,
    records: u64,
    first_seq: u64,
    end_seq: u64,
    /// Sequence numbers below this are durable.
    synced_seq: u64,
    /// The segment has records of an earlier run.
    is_continued: bool,
    times: Option<(Timestamp, Timestamp)>,
    unsynced: bool,
    /// The folder entry is durable.
    is_named: bool,
    /// The offset where the current batch begins, and the index of its first chunk in this segment.
    batch: (u64, usize),
    since: Instant,
    path_checked: Instant,
}

/// A batch that is being written.
#[derive(Debug)]
struct PendingBatch {
    batch: WriteBatch,
    next: usize,
}

impl PendingBatch {
    /// The first sequence number that is not yet written.
    fn first_seq(&self) -> u64 {
        let rest = self.batch.chunks.get(self.next..).unwrap_or_default();
        rest.iter().find_map(FrameChunk::seqs).map_or(self.batch.end, |(first, _)| first)
    }
}

/// An error while writing a batch.
struct WriteFailure {
    error: io::Error,
    path: PathBuf,
    /// The failed call was a sync, which must not be retried on the same file.
    is_sync: bool,
}

pub(crate) struct SegmentWriter {
    config: Arc<JournalConfig>,
    storage: Arc<dyn Storage>,
    folder_lock: Weak<FolderLock>,
    disk_bound: Arc<DiskBound>,
    stripe: u16,
    next_number: u64,
    next_seq: u64,
    open: Option<OpenSegment>,
    pending: Option<PendingBatch>,
    /// The numbers of the ring's segments, the oldest first.
    ring: VecDeque<u64>,
    young: Option<YoungSegment>,
    sealed: Vec<SealedSegment>,
    /// A segment was ended or continued since the maintenance thread was last woken, even if it is synced by now.
    has_sealed: bool,
    /// Written records that may be lost in a power failure, because a sync failed.
    not_durable_seqs: Vec<Range<u64>>,
    /// This writer found the folder replaced.
    folder_replaced: bool,
    /// The generation of the folder when the writer last checked it.
    generation: u64,
    line_buffer: Vec<u8>,
    pub(crate) counts: WriterCounts,
}

/// Counters for statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriterCounts {
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) sync_time_last: Duration,
    pub(crate) abandoned: u64,
}

impl fmt::Debug for SegmentWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentWriter").field("stripe", &self.stripe).field("open", &self.open).finish_non_exhaustive()
    }
}

/// Where a stripe continues after recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct StripeStart {
    pub(crate) next_number: u64,
    pub(crate) next_seq: u64,
    /// Segments that a ring may overwrite, the oldest first.
    pub(crate) ring: Vec<u64>,
    pub(crate) young: Option<YoungSegment>,
}

/// The newest segment of an earlier run. It was ended and has room, so that the next records continue it: otherwise each
/// start would add a segment, and a process that crashes again and again would displace the whole history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct YoungSegment {
    pub(crate) number: u64,
    pub(crate) salt: u32,
    /// The size of the file: the next record begins there.
    pub(crate) bytes: u64,
    pub(crate) first_seq: u64,
    pub(crate) summary: SegmentSummary,
    pub(crate) created: Timestamp,
}

impl SegmentWriter {
    pub(crate) fn new(
        config: Arc<JournalConfig>,
        storage: Arc<dyn Storage>,
        folder_lock: Weak<FolderLock>,
        disk_bound: Arc<DiskBound>,
        stripe: u16,
        start: &StripeStart,
    ) -> Self {
        let StripeStart { next_number, next_seq, ref ring, young } = *start;
        let ring = ring.iter().copied().collect();
        Self {
            config,
            storage,
            folder_lock,
            disk_bound,
            stripe,
            next_number,
            next_seq,
            open: None,
            pending: None,
            ring,
            young,
            sealed: Vec::new(),
            has_sealed: false,
            not_durable_seqs: Vec::new(),
            folder_replaced: false,
            generation: 0,
            line_buffer: Vec::new(),
            counts: WriterCounts::default(),
        }
    }

    pub(crate) fn accept(&mut self, batch: WriteBatch) {
        if let Some(open) = &mut self.open {
            open.batch = (open.bytes, 0);
        }
        self.pending = Some(PendingBatch { batch, next: 0 });
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Writes and syncs the pending batch up to its ack level, and returns it. `None`: there is no batch.
    pub(crate) fn store(&mut self) -> Result<Option<WriteBatch>, SegmentWriteError> {
        let Some(mut pending) = self.pending.take() else { return Ok(None) };
        let result = self.write_and_sync(&mut pending);
        match result {
            Ok(()) => {
                self.next_seq = pending.batch.end;
                Ok(Some(pending.batch))
            }
            Err(WriteFailure { error, path, is_sync }) => {
                let cut = self.truncate_partial();
                let abandons = is_sync || !is_full(&error) || cut.is_err();
                let abandoned = abandons && self.abandon_segment(&mut pending);
                self.pending = Some(pending);
                Err(SegmentWriteError { error, path, abandoned })
            }
        }
    }

    /// Returns the pending batch, which is not written, because no file is kept.
    pub(crate) fn discard(&mut self) -> Option<WriteBatch> {
        let batch = self.pending.take()?.batch;
        self.next_seq = batch.end;
        Some(batch)
    }

    /// Closes the open segment; its part of the batch is written again. `false`: there is no open segment.
    fn abandon_segment(&mut self, pending: &mut PendingBatch) -> bool {
        let Some(mut open) = self.open.take() else { return false };
        self.counts.abandoned += 1;
        let (at, chunk) = open.batch;
        pending.next = pending.next.min(chunk);
        let again = pending.first_seq();
        if self.config.format != SegmentFormat::Framed {
            // Readers skip repeated frames by their sequence number. Lines have none, so they are truncated.
            let _ = open.file.truncate(at);
        }
        self.mark_not_durable(open.synced_seq..open.end_seq.min(again));
        if open.first_seq >= again
            && !open.is_continued
            && !matches!(self.config.segment_policy, SegmentPolicy::Ring { .. })
        {
            // Everything in the segment is written again. Otherwise a failing disk would fill the folder with such files,
            // and retention would remove intact segments.
            if self.storage.remove(&open.path).is_ok() {
                self.disk_bound.release(open.bytes);
            }
        }
        true
    }

    /// Records a range that is written and may be lost in a power failure.
    fn mark_not_durable(&mut self, seqs: Range<u64>) {
        if !seqs.is_empty() {
            self.not_durable_seqs.push(seqs);
        }
    }

    fn write_and_sync(&mut self, pending: &mut PendingBatch) -> Result<(), WriteFailure> {
        while let Some(chunk) = pending.batch.chunks.get_mut(pending.next) {
            self.write(chunk, pending.next).map_err(|error| WriteFailure {
                error,
                path: self.path(),
                is_sync: false,
            })?;
            pending.next += 1;
        }
        if pending.batch.ack == Ack::Durable {
            self.sync_sealed(pending)?;
            self.sync().map_err(|error| WriteFailure { error, path: self.path(), is_sync: true })?;
        }
        Ok(())
    }

    /// Syncs segments that were ended in the middle of the batch. If a sync fails, their part of the batch is written
    /// again.
    fn sync_sealed(&mut self, pending: &mut PendingBatch) -> Result<(), WriteFailure> {
        let mut all = std::mem::take(&mut self.sealed);
        let Some((at, error)) =
            all.iter_mut().enumerate().find_map(|(at, sealed)| Some((at, sealed.file.sync().err()?)))
        else {
            return Ok(());
        };
        pending.next = 0;
        if self.config.format != SegmentFormat::Framed {
            // As for an abandoned open segment.
            all.iter_mut().for_each(|sealed| self.discard_batch(sealed));
        }
        // The other segments are synced, or will be with the next batch.
        let failed = all.remove(at);
        self.sealed = all;
        self.mark_not_durable(failed.seqs.start..failed.seqs.end.min(pending.first_seq()));
        Err(WriteFailure { error, path: failed.path, is_sync: true })
    }

    /// Truncates the current batch from an ended segment, as it is written elsewhere.
    fn discard_batch(&self, sealed: &mut SealedSegment) {
        let _ = sealed.file.truncate(sealed.batch);
        if sealed.batch == 0 {
            let _ = self.storage.remove(&sealed.path);
        }
    }

    /// The path of the open segment, or of the folder if there is none.
    fn path(&self) -> PathBuf {
        self.open.as_ref().map_or_else(|| self.config.folder.clone(), |open| open.path.clone())
    }

    /// Writes a chunk; `index` is its place in the batch.
    fn write(&mut self, chunk: &mut FrameChunk, index: usize) -> io::Result<()> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.roll_if_due(chunk.bytes().len())?;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let open = match self.continue_young(chunk.bytes().len())? {
                    Some(open) => open,
                    None => self.open_segment(chunk.seqs().map_or(self.next_seq, |(first, _)| first))?,
                };
                OpenSegment { batch: (open.bytes, index), ..open }
            }
        };
        let line_buffer = &mut self.line_buffer;
        let bytes = match self.config.format {
            SegmentFormat::Framed => {
                chunk.write_checksums(open.salt);
                chunk.bytes()
            }
            format => {
                line_format::render(chunk.bytes(), format, &self.config.classes, line_buffer);
                line_buffer
            }
        };
        let reserved = self.disk_bound.reserve(bytes.len());
        let is_reserved = reserved.is_ok();
        let result = reserved.and_then(|()| write_all(open.file.as_mut(), bytes, open.bytes, &mut self.counts.writes));
        if is_reserved && result.is_err() {
            self.disk_bound.release(bytes.len() as u64);
        }
        if result.is_ok() {
            self.counts.written_bytes += bytes.len() as u64;
            open.on_written(chunk, bytes.len());
        }
        self.open = Some(open);
        result
    }

    /// Ends the open segment if the next chunk belongs in a new one.
    fn roll_if_due(&mut self, bytes: usize) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let now = Instant::now();
        let is_ring = matches!(self.config.segment_policy, SegmentPolicy::Ring { .. });
        let full = open.records > 0 && open.bytes + (bytes + SEAL_BYTES) as u64 > self.config.segment_bytes;
        let old = self.config.segment_age.is_some_and(|age| now.duration_since(open.since) >= age);
        if !is_ring && open.file.size()? != open.bytes {
            // Another process truncated the file. Writing on would leave a hole.
            let unsynced = open.synced_seq..open.end_seq;
            self.open = None;
            self.mark_not_durable(unsynced);
            return Ok(());
        }
        let checks_path = now.duration_since(open.path_checked) >= PATH_CHECK_EVERY;
        if checks_path {
            open.path_checked = now;
        }
        if full || old || (checks_path && !open.file.is_at(&open.path)) {
            self.seal();
        }
        Ok(())
    }

    /// Ends the open segment if its path names another file, or none.
    pub(crate) fn seal_if_renamed(&mut self) {
        if self.open.as_ref().is_some_and(|open| !open.file.is_at(&open.path)) {
            self.seal();
        }
    }

    /// Ends the open segment with its summary. The summary is optional, so errors are ignored.
    pub(crate) fn seal(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        if self.config.format == SegmentFormat::Framed {
            let summary = SegmentSummary { records: open.records, end_seq: open.end_seq, times: open.times }.to_bytes();
            let mut bytes = Vec::with_capacity(SEAL_BYTES);
            FrameInput { kind: FrameKind::Seal, class: Class::default(), time: Timestamp::now(), payload: &summary }
                .write_with_checksum(open.end_seq, open.salt, &mut bytes);
            match write_all(open.file.as_mut(), &bytes, open.bytes, &mut self.counts.writes) {
                Ok(()) => self.disk_bound.add(bytes.len()),
                Err(_) => drop(open.file.truncate(open.bytes)),
            }
        }
        let (seqs, is_named, batch) = (open.synced_seq..open.end_seq, open.is_named, open.batch.0);
        self.has_sealed = true;
        self.sealed.push(SealedSegment { file: open.file, path: open.path, seqs, is_named, batch });
    }

    /// Opens the newest segment of an earlier run, if the next chunk belongs there.
    fn continue_young(&mut self, bytes: usize) -> io::Result<Option<OpenSegment>> {
        if self.young.is_none() {
            return Ok(None);
        }
        self.verify_folder()?;
        let Some(young) = self.young.take() else { return Ok(None) };
        let age = Timestamp::now().since(young.created);
        let is_full = young.bytes + (bytes + SEAL_BYTES) as u64 > self.config.segment_bytes;
        if is_full || self.config.segment_age.is_some_and(|max| age >= max) {
            return Ok(None);
        }
        let path = self.segment_name(young.number).path(&self.config.folder);
        // The file was removed, or belongs to another user: the next records go to a new one.
        let Ok(file) = self.storage.open(&path) else { return Ok(None) };
        if file.size()? != young.bytes {
            return Ok(None);
        }
        let now = Instant::now();
        // The segment was counted among the ended ones.
        self.has_sealed = true;
        Ok(Some(OpenSegment {
            file,
            path,
            salt: young.salt,
            bytes: young.bytes,
            records: young.summary.records,
            first_seq: young.first_seq,
            end_seq: self.next_seq,
            synced_seq: self.next_seq,
            is_continued: true,
            times: young.summary.times,
            unsynced: true,
            is_named: false,
            batch: (young.bytes, 0),
            since: now.checked_sub(age).unwrap_or(now),
            path_checked: now,
        }))
    }

    fn open_segment(&mut self, first_seq: u64) -> io::Result<OpenSegment> {
        self.verify_folder()?;
        let (number, path, file) = loop {
            let number = self.next_number;
            let path = self.segment_name(number).path(&self.config.folder);
            match self.create_file(&path) {
                // The file does not belong to this journal; try the next number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.next_number += 1,
                result => break (number, path, result?),
            }
        };
        let preallocated = matches!(self.config.segment_policy, SegmentPolicy::Ring { .. });
        let (salt, created) = (fastrand::u32(..), Timestamp::now());
        let header = SegmentHeader { stripe: self.stripe, salt, number, first_seq, created, preallocated };
        self.prepare(file, &path, header).inspect_err(|_| {
            // The next attempt uses the same number. If the file cannot be removed, recovery handles an empty segment.
            let _ = self.storage.remove(&path);
        })
    }

    /// Verifies the folder and its lock. In a replaced folder, segment numbers continue after those found there.
    fn verify_folder(&mut self) -> io::Result<()> {
        // Writer threads hold the lock until they end.
        let Some(folder_lock) = self.folder_lock.upgrade() else { return Ok(()) };
        let FolderStatus { generation, was_replaced } = folder_lock.verify()?;
        self.folder_replaced |= was_replaced;
        if std::mem::replace(&mut self.generation, generation) == generation {
            return Ok(());
        }
        self.ring.clear();
        self.young = None;
        let mut names = segment::list(&self.config.folder)?;
        names.retain(|name| name.journal == self.config.name && name.stripe == self.stripe);
        self.next_number = self.next_number.max(names.last().map_or(0, |newest| newest.number + 1));
        Ok(())
    }

    /// Whether the folder was found replaced since the last call.
    pub(crate) fn take_folder_replaced(&mut self) -> bool {
        std::mem::take(&mut self.folder_replaced)
    }

    fn create_file(&mut self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        match self.config.segment_policy {
            SegmentPolicy::Ring { segments } if self.ring.len() >= segments as usize => self.recycle(path),
            _ => self.storage.create(path),
        }
    }

    fn prepare(
        &mut self,
        mut file: Box<dyn SegmentFile>,
        path: &Path,
        header: SegmentHeader,
    ) -> io::Result<OpenSegment> {
        let is_ring = header.preallocated;
        if is_ring {
            file.allocate(self.config.segment_bytes)?;
        }
        let mut bytes = 0;
        if self.config.format == SegmentFormat::Framed {
            write_all(file.as_mut(), &header.to_bytes(), 0, &mut self.counts.writes)?;
            bytes = HEADER_BYTES as u64;
            self.disk_bound.add(HEADER_BYTES);
        }
        self.next_number = header.number + 1;
        if is_ring {
            self.ring.push_back(header.number);
        }
        let (since, seq) = (Instant::now(), header.first_seq);
        Ok(OpenSegment {
            file,
            path: path.to_path_buf(),
            salt: header.salt,
            bytes,
            records: 0,
            first_seq: seq,
            end_seq: seq,
            synced_seq: seq,
            is_continued: false,
            times: None,
            unsynced: true,
            is_named: false,
            batch: (bytes, 0),
            since,
            path_checked: since,
        })
    }

    /// Reuses the oldest file of the ring for the newest segment.
    fn recycle(&mut self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let oldest = self.ring.pop_front().unwrap_or_default();
        let from = self.segment_name(oldest).path(&self.config.folder);
        self.storage.recycle(&from, path).or_else(|error| match error.kind() {
            // Another process removed the file.
            io::ErrorKind::NotFound => self.storage.create(path),
            _ => {
                self.ring.push_front(oldest);
                Err(error)
            }
        })
    }

    fn segment_name(&self, number: u64) -> SegmentName {
        let (journal, format) = (self.config.name.clone(), self.config.format);
        SegmentName { journal, stripe: self.stripe, number, compressed: false, format }
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(open) = self.open.as_mut().filter(|open| open.unsynced) else { return Ok(()) };
        let begun = Instant::now();
        open.file.sync()?;
        if !open.is_named {
            self.storage.sync_folder(&self.config.folder)?;
            open.is_named = true;
        }
        (open.unsynced, open.synced_seq) = (false, open.end_seq);
        self.counts.syncs += 1;
        self.counts.sync_time_last = begun.elapsed();
        Ok(())
    }

    /// Truncates a partially written frame.
    fn truncate_partial(&mut self) -> io::Result<()> {
        match &mut self.open {
            Some(open) if !matches!(self.config.segment_policy, SegmentPolicy::Ring { .. }) => {
                open.file.truncate(open.bytes)
            }
            _ => Ok(()),
        }
    }

    /// The segments ended since the last call.
    pub(crate) fn take_sealed(&mut self) -> Vec<SealedSegment> {
        std::mem::take(&mut self.sealed)
    }

    /// Whether a segment was ended since the last call.
    pub(crate) fn take_has_sealed(&mut self) -> bool {
        std::mem::take(&mut self.has_sealed)
    }

    /// The ranges recorded as not durable since the last call.
    pub(crate) fn take_not_durable(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.not_durable_seqs)
    }

    /// Gives up the pending batch.
    pub(crate) fn abandon(&mut self) -> Option<WriteBatch> {
        self.pending.take().map(|pending| pending.batch)
    }

    pub(crate) fn open_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Segments with smaller numbers are not written to any more.
    pub(crate) fn first_open(&self) -> u64 {
        self.next_number - u64::from(self.is_open())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

impl OpenSegment {
    fn on_written(&mut self, chunk: &FrameChunk, bytes: usize) {
        self.bytes += bytes as u64;
        self.records += chunk.records();
        self.end_seq = chunk.seqs().map_or(self.end_seq, |(_, last)| last + 1);
        self.times = chunk::merge_ranges(self.times, chunk.times());
        self.unsynced = true;
    }
}

/// Writes all bytes at an offset, with as many calls as needed.
fn write_all(file: &mut dyn SegmentFile, mut bytes: &[u8], mut at: u64, writes: &mut u64) -> io::Result<()> {
    while !bytes.is_empty() {
        *writes += 1;
        match file.write_at(bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                at += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
