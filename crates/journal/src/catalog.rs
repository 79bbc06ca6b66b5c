//! Lists the segments of a folder without reading their records.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    error::ReadError,
    segment::{SegmentName, list},
    segment_format::SegmentFormat,
    segment_scanner,
    timestamp::Timestamp,
};

/// Information about a segment, available without reading its records.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// The path of the file.
    pub path: PathBuf,
    /// The name of the journal: see [`JournalConfig::name`](crate::JournalConfig::name).
    pub journal: String,
    /// The stripe.
    pub stripe: u16,
    /// The number of the segment within the stripe; later segments have larger numbers.
    pub number: u64,
    /// The format of the records.
    pub format: SegmentFormat,
    /// Whether the segment is compressed.
    pub compressed: bool,
    /// The size on the disk, in bytes.
    pub bytes: u64,
    /// The number of records, and the earliest and latest time of a record, if the segment has a summary.
    pub records: Option<(u64, Option<(Timestamp, Timestamp)>)>,
}

/// Lists the segments of a folder, by journal, stripe and number.
///
/// # Errors
/// Returns [`ReadError`] if the folder or a segment cannot be read.
pub fn segments(folder: impl AsRef<Path>) -> Result<Vec<Segment>, ReadError> {
    let folder = folder.as_ref();
    let mut segments = Vec::new();
    for name in list(folder).map_err(ReadError::io(folder))? {
        let path = name.path(folder);
        // Skip a file that was removed since the folder was listed.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let framed = name.format == SegmentFormat::Framed;
        let header = if framed { segment_scanner::header_and_summary(&path).ok().flatten() } else { None };
        let records = header.and_then(|(_, summary)| summary).map(|summary| (summary.records, summary.times));
        let SegmentName { journal, stripe, number, compressed, format } = name;
        segments.push(Segment { path, journal, stripe, number, format, compressed, bytes: metadata.len(), records });
    }
    Ok(segments)
}
