//! The journals that are read, and their entries in one order.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tidegate_journal::{AtEnd, JournalEntry, JournalReader, ReadFrom, is_open};

use super::item::{Item, Loss, What, clock, moment, time};
use tidegate_config as config;

use crate::{entry::Moment, options::Places};

/// A folder or a segment that is read.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// The folder itself, or that of the segment.
    pub(super) folder: PathBuf,
    pub(super) is_segment: bool,
}

/// The places that a command names, or the one of the configuration.
pub(super) fn places(places: &Places) -> Result<Vec<Place>> {
    let mut found = Vec::new();
    for path in paths(places)? {
        add(&mut found, Place::find(path)?);
    }
    Ok(found)
}

/// [`places`] of which some may be there later only: those that are there, and the paths of the others.
pub(super) fn places_to_come(places: &Places) -> Result<(Vec<Place>, Vec<PathBuf>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for path in paths(places)? {
        match Place::look(&path)? {
            Some(place) => add(&mut found, place),
            None => missing.push(path),
        }
    }
    Ok((found, missing))
}

fn paths(places: &Places) -> Result<Vec<PathBuf>> {
    Ok(if places.paths.is_empty() { vec![configured(places)?] } else { places.paths.clone() })
}

/// Named twice, it is read once.
fn add(found: &mut Vec<Place>, place: Place) {
    if !found.iter().any(|known| known.is(&place)) {
        found.push(place);
    }
}

fn configured(places: &Places) -> Result<PathBuf> {
    let file = places.config.as_deref().unwrap_or(Path::new("tidegate.toml"));
    if places.config.is_none() && !file.exists() {
        bail!(
            "which journal? Name its folder, or the gateway's configuration with --config; there is no ./tidegate.toml"
        );
    }
    let folder = config::toml::load(file).map_err(|errors| anyhow::anyhow!("{errors}"))?.journal.folder;
    if folder.as_os_str().is_empty() {
        bail!("{} has no journal: [journal] names no folder there; name one, or give its path here", file.display());
    }
    Ok(folder)
}

impl Place {
    /// [`find`](Self::find), or nothing if nothing is there.
    pub(super) fn look(path: &Path) -> Result<Option<Self>> {
        let is_missing = std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_missing { Ok(None) } else { Self::find(path.to_path_buf()).map(Some) }
    }

    fn find(path: PathBuf) -> Result<Self> {
        let metadata = std::fs::metadata(&path).with_context(|| {
            format!("cannot read {}; name a folder that [journal] names, or one of its files", path.display())
        })?;
        let is_segment = !metadata.is_dir();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = if is_segment { parent.to_path_buf() } else { path.clone() };
        Ok(Self { path, folder, is_segment })
    }

    fn is(&self, other: &Self) -> bool {
        let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        whole(&self.path) == whole(&other.path)
    }

    /// Its segments, oldest first in each stripe.
    pub(super) fn segments(&self) -> Result<Vec<tidegate_journal::Segment>> {
        let mut segments = tidegate_journal::segments(&self.folder)?;
        if self.is_segment {
            let file = self.path.file_name();
            segments.retain(|segment| segment.path.file_name() == file);
        }
        Ok(segments)
    }

    /// Whether a gateway has it open now.
    pub(super) fn is_live(&self) -> bool {
        // Who may not look cannot own it either; what cannot be read will be told by the reader.
        is_open(&self.folder).unwrap_or(false)
    }

    /// A reader of it. At the end of one that is being written, half a record is no damage.
    pub(super) fn reader(&self, start: Option<Moment>, at_end: AtEnd) -> Result<JournalReader> {
        let at_end = if self.is_live() { AtEnd::Follow } else { at_end };
        if self.is_segment {
            return Ok(JournalReader::open_segment(&self.path, at_end, Some(clock))?);
        }
        let start = start.map_or(ReadFrom::Beginning, |start| ReadFrom::Timestamp(time(start)));
        Ok(JournalReader::open_with_line_timestamp(&self.folder, &start, at_end, clock)?)
    }
}

struct Source {
    reader: JournalReader,
    /// Taken from the reader, and not given yet.
    next: Option<Item>,
    latest: Moment,
}

/// Several journals, merged by time.
pub(super) struct Sources(Vec<Source>);

impl Sources {
    pub(super) fn open(places: &[Place], start: Option<Moment>, at_end: AtEnd) -> Result<Self> {
        let mut sources = Self(Vec::new());
        places.iter().try_for_each(|place| sources.add(place, start, at_end))?;
        Ok(sources)
    }

    /// One more.
    pub(super) fn add(&mut self, place: &Place, start: Option<Moment>, at_end: AtEnd) -> Result<()> {
        let reader = place.reader(start, at_end)?;
        self.0.push(Source { reader, next: None, latest: Moment::default() });
        Ok(())
    }

    /// The next entry of all; none at the end, or for now.
    pub(super) fn next(&mut self) -> Result<Option<Item>> {
        for source in &mut self.0 {
            source.fetch()?;
        }
        let waiting = self.0.iter_mut().filter(|source| source.next.is_some());
        let earliest = waiting.min_by_key(|source| source.next.as_ref().map(|item| item.time));
        Ok(earliest.and_then(|source| source.next.take()))
    }

    /// Bytes read, and bytes in all.
    pub(super) fn progress(&self) -> (u64, u64) {
        let all = self.0.iter().map(|source| source.reader.progress().unwrap_or_default());
        all.fold((0, 0), |(read, bytes), (more, of)| (read + more, bytes + of))
    }
}

impl Source {
    fn fetch(&mut self) -> Result<()> {
        if self.next.is_some() {
            return Ok(());
        }
        let Some(entry) = self.reader.read()? else { return Ok(()) };
        let (time, what) = match entry {
            JournalEntry::Record(record) => {
                let what = What::of_payload(record.payload);
                let framed = Some(moment(record.time)).filter(|time| *time > Moment::default());
                (framed.or_else(|| what.time()), what)
            }
            JournalEntry::Gap(gap) => (Some(moment(gap.last)), What::Loss(Loss::from_gap(&gap))),
            JournalEntry::Missing { stripe, records } => (None, What::Missing { stripe, records }),
            JournalEntry::Damage(damage) => (None, What::Damage(damage)),
            _ => return self.fetch(),
        };
        let time = time.unwrap_or(self.latest);
        self.latest = time;
        self.next = Some(Item { time, what });
        Ok(())
    }
}
