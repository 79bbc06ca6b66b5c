//! A transaction that is being received.

use rustc_hash::FxHashMap;

use crate::offset::LogOffset;
use crate::row_form::{ChangeMessage, push_last};
use crate::run::push_item;
use crate::shape::ShapeId;
use crate::store::RUN_BYTES_MAX;

/// Limit of the messages of one transaction for all shapes together.
const TRANSACTION_BYTES_MAX: usize = 256 << 20;

/// The messages of a transaction for one shape.
#[derive(Debug)]
pub(super) struct OpenRun {
    pub(super) bytes: Vec<u8>,
    pub(super) first: LogOffset,
    pub(super) last: LogOffset,
    /// Rows that the shape has more.
    pub(super) rows: i64,
    /// Where the last item begins: its message gets `last` at the end of the transaction.
    last_at: usize,
    last_len: usize,
}

impl OpenRun {
    fn push(&mut self, offset: LogOffset, json: &[u8]) {
        self.last_at = self.bytes.len();
        self.last_len = json.len();
        self.last = offset;
        push_item(&mut self.bytes, offset, |out| out.extend_from_slice(json));
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
    bytes: usize,
}

impl OpenTransaction {
    pub(super) fn new(lsn: u64, xid: u64, txid: u32) -> Self {
        Self { lsn, xid, txid, runs: FxHashMap::default(), oversized: Vec::new(), bytes: 0 }
    }

    /// Adds the messages of a change, which adds `rows` rows to the shape.
    pub(super) fn push(&mut self, shape: ShapeId, messages: &[ChangeMessage], rows: i64) {
        let Some(first) = messages.first() else { return };
        if self.oversized.contains(&shape) {
            return;
        }
        let offset = |op| LogOffset { tx: self.lsn, op };
        let new = || OpenRun {
            bytes: Vec::new(),
            first: offset(first.op),
            last: offset(0),
            rows: 0,
            last_at: 0,
            last_len: 0,
        };
        let run = self.runs.entry(shape).or_insert_with(new);
        run.rows = run.rows.saturating_add(rows);
        for message in messages {
            run.push(LogOffset { tx: self.lsn, op: message.op }, &message.json);
            self.bytes += message.json.len();
        }
        if run.bytes.len() > RUN_BYTES_MAX || self.bytes > TRANSACTION_BYTES_MAX {
            self.bytes = self.bytes.saturating_sub(run.bytes.len());
            self.runs.remove(&shape);
            self.oversized.push(shape);
        }
    }
}
