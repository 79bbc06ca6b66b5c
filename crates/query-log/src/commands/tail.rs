//! `tail`: prints the last entries, and follows the log.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_journal::{AtEnd, JournalEntry, JournalReader, Timestamp as JournalTimestamp};

use super::{
    filter::{FilterOutcome, RangeEnd, RecordFilter},
    log_entry::{LogEntry, line_clock, timestamp},
    print::{EntryPrinter, Output, OutputFormat},
    source::{self, LogLocation, MergedSources},
    zone::Zone,
};
use tidegate_config::escape::escaped;

use crate::{options, record::RecordTimestamp};

/// Interval at which the log is polled.
const INTERVAL: Duration = Duration::from_millis(100);
/// Factor by which the number of segments grows if those before had too few records.
const SEGMENTS_GROWTH: usize = 4;

pub(super) fn run(tail: &options::TailArgs) -> Result<()> {
    let zone = Zone::new(tail.display.utc);
    let filter = RecordFilter::new(&tail.filter, &zone)?;
    let (locations, missing) = if tail.follow {
        source::locations_to_follow(&tail.source)?
    } else {
        (source::locations(&tail.source)?, Vec::new())
    };
    let mut pending = PendingPaths::new(missing);
    let mut out = Output::new(None)?;
    let mut printer = EntryPrinter::new(OutputFormat::of(&tail.display, tail.long), &tail.display, &zone).to(&out);
    printer.head(&mut out)?;
    let (mut sources, last) = last(&locations, &filter, tail)?;
    for entry in &last {
        printer.print(entry, &mut out)?;
    }
    out.flush()?;
    if tail.follow {
        follow(&mut sources, &mut pending, &filter, &mut printer, &mut out)?;
    }
    out.finish()
}

/// Prints new entries until an error, such as a closed pipe, or until the time of `--until` has passed.
fn follow(
    sources: &mut MergedSources,
    pending: &mut PendingPaths,
    filter: &RecordFilter,
    printer: &mut EntryPrinter,
    out: &mut Output,
) -> Result<()> {
    let mut end = RangeEnd::default();
    loop {
        pending.join(sources, filter)?;
        let mut some = false;
        while let Some(entry) = sources.next()? {
            let outcome = filter.evaluate(&entry);
            if end.is_reached(outcome) {
                return Ok(());
            }
            if outcome == FilterOutcome::Match {
                printer.print(&entry, out)?;
                some = true;
            }
        }
        if some {
            out.flush()?;
        }
        if filter.is_past_end(timestamp(JournalTimestamp::now())) || wait_for_more() {
            return Ok(());
        }
    }
}

/// Paths that do not exist yet. `tail -f` waits for them as `tail -F` does, so that it can be started before the gateway.
struct PendingPaths(Vec<PathBuf>);

impl PendingPaths {
    fn new(missing: Vec<PathBuf>) -> Self {
        for path in &missing {
            print_status(&format!("{} does not exist yet; waiting for it", path.display()));
        }
        Self(missing)
    }

    /// Opens the paths that exist now, from their beginning.
    fn join(&mut self, sources: &mut MergedSources, filter: &RecordFilter) -> Result<()> {
        for path in std::mem::take(&mut self.0) {
            let Some(location) = LogLocation::find_if_present(&path)? else {
                self.0.push(path);
                continue;
            };
            print_status(&format!("{} exists now", path.display()));
            sources.add(&location, filter.since, AtEnd::Follow)?;
        }
        Ok(())
    }
}

/// Prints a message to standard error.
fn print_status(text: &str) {
    // The message is dropped without a standard error.
    let _ = writeln!(std::io::stderr(), "tidegate: {}", escaped(text));
}

/// Waits until the log is polled again. Returns `true` if the reader of a pipe has closed it.
fn wait_for_more() -> bool {
    let stdout = std::io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(INTERVAL.subsec_nanos()) };
    match poll(&mut watched, Some(&timeout)) {
        Ok(_) => watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP),
        Err(_) => {
            // A signal arrived, or the output cannot be polled.
            thread::sleep(INTERVAL);
            false
        }
    }
}

/// The last matching entries, and the sources positioned after them. Reads the newest segments first, and older ones only
/// if those have too few records.
fn last(
    locations: &[LogLocation],
    filter: &RecordFilter,
    tail: &options::TailArgs,
) -> Result<(MergedSources, VecDeque<LogEntry>)> {
    let at_end = if tail.follow { AtEnd::Follow } else { AtEnd::Stop };
    let starts = SegmentStarts::of(locations)?;
    let mut segments = locations.len();
    loop {
        let start = starts.before(segments)?;
        let is_all = start.is_none() || filter.since >= start;
        let mut sources = MergedSources::open(locations, start.max(filter.since), at_end)?;
        let last = take_last(&mut sources, filter, tail.lines)?;
        let records = last.iter().filter(|entry| entry.content.is_record()).count() as u64;
        if is_all || records >= tail.lines {
            return Ok((sources, last));
        }
        segments *= SEGMENTS_GROWTH;
    }
}

/// The last `lines` records, with the gaps between and after them.
fn take_last(sources: &mut MergedSources, filter: &RecordFilter, lines: u64) -> Result<VecDeque<LogEntry>> {
    let (mut last, mut records) = (VecDeque::new(), 0);
    let mut end = RangeEnd::default();
    while let Some(entry) = sources.next()? {
        let outcome = filter.evaluate(&entry);
        if end.is_reached(outcome) {
            break;
        }
        if outcome != FilterOutcome::Match {
            continue;
        }
        records += u64::from(entry.content.is_record());
        last.push_back(entry);
        while records > lines
            || (records == lines && last.front().is_some_and(|first: &LogEntry| !first.content.is_record()))
        {
            let gone: Option<LogEntry> = last.pop_front();
            records -= u64::from(gone.is_some_and(|gone| gone.content.is_record()));
        }
    }
    Ok(last)
}

/// Start times of segments.
struct SegmentStarts {
    /// Segments, newest last by modification time.
    segments: Vec<tidegate_journal::Segment>,
}

impl SegmentStarts {
    fn of(locations: &[LogLocation]) -> Result<Self> {
        let mut segments = Vec::new();
        for location in locations.iter().filter(|location| !location.is_segment) {
            segments.extend(location.segments()?);
        }
        // A segment that was removed sorts first and is skipped later.
        segments.sort_by_key(|segment| std::fs::metadata(&segment.path).and_then(|data| data.modified()).ok());
        Ok(Self { segments })
    }

    /// Earliest time of the `count` newest segments; `None` for all segments, or if they contain no time.
    fn before(&self, count: usize) -> Result<Option<RecordTimestamp>> {
        let Some(older) = self.segments.len().checked_sub(count).filter(|older| *older > 0) else { return Ok(None) };
        // Older segments need not be read if the first record of the newer ones is known.
        let mut earliest = None;
        for segment in &self.segments[older..] {
            let first = match segment.records {
                Some((_, Some((first, _)))) => Some(timestamp(first)),
                _ => first_timestamp(&segment.path)?,
            };
            let Some(first) = first else { continue };
            earliest = Some(earliest.map_or(first, |known: RecordTimestamp| known.min(first)));
        }
        Ok(earliest)
    }
}

fn first_timestamp(path: &std::path::Path) -> Result<Option<RecordTimestamp>> {
    // A segment that was compressed or removed in the meantime has no time; then more is read than necessary.
    let Ok(mut reader) = JournalReader::open_segment(path, AtEnd::Follow, Some(line_clock)) else { return Ok(None) };
    while let Some(entry) = reader.read()? {
        if let JournalEntry::Record(record) = entry {
            return Ok(Some(timestamp(record.time)).filter(|time| *time > RecordTimestamp::default()));
        }
    }
    Ok(None)
}
