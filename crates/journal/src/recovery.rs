//! What an earlier life left behind, looked at once when a journal is opened.
//!
//! Only the newest segment of each stripe is read, and those right before it that were given up: all others were
//! complete before it began. A write that was cut short is cut off, and the segment gets its sum. Damage with frames
//! behind it is reported and left alone: what to do about it is for people, or for [`repair`](crate::repair), to
//! decide. Done twice, it changes nothing more.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    chunk,
    config::{Config, Format, Space},
    error::OpenError,
    frame::{Framed, HEAD_BYTES, Kind},
    note::Class,
    scan::{self, Scan, Step, Tail},
    segment::{self, HEADER_BYTES, Header, SegmentName, Sum},
    sink::Beginning,
    time::Time,
};

/// What was found and done when a journal was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Segments there were.
    pub segments: usize,
    /// Torn writes that were cut off the ends of newest segments.
    pub cut: Vec<Damage>,
    /// Damage that was left as it is.
    pub damage: Vec<Damage>,
}

/// Bytes of a segment that are no records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The segment.
    pub path: PathBuf,
    /// Where in it, in bytes; in a packed segment, of the unpacked bytes.
    pub at: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Of what kind.
    pub kind: DamageKind,
}

/// What is wrong with bytes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DamageKind {
    /// The file does not begin as a segment does, and nothing in it tells by what to check the rest.
    Header,
    /// Records follow: these bytes changed after they were written, or were never written.
    Middle,
    /// Nothing follows: a write that was cut short.
    Torn,
    /// The header is that of another segment: the file was renamed, or is of another journal. Of its records those are read
    /// whose numbers are still to come; it should be given its own name again.
    Misplaced {
        /// The stripe that it says.
        stripe: u16,
        /// The number that it says.
        number: u64,
    },
}

/// Makes a folder ready for a new life, and says where each stripe begins.
pub(crate) fn recover(config: &Config) -> Result<(Recovery, Vec<Beginning>), OpenError> {
    let names = segment::list(&config.folder).map_err(OpenError::io(&config.folder))?;
    let mut recovery = Recovery::default();
    let mut stripes: BTreeMap<u16, Vec<SegmentName>> = BTreeMap::new();
    for name in names.into_iter().filter(|name| name.journal == config.name) {
        stripes.entry(name.stripe).or_default().push(name);
        recovery.segments += 1;
    }
    let mut beginnings = Vec::new();
    for index in 0..u16::try_from(config.stripes).unwrap_or(u16::MAX) {
        let names = stripes.remove(&index).unwrap_or_default();
        beginnings.push(recover_stripe(config, &names, &mut recovery)?);
    }
    Ok((recovery, beginnings))
}

fn recover_stripe(config: &Config, names: &[SegmentName], recovery: &mut Recovery) -> Result<Beginning, OpenError> {
    let mut beginning = Beginning { next_number: 1, ..Beginning::default() };
    beginning.next_number += names.last().map_or(0, |newest| newest.number);
    let (mut known, mut earlier) = (0, names.iter().rev());
    for name in earlier.by_ref() {
        let path = name.path(&config.folder);
        match end_of(name, &path, recovery).map_err(OpenError::io(&path))? {
            End::Known(seq) => {
                known = seq;
                break;
            }
            // Numbers that are not reused, whatever they were: readers skip numbers that they have seen.
            End::Unknown { records_max } => beginning.next_seq += records_max,
        }
    }
    beginning.next_seq += known.max(given_up(&config.folder, earlier));
    if let Space::Ring { .. } = config.space {
        let plain = names.iter().filter(|name| !name.packed && name.format == Format::Framed);
        let left = plain.filter(|name| name.path(&config.folder).exists());
        beginning.ring = left.map(|name| name.number).collect();
    }
    Ok(beginning)
}

/// The number after the last of segments that were given up: what they hold was to be stored again in the next one,
/// which may not have come to it. Those before one that ended in order are of no interest, nor is one that cannot be
/// read.
fn given_up<'a>(folder: &Path, earlier: impl Iterator<Item = &'a SegmentName>) -> u64 {
    let mut most = 0;
    for name in earlier.take_while(|name| name.format == Format::Framed) {
        let Ok(Some((end, in_order))) = end_of_earlier(name, &name.path(folder)) else { break };
        most = most.max(end);
        if in_order {
            break;
        }
    }
    most
}

/// The number after the last that a segment of frames holds, and whether it ended in order. `None`: it does not say.
fn end_of_earlier(name: &SegmentName, path: &Path) -> io::Result<Option<(u64, bool)>> {
    if let Some((_, Some(sum))) = scan::header_and_sum(path)? {
        return Ok(Some((sum.end_seq, true)));
    }
    let Some(mut scan) = Scan::open(path, name.packed)? else { return Ok(None) };
    let mut end = scan.header().first_seq;
    loop {
        match scan.advance(Tail::Final)? {
            Step::Frame => end = scan.frame().seq + 1,
            Step::Damage { .. } | Step::Torn { .. } => {}
            Step::End(sum) => return Ok(Some((sum.map_or(end, |sum| sum.end_seq.max(end)), sum.is_some()))),
            Step::Pending => return Ok(Some((end, false))),
        }
    }
}

/// Which number comes after a segment.
enum End {
    Known(u64),
    /// It tells nothing; the ones before it do.
    Unknown {
        records_max: u64,
    },
}

/// Ends a segment in order, if it was not.
fn end_of(name: &SegmentName, path: &Path, recovery: &mut Recovery) -> io::Result<End> {
    match name.format {
        Format::Framed if name.packed => Ok(match end_of_earlier(name, path)? {
            Some((seq, _)) => End::Known(seq),
            None => End::Unknown { records_max: 0 },
        }),
        _ if name.packed => Ok(End::Unknown { records_max: 0 }),
        Format::Framed => end_of_frames(name, path, recovery),
        Format::Json | Format::Text => end_of_lines(path, recovery).map(|()| End::Unknown { records_max: 0 }),
    }
}

fn end_of_frames(name: &SegmentName, path: &Path, recovery: &mut Recovery) -> io::Result<End> {
    if let Some((_, Some(sum))) = scan::header_and_sum(path)? {
        return Ok(End::Known(sum.end_seq));
    }
    let mut scan = match Scan::open(path, false)? {
        Some(scan) => scan,
        None => match Scan::open_without_header(path, name)? {
            Some(scan) => {
                recovery.note(path, 0, HEADER_BYTES as u64, DamageKind::Middle);
                scan
            }
            None => return without_header(path, recovery).map(|records_max| End::Unknown { records_max }),
        },
    };
    if scan.header().number != name.number && scan.header().preallocated {
        // A file of the ring got its new name, and not its new header: it holds the oldest records, which were to go.
        fs::remove_file(path)?;
        return Ok(End::Unknown { records_max: 0 });
    }
    let mut sum = Sum { records: 0, end_seq: scan.header().first_seq, times: None };
    let (mut end, mut torn) = (scan.offset(), None);
    loop {
        match scan.advance(Tail::Final)? {
            Step::Frame => {
                let frame = scan.frame();
                sum.records += 1;
                sum.end_seq = frame.seq + 1;
                sum.times = chunk::join(sum.times, Some((frame.time, frame.time)));
                end = scan.offset() + frame.bytes() as u64;
            }
            Step::Damage { at, bytes } => recovery.note(path, at, bytes, DamageKind::Middle),
            Step::Torn { at, bytes } => torn = Some((at, bytes)),
            Step::End(Some(sealed)) => return Ok(End::Known(sealed.end_seq.max(sum.end_seq))),
            Step::End(None) | Step::Pending => break,
        }
    }
    if recovery.damage.iter().any(|damage| damage.path == path) {
        return Ok(End::Known(sum.end_seq));
    }
    seal(path, scan.header(), end, sum)?;
    if let Some((at, bytes)) = torn {
        recovery.note(path, at, bytes, DamageKind::Torn);
    }
    Ok(End::Known(sum.end_seq))
}

/// Cuts what is behind the last whole frame, and writes the sum there.
fn seal(path: &Path, header: Header, end: u64, sum: Sum) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    if !header.preallocated {
        file.set_len(end)?;
    }
    let (mut bytes, payload) = (Vec::new(), sum.to_bytes());
    Framed { kind: Kind::Seal, class: Class::default(), time: Time::now(), payload: &payload }.write_checked(
        sum.end_seq,
        header.salt,
        &mut bytes,
    );
    // The seal is for speed; without room for it the segment is complete all the same.
    if file.write_all_at(&bytes, end).is_err() {
        file.set_len(end)?;
    }
    file.sync_all()
}

/// A file that was made and got no header: nothing was ever written in it, unless it says otherwise. Returns how many
/// records it may hold.
fn without_header(path: &Path, recovery: &mut Recovery) -> io::Result<u64> {
    let bytes = fs::metadata(path)?.len();
    if bytes <= HEADER_BYTES as u64 || is_zeros(path)? {
        recovery.note(path, 0, bytes, DamageKind::Torn);
        return fs::remove_file(path).map(|()| 0);
    }
    recovery.note(path, 0, bytes, DamageKind::Header);
    Ok(bytes / HEAD_BYTES as u64)
}

fn is_zeros(path: &Path) -> io::Result<bool> {
    let mut file = fs::File::open(path)?;
    let mut bytes = vec![0; 256 << 10];
    loop {
        match io::Read::read(&mut file, &mut bytes)? {
            0 => return Ok(true),
            read if bytes[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Lines have neither numbers nor checks: a last one without its end is cut.
fn end_of_lines(path: &Path, recovery: &mut Recovery) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let len = file.metadata()?.len();
    let end = last_newline(&file, len)?.map_or(0, |at| at + 1);
    if end < len {
        // Those that are whole may be put away where nobody writes.
        let file = fs::OpenOptions::new().write(true).open(path)?;
        file.set_len(end)?;
        file.sync_all()?;
        recovery.note(path, end, len - end, DamageKind::Torn);
    }
    Ok(())
}

fn last_newline(file: &fs::File, len: u64) -> io::Result<Option<u64>> {
    let mut end = len;
    let mut bytes = vec![0; 64 << 10];
    while end > 0 {
        let start = end.saturating_sub(bytes.len() as u64);
        let part = &mut bytes[..usize::try_from(end - start).unwrap_or(0)];
        file.read_exact_at(part, start)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(start + at as u64));
        }
        end = start;
    }
    Ok(None)
}

impl Recovery {
    fn note(&mut self, path: &Path, at: u64, bytes: u64, kind: DamageKind) {
        let list = if kind == DamageKind::Torn { &mut self.cut } else { &mut self.damage };
        list.push(Damage { path: path.to_path_buf(), at, bytes, kind });
    }

    /// Whether everything was as it should be.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.cut.is_empty() && self.damage.is_empty()
    }
}
