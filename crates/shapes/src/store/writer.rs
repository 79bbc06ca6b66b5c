//! The thread that appends.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::catalogue::{CatalogueEvent, ShapeCatalogue, ShapeRecord, sync_folder};
use super::record::{RecordHeader, RunHeader, push_record};
use super::segment::{self, SegmentFiles};
use super::{Queued, RunWrite, StoreCommand, StoreOptions, StoreProgress, find_run, shape_of};
use crate::offset::LogOffset;
use crate::shape::{DiskPlace, Extent, Shape, ShapeId, ShapeLog, ShapePhase};
use crate::shape_index::ShapeIndex;

/// Commands that are synced together.
const GROUP_MAX: usize = 256;
/// Limit of bytes per write.
const GROUP_BYTES_MAX: usize = 2 << 20;
/// Pause after an error, such as a full disk.
const RETRY: Duration = Duration::from_secs(1);
/// Small runs that are merged into one.
const MERGE_RUNS_MIN: usize = 64;
/// Runs at the end of a log that are not merged.
const MERGE_KEEP: usize = 16;
/// A run of this size is not merged.
const MERGE_SMALL: u32 = 256 << 10;
/// Limit of a merged run.
const MERGE_BYTES_MAX: usize = 4 << 20;

struct SegmentUse {
    len: u64,
    live: u64,
}

/// A record that was appended.
struct Placement {
    shape: Arc<Shape>,
    last: LogOffset,
    /// The number of the piece, if the record is one of a snapshot.
    piece: Option<usize>,
    place: DiskPlace,
}

pub(super) struct Writer {
    options: StoreOptions,
    index: Arc<ShapeIndex>,
    catalogue: ShapeCatalogue,
    pub(super) files: Arc<SegmentFiles>,
    pub(super) used_bytes: Arc<AtomicU64>,
    segments: BTreeMap<u32, SegmentUse>,
    current: u32,
    durable_lsn: u64,
    /// Records that are not written yet.
    out: Vec<u8>,
    /// Whether something of the group must be durable before it ends.
    must_sync: bool,
    /// Whether records were written to the current segment since its last sync.
    is_dirty: bool,
    placements: Vec<Placement>,
    /// Cached runs, oldest first.
    cached: VecDeque<(Weak<Shape>, LogOffset, usize)>,
    cached_bytes: usize,
    /// Keeps other processes out.
    _lock: File,
}

impl Writer {
    pub(super) fn new(options: StoreOptions, index: Arc<ShapeIndex>, catalogue: ShapeCatalogue, lock: File) -> Self {
        Self {
            options,
            index,
            catalogue,
            files: Arc::default(),
            used_bytes: Arc::default(),
            segments: BTreeMap::new(),
            current: 0,
            durable_lsn: 0,
            out: Vec::new(),
            must_sync: false,
            is_dirty: false,
            placements: Vec::new(),
            cached: VecDeque::new(),
            cached_bytes: 0,
            _lock: lock,
        }
    }

    pub(super) fn add_segment(&mut self, number: u32, file: Arc<File>, len: u64) {
        self.files.insert(number, file);
        self.segments.insert(number, SegmentUse { len, live: 0 });
        self.current = number;
    }

    pub(super) fn count_live(&mut self, log: &ShapeLog) {
        let places = log.pieces.iter().chain(&log.runs).filter_map(|extent| extent.place);
        places.for_each(|place| self.add_live(place));
    }

    pub(super) fn forget(&mut self, id: ShapeId) {
        self.catalogue.push(&CatalogueEvent::Removed { id });
    }

    /// Begins a new segment after recovery.
    pub(super) fn start(&mut self, durable_lsn: u64) -> io::Result<()> {
        self.durable_lsn = durable_lsn;
        self.catalogue.sync()?;
        self.next_segment()?;
        self.remove_dead_segments();
        Ok(())
    }

    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Queued>, progress: &watch::Sender<StoreProgress>) {
        while let Some(first) = queue.blocking_recv() {
            let mut group = vec![first];
            let mut bytes = 0;
            while group.len() < GROUP_MAX && bytes < GROUP_BYTES_MAX {
                let Ok(queued) = queue.try_recv() else { break };
                bytes += command_bytes(&queued.command);
                group.push(queued);
            }
            let mut done = Vec::new();
            group.iter().for_each(|queued| self.append(&queued.command, &mut done));
            self.persist(&mut done, progress);
            group.iter().for_each(|queued| show_durable(&queued.command));
            progress.send_if_modified(|before| {
                let now = StoreProgress { durable_lsn: self.durable_lsn, error: None };
                let is_new = *before != now;
                *before = now;
                is_new
            });
            drop(group);
            self.maintain(progress);
        }
        // The queue is closed: everything that was sent is durable.
    }

    /// Encodes a command. Ends of snapshots go to `done`, because the catalogue may name them only after their chunks are
    /// durable.
    fn append(&mut self, command: &StoreCommand, done: &mut Vec<CatalogueEvent>) {
        // The pieces of a snapshot are durable when it is complete: without its end they are dropped at the next start.
        self.must_sync |=
            !matches!(command, StoreCommand::Piece { .. } | StoreCommand::Parts(_) | StoreCommand::Create(_));
        match command {
            StoreCommand::Source(source) => self.catalogue.push(&CatalogueEvent::Source(source.clone())),
            StoreCommand::Table(table) => self.catalogue.push(&CatalogueEvent::Table(table.clone())),
            StoreCommand::Create(shape) => {
                let definition = &shape.definition;
                let record = ShapeRecord {
                    id: shape.id,
                    handle: shape.handle,
                    definition: definition.key(),
                    inner: definition.inner_tables().iter().map(|table| table.oid).collect(),
                };
                self.catalogue.push(&CatalogueEvent::Shape(record));
            }
            StoreCommand::Piece { shape, chunk, piece, bytes } => {
                let header = RecordHeader::Piece { shape: shape.id, chunk: *chunk, piece: *piece };
                self.push(shape, LogOffset::snapshot_chunk(*chunk), &header, bytes);
            }
            StoreCommand::SnapshotDone { shape, size, filter } => {
                done.push(CatalogueEvent::snapshot(shape.id, *size, filter.clone()));
            }
            StoreCommand::Parts(parts) => parts.iter().for_each(|part| self.push_run(part, RecordHeader::Part)),
            StoreCommand::Discard(parts) => {
                parts.iter().filter_map(|part| part.place).for_each(|place| self.sub_live(place));
            }
            StoreCommand::Commit { runs, lsn } => {
                runs.iter().for_each(|run| self.push_run(run, RecordHeader::Run));
                self.durable_lsn = self.durable_lsn.max(*lsn);
                push_record(&mut self.out, &RecordHeader::Position { lsn: self.durable_lsn }, &[]);
            }
            StoreCommand::Remove(shape) => {
                self.catalogue.push(&CatalogueEvent::Removed { id: shape.id });
                let (pieces, runs, parts) = {
                    let mut log = shape.log();
                    (std::mem::take(&mut log.pieces), std::mem::take(&mut log.runs), log.take_parts())
                };
                let parts = parts.iter().flat_map(|parts| &parts.extents);
                let places = pieces.iter().chain(&runs).chain(parts).filter_map(|extent| extent.place);
                places.for_each(|place| self.sub_live(place));
            }
        }
    }

    fn push_run(&mut self, run: &RunWrite, kind: fn(RunHeader) -> RecordHeader) {
        let header = RunHeader {
            shape: run.shape.id,
            first: run.first,
            last: run.last,
            open_chunk_bytes: run.open_chunk_bytes,
            chunk_ends: run.chunk_ends.clone(),
        };
        self.push(&run.shape, run.last, &kind(header), &run.bytes);
    }

    /// Appends a record to the buffer. Its place is relative to the buffer until [`Self::persist`].
    fn push(&mut self, shape: &Arc<Shape>, last: LogOffset, header: &RecordHeader, payload: &[u8]) {
        let start = self.out.len();
        let payload_at = start + push_record(&mut self.out, header, payload);
        let narrow = |number: usize| u32::try_from(number).expect("a group is shorter than 4 GiB");
        let place = DiskPlace { segment: 0, offset: narrow(payload_at), len: narrow(payload.len()) };
        let piece = match header {
            RecordHeader::Piece { piece, .. } => usize::try_from(*piece).ok(),
            _ => None,
        };
        self.placements.push(Placement { shape: Arc::clone(shape), last, piece, place });
    }

    /// Writes and syncs what was appended; tries again for ever, because nothing may be acknowledged before.
    fn persist(&mut self, done: &mut Vec<CatalogueEvent>, progress: &watch::Sender<StoreProgress>) {
        while let Err(error) = self.persist_once(done) {
            let folder = self.options.folder.display();
            tracing::error!(%error, %folder, "cannot write the logs of shapes; trying again in {RETRY:?}");
            let text = Some(error.to_string());
            progress.send_modify(|progress| progress.error.clone_from(&text));
            std::thread::sleep(RETRY);
        }
    }

    fn persist_once(&mut self, done: &mut Vec<CatalogueEvent>) -> io::Result<()> {
        self.catalogue.write()?;
        self.write_segment()?;
        if self.must_sync {
            self.sync_segment()?;
            done.drain(..).for_each(|event| self.catalogue.push(&event));
            self.catalogue.sync()?;
            self.must_sync = false;
        }
        Ok(())
    }

    fn write_segment(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let file = self.files.get(self.current).ok_or(io::ErrorKind::NotFound)?;
        let start = self.segments.get(&self.current).map_or(0, |segment| segment.len);
        file.write_all_at(&self.out, start)?;
        self.is_dirty = true;
        let len = start + self.out.len() as u64;
        if let Some(segment) = self.segments.get_mut(&self.current) {
            segment.len = len;
        }
        self.out.clear();
        self.out.shrink_to(GROUP_BYTES_MAX);
        let start = u32::try_from(start).expect("a segment is closed far below 4 GiB");
        for mut placement in std::mem::take(&mut self.placements) {
            placement.place.segment = self.current;
            placement.place.offset += start;
            self.publish(&placement);
        }
        self.count_used();
        if len < self.options.segment_bytes {
            return Ok(());
        }
        self.sync_segment()?;
        self.next_segment()
    }

    fn sync_segment(&mut self) -> io::Result<()> {
        if self.is_dirty {
            let file = self.files.get(self.current).ok_or(io::ErrorKind::NotFound)?;
            file.sync_data()?;
            self.is_dirty = false;
        }
        Ok(())
    }

    /// Sets the place of a record for readers.
    fn publish(&mut self, placement: &Placement) {
        let Placement { shape, last, piece, place } = placement;
        let mut log = shape.log();
        if log.phase == ShapePhase::Removed {
            return;
        }
        let extent = match piece {
            Some(piece) => log.pieces.get_mut(*piece),
            None => find_run(&mut log, *last),
        };
        let is_known = extent.is_some();
        let before = extent.and_then(|extent| {
            if piece.is_some() {
                // Snapshots are read once by each client, and answers have a cache of their own.
                extent.bytes = None;
            }
            extent.place.replace(*place)
        });
        drop(log);
        if let Some(before) = before {
            self.sub_live(before);
        }
        if is_known {
            self.add_live(*place);
        }
        if is_known && piece.is_none() && before.is_none() {
            self.cached.push_back((Arc::downgrade(shape), *last, place.len as usize));
            self.cached_bytes += place.len as usize;
        }
    }

    fn maintain(&mut self, progress: &watch::Sender<StoreProgress>) {
        while self.cached_bytes > self.options.cache_bytes {
            let Some((shape, last, len)) = self.cached.pop_front() else { break };
            self.cached_bytes = self.cached_bytes.saturating_sub(len);
            let Some(shape) = shape.upgrade() else { continue };
            let mut log = shape.log();
            if let Some(run) = find_run(&mut log, last) {
                run.bytes = None;
            }
            drop(log);
            self.merge(&shape);
        }
        // Copied records are durable before the segments that it came from are removed.
        if !self.out.is_empty() {
            self.must_sync = true;
            self.persist(&mut Vec::new(), progress);
        }
        if let Some(segment) = self.sparse_segment() {
            self.must_sync = true;
            match self.copy_live(segment) {
                Ok(()) => self.persist(&mut Vec::new(), progress),
                Err(error) => tracing::warn!(%error, segment, "cannot copy a segment"),
            }
        }
        self.remove_dead_segments();
    }

    /// Replaces many small runs of a shape by one.
    fn merge(&mut self, shape: &Arc<Shape>) {
        let (runs, chunk_ends) = {
            let log = shape.log();
            if log.runs.len() < MERGE_RUNS_MIN + MERGE_KEEP || log.phase == ShapePhase::Removed {
                return;
            }
            let is_small =
                |run: &&Extent| run.bytes.is_none() && run.place.is_some_and(|place| place.len < MERGE_SMALL);
            let until = log.runs.len() - MERGE_KEEP;
            let from = log.runs[..until].iter().position(|run| is_small(&run)).unwrap_or(until);
            let runs: Vec<Extent> = log.runs[from..until].iter().take_while(is_small).cloned().collect();
            if runs.len() < MERGE_RUNS_MIN {
                return;
            }
            (runs, log.rare().chunk_ends.clone())
        };
        let mut payload = Vec::new();
        let mut merged = Vec::new();
        for run in runs {
            let Some(bytes) = run.place.and_then(|place| self.files.read(place).ok()) else { return };
            payload.extend_from_slice(&bytes);
            merged.push(run);
            if payload.len() >= MERGE_BYTES_MAX {
                break;
            }
        }
        let (Some(first), Some(last)) = (crate::run::items(&payload).next().map(|(at, _)| at), merged.last()) else {
            return;
        };
        let last = last.last;
        let chunk_ends = chunk_ends.into_iter().filter(|end| *end >= first && *end <= last).collect();
        let header = RunHeader { shape: shape.id, first, last, open_chunk_bytes: 0, chunk_ends };
        // Readers use the old runs until the merged one is written.
        let mut log = shape.log();
        let (Ok(from), Ok(to)) = (
            log.runs.binary_search_by_key(&merged[0].last, |run| run.last),
            log.runs.binary_search_by_key(&last, |run| run.last),
        ) else {
            return;
        };
        let bytes = bytes::Bytes::from(payload);
        log.runs.splice(from..=to, [Extent::unwritten(last, bytes.clone())]);
        drop(log);
        merged.iter().filter_map(|run| run.place).for_each(|place| self.sub_live(place));
        self.push(shape, last, &RecordHeader::Run(header), &bytes);
    }

    /// A closed segment with little live data.
    fn sparse_segment(&self) -> Option<u32> {
        let is_over_quota = self.used_bytes.load(Ordering::Relaxed) > self.options.quota_bytes;
        let percent = if is_over_quota { 75 } else { 25 };
        let is_sparse = |(number, segment): &(&u32, &SegmentUse)| {
            **number != self.current && segment.live * 100 < segment.len * percent
        };
        self.segments.iter().find(is_sparse).filter(|(_, segment)| segment.live > 0).map(|(number, _)| *number)
    }

    /// Appends the live records of a segment again.
    fn copy_live(&mut self, segment: u32) -> io::Result<()> {
        let file = self.files.get(segment).ok_or(io::ErrorKind::NotFound)?;
        let mut live = Vec::new();
        let index = Arc::clone(&self.index);
        segment::scan(&file, segment, |header, place| {
            let Some(shape) = shape_of(&header).and_then(|id| index.get(id)) else { return };
            let mut log = shape.log();
            let is_at = |extent: &&Extent| extent.place == Some(place);
            let extent = match &header {
                RecordHeader::Piece { piece, .. } => {
                    usize::try_from(*piece).ok().and_then(|piece| log.pieces.get(piece)).filter(is_at)
                }
                RecordHeader::Run(run) | RecordHeader::Part(run) => {
                    find_run(&mut log, run.last).map(|run| &*run).filter(is_at)
                }
                RecordHeader::Position { .. } => None,
            };
            if let Some(last) = extent.map(|extent| extent.last) {
                drop(log);
                live.push((shape, last, header, place));
            }
        })?;
        for (shape, last, header, place) in live {
            let payload = self.files.read(place)?;
            self.push(&shape, last, &header, &payload);
            if self.out.len() > GROUP_BYTES_MAX {
                self.write_segment()?;
            }
        }
        Ok(())
    }

    fn remove_dead_segments(&mut self) {
        let current = self.current;
        let dead = self.segments.iter().filter(|(number, segment)| **number != current && segment.live == 0);
        let dead: Vec<u32> = dead.map(|(number, _)| *number).collect();
        for number in dead {
            self.files.remove(number);
            self.segments.remove(&number);
            if let Err(error) = fs::remove_file(segment::path(&self.options.folder, number)) {
                tracing::warn!(%error, segment = number, "cannot remove a segment");
            }
        }
        self.count_used();
    }

    /// Begins a segment. It starts with the position, because the segments before it may be removed.
    fn next_segment(&mut self) -> io::Result<()> {
        let number = self.segments.keys().next_back().map_or(1, |last| last + 1);
        let path = segment::path(&self.options.folder, number);
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path)?;
        let mut out = Vec::new();
        push_record(&mut out, &RecordHeader::Position { lsn: self.durable_lsn }, &[]);
        file.write_all_at(&out, 0)?;
        file.sync_all()?;
        sync_folder(&self.options.folder)?;
        self.add_segment(number, Arc::new(file), out.len() as u64);
        Ok(())
    }

    fn add_live(&mut self, place: DiskPlace) {
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.live += live_bytes(place);
        }
    }

    fn sub_live(&mut self, place: DiskPlace) {
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.live = segment.live.saturating_sub(live_bytes(place));
        }
    }

    fn count_used(&self) {
        self.used_bytes.store(self.segments.values().map(|segment| segment.len).sum(), Ordering::Relaxed);
    }
}

/// Bytes of a record that keep its segment. The only piece of a log of changes is empty, and has to be found as well.
fn live_bytes(place: DiskPlace) -> u64 {
    u64::from(place.len).max(1)
}

/// Shows durable messages to the readers that wait for that.
fn show_durable(command: &StoreCommand) {
    if let StoreCommand::Commit { runs, .. } = command {
        let waiting = runs.iter().filter(|run| run.shape.reads_durable_only());
        waiting.for_each(|run| run.shape.set_durable(run.last));
    }
}

fn command_bytes(command: &StoreCommand) -> usize {
    match command {
        StoreCommand::Piece { bytes, .. } => bytes.len(),
        StoreCommand::Commit { runs, .. } | StoreCommand::Parts(runs) => runs.iter().map(|run| run.bytes.len()).sum(),
        _ => 0,
    }
}
