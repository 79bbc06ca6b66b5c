//! Records of segment files.
//!
//! ```text
//! crc32c (4) · length (4) · kind (1) · header · payload        little-endian; the checksum covers all that follows it
//! ```

use crate::offset::LogOffset;
use crate::shape::ShapeId;

/// Checksum, length and kind.
pub(super) const PREFIX_LEN: usize = 9;
/// Limit of a record, so that a damaged length allocates little.
pub(super) const RECORD_LEN_MAX: usize = 1 << 30;

const CHUNK: u8 = 1;
const RUN: u8 = 2;
const POSITION: u8 = 3;
const PIECE: u8 = 4;
const PART: u8 = 5;

const CHUNK_HEADER_LEN: usize = 16;
const PIECE_HEADER_LEN: usize = 24;
const RUN_HEADER_LEN: usize = 52;

/// The header of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunHeader {
    pub(super) shape: ShapeId,
    pub(super) first: LogOffset,
    pub(super) last: LogOffset,
    /// Bytes since the last full chunk, after this run.
    pub(super) open_chunk_bytes: u64,
    /// Ends of full chunks in this run.
    pub(super) chunk_ends: Vec<LogOffset>,
}

/// A record without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordHeader {
    /// A piece of a chunk of a snapshot. Pieces count from 0 in the whole snapshot.
    Piece { shape: ShapeId, chunk: u64, piece: u64 },
    /// Messages after the snapshot.
    Run(RunHeader),
    /// The beginning of a transaction that ends with a run; without that run, it counts nothing.
    Part(RunHeader),
    /// All transactions before this position are stored.
    Position { lsn: u64 },
}

/// Appends a record and returns the offset of the payload from the start of the record.
pub(super) fn push_record(out: &mut Vec<u8>, header: &RecordHeader, payload: &[u8]) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    let push_offset = |out: &mut Vec<u8>, offset: &LogOffset| {
        out.extend_from_slice(&offset.tx.to_le_bytes());
        out.extend_from_slice(&offset.op.to_le_bytes());
    };
    match header {
        RecordHeader::Piece { shape, chunk, piece } => {
            out.push(PIECE);
            [shape, chunk, piece].iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        }
        RecordHeader::Run(run) | RecordHeader::Part(run) => {
            out.push(if matches!(header, RecordHeader::Run(_)) { RUN } else { PART });
            out.extend_from_slice(&run.shape.to_le_bytes());
            push_offset(out, &run.first);
            push_offset(out, &run.last);
            out.extend_from_slice(&run.open_chunk_bytes.to_le_bytes());
            let count = u32::try_from(run.chunk_ends.len()).expect("a run is shorter than 2^32 chunks");
            out.extend_from_slice(&count.to_le_bytes());
            run.chunk_ends.iter().for_each(|end| push_offset(out, end));
        }
        RecordHeader::Position { lsn } => {
            out.push(POSITION);
            out.extend_from_slice(&lsn.to_le_bytes());
        }
    }
    let payload_at = out.len() - start;
    out.extend_from_slice(payload);
    let len = u32::try_from(out.len() - start - 8).expect("the caller limits payloads to RECORD_LEN_MAX");
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    let checksum = crc32c::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
    payload_at
}

/// The length of the whole record, from its first eight bytes. `None` if it cannot be one.
pub(super) fn record_len(prefix: &[u8]) -> Option<usize> {
    let len = usize::try_from(u32::from_le_bytes(prefix.get(4..8)?.try_into().ok()?)).ok()?;
    (1..=RECORD_LEN_MAX).contains(&len).then_some(len + 8)
}

/// Checks a whole record. Returns its header and the offset of its payload.
pub(super) fn parse_record(record: &[u8]) -> Option<(RecordHeader, usize)> {
    let checksum = u32::from_le_bytes(record.get(..4)?.try_into().ok()?);
    if checksum != crc32c::crc32c(record.get(4..)?) {
        return None;
    }
    parse_header(record)
}

/// Parses the header of a record whose checksum is known to be right.
pub(super) fn parse_header(record: &[u8]) -> Option<(RecordHeader, usize)> {
    let number = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let offset = |at: usize| Some(LogOffset { tx: number(at)?, op: number(at + 8)? });
    let at = PREFIX_LEN;
    match *record.get(8)? {
        // Written by versions that stored a chunk as one record.
        CHUNK => {
            let (shape, chunk) = (number(at)?, number(at + 8)?);
            Some((RecordHeader::Piece { shape, chunk, piece: chunk }, at + CHUNK_HEADER_LEN))
        }
        PIECE => {
            let (shape, chunk, piece) = (number(at)?, number(at + 8)?, number(at + 16)?);
            Some((RecordHeader::Piece { shape, chunk, piece }, at + PIECE_HEADER_LEN))
        }
        kind @ (RUN | PART) => {
            let count = u32::from_le_bytes(record.get(at + 48..at + 52)?.try_into().ok()?);
            let ends_at = at + RUN_HEADER_LEN;
            let payload_at = ends_at.checked_add(usize::try_from(count).ok()?.checked_mul(16)?)?;
            let ends = record.get(ends_at..payload_at)?.chunks_exact(16).enumerate();
            let chunk_ends = ends.map(|(index, _)| offset(ends_at + index * 16)).collect::<Option<_>>()?;
            let run = RunHeader {
                shape: number(at)?,
                first: offset(at + 8)?,
                last: offset(at + 24)?,
                open_chunk_bytes: number(at + 40)?,
                chunk_ends,
            };
            Some((if kind == RUN { RecordHeader::Run(run) } else { RecordHeader::Part(run) }, payload_at))
        }
        POSITION => Some((RecordHeader::Position { lsn: number(at)? }, at + 8)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<(RecordHeader, &'static [u8])> {
        let at = |tx, op| LogOffset { tx, op };
        let run = RunHeader {
            shape: 7,
            first: at(1, 0),
            last: at(1 << 40, 6),
            open_chunk_bytes: 55,
            chunk_ends: vec![at(2, 0), at(3, 4)],
        };
        vec![
            (RecordHeader::Piece { shape: u64::MAX, chunk: 3, piece: 7 }, b"payload"),
            (RecordHeader::Run(run.clone()), b""),
            (RecordHeader::Part(run.clone()), b"y"),
            (RecordHeader::Run(RunHeader { chunk_ends: Vec::new(), ..run }), b"x"),
            (RecordHeader::Position { lsn: 99 }, b""),
        ]
    }

    #[test]
    fn records_survive_a_round_trip() {
        for (header, payload) in samples() {
            let mut out = b"before".to_vec();
            let payload_at = push_record(&mut out, &header, payload);
            let record = &out[6..];
            assert_eq!(record_len(record), Some(record.len()));
            assert_eq!(parse_record(record), Some((header, payload_at)));
            assert_eq!(&record[payload_at..], payload);
        }
    }

    #[test]
    fn every_damaged_bit_is_found() {
        for (header, payload) in samples() {
            let mut record = Vec::new();
            push_record(&mut record, &header, payload);
            for bit in 0..record.len() * 8 {
                let mut damaged = record.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let is_same_len = record_len(&damaged) == Some(record.len());
                assert!(!is_same_len || parse_record(&damaged).is_none(), "bit {bit}");
            }
            for len in 0..record.len() {
                assert!(parse_record(&record[..len]).is_none());
            }
        }
    }
}
