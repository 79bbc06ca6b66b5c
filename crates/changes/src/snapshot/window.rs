//! The window between the marks of a chunk: decides which of its rows are delivered.
//!
//! The rules follow DBLog (<https://arxiv.org/abs/2010.12597>), with two additions. A chunk whose snapshot does not show a
//! transaction that was delivered before the window is read again: a commit is in the WAL before other sessions see it
//! (CH-66). And a changed row whose change lacks a value (unchanged TOAST) keeps its row of the chunk, which is delivered
//! before the change (CH-42).

use std::collections::{VecDeque, hash_map::Entry};

use rustc_hash::{FxHashMap, FxHashSet};
use tidegate_wire::replication::pgoutput::ColumnValue;

use crate::{
    change::{Change, ChangeKind, RowChange, RowOperation},
    relation::RelationColumn,
};

/// A snapshot as `pg_current_snapshot()` shows it: `xmin:xmax:xip,...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgSnapshot {
    xmin: u64,
    xmax: u64,
    running: FxHashSet<u64>,
}

impl PgSnapshot {
    /// Parses the text of the server; `None` if it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (xmin, xmax) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let running = parts.next()?.split(',').filter(|xid| !xid.is_empty()).map(|xid| xid.parse().ok());
        Some(Self { xmin, xmax, running: running.collect::<Option<_>>()? })
    }

    /// The full id of a transaction whose lower half is known: the one nearest to the end of the snapshot.
    fn full_xid(&self, xid: u32) -> u64 {
        let distance = xid.wrapping_sub(self.xmax as u32).cast_signed();
        self.xmax.saturating_add_signed(distance.into())
    }

    /// Whether the snapshot shows this committed transaction, which is less than 2^31 transactions away from it.
    #[must_use]
    pub fn shows(&self, xid: u32) -> bool {
        let xid = self.full_xid(xid);
        xid < self.xmax && !self.running.contains(&xid)
    }

    /// Whether every later snapshot shows this committed transaction.
    fn shows_for_ever(&self, xid: u32) -> bool {
        self.full_xid(xid) < self.xmin
    }
}

/// Transactions of the stream that a snapshot may not show yet, in the order of the stream.
#[derive(Debug, Default)]
pub(super) struct DeliveredTransactions {
    /// The number of each transaction, and its id.
    transactions: VecDeque<(u64, u32)>,
    next_number: u64,
}

/// Transactions that are remembered while no table is copied: many more than sessions that can wait for a standby.
const DELIVERED_MAX: usize = 1 << 18;

impl DeliveredTransactions {
    pub(super) fn push(&mut self, xid: u32) {
        if self.transactions.len() == DELIVERED_MAX {
            self.transactions.pop_front();
        }
        self.transactions.push_back((self.next_number, xid));
        self.next_number += 1;
    }

    /// The number of the next transaction.
    pub(super) const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The first transaction with a number below `end` that the snapshot does not show.
    pub(super) fn missing_in(&self, snapshot: &PgSnapshot, end: u64) -> Option<u32> {
        let mut before = self.transactions.iter().take_while(|(number, _)| *number < end).map(|(_, xid)| *xid);
        before.find(|xid| !snapshot.shows(*xid))
    }

    /// Forgets what every later snapshot shows.
    pub(super) fn forget_shown(&mut self, snapshot: &PgSnapshot) {
        self.transactions.retain(|(_, xid)| !snapshot.shows_for_ever(*xid));
    }
}

/// The key of a row: the text of each key column, after its length.
pub(super) type RowKey = Vec<u8>;

/// Encodes a key. `None` if a value is not known.
pub(super) fn row_key<'a>(values: impl Iterator<Item = Option<ColumnValue<'a>>>) -> Option<RowKey> {
    let mut key = Vec::new();
    for value in values {
        let bytes = value?.bytes()?;
        key.extend_from_slice(&u64::try_from(bytes.len()).ok()?.to_be_bytes());
        key.extend_from_slice(bytes);
    }
    Some(key)
}

/// The first change of a row in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstChange {
    /// The stream holds the whole row, or its end: the row of the chunk is older or equal.
    Complete,
    /// The stream lacks a value that only the chunk has.
    Incomplete,
}

/// Changes of one table in the window.
#[derive(Debug, Default)]
pub(super) struct TableWindow {
    changed: FxHashMap<RowKey, FirstChange>,
    is_truncated: bool,
    /// A change whose key is not known: no row of the chunk is certain.
    is_unknown: bool,
}

/// The fate of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkVerdict {
    /// Rows that [`TableWindow::keeps`] accepts are delivered.
    Keep,
    /// The chunk is read again.
    ReadAgain,
}

impl TableWindow {
    fn row(&mut self, row: &RowChange, key_columns: &[String]) {
        let old = find_key(row.before(), key_columns);
        let new = find_key(row.after(), key_columns);
        let is_incomplete = row.after().any(|(_, value)| value == ColumnValue::Unchanged);
        match row.operation() {
            RowOperation::Insert => self.note(new, FirstChange::Complete),
            RowOperation::Delete => self.note(old, FirstChange::Complete),
            RowOperation::Update => {
                let kind = if is_incomplete { FirstChange::Incomplete } else { FirstChange::Complete };
                if row.old_tuple().is_some() {
                    // The chunk may hold the missing value in the row of the old key.
                    self.note(old, kind);
                }
                self.note(new, kind);
            }
        }
    }

    fn note(&mut self, key: Option<RowKey>, kind: FirstChange) {
        match key.map(|key| self.changed.entry(key)) {
            Some(Entry::Vacant(entry)) => {
                entry.insert(kind);
            }
            Some(Entry::Occupied(_)) => {}
            None => self.is_unknown = true,
        }
    }

    /// Whether a row of the chunk is delivered.
    pub(super) fn keeps(&self, key: Option<&RowKey>) -> bool {
        let Some(key) = key else { return true };
        self.changed.get(key).is_none_or(|change| *change == FirstChange::Incomplete)
    }

    /// Whether no row has changed, so that keys need not be compared.
    pub(super) fn is_quiet(&self) -> bool {
        self.changed.is_empty()
    }

    pub(super) fn verdict(&self) -> ChunkVerdict {
        if self.is_unknown || self.is_truncated { ChunkVerdict::ReadAgain } else { ChunkVerdict::Keep }
    }
}

fn find_key<'a>(
    columns: impl Iterator<Item = (&'a RelationColumn, ColumnValue<'a>)>,
    key_columns: &[String],
) -> Option<RowKey> {
    let columns: Vec<_> = columns.filter(|(column, _)| key_columns.iter().any(|key| **key == *column.name)).collect();
    let value = |key: &String| columns.iter().find(|(column, _)| *column.name == **key).map(|(_, value)| *value);
    row_key(key_columns.iter().map(value))
}

/// Changes of a table between the marks of a chunk.
#[derive(Debug)]
pub(super) struct Window {
    oid: u32,
    /// Names of the key columns.
    key: Vec<String>,
    table: TableWindow,
}

impl Window {
    pub(super) fn new(oid: u32, key: Vec<String>) -> Self {
        Self { oid, key, table: TableWindow::default() }
    }

    /// Notes a change between the marks.
    pub(super) fn change(&mut self, change: &Change) {
        match &change.kind {
            ChangeKind::Row(row) if row.relation().oid == self.oid => self.table.row(row, &self.key),
            ChangeKind::Truncate(truncate) if truncate.relations.iter().any(|relation| relation.oid == self.oid) => {
                self.table.is_truncated = true;
            }
            _ => {}
        }
    }

    pub(super) fn into_table(self) -> TableWindow {
        self.table
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        change::ChangeId,
        relation::{Relation, Relations},
    };
    use tidegate_wire::replication::{
        Lsn,
        pgoutput::{
            ReplicaIdentity,
            encode::{self, OldColumns},
        },
    };

    const TEXT: fn(&str) -> ColumnValue<'_> = |text| ColumnValue::Text(text.as_bytes());

    fn change(write: impl FnOnce(&mut Vec<u8>)) -> Change {
        let column =
            |name: &str| RelationColumn { name: name.into(), type_oid: 25, type_modifier: -1, is_key: name == "id" };
        let table = Relation {
            oid: 1,
            schema: "public".into(),
            name: "t".into(),
            identity: ReplicaIdentity::Default,
            columns: [column("id"), column("v")].into(),
            version: 1,
        };
        let mut relations = Relations::default();
        relations.restore(Arc::new(table));
        let mut frame = Vec::new();
        write(&mut frame);
        Change::decode(ChangeId { commit_lsn: Lsn(1), seq: 0 }, &frame.into(), &relations).unwrap()
    }

    fn window(changes: &[Change]) -> TableWindow {
        let mut window = Window::new(1, vec!["id".to_owned()]);
        changes.iter().for_each(|change| window.change(change));
        window.into_table()
    }

    fn keeps(window: &TableWindow, id: &str) -> bool {
        window.keeps(row_key([Some(TEXT(id))].into_iter()).as_ref())
    }

    fn update(id: &str, value: ColumnValue<'_>) -> Change {
        change(|out| encode::update(None, 1, None, &[TEXT(id), value], out))
    }

    #[test]
    fn changed_rows_are_left_to_the_stream() {
        let window = window(&[
            change(|out| encode::insert(None, 1, &[TEXT("1"), TEXT("a")], out)),
            update("2", TEXT("b")),
            change(|out| encode::delete(None, 1, OldColumns::Key(&[TEXT("3"), ColumnValue::Null]), out)),
            change(|out| {
                let old = OldColumns::Key(&[TEXT("4"), ColumnValue::Null]);
                encode::update(None, 1, Some(old), &[TEXT("5"), TEXT("c")], out);
            }),
        ]);
        assert_eq!(
            ["1", "2", "3", "4", "5", "6"].map(|id| keeps(&window, id)),
            [false, false, false, false, false, true]
        );
        assert_eq!(window.verdict(), ChunkVerdict::Keep);
    }

    /// CH-42.
    #[test]
    fn row_with_a_missing_value_keeps_its_chunk_row() {
        let first = window(&[update("1", ColumnValue::Unchanged), update("1", TEXT("b"))]);
        assert!(keeps(&first, "1"));
        let second = window(&[update("1", TEXT("b")), update("1", ColumnValue::Unchanged)]);
        assert!(!keeps(&second, "1"));
    }

    #[test]
    fn truncate_and_unknown_keys_need_another_read() {
        let truncated = window(&[change(|out| encode::truncate(None, &[1], false, false, out))]);
        assert_eq!(truncated.verdict(), ChunkVerdict::ReadAgain);
        let unknown = window(&[change(|out| {
            encode::update(None, 1, None, &[ColumnValue::Unchanged, TEXT("a")], out);
        })]);
        assert_eq!(unknown.verdict(), ChunkVerdict::ReadAgain);
    }

    /// CH-66.
    #[test]
    fn snapshot_must_show_delivered_transactions() {
        let snapshot = PgSnapshot::parse("100:110:103,105").unwrap();
        let mut delivered = DeliveredTransactions::default();
        for xid in [99, 102, 104, 109] {
            delivered.push(xid);
        }
        assert_eq!(delivered.missing_in(&snapshot, delivered.next_number()), None);
        delivered.push(105);
        assert_eq!(delivered.missing_in(&snapshot, 4), None, "the transaction comes after the chunk");
        assert_eq!(delivered.missing_in(&snapshot, 5), Some(105));
        delivered.forget_shown(&snapshot);
        assert_eq!(delivered.transactions, [(1, 102), (2, 104), (3, 109), (4, 105)]);
        assert_eq!(delivered.missing_in(&snapshot, 4), None);
        delivered.push(110);
        assert_eq!(delivered.missing_in(&PgSnapshot::parse("110:110:").unwrap(), 6), Some(110));
    }

    #[test]
    fn transaction_ids_wrap_around() {
        let epoch = 1_u64 << 32;
        let snapshot = PgSnapshot::parse(&format!("{}:{}:", epoch - 5, epoch + 5)).unwrap();
        assert!(snapshot.shows(4) && !snapshot.shows(5) && snapshot.shows(u32::MAX));
        assert!(snapshot.shows_for_ever(u32::MAX - 5) && !snapshot.shows_for_ever(u32::MAX));
        for text in ["", "1", "1:2", "a:b:", "1:2:x"] {
            assert_eq!(PgSnapshot::parse(text), None, "{text}");
        }
    }

    #[test]
    fn keys_of_several_columns_are_not_confused() {
        let key = |one: &str, other: &str| row_key([Some(TEXT(one)), Some(TEXT(other))].into_iter());
        assert_ne!(key("ab", "c"), key("a", "bc"));
        assert_eq!(row_key([Some(ColumnValue::Unchanged)].into_iter()), None);
        assert_eq!(row_key([None].into_iter()), None);
    }
}
