//! Verifies and repairs a journal.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    chunk,
    error::ReadError,
    folder::FolderLock,
    frame::{FrameInput, FrameKind},
    gap_record::{Gap, LossCause, PendingGaps},
    line_format::LineScanner,
    producer_record::Class,
    reader::{AtEnd, JournalEntry, JournalReader, JournalRecord, ReadFrom},
    recovery::{DamageKind, DamagedRange},
    segment::{self, HEADER_BYTES, SegmentName, SegmentSummary},
    segment_format::SegmentFormat,
    segment_scanner::{SegmentScanner, SegmentStep, TailMode},
    timestamp::Timestamp,
};

/// The result of verifying a journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The number of segments.
    pub segments: usize,
    /// The number of records.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// The earliest and the latest time of a record, if records have times.
    pub times: Option<(Timestamp, Timestamp)>,
    /// Losses to overload, summed by class and cause.
    pub gaps: Vec<Gap>,
    /// The number of sequence numbers that are in no segment.
    pub missing: u64,
    /// Bytes that are not valid records.
    pub damage: Vec<DamagedRange>,
}

impl VerifyReport {
    /// Whether every written record is present: no damage except torn writes, and no missing record without a gap record.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.unexplained() == 0 && self.damage.iter().all(|damage| damage.kind == DamageKind::Torn)
    }

    /// The number of missing records that no gap record accounts for.
    #[must_use]
    pub fn unexplained(&self) -> u64 {
        let displaced: u64 = self.gaps.iter().filter(|gap| gap.cause == LossCause::Oldest).map(|gap| gap.records).sum();
        self.missing.saturating_sub(displaced)
    }

    /// Reads to the end and verifies the entries. Calls `watch` after every entry, for progress.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the journal cannot be read.
    pub fn read(reader: &mut JournalReader, mut watch: impl FnMut(&JournalReader)) -> Result<Self, ReadError> {
        let mut report = Self::default();
        let mut losses = PendingGaps::default();
        while let Some(entry) = reader.read()? {
            match entry {
                JournalEntry::Record(record) => report.count(record),
                JournalEntry::Gap(gap) => losses.add(&gap),
                JournalEntry::Missing { records, .. } => report.missing += records,
                JournalEntry::Damage(damage) => report.damage.push(damage),
            }
            watch(reader);
        }
        report.gaps = losses.drain().collect();
        Ok(report)
    }

    fn count(&mut self, record: JournalRecord<'_>) {
        self.records += 1;
        self.bytes += record.payload.len() as u64;
        let time = Some((record.time, record.time)).filter(|_| record.time > Timestamp::MIN);
        self.times = chunk::merge_ranges(self.times, time);
    }
}

/// Reads and verifies all segments. A live journal is verified up to its current end.
///
/// # Errors
/// Returns [`ReadError`] if the journal cannot be read.
pub fn verify(folder: impl AsRef<Path>) -> Result<VerifyReport, ReadError> {
    let folder = folder.as_ref();
    let segments = segment::list(folder).map_err(ReadError::io(folder))?.len();
    let mut reader = JournalReader::open(folder, &ReadFrom::Beginning, AtEnd::Stop)?;
    Ok(VerifyReport { segments, ..VerifyReport::read(&mut reader, |_| ())? })
}

/// A repaired segment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RepairedSegment {
    /// The new segment with the valid records.
    pub path: PathBuf,
    /// The damaged file.
    pub backup: PathBuf,
    /// The number of valid records.
    pub records: u64,
    /// Bytes that were not copied.
    pub skipped_bytes: u64,
}

/// Copies the valid records of every damaged segment to a new file, and keeps the damaged file beside it with `.damaged`
/// added to its name, or `.damaged.1` and so on if that exists.
///
/// Lines have no checksums: a JSON or text segment is repaired only if it cannot be decompressed to the end or has a line
/// longer than any record. A partial last line stays. A file with the name of another segment is not repaired.
///
/// # Errors
/// Returns [`ReadError::InUse`] if the journal is open, and another [`ReadError`] if it cannot be read or written.
pub fn repair(folder: impl AsRef<Path>) -> Result<Vec<RepairedSegment>, ReadError> {
    let folder = folder.as_ref();
    let folder_lock = FolderLock::acquire(folder).map_err(ReadError::io(folder))?;
    let Some(_ownership) = folder_lock else { return Err(ReadError::InUse(folder.to_path_buf())) };
    let damage = verify(folder)?.damage.into_iter().filter(is_repaired);
    let mut paths: Vec<PathBuf> = damage.map(|damage| damage.path).collect();
    // Damage of several stripes is merged by time.
    paths.sort();
    paths.dedup();
    let mut repaired = Vec::new();
    for path in paths {
        if let Some(name) = name_of(&path) {
            repaired.push(repair_segment(folder, &name, &path).map_err(ReadError::io(&path))?);
        }
    }
    Ok(repaired)
}

fn name_of(path: &Path) -> Option<SegmentName> {
    path.file_name().and_then(|name| name.to_str()).and_then(SegmentName::parse)
}

/// Whether [`repair`] handles this kind of damage. A misplaced file needs an operator.
fn is_repaired(damage: &DamagedRange) -> bool {
    match damage.kind {
        DamageKind::Torn => name_of(&damage.path).is_some_and(|name| name.format == SegmentFormat::Framed),
        DamageKind::Misplaced { .. } => false,
        DamageKind::SegmentHeader | DamageKind::Middle => true,
    }
}

fn repair_segment(folder: &Path, name: &SegmentName, path: &Path) -> io::Result<RepairedSegment> {
    if name.format != SegmentFormat::Framed {
        let mut scan = LineScanner::open(path, name.compressed)?;
        return write_again(folder, name, path, |file| copy_lines(&mut scan, file));
    }
    if let Some(mut scan) = SegmentScanner::open(path, name.compressed)? {
        return write_again(folder, name, path, |file| copy_good(&mut scan, 0, file));
    }
    let Some(mut scan) = SegmentScanner::open_without_header(path, name)? else {
        // The salt is unknown, so records cannot be distinguished from random bytes.
        let (backup, skipped_bytes) = (free_name(folder, name), fs::metadata(path)?.len());
        fs::rename(path, &backup)?;
        return Ok(RepairedSegment { path: path.to_path_buf(), backup, records: 0, skipped_bytes });
    };
    write_again(folder, name, path, |file| copy_good(&mut scan, HEADER_BYTES as u64, file))
}

/// Replaces a segment by what `copy` writes. `copy` returns the number of records, and of bytes that were not copied.
fn write_again(
    folder: &Path,
    name: &SegmentName,
    path: &Path,
    copy: impl FnOnce(&mut io::BufWriter<fs::File>) -> io::Result<(u64, u64)>,
) -> io::Result<RepairedSegment> {
    let backup = free_name(folder, name);
    let plain = SegmentName { compressed: false, ..name.clone() };
    let unfinished = folder.join(format!("{}.part", plain.file()));
    let mut file = io::BufWriter::new(crate::storage::private().create(true).truncate(true).open(&unfinished)?);
    let (records, skipped_bytes) = copy(&mut file)?;
    let file = file.into_inner()?;
    file.set_modified(fs::metadata(path)?.modified()?)?;
    file.sync_all()?;
    // A hard link, if possible, so that the segment exists under its name at any time.
    fs::hard_link(path, &backup).or_else(|_| fs::rename(path, &backup))?;
    fs::rename(&unfinished, plain.path(folder))?;
    if name.compressed && path.exists() {
        fs::remove_file(path)?;
    }
    fs::File::open(folder)?.sync_all()?;
    Ok(RepairedSegment { path: plain.path(folder), backup, records, skipped_bytes })
}

/// A free name for the damaged file: an earlier repair may have left one.
fn free_name(folder: &Path, name: &SegmentName) -> PathBuf {
    let named = |count: u32| {
        let count = if count == 0 { String::new() } else { format!(".{count}") };
        folder.join(format!("{}.damaged{count}", name.file()))
    };
    let mut count = 0;
    while named(count).symlink_metadata().is_ok() {
        count += 1;
    }
    named(count)
}

/// Copies every whole line.
fn copy_lines(scan: &mut LineScanner, out: &mut impl io::Write) -> io::Result<(u64, u64)> {
    let (mut records, mut skipped_bytes) = (0, 0);
    loop {
        match scan.advance(TailMode::Final)? {
            SegmentStep::Frame => {
                records += 1;
                out.write_all(scan.line())?;
                out.write_all(b"\n")?;
            }
            SegmentStep::Damage { bytes, .. } | SegmentStep::Torn { bytes, .. } => skipped_bytes += bytes,
            SegmentStep::End(_) | SegmentStep::Pending => break,
        }
    }
    out.flush()?;
    Ok((records, skipped_bytes))
}

/// Copies the header and every valid frame, and writes a summary. Returns the number of frames, and of bytes that were
/// not copied, including `skipped_bytes`.
fn copy_good(scan: &mut SegmentScanner, mut skipped_bytes: u64, out: &mut impl io::Write) -> io::Result<(u64, u64)> {
    let header = segment::SegmentHeader { preallocated: false, ..scan.header() };
    out.write_all(&header.to_bytes())?;
    let mut summary = SegmentSummary::starting_at(header.first_seq);
    loop {
        match scan.advance(TailMode::Final)? {
            SegmentStep::Frame => {
                let frame = scan.frame();
                summary.add(frame.seq, frame.time);
                out.write_all(scan.raw())?;
            }
            SegmentStep::Damage { bytes, .. } | SegmentStep::Torn { bytes, .. } => skipped_bytes += bytes,
            SegmentStep::End(_) | SegmentStep::Pending => break,
        }
    }
    let (mut seal, payload) = (Vec::new(), summary.to_bytes());
    FrameInput { kind: FrameKind::Seal, class: Class::default(), time: Timestamp::now(), payload: &payload }
        .write_with_checksum(summary.end_seq, header.salt, &mut seal);
    out.write_all(&seal)?;
    out.flush()?;
    Ok((summary.records, skipped_bytes))
}
