//! Readers of query logs, merged by time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tidegate_journal::{AtEnd, JournalEntry, JournalReader, ReadFrom, is_open};

use super::log_entry::{EntryContent, LogEntry, Loss, line_clock, time, timestamp};
use tidegate_config as config;

use crate::{options::SourceArgs, record::RecordTimestamp, writer::successor_folders};

/// A folder or a segment to read.
#[derive(Clone, Debug)]
pub(super) struct LogLocation {
    pub(super) path: PathBuf,
    /// The folder itself, or the folder of the segment.
    pub(super) folder: PathBuf,
    pub(super) is_segment: bool,
}

/// The locations that a command names, or the folder of the configuration.
pub(super) fn locations(args: &SourceArgs) -> Result<Vec<LogLocation>> {
    let mut found = Vec::new();
    for path in paths(args)? {
        add(&mut found, LogLocation::find(path)?);
    }
    Ok(found)
}

/// Locations for a command that follows: those that exist, and the paths of the others.
pub(super) fn locations_to_follow(args: &SourceArgs) -> Result<(Vec<LogLocation>, Vec<PathBuf>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for path in paths(args)? {
        match LogLocation::find_if_present(&path)? {
            Some(location) => add(&mut found, location),
            None => missing.push(path),
        }
    }
    Ok((found, missing))
}

fn paths(args: &SourceArgs) -> Result<Vec<PathBuf>> {
    Ok(if args.paths.is_empty() { vec![configured_folder(args)?] } else { args.paths.clone() })
}

/// Adds a location unless it was named before, and the logs of processes that took over while another one had the folder open.
fn add(found: &mut Vec<LogLocation>, location: LogLocation) {
    let below = successor_folders(&location.folder).filter(|folder| !location.is_segment && folder.is_dir());
    let successors: Vec<_> = below.map(|path| LogLocation { folder: path.clone(), path, is_segment: false }).collect();
    for location in std::iter::once(location).chain(successors) {
        if !found.iter().any(|known| known.is_same(&location)) {
            found.push(location);
        }
    }
}

fn configured_folder(args: &SourceArgs) -> Result<PathBuf> {
    let file = args.config.as_deref().unwrap_or(Path::new("tidegate.toml"));
    if args.config.is_none() && !file.exists() {
        bail!("there is no ./tidegate.toml: name the folder of a query log, or a configuration with --config");
    }
    let folder = config::toml::load(file).map_err(|errors| anyhow::anyhow!("{errors}"))?.journal.folder;
    if folder.as_os_str().is_empty() {
        bail!("[journal] in {} has no folder: set it, or name the folder of a query log", file.display());
    }
    Ok(folder)
}

impl LogLocation {
    /// [`find`](Self::find), or `None` if the path does not exist.
    pub(super) fn find_if_present(path: &Path) -> Result<Option<Self>> {
        let is_missing = std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_missing { Ok(None) } else { Self::find(path.to_path_buf()).map(Some) }
    }

    fn find(path: PathBuf) -> Result<Self> {
        let metadata = std::fs::metadata(&path).with_context(|| {
            format!("cannot read {}; name the folder of a query log, or one of its files", path.display())
        })?;
        let is_segment = !metadata.is_dir();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = if is_segment { parent.to_path_buf() } else { path.clone() };
        Ok(Self { path, folder, is_segment })
    }

    fn is_same(&self, other: &Self) -> bool {
        let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        canonical(&self.path) == canonical(&other.path)
    }

    /// Segments, oldest first in each stripe.
    pub(super) fn segments(&self) -> Result<Vec<tidegate_journal::Segment>> {
        let mut segments = tidegate_journal::segments(&self.folder)?;
        if self.is_segment {
            let file = self.path.file_name();
            segments.retain(|segment| segment.path.file_name() == file);
        }
        Ok(segments)
    }

    /// Whether a gateway has the folder open.
    pub(super) fn is_live(&self) -> bool {
        // A process without permission cannot own the folder either. The reader reports other errors.
        is_open(&self.folder).unwrap_or(false)
    }

    /// Opens a reader. At the end of a live log, a partial record is not damage.
    pub(super) fn reader(&self, start: Option<RecordTimestamp>, at_end: AtEnd) -> Result<JournalReader> {
        let at_end = if self.is_live() { AtEnd::Follow } else { at_end };
        if self.is_segment {
            return Ok(JournalReader::open_segment(&self.path, at_end, Some(line_clock))?);
        }
        let start = start.map_or(ReadFrom::Beginning, |start| ReadFrom::Timestamp(time(start)));
        Ok(JournalReader::open_with_line_timestamp(&self.folder, &start, at_end, line_clock)?)
    }
}

struct SourceReader {
    reader: JournalReader,
    /// Read, but not returned yet.
    next: Option<LogEntry>,
    latest: RecordTimestamp,
}

/// Readers of several logs, merged by time.
pub(super) struct MergedSources(Vec<SourceReader>);

impl MergedSources {
    pub(super) fn open(locations: &[LogLocation], start: Option<RecordTimestamp>, at_end: AtEnd) -> Result<Self> {
        let mut sources = Self(Vec::new());
        locations.iter().try_for_each(|location| sources.add(location, start, at_end))?;
        Ok(sources)
    }

    /// Adds a log.
    pub(super) fn add(&mut self, location: &LogLocation, start: Option<RecordTimestamp>, at_end: AtEnd) -> Result<()> {
        let reader = location.reader(start, at_end)?;
        self.0.push(SourceReader { reader, next: None, latest: RecordTimestamp::default() });
        Ok(())
    }

    /// The next entry of all logs; `None` at the end, or if no log has an entry now.
    pub(super) fn next(&mut self) -> Result<Option<LogEntry>> {
        for source in &mut self.0 {
            source.fetch()?;
        }
        let waiting = self.0.iter_mut().filter(|source| source.next.is_some());
        let earliest = waiting.min_by_key(|source| source.next.as_ref().map(|entry| entry.time));
        Ok(earliest.and_then(|source| source.next.take()))
    }

    /// Bytes read and total bytes.
    pub(super) fn progress(&self) -> (u64, u64) {
        let all = self.0.iter().map(|source| source.reader.progress().unwrap_or_default());
        all.fold((0, 0), |(read, bytes), (more, of)| (read + more, bytes + of))
    }
}

impl SourceReader {
    fn fetch(&mut self) -> Result<()> {
        if self.next.is_some() {
            return Ok(());
        }
        let Some(entry) = self.reader.read()? else { return Ok(()) };
        let (time, content) = match entry {
            JournalEntry::Record(record) => {
                let content = EntryContent::from_payload(record.payload);
                let frame_time = Some(timestamp(record.time)).filter(|time| *time > RecordTimestamp::default());
                (frame_time.or_else(|| content.time()), content)
            }
            JournalEntry::Gap(gap) => (Some(timestamp(gap.last)), EntryContent::Loss(Loss::from_gap(&gap))),
            JournalEntry::Missing { stripe, records } => (None, EntryContent::Missing { stripe, records }),
            JournalEntry::Damage(damage) => (None, EntryContent::Damage(damage)),
            _ => return self.fetch(),
        };
        let time = time.unwrap_or(self.latest);
        self.latest = time;
        self.next = Some(LogEntry { time, content });
        Ok(())
    }
}
