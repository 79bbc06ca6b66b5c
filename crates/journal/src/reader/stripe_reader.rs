//! Reads one stripe of a journal, segment after segment.

use std::{
    collections::VecDeque,
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    entry::{AtEnd, JournalEntry, JournalRecord, LineTimestamp},
    position::{ReaderPosition, SegmentOffset},
};
use crate::{
    error::ReadError,
    frame::FrameKind,
    gap_record::Gap,
    line_format::LineScanner,
    recovery::{DamageKind, DamagedRange},
    segment::{self, SegmentHeader, SegmentName},
    segment_format::SegmentFormat,
    segment_scanner::{self, SegmentScanner, SegmentStep, TailMode},
    timestamp::Timestamp,
};

/// How many lines without a timestamp are skipped in the search for the first one.
const UNTIMED_LINES_MAX: usize = 100;
/// How much earlier the timestamp of a line may be than that of a line before it.
const LINE_DISORDER_MAX: Duration = Duration::from_secs(10);

/// The state of the stripe's next entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NextEntry {
    /// There is an entry; stripes are merged by this time.
    Ready(Timestamp),
    Waiting,
}

/// A segment that is being read.
enum SegmentReader {
    Frames(Box<SegmentScanner>),
    Lines(LineScanner),
    /// The file has no valid header. All of it is damage, once nothing more is written to it.
    Headless,
}

/// An entry that was found and not consumed.
#[derive(Clone, PartialEq, Eq, Debug)]
enum FoundEntry {
    /// A frame or line of the open segment.
    Frame,
    Missing(u64),
    Damage(DamagedRange),
}

/// The identity of the folder at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FolderIdentity {
    device: u64,
    inode: u64,
    /// Inode numbers are reused. Not every file system records this time.
    created: Option<SystemTime>,
}

/// The offset of a position after a segment that was not read, or is gone.
const SEGMENT_SKIPPED: u64 = u64::MAX;

impl FolderIdentity {
    pub(super) fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino(), created: metadata.created().ok() })
    }
}

pub(super) struct StripeReader {
    folder: PathBuf,
    /// The folder in which segments were found last.
    seen_folder: Option<FolderIdentity>,
    /// A missing folder may appear again.
    follows: bool,
    journal: String,
    stripe: u16,
    /// The one file to read instead of a folder.
    single_file: Option<(SegmentName, PathBuf)>,
    line_timestamp: Option<LineTimestamp>,
    /// The segment that is open, or was open last.
    name: Option<SegmentName>,
    /// The segments after `name`, as listed last: listing a folder for each of many segments would be slow.
    listed: VecDeque<SegmentName>,
    open: Option<SegmentReader>,
    /// Where to begin in the next segment that is opened.
    offset: Option<u64>,
    /// Where the segment `name` ended, if it was read to its end.
    ended_at: Option<u64>,
    found: Option<FoundEntry>,
    /// The next sequence number; records below it were read.
    next_seq: Option<u64>,
    /// The timestamp of the current line.
    line_time: Option<Timestamp>,
    /// The latest time so far, so that a clock that went back does not hold back other stripes.
    time: Timestamp,
}

impl fmt::Debug for StripeReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StripeReader")
            .field("stripe", &self.stripe)
            .field("segment", &self.name)
            .finish_non_exhaustive()
    }
}

impl StripeReader {
    pub(super) fn new(
        folder: &Path,
        journal: String,
        stripe: u16,
        line_timestamp: Option<LineTimestamp>,
        at_end: AtEnd,
    ) -> Self {
        Self {
            folder: folder.to_path_buf(),
            seen_folder: None,
            follows: at_end == AtEnd::Follow,
            journal,
            stripe,
            single_file: None,
            line_timestamp,
            name: None,
            listed: VecDeque::new(),
            open: None,
            offset: None,
            ended_at: None,
            found: None,
            next_seq: None,
            line_time: None,
            time: Timestamp::MIN,
        }
    }

    /// Reads one segment, whatever the name of its file.
    pub(super) fn single(name: SegmentName, path: PathBuf, line_timestamp: Option<LineTimestamp>) -> Self {
        let folder = path.parent().unwrap_or(Path::new(""));
        let reader = Self::new(folder, name.journal.clone(), name.stripe, line_timestamp, AtEnd::Stop);
        Self { single_file: Some((name, path)), ..reader }
    }

    pub(super) fn is(&self, journal: &str, stripe: u16) -> bool {
        self.journal == journal && self.stripe == stripe
    }

    /// Handles a replaced folder with other segments. If its first segment comes after the last one read, the same
    /// journal continues there; otherwise the stripe is read from its start.
    pub(super) fn on_folder(&mut self, folder: FolderIdentity, names: &[SegmentName]) {
        let Some(first) = names.iter().find(|name| self.is(&name.journal, name.stripe)) else { return };
        let is_another = self.seen_folder.replace(folder).is_some_and(|seen_folder| seen_folder != folder);
        if is_another && self.name.as_ref().is_some_and(|name| first.number <= name.number) {
            (self.open, self.name, self.next_seq, self.offset) = (None, None, None, None);
            self.listed.clear();
        }
    }

    /// Finds the next entry in the open segment, without a look at the folder. Returns whether there is one.
    pub(super) fn read_open_segment(&mut self) -> Result<bool, ReadError> {
        while self.found.is_none() && matches!(self.open, Some(SegmentReader::Frames(_) | SegmentReader::Lines(_))) {
            let step = self.step(TailMode::Live)?;
            if !self.on_step(step) {
                return Ok(false);
            }
        }
        Ok(self.found.is_some())
    }

    /// Finds the next entry, unless one was found before.
    pub(super) fn next_entry(&mut self, at_end: AtEnd) -> Result<NextEntry, ReadError> {
        while self.found.is_none() {
            let more = match &self.open {
                None => self.open_next()?,
                Some(_) => self.advance(at_end)?,
            };
            if !more {
                return Ok(NextEntry::Waiting);
            }
        }
        if let (Some(FoundEntry::Frame), Some(SegmentReader::Frames(scan))) = (&self.found, &self.open) {
            self.time = self.time.max(scan.frame().time);
        }
        self.time = self.time.max(self.line_time.unwrap_or(Timestamp::MIN));
        Ok(NextEntry::Ready(self.time))
    }

    /// The segments of this stripe after the current one.
    fn later(&self) -> Result<Vec<SegmentName>, ReadError> {
        if let Some((name, _)) = &self.single_file {
            return Ok(if self.name.is_none() { vec![name.clone()] } else { Vec::new() });
        }
        let mut names = match segment::list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.follows => return Ok(Vec::new()),
            names => names.map_err(ReadError::io(&self.folder))?,
        };
        let after = self.name.as_ref().map(|name| name.number);
        names.retain(|name| self.is(&name.journal, name.stripe) && after.is_none_or(|after| name.number > after));
        Ok(names)
    }

    /// `false`: there is no further segment yet.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        if self.listed.is_empty() {
            self.listed = self.later()?.into();
        }
        let Some(name) = self.listed.front().cloned() else { return Ok(false) };
        let more = self.open_segment(name)?;
        // A segment that could not be opened is tried again by the next call.
        if self.open.is_some() {
            self.listed.pop_front();
        }
        Ok(more)
    }

    /// The path of a segment of this stripe.
    pub(super) fn file(&self, name: &SegmentName) -> PathBuf {
        self.single_file.as_ref().map_or_else(|| name.path(&self.folder), |(_, path)| path.clone())
    }

    fn open_segment(&mut self, name: SegmentName) -> Result<bool, ReadError> {
        let path = self.file(&name);
        let opened = match name.format {
            SegmentFormat::Framed => SegmentScanner::open(&path, name.compressed)
                .map(|scan| scan.map(|scan| SegmentReader::Frames(Box::new(scan)))),
            SegmentFormat::Json | SegmentFormat::Text => {
                LineScanner::open(&path, name.compressed).map(|scan| Some(SegmentReader::Lines(scan)))
            }
        };
        match opened {
            Ok(open) => {
                self.open = Some(open.unwrap_or(SegmentReader::Headless));
                self.ended_at = None;
                self.check_header(&name, &path);
                self.use_header_seq();
                self.name = Some(name);
                self.go_to_offset().map_err(ReadError::io(path))?;
                Ok(true)
            }
            // The segment was compressed or removed since it was listed: list again.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.single_file.is_none() => {
                self.listed.clear();
                Ok(!self.later()?.contains(&name))
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(ReadError::Compressed(path)),
            Err(source) => Err(ReadError::Io { path, source }),
        }
    }

    /// Reports a segment under the name of another one: its records come out of order, and may be taken for records read
    /// before.
    fn check_header(&mut self, name: &SegmentName, path: &Path) {
        let Some(SegmentReader::Frames(scan)) = &self.open else { return };
        let SegmentHeader { stripe, number, preallocated, .. } = scan.header();
        // A recycled ring file gets its new name before its new header.
        if self.single_file.is_some() || preallocated || (stripe, number) == (name.stripe, name.number) {
            return;
        }
        let (bytes, kind) = (segment::HEADER_BYTES as u64, DamageKind::Misplaced { stripe, number });
        self.found = Some(FoundEntry::Damage(DamagedRange { path: path.to_path_buf(), at: 0, bytes, kind }));
    }

    /// Takes the first expected sequence number from the header of the first segment.
    fn use_header_seq(&mut self) {
        if let (None, None, Some(SegmentReader::Frames(scan))) = (self.next_seq, self.offset, &self.open) {
            self.next_seq = Some(scan.header().first_seq);
        }
    }

    fn go_to_offset(&mut self) -> io::Result<()> {
        let skipped = match (self.offset, &mut self.open) {
            (Some(offset), Some(SegmentReader::Frames(scan))) => scan.skip_to(offset),
            (Some(offset), Some(SegmentReader::Lines(scan))) => scan.skip_to(offset),
            // The frames may be found later.
            (_, Some(SegmentReader::Headless)) => return Ok(()),
            _ => Ok(()),
        };
        self.offset = None;
        skipped
    }

    /// Advances in the open segment. `false`: nothing more for now.
    fn advance(&mut self, at_end: AtEnd) -> Result<bool, ReadError> {
        // The newest segment may still grow.
        let step = self.step(if at_end == AtEnd::Follow { TailMode::Live } else { TailMode::Final })?;
        if step != SegmentStep::Pending {
            return Ok(self.on_step(step));
        }
        if self.listed.is_empty() && self.later()?.is_empty() {
            return Ok(false);
        }
        // The segment does not grow any more, but it may have grown before the next one was created.
        let step = self.step(TailMode::Final)?;
        Ok(self.on_step(step))
    }

    fn step(&mut self, tail: TailMode) -> Result<SegmentStep, ReadError> {
        let path = self.path();
        let step = match &mut self.open {
            Some(SegmentReader::Frames(scan)) => scan.advance(tail),
            Some(SegmentReader::Lines(scan)) => scan.advance(tail),
            Some(SegmentReader::Headless) => return self.headless(tail, &path),
            None => Ok(SegmentStep::End(None)),
        };
        step.map_err(ReadError::io(path))
    }

    fn headless(&mut self, tail: TailMode, path: &Path) -> Result<SegmentStep, ReadError> {
        // Checked before the file is read: nothing is added to it any more.
        let is_last = tail == TailMode::Live || (self.listed.is_empty() && self.later()?.is_empty());
        if let Some(scan) =
            self.name.as_ref().and_then(|name| SegmentScanner::open(path, name.compressed).ok().flatten())
        {
            self.replace_scanner(scan).map_err(ReadError::io(path))?;
            return self.step(tail);
        }
        if tail == TailMode::Live {
            return Ok(SegmentStep::Pending);
        }
        let Ok(metadata) = fs::metadata(path) else { return Ok(SegmentStep::End(None)) };
        let (bytes, head) = (metadata.len(), segment::HEADER_BYTES as u64);
        if bytes <= head {
            // The newest segment was created and has no record yet, which is no damage. An earlier one was truncated.
            return Ok(if is_last { SegmentStep::End(None) } else { SegmentStep::Damage { at: 0, bytes } });
        }
        let found = self.name.as_ref().map_or(Ok(None), |name| SegmentScanner::open_without_header(path, name));
        let Some(scan) = found.map_err(ReadError::io(path))? else { return Ok(SegmentStep::Damage { at: 0, bytes }) };
        let has_offset = self.offset.is_some();
        self.replace_scanner(scan).map_err(ReadError::io(path))?;
        if has_offset { self.step(tail) } else { Ok(SegmentStep::Damage { at: 0, bytes: head }) }
    }

    /// Continues with a scanner for a segment that seemed to have no header.
    fn replace_scanner(&mut self, scan: SegmentScanner) -> io::Result<()> {
        self.open = Some(SegmentReader::Frames(Box::new(scan)));
        self.go_to_offset()
    }

    fn path(&self) -> PathBuf {
        self.name.as_ref().map_or_else(|| self.folder.clone(), |name| self.file(name))
    }

    /// `true`: continue.
    fn on_step(&mut self, step: SegmentStep) -> bool {
        match step {
            SegmentStep::Frame => self.on_frame(),
            SegmentStep::Damage { at, bytes } => {
                let headless = matches!(self.open, Some(SegmentReader::Headless));
                let kind = if headless { DamageKind::SegmentHeader } else { DamageKind::Middle };
                self.damage(at, bytes, kind);
                if headless {
                    (self.open, self.offset) = (None, None);
                }
            }
            SegmentStep::Torn { at, bytes } => self.damage(at, bytes, DamageKind::Torn),
            SegmentStep::End(summary) => {
                let end = summary.map(|summary| summary.end_seq);
                if let (Some(end), Some(next)) = (end, self.next_seq) {
                    self.report_missing(next, end);
                }
                self.ended_at = self.open_offset(false);
                (self.open, self.offset) = (None, None);
            }
            SegmentStep::Pending => return false,
        }
        true
    }

    fn damage(&mut self, at: u64, bytes: u64, kind: DamageKind) {
        // A ring overwrote the file while it was read: its records are gone, and are reported as missing.
        if let Some(SegmentReader::Frames(scan)) = &self.open
            && scan.is_recycled()
        {
            self.open = None;
            return;
        }
        self.found = Some(FoundEntry::Damage(DamagedRange { path: self.path(), at, bytes, kind }));
    }

    fn on_frame(&mut self) {
        let Some(SegmentReader::Frames(scan)) = &self.open else {
            if let (Some(line_timestamp), Some(SegmentReader::Lines(lines))) = (self.line_timestamp, &self.open) {
                self.line_time = line_timestamp(lines.line());
            }
            self.found = Some(FoundEntry::Frame);
            return;
        };
        let seq = scan.frame().seq;
        let next = self.next_seq.unwrap_or(seq);
        // An abandoned segment and its replacement share records.
        if seq >= next {
            self.found = Some(FoundEntry::Frame);
            self.report_missing(next, seq);
            if self.found == Some(FoundEntry::Frame) {
                self.next_seq = Some(seq + 1);
            }
        }
    }

    /// Reports missing sequence numbers before the frame.
    fn report_missing(&mut self, next: u64, seq: u64) {
        if seq > next {
            self.found = Some(FoundEntry::Missing(seq - next));
            self.next_seq = Some(seq);
        }
    }

    /// The entry that was found.
    pub(super) fn entry(&self) -> JournalEntry<'_> {
        match (&self.found, &self.open) {
            (Some(FoundEntry::Damage(damage)), _) => JournalEntry::Damage(damage.clone()),
            (Some(FoundEntry::Missing(records)), _) => JournalEntry::Missing { stripe: self.stripe, records: *records },
            (_, Some(SegmentReader::Frames(scan))) => self.frame_entry(scan),
            (_, Some(SegmentReader::Lines(lines))) => JournalEntry::Record(JournalRecord {
                stripe: self.stripe,
                seq: lines.number(),
                time: self.line_time.unwrap_or(Timestamp::MIN),
                class: crate::Class::default(),
                payload: lines.line(),
            }),
            (_, None | Some(SegmentReader::Headless)) => JournalEntry::Missing { stripe: self.stripe, records: 0 },
        }
    }

    fn frame_entry<'a>(&self, scan: &'a SegmentScanner) -> JournalEntry<'a> {
        let frame = scan.frame();
        let gap = Gap::from_payload(frame.class, frame.payload).filter(|_| frame.kind == FrameKind::Gap);
        let (time, class, payload) = (frame.time, frame.class, frame.payload);
        gap.map_or(
            JournalEntry::Record(JournalRecord { stripe: self.stripe, seq: frame.seq, time, class, payload }),
            JournalEntry::Gap,
        )
    }

    pub(super) fn consume(&mut self) {
        let was_missing = matches!(self.found.take(), Some(FoundEntry::Missing(_)));
        // The frame after the missing ones is still unread.
        if let (true, Some(SegmentReader::Frames(scan))) = (was_missing, &self.open)
            && scan.has_frame()
        {
            self.next_seq = Some(scan.frame().seq + 1);
            self.found = Some(FoundEntry::Frame);
        }
    }

    pub(super) fn is_older_than(&self, from: Timestamp) -> bool {
        match (&self.found, &self.open) {
            (Some(FoundEntry::Frame), Some(SegmentReader::Frames(scan))) => scan.frame().time < from,
            (Some(FoundEntry::Frame), Some(SegmentReader::Lines(_))) => self.line_time.is_some_and(|time| time < from),
            _ => false,
        }
    }

    /// Skips all current records.
    pub(super) fn skip_to_end(&mut self) -> Result<(), ReadError> {
        let Some(name) = self.later()?.pop() else { return Ok(()) };
        self.open_segment(name)?;
        self.consume();
        while self.open.is_some() && self.advance(AtEnd::Follow)? {
            self.consume();
        }
        Ok(())
    }

    /// Skips to the first segment that may hold records of the time or later.
    pub(super) fn skip_segments_before(&mut self, time: Timestamp) -> Result<(), ReadError> {
        let names = self.later()?;
        for (at, name) in names.iter().enumerate() {
            let path = self.file(name);
            // Before the summary is read: records may be added after it.
            let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            let is_over = if name.format == SegmentFormat::Framed {
                let summary = segment_scanner::header_and_summary(&path)
                    .map_err(ReadError::io(path))?
                    .and_then(|(_, summary)| summary);
                summary.and_then(|summary| summary.times).is_some_and(|(_, last)| last < time)
            } else {
                self.begins_before(names.get(at + 1), time)?
            };
            if !is_over {
                break;
            }
            // The newest segment is continued if a journal is opened now.
            if at + 1 == names.len() && !name.compressed {
                self.offset = Some(bytes);
                return self.open_segment(name.clone()).map(drop);
            }
            self.name = Some(name.clone());
        }
        Ok(())
    }

    /// Lines have no summary, but a line is not much later than the lines after it.
    fn begins_before(&self, name: Option<&SegmentName>, time: Timestamp) -> Result<bool, ReadError> {
        let (Some(line_timestamp), Some(name)) = (self.line_timestamp, name) else { return Ok(false) };
        let path = self.file(name);
        let first = || {
            let mut lines = LineScanner::open(&path, name.compressed)?;
            for _ in 0..UNTIMED_LINES_MAX {
                if lines.advance(TailMode::Final)? != SegmentStep::Frame {
                    break;
                }
                if let Some(first) = line_timestamp(lines.line()) {
                    return Ok(Some(first));
                }
            }
            Ok(None)
        };
        Ok(first()
            .map_err(ReadError::io(&path))?
            .is_some_and(|first| first.since(Timestamp::MIN) + LINE_DISORDER_MAX < time.since(Timestamp::MIN)))
    }

    pub(super) fn seek(&mut self, position: &ReaderPosition) -> Result<(), ReadError> {
        let Some(at) = position.0.get(&(self.journal.clone(), self.stripe)) else { return Ok(()) };
        let name = self.later()?.into_iter().find(|name| name.number == at.segment);
        let name = name.ok_or(ReadError::SegmentMissing { stripe: self.stripe, segment: at.segment })?;
        if at.offset == SEGMENT_SKIPPED {
            self.name = Some(name);
            return Ok(());
        }
        self.offset = Some(at.offset);
        self.open_segment(name).map(drop)
    }

    /// Where the next entry begins; with `shown`, the one after it.
    pub(super) fn position(&self, shown: bool) -> Option<((String, u16), SegmentOffset)> {
        let segment = self.name.as_ref()?.number;
        let found = shown && self.found == Some(FoundEntry::Frame);
        let offset = self.open_offset(found).or(self.ended_at).unwrap_or(SEGMENT_SKIPPED);
        Some(((self.journal.clone(), self.stripe), SegmentOffset { segment, offset }))
    }

    /// The offset in the open segment of the found entry, or after it.
    fn open_offset(&self, behind: bool) -> Option<u64> {
        match self.open.as_ref()? {
            SegmentReader::Frames(scan) => Some(scan.offset() + if behind { scan.raw().len() as u64 } else { 0 }),
            SegmentReader::Lines(lines) => Some(lines.offset(behind)),
            // No entry of it was read yet.
            SegmentReader::Headless => Some(self.offset.unwrap_or(0)),
        }
    }

    /// The bytes read and the size of a single file.
    pub(super) fn progress(&self) -> (u64, u64) {
        let Some((name, path)) = &self.single_file else { return (0, 0) };
        let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
        (self.read_of(name.number, bytes), bytes)
    }

    /// The number of bytes of a segment that were read.
    pub(super) fn read_of(&self, number: u64, bytes: u64) -> u64 {
        let Some(name) = &self.name else { return 0 };
        match number.cmp(&name.number) {
            std::cmp::Ordering::Less => bytes,
            std::cmp::Ordering::Greater => 0,
            std::cmp::Ordering::Equal => match &self.open {
                Some(SegmentReader::Frames(scan)) if !name.compressed => scan.offset().min(bytes),
                Some(SegmentReader::Lines(lines)) if !name.compressed => lines.offset(false).min(bytes),
                Some(_) => 0,
                None => bytes,
            },
        }
    }
}
