//! `stats`: numbers of records, bytes, losses and segments.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tidegate_journal::{AtEnd, Segment};

use super::{
    log_entry::{EntryContent, Loss, class_of_kind},
    print::{Output, describe_loss, loss_to_json},
    progress::ReadProgress,
    source::{self, LogLocation, MergedSources},
    units::{bytes, count, count_noun, duration},
    zone::Zone,
};
use crate::{options, record::RecordTimestamp};

/// Records that are lost, missing or damaged.
#[derive(Default)]
pub(super) struct Gaps {
    /// Losses by class and cause.
    losses: BTreeMap<(String, String), Loss>,
    missing: u64,
    damaged: u64,
    damaged_bytes: u64,
}

impl Gaps {
    pub(super) fn add(&mut self, content: &EntryContent) {
        match content {
            EntryContent::Loss(loss) => {
                let total = self.losses.entry((loss.class.clone(), loss.cause.clone()));
                total
                    .and_modify(|total| {
                        total.records += loss.records;
                        total.bytes += loss.bytes;
                        (total.first, total.last) = (total.first.min(loss.first), total.last.max(loss.last));
                    })
                    .or_insert_with(|| loss.clone());
            }
            EntryContent::Missing { records, .. } => self.missing += records,
            EntryContent::Damage(damage) => {
                self.damaged += 1;
                self.damaged_bytes += damage.bytes;
            }
            EntryContent::Record { .. } | EntryContent::Text(_) => {}
        }
    }

    /// Lines of the report, for each kind of gap.
    pub(super) fn lines(&self, zone: &Zone) -> Vec<String> {
        let mut lines: Vec<String> = self.losses.values().map(|loss| describe_loss(loss, zone)).collect();
        if self.missing > 0 {
            lines.push(format!(
                "{} missing in the files; see `tidegate journal verify`",
                count_noun(self.missing, "record")
            ));
        }
        if self.damaged > 0 {
            let (locations, size) = (count_noun(self.damaged, "place"), bytes(self.damaged_bytes));
            lines.push(format!("{size} in {locations} are not records; see `tidegate journal verify`"));
        }
        lines
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let lost: Vec<_> = self.losses.values().map(loss_to_json).collect();
        json!({ "lost": lost, "missing": self.missing, "damaged": self.damaged, "damaged_bytes": self.damaged_bytes })
    }
}

#[derive(Default)]
struct LogSummary {
    /// Records and bytes by class and kind.
    kinds: BTreeMap<(String, String), (u64, u64)>,
    records: u64,
    bytes: u64,
    errors: u64,
    times: Option<(RecordTimestamp, RecordTimestamp)>,
    gaps: Gaps,
    segments: Vec<Segment>,
}

pub(super) fn run(stats: &options::ReportArgs) -> Result<()> {
    let locations = source::locations(&stats.source)?;
    let mut sources = MergedSources::open(&locations, None, AtEnd::Stop)?;
    let mut progress = ReadProgress::new();
    let mut summary = LogSummary::default();
    while let Some(entry) = sources.next()? {
        progress.step(|| sources.progress());
        summary.add(&entry.content);
    }
    drop(progress);
    for location in &locations {
        summary.segments.extend(location.segments()?);
    }
    let mut out = Output::new(None)?;
    if stats.json {
        writeln!(out, "{}", summary.json(&locations))?;
    } else {
        summary.print(&locations, &Zone::new(stats.utc), &mut out)?;
    }
    out.finish()
}

impl LogSummary {
    fn add(&mut self, content: &EntryContent) {
        let (class, kind, size) = match content {
            EntryContent::Record { record, json } => {
                let (first, last) = self.times.unwrap_or((record.time, record.time));
                self.times = Some((first.min(record.time), last.max(record.time)));
                self.errors += u64::from(record.sqlstate.is_some());
                (class_of_kind(record.kind), record.kind.name(), json.len())
            }
            EntryContent::Text(text) => ("other", "text", text.len()),
            _ => return self.gaps.add(content),
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

    /// Records per second.
    fn rate(&self) -> Option<f64> {
        let seconds = self.span()?.as_secs_f64();
        (seconds > 0.0).then(|| self.records as f64 / seconds)
    }

    /// Segments and their bytes: plain and compressed.
    fn disk(&self) -> [(u64, u64); 2] {
        [false, true].map(|packed| {
            let these = || self.segments.iter().filter(move |segment| segment.compressed == packed);
            (these().count() as u64, these().map(|segment| segment.bytes).sum())
        })
    }

    fn print(&self, locations: &[LogLocation], zone: &Zone, out: &mut impl Write) -> std::io::Result<()> {
        for location in locations {
            let state = if location.is_live() { "open in a gateway" } else { "not open" };
            writeln!(out, "{:<12}{} ({state})", "journal", location.path.display())?;
        }
        if let Some((first, last)) = self.times {
            let span = self.span().map_or(0, |span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
            writeln!(
                out,
                "{:<12}{} to {}, {}",
                "time",
                zone.format_second(first),
                zone.format_second(last),
                duration(span)
            )?;
        }
        let rate = self.rate().map_or_else(String::new, |rate| format!(", {rate:.1} per second"));
        let records = count_noun(self.records, "record");
        writeln!(out, "{:<12}{records}, {}{rate}, {}", "records", bytes(self.bytes), count_noun(self.errors, "error"))?;
        for ((class, kind), (records, size)) in &self.kinds {
            writeln!(out, "{:<12}{class:<12} {kind:<14} {:>12}  {:>10}", "", count(*records), bytes(*size))?;
        }
        self.print_segments(out)?;
        let gaps = self.gaps.lines(zone);
        if gaps.is_empty() {
            writeln!(out, "{:<12}nothing", "lost")?;
        }
        for gap in gaps {
            writeln!(out, "{:<12}{gap}", "lost")?;
        }
        Ok(())
    }

    fn print_segments(&self, out: &mut impl Write) -> std::io::Result<()> {
        let [plain, packed] = self.disk();
        let size = bytes(plain.1 + packed.1);
        let stripes: std::collections::BTreeSet<_> =
            self.segments.iter().map(|s| (s.path.parent(), s.stripe)).collect();
        let (segments, stripes) =
            (count_noun(plain.0 + packed.0, "segment"), count_noun(stripes.len() as u64, "stripe"));
        writeln!(out, "{:<12}{size} in {segments} of {stripes}", "disk")?;
        for ((segments, size), form) in [(plain, "plain"), (packed, "packed")] {
            if segments > 0 {
                writeln!(out, "{:<12}{form:<12} {segments:>27}  {:>10}", "", bytes(size))?;
            }
        }
        if packed.0 > 0 && self.bytes > 0 {
            let ratio = self.bytes as f64 / (plain.1 + packed.1).max(1) as f64;
            writeln!(out, "{:<12}{ratio:.1} bytes of records per byte on disk", "compression")?;
        }
        Ok(())
    }

    fn json(&self, locations: &[LogLocation]) -> serde_json::Value {
        let kinds = self.kinds.iter().map(|((class, kind), (records, size))| {
            json!({ "class": class, "kind": kind, "records": records, "bytes": size })
        });
        let segments = self.segments.iter().map(|segment| {
            let (file, stripe, number) = (segment.path.display().to_string(), segment.stripe, segment.number);
            json!({ "file": file, "stripe": stripe, "number": number, "packed": segment.compressed, "bytes": segment.bytes })
        });
        let journals = locations
            .iter()
            .map(|location| json!({ "path": location.path.display().to_string(), "open": location.is_live() }));
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
            "gaps": self.gaps.json(),
        })
    }
}
