//! Recovery of the segments in the folder, once when a journal is opened.
//!
//! Recovery reads only the newest segment of each stripe, and abandoned segments right before it: all others were
//! complete before it began. A torn write is truncated, and the segment gets its summary. Damage that is followed by
//! frames is reported and not changed: an operator, or [`repair`](crate::repair), decides. Recovery is idempotent.
//!
//! The writer continues the newest segment after its summary ([`YoungSegment`]), so that frames may follow a summary.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    config::{JournalConfig, SegmentPolicy},
    error::OpenError,
    frame::{FrameInput, FrameKind, HEAD_BYTES},
    producer_record::Class,
    segment::{self, HEADER_BYTES, SegmentHeader, SegmentName, SegmentSummary},
    segment_format::SegmentFormat,
    segment_scanner::{self, SegmentScanner, SegmentStep, TailMode},
    segment_writer::{StripeStart, YoungSegment},
    timestamp::Timestamp,
};

/// The findings and changes of recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The number of segments.
    pub segments: usize,
    /// Torn writes that were truncated from the newest segments.
    pub truncated: Vec<DamagedRange>,
    /// Damage that was not changed.
    pub damage: Vec<DamagedRange>,
}

/// Bytes of a segment that are not valid records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedRange {
    /// The path of the segment.
    pub path: PathBuf,
    /// The offset in bytes; in a compressed segment, the offset in the decompressed data.
    pub at: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The kind of damage.
    pub kind: DamageKind,
}

/// The kind of damage in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DamageKind {
    /// The file does not begin with a valid header, and the salt cannot be recovered from its frames.
    SegmentHeader,
    /// Records follow: these bytes changed after they were written, or were never written.
    Middle,
    /// No record follows: a torn write.
    Torn,
    /// The header belongs to another segment: the file was renamed, or comes from another journal. Only records with
    /// sequence numbers that are still to come are read. Rename the file back to its own name.
    Misplaced {
        /// The stripe in the header.
        stripe: u16,
        /// The segment number in the header.
        number: u64,
    },
}

/// Recovers the stripes of a folder, and returns where each one continues.
pub(crate) fn recover(config: &JournalConfig) -> Result<(RecoveryReport, Vec<StripeStart>), OpenError> {
    let names = segment::list(&config.folder).map_err(OpenError::io(&config.folder))?;
    let mut recovery = RecoveryReport::default();
    let mut stripes: BTreeMap<u16, Vec<SegmentName>> = BTreeMap::new();
    for name in names.into_iter().filter(|name| name.journal == config.name) {
        stripes.entry(name.stripe).or_default().push(name);
        recovery.segments += 1;
    }
    let mut starts = Vec::new();
    for index in 0..u16::try_from(config.stripes).unwrap_or(u16::MAX) {
        let names = stripes.remove(&index).unwrap_or_default();
        starts.push(recover_stripe(config, &names, &mut recovery)?);
    }
    Ok((recovery, starts))
}

fn recover_stripe(
    config: &JournalConfig,
    names: &[SegmentName],
    recovery: &mut RecoveryReport,
) -> Result<StripeStart, OpenError> {
    let mut start = StripeStart { next_number: 1, ..StripeStart::default() };
    start.next_number += names.last().map_or(0, |newest| newest.number);
    let (mut known, mut earlier) = (0, names.iter().rev());
    for name in earlier.by_ref() {
        let path = name.path(&config.folder);
        match end_of(name, &path, recovery).map_err(OpenError::io(&path))? {
            SegmentEnd::Known(seq) => {
                known = seq;
                break;
            }
            // These sequence numbers are not reused: readers skip numbers that they have seen.
            SegmentEnd::Unknown { records_max } => start.next_seq += records_max,
        }
    }
    start.next_seq += known.max(abandoned_end(&config.folder, earlier));
    if let SegmentPolicy::Ring { .. } = config.segment_policy {
        let plain = names.iter().filter(|name| !name.compressed && name.format == SegmentFormat::Framed);
        let left = plain.filter(|name| name.path(&config.folder).exists());
        start.ring = left.map(|name| name.number).collect();
    } else if let Some(newest) = names.last().filter(|name| !name.compressed && name.format == config.format) {
        start.young = young(newest, &newest.path(&config.folder), recovery);
    }
    Ok(start)
}

/// The newest segment, if it can be continued: a framed one must have its summary. Errors are left to the writer.
fn young(name: &SegmentName, path: &Path, recovery: &RecoveryReport) -> Option<YoungSegment> {
    let metadata = fs::symlink_metadata(path).ok().filter(|_| !recovery.is_damaged(path))?;
    let (number, bytes) = (name.number, metadata.len());
    if name.format == SegmentFormat::Framed {
        let (header, summary) = segment_scanner::header_and_summary(path).ok().flatten()?;
        let SegmentHeader { stripe, salt, first_seq, created, preallocated, .. } = header;
        let is_own = (stripe, header.number) == (name.stripe, number) && !preallocated;
        return Some(YoungSegment { number, salt, bytes, first_seq, summary: summary.filter(|_| is_own)?, created });
    }
    // A reader that follows may hold the beginning of a line that was truncated.
    if recovery.truncated.iter().any(|torn| torn.path == path) {
        return None;
    }
    // Not every file system records when a file was created.
    let created = Timestamp::from(metadata.created().or_else(|_| metadata.modified()).ok()?);
    let summary = SegmentSummary { records: u64::from(bytes > 0), ..SegmentSummary::default() };
    Some(YoungSegment { number, salt: 0, bytes, first_seq: 0, summary, created })
}

/// The sequence number after the last record of abandoned segments. Their last records were to be written again to the
/// next segment, which may not have got them. Stops at a segment that was ended, or that cannot be read.
fn abandoned_end<'a>(folder: &Path, earlier: impl Iterator<Item = &'a SegmentName>) -> u64 {
    let mut most = 0;
    for name in earlier.take_while(|name| name.format == SegmentFormat::Framed) {
        let Ok(Some((end, in_order))) = end_of_earlier(name, &name.path(folder)) else { break };
        most = most.max(end);
        if in_order {
            break;
        }
    }
    most
}

/// The sequence number after the last record of a framed segment, and whether the segment was ended. `None`: unknown.
fn end_of_earlier(name: &SegmentName, path: &Path) -> io::Result<Option<(u64, bool)>> {
    if let Some((_, Some(summary))) = segment_scanner::header_and_summary(path)? {
        return Ok(Some((summary.end_seq, true)));
    }
    let Some(mut scan) = SegmentScanner::open(path, name.compressed)? else { return Ok(None) };
    let mut end = scan.header().first_seq;
    loop {
        match scan.advance(TailMode::Final)? {
            SegmentStep::Frame => end = scan.frame().seq + 1,
            SegmentStep::Damage { .. } | SegmentStep::Torn { .. } => {}
            SegmentStep::End(summary) => {
                return Ok(Some((summary.map_or(end, |summary| summary.end_seq.max(end)), summary.is_some())));
            }
            SegmentStep::Pending => return Ok(Some((end, false))),
        }
    }
}

/// The sequence number after a segment.
enum SegmentEnd {
    Known(u64),
    /// Unknown; the earlier segments define it.
    Unknown {
        records_max: u64,
    },
}

/// Ends a segment that was not ended, and returns its end.
fn end_of(name: &SegmentName, path: &Path, recovery: &mut RecoveryReport) -> io::Result<SegmentEnd> {
    match name.format {
        SegmentFormat::Framed if name.compressed => Ok(match end_of_earlier(name, path)? {
            Some((seq, _)) => SegmentEnd::Known(seq),
            None => SegmentEnd::Unknown { records_max: 0 },
        }),
        _ if name.compressed => Ok(SegmentEnd::Unknown { records_max: 0 }),
        SegmentFormat::Framed => end_of_frames(name, path, recovery),
        SegmentFormat::Json | SegmentFormat::Text => {
            end_of_lines(path, recovery).map(|()| SegmentEnd::Unknown { records_max: 0 })
        }
    }
}

fn end_of_frames(name: &SegmentName, path: &Path, recovery: &mut RecoveryReport) -> io::Result<SegmentEnd> {
    if let Some((_, Some(summary))) = segment_scanner::header_and_summary(path)? {
        return Ok(SegmentEnd::Known(summary.end_seq));
    }
    let mut scan = match SegmentScanner::open(path, false)? {
        Some(scan) => scan,
        None => match SegmentScanner::open_without_header(path, name)? {
            Some(scan) => {
                recovery.record(path, 0, HEADER_BYTES as u64, DamageKind::Middle);
                scan
            }
            None => return recover_headless(path, recovery).map(|records_max| SegmentEnd::Unknown { records_max }),
        },
    };
    if scan.header().number != name.number && scan.header().preallocated {
        // A ring file got its new name, but not its new header: it holds the oldest records, which were to be
        // overwritten.
        fs::remove_file(path)?;
        return Ok(SegmentEnd::Unknown { records_max: 0 });
    }
    let mut summary = SegmentSummary::starting_at(scan.header().first_seq);
    let (mut end, mut torn) = (scan.offset(), None);
    loop {
        match scan.advance(TailMode::Final)? {
            SegmentStep::Frame => {
                let frame = scan.frame();
                summary.add(frame.seq, frame.time);
                end = scan.offset() + frame.bytes() as u64;
            }
            SegmentStep::Damage { at, bytes } => recovery.record(path, at, bytes, DamageKind::Middle),
            SegmentStep::Torn { at, bytes } => torn = Some((at, bytes)),
            SegmentStep::End(Some(sealed)) => return Ok(SegmentEnd::Known(sealed.end_seq.max(summary.end_seq))),
            SegmentStep::End(None) | SegmentStep::Pending => break,
        }
    }
    if recovery.is_damaged(path) {
        return Ok(SegmentEnd::Known(summary.end_seq));
    }
    if let (Some(sealed), Some((at, bytes))) = (scan.summary(), torn) {
        // The segment was continued, and nothing whole was written after its summary.
        let file = fs::OpenOptions::new().write(true).open(path)?;
        file.set_len(at)?;
        file.sync_all()?;
        recovery.record(path, at, bytes, DamageKind::Torn);
        return Ok(SegmentEnd::Known(sealed.end_seq.max(summary.end_seq)));
    }
    seal(path, scan.header(), end, summary)?;
    if let Some((at, bytes)) = torn {
        recovery.record(path, at, bytes, DamageKind::Torn);
    }
    Ok(SegmentEnd::Known(summary.end_seq))
}

/// Truncates the bytes after the last whole frame, and writes the summary there.
fn seal(path: &Path, header: SegmentHeader, end: u64, summary: SegmentSummary) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    if !header.preallocated {
        file.set_len(end)?;
    }
    let (mut bytes, payload) = (Vec::new(), summary.to_bytes());
    FrameInput { kind: FrameKind::Seal, class: Class::default(), time: Timestamp::now(), payload: &payload }
        .write_with_checksum(summary.end_seq, header.salt, &mut bytes);
    // The summary is an optimisation; without room for it, the segment is still complete.
    if file.write_all_at(&bytes, end).is_err() {
        file.set_len(end)?;
    }
    file.sync_all()
}

/// Handles a file without a header: if it is short or all zeros, nothing was written to it. Returns the largest number of
/// records that it may hold.
fn recover_headless(path: &Path, recovery: &mut RecoveryReport) -> io::Result<u64> {
    let bytes = fs::metadata(path)?.len();
    if bytes <= HEADER_BYTES as u64 || is_zeros(path)? {
        recovery.record(path, 0, bytes, DamageKind::Torn);
        return fs::remove_file(path).map(|()| 0);
    }
    recovery.record(path, 0, bytes, DamageKind::SegmentHeader);
    Ok(bytes / HEAD_BYTES as u64)
}

fn is_zeros(path: &Path) -> io::Result<bool> {
    let mut file = fs::File::open(path)?;
    let mut bytes = vec![0; 256 << 10];
    loop {
        match io::Read::read(&mut file, &mut bytes)? {
            0 => return Ok(true),
            read if bytes[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Truncates a partial last line: lines have neither sequence numbers nor checksums.
fn end_of_lines(path: &Path, recovery: &mut RecoveryReport) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let len = file.metadata()?.len();
    let end = last_newline(&file, len)?.map_or(0, |at| at + 1);
    if end < len {
        // Opened for writing only if needed: whole segments may be on a read-only file system.
        let file = fs::OpenOptions::new().write(true).open(path)?;
        file.set_len(end)?;
        file.sync_all()?;
        recovery.record(path, end, len - end, DamageKind::Torn);
    }
    Ok(())
}

fn last_newline(file: &fs::File, len: u64) -> io::Result<Option<u64>> {
    let mut end = len;
    let mut bytes = vec![0; 64 << 10];
    while end > 0 {
        let start = end.saturating_sub(bytes.len() as u64);
        let part = &mut bytes[..usize::try_from(end - start).unwrap_or(0)];
        file.read_exact_at(part, start)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(start + at as u64));
        }
        end = start;
    }
    Ok(None)
}

impl RecoveryReport {
    fn record(&mut self, path: &Path, at: u64, bytes: u64, kind: DamageKind) {
        let list = if kind == DamageKind::Torn { &mut self.truncated } else { &mut self.damage };
        list.push(DamagedRange { path: path.to_path_buf(), at, bytes, kind });
    }

    fn is_damaged(&self, path: &Path) -> bool {
        self.damage.iter().any(|damage| damage.path == path)
    }

    /// Whether recovery found neither a torn write nor damage.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.truncated.is_empty() && self.damage.is_empty()
    }
}
