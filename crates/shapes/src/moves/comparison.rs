//! The comparison of the log of a shape with a snapshot: the differences are appended to the log.
//!
//! These messages have no `txids`, because they are the effect of several transactions. The message `snapshot-end` after them
//! names those.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::stored_rows::{self, HashedRows, KeyHash, KeyPart, RowHasher, RowState, StoredRow};
use super::{MOVED_BYTES_MAX, first_row, read_sets, refused, send_results, unavailable, values};
use crate::database::{query_text, wait_for_commits};
use crate::offset::LogOffset;
use crate::parameters::LogMode;
use crate::routing::{HeldRow, Move, MoveQuery, MovedRows, RouteCommand, SeamResult, SubqueryResults};
use crate::row_form::{ChangeOrigin, ShapeChange, push_last};
use crate::run::push_item;
use crate::server::ShapeServer;
use crate::shape::{Shape, SnapshotFailure};
use crate::snapshotter::{TURN_LIMIT, begin, stopping};

const OPS_PER_CHANGE: u64 = 2;

/// Compares a shape, and sends the results of its subqueries to the routing task.
pub(super) async fn compare(server: &Arc<ShapeServer>, moved: &Move) -> Result<SeamResult, SnapshotFailure> {
    let Move { shape, predicate, query: reason, .. } = moved;
    let is_restored = *reason == MoveQuery::Restored;
    if shape.definition.log == LogMode::ChangesOnly {
        return Err(refused("the rows of a shape without snapshot are not known"));
    }
    let turn = server.snapshot_turn().await?;
    let client = server.client().await.map_err(|error| unavailable(error.to_string()))?;
    if is_restored {
        // Commits that were decoded before the restart are visible then.
        server.all_visible.get_or_try_init(|| wait_for_commits(&client)).await?;
    }
    let (hasher, mut parts) = (RowHasher::default(), vec![KeyPart::ALL]);
    let mut stored = stored_rows::hashed_rows(server, shape, &hasher, &mut parts).await?;
    let query = begin(server, shape, &client).await?;
    let limit = server.options.first_row;
    let sets = read_sets(&query, predicate, limit).await?;
    let form = &shape.definition.form;
    let (sql, columns) = query_text(form, &[predicate.canonical()], "");
    let mut difference = Difference::default();
    // The transaction returns the same rows for each part.
    while let Some(mut part) = stored.take() {
        let mut rows = first_row(&query, &sql, limit).await?;
        while let Some(row) = rows.next().await? {
            let row = values(&row, &columns, form.table.columns.len())?;
            difference.compare(&mut part, &form.key(&row), &row)?;
        }
        difference.end_part(&part)?;
        drop(part);
        stored = stored_rows::hashed_rows(server, shape, &hasher, &mut parts).await?;
    }
    let filter = query.filter.clone();
    query.end().await?;
    client.release();
    drop(turn);
    let old = stored_rows::rows(server, shape, &hasher, difference.keys()).await?;
    let moves = match difference.is_empty() {
        true => None,
        false => {
            let lsn = if is_restored { first_held(server, shape).await? } else { moved.lsn };
            Some(difference.messages(shape, lsn, &old, &filter.snapshot.end_message())?)
        }
    };
    let results = SubqueryResults { sets, filter, moves, is_at_first_held: is_restored };
    send_results(server, shape, results).await
}

/// The position of the first transaction that the shape holds: that the snapshot differs from the log is the effect of it or of
/// later ones, so it arrives soon if it has not. No answer has announced a position at or after it.
async fn first_held(server: &ShapeServer, shape: &Shape) -> Result<u64, SnapshotFailure> {
    let (done, first) = oneshot::channel();
    server.commands.send(RouteCommand::FirstHeld { id: shape.id, done }).await.map_err(stopping)?;
    let late = |_| unavailable("the stream has no transaction that explains how the rows differ");
    tokio::time::timeout(TURN_LIMIT, first).await.map_err(late)?.map_err(stopping)
}

/// The difference between the log of a shape and a snapshot.
#[derive(Default)]
struct Difference {
    new: Vec<HeldRow>,
    changed: Vec<(KeyHash, HeldRow)>,
    /// Rows of the log that the snapshot has not returned: a key as often as there are rows.
    gone: Vec<KeyHash>,
    bytes: usize,
}

impl Difference {
    /// Compares a row of the snapshot, if its key is in the part of the stored ones.
    fn compare(&mut self, stored: &mut HashedRows, key: &[u8], row: &[Option<&[u8]>]) -> Result<(), SnapshotFailure> {
        let key = stored.hasher.key(String::from_utf8_lossy(key).as_bytes());
        if !stored.part.has(key) {
            return Ok(());
        }
        let state = stored.take(key, row);
        if state == RowState::Same {
            return Ok(());
        }
        let row = HeldRow::new(row);
        let bytes = row.bytes();
        match state {
            RowState::Changed => self.changed.push((key, row)),
            RowState::New | RowState::Same => self.new.push(row),
        }
        self.count(bytes)
    }

    /// Ends the comparison of a part of the rows.
    fn end_part(&mut self, stored: &HashedRows) -> Result<(), SnapshotFailure> {
        let before = self.gone.len();
        self.gone.extend(stored.left());
        self.count((self.gone.len() - before) * size_of::<KeyHash>())
    }

    fn count(&mut self, bytes: usize) -> Result<(), SnapshotFailure> {
        self.bytes += bytes;
        match self.bytes > MOVED_BYTES_MAX {
            true => Err(refused(format!("more than {MOVED_BYTES_MAX} bytes of rows have moved"))),
            false => Ok(()),
        }
    }

    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.changed.is_empty() && self.gone.is_empty()
    }

    /// The rows of the log whose values are needed.
    fn keys(&self) -> HashSet<KeyHash> {
        self.changed.iter().map(|(key, _)| *key).chain(self.gone.iter().copied()).collect()
    }

    /// The messages. `old` are the rows of [`Self::keys`].
    fn messages(
        &self,
        shape: &Shape,
        lsn: u64,
        old: &HashMap<KeyHash, StoredRow>,
        snapshot_end: &[u8],
    ) -> Result<MovedRows, SnapshotFailure> {
        let definition = &shape.definition;
        let mut messages = Vec::new();
        let mut bytes = 0;
        let mut push = |change: ShapeChange<'_>, rows: i64| {
            // Several transactions have moved the rows. A number of an operation that needs two has the second after it.
            let origin = ChangeOrigin { lsn, op: messages.len() as u64 * OPS_PER_CHANGE, txid: 0 };
            for message in definition.form.change(change, definition.replica, origin) {
                bytes += message.json.len();
                messages.push((message.json, rows));
            }
            match bytes > MOVED_BYTES_MAX {
                true => Err(refused(format!("more than {MOVED_BYTES_MAX} bytes of rows have moved"))),
                false => Ok(()),
            }
        };
        for row in &self.new {
            push(ShapeChange::Insert { new: &row.values() }, 1)?;
        }
        for (key, row) in &self.changed {
            let old = old.get(key).map(stored_values).unwrap_or_default();
            push(ShapeChange::Update { old: &old, new: &row.values() }, 0)?;
        }
        for row in self.gone.iter().filter_map(|key| old.get(key)) {
            push(ShapeChange::Delete { old: &stored_values(row) }, -1)?;
        }
        let offset = |number: usize| LogOffset { tx: lsn, op: number as u64 * OPS_PER_CHANGE };
        let count = messages.len();
        let (mut run, mut rows) = (Vec::with_capacity(bytes), 0);
        for (number, (json, added)) in messages.iter().enumerate() {
            rows += added;
            push_item(&mut run, offset(number), |out| match number + 1 == count {
                true => push_last(out, json),
                false => out.extend_from_slice(json),
            });
        }
        push_item(&mut run, offset(count), |out| out.extend_from_slice(snapshot_end));
        Ok(MovedRows { run, ends: (offset(0), offset(count)), rows })
    }
}

fn stored_values(row: &StoredRow) -> Vec<Option<&[u8]>> {
    row.iter().map(|value| value.as_ref().map(String::as_bytes)).collect()
}
