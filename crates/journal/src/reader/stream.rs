//! One stripe of a journal, segment after segment.

use std::{
    collections::VecDeque,
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{AtEnd, Clock, Entry, Place, Position, Record};
use crate::{
    config::Format,
    error::ReadError,
    frame::Kind,
    gap::Gap,
    lines::LineScan,
    recovery::{Damage, DamageKind},
    scan::{self, Scan, Step, Tail},
    segment::{self, Header, SegmentName},
    time::Time,
};

/// How many lines without a time are looked at for the first that has one.
const UNTIMED_MAX: usize = 100;
/// How much earlier a line may be than one before it.
const UNORDERED: Duration = Duration::from_secs(10);

/// What a stream has to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    /// An entry; merged as if it were of this time.
    Ready(Time),
    Waiting,
}

/// A segment that is being read.
enum Open {
    Frames(Box<Scan>),
    Lines(LineScan),
    /// It does not begin as a segment does. The whole file is damage, once it is sure that nothing more comes.
    Headless,
}

/// What was found and not left yet.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Found {
    /// It stands in the open segment.
    Frame,
    Missing(u64),
    Damage(Damage),
}

/// Which folder it is that a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Folder {
    device: u64,
    inode: u64,
    /// Numbers of nodes come again. Not every file system tells.
    created: Option<SystemTime>,
}

impl Folder {
    pub(super) fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino(), created: metadata.created().ok() })
    }
}

pub(super) struct Stream {
    folder: PathBuf,
    /// The one in which its segments were seen last.
    seen: Option<Folder>,
    /// A folder that is gone may come again.
    follows: bool,
    journal: String,
    stripe: u16,
    /// The one file that is read, where it is not the folder's segments.
    only: Option<(SegmentName, PathBuf)>,
    clock: Option<Clock>,
    /// The segment that is open, or was last.
    name: Option<SegmentName>,
    /// Those behind it, as they were listed last: to list a folder for each of its segments takes long if there are many.
    listed: VecDeque<SegmentName>,
    open: Option<Open>,
    /// Where to begin in the next segment that is opened.
    offset: Option<u64>,
    found: Option<Found>,
    /// The number that comes next; earlier ones were seen.
    next_seq: Option<u64>,
    /// What the clock says of the line that stands in the open segment.
    line_time: Option<Time>,
    /// The latest time so far, so that a clock that went back does not hold the others up.
    time: Time,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("stripe", &self.stripe).field("segment", &self.name).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(folder: &Path, journal: String, stripe: u16, clock: Option<Clock>, at_end: AtEnd) -> Self {
        Self {
            folder: folder.to_path_buf(),
            seen: None,
            follows: at_end == AtEnd::Follow,
            journal,
            stripe,
            only: None,
            clock,
            name: None,
            listed: VecDeque::new(),
            open: None,
            offset: None,
            found: None,
            next_seq: None,
            line_time: None,
            time: Time::MIN,
        }
    }

    /// Of one segment, whatever its file is called.
    pub(super) fn of_file(name: SegmentName, path: PathBuf, clock: Option<Clock>) -> Self {
        let folder = path.parent().unwrap_or(Path::new(""));
        let stream = Self::new(folder, name.journal.clone(), name.stripe, clock, AtEnd::Stop);
        Self { only: Some((name, path)), ..stream }
    }

    pub(super) fn is(&self, journal: &str, stripe: u16) -> bool {
        self.journal == journal && self.stripe == stripe
    }

    /// Another folder may stand where the one was that is read, with other segments. One that begins behind what was read
    /// is of the same journal, which has gone on there; any other is read from its beginning.
    pub(super) fn look_at_folder(&mut self, folder: Folder, names: &[SegmentName]) {
        let Some(first) = names.iter().find(|name| self.is(&name.journal, name.stripe)) else { return };
        let is_another = self.seen.replace(folder).is_some_and(|seen| seen != folder);
        if is_another && self.name.as_ref().is_some_and(|name| first.number <= name.number) {
            (self.open, self.name, self.next_seq, self.offset) = (None, None, None, None);
            self.listed.clear();
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.found.is_none()
    }

    /// Finds the next entry, if it is not known.
    pub(super) fn head(&mut self, at_end: AtEnd) -> Result<Head, ReadError> {
        while self.found.is_none() {
            let more = match &self.open {
                None => self.open_next()?,
                Some(_) => self.advance(at_end)?,
            };
            if !more {
                return Ok(Head::Waiting);
            }
        }
        if let (Some(Found::Frame), Some(Open::Frames(scan))) = (&self.found, &self.open) {
            self.time = self.time.max(scan.frame().time);
        }
        self.time = self.time.max(self.line_time.unwrap_or(Time::MIN));
        Ok(Head::Ready(self.time))
    }

    /// The names of this stream after the present one.
    fn later(&self) -> Result<Vec<SegmentName>, ReadError> {
        if let Some((name, _)) = &self.only {
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

    /// `false`: there is none yet.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        if self.listed.is_empty() {
            self.listed = self.later()?.into();
        }
        let Some(name) = self.listed.front().cloned() else { return Ok(false) };
        let more = self.open_segment(name)?;
        // One that could not be opened is tried again when the reader is asked again.
        if self.open.is_some() {
            self.listed.pop_front();
        }
        Ok(more)
    }

    /// Where a segment of this stream lies.
    pub(super) fn file(&self, name: &SegmentName) -> PathBuf {
        self.only.as_ref().map_or_else(|| name.path(&self.folder), |(_, path)| path.clone())
    }

    fn open_segment(&mut self, name: SegmentName) -> Result<bool, ReadError> {
        let path = self.file(&name);
        let opened = match name.format {
            Format::Framed => Scan::open(&path, name.packed).map(|scan| scan.map(|scan| Open::Frames(Box::new(scan)))),
            Format::Json | Format::Text => LineScan::open(&path, name.packed).map(|scan| Some(Open::Lines(scan))),
        };
        match opened {
            Ok(open) => {
                self.open = Some(open.unwrap_or(Open::Headless));
                self.look_at_header(&name, &path);
                self.begin_with_header();
                self.name = Some(name);
                self.go_to_offset().map_err(ReadError::io(path))?;
                Ok(true)
            }
            // Packed or removed since it was listed: the list is read again.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.only.is_none() => {
                self.listed.clear();
                Ok(!self.later()?.contains(&name))
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(ReadError::Packed(path)),
            Err(source) => Err(ReadError::Io { path, source }),
        }
    }

    /// Under the name of another segment its records come at the wrong place, and may pass for some that were seen.
    fn look_at_header(&mut self, name: &SegmentName, path: &Path) {
        let Some(Open::Frames(scan)) = &self.open else { return };
        let Header { stripe, number, preallocated, .. } = scan.header();
        // A file of a ring has its new name a moment before its new header.
        if self.only.is_some() || preallocated || (stripe, number) == (name.stripe, name.number) {
            return;
        }
        let (bytes, kind) = (segment::HEADER_BYTES as u64, DamageKind::Misplaced { stripe, number });
        self.found = Some(Found::Damage(Damage { path: path.to_path_buf(), at: 0, bytes, kind }));
    }

    /// Of the first segment the header alone tells which records were to come.
    fn begin_with_header(&mut self) {
        if let (None, None, Some(Open::Frames(scan))) = (self.next_seq, self.offset, &self.open) {
            self.next_seq = Some(scan.header().first_seq);
        }
    }

    fn go_to_offset(&mut self) -> io::Result<()> {
        let skipped = match (self.offset, &mut self.open) {
            (Some(offset), Some(Open::Frames(scan))) => scan.skip_to(offset),
            (Some(offset), Some(Open::Lines(scan))) => scan.skip_to(offset),
            // Its frames may be found later.
            (_, Some(Open::Headless)) => return Ok(()),
            _ => Ok(()),
        };
        self.offset = None;
        skipped
    }

    /// One step in the open segment. `false`: nothing more for now.
    fn advance(&mut self, at_end: AtEnd) -> Result<bool, ReadError> {
        // While it is the newest, what it ends with may still become more.
        let step = self.step(if at_end == AtEnd::Follow { Tail::Live } else { Tail::Final })?;
        if step != Step::Pending {
            return Ok(self.take(step));
        }
        if self.listed.is_empty() && self.later()?.is_empty() {
            return Ok(false);
        }
        // Now nothing more is added, but something may have been before the next one was begun.
        let step = self.step(Tail::Final)?;
        Ok(self.take(step))
    }

    fn step(&mut self, tail: Tail) -> Result<Step, ReadError> {
        let path = self.path();
        let step = match &mut self.open {
            Some(Open::Frames(scan)) => scan.advance(tail),
            Some(Open::Lines(scan)) => scan.advance(tail),
            Some(Open::Headless) => return self.headless(tail, &path),
            None => Ok(Step::End(None)),
        };
        step.map_err(ReadError::io(path))
    }

    fn headless(&mut self, tail: Tail, path: &Path) -> Result<Step, ReadError> {
        // Seen before the file is: nothing is added to it any more.
        let is_last = tail == Tail::Live || (self.listed.is_empty() && self.later()?.is_empty());
        if let Some(scan) = self.name.as_ref().and_then(|name| Scan::open(path, name.packed).ok().flatten()) {
            self.read_on(scan).map_err(ReadError::io(path))?;
            return self.step(tail);
        }
        if tail == Tail::Live {
            return Ok(Step::Pending);
        }
        let Ok(metadata) = fs::metadata(path) else { return Ok(Step::End(None)) };
        let (bytes, head) = (metadata.len(), segment::HEADER_BYTES as u64);
        if bytes <= head {
            // The newest was made and not begun yet, which is no damage. One before another was cut.
            return Ok(if is_last { Step::End(None) } else { Step::Damage { at: 0, bytes } });
        }
        let found = self.name.as_ref().map_or(Ok(None), |name| Scan::open_without_header(path, name));
        let Some(scan) = found.map_err(ReadError::io(path))? else { return Ok(Step::Damage { at: 0, bytes }) };
        let is_told = self.offset.is_some();
        self.read_on(scan).map_err(ReadError::io(path))?;
        if is_told { self.step(tail) } else { Ok(Step::Damage { at: 0, bytes: head }) }
    }

    /// A segment that seemed to have no header.
    fn read_on(&mut self, scan: Scan) -> io::Result<()> {
        self.open = Some(Open::Frames(Box::new(scan)));
        self.go_to_offset()
    }

    fn path(&self) -> PathBuf {
        self.name.as_ref().map_or_else(|| self.folder.clone(), |name| self.file(name))
    }

    /// `true`: go on.
    fn take(&mut self, step: Step) -> bool {
        match step {
            Step::Frame => self.take_frame(),
            Step::Damage { at, bytes } => {
                let headless = matches!(self.open, Some(Open::Headless));
                let kind = if headless { DamageKind::Header } else { DamageKind::Middle };
                self.damage(at, bytes, kind);
                if headless {
                    (self.open, self.offset) = (None, None);
                }
            }
            Step::Torn { at, bytes } => self.damage(at, bytes, DamageKind::Torn),
            Step::End(sum) => {
                let end = sum.map(|sum| sum.end_seq);
                if let (Some(end), Some(next)) = (end, self.next_seq) {
                    self.miss(next, end);
                }
                (self.open, self.offset) = (None, None);
            }
            Step::Pending => return false,
        }
        true
    }

    fn damage(&mut self, at: u64, bytes: u64, kind: DamageKind) {
        // A ring wrote over the file while it was read: its records are gone, and the numbers will tell.
        if let Some(Open::Frames(scan)) = &self.open
            && scan.is_recycled()
        {
            self.open = None;
            return;
        }
        self.found = Some(Found::Damage(Damage { path: self.path(), at, bytes, kind }));
    }

    fn take_frame(&mut self) {
        let Some(Open::Frames(scan)) = &self.open else {
            if let (Some(clock), Some(Open::Lines(lines))) = (self.clock, &self.open) {
                self.line_time = clock(lines.line());
            }
            self.found = Some(Found::Frame);
            return;
        };
        let seq = scan.frame().seq;
        let next = self.next_seq.unwrap_or(seq);
        // A segment that was given up and the one that took its place share records.
        if seq >= next {
            self.found = Some(Found::Frame);
            self.miss(next, seq);
            if self.found == Some(Found::Frame) {
                self.next_seq = Some(seq + 1);
            }
        }
    }

    /// Says that numbers are missing before it goes on.
    fn miss(&mut self, next: u64, seq: u64) {
        if seq > next {
            self.found = Some(Found::Missing(seq - next));
            self.next_seq = Some(seq);
        }
    }

    /// The entry that was found.
    pub(super) fn show(&self) -> Entry<'_> {
        match (&self.found, &self.open) {
            (Some(Found::Damage(damage)), _) => Entry::Damage(damage.clone()),
            (Some(Found::Missing(records)), _) => Entry::Missing { stripe: self.stripe, records: *records },
            (_, Some(Open::Frames(scan))) => self.show_frame(scan),
            (_, Some(Open::Lines(lines))) => Entry::Record(Record {
                stripe: self.stripe,
                seq: lines.number(),
                time: self.line_time.unwrap_or(Time::MIN),
                class: crate::Class::default(),
                payload: lines.line(),
            }),
            (_, None | Some(Open::Headless)) => Entry::Missing { stripe: self.stripe, records: 0 },
        }
    }

    fn show_frame<'a>(&self, scan: &'a Scan) -> Entry<'a> {
        let frame = scan.frame();
        let gap = Gap::from_payload(frame.class, frame.payload).filter(|_| frame.kind == Kind::Gap);
        let (time, class, payload) = (frame.time, frame.class, frame.payload);
        gap.map_or(Entry::Record(Record { stripe: self.stripe, seq: frame.seq, time, class, payload }), Entry::Gap)
    }

    pub(super) fn leave(&mut self) {
        let was_missing = matches!(self.found.take(), Some(Found::Missing(_)));
        // The frame behind the missing ones is still there.
        if let (true, Some(Open::Frames(scan))) = (was_missing, &self.open)
            && scan.has_frame()
        {
            self.next_seq = Some(scan.frame().seq + 1);
            self.found = Some(Found::Frame);
        }
    }

    pub(super) fn is_older_than(&self, from: Time) -> bool {
        match (&self.found, &self.open) {
            (Some(Found::Frame), Some(Open::Frames(scan))) => scan.frame().time < from,
            (Some(Found::Frame), Some(Open::Lines(_))) => self.line_time.is_some_and(|time| time < from),
            _ => false,
        }
    }

    /// Begins behind everything that is there.
    pub(super) fn skip_to_end(&mut self) -> Result<(), ReadError> {
        let Some(name) = self.later()?.pop() else { return Ok(()) };
        self.open_segment(name)?;
        self.leave();
        while self.open.is_some() && self.advance(AtEnd::Follow)? {
            self.leave();
        }
        Ok(())
    }

    /// Begins with the first segment that may hold records of the time or later.
    pub(super) fn skip_segments_before(&mut self, time: Time) -> Result<(), ReadError> {
        let names = self.later()?;
        for (at, name) in names.iter().enumerate() {
            let path = self.file(name);
            let is_over = if name.format == Format::Framed {
                let sum = scan::header_and_sum(&path).map_err(ReadError::io(path))?.and_then(|(_, sum)| sum);
                sum.and_then(|sum| sum.times).is_some_and(|(_, last)| last < time)
            } else {
                self.begins_before(names.get(at + 1), time)?
            };
            if !is_over {
                break;
            }
            self.name = Some(name.clone());
        }
        Ok(())
    }

    /// Lines have no sums, but what stands before a line is not much later than it.
    fn begins_before(&self, name: Option<&SegmentName>, time: Time) -> Result<bool, ReadError> {
        let (Some(clock), Some(name)) = (self.clock, name) else { return Ok(false) };
        let path = self.file(name);
        let first = || {
            let mut lines = LineScan::open(&path, name.packed)?;
            for _ in 0..UNTIMED_MAX {
                if lines.advance(Tail::Final)? != Step::Frame {
                    break;
                }
                if let Some(first) = clock(lines.line()) {
                    return Ok(Some(first));
                }
            }
            Ok(None)
        };
        Ok(first()
            .map_err(ReadError::io(&path))?
            .is_some_and(|first| first.since(Time::MIN) + UNORDERED < time.since(Time::MIN)))
    }

    pub(super) fn seek(&mut self, position: &Position) -> Result<(), ReadError> {
        let Some(place) = position.0.get(&(self.journal.clone(), self.stripe)) else { return Ok(()) };
        let name = self.later()?.into_iter().find(|name| name.number == place.segment);
        let missing = ReadError::NoSegment { stripe: self.stripe, segment: place.segment };
        self.offset = Some(place.offset);
        self.open_segment(name.ok_or(missing)?).map(drop)
    }

    /// Where the next entry begins; `shown`: the one after it.
    pub(super) fn place(&self, shown: bool) -> Option<((String, u16), Place)> {
        let segment = self.name.as_ref()?.number;
        let found = shown && self.found == Some(Found::Frame);
        let offset = match &self.open {
            Some(Open::Frames(scan)) => scan.offset() + if found { scan.raw().len() as u64 } else { 0 },
            Some(Open::Lines(lines)) => lines.offset(found),
            _ => u64::MAX,
        };
        Some(((self.journal.clone(), self.stripe), Place { segment, offset }))
    }

    /// Of the one file that is read: bytes that were, and all.
    pub(super) fn progress(&self) -> (u64, u64) {
        let Some((name, path)) = &self.only else { return (0, 0) };
        let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
        (self.read_of(name.number, bytes), bytes)
    }

    /// How many of a segment's bytes were read.
    pub(super) fn read_of(&self, number: u64, bytes: u64) -> u64 {
        let Some(name) = &self.name else { return 0 };
        match number.cmp(&name.number) {
            std::cmp::Ordering::Less => bytes,
            std::cmp::Ordering::Greater => 0,
            std::cmp::Ordering::Equal => match &self.open {
                Some(Open::Frames(scan)) if !name.packed => scan.offset().min(bytes),
                Some(Open::Lines(lines)) if !name.packed => lines.offset(false).min(bytes),
                Some(_) => 0,
                None => bytes,
            },
        }
    }
}
