//! A transaction that is being received.

use rustc_hash::FxHashMap;

use crate::offset::LogOffset;
use crate::row_form::{ChangeMessage, push_last};
use crate::run::push_item;
use crate::shape::ShapeId;
use crate::store::RUN_BYTES_MAX;

/// Limit of the messages of one transaction that are in memory, for all shapes together.
const TRANSACTION_BYTES_MAX: usize = 1 << 30;
/// Messages of one transaction for one shape that are written before its commit.
pub(super) const PART_LEN: usize = 1 << 20;

/// Treatment of the messages of a transaction for a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunMode {
    /// The snapshot of the shape has them.
    Skip,
    /// Whether the snapshot has them is not known yet: they stay in memory.
    Hold,
    /// Many are written before the commit.
    Write,
}

/// Messages that are written before the commit of their transaction.
#[derive(Debug)]
pub(super) struct RunPart {
    pub(super) shape: ShapeId,
    pub(super) bytes: Vec<u8>,
    pub(super) first: LogOffset,
    pub(super) last: LogOffset,
}

/// The messages of a transaction for one shape.
#[derive(Debug)]
pub(super) struct OpenRun {
    pub(super) bytes: Vec<u8>,
    pub(super) first: LogOffset,
    pub(super) last: LogOffset,
    /// The position before [`Self::last`].
    before_last: LogOffset,
    /// Where the last item begins: its message gets `last` at the end of the transaction.
    last_at: usize,
    last_len: usize,
}

impl OpenRun {
    fn push(&mut self, offset: LogOffset, json: &[u8]) {
        self.last_at = self.bytes.len();
        self.last_len = json.len();
        (self.before_last, self.last) = (self.last, offset);
        push_item(&mut self.bytes, offset, |out| out.extend_from_slice(json));
    }

    /// Takes all messages but the last, which is marked at the commit. `None` if there is one only.
    fn take_part(&mut self, shape: ShapeId) -> Option<RunPart> {
        if self.last_at == 0 {
            return None;
        }
        let rest = self.bytes.split_off(self.last_at);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let first = std::mem::replace(&mut self.first, self.last);
        self.last_at = 0;
        Some(RunPart { shape, bytes, first, last: self.before_last })
    }

    /// Marks the last message.
    pub(super) fn finish(&mut self) {
        let json = self.bytes.split_off(self.bytes.len() - self.last_len);
        self.bytes.truncate(self.last_at);
        push_item(&mut self.bytes, self.last, |out| push_last(out, &json));
        self.bytes.shrink_to_fit();
    }
}

/// A transaction between its begin and its commit.
#[derive(Debug)]
pub(super) struct OpenTransaction {
    pub(super) lsn: u64,
    pub(super) xid: u64,
    pub(super) txid: u32,
    pub(super) runs: FxHashMap<ShapeId, OpenRun>,
    /// Shapes that get too much of it.
    pub(super) oversized: Vec<ShapeId>,
    /// Parts to write.
    pub(super) parts: Vec<RunPart>,
    bytes: usize,
}

impl OpenTransaction {
    pub(super) fn new(lsn: u64, xid: u64, txid: u32) -> Self {
        Self { lsn, xid, txid, runs: FxHashMap::default(), oversized: Vec::new(), parts: Vec::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, shape: ShapeId, messages: &[ChangeMessage], mode: RunMode) {
        if mode == RunMode::Skip {
            return;
        }
        let Some(first) = messages.first() else { return };
        if self.oversized.contains(&shape) {
            return;
        }
        let offset = |op| LogOffset { tx: self.lsn, op };
        let new = || OpenRun {
            bytes: Vec::new(),
            first: offset(first.op),
            last: offset(0),
            before_last: offset(0),
            last_at: 0,
            last_len: 0,
        };
        let run = self.runs.entry(shape).or_insert_with(new);
        for message in messages {
            run.push(LogOffset { tx: self.lsn, op: message.op }, &message.json);
            self.bytes += message.json.len();
        }
        if mode == RunMode::Write
            && run.bytes.len() >= PART_LEN
            && let Some(part) = run.take_part(shape)
        {
            self.bytes = self.bytes.saturating_sub(part.bytes.len());
            self.parts.push(part);
        }
        if run.bytes.len() > RUN_BYTES_MAX || self.bytes > TRANSACTION_BYTES_MAX {
            self.bytes = self.bytes.saturating_sub(run.bytes.len());
            self.runs.remove(&shape);
            self.oversized.push(shape);
        }
    }
}
