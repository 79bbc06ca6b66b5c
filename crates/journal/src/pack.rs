//! Ended segments, packed with zstd.

use std::{io, path::Path, sync::atomic::AtomicBool};

use crate::segment::SegmentName;

/// Packs a segment: the packed file is complete and durable before the plain one goes.
#[cfg(feature = "zstd")]
pub(crate) fn pack(folder: &Path, name: &SegmentName, level: i32, stopped: &AtomicBool) -> io::Result<()> {
    use std::{fs, io::Write as _};

    let (plain, packed) = (name.path(folder), SegmentName { packed: true, ..name.clone() });
    let unfinished = folder.join(format!("{}.part", packed.file()));
    let mut file = crate::storage::private().create(true).truncate(true).open(&unfinished)?;
    let result = (|| {
        file.write_all(&preface(&plain)?)?;
        encode(&mut fs::File::open(&plain)?, &mut file, level, stopped)?;
        // Retention goes by the time of the last record, not of the packing.
        file.set_modified(fs::metadata(&plain)?.modified()?)?;
        file.sync_all()?;
        fs::rename(&unfinished, packed.path(folder))?;
        fs::File::open(folder)?.sync_all()
    })();
    if result.is_err() {
        let _ = fs::remove_file(&unfinished);
        return result;
    }
    fs::remove_file(plain)
}

/// Packs all of it, unless it is to stop: then it begins anew another time.
#[cfg(feature = "zstd")]
fn encode(plain: &mut std::fs::File, packed: &mut std::fs::File, level: i32, stopped: &AtomicBool) -> io::Result<()> {
    use std::{
        io::{Read as _, Write as _},
        sync::atomic::Ordering,
    };

    let mut encoder = zstd::stream::write::Encoder::new(packed, level)?;
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

/// Between two looks whether it is to stop.
#[cfg(feature = "zstd")]
const BLOCK_BYTES: usize = 256 << 10;

/// The frame that zstd skips: what a reader wants to know before it unpacks. The sum, if there is one, has its CRC32C.
#[cfg(feature = "zstd")]
fn preface(plain: &Path) -> io::Result<Vec<u8>> {
    use crate::{scan, segment::Header};

    let mut out = Vec::new();
    let Some((header, sum)) = scan::header_and_sum(plain)? else { return Ok(out) };
    let mut body = Header::to_bytes(header).to_vec();
    if let Some(sum) = sum {
        let sum = sum.to_bytes();
        body.extend_from_slice(&sum);
        body.extend_from_slice(&crc32c::crc32c(&sum).to_le_bytes());
    }
    out.extend_from_slice(&PREFACE_MAGIC.to_le_bytes());
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or_default().to_le_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

/// Of a frame of zstd (RFC 8878, section 3.1.1).
pub(crate) const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// Of a frame that zstd skips (RFC 8878, section 3.1.2).
pub(crate) const PREFACE_MAGIC: u32 = 0x184D_2A5A;

#[cfg(not(feature = "zstd"))]
pub(crate) fn pack(_: &Path, _: &SegmentName, _: i32, _: &AtomicBool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The bytes of a packed segment, unpacked as they are read.
#[cfg(feature = "zstd")]
pub(crate) fn unpack(file: std::fs::File) -> io::Result<Box<dyn io::Read + Send>> {
    Ok(Box::new(zstd::stream::read::Decoder::new(file)?))
}

#[cfg(not(feature = "zstd"))]
pub(crate) fn unpack(_: std::fs::File) -> io::Result<Box<dyn io::Read + Send>> {
    Err(io::ErrorKind::Unsupported.into())
}
