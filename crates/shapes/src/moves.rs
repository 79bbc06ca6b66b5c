//! Rows that enter or leave a shape because the result of a subquery has changed.
//!
//! The log of the shape is compared with a new snapshot, and the differences are appended to it as inserts, updates and deletes.
//! These messages have no `txids`, because they are the effect of several transactions. The message `snapshot-end` after
//! them names those.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use serde::Deserialize;
use tidegate_predicate::{Predicate, ValueSet};
use tidegate_supervise::Ctx;
use tokio::sync::oneshot;

use crate::database::{SnapshotQuery, SnapshotRows, query_text};
use crate::offset::LogOffset;
use crate::parameters::LogMode;
use crate::routing::{Move, MovedRows, RouteCommand, SeamResult, SubqueryResults};
use crate::row_form::{ChangeOrigin, RowChange, RowForm, push_last};
use crate::run::{items, push_item};
use crate::server::{ShapeServer, ShapeTask};
use crate::shape::{Extent, Shape, ShapePhase, SnapshotFailure};
use crate::snapshotter::{TURN_LIMIT, begin, stopping};

/// Limit of the different values of all subqueries of a shape.
const VALUES_MAX: usize = 1_000_000;
/// Limit of the log of a shape that is compared. Clients load a larger one again.
const LOG_BYTES_MAX: u64 = 32 << 20;
/// Limit of the messages of moved rows.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Comparisons one after the other: later ones include the transactions that moved rows during the earlier ones.
const ATTEMPTS_MAX: u32 = 100;
const OPS_PER_CHANGE: u64 = 2;

impl ShapeServer {
    /// Starts the comparison of a shape whose rows have moved.
    pub(crate) fn start_moves(self: &Arc<Self>, moved: Move) {
        let (server, key) = (Arc::clone(self), ShapeTask::Moves(moved.shape.id, moved.lsn));
        let spawned = self.snapshots.spawn_as(key, move |ctx: Ctx| async move {
            tokio::select! {
                () = ctx.cancelled() => {}
                () = run(&server, &moved) => {}
            }
        });
        // Refused while the server is stopping.
        drop(spawned);
    }
}

/// Compares a shape until no transaction moves rows any more. Removes the shape if that fails: clients load it again.
async fn run(server: &Arc<ShapeServer>, moved: &Move) {
    let shape = &moved.shape;
    let is_ended = shape
        .wait_for(|log| match log.phase {
            ShapePhase::Starting | ShapePhase::Snapshotting => None,
            ShapePhase::Complete => Some(false),
            ShapePhase::Failed(_) | ShapePhase::Removed => Some(true),
        })
        .await;
    if is_ended {
        return;
    }
    let mut lsn = moved.lsn;
    for _ in 0..ATTEMPTS_MAX {
        match compare(server, moved, lsn).await {
            Ok(SeamResult::Sound | SeamResult::Gone) => return,
            Ok(SeamResult::Moved(next)) => lsn = next,
            Ok(SeamResult::Retry) => {}
            Err(failure) => {
                tracing::info!(handle = %shape.handle, %failure, "shape removed: rows that moved cannot be compared");
                break;
            }
        }
    }
    server.remove(shape).await;
}

async fn compare(server: &Arc<ShapeServer>, moved: &Move, lsn: u64) -> Result<SeamResult, SnapshotFailure> {
    let Move { shape, predicate, .. } = moved;
    let unavailable = |text: String| SnapshotFailure::Unavailable(text);
    if shape.definition.log == LogMode::ChangesOnly {
        return Err(unavailable("the rows of a shape without snapshot are not known".to_owned()));
    }
    let turn = tokio::time::timeout(TURN_LIMIT, server.snapshot_turns.acquire()).await;
    let busy = |_| unavailable("too many snapshots are waiting".to_owned());
    let _turn = turn.map_err(busy)?.map_err(stopping)?;
    let client = server.client().await.map_err(|error| unavailable(error.to_string()))?;
    // The log has no appends while its changes are held.
    let contents = contents(server, shape).await?;
    let query = begin(server, shape, &client).await?;
    let limit = server.options.first_row;
    let sets = read_sets(&query, predicate, limit).await?;
    let (sql, columns) = query_text(&shape.definition.form, &[predicate.canonical()], "");
    let mut difference = Difference { shape, lsn, contents, changes: Vec::new(), bytes: 0 };
    let mut rows = first_row(&query, &sql, limit).await?;
    while let Some(row) = rows.next().await? {
        let mut values: Vec<Option<&[u8]>> = vec![None; shape.definition.form.table.columns.len()];
        for (index, column) in columns.iter().enumerate() {
            let value = row.try_get(index).map_err(|error| unavailable(crate::database::error_text(&error)))?;
            values[*column] = value.map(str::as_bytes);
        }
        difference.compare(&values)?;
    }
    drop(rows);
    let filter = query.filter.clone();
    query.end().await?;
    client.release();
    let moves = difference.finish(&filter.snapshot.end_message())?;
    send_results(server, shape, SubqueryResults { sets, filter, moves }).await
}

/// Rows of which the first was read ahead.
struct StartedRows {
    first: Option<tokio_postgres::SimpleQueryRow>,
    /// `None` behind the last row: a stream that has ended must not be read again.
    rows: Option<SnapshotRows>,
}

impl StartedRows {
    async fn next(&mut self) -> Result<Option<tokio_postgres::SimpleQueryRow>, SnapshotFailure> {
        match (self.first.take(), &mut self.rows) {
            (None, Some(rows)) => rows.next().await,
            (first, _) => Ok(first),
        }
    }
}

async fn first_row(
    query: &SnapshotQuery<'_>,
    sql: &str,
    limit: std::time::Duration,
) -> Result<StartedRows, SnapshotFailure> {
    let slow = |_| SnapshotFailure::Unavailable(format!("the query had no row within {limit:?}"));
    let started = async {
        let mut rows = query.rows(sql).await?;
        let first = rows.next().await?;
        let rows = first.is_some().then_some(rows);
        Ok(StartedRows { first, rows })
    };
    tokio::time::timeout(limit, started).await.map_err(slow)?
}

/// Reads the results of all subqueries in a snapshot.
///
/// # Errors
/// If a query fails, or has too many values.
pub(crate) async fn read_sets(
    query: &SnapshotQuery<'_>,
    predicate: &Predicate,
    limit: std::time::Duration,
) -> Result<Vec<ValueSet>, SnapshotFailure> {
    let (mut sets, mut count) = (Vec::new(), 0);
    for subquery in predicate.subqueries() {
        let mut set = subquery.empty_set();
        let mut rows = first_row(query, &subquery.text(predicate.subqueries()), limit).await?;
        while let Some(row) = rows.next().await? {
            let refused = |text: String| SnapshotFailure::Refused { field: "where", text };
            let value = row.try_get(0).map_err(|error| refused(error.to_string()))?;
            set.add(value.map(str::as_bytes), 1).map_err(|error| refused(error.to_string()))?;
            if count + set.len() > VALUES_MAX {
                return Err(refused(format!("the subqueries have more than {VALUES_MAX} different values")));
            }
        }
        count += set.len();
        sets.push(set);
    }
    Ok(sets)
}

/// Sends the results of subqueries to the routing task.
///
/// # Errors
/// If the server is stopping.
pub(crate) async fn send_results(
    server: &ShapeServer,
    shape: &Shape,
    results: SubqueryResults,
) -> Result<SeamResult, SnapshotFailure> {
    let (done, result) = oneshot::channel();
    let command = RouteCommand::SubqueriesKnown { id: shape.id, results: Box::new(results), done };
    server.commands.send(command).await.map_err(stopping)?;
    result.await.map_err(stopping)
}

/// Values of a row by the position of the column in the table; those that are not selected are absent.
type StoredRow = Vec<Option<String>>;

/// The rows of a shape by their keys.
type Contents = HashMap<String, StoredRow>;

/// A message of a log.
#[derive(Deserialize)]
struct StoredMessage {
    key: Option<String>,
    #[serde(default)]
    value: HashMap<String, Option<String>>,
    headers: StoredHeaders,
}

#[derive(Deserialize)]
struct StoredHeaders {
    operation: Option<String>,
}

/// Reads the rows that a client of the whole log has.
async fn contents(server: &ShapeServer, shape: &Arc<Shape>) -> Result<Contents, SnapshotFailure> {
    let extents = |extents: &[Extent]| extents.to_vec();
    let (chunks, runs, len) = {
        let log = shape.log();
        let chunks: Vec<Vec<Extent>> = log.pieces.chunk_by(|one, two| one.last == two.last).map(extents).collect();
        (chunks, log.runs.clone(), log.stored_bytes())
    };
    if len > LOG_BYTES_MAX {
        let text = format!("its log has more than {LOG_BYTES_MAX} bytes");
        return Err(SnapshotFailure::Unavailable(text));
    }
    let (store, form) = (server.store.clone(), Arc::clone(&shape.definition.form));
    let read = move || -> io::Result<Contents> {
        let mut contents = Contents::new();
        for chunk in chunks {
            let mut text = b"[".to_vec();
            for piece in &chunk {
                text.extend_from_slice(&store.read(piece)?);
            }
            text.push(b']');
            let messages: Vec<StoredMessage> = serde_json::from_slice(&text)?;
            messages.into_iter().for_each(|message| apply(&form, &mut contents, message));
        }
        for run in &runs {
            for (_, json) in items(&store.read(run)?) {
                apply(&form, &mut contents, serde_json::from_slice(json)?);
            }
        }
        Ok(contents)
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(stopping)?;
    read.map_err(|error| SnapshotFailure::Unavailable(format!("cannot read its log: {error}")))
}

fn apply(form: &RowForm, contents: &mut Contents, message: StoredMessage) {
    let StoredMessage { key: Some(key), value, headers: StoredHeaders { operation: Some(operation) } } = message else {
        return;
    };
    if operation == "delete" {
        contents.remove(&key);
        return;
    }
    let row = contents.entry(key).or_insert_with(|| vec![None; form.table.columns.len()]);
    for (name, value) in value {
        if let Some(column) = form.table.position(&name).and_then(|position| row.get_mut(position)) {
            *column = value;
        }
    }
}

fn values(row: &StoredRow) -> Vec<Option<&[u8]>> {
    row.iter().map(|value| value.as_ref().map(String::as_bytes)).collect()
}

/// The difference between the log of a shape and a snapshot.
struct Difference<'a> {
    shape: &'a Shape,
    lsn: u64,
    /// Rows of the log that the snapshot has not returned.
    contents: Contents,
    /// Messages of rows that the snapshot has returned, and the rows that each adds.
    changes: Vec<(Vec<u8>, i64)>,
    bytes: usize,
}

impl Difference<'_> {
    /// Compares a row of the snapshot.
    fn compare(&mut self, new: &[Option<&[u8]>]) -> Result<(), SnapshotFailure> {
        let form = &self.shape.definition.form;
        let key = String::from_utf8_lossy(&form.key(new)).into_owned();
        match self.contents.remove(&key) {
            None => self.push(RowChange::Insert { new }, 1),
            Some(old) => self.push(RowChange::Update { old: &values(&old), new }, 0),
        }
    }

    fn push(&mut self, change: RowChange<'_>, rows: i64) -> Result<(), SnapshotFailure> {
        let definition = &self.shape.definition;
        // Several transactions have moved the rows. A number of an operation that needs two has the second after it.
        let origin = ChangeOrigin { lsn: self.lsn, op: self.changes.len() as u64 * OPS_PER_CHANGE, txid: 0 };
        for message in definition.form.change(change, definition.replica, origin) {
            self.bytes += message.json.len();
            self.changes.push((message.json, rows));
        }
        if self.bytes > MESSAGE_BYTES_MAX {
            let text = format!("more than {MESSAGE_BYTES_MAX} bytes of rows have moved");
            return Err(SnapshotFailure::Unavailable(text));
        }
        Ok(())
    }

    /// The messages; none if no row has moved.
    fn finish(mut self, snapshot_end: &[u8]) -> Result<Option<MovedRows>, SnapshotFailure> {
        for row in std::mem::take(&mut self.contents).into_values() {
            self.push(RowChange::Delete { old: &values(&row) }, -1)?;
        }
        let offset = |number: usize| LogOffset { tx: self.lsn, op: number as u64 * OPS_PER_CHANGE };
        let count = self.changes.len();
        if count == 0 {
            return Ok(None);
        }
        let (mut run, mut rows) = (Vec::with_capacity(self.bytes), 0);
        for (number, (json, added)) in self.changes.iter().enumerate() {
            rows += added;
            push_item(&mut run, offset(number), |out| match number + 1 == count {
                true => push_last(out, json),
                false => out.extend_from_slice(json),
            });
        }
        push_item(&mut run, offset(count), |out| out.extend_from_slice(snapshot_end));
        Ok(Some(MovedRows { run, ends: (offset(0), offset(count)), rows }))
    }
}
