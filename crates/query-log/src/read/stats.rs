//! `stats`: how much there is, and how much is not there.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tidegate_journal::{AtEnd, Segment};

use super::{
    item::{Loss, What, class_of},
    print::{Sink, loss_json, words_of_loss},
    progress::Progress,
    source::{self, Place, Sources},
    units::{bytes, count, counted, duration},
    zone::Zone,
};
use crate::{entry::Moment, options};

/// What is not there: lost to overload, missing, damaged.
#[derive(Default)]
pub(super) struct Holes {
    /// By class and cause.
    losses: BTreeMap<(String, String), Loss>,
    missing: u64,
    damaged: u64,
    damaged_bytes: u64,
}

impl Holes {
    pub(super) fn add(&mut self, what: &What) {
        match what {
            What::Loss(loss) => {
                let sum = self.losses.entry((loss.class.clone(), loss.cause.clone()));
                sum.and_modify(|sum| {
                    sum.records += loss.records;
                    sum.bytes += loss.bytes;
                    (sum.first, sum.last) = (sum.first.min(loss.first), sum.last.max(loss.last));
                })
                .or_insert_with(|| loss.clone());
            }
            What::Missing { records, .. } => self.missing += records,
            What::Damage(damage) => {
                self.damaged += 1;
                self.damaged_bytes += damage.bytes;
            }
            What::Record { .. } | What::Text(_) => {}
        }
    }

    /// A line for each.
    pub(super) fn lines(&self, zone: &Zone) -> Vec<String> {
        let mut lines: Vec<String> = self.losses.values().map(|loss| words_of_loss(loss, zone)).collect();
        if self.missing > 0 {
            lines.push(format!(
                "{} missing in the files; `tidegate journal verify` says more",
                counted(self.missing, "record")
            ));
        }
        if self.damaged > 0 {
            let (places, size) = (counted(self.damaged, "place"), bytes(self.damaged_bytes));
            lines.push(format!("{size} in {places} are no records; `tidegate journal verify` says where"));
        }
        lines
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let lost: Vec<_> = self.losses.values().map(loss_json).collect();
        json!({ "lost": lost, "missing": self.missing, "damaged": self.damaged, "damaged_bytes": self.damaged_bytes })
    }
}

#[derive(Default)]
struct Summary {
    /// Records and bytes, by class and kind.
    kinds: BTreeMap<(String, String), (u64, u64)>,
    records: u64,
    bytes: u64,
    errors: u64,
    times: Option<(Moment, Moment)>,
    holes: Holes,
    segments: Vec<Segment>,
}

pub(super) fn run(stats: &options::Report) -> Result<()> {
    let places = source::places(&stats.places)?;
    let mut sources = Sources::open(&places, None, AtEnd::Stop)?;
    let mut progress = Progress::new();
    let mut summary = Summary::default();
    while let Some(item) = sources.next()? {
        progress.step(|| sources.progress());
        summary.add(&item.what);
    }
    drop(progress);
    for place in &places {
        summary.segments.extend(place.segments()?);
    }
    let mut out = Sink::new(None)?;
    if stats.json {
        writeln!(out, "{}", summary.json(&places))?;
    } else {
        summary.print(&places, &Zone::new(stats.utc), &mut out)?;
    }
    out.finish()
}

impl Summary {
    fn add(&mut self, what: &What) {
        let (class, kind, size) = match what {
            What::Record { entry, json } => {
                let (first, last) = self.times.unwrap_or((entry.time, entry.time));
                self.times = Some((first.min(entry.time), last.max(entry.time)));
                self.errors += u64::from(entry.sqlstate.is_some());
                (class_of(entry.kind), entry.kind.name(), json.len())
            }
            What::Text(text) => ("other", "text", text.len()),
            _ => return self.holes.add(what),
        };
        self.records += 1;
        self.bytes += size as u64;
        let kind = self.kinds.entry((class.to_owned(), kind.to_owned())).or_default();
        kind.0 += 1;
        kind.1 += size as u64;
    }

    fn span(&self) -> Option<Duration> {
        self.times.map(|(first, last)| Duration::from_micros(last.micros() - first.micros()))
    }

    /// Records a second.
    fn rate(&self) -> Option<f64> {
        let seconds = self.span()?.as_secs_f64();
        (seconds > 0.0).then(|| self.records as f64 / seconds)
    }

    /// Segments and their bytes: plain and packed.
    fn disk(&self) -> [(u64, u64); 2] {
        [false, true].map(|packed| {
            let these = || self.segments.iter().filter(move |segment| segment.compressed == packed);
            (these().count() as u64, these().map(|segment| segment.bytes).sum())
        })
    }

    fn print(&self, places: &[Place], zone: &Zone, out: &mut impl Write) -> std::io::Result<()> {
        for place in places {
            let state = if place.is_live() { "a gateway is writing it" } else { "not open" };
            writeln!(out, "{:<12}{} ({state})", "journal", place.path.display())?;
        }
        if let Some((first, last)) = self.times {
            let span = self.span().map_or(0, |span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
            writeln!(
                out,
                "{:<12}{} to {}, {}",
                "time",
                zone.show_second(first),
                zone.show_second(last),
                duration(span)
            )?;
        }
        let rate = self.rate().map_or_else(String::new, |rate| format!(", {rate:.1} a second"));
        let records = counted(self.records, "record");
        writeln!(out, "{:<12}{records}, {}{rate}, {}", "records", bytes(self.bytes), counted(self.errors, "error"))?;
        for ((class, kind), (records, size)) in &self.kinds {
            writeln!(out, "{:<12}{class:<12} {kind:<14} {:>12}  {:>10}", "", count(*records), bytes(*size))?;
        }
        self.print_segments(out)?;
        let holes = self.holes.lines(zone);
        if holes.is_empty() {
            writeln!(out, "{:<12}nothing", "lost")?;
        }
        for hole in holes {
            writeln!(out, "{:<12}{hole}", "lost")?;
        }
        Ok(())
    }

    fn print_segments(&self, out: &mut impl Write) -> std::io::Result<()> {
        let [plain, packed] = self.disk();
        let size = bytes(plain.1 + packed.1);
        let stripes: std::collections::BTreeSet<_> =
            self.segments.iter().map(|s| (s.path.parent(), s.stripe)).collect();
        let (segments, stripes) = (counted(plain.0 + packed.0, "segment"), counted(stripes.len() as u64, "stripe"));
        writeln!(out, "{:<12}{size} in {segments} of {stripes}", "disk")?;
        for ((segments, size), form) in [(plain, "plain"), (packed, "packed")] {
            if segments > 0 {
                writeln!(out, "{:<12}{form:<12} {segments:>27}  {:>10}", "", bytes(size))?;
            }
        }
        if packed.0 > 0 && self.bytes > 0 {
            let ratio = self.bytes as f64 / (plain.1 + packed.1).max(1) as f64;
            writeln!(out, "{:<12}{ratio:.1} bytes of records on each byte of the disk", "compression")?;
        }
        Ok(())
    }

    fn json(&self, places: &[Place]) -> serde_json::Value {
        let kinds = self.kinds.iter().map(|((class, kind), (records, size))| {
            json!({ "class": class, "kind": kind, "records": records, "bytes": size })
        });
        let segments = self.segments.iter().map(|segment| {
            let (file, stripe, number) = (segment.path.display().to_string(), segment.stripe, segment.number);
            json!({ "file": file, "stripe": stripe, "number": number, "packed": segment.compressed, "bytes": segment.bytes })
        });
        let journals =
            places.iter().map(|place| json!({ "path": place.path.display().to_string(), "open": place.is_live() }));
        let [plain, packed] = self.disk();
        json!({
            "journals": journals.collect::<Vec<_>>(),
            "times": self.times.map(|(first, last)| [first.to_string(), last.to_string()]),
            "records": self.records,
            "bytes": self.bytes,
            "errors": self.errors,
            "records_per_second": self.rate(),
            "kinds": kinds.collect::<Vec<_>>(),
            "disk_bytes": plain.1 + packed.1,
            "segments": segments.collect::<Vec<_>>(),
            "holes": self.holes.json(),
        })
    }
}
