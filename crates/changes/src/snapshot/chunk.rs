//! A chunk: a mark in the stream, the rows of a table behind a key, a mark.

use std::time::Duration;

use bytes::Bytes;
use tidegate_wire::{backend::DataRow, replication::quote_literal};
use tokio::sync::mpsc;

use super::{
    plan::{self, TableDefinition},
    window::PgSnapshot,
};
use crate::{
    client::{ClientError, ConnectOptions, PgConnection, ReplicationMode},
    error::ChangeStreamError,
};

/// Prefix of the marks, which are transactional messages of `pg_logical_emit_message`.
pub(super) const MARK_PREFIX: &str = "tidegate";
/// How often, and how many times, sessions that wait for a standby are looked at.
const COMMIT_LOOK_EVERY: Duration = Duration::from_millis(50);
const COMMIT_LOOKS: u32 = 40;

/// A chunk to read.
#[derive(Clone, Debug)]
pub(super) struct ChunkRequest {
    pub(super) oid: u32,
    pub(super) after: Option<Vec<String>>,
    pub(super) rows_max: u32,
    /// A chunk that is larger ends before its other rows, which are read again.
    pub(super) bytes_max: usize,
    /// Whether the last key is looked up before the rows are read, so that the next chunk of the table can be read meanwhile.
    pub(super) finds_end: bool,
}

/// A chunk that was read.
#[derive(Debug)]
pub(super) struct KeyChunk {
    pub(super) definition: TableDefinition,
    pub(super) snapshot: PgSnapshot,
    /// Bodies of DataRow.
    pub(super) rows: Vec<Bytes>,
    pub(super) bytes: usize,
    /// The key up to which all rows were read, if it was looked up and rows follow.
    pub(super) end: Option<Vec<String>>,
    /// Whether rows were left out, because the chunk had become too large.
    pub(super) is_cut: bool,
    /// Whether the table has no rows after these.
    pub(super) is_last: bool,
}

impl KeyChunk {
    /// The key behind which the next chunk begins; `None` if there was no row.
    pub(super) fn last_key(&self) -> Option<Vec<String>> {
        match &self.end {
            Some(end) if !self.is_cut => Some(end.clone()),
            _ => self.rows.last().and_then(|row| key_texts(row, &self.definition.key)),
        }
    }
}

/// Input of the task that reads a chunk.
#[derive(Clone, Debug)]
pub(super) struct ChunkPlan {
    pub(super) number: u64,
    /// Whether an earlier process may have received transactions whose ids are unknown here.
    pub(super) is_first: bool,
    pub(super) connect: ConnectOptions,
    pub(super) publications: Vec<String>,
    pub(super) low: String,
    pub(super) high: String,
    pub(super) request: ChunkRequest,
}

/// The last key of a chunk whose rows are being read.
#[derive(Debug)]
pub(super) struct ChunkEnd {
    pub(super) number: u64,
    pub(super) key: Vec<String>,
}

/// A chunk that was read, and the connection for the next one.
pub(super) struct ChunkOutcome {
    pub(super) number: u64,
    pub(super) chunk: KeyChunk,
    pub(super) connection: PgConnection,
}

/// Writes the low mark, reads the chunk, and writes the high mark. Sends the last key as soon as it is known.
pub(super) async fn run_chunk(
    plan: ChunkPlan,
    connection: Option<PgConnection>,
    ends: mpsc::UnboundedSender<ChunkEnd>,
) -> Result<ChunkOutcome, ChangeStreamError> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => open(&plan.connect, &plan.publications).await?,
    };
    if plan.is_first {
        wait_for_commits(&mut connection).await?;
    }
    let name = name_and_mark(&mut connection, &plan).await?;
    let (definition, snapshot) = begin(&mut connection, &plan, &name).await?;
    let chunk = read(&mut connection, &plan, definition, snapshot, ends).await?;
    // The transaction of the mark follows the rollback.
    connection.query(&format!("rollback; {}", mark_sql(&plan.high))).await?;
    Ok(ChunkOutcome { number: plan.number, chunk, connection })
}

async fn open(options: &ConnectOptions, publications: &[String]) -> Result<PgConnection, ClientError> {
    let mut connection = PgConnection::connect(options, ReplicationMode::Off).await?;
    // A mark is not data: it need not wait for a synchronous standby. Row security must fail instead of hiding rows (CH-65).
    // A chunk is short: it uses one process of the server, without JIT compilation.
    let sql = "set synchronous_commit = local; set row_security = off; set jit = off; \
               set max_parallel_workers_per_gather = 0; ";
    let prepare = plan::prepare_sql(publications, connection.major_version()?);
    connection.query(&format!("{sql}{prepare}")).await?;
    Ok(connection)
}

/// Waits for the sessions that wait for a synchronous standby: their transactions may have been delivered, and are not visible
/// yet (CH-66). If they do not end, the chunk is repeated after a delay.
async fn wait_for_commits(connection: &mut PgConnection) -> Result<(), ChangeStreamError> {
    let sql = "select concat(pid, ':', xact_start) from pg_catalog.pg_stat_activity where wait_event = 'SyncRep'";
    let mut waiting = connection.query(sql).await?;
    for _ in 0..COMMIT_LOOKS {
        if waiting.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(COMMIT_LOOK_EVERY).await;
        // Sessions that came later are not in question: the stream has delivered none of their transactions before this run.
        let now = connection.query(sql).await?;
        waiting.retain(|session| now.contains(session));
    }
    Err(ChangeStreamError::NotReady(
        "sessions wait for a synchronous standby; the snapshot starts after them".to_owned(),
    ))
}

fn mark_sql(content: &str) -> String {
    let (prefix, content) = (quote_literal(MARK_PREFIX), quote_literal(content));
    format!("select pg_catalog.pg_logical_emit_message(true, {prefix}, {content})")
}

/// Looks up the quoted name of the table, and writes the low mark.
async fn name_and_mark(connection: &mut PgConnection, plan: &ChunkPlan) -> Result<String, ChangeStreamError> {
    let oid = plan.request.oid;
    let sql = format!(
        "select (select pg_catalog.format('%I.%I', n.nspname, c.relname) from pg_catalog.pg_class c \
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = {oid}); {}",
        mark_sql(&plan.low)
    );
    let name = connection.query(&sql).await?.into_iter().next().and_then(|row| row.into_iter().next().flatten());
    name.ok_or_else(|| ChangeStreamError::Refused(format!("the table with OID {oid} was dropped during its snapshot")))
}

/// Begins the transaction of the chunk. The lock keeps the definition of the table as it is; it blocks no reads and writes.
async fn begin(
    connection: &mut PgConnection,
    plan: &ChunkPlan,
    name: &str,
) -> Result<(TableDefinition, PgSnapshot), ChangeStreamError> {
    let sql = format!(
        "begin isolation level repeatable read read only; lock table {name} in access share mode; \
         select pg_catalog.pg_current_snapshot(); {}",
        plan::execute_sql(plan.request.oid)
    );
    let rows = connection.query_within(&sql, read_limit(plan)).await?;
    let snapshot = rows.first().and_then(|row| PgSnapshot::parse(row.first()?.as_deref()?));
    let snapshot = snapshot.ok_or_else(|| ClientError::Protocol("pg_current_snapshot() is malformed".to_owned()))?;
    let definition = plan::found_definition(plan.request.oid, rows.get(1..).unwrap_or_default())?;
    if definition.key.is_empty() {
        return Err(ChangeStreamError::Refused(format!("table {name} has lost its key during its snapshot")));
    }
    Ok((definition, snapshot))
}

/// Limit for the lock, and for each query of the chunk.
fn read_limit(plan: &ChunkPlan) -> Duration {
    plan.connect.command_timeout.saturating_mul(4)
}

async fn read(
    connection: &mut PgConnection,
    plan: &ChunkPlan,
    definition: TableDefinition,
    snapshot: PgSnapshot,
    ends: mpsc::UnboundedSender<ChunkEnd>,
) -> Result<KeyChunk, ChangeStreamError> {
    let (request, limit) = (&plan.request, read_limit(plan));
    let mut end = None;
    if request.finds_end
        && let Some(sql) = definition.end_sql(request.after.as_deref(), request.rows_max)
    {
        let row = connection.query_within(&sql, limit).await?.into_iter().next();
        end = row.and_then(|row| row.into_iter().collect::<Option<Vec<_>>>());
        if let Some(key) = end.clone() {
            // The stream may be gone, and aborts this task.
            let _ = ends.send(ChunkEnd { number: plan.number, key });
        }
    }
    let sql = definition.chunk_sql(request.after.as_deref(), end.as_deref(), request.rows_max);
    let found = connection.query_rows(&sql, request.bytes_max, limit).await?;
    let is_last = !found.is_cut && end.is_none() && found.rows.len() < request.rows_max as usize;
    let (rows, bytes, is_cut) = (found.rows, found.bytes, found.is_cut);
    Ok(KeyChunk { definition, snapshot, rows, bytes, end, is_cut, is_last })
}

/// The text of the key columns of a row; `None` if a value is NULL.
pub(super) fn key_texts(row: &Bytes, key: &[usize]) -> Option<Vec<String>> {
    let values: Vec<_> = DataRow::decode(row).ok()?.collect();
    key.iter()
        .map(|at| values.get(*at).copied().flatten().map(|text| String::from_utf8_lossy(text).into_owned()))
        .collect()
}
