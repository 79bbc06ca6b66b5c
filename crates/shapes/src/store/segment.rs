//! Segment files: appended by one writer, read by any thread.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::record::{self, RecordHeader};
use crate::shape::DiskPlace;

/// Buffer of the scan at the start.
const SCAN_BUFFER_LEN: usize = 1 << 20;

/// The files, for readers.
#[derive(Debug, Default)]
pub(super) struct SegmentFiles {
    open: RwLock<BTreeMap<u32, Arc<File>>>,
}

impl SegmentFiles {
    pub(super) fn get(&self, segment: u32) -> Option<Arc<File>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&segment).cloned()
    }

    pub(super) fn insert(&self, segment: u32, file: Arc<File>) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(segment, file);
    }

    pub(super) fn remove(&self, segment: u32) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&segment);
    }

    /// Reads a payload. A reader that found the place before its segment was removed gets an error, and looks again.
    pub(super) fn read(&self, place: DiskPlace) -> io::Result<Vec<u8>> {
        let file = self.get(place.segment).ok_or(io::ErrorKind::NotFound)?;
        let len = usize::try_from(place.len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut payload = vec![0; len];
        file.read_exact_at(&mut payload, place.offset.into())?;
        Ok(payload)
    }
}

pub(super) fn path(folder: &Path, segment: u32) -> PathBuf {
    folder.join(format!("{segment:08}.segment"))
}

/// The numbers of the segments in a folder, ascending.
pub(super) fn list(folder: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number: Option<u32> = name.to_str().and_then(|name| name.strip_suffix(".segment")?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The end of a scan.
pub(super) struct ScanEnd {
    /// Length of the valid records.
    pub(super) valid_len: u64,
    /// Length of the file.
    pub(super) file_len: u64,
}

/// Reads all records of a segment and calls `visit` with each header and the place of its payload. Stops at the first invalid
/// record.
pub(super) fn scan(file: &File, segment: u32, mut visit: impl FnMut(RecordHeader, DiskPlace)) -> io::Result<ScanEnd> {
    let file_len = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(SCAN_BUFFER_LEN, file);
    let mut at = 0_u64;
    let mut bytes = Vec::new();
    loop {
        let end = ScanEnd { valid_len: at, file_len };
        bytes.resize(8, 0);
        if !read_whole(&mut reader, &mut bytes)? {
            return Ok(end);
        }
        let Some(len) = record::record_len(&bytes) else { return Ok(end) };
        if at + len as u64 > file_len {
            return Ok(end);
        }
        bytes.resize(len, 0);
        if !read_whole(&mut reader, &mut bytes[8..])? {
            return Ok(end);
        }
        let Some((header, payload_at)) = record::parse_record(&bytes) else { return Ok(end) };
        let narrow = |number: u64| u32::try_from(number).map_err(|_| io::ErrorKind::InvalidData);
        let place =
            DiskPlace { segment, offset: narrow(at + payload_at as u64)?, len: narrow((len - payload_at) as u64)? };
        visit(header, place);
        at += len as u64;
    }
}

/// False at the end of the file.
fn read_whole(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
