//! Whether a journal is whole, and making it so.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    chunk,
    config::Format,
    error::ReadError,
    folder::Ownership,
    frame::{Framed, Kind},
    gap::{Cause, Gap, Losses},
    lines::LineScan,
    note::Class,
    reader::{AtEnd, Entry, Reader, Record, Start},
    recovery::{Damage, DamageKind},
    scan::{Scan, Step, Tail},
    segment::{self, HEADER_BYTES, SegmentName, Sum},
    time::Time,
};

/// What a journal holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// Segments on the disk.
    pub segments: usize,
    /// Records in them.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// The earliest and the latest time of a record, if they have times.
    pub times: Option<(Time, Time)>,
    /// Losses to overload, summed by class and cause.
    pub gaps: Vec<Gap>,
    /// Numbers that are in no segment.
    pub missing: u64,
    /// Bytes that are no records.
    pub damage: Vec<Damage>,
}

impl Verdict {
    /// Whether every record that was written is there: no damage but a torn end, and nothing missing that no gap tells of.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.unexplained() == 0 && self.damage.iter().all(|damage| damage.kind == DamageKind::Torn)
    }

    /// Missing records that no gap tells of.
    #[must_use]
    pub fn unexplained(&self) -> u64 {
        let displaced: u64 = self.gaps.iter().filter(|gap| gap.cause == Cause::Oldest).map(|gap| gap.records).sum();
        self.missing.saturating_sub(displaced)
    }

    /// Reads on to the end and checks what comes. `watch` is called after every entry, for progress.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn read(reader: &mut Reader, mut watch: impl FnMut(&Reader)) -> Result<Self, ReadError> {
        let mut verdict = Self::default();
        let mut losses = Losses::default();
        while let Some(entry) = reader.read()? {
            match entry {
                Entry::Record(record) => verdict.count(record),
                Entry::Gap(gap) => losses.add(&gap),
                Entry::Missing { records, .. } => verdict.missing += records,
                Entry::Damage(damage) => verdict.damage.push(damage),
            }
            watch(reader);
        }
        verdict.gaps = losses.drain().collect();
        Ok(verdict)
    }

    fn count(&mut self, record: Record<'_>) {
        self.records += 1;
        self.bytes += record.payload.len() as u64;
        let time = Some((record.time, record.time)).filter(|_| record.time > Time::MIN);
        self.times = chunk::join(self.times, time);
    }
}

/// Reads everything and checks it. A journal that is being written may be verified too; the end it had then is checked.
///
/// # Errors
/// [`ReadError`]
pub fn verify(folder: impl AsRef<Path>) -> Result<Verdict, ReadError> {
    let folder = folder.as_ref();
    let segments = segment::list(folder).map_err(ReadError::io(folder))?.len();
    let mut reader = Reader::open(folder, &Start::Beginning, AtEnd::Stop)?;
    Ok(Verdict { segments, ..Verdict::read(&mut reader, |_| ())? })
}

/// What was repaired.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// The segment that holds the good records now.
    pub path: PathBuf,
    /// The damaged one, kept.
    pub kept: PathBuf,
    /// Good records.
    pub records: u64,
    /// Bytes that were left out.
    pub left_out: u64,
}

/// Writes every damaged segment again without what is no record, and keeps the damaged file beside it, with `.damaged`
/// added to its name, or `.damaged.1` and so on if there is one. Lines have nothing to check them by: of their segments,
/// those are written again that cannot be unpacked to the end, or have a line that no journal wrote, and half a line at the
/// end stays. So does a file under a name that is not its own.
///
/// # Errors
/// [`ReadError::Owned`] if the journal is open; [`ReadError`] otherwise.
pub fn repair(folder: impl AsRef<Path>) -> Result<Vec<Repaired>, ReadError> {
    let folder = folder.as_ref();
    let ownership = Ownership::take(folder).map_err(ReadError::io(folder))?;
    let Some(_ownership) = ownership else { return Err(ReadError::Owned(folder.to_path_buf())) };
    let damage = verify(folder)?.damage.into_iter().filter(is_repaired);
    let mut paths: Vec<PathBuf> = damage.map(|damage| damage.path).collect();
    // Damage of several stripes comes in the order of its time.
    paths.sort();
    paths.dedup();
    let mut repaired = Vec::new();
    for path in paths {
        if let Some(name) = name_of(&path) {
            repaired.push(repair_segment(folder, &name, &path).map_err(ReadError::io(&path))?);
        }
    }
    Ok(repaired)
}

fn name_of(path: &Path) -> Option<SegmentName> {
    path.file_name().and_then(|name| name.to_str()).and_then(SegmentName::parse)
}

/// Whether [`repair`] mends it. Which name a file should have is for people to see to.
fn is_repaired(damage: &Damage) -> bool {
    match damage.kind {
        DamageKind::Torn => name_of(&damage.path).is_some_and(|name| name.format == Format::Framed),
        DamageKind::Misplaced { .. } => false,
        DamageKind::Header | DamageKind::Middle => true,
    }
}

fn repair_segment(folder: &Path, name: &SegmentName, path: &Path) -> io::Result<Repaired> {
    if name.format != Format::Framed {
        let mut scan = LineScan::open(path, name.packed)?;
        return write_again(folder, name, path, |file| copy_lines(&mut scan, file));
    }
    if let Some(mut scan) = Scan::open(path, name.packed)? {
        return write_again(folder, name, path, |file| copy_good(&mut scan, 0, file));
    }
    let Some(mut scan) = Scan::open_without_header(path, name)? else {
        // Without a salt no record can be told from noise.
        let (kept, left_out) = (free_name(folder, name), fs::metadata(path)?.len());
        fs::rename(path, &kept)?;
        return Ok(Repaired { path: path.to_path_buf(), kept, records: 0, left_out });
    };
    write_again(folder, name, path, |file| copy_good(&mut scan, HEADER_BYTES as u64, file))
}

/// Puts what `copy` writes in place of a segment. It says how many records those are, and how many bytes are none.
fn write_again(
    folder: &Path,
    name: &SegmentName,
    path: &Path,
    copy: impl FnOnce(&mut io::BufWriter<fs::File>) -> io::Result<(u64, u64)>,
) -> io::Result<Repaired> {
    let kept = free_name(folder, name);
    let plain = SegmentName { packed: false, ..name.clone() };
    let unfinished = folder.join(format!("{}.part", plain.file()));
    let mut file = io::BufWriter::new(crate::storage::private().create(true).truncate(true).open(&unfinished)?);
    let (records, left_out) = copy(&mut file)?;
    let file = file.into_inner()?;
    file.set_modified(fs::metadata(path)?.modified()?)?;
    file.sync_all()?;
    // Under both names where that can be, so that there is no moment at which the segment has none.
    fs::hard_link(path, &kept).or_else(|_| fs::rename(path, &kept))?;
    fs::rename(&unfinished, plain.path(folder))?;
    if name.packed && path.exists() {
        fs::remove_file(path)?;
    }
    fs::File::open(folder)?.sync_all()?;
    Ok(Repaired { path: plain.path(folder), kept, records, left_out })
}

/// Where the damaged segment is kept: one that was repaired before has a damaged file already.
fn free_name(folder: &Path, name: &SegmentName) -> PathBuf {
    let named = |count: u32| {
        let count = if count == 0 { String::new() } else { format!(".{count}") };
        folder.join(format!("{}.damaged{count}", name.file()))
    };
    let mut count = 0;
    while named(count).symlink_metadata().is_ok() {
        count += 1;
    }
    named(count)
}

/// Every whole line.
fn copy_lines(scan: &mut LineScan, out: &mut impl io::Write) -> io::Result<(u64, u64)> {
    let (mut records, mut left_out) = (0, 0);
    loop {
        match scan.advance(Tail::Final)? {
            Step::Frame => {
                records += 1;
                out.write_all(scan.line())?;
                out.write_all(b"\n")?;
            }
            Step::Damage { bytes, .. } | Step::Torn { bytes, .. } => left_out += bytes,
            Step::End(_) | Step::Pending => break,
        }
    }
    out.flush()?;
    Ok((records, left_out))
}

/// The header, every good frame, and their sum. Returns how many frames, and how many bytes are none, with those that were left
/// out before.
fn copy_good(scan: &mut Scan, mut left_out: u64, out: &mut impl io::Write) -> io::Result<(u64, u64)> {
    let header = segment::Header { preallocated: false, ..scan.header() };
    out.write_all(&header.to_bytes())?;
    let mut sum = Sum { records: 0, end_seq: header.first_seq, times: None };
    loop {
        match scan.advance(Tail::Final)? {
            Step::Frame => {
                let frame = scan.frame();
                sum.records += 1;
                sum.end_seq = frame.seq + 1;
                sum.times = chunk::join(sum.times, Some((frame.time, frame.time)));
                out.write_all(scan.raw())?;
            }
            Step::Damage { bytes, .. } | Step::Torn { bytes, .. } => left_out += bytes,
            Step::End(_) | Step::Pending => break,
        }
    }
    let (mut seal, payload) = (Vec::new(), sum.to_bytes());
    Framed { kind: Kind::Seal, class: Class::default(), time: Time::now(), payload: &payload }.write_checked(
        sum.end_seq,
        header.salt,
        &mut seal,
    );
    out.write_all(&seal)?;
    out.flush()?;
    Ok((sum.records, left_out))
}
