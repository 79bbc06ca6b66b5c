//! A transaction that is being received.

use rustc_hash::FxHashMap;

use crate::definition::ShapeDefinition;
use crate::offset::LogOffset;
use crate::row_form::{ChangeMessage, ChangeOrigin, RowValues, ShapeChange, push_last};
use crate::run::push_item;
use crate::shape::ShapeId;
use crate::store::RUN_BYTES_MAX;

/// Limit of the messages of one transaction that are in memory, for all shapes together.
const TRANSACTION_BYTES_MAX: usize = 256 << 20;
/// Messages of one transaction for one shape that are written before its commit.
pub(super) const PART_LEN: usize = 1 << 20;

/// Operations have even numbers, because a changed key takes two.
pub(super) const OPS_PER_CHANGE: u64 = 2;

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
    /// Rows that the shape has more.
    pub(super) rows: i64,
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

    /// The number of the change after the last one.
    pub(super) fn next_seq(&self) -> u64 {
        self.last.op / OPS_PER_CHANGE + 1
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
pub(super) struct RoutedTransaction {
    pub(super) lsn: u64,
    pub(super) xid: u64,
    pub(super) txid: u32,
    pub(super) runs: FxHashMap<ShapeId, OpenRun>,
    /// Shapes that get too much of it.
    pub(super) oversized: Vec<ShapeId>,
    /// Parts to write.
    pub(super) parts: Vec<RunPart>,
    /// Whether it was applied before: logs skip it by their end, the results of subqueries by this.
    pub(super) is_repeated: bool,
    /// Shapes with subqueries that have state of this transaction.
    pub(super) touched: Vec<ShapeId>,
    bytes: usize,
    bytes_max: usize,
}

impl RoutedTransaction {
    pub(super) fn new(lsn: u64, xid: u64, txid: u32) -> Self {
        Self {
            lsn,
            xid,
            txid,
            runs: FxHashMap::default(),
            oversized: Vec::new(),
            parts: Vec::new(),
            is_repeated: false,
            touched: Vec::new(),
            bytes: 0,
            bytes_max: TRANSACTION_BYTES_MAX,
        }
    }

    /// Lists a shape with subqueries, once.
    pub(super) fn touch(&mut self, id: ShapeId, is_touched: &mut bool) {
        if !std::mem::replace(is_touched, true) {
            self.touched.push(id);
        }
    }

    /// Adds the messages of a change for one shape, none of which is written before the commit.
    pub(super) fn push_change(
        &mut self,
        shape: ShapeId,
        definition: &ShapeDefinition,
        seq: u64,
        old: Option<&RowValues<'_>>,
        new: Option<&RowValues<'_>>,
    ) {
        let (change, rows) = match (old, new) {
            (Some(old), Some(new)) => (ShapeChange::Update { old, new }, 0),
            (None, Some(new)) => (ShapeChange::Insert { new }, 1),
            (Some(old), None) => (ShapeChange::Delete { old }, -1),
            (None, None) => return,
        };
        let origin = ChangeOrigin { lsn: self.lsn, op: seq.saturating_mul(OPS_PER_CHANGE), txid: self.txid };
        self.push(shape, &definition.form.change(change, definition.replica, origin), rows, RunMode::Hold);
    }

    /// Adds the messages of a change, which adds `rows` rows to the shape.
    pub(super) fn push(&mut self, shape: ShapeId, messages: &[ChangeMessage], rows: i64, mode: RunMode) {
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
            rows: 0,
            before_last: offset(0),
            last_at: 0,
            last_len: 0,
        };
        let run = self.runs.entry(shape).or_insert_with(new);
        run.rows = run.rows.saturating_add(rows);
        let len = run.bytes.len();
        for message in messages {
            run.push(LogOffset { tx: self.lsn, op: message.op }, &message.json);
        }
        self.bytes += run.bytes.len() - len;
        if mode == RunMode::Write
            && (run.bytes.len() >= PART_LEN || self.bytes > self.bytes_max)
            && let Some(part) = run.take_part(shape)
        {
            self.bytes = self.bytes.saturating_sub(part.bytes.len());
            self.parts.push(part);
        }
        if run.bytes.len() > RUN_BYTES_MAX || self.bytes > self.bytes_max {
            self.bytes = self.bytes.saturating_sub(run.bytes.len());
            self.runs.remove(&shape);
            self.oversized.push(shape);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 1000;

    fn pushed(mode: RunMode) -> RoutedTransaction {
        let mut open = RoutedTransaction::new(50, 1, 1);
        open.bytes_max = BYTES_MAX;
        let json = br#"{"key":"1","headers":{"operation":"insert"}}"#.to_vec();
        for op in 0..100 {
            for shape in 0..5 {
                open.push(shape, &[ChangeMessage { op, json: json.clone() }], 1, mode);
                let bytes: usize = open.runs.values().map(|run| run.bytes.len()).sum();
                assert!(bytes <= BYTES_MAX && open.bytes == bytes);
            }
        }
        open
    }

    #[test]
    fn memory_of_all_shapes_together_has_a_limit() {
        let written = pushed(RunMode::Write);
        assert!(written.oversized.is_empty() && written.parts.len() > 5, "{written:?}");
        assert!(written.runs.values().all(|run| run.rows == 100 && run.last.op == 99));
        let held = pushed(RunMode::Hold);
        assert!(!held.oversized.is_empty() && held.parts.is_empty(), "{held:?}");
        assert!(pushed(RunMode::Skip).runs.is_empty());
    }
}
