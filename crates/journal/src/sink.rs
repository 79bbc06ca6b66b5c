//! The open segment of a stripe: batches go in, and come back when they are as safe as they ask.
//!
//! A batch is kept until then. If a write or a sync fails, the segment is given up for good (a sync that is tried again
//! reports success for pages that the system has thrown away) and the whole batch goes to a fresh one; readers know
//! records that they have seen by their numbers. What earlier batches wrote to it and no sync has reached is in doubt: it
//! will never be called durable. A disk that is full when it is written to is no such failure: what was begun is cut off,
//! and the batch is tried again on the same segment.

use std::{
    collections::VecDeque,
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use crate::{
    chunk::{self, Chunk},
    config::{Config, Format, Space},
    folder::{Ownership, Standing},
    frame::{Framed, Kind},
    lines,
    note::{Ack, Class},
    segment::{self, HEADER_BYTES, Header, SEAL_BYTES, SegmentName, Sum},
    staging::Batch,
    storage::{SegmentFile, Storage},
    time::Time,
};

/// How often the name of the open segment is looked up, to notice that somebody renamed or deleted it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A segment that was ended and may still have to be synced.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) file: Box<dyn SegmentFile>,
    pub(crate) path: PathBuf,
    /// Those that no sync has reached.
    pub(crate) seqs: Range<u64>,
    /// The folder knows its name for good.
    pub(crate) named: bool,
    /// Where in it the batch at hand began.
    batch: u64,
}

/// Why a batch could not be stored yet.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) error: io::Error,
    pub(crate) path: PathBuf,
    /// The segment was given up.
    pub(crate) poisoned: bool,
}

impl Trouble {
    /// Whether room on the disk would mend it.
    pub(crate) fn is_full(&self) -> bool {
        is_full(&self.error)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[derive(Debug)]
struct Open {
    file: Box<dyn SegmentFile>,
    path: PathBuf,
    salt: u32,
    /// Whole frames, from the beginning of the file.
    bytes: u64,
    records: u64,
    first_seq: u64,
    end_seq: u64,
    /// Numbers below are durable.
    synced_seq: u64,
    times: Option<(Time, Time)>,
    unsynced: bool,
    /// The folder knows its name for good.
    named: bool,
    /// Where in it the batch at hand begins, and with which of its chunks.
    batch: (u64, usize),
    since: Instant,
    looked: Instant,
}

/// A batch on its way.
#[derive(Debug)]
struct Pending {
    batch: Batch,
    next: usize,
}

impl Pending {
    /// The first number of what is to be stored yet.
    fn first_seq(&self) -> u64 {
        let rest = self.batch.chunks.get(self.next..).unwrap_or_default();
        rest.iter().find_map(Chunk::seqs).map_or(self.batch.end, |(first, _)| first)
    }
}

/// What went wrong with a batch.
struct Failure {
    error: io::Error,
    path: PathBuf,
    /// A sync it was: whatever the reason, it cannot be tried again.
    is_sync: bool,
}

pub(crate) struct Sink {
    config: Arc<Config>,
    storage: Arc<dyn Storage>,
    ownership: Weak<Ownership>,
    stripe: u16,
    next_number: u64,
    next_seq: u64,
    open: Option<Open>,
    pending: Option<Pending>,
    /// Files of the ring, the oldest first.
    ring: VecDeque<u64>,
    ended: Vec<Ended>,
    /// Whether any was since the keeper was told, be it synced by now.
    has_ended: bool,
    /// Numbers that a failure has left in doubt: they may be lost if the power fails.
    unsafe_seqs: Vec<Range<u64>>,
    /// This one found that the folder is another.
    anew: bool,
    /// How often it was another by then.
    changes: u64,
    lines: Vec<u8>,
    pub(crate) counts: SinkCounts,
}

/// What was done, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SinkCounts {
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) sync_time_last: Duration,
    pub(crate) poisoned: u64,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("stripe", &self.stripe).field("open", &self.open).finish_non_exhaustive()
    }
}

/// Where a stripe's earlier life ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Beginning {
    pub(crate) next_number: u64,
    pub(crate) next_seq: u64,
    /// Segments that a ring may write over, the oldest first.
    pub(crate) ring: Vec<u64>,
}

impl Sink {
    pub(crate) fn new(
        config: Arc<Config>,
        storage: Arc<dyn Storage>,
        ownership: Weak<Ownership>,
        stripe: u16,
        beginning: &Beginning,
    ) -> Self {
        let Beginning { next_number, next_seq, ref ring } = *beginning;
        let ring = ring.iter().copied().collect();
        Self {
            config,
            storage,
            ownership,
            stripe,
            next_number,
            next_seq,
            open: None,
            pending: None,
            ring,
            ended: Vec::new(),
            has_ended: false,
            unsafe_seqs: Vec::new(),
            anew: false,
            changes: 0,
            lines: Vec::new(),
            counts: SinkCounts::default(),
        }
    }

    pub(crate) fn accept(&mut self, batch: Batch) {
        if let Some(open) = &mut self.open {
            open.batch = (open.bytes, 0);
        }
        self.pending = Some(Pending { batch, next: 0 });
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Stores what is pending as safely as it asks, and gives it back. `None`: there is nothing.
    pub(crate) fn store(&mut self) -> Result<Option<Batch>, Trouble> {
        let Some(mut pending) = self.pending.take() else { return Ok(None) };
        let result = self.store_all(&mut pending);
        match result {
            Ok(()) => {
                self.next_seq = pending.batch.end;
                Ok(Some(pending.batch))
            }
            Err(Failure { error, path, is_sync }) => {
                let cut = self.cut();
                let gives_up = is_sync || !is_full(&error) || cut.is_err();
                let poisoned = gives_up && self.give_up(&mut pending);
                self.pending = Some(pending);
                Err(Trouble { error, path, poisoned })
            }
        }
    }

    /// Writes to the open segment no more; what it has of the batch is stored again. `false`: there is none.
    fn give_up(&mut self, pending: &mut Pending) -> bool {
        let Some(mut open) = self.open.take() else { return false };
        self.counts.poisoned += 1;
        let (at, chunk) = open.batch;
        pending.next = pending.next.min(chunk);
        let again = pending.first_seq();
        if self.config.format != Format::Framed {
            // Readers know frames that they have seen by their numbers, which lines have not.
            let _ = open.file.truncate(at);
        }
        self.doubt(open.synced_seq..open.end_seq.min(again));
        if open.first_seq >= again && matches!(self.config.space, Space::Segments { .. }) {
            // Everything in it is stored again. A disk that goes on failing would fill the folder with such files, and
            // retention would let whole ones go for them.
            let _ = self.storage.remove(&open.path);
        }
        true
    }

    /// These may be lost if the power fails, and nobody can do anything about it.
    fn doubt(&mut self, seqs: Range<u64>) {
        if !seqs.is_empty() {
            self.unsafe_seqs.push(seqs);
        }
    }

    fn store_all(&mut self, pending: &mut Pending) -> Result<(), Failure> {
        while let Some(chunk) = pending.batch.chunks.get_mut(pending.next) {
            self.write(chunk, pending.next).map_err(|error| Failure { error, path: self.path(), is_sync: false })?;
            pending.next += 1;
        }
        if pending.batch.ask == Ack::Durable {
            self.sync_ended(pending)?;
            self.sync().map_err(|error| Failure { error, path: self.path(), is_sync: true })?;
        }
        Ok(())
    }

    /// Segments that were ended in the middle of the batch hold a part of it, which is stored again if they fail.
    fn sync_ended(&mut self, pending: &mut Pending) -> Result<(), Failure> {
        let mut all = std::mem::take(&mut self.ended);
        let Some((at, error)) = all.iter_mut().enumerate().find_map(|(at, ended)| Some((at, ended.file.sync().err()?)))
        else {
            return Ok(());
        };
        pending.next = 0;
        if self.config.format != Format::Framed {
            // As in the open one, when it is given up.
            all.iter_mut().for_each(|ended| self.take_back(ended));
        }
        // The others are synced, or will be with the next batch.
        let failed = all.remove(at);
        self.ended = all;
        self.doubt(failed.seqs.start..failed.seqs.end.min(pending.first_seq()));
        Err(Failure { error, path: failed.path, is_sync: true })
    }

    /// What an ended segment has of the batch at hand is stored elsewhere.
    fn take_back(&self, ended: &mut Ended) {
        let _ = ended.file.truncate(ended.batch);
        if ended.batch == 0 {
            let _ = self.storage.remove(&ended.path);
        }
    }

    /// The file, or, if none could be made, the folder.
    fn path(&self) -> PathBuf {
        self.open.as_ref().map_or_else(|| self.config.folder.clone(), |open| open.path.clone())
    }

    /// Writes a chunk, of which the place in its batch is `index`.
    fn write(&mut self, chunk: &mut Chunk, index: usize) -> io::Result<()> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.end_if_due(chunk.bytes().len())?;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let open = self.begin(chunk.seqs().map_or(self.next_seq, |(first, _)| first))?;
                Open { batch: (open.bytes, index), ..open }
            }
        };
        let lines = &mut self.lines;
        let bytes = match self.config.format {
            Format::Framed => {
                chunk.check(open.salt);
                chunk.bytes()
            }
            format => {
                lines::render(chunk.bytes(), format, &self.config.classes, lines);
                lines
            }
        };
        let result = write_all(open.file.as_mut(), bytes, open.bytes, &mut self.counts.writes);
        if result.is_ok() {
            self.counts.written_bytes += bytes.len() as u64;
            open.note(chunk, bytes.len());
        }
        self.open = Some(open);
        result
    }

    /// Ends the open segment if the next chunk does not belong into it any more.
    fn end_if_due(&mut self, bytes: usize) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let now = Instant::now();
        let is_ring = matches!(self.config.space, Space::Ring { .. });
        let full = open.records > 0 && open.bytes + (bytes + SEAL_BYTES) as u64 > self.config.segment_bytes;
        let old = self.config.segment_age.is_some_and(|age| now.duration_since(open.since) >= age);
        if !is_ring && open.file.size()? != open.bytes {
            // Somebody cut it. What is left is theirs; writing on would leave a hole.
            let unsynced = open.synced_seq..open.end_seq;
            self.open = None;
            self.doubt(unsynced);
            return Ok(());
        }
        let looks = now.duration_since(open.looked) >= LOOK_EVERY;
        if looks {
            open.looked = now;
        }
        if full || old || (looks && !open.file.is_at(&open.path)) {
            self.end();
        }
        Ok(())
    }

    /// Ends the open segment with its sum. A segment without one is complete all the same, so that may fail.
    pub(crate) fn end(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        if self.config.format == Format::Framed {
            let sum = Sum { records: open.records, end_seq: open.end_seq, times: open.times }.to_bytes();
            let mut bytes = Vec::with_capacity(SEAL_BYTES);
            Framed { kind: Kind::Seal, class: Class::default(), time: Time::now(), payload: &sum }.write_checked(
                open.end_seq,
                open.salt,
                &mut bytes,
            );
            if write_all(open.file.as_mut(), &bytes, open.bytes, &mut self.counts.writes).is_err() {
                let _ = open.file.truncate(open.bytes);
            }
        }
        let (seqs, named, batch) = (open.synced_seq..open.end_seq, open.named, open.batch.0);
        self.has_ended = true;
        self.ended.push(Ended { file: open.file, path: open.path, seqs, named, batch });
    }

    fn begin(&mut self, first_seq: u64) -> io::Result<Open> {
        self.renew()?;
        let (number, path, file) = loop {
            let number = self.next_number;
            let path = self.name(number).path(&self.config.folder);
            match self.make(&path) {
                // Not ours to write over; the next number may be.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.next_number += 1,
                result => break (number, path, result?),
            }
        };
        let preallocated = matches!(self.config.space, Space::Ring { .. });
        let (salt, created) = (fastrand::u32(..), Time::now());
        let header = Header { stripe: self.stripe, salt, number, first_seq, created, preallocated };
        self.prepare(file, &path, header).inspect_err(|_| {
            // The next attempt takes the same number. If it cannot be removed, recovery knows an empty segment.
            let _ = self.storage.remove(&path);
        })
    }

    /// Sees that the folder is there, and this journal's. In one that is another, numbers go on behind those that it has.
    fn renew(&mut self) -> io::Result<()> {
        // It is held as long as anybody writes.
        let Some(ownership) = self.ownership.upgrade() else { return Ok(()) };
        let Standing { changes, is_anew } = ownership.renew()?;
        self.anew |= is_anew;
        if std::mem::replace(&mut self.changes, changes) == changes {
            return Ok(());
        }
        self.ring.clear();
        let mut names = segment::list(&self.config.folder)?;
        names.retain(|name| name.journal == self.config.name && name.stripe == self.stripe);
        self.next_number = self.next_number.max(names.last().map_or(0, |newest| newest.number + 1));
        Ok(())
    }

    /// Whether the folder was made or taken anew since the last call.
    pub(crate) fn take_anew(&mut self) -> bool {
        std::mem::take(&mut self.anew)
    }

    fn make(&mut self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        match self.config.space {
            Space::Ring { segments } if self.ring.len() >= segments as usize => self.recycle(path),
            _ => self.storage.create(path),
        }
    }

    fn prepare(&mut self, mut file: Box<dyn SegmentFile>, path: &Path, header: Header) -> io::Result<Open> {
        let is_ring = header.preallocated;
        if is_ring {
            file.allocate(self.config.segment_bytes)?;
        }
        let mut bytes = 0;
        if self.config.format == Format::Framed {
            write_all(file.as_mut(), &header.to_bytes(), 0, &mut self.counts.writes)?;
            bytes = HEADER_BYTES as u64;
        }
        self.next_number = header.number + 1;
        if is_ring {
            self.ring.push_back(header.number);
        }
        let (since, seq) = (Instant::now(), header.first_seq);
        Ok(Open {
            file,
            path: path.to_path_buf(),
            salt: header.salt,
            bytes,
            records: 0,
            first_seq: seq,
            end_seq: seq,
            synced_seq: seq,
            times: None,
            unsynced: true,
            named: false,
            batch: (bytes, 0),
            since,
            looked: since,
        })
    }

    /// The oldest file of the ring becomes the newest one.
    fn recycle(&mut self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let oldest = self.ring.pop_front().unwrap_or_default();
        let from = self.name(oldest).path(&self.config.folder);
        self.storage.recycle(&from, path).or_else(|error| match error.kind() {
            // Somebody removed it.
            io::ErrorKind::NotFound => self.storage.create(path),
            _ => {
                self.ring.push_front(oldest);
                Err(error)
            }
        })
    }

    fn name(&self, number: u64) -> SegmentName {
        let (journal, format) = (self.config.name.clone(), self.config.format);
        SegmentName { journal, stripe: self.stripe, number, packed: false, format }
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(open) = self.open.as_mut().filter(|open| open.unsynced) else { return Ok(()) };
        let begun = Instant::now();
        open.file.sync()?;
        if !open.named {
            self.storage.sync_folder(&self.config.folder)?;
            open.named = true;
        }
        (open.unsynced, open.synced_seq) = (false, open.end_seq);
        self.counts.syncs += 1;
        self.counts.sync_time_last = begun.elapsed();
        Ok(())
    }

    /// Takes a half-written frame off the end.
    fn cut(&mut self) -> io::Result<()> {
        match &mut self.open {
            Some(open) if !matches!(self.config.space, Space::Ring { .. }) => open.file.truncate(open.bytes),
            _ => Ok(()),
        }
    }

    /// The segments that were ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Whether a segment was ended since the last call.
    pub(crate) fn take_has_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }

    /// Numbers whose segment could not be synced.
    pub(crate) fn take_unsafe(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.unsafe_seqs)
    }

    /// What will not be stored any more.
    pub(crate) fn abandon(&mut self) -> Option<Batch> {
        self.pending.take().map(|pending| pending.batch)
    }

    pub(crate) fn open_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Segments of smaller numbers are not written to any more.
    pub(crate) fn first_open(&self) -> u64 {
        self.next_number - u64::from(self.is_open())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

impl Open {
    fn note(&mut self, chunk: &Chunk, bytes: usize) {
        self.bytes += bytes as u64;
        self.records += chunk.records();
        self.end_seq = chunk.seqs().map_or(self.end_seq, |(_, last)| last + 1);
        self.times = chunk::join(self.times, chunk.times());
        self.unsynced = true;
    }
}

/// All of the bytes at a place, however many calls that takes.
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
