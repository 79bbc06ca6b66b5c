//! A segment: one file of a stripe, with its name, its header, and the summary at its end.
//!
//! `journal-00-0000000001.tgj` is the first segment of stripe 0. A framed segment begins with a header of 64 bytes; an
//! ended one ends with a summary frame. A compressed segment, `….tgj.zst`, begins with a skippable zstd frame that holds
//! the header and the summary, so that a reader can decide without decompression whether to read the segment.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    frame::{HEAD_BYTES, u32_at, u64_at},
    segment_format::SegmentFormat,
    timestamp::Timestamp,
};

pub(crate) const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"TGJRNL1\n";
pub(crate) const SUMMARY_BYTES: usize = 32;
/// The size of the last frame of a segment.
pub(crate) const SEAL_BYTES: usize = HEAD_BYTES + SUMMARY_BYTES;

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// A parsed segment file name. Sorts by journal, stripe and number, a plain file before its compressed copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SegmentName {
    pub(crate) journal: String,
    pub(crate) stripe: u16,
    pub(crate) number: u64,
    pub(crate) compressed: bool,
    pub(crate) format: SegmentFormat,
}

impl SegmentName {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (stem, compressed) = name.strip_suffix(".zst").map_or((name, false), |stem| (stem, true));
        let (stem, extension) = stem.rsplit_once('.')?;
        let format = [SegmentFormat::Framed, SegmentFormat::Json, SegmentFormat::Text]
            .into_iter()
            .find(|f| f.extension() == extension)?;
        let mut parts = stem.splitn(3, '-');
        let (journal, stripe, number) = (parts.next()?, parts.next()?, parts.next()?);
        let digits = |text: &str, least: usize| text.len() >= least && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_name(journal) || !digits(stripe, 2) || !digits(number, 10) {
            return None;
        }
        let (stripe, number) = (stripe.parse().ok()?, number.parse().ok()?);
        Some(Self { stripe, number, compressed, journal: journal.to_owned(), format })
    }

    pub(crate) fn file(&self) -> String {
        let Self { stripe, number, compressed, journal, format } = self;
        let compressed = if *compressed { ".zst" } else { "" };
        format!("{journal}-{stripe:02}-{number:010}.{}{compressed}", format.extension())
    }

    pub(crate) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(self.file())
    }
}

/// The segments of a folder in order. Only regular files count: a link or a folder with a segment name does not belong to
/// the journal. If a plain and a compressed file have the same number, compression was not finished, and the plain one
/// counts.
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

/// The size of all segments of a journal.
pub(crate) fn bytes_on_disk(folder: &Path, journal: &str) -> io::Result<u64> {
    let names = list(folder)?.into_iter().filter(|name| name.journal == journal);
    // Skip a file that was removed since the folder was listed.
    Ok(names.filter_map(|name| fs::metadata(name.path(folder)).ok()).map(|metadata| metadata.len()).sum())
}

/// The header of a framed segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) stripe: u16,
    pub(crate) salt: u32,
    pub(crate) number: u64,
    /// The sequence number of the first record, or a smaller one.
    pub(crate) first_seq: u64,
    pub(crate) created: Timestamp,
    /// The file has its full length from the start: bytes after the last frame are meaningless.
    pub(crate) preallocated: bool,
}

impl SegmentHeader {
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

    /// Whether an invalid header belonged to a preallocated segment, as far as these bytes show.
    pub(crate) fn is_preallocated(bytes: &[u8; HEADER_BYTES]) -> bool {
        bytes[10] == 1
    }

    /// `None` if these bytes are not a segment header.
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
            created: Timestamp::from_unix_nanos(u64_at(bytes, 32)),
            preallocated: bytes[10] == 1,
        })
    }
}

/// The summary of a segment: the payload of its last frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentSummary {
    pub(crate) records: u64,
    /// The sequence number of the next segment's first record, or a smaller one.
    pub(crate) end_seq: u64,
    /// The earliest and the latest time, if there are records.
    pub(crate) times: Option<(Timestamp, Timestamp)>,
}

impl SegmentSummary {
    /// The summary of no records, of which the first would have this sequence number.
    pub(crate) fn starting_at(first_seq: u64) -> Self {
        Self { records: 0, end_seq: first_seq, times: None }
    }

    /// Adds the next record.
    pub(crate) fn add(&mut self, seq: u64, time: Timestamp) {
        self.records += 1;
        self.end_seq = seq + 1;
        let (first, last) = self.times.unwrap_or((time, time));
        self.times = Some((first.min(time), last.max(time)));
    }

    pub(crate) fn to_bytes(self) -> [u8; SUMMARY_BYTES] {
        let (first, last) = self.times.unwrap_or((Timestamp::MAX, Timestamp::MIN));
        let numbers = [self.records, self.end_seq, first.unix_nanos(), last.unix_nanos()];
        let mut out = [0; SUMMARY_BYTES];
        for (place, number) in out.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SUMMARY_BYTES] = bytes.try_into().ok()?;
        let time = |at| Timestamp::from_unix_nanos(u64_at(bytes, at));
        let (first, last) = (time(16), time(24));
        let times = (first <= last).then_some((first, last));
        Some(Self { records: u64_at(bytes, 0), end_seq: u64_at(bytes, 8), times })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_rejected() {
        let name = SegmentName {
            stripe: 3,
            number: 12,
            compressed: true,
            journal: "query_log".into(),
            format: SegmentFormat::Json,
        };
        assert_eq!(name.file(), "query_log-03-0000000012.jsonl.zst");
        assert_eq!(SegmentName::parse(&name.file()), Some(name));
        for foreign in
            ["journal.lock", "journal-00-12.tgj", "a-00-0000000001.tgj.damaged", "A-00-0000000001.tgj", "x.log"]
        {
            assert_eq!(SegmentName::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn header_round_trips_and_changed_is_rejected() {
        let (created, preallocated) = (Timestamp::from_unix_nanos(5), true);
        let header = SegmentHeader { stripe: 1, salt: 7, number: 9, first_seq: 100, created, preallocated };
        let mut bytes = header.to_bytes();
        assert_eq!(SegmentHeader::from_bytes(&bytes), Some(header));
        bytes[20] ^= 1;
        assert_eq!(SegmentHeader::from_bytes(&bytes), None);
    }
}
