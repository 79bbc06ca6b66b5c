//! A round: a mark, one chunk of each of several tables, a mark.

use std::time::Duration;

use bytes::Bytes;
use tidegate_wire::{backend::DataRow, replication::quote_literal};
use tokio::task::JoinSet;

use super::{
    plan::{TableDefinition, definition},
    window::PgSnapshot,
};
use crate::{
    client::{ClientError, ConnectOptions, PgConnection, ReplicationMode},
    error::ChangeStreamError,
};

/// Prefix of the marks, which are transactional messages of `pg_logical_emit_message`.
pub(super) const MARK_PREFIX: &str = "tidegate";
/// Rows of the first FETCH of a chunk; the next ones follow from their size.
const FETCH_FIRST: u64 = 256;
/// How often, and how many times, sessions that wait for a standby are looked at.
const COMMIT_LOOK_EVERY: Duration = Duration::from_millis(50);
const COMMIT_LOOKS: u32 = 40;

/// A chunk to read.
#[derive(Clone, Debug)]
pub(super) struct ChunkRequest {
    pub(super) oid: u32,
    pub(super) after: Option<Vec<String>>,
    pub(super) rows_max: u32,
    pub(super) bytes_max: usize,
}

/// A chunk that was read.
#[derive(Debug)]
pub(super) struct KeyChunk {
    pub(super) definition: TableDefinition,
    pub(super) snapshot: PgSnapshot,
    /// Bodies of DataRow.
    pub(super) rows: Vec<Bytes>,
    pub(super) bytes: usize,
    /// Whether the table has no rows after these.
    pub(super) is_last: bool,
}

/// Input of a round.
#[derive(Clone, Debug)]
pub(super) struct RoundPlan {
    /// Whether an earlier process may have received transactions whose ids are unknown here.
    pub(super) is_first: bool,
    pub(super) connect: ConnectOptions,
    pub(super) publications: Vec<String>,
    pub(super) low: String,
    pub(super) high: String,
    pub(super) requests: Vec<ChunkRequest>,
}

/// The result of a round: its chunks in the order of the requests, and the connections for the next round.
pub(super) struct RoundOutcome {
    pub(super) chunks: Vec<KeyChunk>,
    pub(super) connections: Vec<PgConnection>,
}

/// Writes the low mark, reads the chunks at the same time, and writes the high mark.
pub(super) async fn run_round(
    plan: RoundPlan,
    mut connections: Vec<PgConnection>,
) -> Result<RoundOutcome, ChangeStreamError> {
    while connections.len() < plan.requests.len().max(1) {
        connections.push(open(&plan.connect).await?);
    }
    let Some(mut marker) = connections.pop() else { return Err(ChangeStreamError::Ended) };
    if plan.is_first {
        wait_for_commits(&mut marker).await?;
    }
    mark(&mut marker, &plan.low).await?;
    connections.push(marker);
    let mut reads = JoinSet::new();
    for (number, request) in plan.requests.iter().enumerate() {
        let Some(mut connection) = connections.pop() else { return Err(ChangeStreamError::Ended) };
        let (request, publications) = (request.clone(), plan.publications.clone());
        let limit = plan.connect.command_timeout.saturating_mul(4);
        reads.spawn(async move {
            let chunk = read_chunk(&mut connection, &request, &publications, limit).await?;
            Ok::<_, ChangeStreamError>((number, chunk, connection))
        });
    }
    let mut found = Vec::new();
    while let Some(read) = reads.join_next().await {
        let (number, chunk, connection) = read.map_err(|_| ChangeStreamError::Ended)??;
        found.push((number, chunk));
        connections.push(connection);
    }
    found.sort_by_key(|(number, _)| *number);
    let Some(marker) = connections.last_mut() else { return Err(ChangeStreamError::Ended) };
    mark(marker, &plan.high).await?;
    Ok(RoundOutcome { chunks: found.into_iter().map(|(_, chunk)| chunk).collect(), connections })
}

async fn open(options: &ConnectOptions) -> Result<PgConnection, ClientError> {
    let mut connection = PgConnection::connect(options, ReplicationMode::Off).await?;
    // A mark is not data: it need not wait for a synchronous standby. Row security must fail instead of hiding rows (CH-65).
    connection.query("set synchronous_commit = local; set row_security = off").await?;
    Ok(connection)
}

/// Waits for the sessions that wait for a synchronous standby: their transactions may have been delivered, and are not visible
/// yet (CH-66). If they do not end, the round is repeated after a delay.
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

async fn mark(connection: &mut PgConnection, content: &str) -> Result<(), ClientError> {
    let (prefix, content) = (quote_literal(MARK_PREFIX), quote_literal(content));
    connection.query(&format!("select pg_catalog.pg_logical_emit_message(true, {prefix}, {content})")).await?;
    Ok(())
}

/// Reads a chunk in a transaction of its own. The lock keeps the definition of the table as it is; it blocks no reads and
/// writes.
async fn read_chunk(
    connection: &mut PgConnection,
    request: &ChunkRequest,
    publications: &[String],
    limit: Duration,
) -> Result<KeyChunk, ChangeStreamError> {
    let name = connection
        .query(&format!(
            "select pg_catalog.format('%I.%I', n.nspname, c.relname) from pg_catalog.pg_class c \
             join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = {}",
            request.oid
        ))
        .await?;
    let Some(name) = name.into_iter().next().and_then(|row| row.into_iter().next().flatten()) else {
        return Err(ChangeStreamError::Refused(format!(
            "the table with OID {} was dropped during its snapshot",
            request.oid
        )));
    };
    let begin = format!(
        "begin isolation level repeatable read read only; lock table {name} in access share mode; \
         select pg_catalog.pg_current_snapshot()"
    );
    let rows = connection.query_within(&begin, limit).await?;
    let snapshot = rows.first().and_then(|row| PgSnapshot::parse(row.first()?.as_deref()?));
    let snapshot = snapshot.ok_or_else(|| ClientError::Protocol("pg_current_snapshot() is malformed".to_owned()))?;
    let definition = definition(connection, request.oid, publications).await?;
    let sql = definition.chunk_sql(request.after.as_deref(), request.rows_max);
    connection.query_within(&format!("declare tidegate_chunk no scroll cursor for {sql}"), limit).await?;
    let (mut rows, mut bytes, mut fetch) = (Vec::new(), 0, FETCH_FIRST);
    let mut is_exhausted = false;
    while !is_exhausted && bytes < request.bytes_max && rows.len() < request.rows_max as usize {
        let found = connection.query_rows(&format!("fetch forward {fetch} from tidegate_chunk"), limit).await?;
        is_exhausted = (found.len() as u64) < fetch;
        bytes += found.iter().map(Bytes::len).sum::<usize>();
        rows.extend(found);
        // As many as fill the chunk, by the mean size of a row.
        let mean = (bytes / rows.len().max(1)).max(1);
        fetch = (request.bytes_max.saturating_sub(bytes) / mean).clamp(1, 100_000) as u64;
    }
    connection.query("rollback").await?;
    let is_last = is_exhausted && rows.len() < request.rows_max as usize;
    Ok(KeyChunk { definition, snapshot, rows, bytes, is_last })
}

/// The text of the key columns of a row; `None` if a value is NULL.
pub(super) fn key_texts(row: &Bytes, key: &[usize]) -> Option<Vec<String>> {
    let values: Vec<_> = DataRow::decode(row).ok()?.collect();
    key.iter()
        .map(|at| values.get(*at).copied().flatten().map(|text| String::from_utf8_lossy(text).into_owned()))
        .collect()
}
