//! `verify` and `repair`: check that every record is present and intact, and rewrite damaged segments.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::json;
use tidegate_journal::{
    AtEnd, DamageKind, DamagedRange, JournalEntry, ReadError, SegmentFormat, VerifyReport as JournalVerifyReport,
};

use super::{
    log_entry::{Loss, describe_damage, timestamp},
    print::{Output, describe_loss, loss_to_json},
    progress::ReadProgress,
    source::{self, LogLocation},
    units::{bytes, count_noun},
    zone::Zone,
};
use crate::options;

/// Result of the check of one location.
struct VerifyReport {
    verdict: JournalVerifyReport,
    losses: Vec<Loss>,
    /// The folder contains segments, or a journal was opened in it.
    is_journal: bool,
}

impl VerifyReport {
    fn is_ok(&self) -> bool {
        self.is_journal && self.verdict.is_intact()
    }
}

/// Checks the locations. Returns whether all are intact.
pub(super) fn verify(verify: &options::ReportArgs) -> Result<bool> {
    let locations = source::locations(&verify.source)?;
    let mut progress = ReadProgress::new();
    let verdicts = locations.iter().map(|location| check(location, &mut progress)).collect::<Result<Vec<_>>>()?;
    drop(progress);
    let zone = Zone::new(verify.utc);
    let mut out = Output::new(None)?;
    let good = verdicts.iter().all(VerifyReport::is_ok);
    if verify.json {
        let journals = locations.iter().zip(&verdicts).map(|(location, verdict)| to_json(location, verdict));
        writeln!(out, "{}", json!({ "ok": good, "journals": journals.collect::<Vec<_>>() }))?;
    } else {
        for (location, verdict) in locations.iter().zip(&verdicts) {
            print(location, verdict, &zone, &mut out)?;
        }
    }
    out.finish()?;
    Ok(good)
}

fn check(location: &LogLocation, progress: &mut ReadProgress) -> Result<VerifyReport> {
    let mut reader = location.reader(None, AtEnd::Stop)?;
    let mut verdict =
        JournalVerifyReport::read(&mut reader, |reader| progress.step(|| reader.progress().unwrap_or_default()))?;
    let segments = location.segments()?;
    verdict.segments = segments.len();
    let mut losses: Vec<Loss> = verdict.gaps.iter().map(Loss::from_gap).collect();
    if segments.iter().any(|segment| segment.format != SegmentFormat::Framed) {
        // A loss in the JSON format is a line, which the verifier counts as a record.
        let lines = losses_in_lines(location, progress)?;
        verdict.records = verdict.records.saturating_sub(lines.len() as u64);
        losses.extend(lines);
    }
    let is_journal = !segments.is_empty() || tidegate_journal::was_opened(&location.folder);
    Ok(VerifyReport { verdict, losses, is_journal })
}

fn losses_in_lines(location: &LogLocation, progress: &mut ReadProgress) -> Result<Vec<Loss>> {
    let mut reader = location.reader(None, AtEnd::Stop)?;
    let mut losses = Vec::new();
    while let Some(entry) = reader.read()? {
        if let JournalEntry::Record(record) = entry {
            losses.extend(Loss::from_line(record.payload));
        }
        progress.step(|| reader.progress().unwrap_or_default());
    }
    Ok(losses)
}

fn print(location: &LogLocation, report: &VerifyReport, zone: &Zone, out: &mut impl Write) -> Result<()> {
    let VerifyReport { verdict, losses, is_journal } = report;
    if !is_journal {
        writeln!(out, "{}: the folder has no segments, and no query log was opened in it", location.path.display())?;
    }
    for damage in &verdict.damage {
        writeln!(out, "{}", describe_damage_location(damage))?;
    }
    let unexplained = verdict.unexplained();
    if unexplained > 0 {
        writeln!(out, "{} missing: their numbers are in no file and in no gap", count_noun(unexplained, "record"))?;
    }
    for loss in losses {
        writeln!(out, "gap: {}", describe_loss(loss, zone))?;
    }
    let (segments, records) = (count_noun(verdict.segments as u64, "segment"), count_noun(verdict.records, "record"));
    let whole = if report.is_ok() { "good" } else { "damaged or incomplete" };
    writeln!(out, "{}: {whole}: {records} ({}) in {segments}", location.path.display(), bytes(verdict.bytes))?;
    if let Some((first, last)) = verdict.times {
        writeln!(out, "{} to {}", zone.format_second(timestamp(first)), zone.format_second(timestamp(last)))?;
    }
    if !verdict.is_intact() && verdict.damage.iter().any(is_repaired) {
        writeln!(out, "help: `tidegate journal repair` keeps the intact records of damaged files")?;
    }
    Ok(())
}

/// Whether `repair` removes the bytes.
fn is_repaired(damage: &DamagedRange) -> bool {
    matches!(damage.kind, DamageKind::SegmentHeader | DamageKind::Middle)
}

/// Formats as `queries-00-0000000003.tgj: 120 bytes at 4096 are not records: ...`.
fn describe_damage_location(damage: &DamagedRange) -> String {
    let (path, size, at) = (damage.path.display(), count_noun(damage.bytes, "byte"), damage.at);
    format!("{path}: {size} at {at} are not records: {}", describe_damage(damage))
}

fn to_json(location: &LogLocation, report: &VerifyReport) -> serde_json::Value {
    let VerifyReport { verdict, losses, .. } = report;
    let damage = verdict.damage.iter().map(|damage| {
        let (file, why) = (damage.path.display().to_string(), describe_damage(damage));
        json!({ "file": file, "at": damage.at, "bytes": damage.bytes, "why": why })
    });
    let gaps: Vec<_> = losses.iter().map(loss_to_json).collect();
    json!({
        "path": location.path.display().to_string(),
        "ok": report.is_ok(),
        "segments": verdict.segments,
        "records": verdict.records,
        "bytes": verdict.bytes,
        "times": verdict.times.map(|(first, last)| [timestamp(first).to_string(), timestamp(last).to_string()]),
        "missing": verdict.unexplained(),
        "damage": damage.collect::<Vec<_>>(),
        "gaps": gaps,
    })
}

/// Repairs the locations, or prints what would be done. Returns `true`; a failure is an error.
pub(super) fn repair(repair: &options::RepairArgs) -> Result<bool> {
    let locations = source::locations(&repair.source)?;
    let mut out = Output::new(None)?;
    for location in &locations {
        if location.is_segment {
            bail!("{} is a file: repair takes a folder that no gateway has open", location.path.display());
        }
        if location.is_live() {
            bail!("{}: a gateway has it open; stop the gateway before the repair", location.path.display());
        }
        if repair.yes {
            repair_location(location, &mut out)?;
        } else {
            dry_run(location, &mut out)?;
        }
    }
    out.finish()?;
    Ok(true)
}

fn repair_location(location: &LogLocation, out: &mut impl Write) -> Result<()> {
    let repaired = match tidegate_journal::repair(&location.path) {
        Err(ReadError::InUse(path)) => {
            bail!("{}: a gateway has it open; stop the gateway before the repair", path.display())
        }
        result => result?,
    };
    for segment in &repaired {
        let (records, left_out) = (count_noun(segment.records, "record"), count_noun(segment.skipped_bytes, "byte"));
        let (path, kept) = (segment.path.display(), segment.backup.display());
        writeln!(out, "{path}: rewritten with {records}, without {left_out}; the damaged file was renamed to {kept}")?;
    }
    if repaired.is_empty() {
        writeln!(out, "{}: nothing to repair", location.path.display())?;
    }
    Ok(())
}

fn dry_run(location: &LogLocation, out: &mut impl Write) -> Result<()> {
    let verdict = check(location, &mut ReadProgress::new())?.verdict;
    let mut by_file: BTreeMap<&PathBuf, Vec<&DamagedRange>> = BTreeMap::new();
    for damage in &verdict.damage {
        by_file.entry(&damage.path).or_default().push(damage);
    }
    let segments = location.segments()?;
    let mut some = false;
    for (path, damage) in by_file {
        damage.iter().try_for_each(|damage| writeln!(out, "{}", describe_damage_location(damage)))?;
        let framed = segments.iter().any(|segment| segment.path == *path && segment.format == SegmentFormat::Framed);
        let has = |kind| damage.iter().any(|damage| damage.kind == kind);
        let is_misplaced = damage.iter().all(|damage| matches!(damage.kind, DamageKind::Misplaced { .. }));
        let is_kept = is_misplaced || (!framed && !has(DamageKind::Middle));
        let what = if is_misplaced {
            "not changed: rename it to the name in its header, or move it away"
        } else if is_kept {
            "not changed: a partial line is not a record, and the other lines have no checksums"
        } else if has(DamageKind::SegmentHeader) {
            "would be renamed to `.damaged`: its records cannot be read without the header"
        } else {
            "would be rewritten without them; the damaged file would be renamed to `.damaged`"
        };
        writeln!(out, "{}: {what}", path.display())?;
        some |= !is_kept;
    }
    let next = if some { "nothing was changed; repair with --yes" } else { "nothing to repair" };
    writeln!(out, "{}: {next}", location.path.display())?;
    Ok(())
}
