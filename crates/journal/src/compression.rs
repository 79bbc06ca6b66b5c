//! Compresses ended segments with zstd.

use std::{io, path::Path, sync::atomic::AtomicBool};

use crate::segment::SegmentName;

/// Compresses a segment: the compressed file is complete and durable before the plain one is removed.
#[cfg(feature = "zstd")]
pub(crate) fn compress(folder: &Path, name: &SegmentName, level: i32, stopped: &AtomicBool) -> io::Result<()> {
    use std::{fs, io::Write as _};

    let (plain, compressed) = (name.path(folder), SegmentName { compressed: true, ..name.clone() });
    let unfinished = folder.join(format!("{}.part", compressed.file()));
    let mut file = crate::storage::private().create(true).truncate(true).open(&unfinished)?;
    let result = (|| {
        file.write_all(&preface(&plain)?)?;
        encode(&mut fs::File::open(&plain)?, &mut file, level, stopped)?;
        // Retention uses the time of the last record, not of the compression.
        file.set_modified(fs::metadata(&plain)?.modified()?)?;
        file.sync_all()?;
        fs::rename(&unfinished, compressed.path(folder))?;
        fs::File::open(folder)?.sync_all()
    })();
    if result.is_err() {
        let _ = fs::remove_file(&unfinished);
        return result;
    }
    fs::remove_file(plain)
}

/// Compresses the whole file, or fails if `stopped` is set; the next run starts again.
#[cfg(feature = "zstd")]
fn encode(
    plain: &mut std::fs::File,
    compressed: &mut std::fs::File,
    level: i32,
    stopped: &AtomicBool,
) -> io::Result<()> {
    use std::{
        io::{Read as _, Write as _},
        sync::atomic::Ordering,
    };

    let mut encoder = zstd::stream::write::Encoder::new(compressed, level)?;
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        if stopped.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match plain.read(&mut block)? {
            0 => break,
            read => encoder.write_all(&block[..read])?,
        }
    }
    encoder.finish().map(drop)
}

/// The number of bytes between two checks of `stopped`.
#[cfg(feature = "zstd")]
const BLOCK_BYTES: usize = 256 << 10;

/// The skippable zstd frame with the header and, if there is one, the summary and its CRC32C: what a reader needs before
/// it decompresses.
#[cfg(feature = "zstd")]
fn preface(plain: &Path) -> io::Result<Vec<u8>> {
    use crate::{compressed_file, segment::SegmentHeader, segment_scanner};

    let mut out = Vec::new();
    let Some((header, summary)) = segment_scanner::header_and_summary(plain)? else { return Ok(out) };
    let mut body = SegmentHeader::to_bytes(header).to_vec();
    if let Some(summary) = summary {
        let summary = summary.to_bytes();
        body.extend_from_slice(&summary);
        body.extend_from_slice(&crc32c::crc32c(&summary).to_le_bytes());
    }
    out.extend_from_slice(&compressed_file::PREFACE_MAGIC.to_le_bytes());
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or_default().to_le_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

#[cfg(not(feature = "zstd"))]
pub(crate) fn compress(_: &Path, _: &SegmentName, _: i32, _: &AtomicBool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
