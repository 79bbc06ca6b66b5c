//! The preface of a compressed segment, and its decompression.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt,
};

use crate::{
    frame,
    segment::{HEADER_BYTES, SUMMARY_BYTES, SegmentHeader, SegmentSummary},
};

/// The magic number of a zstd frame (RFC 8878, section 3.1.1).
pub(crate) const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// The magic number of a skippable zstd frame (RFC 8878, section 3.1.2).
pub(crate) const PREFACE_MAGIC: u32 = 0x184D_2A5A;

/// The offset of the compressed data. The decompressor skips the preface by itself unless the start of the preface is
/// damaged.
pub(crate) fn data_offset(file: &File) -> u64 {
    const BEHIND_PREFACE: [usize; 2] = [8 + HEADER_BYTES + SUMMARY_BYTES + 4, 8 + HEADER_BYTES];
    let mut magic = [0; 4];
    let begins = |at: &u64| file.read_exact_at(&mut magic, *at).is_ok() && magic == ZSTD_MAGIC;
    BEHIND_PREFACE.map(|at| at as u64).into_iter().find(begins).unwrap_or(0)
}

/// The header and the summary from the preface.
pub(crate) fn preface(file: &mut File) -> io::Result<Option<(SegmentHeader, Option<SegmentSummary>)>> {
    let mut bytes = Vec::new();
    file.take((8 + HEADER_BYTES + SUMMARY_BYTES + 4) as u64).read_to_end(&mut bytes)?;
    if bytes.len() < 8 + HEADER_BYTES || frame::u32_at(&bytes, 0) != PREFACE_MAGIC {
        return Ok(None);
    }
    let body = usize::try_from(frame::u32_at(&bytes, 4)).ok().and_then(|len| bytes.get(8 + HEADER_BYTES..8 + len));
    let summary = body.and_then(|body| body.split_at_checked(SUMMARY_BYTES)).and_then(|(summary, crc)| {
        let is_valid = crc.len() == 4 && frame::u32_at(crc, 0) == crc32c::crc32c(summary);
        SegmentSummary::from_bytes(summary).filter(|summary| is_valid && summary.records > 0)
    });
    Ok(SegmentHeader::from_bytes(&bytes[8..]).map(|header| (header, summary)))
}

/// Decompresses a segment as it is read.
#[cfg(feature = "zstd")]
pub(crate) fn decompress(file: File) -> io::Result<Box<dyn io::Read + Send>> {
    Ok(Box::new(zstd::stream::read::Decoder::new(file)?))
}

#[cfg(not(feature = "zstd"))]
pub(crate) fn decompress(_: File) -> io::Result<Box<dyn io::Read + Send>> {
    Err(io::ErrorKind::Unsupported.into())
}
