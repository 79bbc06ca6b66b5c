//! One file of a stripe: its name, its header, and the sum at its end.
//!
//! `journal-00-0000000001.tgj` is the first segment of stripe 0. A framed segment begins with a header of 64 bytes; an
//! ended one ends with a frame that sums it up. A packed one, `….tgj.zst`, begins with a frame that zstd skips, with the
//! header and the sum, so that a reader knows without unpacking whether to read it at all.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    config::Format,
    error::ReadError,
    frame::{HEAD_BYTES, u32_at, u64_at},
    scan,
    time::Time,
};

pub(crate) const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"TGJRNL1\n";
pub(crate) const SUM_BYTES: usize = 32;
/// What the last frame of a segment takes.
pub(crate) const SEAL_BYTES: usize = HEAD_BYTES + SUM_BYTES;

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

impl Format {
    pub(crate) const fn extension(self) -> &'static str {
        match self {
            Self::Framed => "tgj",
            Self::Json => "jsonl",
            Self::Text => "log",
        }
    }
}

/// What the name of a segment's file says. Sorts by journal, stripe and number, a plain file before its packed copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SegmentName {
    pub(crate) journal: String,
    pub(crate) stripe: u16,
    pub(crate) number: u64,
    pub(crate) packed: bool,
    pub(crate) format: Format,
}

impl SegmentName {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (stem, packed) = name.strip_suffix(".zst").map_or((name, false), |stem| (stem, true));
        let (stem, extension) = stem.rsplit_once('.')?;
        let format = [Format::Framed, Format::Json, Format::Text].into_iter().find(|f| f.extension() == extension)?;
        let mut parts = stem.splitn(3, '-');
        let (journal, stripe, number) = (parts.next()?, parts.next()?, parts.next()?);
        let digits = |text: &str, least: usize| text.len() >= least && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_name(journal) || !digits(stripe, 2) || !digits(number, 10) {
            return None;
        }
        let (stripe, number) = (stripe.parse().ok()?, number.parse().ok()?);
        Some(Self { stripe, number, packed, journal: journal.to_owned(), format })
    }

    pub(crate) fn file(&self) -> String {
        let Self { stripe, number, packed, journal, format } = self;
        let packed = if *packed { ".zst" } else { "" };
        format!("{journal}-{stripe:02}-{number:010}.{}{packed}", format.extension())
    }

    pub(crate) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(self.file())
    }
}

/// The segments of a folder in order, regular files only: what bears our name but is a link or a folder is not ours.
/// Where a packed and a plain file of one number exist, packing was not finished, and the plain one counts.
pub(crate) fn list(folder: &Path) -> io::Result<Vec<SegmentName>> {
    let mut names: Vec<SegmentName> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.extend(entry.file_name().to_str().and_then(SegmentName::parse));
        }
    }
    names.sort();
    names.dedup_by(|later, earlier| {
        (&later.journal, later.stripe, later.number) == (&earlier.journal, earlier.stripe, earlier.number)
    });
    Ok(names)
}

/// What can be said of a segment without reading its records.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// Its file.
    pub path: PathBuf,
    /// The name of its journal: see [`Config::name`](crate::Config::name).
    pub journal: String,
    /// Its stripe.
    pub stripe: u16,
    /// Its number within the stripe; later ones have larger numbers.
    pub number: u64,
    /// In which form its records stand.
    pub format: Format,
    /// Whether it was packed.
    pub packed: bool,
    /// Bytes on the disk.
    pub bytes: u64,
    /// How many records it has, and the earliest and latest time of one, if it ended in order and says so.
    pub records: Option<(u64, Option<(Time, Time)>)>,
}

/// The segments of a folder, by journal, stripe and number.
///
/// # Errors
/// [`ReadError`]
pub fn segments(folder: impl AsRef<Path>) -> Result<Vec<Segment>, ReadError> {
    let folder = folder.as_ref();
    let mut segments = Vec::new();
    for name in list(folder).map_err(ReadError::io(folder))? {
        let path = name.path(folder);
        // One that is gone by now is none.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let framed = name.format == Format::Framed;
        let told = if framed { scan::header_and_sum(&path).ok().flatten() } else { None };
        let records = told.and_then(|(_, sum)| sum).map(|sum| (sum.records, sum.times));
        let SegmentName { journal, stripe, number, packed, format } = name;
        segments.push(Segment { path, journal, stripe, number, format, packed, bytes: metadata.len(), records });
    }
    Ok(segments)
}

/// What a framed segment begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) stripe: u16,
    pub(crate) salt: u32,
    pub(crate) number: u64,
    /// The number of its first record, or a smaller one.
    pub(crate) first_seq: u64,
    pub(crate) created: Time,
    /// The file has its full length from the beginning: what follows the last frame means nothing.
    pub(crate) preallocated: bool,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&self.stripe.to_le_bytes());
        out[10] = u8::from(self.preallocated);
        out[12..16].copy_from_slice(&self.salt.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_seq.to_le_bytes());
        out[32..40].copy_from_slice(&self.created.unix_nanos().to_le_bytes());
        let check = crc32c::crc32c(&out[..60]);
        out[60..].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// As far as these bytes tell, which are no header.
    pub(crate) fn is_preallocated(bytes: &[u8; HEADER_BYTES]) -> bool {
        bytes[10] == 1
    }

    /// `None`: these bytes do not begin a segment.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
        if &bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return None;
        }
        Some(Self {
            stripe: u16::from_le_bytes([bytes[8], bytes[9]]),
            salt: u32_at(bytes, 12),
            number: u64_at(bytes, 16),
            first_seq: u64_at(bytes, 24),
            created: Time::from_unix_nanos(u64_at(bytes, 32)),
            preallocated: bytes[10] == 1,
        })
    }
}

/// What a segment holds: the payload of its last frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) records: u64,
    /// The number of the next segment's first record, or a smaller one.
    pub(crate) end_seq: u64,
    /// Earliest and latest time, if there are records.
    pub(crate) times: Option<(Time, Time)>,
}

impl Sum {
    pub(crate) fn to_bytes(self) -> [u8; SUM_BYTES] {
        let (first, last) = self.times.unwrap_or((Time::MAX, Time::MIN));
        let numbers = [self.records, self.end_seq, first.unix_nanos(), last.unix_nanos()];
        let mut out = [0; SUM_BYTES];
        for (place, number) in out.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SUM_BYTES] = bytes.try_into().ok()?;
        let time = |at| Time::from_unix_nanos(u64_at(bytes, at));
        let (first, last) = (time(16), time(24));
        let times = (first <= last).then_some((first, last));
        Some(Self { records: u64_at(bytes, 0), end_seq: u64_at(bytes, 8), times })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is() {
        let name =
            SegmentName { stripe: 3, number: 12, packed: true, journal: "query_log".into(), format: Format::Json };
        assert_eq!(name.file(), "query_log-03-0000000012.jsonl.zst");
        assert_eq!(SegmentName::parse(&name.file()), Some(name));
        for foreign in
            ["journal.lock", "journal-00-12.tgj", "a-00-0000000001.tgj.damaged", "A-00-0000000001.tgj", "x.log"]
        {
            assert_eq!(SegmentName::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_header_survives_and_a_changed_one_is_none() {
        let (created, preallocated) = (Time::from_unix_nanos(5), true);
        let header = Header { stripe: 1, salt: 7, number: 9, first_seq: 100, created, preallocated };
        let mut bytes = header.to_bytes();
        assert_eq!(Header::from_bytes(&bytes), Some(header));
        bytes[20] ^= 1;
        assert_eq!(Header::from_bytes(&bytes), None);
    }
}
