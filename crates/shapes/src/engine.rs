//! The background tasks of a server: the stream of transactions, and what is checked now and then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_changes::{
    Acknowledge, ChangeStream, ChangeStreamStatus, ConnectionState, Lsn, SlotIdentity, StreamPosition,
};
use tidegate_supervise::{Ctx, Scope, Tokio};
use tokio::sync::{mpsc, watch};

use crate::database::{Catalogue, DatabaseLogin, PublicationMode};
use crate::feed::{Feed, FeedError, FeedStart, OpenedFeed, stream_error};
use crate::identifier::quote;
use crate::maintenance;
use crate::options::ShapesOptions;
use crate::routing::{RouteCommand, Routing};
use crate::server::{COMMANDS_MAX, Memberships, ServerParts, ServerStatus, ShapeServer};
use crate::shape::Shape;
use crate::shape_index::ShapeIndex;
use crate::shape_tasks::ShapeTasks;
use crate::store::{RecoveredStore, Store, StoreClosed, StoreError, StoreOptions};

/// Pauses between attempts to open the stream.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How often the position of an idle stream is stored (SH-21).
const IDLE_COMMIT: Duration = Duration::from_secs(1);

/// Tasks of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServerTask {
    /// Applies the stream.
    Stream,
    /// Compares the catalogue, and evicts unused shapes.
    Maintenance,
}

/// A server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The scope has been stopped.
    #[error("the server is stopping")]
    Stopping,
}

/// Opens the store and starts the tasks of a server as children of `scope`.
///
/// # Errors
/// If the folder of the logs cannot be used.
pub fn start(
    options: ShapesOptions,
    login: DatabaseLogin,
    feed: Arc<dyn Feed>,
    scope: &Scope,
) -> Result<Arc<ShapeServer>, StartError> {
    let index = Arc::new(ShapeIndex::default());
    let store_options =
        StoreOptions { quota_bytes: options.storage_bytes_max, ..StoreOptions::new(options.storage.clone()) };
    let (store, recovered) = Store::open(store_options, Arc::clone(&index))?;
    let (commands, queue) = mpsc::channel(COMMANDS_MAX);
    let tasks = ShapeTasks::new(scope);
    // The commit record of the next transaction may begin at the stored position.
    let processed_lsn = recovered.durable_lsn.saturating_sub(1);
    let parts = ServerParts { options, login, index, store, commands, tasks, processed_lsn };
    let server = Arc::new(ShapeServer::new(parts));
    let position = restore(&server, recovered);
    let tasks = scope.child::<ServerTask>("shapes").on(Tokio::current());
    let mut engine = Engine {
        server: Arc::clone(&server),
        feed,
        queue,
        position,
        routing: None,
        stream: None,
        discards_slot: false,
    };
    let report = EndReport { server: Arc::clone(&server), task: "stream", has_returned: false };
    let spawned = tasks.spawn_as(ServerTask::Stream, move |ctx: Ctx| async move {
        let mut report = report;
        tokio::select! {
            () = ctx.cancelled() => {}
            () = engine.run() => report.has_returned = true,
        }
        if let Some(stream) = engine.stream {
            // The slot is free when this task has ended, for the next process.
            stream.stop().await;
        }
    });
    spawned.map_err(|_| StartError::Stopping)?;
    let owner = Arc::clone(&server);
    let report = EndReport { server: Arc::clone(&server), task: "maintenance", has_returned: false };
    let spawned = tasks.spawn_as(ServerTask::Maintenance, move |ctx: Ctx| async move {
        let mut report = report;
        tokio::select! {
            () = ctx.cancelled() => {}
            () = maintenance::run(&owner) => report.has_returned = true,
        }
    });
    spawned.map_err(|_| StartError::Stopping)?;
    Ok(server)
}

/// Reports a task that returns or panics, which it does by a fault of the program only.
struct EndReport {
    server: Arc<ShapeServer>,
    task: &'static str,
    has_returned: bool,
}

impl Drop for EndReport {
    fn drop(&mut self) {
        if self.has_returned || std::thread::panicking() {
            self.server.fail_all(self.task);
        }
    }
}

/// The position of an earlier process.
struct StoredPosition {
    source: Option<SlotIdentity>,
    lsn: u64,
}

/// Adds the shapes of an earlier process.
fn restore(server: &Arc<ShapeServer>, recovered: RecoveredStore) -> StoredPosition {
    server.index.set_used(recovered.id_max, recovered.micros_max);
    let tables = recovered.tables.into_iter().map(|(oid, table)| (oid, Arc::new(table)));
    let tables: std::collections::BTreeMap<_, _> = tables.collect();
    let mut lost = 0;
    for found in recovered.shapes {
        let key = &found.record.definition;
        let inner: Option<Vec<_>> = found.record.inner.iter().map(|oid| tables.get(oid).cloned()).collect();
        let table = tables.get(&key.oid).zip(inner);
        let definition = table.and_then(|(table, inner)| server.resolver.restore(key, table, inner));
        let Some(definition) = definition else {
            lost += 1;
            continue;
        };
        let shape = Arc::new(Shape::new(found.record.id, found.record.handle, Arc::new(definition)));
        *shape.log() = found.log;
        server.index.restore(&shape);
    }
    if !server.index.is_empty() || lost > 0 {
        tracing::info!(shapes = server.index.len(), lost, "shapes restored");
    }
    StoredPosition { source: recovered.source, lsn: recovered.durable_lsn }
}

struct Engine {
    server: Arc<ShapeServer>,
    feed: Arc<dyn Feed>,
    queue: mpsc::Receiver<RouteCommand>,
    position: StoredPosition,
    routing: Option<Routing>,
    stream: Option<ChangeStream>,
    /// See [`FeedStart::discards_slot`].
    discards_slot: bool,
}

impl Engine {
    /// Opens the stream again whenever it ends.
    async fn run(&mut self) {
        let mut pause = RETRY_MIN;
        loop {
            let started = Instant::now();
            let status = match self.follow().await {
                Ok(()) => ServerStatus::Starting("the replication stream ended".to_owned()),
                Err(error @ (FeedError::Gap(_) | FeedError::SlotUnusable(_))) => {
                    let reason = error.to_string();
                    self.discards_slot |= matches!(error, FeedError::SlotUnusable(_));
                    tracing::warn!(reason, "changes are lost: all shapes are removed, and clients load them again");
                    self.remove_all().await;
                    if self.position.source.take().is_some() {
                        // Clients wait for the new slot.
                        pause = RETRY_MIN;
                    }
                    ServerStatus::Starting(reason)
                }
                Err(FeedError::Retry(reason)) => ServerStatus::Starting(reason),
                Err(FeedError::Busy(reason)) => ServerStatus::Waiting(reason),
            };
            if started.elapsed() > RETRY_MAX {
                pause = RETRY_MIN;
            }
            if let ServerStatus::Starting(reason) = &status {
                tracing::warn!(reason, again_in = ?pause, "no stream of changes");
            }
            self.server.set_status(status);
            // Requests for removed shapes are answered without the stream.
            let sleep = tokio::time::sleep(pause);
            tokio::pin!(sleep);
            loop {
                tokio::select! {
                    () = &mut sleep => break,
                    Some(command) = self.queue.recv() => self.command(command).await,
                }
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn command(&mut self, command: RouteCommand) {
        match &mut self.routing {
            Some(routing) => routing.command(command),
            None => {
                if let RouteCommand::Remove(shape) = command {
                    // Fails while the server is stopping.
                    let _ = self.server.store.remove(shape).await;
                }
                // Registration waits for the stream: the sender gets an error when the command is dropped.
            }
        }
        self.forget_removed().await;
    }

    /// Applies the stream until it ends.
    async fn follow(&mut self) -> Result<(), FeedError> {
        let server = Arc::clone(&self.server);
        let retry = |error: String| FeedError::Retry(error);
        let client = server.login.connect().await.map_err(|error| retry(error.to_string()))?;
        let database = Catalogue(&client).database().await.map_err(|error| retry(error.to_string()))?;
        let (near_xid, system_id) = (database.next_xid, database.system_id);
        server.resolver.set_database(database);
        prepare_publication(&client, &server.options).await.map_err(retry)?;
        drop(client);
        let (publication, slot) = (server.options.publication_name(), server.options.slot_name());
        let resume = match &self.position.source {
            // No shapes: nothing is lost with the slot.
            _ if server.index.is_empty() => None,
            Some(identity) => Some(StreamPosition { identity: identity.clone(), lsn: Lsn(self.position.lsn) }),
            None => return Err(FeedError::Gap("it is not known which server and slot the logs belong to".to_owned())),
        };
        let start = FeedStart { publication, slot, resume, discards_slot: self.discards_slot };
        let OpenedFeed { stream, identity, begins_at } = self.feed.open(&start).await?;
        self.discards_slot = false;
        if identity.system_id != system_id {
            return Err(retry("snapshots and changes come from different servers: check shapes.pool".to_owned()));
        }
        if self.position.source.as_ref() != Some(&identity) {
            server.store.set_source(identity.clone()).await.map_err(|error| retry(error.to_string()))?;
            self.position.source = Some(identity);
        }
        if begins_at.0 > self.position.lsn {
            // Shapes may be complete before the first transaction: without a position they would end with the process.
            server.store.commit(Vec::new(), begins_at.0).await.map_err(|error| retry(error.to_string()))?;
            self.position.lsn = begins_at.0;
        }
        self.restore_routes(near_xid).await;
        let mut connection = ConnectionWatch::new(&stream);
        self.stream = Some(stream);
        let ended = self.apply(&mut connection).await;
        self.stream = None;
        ended
    }

    /// Routes the shapes of an earlier process.
    async fn restore_routes(&mut self, near_xid: u64) {
        if self.routing.is_some() {
            return;
        }
        let server = &self.server;
        let processed = Arc::clone(&server.processed_lsn);
        let mut routing = Routing::new(server.options.chunk_bytes, near_xid, processed);
        let mut unusable = Vec::new();
        for shape in server.index.all() {
            match server.resolver.restore_predicate(&shape.definition) {
                Ok(predicate) => routing.restore(&shape, &predicate),
                Err(error) => {
                    tracing::warn!(handle = %shape.handle, error, "shape removed: its predicate is not supported any more");
                    unusable.push(shape);
                }
            }
        }
        self.routing = Some(routing);
        for shape in unusable {
            server.index.remove(shape.id);
            shape.update(|log| log.phase = crate::shape::ShapePhase::Removed);
            let _ = server.store.remove(shape).await;
        }
    }

    async fn apply(&mut self, connection: &mut ConnectionWatch) -> Result<(), FeedError> {
        let Some(acknowledge) = self.stream.as_ref().map(ChangeStream::acknowledger) else { return Ok(()) };
        let mut progress = self.server.store.progress();
        let mut last_commit = Instant::now();
        let mut stored_lsn = self.position.lsn;
        loop {
            let (Some(routing), Some(stream)) = (&mut self.routing, &mut self.stream) else { return Ok(()) };
            routing.take_moves().into_iter().for_each(|moved| self.server.start_moves(moved));
            tokio::select! {
                batch = stream.next_batch() => match batch {
                    Ok(Some(events)) => {
                        self.server.counters.received(&events);
                        events.iter().for_each(|event| routing.apply(event));
                    }
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(stream_error(&error)),
                },
                // A shape begins and ends between two transactions.
                Some(command) = self.queue.recv(), if routing.is_between_transactions() => routing.command(command),
                status = connection.changed() => self.server.set_status(status),
                changed = progress.changed() => {
                    if changed.is_err() {
                        return Err(FeedError::Retry("the store has ended".to_owned()));
                    }
                    acknowledge_durable(&acknowledge, &mut progress);
                }
            }
            let (parts, discarded) = routing.take_parts();
            let retry = |error: StoreClosed| FeedError::Retry(error.to_string());
            if !discarded.is_empty() {
                self.server.store.discard(discarded).await.map_err(retry)?;
            }
            if !parts.is_empty() {
                self.server.store.put_parts(parts).await.map_err(retry)?;
            }
            let (writes, lsn) = routing.take_writes();
            let lsn = lsn.max(stored_lsn);
            if !writes.is_empty() || (lsn > stored_lsn && last_commit.elapsed() >= IDLE_COMMIT) {
                self.server.store.commit(writes, lsn).await.map_err(retry)?;
                (stored_lsn, last_commit) = (lsn, Instant::now());
                self.position.lsn = self.position.lsn.max(lsn);
            }
            self.forget_removed().await;
        }
    }

    /// Removes what the router has removed from the index and from the disk.
    async fn forget_removed(&mut self) {
        let Some(routing) = &mut self.routing else { return };
        if routing.take_tables_changed() {
            self.server.resolver.clear();
        }
        for shape in routing.take_removed() {
            self.server.counters.removed(1);
            self.server.index.remove(shape.id);
            // Fails while the server is stopping.
            let _ = self.server.store.remove(shape).await;
        }
    }

    async fn remove_all(&mut self) {
        let shapes = self.server.index.all();
        match &mut self.routing {
            Some(routing) => shapes.into_iter().for_each(|shape| routing.command(RouteCommand::Remove(shape))),
            None => {
                for shape in shapes {
                    self.server.index.remove(shape.id);
                    shape.update(|log| log.phase = crate::shape::ShapePhase::Removed);
                    let _ = self.server.store.remove(shape).await;
                }
            }
        }
        self.forget_removed().await;
        self.server.resolver.clear();
        // The publication may be another one.
        self.server.published.lock().await.clear();
        *self.server.memberships() = Memberships::default();
    }
}

/// Follows the connection of a stream, which connects again by itself.
struct ConnectionWatch {
    status: watch::Receiver<ChangeStreamStatus>,
    is_first: bool,
    has_ended: bool,
}

impl ConnectionWatch {
    fn new(stream: &ChangeStream) -> Self {
        Self { status: stream.watch_status(), is_first: true, has_ended: false }
    }

    /// The next state of the connection.
    ///
    /// # Cancel safety
    /// Safe: a change that was not returned is returned by the next call.
    async fn changed(&mut self) -> ServerStatus {
        loop {
            if self.has_ended {
                // The stream has no connection of its own, or has ended.
                return std::future::pending().await;
            }
            if !std::mem::take(&mut self.is_first) && self.status.changed().await.is_err() {
                self.has_ended = true;
                return ServerStatus::Active;
            }
            let status = self.status.borrow_and_update();
            let reason = || status.last_error.clone().unwrap_or_else(|| "connecting to the database".to_owned());
            match status.connection {
                ConnectionState::Streaming => return ServerStatus::Active,
                ConnectionState::Waiting if status.is_slot_busy => return ServerStatus::Waiting(reason()),
                ConnectionState::Waiting => return ServerStatus::Starting(reason()),
                // The state before is that of the attempt, and the end is an error of the stream.
                ConnectionState::Connecting | ConnectionState::Ended => {}
            }
        }
    }
}

/// Acknowledges what is durable, and only that (SH-14, SH-15).
fn acknowledge_durable(
    acknowledge: &Acknowledge,
    progress: &mut tokio::sync::watch::Receiver<crate::store::StoreProgress>,
) {
    let durable = progress.borrow_and_update().durable_lsn;
    acknowledge.up_to(Lsn(durable));
}

/// Creates the publication; the stream needs one, with or without tables.
async fn prepare_publication(client: &tokio_postgres::Client, options: &ShapesOptions) -> Result<(), String> {
    let name = options.publication_name();
    let sql = format!("SELECT FROM pg_catalog.pg_publication WHERE pubname = {}", crate::database::literal(&name));
    let text = |error: tokio_postgres::Error| crate::database::error_text(&error);
    let found = client.simple_query(&sql).await.map_err(text)?;
    let is_there = found.iter().any(|message| matches!(message, tokio_postgres::SimpleQueryMessage::Row(_)));
    if is_there {
        return Ok(());
    }
    let statement = format!("CREATE PUBLICATION {}", quote(&name));
    if options.publication == PublicationMode::Manual {
        return Err(format!("there is no publication {name}; run: {statement}"));
    }
    client.batch_execute(&statement).await.map_err(|error| format!("cannot run {statement}: {}", text(error)))
}
