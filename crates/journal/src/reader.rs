//! Reading what was written: all stripes merged, from a place or a time, to the end or on and on.

mod stream;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    error::ReadError,
    gap::Gap,
    note::Class,
    recovery::Damage,
    segment::{self, SegmentName},
    time::Time,
};
use stream::{Folder, Head, Stream};

/// What a reader finds next.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Entry<'a> {
    /// A record.
    Record(Record<'a>),
    /// Records were lost to overload here, and were counted.
    Gap(Gap),
    /// Numbers are missing: records displaced by newer ones (a gap follows that counts them), or lost with damage.
    Missing {
        /// Of which stripe.
        stripe: u16,
        /// How many.
        records: u64,
    },
    /// Bytes that are no records.
    Damage(Damage),
}

/// A record as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Its stripe.
    pub stripe: u16,
    /// Its number within the stripe; in JSON and text, of the line within the segment.
    pub seq: u64,
    /// When; in JSON and text, what the reader's [`Clock`] says, or [`Time::MIN`].
    pub time: Time,
    /// Its class; in JSON and text, the first.
    pub class: Class,
    /// The bytes that were handed in.
    pub payload: &'a [u8],
}

/// Where reading begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// With the oldest record.
    #[default]
    Beginning,
    /// With what is written from now on.
    End,
    /// With the first record that is not older. Segments that say that all of theirs are older are not read.
    Time(Time),
    /// Where [`Reader::position`] was.
    Position(Position),
}

/// What happens at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtEnd {
    /// Reading is over. What looks like half a record is reported as damage.
    #[default]
    Stop,
    /// More may come: half a record is a record that is being written. So may a folder that is gone, or another in its
    /// place.
    Follow,
}

/// Reads the time of a record in the JSON and text formats, which stands nowhere but in its line.
pub type Clock = fn(&[u8]) -> Option<Time>;

/// A place in all stripes of a journal: as text it is `name/stripe:segment+offset`, with commas between stripes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Position(BTreeMap<(String, u16), Place>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    segment: u64,
    offset: u64,
}

/// Reads a journal, open or not, while it is written or not; needs nothing but leave to read the files.
///
/// Stripes are merged by the time of their records, each stripe in its own order whatever the clock did.
///
/// ```
/// use tidegate_journal::{AtEnd, Entry, Reader, Start};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let mut reader = Reader::open(folder.path(), &Start::Beginning, AtEnd::Stop)?;
/// while let Some(entry) = reader.read()? {
///     if let Entry::Record(record) = entry {
///         println!("{}", String::from_utf8_lossy(record.payload));
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    at_end: AtEnd,
    clock: Option<Clock>,
    from: Time,
    /// Of one file: there are no streams but this.
    only: bool,
    streams: Vec<Stream>,
    /// Whose entry was handed out last, and has to be left before the next.
    shown: Option<usize>,
}

impl Reader {
    /// A reader of a folder.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn open(folder: impl AsRef<Path>, start: &Start, at_end: AtEnd) -> Result<Self, ReadError> {
        Self::open_at(folder.as_ref(), start, at_end, None)
    }

    /// [`open`](Self::open) for records whose lines say when they are of: those in JSON and text are merged by time, and
    /// [`Start::Time`] is heeded, as with frames.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn open_with_clock(
        folder: impl AsRef<Path>,
        start: &Start,
        at_end: AtEnd,
        clock: Clock,
    ) -> Result<Self, ReadError> {
        Self::open_at(folder.as_ref(), start, at_end, Some(clock))
    }

    /// A reader of one segment, wherever it lies. A name with `.damaged` at its end is one that
    /// [`repair`](crate::repair) has kept.
    ///
    /// # Errors
    /// [`ReadError::NotASegment`] if it is not called as a segment is; [`ReadError`] otherwise.
    pub fn open_segment(path: impl AsRef<Path>, at_end: AtEnd, clock: Option<Clock>) -> Result<Self, ReadError> {
        let path = path.as_ref().to_path_buf();
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let name = SegmentName::parse(file.split_once(".damaged").map_or(file, |(name, _)| name));
        let Some(name) = name else { return Err(ReadError::NotASegment(path)) };
        std::fs::metadata(&path).map_err(ReadError::io(&path))?;
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let streams = vec![Stream::of_file(name, path, clock)];
        Ok(Self { folder, at_end, clock, from: Time::MIN, only: true, streams, shown: None })
    }

    fn open_at(folder: &Path, start: &Start, at_end: AtEnd, clock: Option<Clock>) -> Result<Self, ReadError> {
        let folder = folder.to_path_buf();
        let from = if let Start::Time(time) = start { *time } else { Time::MIN };
        let mut reader = Self { folder, at_end, clock, from, only: false, streams: Vec::new(), shown: None };
        reader.find_streams()?;
        for stream in &mut reader.streams {
            match start {
                Start::Beginning => {}
                Start::End => stream.skip_to_end()?,
                Start::Time(time) => stream.skip_segments_before(*time)?,
                Start::Position(position) => stream.seek(position)?,
            }
        }
        Ok(reader)
    }

    /// The next entry, or `None` at the end; a reader that follows may be asked again after a while.
    ///
    /// # Errors
    /// [`ReadError`]. The reader may be asked again.
    pub fn read(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        if let Some(shown) = self.shown.take() {
            self.streams[shown].leave();
        }
        loop {
            let Some(at) = self.earliest()? else { return Ok(None) };
            if self.streams[at].is_older_than(self.from) {
                self.streams[at].leave();
                continue;
            }
            self.shown = Some(at);
            return Ok(Some(self.streams[at].show()));
        }
    }

    /// Which stream's next entry is the earliest.
    fn earliest(&mut self) -> Result<Option<usize>, ReadError> {
        if self.at_end == AtEnd::Follow && self.streams.iter().all(Stream::is_waiting) {
            self.find_streams()?;
        }
        let mut earliest: Option<(Time, usize)> = None;
        for (at, stream) in self.streams.iter_mut().enumerate() {
            if let Head::Ready(time) = stream.head(self.at_end)?
                && earliest.is_none_or(|(first, _)| time < first)
            {
                earliest = Some((time, at));
            }
        }
        Ok(earliest.map(|(_, at)| at))
    }

    /// Stripes that exist by now.
    fn find_streams(&mut self) -> Result<(), ReadError> {
        if self.only {
            return Ok(());
        }
        let names = match segment::list(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.at_end == AtEnd::Follow => Vec::new(),
            result => result.map_err(ReadError::io(&self.folder))?,
        };
        for SegmentName { journal, stripe, .. } in &names {
            if !self.streams.iter().any(|stream| stream.is(journal, *stripe)) {
                self.streams.push(Stream::new(&self.folder, journal.clone(), *stripe, self.clock, self.at_end));
            }
        }
        if let Some(folder) = Folder::at(&self.folder) {
            self.streams.iter_mut().for_each(|stream| stream.look_at_folder(folder, &names));
        }
        Ok(())
    }

    /// Where the entry after the last one begins, in every stripe: a reader that starts there goes on where this one
    /// stands.
    #[must_use]
    pub fn position(&self) -> Position {
        let places = self.streams.iter().enumerate();
        Position(places.filter_map(|(at, stream)| stream.place(self.shown == Some(at))).collect())
    }

    /// Bytes on disk from the first segment on, and how many of them were read: for progress. Packed segments count as
    /// they are on disk, once they are done.
    ///
    /// # Errors
    /// [`ReadError`] if the folder cannot be read.
    pub fn progress(&self) -> Result<(u64, u64), ReadError> {
        if let (true, [stream]) = (self.only, &self.streams[..]) {
            return Ok(stream.progress());
        }
        let names = segment::list(&self.folder).map_err(ReadError::io(&self.folder))?;
        let (mut read, mut all) = (0, 0);
        for name in names {
            let bytes = std::fs::metadata(name.path(&self.folder)).map_or(0, |metadata| metadata.len());
            all += bytes;
            let stream = self.streams.iter().find(|stream| stream.is(&name.journal, name.stripe));
            read += stream.map_or(0, |stream| stream.read_of(name.number, bytes));
        }
        Ok((read, all))
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, ((journal, stripe), Place { segment, offset })) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{journal}/{stripe}:{segment}+{offset}")?;
        }
        Ok(())
    }
}

/// A text that is no position.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no position; it looks like `journal/0:12+4096`, with commas between stripes")]
pub struct NoPosition(String);

impl std::str::FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Self, NoPosition> {
        let place = |part: &str| {
            let (stream, place) = part.split_once(':')?;
            let ((journal, stripe), (segment, offset)) = (stream.split_once('/')?, place.split_once('+')?);
            let place = Place { segment: segment.parse().ok()?, offset: offset.parse().ok()? };
            Some(((journal.to_owned(), stripe.parse().ok()?), place))
        };
        let parts: Option<_> = text.split(',').filter(|part| !part.is_empty()).map(place).collect();
        parts.map(Self).ok_or_else(|| NoPosition(text.to_owned()))
    }
}
