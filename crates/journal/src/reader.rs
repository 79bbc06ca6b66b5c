//! Reads a journal: all stripes merged, from a position or a time, to the end or following.

mod entry;
mod position;
mod stripe_reader;

use std::path::{Path, PathBuf};

use crate::{
    error::ReadError,
    segment::{self, SegmentName},
    timestamp::Timestamp,
};
use stripe_reader::{FolderIdentity, NextEntry, StripeReader};

pub use entry::{AtEnd, JournalEntry, JournalRecord, LineTimestamp, ReadFrom};
pub use position::{ParsePositionError, ReaderPosition};

/// Reads a journal, whether it is being written or not. Needs only read access to the files.
///
/// Stripes are merged by the time of their records; each stripe stays in its own order even if the clock went back.
///
/// ```
/// use tidegate_journal::{AtEnd, JournalEntry, JournalReader, ReadFrom};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let mut reader = JournalReader::open(folder.path(), &ReadFrom::Beginning, AtEnd::Stop)?;
/// while let Some(entry) = reader.read()? {
///     if let JournalEntry::Record(record) = entry {
///         println!("{}", String::from_utf8_lossy(record.payload));
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JournalReader {
    folder: PathBuf,
    at_end: AtEnd,
    line_timestamp: Option<LineTimestamp>,
    from: Timestamp,
    /// The reader reads one file, not a folder.
    is_single_file: bool,
    stripes: Vec<StripeReader>,
    /// The stripe whose entry was returned last and is consumed by the next `read`.
    shown: Option<usize>,
}

impl JournalReader {
    /// Opens the journal of a folder.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the folder or a segment cannot be read, or the segment of a position does not exist.
    pub fn open(folder: impl AsRef<Path>, start: &ReadFrom, at_end: AtEnd) -> Result<Self, ReadError> {
        Self::open_at(folder.as_ref(), start, at_end, None)
    }

    /// Like [`open`](Self::open), with a function that reads the timestamp of a line: JSON and text records are merged by
    /// time, and [`ReadFrom::Timestamp`] applies to them as to framed records.
    ///
    /// # Errors
    /// Returns [`ReadError`] as [`open`](Self::open) does.
    pub fn open_with_line_timestamp(
        folder: impl AsRef<Path>,
        start: &ReadFrom,
        at_end: AtEnd,
        line_timestamp: LineTimestamp,
    ) -> Result<Self, ReadError> {
        Self::open_at(folder.as_ref(), start, at_end, Some(line_timestamp))
    }

    /// Opens one segment in any folder. A name that ends with `.damaged` is the backup of a [`repair`](crate::repair).
    ///
    /// # Errors
    /// Returns [`ReadError::NotASegment`] if the name is not a segment name, and another [`ReadError`] if the file cannot
    /// be read.
    pub fn open_segment(
        path: impl AsRef<Path>,
        at_end: AtEnd,
        line_timestamp: Option<LineTimestamp>,
    ) -> Result<Self, ReadError> {
        let path = path.as_ref().to_path_buf();
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let name = SegmentName::parse(file.split_once(".damaged").map_or(file, |(name, _)| name));
        let Some(name) = name else { return Err(ReadError::NotASegment(path)) };
        std::fs::metadata(&path).map_err(ReadError::io(&path))?;
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let stripes = vec![StripeReader::single(name, path, line_timestamp)];
        Ok(Self { folder, at_end, line_timestamp, from: Timestamp::MIN, is_single_file: true, stripes, shown: None })
    }

    fn open_at(
        folder: &Path,
        start: &ReadFrom,
        at_end: AtEnd,
        line_timestamp: Option<LineTimestamp>,
    ) -> Result<Self, ReadError> {
        let folder = folder.to_path_buf();
        let from = if let ReadFrom::Timestamp(time) = start { *time } else { Timestamp::MIN };
        let mut reader =
            Self { folder, at_end, line_timestamp, from, is_single_file: false, stripes: Vec::new(), shown: None };
        reader.find_stripes()?;
        for stripe in &mut reader.stripes {
            match start {
                ReadFrom::Beginning => {}
                ReadFrom::End => stripe.skip_to_end()?,
                ReadFrom::Timestamp(time) => stripe.skip_segments_before(*time)?,
                ReadFrom::Position(position) => stripe.seek(position)?,
            }
        }
        Ok(reader)
    }

    /// Returns the next entry, or `None` at the end. A following reader may be called again later.
    ///
    /// # Errors
    /// Returns [`ReadError`] if a file cannot be read. The reader may be called again.
    pub fn read(&mut self) -> Result<Option<JournalEntry<'_>>, ReadError> {
        if let Some(shown) = self.shown.take() {
            self.stripes[shown].consume();
        }
        loop {
            let Some(at) = self.earliest()? else { return Ok(None) };
            if self.stripes[at].is_older_than(self.from) {
                self.stripes[at].consume();
                continue;
            }
            self.shown = Some(at);
            return Ok(Some(self.stripes[at].entry()));
        }
    }

    /// The stripe with the earliest next entry. A reader that follows looks at the folder only when no open segment has an
    /// entry: listing a folder costs more than many records. The look comes before the next segment is opened, as the folder may
    /// have been replaced.
    fn earliest(&mut self) -> Result<Option<usize>, ReadError> {
        if self.at_end == AtEnd::Follow {
            let mut is_waiting = true;
            for stripe in &mut self.stripes {
                is_waiting &= !stripe.read_open_segment()?;
            }
            if is_waiting {
                self.find_stripes()?;
            }
        }
        let mut earliest: Option<(Timestamp, usize)> = None;
        for (at, stripe) in self.stripes.iter_mut().enumerate() {
            if let NextEntry::Ready(time) = stripe.next_entry(self.at_end)?
                && earliest.is_none_or(|(first, _)| time < first)
            {
                earliest = Some((time, at));
            }
        }
        Ok(earliest.map(|(_, at)| at))
    }

    /// Finds new stripes.
    fn find_stripes(&mut self) -> Result<(), ReadError> {
        if self.is_single_file {
            return Ok(());
        }
        let names = match segment::list(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.at_end == AtEnd::Follow => Vec::new(),
            result => result.map_err(ReadError::io(&self.folder))?,
        };
        for SegmentName { journal, stripe, .. } in &names {
            if self.stripes.iter().any(|known| known.is(journal, *stripe)) {
                continue;
            }
            let (journal, line_timestamp) = (journal.clone(), self.line_timestamp);
            self.stripes.push(StripeReader::new(&self.folder, journal, *stripe, line_timestamp, self.at_end));
        }
        if let Some(folder) = FolderIdentity::at(&self.folder) {
            self.stripes.iter_mut().for_each(|stripe| stripe.on_folder(folder, &names));
        }
        Ok(())
    }

    /// The position after the last entry, in every stripe: a reader opened there continues where this one is.
    #[must_use]
    pub fn position(&self) -> ReaderPosition {
        let stripes = self.stripes.iter().enumerate();
        ReaderPosition(stripes.filter_map(|(at, stripe)| stripe.position(self.shown == Some(at))).collect())
    }

    /// Bytes read and bytes on the disk, from the first segment on, for progress displays. A compressed segment counts
    /// with its compressed size once it is read to the end.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the folder cannot be read.
    pub fn progress(&self) -> Result<(u64, u64), ReadError> {
        if let (true, [stripe]) = (self.is_single_file, &self.stripes[..]) {
            return Ok(stripe.progress());
        }
        let names = segment::list(&self.folder).map_err(ReadError::io(&self.folder))?;
        let (mut read, mut all) = (0, 0);
        for name in names {
            let bytes = std::fs::metadata(name.path(&self.folder)).map_or(0, |metadata| metadata.len());
            all += bytes;
            let stripe = self.stripes.iter().find(|stripe| stripe.is(&name.journal, name.stripe));
            read += stripe.map_or(0, |stripe| stripe.read_of(name.number, bytes));
        }
        Ok((read, all))
    }
}
