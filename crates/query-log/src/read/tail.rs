//! `tail`: the last entries, and those to come.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_journal::{AtEnd, JournalEntry, JournalReader, Timestamp};

use super::{
    item::{Item, clock, moment},
    print::{Form, Printer, Sink},
    sieve::{Sieve, Verdict},
    source::{self, Place, Sources},
    zone::Zone,
};
use tidegate_config::escape::escaped;

use crate::{entry::Moment, options};

/// How often it is looked whether there is more.
const INTERVAL: Duration = Duration::from_millis(100);
/// How many more segments are read when those before had too few records.
const WIDEN: usize = 4;

pub(super) fn run(tail: &options::Tail) -> Result<()> {
    let zone = Zone::new(tail.look.utc);
    let sieve = Sieve::new(&tail.sieve, &zone)?;
    let (places, missing) =
        if tail.follow { source::places_to_come(&tail.places)? } else { (source::places(&tail.places)?, Vec::new()) };
    let mut awaited = Awaited::new(missing);
    let mut out = Sink::new(None)?;
    let mut printer = Printer::new(Form::of(&tail.look, tail.long), &tail.look, &zone).to(&out);
    printer.head(&mut out)?;
    let (mut sources, last) = last(&places, &sieve, tail)?;
    for item in &last {
        printer.print(item, &mut out)?;
    }
    out.flush()?;
    if tail.follow {
        follow(&mut sources, &mut awaited, &sieve, &mut printer, &mut out)?;
    }
    out.finish()
}

/// Those to come; ends only with an error, such as a pipe that nobody reads any more, or when the time that was asked for
/// is over.
fn follow(
    sources: &mut Sources,
    awaited: &mut Awaited,
    sieve: &Sieve,
    printer: &mut Printer,
    out: &mut Sink,
) -> Result<()> {
    loop {
        awaited.join(sources, sieve)?;
        let mut some = false;
        while let Some(item) = sources.next()? {
            match sieve.judge(&item) {
                Verdict::Over => return Ok(()),
                Verdict::Unwanted => {}
                Verdict::Wanted => {
                    printer.print(&item, out)?;
                    some = true;
                }
            }
        }
        if some {
            out.flush()?;
        }
        if sieve.is_over(moment(Timestamp::now())) || wait() {
            return Ok(());
        }
    }
}

/// Paths where nothing is yet. They are waited for, as `tail -F` does: whoever starts the gateway next wants to see it begin.
struct Awaited(Vec<PathBuf>);

impl Awaited {
    fn new(missing: Vec<PathBuf>) -> Self {
        for path in &missing {
            say(&format!("{} is not there yet; waiting for it", path.display()));
        }
        Self(missing)
    }

    /// Those that are there by now are read from their beginning.
    fn join(&mut self, sources: &mut Sources, sieve: &Sieve) -> Result<()> {
        for path in std::mem::take(&mut self.0) {
            let Some(place) = Place::look(&path)? else {
                self.0.push(path);
                continue;
            };
            say(&format!("{} is there now", path.display()));
            sources.add(&place, sieve.since, AtEnd::Follow)?;
        }
        Ok(())
    }
}

/// For whoever looks on, beside the records.
fn say(what: &str) {
    // Without a standard error, nobody does.
    let _ = writeln!(std::io::stderr(), "tidegate: {}", escaped(what));
}

/// Until it is worth another look. `true`: nobody reads any more, which a pipe says before anything is written to it.
fn wait() -> bool {
    let stdout = std::io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(INTERVAL.subsec_nanos()) };
    match poll(&mut watched, Some(&timeout)) {
        Ok(_) => watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP),
        Err(_) => {
            // A signal, or an output that cannot be watched.
            thread::sleep(INTERVAL);
            false
        }
    }
}

/// The last entries that are wanted, and the sources where they go on. Newest segments are read first; older ones as well
/// only if there are too few records in those.
fn last(places: &[Place], sieve: &Sieve, tail: &options::Tail) -> Result<(Sources, VecDeque<Item>)> {
    let at_end = if tail.follow { AtEnd::Follow } else { AtEnd::Stop };
    let beginnings = Beginnings::of(places)?;
    let mut segments = places.len();
    loop {
        let start = beginnings.before(segments)?;
        let is_all = start.is_none() || sieve.since >= start;
        let mut sources = Sources::open(places, start.max(sieve.since), at_end)?;
        let last = take_last(&mut sources, sieve, tail.lines)?;
        let records = last.iter().filter(|item| item.what.is_record()).count() as u64;
        if is_all || records >= tail.lines {
            return Ok((sources, last));
        }
        segments *= WIDEN;
    }
}

/// The last so many records, and the holes between them and behind them.
fn take_last(sources: &mut Sources, sieve: &Sieve, lines: u64) -> Result<VecDeque<Item>> {
    let (mut last, mut records) = (VecDeque::new(), 0);
    while let Some(item) = sources.next()? {
        match sieve.judge(&item) {
            Verdict::Over => break,
            Verdict::Unwanted => continue,
            Verdict::Wanted => {}
        }
        records += u64::from(item.what.is_record());
        last.push_back(item);
        while records > lines || (records == lines && last.front().is_some_and(|first: &Item| !first.what.is_record()))
        {
            let gone: Option<Item> = last.pop_front();
            records -= u64::from(gone.is_some_and(|gone| gone.what.is_record()));
        }
    }
    Ok(last)
}

/// Where segments begin.
struct Beginnings {
    /// Newest last, as their files were changed.
    segments: Vec<tidegate_journal::Segment>,
}

impl Beginnings {
    fn of(places: &[Place]) -> Result<Self> {
        let mut segments = Vec::new();
        for place in places.iter().filter(|place| !place.is_segment) {
            segments.extend(place.segments()?);
        }
        // One that is gone by now is of no interest.
        segments.sort_by_key(|segment| std::fs::metadata(&segment.path).and_then(|data| data.modified()).ok());
        Ok(Self { segments })
    }

    /// When the newest so many segments began; none if that is all of them, or if they do not say.
    fn before(&self, count: usize) -> Result<Option<Moment>> {
        let Some(older) = self.segments.len().checked_sub(count).filter(|older| *older > 0) else { return Ok(None) };
        // The first record of the newer ones: what is older need not be read.
        let mut earliest = None;
        for segment in &self.segments[older..] {
            let first = match segment.records {
                Some((_, Some((first, _)))) => Some(moment(first)),
                _ => first_of(&segment.path)?,
            };
            let Some(first) = first else { continue };
            earliest = Some(earliest.map_or(first, |known: Moment| known.min(first)));
        }
        Ok(earliest)
    }
}

fn first_of(path: &std::path::Path) -> Result<Option<Moment>> {
    // Packed or removed meanwhile: then it says nothing, and more is read than need be.
    let Ok(mut reader) = JournalReader::open_segment(path, AtEnd::Follow, Some(clock)) else { return Ok(None) };
    while let Some(entry) = reader.read()? {
        if let JournalEntry::Record(record) = entry {
            return Ok(Some(moment(record.time)).filter(|time| *time > Moment::default()));
        }
    }
    Ok(None)
}
