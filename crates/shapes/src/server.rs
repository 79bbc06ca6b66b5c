//! A server of shapes for one database: what requests and background tasks share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::answers::{AnswerCache, LiveAnswers, LogPart};
use crate::counters::ShapeCounters;
use crate::database::{Catalogue, ConnectionError, DatabaseClient, DatabaseLogin, Membership};
use crate::handle::ShapeHandle;
use crate::options::ShapesOptions;
use crate::parameters::DefinitionParameters;
use crate::resolver::{DefinitionError, DefinitionResolver, Resolved, tables_of_subqueries};
use crate::routing::RouteCommand;
use crate::shape::{LogSlice, Shape, ShapePhase, SnapshotFailure};
use crate::shape_index::ShapeIndex;
use crate::shape_tasks::ShapeTasks;
use crate::store::Store;
use crate::table::TableInfo;

/// Bytes of answers that are kept.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// The table may be forgotten between two steps.
const RESOLVE_ATTEMPTS_MAX: usize = 3;
/// Idle connections for queries.
const IDLE_CLIENTS_MAX: usize = 4;
/// Commands that wait for the routing task.
pub(crate) const COMMANDS_MAX: usize = 4096;

/// Whether shapes can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// Not yet, for this reason.
    Starting(String),
    /// Another process has the slot.
    Waiting(String),
    /// Changes arrive.
    Active,
    /// A task has ended by a fault of the program: the process has to be started again.
    Failed(String),
}

/// Serves the shape protocol over HTTP.
pub struct ShapeServer {
    /// Settings.
    pub options: ShapesOptions,
    pub(crate) index: Arc<ShapeIndex>,
    pub(crate) store: Store,
    pub(crate) resolver: DefinitionResolver,
    pub(crate) login: DatabaseLogin,
    pub(crate) answers: AnswerCache,
    pub(crate) live_answers: LiveAnswers,
    pub(crate) commands: mpsc::Sender<RouteCommand>,
    pub(crate) processed_lsn: Arc<AtomicU64>,
    pub(crate) status: watch::Sender<ServerStatus>,
    pub(crate) counters: ShapeCounters,
    pub(crate) tasks: ShapeTasks,
    pub(crate) snapshot_turns: Semaphore,
    /// Held while the catalogue is asked for a table.
    resolving: tokio::sync::Mutex<()>,
    /// When the publication of a table was checked, by OID. Held while a table is published.
    pub(crate) published: tokio::sync::Mutex<FxHashMap<u32, (Instant, Membership)>>,
    memberships: Mutex<Memberships>,
    /// Set when all transactions that ran at the start have ended.
    pub(crate) all_visible: tokio::sync::OnceCell<()>,
    idle_clients: Mutex<Vec<DatabaseClient>>,
    /// Why the server cannot go on.
    failed: OnceLock<String>,
    /// Requests do not wait for changes any more.
    is_ending: AtomicBool,
    started: Instant,
}

/// How tables are published, by their OIDs.
#[derive(Debug, Default)]
pub(crate) struct Memberships {
    /// Tables that snapshots may read: all writers have ended that began before the table was published.
    pub(crate) settled: FxHashMap<u32, Membership>,
    /// Tables as the last comparison with the catalogue has found them.
    pub(crate) compared: FxHashMap<u32, Membership>,
}

impl Memberships {
    pub(crate) fn forget(&mut self, oid: u32) {
        self.settled.remove(&oid);
        self.compared.remove(&oid);
    }
}

/// The parts of a [`ShapeServer`].
pub(crate) struct ServerParts {
    pub(crate) options: ShapesOptions,
    pub(crate) login: DatabaseLogin,
    pub(crate) index: Arc<ShapeIndex>,
    pub(crate) store: Store,
    pub(crate) commands: mpsc::Sender<RouteCommand>,
    pub(crate) tasks: ShapeTasks,
    pub(crate) processed_lsn: u64,
}

/// A connection that is kept for the next query, unless it is in an unknown state.
pub(crate) struct PooledClient<'a> {
    client: Option<DatabaseClient>,
    server: &'a ShapeServer,
    is_clean: bool,
}

impl std::ops::Deref for PooledClient<'_> {
    type Target = DatabaseClient;

    fn deref(&self) -> &DatabaseClient {
        self.client.as_ref().expect("the connection is taken by drop only")
    }
}

impl PooledClient<'_> {
    /// The connection is outside of a transaction and can be used again.
    pub(crate) fn release(mut self) {
        self.is_clean = true;
    }
}

impl Drop for PooledClient<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take().filter(|client| self.is_clean && !client.is_closed()) else { return };
        let mut idle = self.server.idle_clients.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CLIENTS_MAX {
            idle.push(client);
        }
    }
}

impl ShapeServer {
    pub(crate) fn new(parts: ServerParts) -> Self {
        let ServerParts { options, login, index, store, commands, tasks, processed_lsn } = parts;
        Self {
            answers: AnswerCache::new(store.clone(), ANSWER_BYTES_MAX),
            live_answers: LiveAnswers::default(),
            snapshot_turns: Semaphore::new(options.snapshots_max),
            options,
            index,
            store,
            resolver: DefinitionResolver::default(),
            login,
            commands,
            processed_lsn: Arc::new(AtomicU64::new(processed_lsn)),
            status: watch::channel(ServerStatus::Starting("connecting to the database".to_owned())).0,
            counters: ShapeCounters::default(),
            tasks,
            resolving: tokio::sync::Mutex::new(()),
            published: tokio::sync::Mutex::default(),
            memberships: Mutex::default(),
            all_visible: tokio::sync::OnceCell::new(),
            idle_clients: Mutex::default(),
            failed: OnceLock::new(),
            is_ending: AtomicBool::new(false),
            started: Instant::now(),
        }
    }

    /// Answers the requests that wait for changes, as if their time was over, and later ones without a wait: the server is
    /// about to stop, and clients continue at the next one.
    pub fn end_waits(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.index.all().iter().for_each(|shape| shape.wake());
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Whether shapes can be served.
    #[must_use]
    pub fn status(&self) -> ServerStatus {
        match self.failed.get() {
            Some(reason) => ServerStatus::Failed(reason.clone()),
            None => self.status.borrow().clone(),
        }
    }

    /// Records that a task has ended although the server is not stopping.
    pub(crate) fn fail_all(&self, task: &str) {
        tracing::error!(task, "a task of the shapes has ended: start the process again");
        // The first reason counts.
        let _ = self.failed.set(format!("the task {task} has ended"));
        // Wakes those that wait for another status.
        self.status.send_modify(|_| {});
    }

    /// Sets whether changes arrive.
    pub(crate) fn set_status(&self, status: ServerStatus) {
        let before = self.status();
        match (&before, &status) {
            (ServerStatus::Active, ServerStatus::Active) => {}
            (_, ServerStatus::Active) => {
                tracing::info!(slot = self.options.slot_name(), "following the changes of the database");
            }
            (ServerStatus::Active, ServerStatus::Starting(reason)) => {
                self.counters.lost_stream();
                tracing::warn!(reason, "no changes arrive: the replication connection is lost");
            }
            (ServerStatus::Starting(_) | ServerStatus::Active, ServerStatus::Waiting(reason)) => {
                tracing::warn!(reason, "no changes arrive: another process reads the replication slot");
            }
            (_, ServerStatus::Starting(_) | ServerStatus::Waiting(_) | ServerStatus::Failed(_)) => {}
        }
        // The status has one writer.
        self.status.send_replace(status);
    }

    /// Waits until changes arrive, at most `limit`.
    ///
    /// # Errors
    /// Why they do not.
    pub async fn ready(&self, limit: Duration) -> Result<(), String> {
        let mut status = self.status.subscribe();
        let active = status.wait_for(|status| self.failed.get().is_some() || *status == ServerStatus::Active);
        // The status has the result.
        let _ = tokio::time::timeout(limit, active).await.map(drop);
        match self.status() {
            ServerStatus::Active => Ok(()),
            ServerStatus::Starting(reason) | ServerStatus::Waiting(reason) | ServerStatus::Failed(reason) => {
                Err(reason)
            }
        }
    }

    /// The position of the last transaction that was applied.
    #[must_use]
    pub fn processed_lsn(&self) -> u64 {
        self.processed_lsn.load(Ordering::Acquire)
    }

    /// The position up to which the log of a shape has all transactions. Readers may not see the last ones yet.
    pub(crate) fn known_lsn(&self, shape: &Shape) -> u64 {
        let processed = match shape.reads_durable_only() {
            // After a restart, rows that moved are appended at a position after this one.
            true => self.processed_lsn().min(self.store.durable_lsn().saturating_sub(1)),
            false => self.processed_lsn(),
        };
        shape.known_lsn(processed)
    }

    /// The position up to which readers of a shape see all transactions.
    pub(crate) fn readable_lsn(&self, shape: &Shape) -> u64 {
        let known = self.known_lsn(shape);
        shape.log().readable_lsn(known)
    }

    /// Number of shapes.
    #[must_use]
    pub fn shape_count(&self) -> usize {
        self.index.len()
    }

    /// How tables are published. A holder that panicked left consistent maps.
    pub(crate) fn memberships(&self) -> MutexGuard<'_, Memberships> {
        self.memberships.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seconds(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    pub(crate) async fn client(&self) -> Result<PooledClient<'_>, ConnectionError> {
        loop {
            let idle = self.idle_clients.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(client) if client.is_closed() => {}
                Some(client) => return Ok(PooledClient { client: Some(client), server: self, is_clean: false }),
                None => break,
            }
        }
        let client = self.login.connect().await?;
        if self.login.is_pooled() {
            // The gateway cancels the query of a client that has left.
            return Ok(PooledClient { client: Some(client), server: self, is_clean: false });
        }
        // The query of a snapshot that no client waits for ends with its connection. Some systems do not support the check.
        let _ = client.batch_execute("SET client_connection_check_interval = '1s'").await;
        Ok(PooledClient { client: Some(client), server: self, is_clean: false })
    }

    /// Checks a definition.
    ///
    /// # Errors
    /// If parameters are wrong, or the database cannot be asked.
    pub async fn resolve(&self, parameters: &DefinitionParameters) -> Result<Resolved, DefinitionError> {
        match self.resolver.resolve(parameters) {
            // The tables may have changed since they were read.
            Some(Err(DefinitionError::Parameters(_))) => Box::pin(self.resolve_again(parameters)).await,
            Some(found) => found,
            None => Box::pin(self.resolve_new(parameters)).await,
        }
    }

    /// Checks a definition that does not fit the tables as they are known: the catalogue decides.
    async fn resolve_again(&self, parameters: &DefinitionParameters) -> Result<Resolved, DefinitionError> {
        let _one_at_a_time = self.resolving.lock().await;
        let client = self.client().await?;
        let mut loaded = Ok(());
        for name in std::iter::once(parameters.table.clone()).chain(tables_of_subqueries(parameters)) {
            loaded = self.resolver.load_table(&name, Catalogue(&client)).await.map_err(|error| match error {
                DefinitionError::Parameters(errors) if name != parameters.table => {
                    DefinitionError::Parameters(errors.moved("table", "where"))
                }
                other => other,
            });
            if loaded.is_err() {
                break;
            }
        }
        if !matches!(loaded, Err(DefinitionError::Unavailable(_))) {
            client.release();
        }
        loaded?;
        let resolved = self.resolver.resolve(parameters);
        let changing = || Err(DefinitionError::Unavailable("the catalogue changes too often".to_owned()));
        let resolved = resolved.unwrap_or_else(changing)?;
        // A table has changed. Its shapes end now, and not with the next comparison of the catalogue.
        for table in resolved.definition.tables() {
            let is_former = |other: &Arc<TableInfo>| other.oid == table.oid && !other.is_same_as(table);
            if self.index.all().iter().any(|shape| shape.definition.tables().any(is_former)) {
                // Fails while the server is stopping.
                let _ = self.commands.send(RouteCommand::RemoveTable(table.oid)).await;
            }
        }
        Ok(resolved)
    }

    async fn resolve_new(&self, parameters: &DefinitionParameters) -> Result<Resolved, DefinitionError> {
        for _ in 0..RESOLVE_ATTEMPTS_MAX {
            // A burst of requests for a new table asks the catalogue once.
            let _one_at_a_time = self.resolving.lock().await;
            if let Some(found) = self.resolver.resolve(parameters) {
                return found;
            }
            let client = self.client().await?;
            let loaded = self.resolver.load(parameters, Catalogue(&client)).await;
            if !matches!(loaded, Err(DefinitionError::Unavailable(_))) {
                client.release();
            }
            loaded?;
        }
        Err(DefinitionError::Unavailable("the catalogue changes too often".to_owned()))
    }

    /// The shape of a definition, if both are known.
    pub(crate) fn known_shape(&self, parameters: &DefinitionParameters) -> Option<Arc<Shape>> {
        self.index.find(&self.resolver.known(parameters)?.definition)
    }

    /// The shape with this handle.
    #[must_use]
    pub fn by_handle(&self, handle: &str) -> Option<Arc<Shape>> {
        let handle: ShapeHandle = handle.parse().ok()?;
        self.index.by_handle(handle)
    }

    /// A part of a log.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) async fn part(&self, shape: &Arc<Shape>, slice: LogSlice) -> io::Result<LogPart> {
        shape.touch(self.seconds());
        self.answers.part(shape, slice).await
    }

    /// Removes a shape and wakes its waiters.
    pub async fn remove(&self, shape: &Arc<Shape>) {
        self.index.remove(shape.id);
        shape.update(|log| log.phase = ShapePhase::Removed);
        // Fails while the server is stopping.
        let _ = self.commands.send(RouteCommand::Remove(Arc::clone(shape))).await;
    }

    pub(crate) async fn fail(&self, shape: &Arc<Shape>, failure: SnapshotFailure) {
        self.index.remove(shape.id);
        shape.update(|log| log.fail(failure));
        let _ = self.commands.send(RouteCommand::Remove(Arc::clone(shape))).await;
    }
}
