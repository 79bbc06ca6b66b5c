//! Reads a store at the start of the process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use tidegate_changes::SlotIdentity;

use super::catalogue::{ShapeCatalogue, ShapeRecord};
use super::record::{RecordHeader, RunHeader};
use super::segment;
use super::writer::Writer;
use super::{SnapshotSize, StoreError, StoreOptions};
use crate::offset::LogOffset;
use crate::shape::{DiskPlace, Extent, ShapeId, ShapeLog, ShapePhase, SnapshotFilter};
use crate::shape_index::ShapeIndex;
use crate::table::TableInfo;

/// A log that was found.
#[derive(Debug)]
pub(crate) struct RecoveredLog {
    /// The shape.
    pub record: ShapeRecord,
    /// The log.
    pub log: ShapeLog,
}

/// The contents of a store.
#[derive(Debug)]
pub(crate) struct RecoveredStore {
    /// The server and slot that the position belongs to.
    pub source: Option<SlotIdentity>,
    /// Definitions of tables by OID.
    pub tables: BTreeMap<u32, TableInfo>,
    /// The shapes.
    pub shapes: Vec<RecoveredLog>,
    /// All transactions before this position are stored.
    pub durable_lsn: u64,
    /// The highest id that was used.
    pub id_max: ShapeId,
    /// The highest time of a handle that was used.
    pub micros_max: u64,
}

const LOCK_FILE: &str = "lock";

/// The records of one shape.
#[derive(Default)]
struct FoundRecords {
    /// Chunk and place of each piece.
    pieces: BTreeMap<u64, (u64, DiskPlace)>,
    runs: Vec<(RunHeader, DiskPlace)>,
    parts: Vec<(RunHeader, DiskPlace)>,
}

pub(super) fn open(options: StoreOptions, index: Arc<ShapeIndex>) -> Result<(Writer, RecoveredStore), StoreError> {
    let folder = options.folder.clone();
    let fail = |error| StoreError::Folder(folder.clone(), error);
    fs::create_dir_all(&folder).map_err(fail)?;
    let lock = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK_FILE)).map_err(fail)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Err(StoreError::InUse(folder)),
        Err(fs::TryLockError::Error(error)) => return Err(fail(error)),
    }
    let (catalogue, contents) = ShapeCatalogue::open(&folder).map_err(fail)?;
    let mut writer = Writer::new(options, index, catalogue, lock);
    let mut found: FxHashMap<ShapeId, FoundRecords> = FxHashMap::default();
    let (durable_lsn, is_intact) = scan_segments(&folder, &mut writer, &mut found).map_err(fail)?;
    let mut shapes = Vec::new();
    for (id, stored) in contents.shapes {
        let records = found.remove(&id).unwrap_or_default();
        match rebuild(records, stored.size, stored.filter).filter(|_| is_intact) {
            Some(log) => {
                writer.count_live(&log);
                shapes.push(RecoveredLog { record: stored.record, log });
            }
            None => {
                tracing::warn!(handle = %stored.record.handle, "shape dropped: its log is incomplete");
                writer.forget(id);
            }
        }
    }
    writer.start(durable_lsn).map_err(fail)?;
    let (source, tables) = (contents.source, contents.tables);
    let (id_max, micros_max) = (contents.id_max, contents.micros_max);
    Ok((writer, RecoveredStore { source, tables, shapes, durable_lsn, id_max, micros_max }))
}

/// Returns the stored position, and whether nothing is missing but the end.
fn scan_segments(
    folder: &Path,
    writer: &mut Writer,
    found: &mut FxHashMap<ShapeId, FoundRecords>,
) -> io::Result<(u64, bool)> {
    let numbers = segment::list(folder)?;
    let (mut durable_lsn, mut is_intact) = (0, true);
    for number in &numbers {
        let path = segment::path(folder, *number);
        let file = File::options().read(true).write(true).open(&path)?;
        let end = segment::scan(&file, *number, |header, place| match header {
            RecordHeader::Position { lsn } => durable_lsn = durable_lsn.max(lsn),
            RecordHeader::Piece { shape, chunk, piece } => {
                found.entry(shape).or_default().pieces.insert(piece, (chunk, place));
            }
            RecordHeader::Run(run) => found.entry(run.shape).or_default().runs.push((run, place)),
            RecordHeader::Part(part) => found.entry(part.shape).or_default().parts.push((part, place)),
        })?;
        if end.valid_len < end.file_len {
            if Some(number) != numbers.last() {
                // Records in the middle are missing, and their shapes are unknown.
                tracing::error!(segment = %path.display(), at = end.valid_len, "damaged segment: all shapes are dropped");
                is_intact = false;
            }
            // Records after the end were never acknowledged; Postgres sends them again.
            file.set_len(end.valid_len)?;
        }
        writer.add_segment(*number, Arc::new(file), end.valid_len);
    }
    Ok((durable_lsn, is_intact))
}

/// Builds a log. `None` if a part of the snapshot is missing.
fn rebuild(found: FoundRecords, size: SnapshotSize, filter: SnapshotFilter) -> Option<ShapeLog> {
    let last_chunk = found.pieces.values().next_back().map(|(chunk, _)| *chunk);
    if !found.pieces.keys().copied().eq(0..size.pieces) || last_chunk != size.chunks.checked_sub(1) {
        return None;
    }
    let extent = |last, place| Extent { last, place: Some(place), bytes: None };
    let mut runs = found.runs;
    // A transaction without its last run did not commit; Postgres sends it again.
    let is_whole =
        |part: &RunHeader| runs.iter().any(|(run, _)| run.first.tx <= part.first.tx && part.first.tx <= run.last.tx);
    let parts: Vec<_> = found.parts.into_iter().filter(|(part, _)| is_whole(part)).collect();
    runs.extend(parts);
    // A merged run and the runs that it replaces may both be there: the longest counts.
    runs.sort_by_key(|(run, _)| (run.first, std::cmp::Reverse(run.last)));
    let pieces = found.pieces.into_values();
    let mut log = ShapeLog::new(ShapePhase::Complete);
    log.pieces = pieces.map(|(chunk, place)| extent(LogOffset::snapshot_chunk(chunk), place)).collect();
    log.chunk_count = u32::try_from(size.chunks).ok()?;
    log.rare_mut().filter = Some(Box::new(filter));
    let mut chunk_ends = Vec::new();
    for (run, place) in runs {
        chunk_ends.extend(run.chunk_ends);
        if run.first > log.end {
            log.open_chunk_bytes = run.open_chunk_bytes;
            log.append(extent(run.last, place), false);
        }
    }
    chunk_ends.sort_unstable();
    chunk_ends.dedup();
    log.add_chunk_ends(&chunk_ends);
    log.runs.shrink_to_fit();
    Some(log)
}
