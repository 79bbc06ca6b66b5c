//! The snapshot of a new shape: a task that ends with the last chunk.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::database::{
    DatabaseClient, SnapshotQuery, SnapshotRowStream, ensure_published, query_text, wait_for_writers,
};
use crate::moves;
use crate::offset::LogOffset;
use crate::parameters::LogMode;
use crate::resolver::Resolved;
use crate::routing::{RouteCommand, SeamResult, SubqueryResults};
use crate::server::ShapeServer;
use crate::shape::{Extent, Shape, ShapePhase, SnapshotFailure, SnapshotFilter};
use crate::shape_tasks::ShapeTask;
use crate::store::{SnapshotSize, StoreClosed};

/// How long a snapshot waits for its turn (SH-11: a queue with a deadline; nothing is deleted because of load).
pub(crate) const TURN_LIMIT: Duration = Duration::from_secs(30);
/// Snapshots that are taken again because a commit was not visible yet.
const ATTEMPTS_MAX: u32 = 40;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(25);
/// How long a table counts as published without a look. Tables that are not published any more are found periodically.
const PUBLISHED_FOR: Duration = Duration::from_secs(1);
/// Size of the pieces of a chunk; the row that crosses it is in the piece.
const PIECE_LEN: usize = 256 << 10;

impl ShapeServer {
    /// The shape of a definition; begins its snapshot if it is new.
    ///
    /// # Errors
    /// If the server is stopping.
    pub async fn get_or_create(self: &Arc<Self>, resolved: &Resolved) -> Result<Arc<Shape>, StoreClosed> {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let definition = &resolved.definition;
        let make = |id, handle| Some(Arc::new(Shape::new(id, handle, Arc::clone(definition))));
        let micros = u64::try_from(micros).unwrap_or(u64::MAX >> 1);
        let made = self.index.get_or_insert(definition, micros, make);
        let (shape, is_new) = made.ok_or(StoreClosed)?;
        shape.touch(self.seconds());
        if is_new {
            for table in definition.tables() {
                self.store.put_table((**table).clone()).await?;
            }
            self.store.create(Arc::clone(&shape)).await?;
            let (server, resolved) = (Arc::clone(self), resolved.clone());
            let task = Arc::clone(&shape);
            let snapshot = async move { run(&server, &task, &resolved).await };
            self.start_task(ShapeTask::Snapshot(shape.id), &shape, snapshot).map_err(|_| StoreClosed)?;
        }
        Ok(shape)
    }
}

/// Takes the snapshot of a shape. A failure is stored in the shape.
async fn run(server: &Arc<ShapeServer>, shape: &Arc<Shape>, resolved: &Resolved) {
    let mut running = server.counters.begin_snapshot();
    let taken = tokio::select! {
        taken = take(server, shape, resolved) => taken,
        // The connection is closed, and the server cancels the query.
        () = shape.abandoned(server.options.abandoned_after) => {
            Err(SnapshotFailure::Unavailable("no client waits for it any more".to_owned()))
        }
    };
    match taken {
        Ok(()) => running.complete(),
        Err(failure) => {
            tracing::warn!(handle = %shape.handle, %failure, "snapshot failed");
            if failure == SnapshotFailure::Changed {
                server.resolver.clear();
            }
            server.fail(shape, failure).await;
        }
    }
}

pub(crate) fn stopping<E>(_: E) -> SnapshotFailure {
    SnapshotFailure::Unavailable("the server is stopping".to_owned())
}

async fn take(server: &Arc<ShapeServer>, shape: &Arc<Shape>, resolved: &Resolved) -> Result<(), SnapshotFailure> {
    let turn = tokio::time::timeout(TURN_LIMIT, server.snapshot_turns.acquire()).await;
    let busy = |_| SnapshotFailure::Unavailable("too many snapshots are waiting".to_owned());
    let _turn = turn.map_err(busy)?.map_err(stopping)?;
    let unavailable = |error: crate::database::ConnectionError| SnapshotFailure::Unavailable(error.to_string());
    let client = server.client().await.map_err(unavailable)?;
    let table = &shape.definition.form.table;
    publish(server, shape, &client).await?;
    if shape.definition.log == LogMode::Full {
        shape.begin_counting();
    }
    let (done, registered) = oneshot::channel();
    let (shape_of_command, predicate) = (Arc::clone(shape), Arc::clone(&resolved.predicate));
    let register = RouteCommand::Register { shape: shape_of_command, predicate, done };
    server.commands.send(register).await.map_err(stopping)?;
    registered.await.map_err(stopping)?;
    let query = begin(server, shape, &client).await?;
    let filter = query.filter.clone();
    if !resolved.predicate.subqueries().is_empty() {
        let sets = moves::read_sets(&query, &resolved.predicate, server.options.first_row).await?;
        let results = SubqueryResults { sets, filter: filter.clone(), moves: None, is_at_first_held: false };
        if moves::send_results(server, shape, results).await? != SeamResult::Sound {
            return Err(SnapshotFailure::Changed);
        }
    }
    shape.update(|log| log.phase = ShapePhase::Snapshotting);
    let size = write_rows(server, shape, resolved, &query).await?;
    query.end().await?;
    client.release();
    server.store.finish_snapshot(Arc::clone(shape), size, filter).await.map_err(stopping)?;
    shape.update(|log| {
        if log.phase == ShapePhase::Snapshotting {
            log.phase = ShapePhase::Complete;
            log.pieces.shrink_to_fit();
        }
    });
    tracing::debug!(handle = %shape.handle, table = table.name.quoted(), chunks = size.chunks, "snapshot complete");
    Ok(())
}

/// Makes sure that the stream has each change of the tables that the snapshot will not have.
async fn publish(server: &ShapeServer, shape: &Shape, client: &DatabaseClient) -> Result<(), SnapshotFailure> {
    let (name, mode) = (server.options.publication_name(), server.options.publication);
    let mut memberships = Vec::new();
    {
        let mut published = server.published.lock().await;
        // A burst of shapes of one table checks it once.
        for table in shape.definition.tables() {
            let known = published.get(&table.oid).filter(|(checked, _)| checked.elapsed() <= PUBLISHED_FOR);
            let membership = match known {
                Some((_, membership)) => *membership,
                None => {
                    let membership = ensure_published(client, &name, mode, table).await?;
                    published.retain(|_, (checked, _)| checked.elapsed() <= PUBLISHED_FOR);
                    published.insert(table.oid, (Instant::now(), membership));
                    membership
                }
            };
            memberships.push(membership);
        }
    }
    for (table, membership) in shape.definition.tables().zip(memberships) {
        let known = server.memberships().settled.get(&table.oid).copied();
        match known {
            Some(known) if known == membership => {}
            // The table was removed from the publication and added again: earlier shapes lack what was written between.
            Some(_) => {
                server.memberships().forget(table.oid);
                server.commands.send(RouteCommand::RemoveTable(table.oid)).await.map_err(stopping)?;
                return Err(SnapshotFailure::Changed);
            }
            None => {
                wait_for_writers(client, table).await?;
                server.memberships().settled.insert(table.oid, membership);
            }
        }
    }
    Ok(())
}

/// Begins a transaction that fits the stream.
pub(crate) async fn begin<'a>(
    server: &ShapeServer,
    shape: &Arc<Shape>,
    client: &'a DatabaseClient,
) -> Result<SnapshotQuery<'a>, SnapshotFailure> {
    for attempt in 0..ATTEMPTS_MAX {
        let query = SnapshotQuery::begin(client, &shape.definition).await?;
        match seam(server, shape, &query.filter).await? {
            SeamResult::Sound => return Ok(query),
            SeamResult::Gone => return Err(SnapshotFailure::Changed),
            SeamResult::Retry => {
                query.end().await?;
                tokio::time::sleep(ATTEMPT_PAUSE * attempt.min(20)).await;
            }
        }
    }
    let text = "a commit has been invisible for too long: it waits for a synchronous standby";
    Err(SnapshotFailure::Unavailable(text.to_owned()))
}

async fn seam(
    server: &ShapeServer,
    shape: &Arc<Shape>,
    filter: &SnapshotFilter,
) -> Result<SeamResult, SnapshotFailure> {
    let (done, result) = oneshot::channel();
    let began = RouteCommand::SnapshotBegan { id: shape.id, filter: filter.clone(), done };
    server.commands.send(began).await.map_err(stopping)?;
    result.await.map_err(stopping)
}

/// Writes the chunks. The last chunk ends with the message `snapshot-end`.
async fn write_rows(
    server: &ShapeServer,
    shape: &Arc<Shape>,
    resolved: &Resolved,
    query: &SnapshotQuery<'_>,
) -> Result<SnapshotSize, SnapshotFailure> {
    let size = SnapshotSize { chunks: 0, pieces: 0 };
    let mut chunks = Chunks { server, shape, out: Vec::new(), chunk_len: 0, size };
    if shape.definition.log == LogMode::Full {
        let predicate = shape.definition.predicate.as_ref().map(|_| resolved.predicate.canonical());
        let (sql, columns) = query_text(&shape.definition.form, predicate.as_slice(), "");
        let limit = server.options.first_row;
        let slow = |_| SnapshotFailure::Unavailable(format!("the snapshot query had no row within {limit:?}"));
        let first = async {
            let mut rows: SnapshotRowStream = query.rows(&sql).await?;
            let first = rows.next().await?;
            Ok((rows, first))
        };
        let mut count = 0;
        let (mut rows, mut next) = tokio::time::timeout(limit, first).await.map_err(slow)??;
        while let Some(row) = next {
            chunks.push(&row, &columns).await?;
            count += 1;
            next = rows.next().await?;
        }
        shape.count_rows(count);
        chunks.push_message(&query.filter.snapshot.end_message());
    }
    chunks.close().await?;
    Ok(chunks.size)
}

/// The chunk that is being written. Pieces go to the store as they fill, so that a snapshot needs little memory.
struct Chunks<'a> {
    server: &'a ShapeServer,
    shape: &'a Arc<Shape>,
    /// The open piece.
    out: Vec<u8>,
    /// Bytes of the open chunk in earlier pieces.
    chunk_len: usize,
    /// Whole chunks and pieces.
    size: SnapshotSize,
}

impl Chunks<'_> {
    async fn push(&mut self, row: &tokio_postgres::SimpleQueryRow, columns: &[usize]) -> Result<(), SnapshotFailure> {
        let form = &self.shape.definition.form;
        let mut values: Vec<Option<&[u8]>> = vec![None; form.table.columns.len()];
        for (index, column) in columns.iter().enumerate() {
            values[*column] = row.try_get(index).map_err(|error| malformed(&error))?.map(str::as_bytes);
        }
        self.separate();
        form.push_snapshot_row(&mut self.out, &values, b"");
        if (self.chunk_len + self.out.len()) as u64 >= self.server.options.chunk_bytes {
            return self.close().await;
        }
        if self.out.len() >= PIECE_LEN { self.end_piece().await } else { Ok(()) }
    }

    fn push_message(&mut self, message: &[u8]) {
        self.separate();
        self.out.extend_from_slice(message);
    }

    fn separate(&mut self) {
        if self.chunk_len + self.out.len() > 0 {
            self.out.push(b',');
        }
    }

    /// Sends the open piece to the store.
    async fn end_piece(&mut self) -> Result<(), SnapshotFailure> {
        let mut bytes = std::mem::take(&mut self.out);
        self.chunk_len += bytes.len();
        match bytes.len() {
            PIECE_LEN.. => self.out.reserve(bytes.len()),
            _ => bytes.shrink_to_fit(),
        }
        let (bytes, chunk, piece) = (Bytes::from(bytes), self.size.chunks, self.size.pieces);
        self.size.pieces += 1;
        let extent = Extent::unwritten(LogOffset::snapshot_chunk(chunk), bytes.clone());
        {
            let mut log = self.shape.log();
            if log.phase != ShapePhase::Snapshotting {
                return Err(SnapshotFailure::Changed);
            }
            log.pieces.push(extent);
        }
        self.server.store.put_piece(Arc::clone(self.shape), chunk, piece, bytes).await.map_err(stopping)
    }

    /// Ends the open chunk: readers get it.
    async fn close(&mut self) -> Result<(), SnapshotFailure> {
        self.end_piece().await?;
        self.chunk_len = 0;
        self.size.chunks += 1;
        let chunks = u32::try_from(self.size.chunks);
        let many = |_| SnapshotFailure::Unavailable("the snapshot has too many chunks".to_owned());
        let chunks = chunks.map_err(many)?;
        self.shape.update(|log| log.chunk_count = chunks);
        Ok(())
    }
}

fn malformed(error: &tokio_postgres::Error) -> SnapshotFailure {
    SnapshotFailure::Unavailable(crate::database::error_text(error))
}
