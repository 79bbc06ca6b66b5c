//! Rows that enter or leave a shape because the result of a subquery has changed.
//!
//! The routing task holds the changes of the shape until a task has read rows from a snapshot: those with the values that have
//! come or gone ([`MoveQuery::ByValue`]), or all ([`comparison`]). For a log without snapshot, a restart needs the results only.

mod comparison;
mod stored_rows;

use std::sync::Arc;
use std::time::Duration;

use tidegate_predicate::{Predicate, ValueSet};
use tokio::sync::{SemaphorePermit, oneshot};
use tokio_postgres::SimpleQueryRow;

use crate::database::{DatabaseClient, SnapshotQuery, SnapshotRowStream, error_text, rows_text, wait_for_commits};
use crate::parameters::LogMode;
use crate::routing::{
    HeldRow, MOVED_BYTES_MAX, Move, MoveLevel, MoveQuery, MoveStep, RouteCommand, SeamResult, SubqueryResults,
};
use crate::server::{PooledClient, ShapeServer};
use crate::shape::{Shape, ShapePhase, SnapshotFailure};
use crate::shape_tasks::ShapeTask;
use crate::snapshotter::{TURN_LIMIT, begin, stopping};

/// Limit of the different values of all subqueries of a shape.
const VALUES_MAX: usize = 1_000_000;
/// Size of the parts in which the routing task gets the rows of a snapshot.
const PART_BYTES: usize = 1 << 20;
/// Snapshots that do not fit the stream, one after the other.
const ATTEMPTS_MAX: u32 = 100;
/// Snapshots that fail, one after the other.
const FAILURES_MAX: u32 = 10;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long the stream may take to pass a snapshot before the server is made to flush its WAL.
const FLUSH_AFTER: Duration = Duration::from_millis(50);

impl ShapeServer {
    /// Starts to read the rows of a shape that may have moved.
    pub(crate) fn start_moves(self: &Arc<Self>, moved: Move) {
        let (server, shape) = (Arc::clone(self), Arc::clone(&moved.shape));
        let key = ShapeTask::Moves(shape.id, moved.lsn);
        // Refused while the server is stopping.
        let _ = self.start_task(key, &shape, async move { run(&server, &moved).await });
    }

    /// Waits for the turn of a query that reads many rows.
    async fn snapshot_turn(&self) -> Result<SemaphorePermit<'_>, SnapshotFailure> {
        let turn = tokio::time::timeout(TURN_LIMIT, self.snapshot_turns.acquire()).await;
        let busy = |_| unavailable("too many snapshots are waiting");
        turn.map_err(busy)?.map_err(stopping)
    }
}

fn unavailable(text: impl Into<String>) -> SnapshotFailure {
    SnapshotFailure::Unavailable(text.into())
}

/// A failure that a later attempt does not change.
fn refused(text: impl Into<String>) -> SnapshotFailure {
    SnapshotFailure::Refused { field: "where", text: text.into() }
}

/// Reads rows until they fit the stream. Removes the shape if that fails: clients load it again.
async fn run(server: &Arc<ShapeServer>, moved: &Move) {
    let shape = &moved.shape;
    let is_ended = shape
        .wait_for(|log| match log.phase {
            ShapePhase::Starting | ShapePhase::Snapshotting => None,
            ShapePhase::Complete => Some(false),
            ShapePhase::Failed | ShapePhase::Removed => Some(true),
        })
        .await;
    if is_ended {
        return;
    }
    let (mut query, mut attempts, mut failures) = (moved.query.clone(), 0, 0);
    while attempts < ATTEMPTS_MAX {
        attempts += 1;
        let step = match &query {
            MoveQuery::ByValue(level, condition) => read_level(server, moved, *level, condition).await,
            MoveQuery::Restored if shape.definition.log == LogMode::ChangesOnly => resume(server, moved).await,
            MoveQuery::Comparison | MoveQuery::Restored => comparison::compare(server, moved).await.map(MoveStep::from),
        };
        match step {
            Ok(MoveStep::Done) => return,
            Ok(MoveStep::Retry) => {}
            Ok(MoveStep::Next(next)) => (query, attempts, failures) = (next, 0, 0),
            // The database may be away for a moment, as when both restart.
            Err(SnapshotFailure::Unavailable(_)) if failures < FAILURES_MAX => {
                tokio::time::sleep((PAUSE_MIN * (1 << failures)).min(PAUSE_MAX)).await;
                failures += 1;
            }
            Err(failure) => {
                tracing::warn!(handle = %shape.handle, %failure, "shape removed: rows that moved cannot be read");
                break;
            }
        }
    }
    server.remove(shape).await;
}

/// The query of the rows of a level with a condition, its columns, and the number of columns of the table.
fn level_text(moved: &Move, level: MoveLevel, condition: &str) -> Option<(String, Vec<usize>, usize)> {
    let Move { shape, predicate, .. } = moved;
    let (table, columns, candidates) = match level {
        MoveLevel::Shape => {
            let form = &shape.definition.form;
            (&form.table, form.read_columns(&predicate.columns()), predicate.candidates())
        }
        MoveLevel::Subquery(number) => {
            let subquery = predicate.subqueries().get(number)?;
            (shape.definition.inner_tables().get(number)?, subquery.columns(), subquery.candidates())
        }
    };
    let sql = rows_text(table, &columns, &[candidates.canonical(), condition], "");
    Some((sql, columns, table.columns.len()))
}

/// Reads the rows of a level that may have moved.
async fn read_level(
    server: &Arc<ShapeServer>,
    moved: &Move,
    level: MoveLevel,
    condition: &str,
) -> Result<MoveStep, SnapshotFailure> {
    let shape = &moved.shape;
    let (sql, columns, width) =
        level_text(moved, level, condition).ok_or_else(|| refused("its predicate has no such subquery"))?;
    let turn = server.snapshot_turn().await?;
    let client = server.client().await.map_err(|error| unavailable(error.to_string()))?;
    let query = begin(server, shape, &client).await?;
    let mut query_rows = first_row(&query, &sql, server.options.first_row).await?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(row) = query_rows.next().await? {
        let row = HeldRow::new(&values(&row, &columns, width)?);
        bytes += row.bytes();
        rows.push(row);
        if bytes > PART_BYTES {
            bytes = 0;
            let (done, result) = oneshot::channel();
            let command = RouteCommand::RowsRead { id: shape.id, rows: std::mem::take(&mut rows), done };
            server.commands.send(command).await.map_err(stopping)?;
            if result.await.map_err(stopping)? != SeamResult::Sound {
                return Ok(MoveStep::Done);
            }
        }
    }
    drop(query_rows);
    let filter = query.filter.clone();
    query.end().await?;
    let (done, result) = oneshot::channel();
    let command = RouteCommand::RowsMoved { id: shape.id, rows, filter, done };
    server.commands.send(command).await.map_err(stopping)?;
    passed(client, turn, result).await
}

/// Reads the results of the subqueries of a shape of an earlier process. Its log has no snapshot that could be compared: the
/// stream repeats what was held.
async fn resume(server: &Arc<ShapeServer>, moved: &Move) -> Result<MoveStep, SnapshotFailure> {
    let Move { shape, predicate, .. } = moved;
    let turn = server.snapshot_turn().await?;
    let client = server.client().await.map_err(|error| unavailable(error.to_string()))?;
    // Commits that were decoded before the restart are visible then.
    server.all_visible.get_or_try_init(|| wait_for_commits(&client)).await?;
    let query = begin(server, shape, &client).await?;
    let sets = read_sets(&query, predicate, server.options.first_row).await?;
    let filter = query.filter.clone();
    query.end().await?;
    let (done, result) = oneshot::channel();
    let command = RouteCommand::ResultsRead { id: shape.id, sets, filter, done };
    server.commands.send(command).await.map_err(stopping)?;
    passed(client, turn, result).await
}

/// Waits until the stream has passed a snapshot.
async fn passed(
    client: PooledClient<'_>,
    turn: SemaphorePermit<'_>,
    mut result: oneshot::Receiver<MoveStep>,
) -> Result<MoveStep, SnapshotFailure> {
    let passed = tokio::time::timeout(FLUSH_AFTER, &mut result).await;
    if passed.is_err() {
        flush(&client).await;
    }
    client.release();
    drop(turn);
    match passed {
        Ok(result) => result.map_err(stopping),
        // As long as the stream takes: a second result would not fit any more.
        Err(_) => result.await.map_err(stopping),
    }
}

/// Makes the server flush the WAL up to the present end, and so send it: an idle server keeps records in memory that no commit
/// needs. A commit of a transaction that changes nothing does it.
async fn flush(client: &DatabaseClient) {
    let sql = "BEGIN; SET LOCAL synchronous_commit = local; SELECT pg_catalog.pg_current_xact_id(); COMMIT";
    // The next commit of another client does it as well.
    let _ = client.batch_execute(sql).await;
}

/// The values of a row by the position of the column in the table.
fn values<'a>(
    row: &'a SimpleQueryRow,
    columns: &[usize],
    width: usize,
) -> Result<Vec<Option<&'a [u8]>>, SnapshotFailure> {
    let mut values = vec![None; width];
    for (index, column) in columns.iter().enumerate() {
        let value = row.try_get(index).map_err(|error| unavailable(error_text(&error)))?;
        values[*column] = value.map(str::as_bytes);
    }
    Ok(values)
}

/// Rows of which the first was read ahead.
struct StartedRows {
    first: Option<SimpleQueryRow>,
    /// `None` behind the last row: a stream that has ended must not be read again.
    rows: Option<SnapshotRowStream>,
}

impl StartedRows {
    async fn next(&mut self) -> Result<Option<SimpleQueryRow>, SnapshotFailure> {
        match (self.first.take(), &mut self.rows) {
            (None, Some(rows)) => rows.next().await,
            (first, _) => Ok(first),
        }
    }
}

async fn first_row(query: &SnapshotQuery<'_>, sql: &str, limit: Duration) -> Result<StartedRows, SnapshotFailure> {
    let slow = |_| unavailable(format!("the query had no row within {limit:?}"));
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
    limit: Duration,
) -> Result<Vec<ValueSet>, SnapshotFailure> {
    let (mut sets, mut count) = (Vec::new(), 0);
    for subquery in predicate.subqueries() {
        let mut set = subquery.empty_set();
        let mut rows = first_row(query, &subquery.text(predicate.subqueries()), limit).await?;
        while let Some(row) = rows.next().await? {
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
