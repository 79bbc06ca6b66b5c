//! The frames of a spool: one event each, with its identity, so that key and envelope may change later.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use tidegate_wire::replication::Lsn;

use crate::{
    change::{Change, ChangeId, ChangeKind},
    event::{LooseMessage, PgTimestamp, TransactionBegin, TransactionCommit},
};

/// A frame of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SpoolFrame {
    Begin(TransactionBegin),
    Change {
        id: ChangeId,
        /// OID and version of each table of the change.
        tables: Box<[(u32, u32)]>,
        /// The message of `pgoutput`.
        message: Bytes,
    },
    Commit(TransactionCommit),
    /// The current transaction, with this commit position, passes through: frames of it may be missing, and its commit does
    /// not make it complete.
    Passing(Lsn),
    Message(LooseMessage),
    /// Every transaction that committed before this position is in the log.
    Progress(Lsn),
}

/// A frame that this version cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of the spool is malformed")]
pub(super) struct FrameError;

impl SpoolFrame {
    pub(super) fn of_change(change: &Change, version: impl Fn(u32) -> u32) -> Self {
        let tables = match &change.kind {
            ChangeKind::Row(row) => [row.relation().oid].into_iter().map(|oid| (oid, version(oid))).collect(),
            ChangeKind::Truncate(truncate) => {
                truncate.relations.iter().map(|relation| (relation.oid, version(relation.oid))).collect()
            }
            ChangeKind::Message(_) => Box::default(),
        };
        Self::Change { id: change.id, tables, message: change.frame().clone() }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin(begin) => {
                out.push(b'B');
                out.extend_from_slice(&begin.commit_lsn.0.to_be_bytes());
                out.extend_from_slice(&begin.commit_time.0.to_be_bytes());
                out.extend_from_slice(&begin.xid.to_be_bytes());
                out.push(u8::from(begin.origin.is_some()));
                out.extend_from_slice(begin.origin.as_deref().unwrap_or_default().as_bytes());
            }
            Self::Change { id, tables, message } => {
                out.push(b'D');
                out.extend_from_slice(&id.commit_lsn.0.to_be_bytes());
                out.extend_from_slice(&id.seq.to_be_bytes());
                out.extend_from_slice(&u32::try_from(tables.len()).unwrap_or(u32::MAX).to_be_bytes());
                for (oid, version) in tables {
                    out.extend_from_slice(&oid.to_be_bytes());
                    out.extend_from_slice(&version.to_be_bytes());
                }
                out.extend_from_slice(message);
            }
            Self::Commit(commit) => {
                out.push(b'C');
                out.extend_from_slice(&commit.commit_lsn.0.to_be_bytes());
                out.extend_from_slice(&commit.end_lsn.0.to_be_bytes());
                out.extend_from_slice(&commit.commit_time.0.to_be_bytes());
                out.extend_from_slice(&commit.xid.to_be_bytes());
                out.extend_from_slice(&commit.changes.to_be_bytes());
            }
            Self::Message(message) => {
                out.push(b'M');
                out.extend_from_slice(&message.lsn.0.to_be_bytes());
                out.extend_from_slice(&message.end_lsn.0.to_be_bytes());
                out.extend_from_slice(&u32::try_from(message.prefix.len()).unwrap_or(u32::MAX).to_be_bytes());
                out.extend_from_slice(&message.prefix);
                out.extend_from_slice(&message.content);
            }
            Self::Passing(lsn) => {
                out.push(b'X');
                out.extend_from_slice(&lsn.0.to_be_bytes());
            }
            Self::Progress(lsn) => {
                out.push(b'P');
                out.extend_from_slice(&lsn.0.to_be_bytes());
            }
        }
    }

    pub(super) fn decode(mut bytes: Bytes) -> Result<Self, FrameError> {
        let bytes = &mut bytes;
        let kind = bytes.try_get_u8().map_err(|_| FrameError)?;
        let frame = match kind {
            b'B' => {
                let (commit_lsn, commit_time) = (lsn(bytes)?, PgTimestamp(i64(bytes)?));
                let (xid, has_origin) = (u32(bytes)?, bytes.try_get_u8().map_err(|_| FrameError)?);
                let text = std::str::from_utf8(bytes).map_err(|_| FrameError)?;
                let origin = (has_origin == 1).then(|| Arc::from(text));
                Self::Begin(TransactionBegin { commit_lsn, commit_time, xid, origin })
            }
            b'D' => {
                let id = ChangeId { commit_lsn: lsn(bytes)?, seq: u64(bytes)? };
                let tables = u32(bytes)? as usize;
                if tables > bytes.len() / 8 {
                    return Err(FrameError);
                }
                let tables = (0..tables).map(|_| Ok((u32(bytes)?, u32(bytes)?))).collect::<Result<_, FrameError>>()?;
                Self::Change { id, tables, message: std::mem::take(bytes) }
            }
            b'C' => {
                let (commit_lsn, end_lsn) = (lsn(bytes)?, lsn(bytes)?);
                let (commit_time, xid, changes) = (PgTimestamp(i64(bytes)?), u32(bytes)?, u64(bytes)?);
                Self::Commit(TransactionCommit { commit_lsn, end_lsn, commit_time, xid, changes })
            }
            b'M' => {
                let (at, end_lsn, prefix) = (lsn(bytes)?, lsn(bytes)?, u32(bytes)? as usize);
                if prefix > bytes.len() {
                    return Err(FrameError);
                }
                let prefix = bytes.split_to(prefix);
                Self::Message(LooseMessage { lsn: at, end_lsn, prefix, content: std::mem::take(bytes) })
            }
            b'X' => Self::Passing(lsn(bytes)?),
            b'P' => Self::Progress(lsn(bytes)?),
            _ => return Err(FrameError),
        };
        Ok(frame)
    }
}

fn u32(bytes: &mut Bytes) -> Result<u32, FrameError> {
    bytes.try_get_u32().map_err(|_| FrameError)
}

fn u64(bytes: &mut Bytes) -> Result<u64, FrameError> {
    bytes.try_get_u64().map_err(|_| FrameError)
}

fn i64(bytes: &mut Bytes) -> Result<i64, FrameError> {
    bytes.try_get_i64().map_err(|_| FrameError)
}

fn lsn(bytes: &mut Bytes) -> Result<Lsn, FrameError> {
    u64(bytes).map(Lsn)
}

/// The largest part of a frame in one record of the journal.
pub(super) const PART_BYTES_MAX: usize = 256 << 10;
/// The largest frame: a message of the protocol is shorter.
const FRAME_BYTES_MAX: usize = (1 << 30) + (1 << 20);

/// First byte of a record: a whole frame, or its first, middle or last part.
const WHOLE: u8 = 0;
const FIRST: u8 = 1;
const MIDDLE: u8 = 2;
const LAST: u8 = 3;

/// Splits a frame into records.
pub(super) fn split(frame: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let parts = frame.len().div_ceil(PART_BYTES_MAX).max(1);
    let kind = move |index: usize| match index {
        0 if parts == 1 => WHOLE,
        0 => FIRST,
        index if index + 1 == parts => LAST,
        _ => MIDDLE,
    };
    frame.chunks(PART_BYTES_MAX).enumerate().map(move |(index, part)| (kind(index), part))
}

/// Joins the records of a frame. A frame without its last part was cut off by a crash, and is discarded.
#[derive(Debug, Default)]
pub(super) struct FrameJoiner {
    parts: Option<Vec<u8>>,
}

impl FrameJoiner {
    /// Adds a record. Returns the frame that it completes.
    pub(super) fn push(&mut self, record: &[u8]) -> Result<Option<Bytes>, FrameError> {
        let Some((kind, part)) = record.split_first() else { return Err(FrameError) };
        match *kind {
            WHOLE => {
                self.parts = None;
                return Ok(Some(Bytes::copy_from_slice(part)));
            }
            FIRST => self.parts = Some(part.to_vec()),
            MIDDLE | LAST => {
                // The first part was released: the frame was read before.
                let Some(parts) = &mut self.parts else { return Ok(None) };
                if parts.len() + part.len() > FRAME_BYTES_MAX {
                    return Err(FrameError);
                }
                parts.extend_from_slice(part);
                if *kind == LAST {
                    return Ok(self.parts.take().map(Bytes::from));
                }
            }
            _ => return Err(FrameError),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<SpoolFrame> {
        let begin = TransactionBegin { commit_lsn: Lsn(9), commit_time: PgTimestamp(-5), xid: 7, origin: None };
        vec![
            SpoolFrame::Begin(begin.clone()),
            SpoolFrame::Begin(TransactionBegin { origin: Some("ö".into()), ..begin.clone() }),
            SpoolFrame::Begin(TransactionBegin { origin: Some("".into()), ..begin }),
            SpoolFrame::Change {
                id: ChangeId { commit_lsn: Lsn(9), seq: 3 },
                tables: [(1, 2), (3, 4)].into(),
                message: Bytes::from_static(b"message"),
            },
            SpoolFrame::Commit(TransactionCommit {
                commit_lsn: Lsn(9),
                end_lsn: Lsn(12),
                commit_time: PgTimestamp(5),
                xid: 7,
                changes: 4,
            }),
            SpoolFrame::Message(LooseMessage {
                lsn: Lsn(1),
                end_lsn: Lsn(2),
                prefix: Bytes::from_static(b"p"),
                content: Bytes::from_static(b"c"),
            }),
            SpoolFrame::Passing(Lsn(9)),
            SpoolFrame::Progress(Lsn(u64::MAX)),
        ]
    }

    #[test]
    fn frames_round_trip_and_cut_ones_are_refused() {
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert_eq!(SpoolFrame::decode(Bytes::from(bytes.clone())), Ok(frame.clone()));
            for end in 0..bytes.len().min(8) {
                assert_eq!(SpoolFrame::decode(Bytes::copy_from_slice(&bytes[..end])), Err(FrameError), "{frame:?}");
            }
        }
    }

    /// CH-55: n - 1, n and n + 1 bytes, and several parts.
    #[test]
    fn long_frames_are_split_and_joined() {
        for len in
            [1, PART_BYTES_MAX - 1, PART_BYTES_MAX, PART_BYTES_MAX + 1, 3 * PART_BYTES_MAX, 3 * PART_BYTES_MAX + 7]
        {
            let frame: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let records: Vec<Vec<u8>> = split(&frame).map(|(kind, part)| [&[kind], part].concat()).collect();
            assert_eq!(records.len(), len.div_ceil(PART_BYTES_MAX));
            let mut joiner = FrameJoiner::default();
            let mut found = None;
            for record in &records {
                assert!(found.is_none());
                found = joiner.push(record).unwrap();
            }
            assert_eq!(found.as_deref(), Some(&frame[..]), "{len}");
        }
    }

    /// A crash cut off the first frame.
    #[test]
    fn cut_frame_is_discarded() {
        let mut joiner = FrameJoiner::default();
        assert_eq!(joiner.push(&[FIRST, 1]), Ok(None));
        assert_eq!(joiner.push(&[MIDDLE, 2]), Ok(None));
        assert_eq!(joiner.push(&[FIRST, 3]), Ok(None));
        assert_eq!(joiner.push(&[LAST, 4]).unwrap().as_deref(), Some(&[3, 4][..]));
        assert_eq!(joiner.push(&[LAST, 5]), Ok(None), "without a first part");
        assert_eq!(joiner.push(&[9]), Err(FrameError));
        assert_eq!(joiner.push(&[]), Err(FrameError));
    }
}
