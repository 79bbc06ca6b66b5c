//! `verify` and `repair`: whether every record is whole and there, and making the best of those that are not.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::json;
use tidegate_journal::{AtEnd, DamageKind, DamagedRange, JournalEntry, ReadError, SegmentFormat, VerifyReport};

use super::{
    item::{Loss, moment, words_of},
    print::{Sink, loss_json, words_of_loss},
    progress::Progress,
    source::{self, Place},
    units::{bytes, counted},
    zone::Zone,
};
use crate::options;

/// What was found in a place.
struct Judged {
    verdict: VerifyReport,
    losses: Vec<Loss>,
    /// Something was there to be checked, or may be soon.
    is_journal: bool,
}

impl Judged {
    fn is_good(&self) -> bool {
        self.is_journal && self.verdict.is_intact()
    }
}

/// Whether everything is well.
pub(super) fn verify(verify: &options::Report) -> Result<bool> {
    let places = source::places(&verify.places)?;
    let mut progress = Progress::new();
    let verdicts = places.iter().map(|place| judge(place, &mut progress)).collect::<Result<Vec<_>>>()?;
    drop(progress);
    let zone = Zone::new(verify.utc);
    let mut out = Sink::new(None)?;
    let good = verdicts.iter().all(Judged::is_good);
    if verify.json {
        let journals = places.iter().zip(&verdicts).map(|(place, verdict)| json_of(place, verdict));
        writeln!(out, "{}", json!({ "ok": good, "journals": journals.collect::<Vec<_>>() }))?;
    } else {
        for (place, verdict) in places.iter().zip(&verdicts) {
            print(place, verdict, &zone, &mut out)?;
        }
    }
    out.finish()?;
    Ok(good)
}

fn judge(place: &Place, progress: &mut Progress) -> Result<Judged> {
    let mut reader = place.reader(None, AtEnd::Stop)?;
    let mut verdict =
        VerifyReport::read(&mut reader, |reader| progress.step(|| reader.progress().unwrap_or_default()))?;
    let segments = place.segments()?;
    verdict.segments = segments.len();
    let mut losses: Vec<Loss> = verdict.gaps.iter().map(Loss::from_gap).collect();
    if segments.iter().any(|segment| segment.format != SegmentFormat::Framed) {
        // Lines tell of losses in lines, which are records to whoever does not read them.
        let told = losses_in_lines(place, progress)?;
        verdict.records = verdict.records.saturating_sub(told.len() as u64);
        losses.extend(told);
    }
    let is_journal = !segments.is_empty() || tidegate_journal::was_opened(&place.folder);
    Ok(Judged { verdict, losses, is_journal })
}

fn losses_in_lines(place: &Place, progress: &mut Progress) -> Result<Vec<Loss>> {
    let mut reader = place.reader(None, AtEnd::Stop)?;
    let mut losses = Vec::new();
    while let Some(entry) = reader.read()? {
        if let JournalEntry::Record(record) = entry {
            losses.extend(Loss::from_line(record.payload));
        }
        progress.step(|| reader.progress().unwrap_or_default());
    }
    Ok(losses)
}

fn print(place: &Place, judged: &Judged, zone: &Zone, out: &mut impl Write) -> Result<()> {
    let Judged { verdict, losses, is_journal } = judged;
    if !is_journal {
        writeln!(out, "{}: no file in it is a segment, and no journal was ever opened there", place.path.display())?;
    }
    for damage in &verdict.damage {
        writeln!(out, "{}", words_of_place(damage))?;
    }
    let unexplained = verdict.unexplained();
    if unexplained > 0 {
        writeln!(
            out,
            "{} missing: their numbers are in no file, and no gap tells of them",
            counted(unexplained, "record")
        )?;
    }
    for loss in losses {
        writeln!(out, "told: {}", words_of_loss(loss, zone))?;
    }
    let (segments, records) = (counted(verdict.segments as u64, "segment"), counted(verdict.records, "record"));
    let whole = if judged.is_good() { "good" } else { "NOT whole" };
    writeln!(out, "{}: {whole}: {records} ({}) in {segments}", place.path.display(), bytes(verdict.bytes))?;
    if let Some((first, last)) = verdict.times {
        writeln!(out, "{} to {}", zone.show_second(moment(first)), zone.show_second(moment(last)))?;
    }
    if !verdict.is_intact() && verdict.damage.iter().any(is_repaired) {
        writeln!(out, "help: `tidegate journal repair` keeps the good records of damaged files")?;
    }
    Ok(())
}

/// Which bytes `repair` leaves out.
fn is_repaired(damage: &DamagedRange) -> bool {
    matches!(damage.kind, DamageKind::SegmentHeader | DamageKind::Middle)
}

/// `queries-00-0000000003.tgj: 120 bytes at 4096 are no records: ...`
fn words_of_place(damage: &DamagedRange) -> String {
    let (path, size, at) = (damage.path.display(), counted(damage.bytes, "byte"), damage.at);
    format!("{path}: {size} at {at} are no records: {}", words_of(damage))
}

fn json_of(place: &Place, judged: &Judged) -> serde_json::Value {
    let Judged { verdict, losses, .. } = judged;
    let damage = verdict.damage.iter().map(|damage| {
        let (file, why) = (damage.path.display().to_string(), words_of(damage));
        json!({ "file": file, "at": damage.at, "bytes": damage.bytes, "why": why })
    });
    let gaps: Vec<_> = losses.iter().map(loss_json).collect();
    json!({
        "path": place.path.display().to_string(),
        "ok": judged.is_good(),
        "segments": verdict.segments,
        "records": verdict.records,
        "bytes": verdict.bytes,
        "times": verdict.times.map(|(first, last)| [moment(first).to_string(), moment(last).to_string()]),
        "missing": verdict.unexplained(),
        "damage": damage.collect::<Vec<_>>(),
        "gaps": gaps,
    })
}

/// Repairs, or says what it would do. Always true: what could not be repaired is an error.
pub(super) fn repair(repair: &options::Repair) -> Result<bool> {
    let places = source::places(&repair.places)?;
    let mut out = Sink::new(None)?;
    for place in &places {
        if place.is_segment {
            bail!(
                "{} is a file: repair takes the folder, of which no gateway may have any file open",
                place.path.display()
            );
        }
        if place.is_live() {
            bail!(
                "{}: a gateway has it open; stop it first (reading needs no stop, repairing does)",
                place.path.display()
            );
        }
        if repair.yes {
            mend(place, &mut out)?;
        } else {
            foretell(place, &mut out)?;
        }
    }
    out.finish()?;
    Ok(true)
}

fn mend(place: &Place, out: &mut impl Write) -> Result<()> {
    let repaired = match tidegate_journal::repair(&place.path) {
        Err(ReadError::InUse(path)) => bail!("{}: a gateway has it open; stop it first", path.display()),
        result => result?,
    };
    for segment in &repaired {
        let (records, left_out) = (counted(segment.records, "record"), counted(segment.skipped_bytes, "byte"));
        let (path, kept) = (segment.path.display(), segment.backup.display());
        writeln!(out, "{path}: written again with {records}, without {left_out}; the damaged file is {kept}")?;
    }
    if repaired.is_empty() {
        writeln!(out, "{}: nothing to repair", place.path.display())?;
    }
    Ok(())
}

fn foretell(place: &Place, out: &mut impl Write) -> Result<()> {
    let verdict = judge(place, &mut Progress::new())?.verdict;
    let mut by_file: BTreeMap<&PathBuf, Vec<&DamagedRange>> = BTreeMap::new();
    for damage in &verdict.damage {
        by_file.entry(&damage.path).or_default().push(damage);
    }
    let segments = place.segments()?;
    let mut some = false;
    for (path, damage) in by_file {
        damage.iter().try_for_each(|damage| writeln!(out, "{}", words_of_place(damage)))?;
        let framed = segments.iter().any(|segment| segment.path == *path && segment.format == SegmentFormat::Framed);
        let has = |kind| damage.iter().any(|damage| damage.kind == kind);
        let is_misplaced = damage.iter().all(|damage| matches!(damage.kind, DamageKind::Misplaced { .. }));
        let stays = is_misplaced || (!framed && !has(DamageKind::Middle));
        let what = if is_misplaced {
            "left as it is: rename it to what it says, or take it away"
        } else if stays {
            "left as it is: half a line is none, and the others have no checks to tell good from bad by"
        } else if has(DamageKind::SegmentHeader) {
            "would be set aside whole (`.damaged`): its records do not tell what its header did"
        } else {
            "would be written again without them; the damaged file is kept, with `.damaged` added"
        };
        writeln!(out, "{}: {what}", path.display())?;
        some |= !stays;
    }
    let next = if some { "nothing was changed; --yes does it" } else { "nothing to repair" };
    writeln!(out, "{}: {next}", place.path.display())?;
    Ok(())
}
