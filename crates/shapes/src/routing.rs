//! Applies transactions to shape logs.
//!
//! One task applies all transactions in commit order: it finds the shapes of each change, encodes the change once for all
//! shapes with the same columns, and appends whole transactions to the logs. Shapes are registered and removed between two
//! transactions.

mod recent;
mod table_routes;
mod transaction;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use tidegate_changes::{Change, ChangeEvent, ChangeKind, Relation, ReplicaIdentity, SchemaChange};
use tidegate_predicate::Predicate;
use tokio::sync::oneshot;

use crate::run;
use crate::shape::{Extent, OpenParts, Shape, ShapeId, ShapePhase, SnapshotFilter};
use crate::store::RunWrite;
use crate::xid::widen;
use recent::RecentCommits;
use table_routes::TableRoutes;
use transaction::{OpenRun, OpenTransaction, RunMode};

/// Limit of the messages that wait for the beginning of a snapshot, per shape.
const PENDING_BYTES_MAX: usize = 64 << 20;

/// A message to the task, handled between two transactions.
#[derive(Debug)]
pub(crate) enum RouteCommand {
    /// Route changes to a shape that has no snapshot yet.
    Register {
        /// The shape.
        shape: Arc<Shape>,
        /// The predicate of the shape.
        predicate: Arc<Predicate>,
        /// Answered when no earlier transaction can be missed.
        done: oneshot::Sender<()>,
    },
    /// The snapshot of a shape has begun.
    SnapshotBegan {
        /// The shape.
        id: ShapeId,
        /// The transactions that the snapshot has.
        filter: SnapshotFilter,
        /// Whether the snapshot can be used.
        done: oneshot::Sender<SeamResult>,
    },
    /// Remove a shape.
    Remove(Arc<Shape>),
    /// Remove all shapes of a table.
    RemoveTable(u32),
}

/// Whether snapshot and stream fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeamResult {
    /// Each transaction is in exactly one of them.
    Sound,
    /// A transaction was routed before the shape was registered, and the snapshot does not have it: commits become visible
    /// after they are decoded (SH-05). A new snapshot has it soon.
    Retry,
    /// The shape is not registered any more.
    Gone,
}

/// State of a route.
#[derive(Debug)]
enum RouteState {
    /// The snapshot has not begun.
    Pending(Box<PendingRoute>),
    /// The shape follows the stream. The filter is dropped when the stream has passed the snapshot.
    Live { filter: Option<Box<SnapshotFilter>> },
}

/// Messages that wait for the beginning of the snapshot.
#[derive(Debug)]
struct PendingRoute {
    registered_at: u64,
    runs: Vec<PendingRun>,
    bytes: usize,
}

#[derive(Debug)]
struct PendingRun {
    xid: u64,
    run: OpenRun,
}

#[derive(Debug)]
struct Route {
    shape: Arc<Shape>,
    state: RouteState,
}

impl Route {
    /// Treatment of the messages of a transaction.
    fn mode(&self, open: &OpenTransaction) -> RunMode {
        match &self.state {
            RouteState::Pending(_) => RunMode::Hold,
            RouteState::Live { filter: Some(filter) } if filter.has(open.xid, open.lsn) => RunMode::Skip,
            RouteState::Live { .. } => RunMode::Write,
        }
    }
}

/// The task's state. See the [module](self).
pub(crate) struct Routing {
    tables: FxHashMap<u32, TableRoutes>,
    /// The partitioned table of each partition.
    roots: FxHashMap<u32, u32>,
    routes: FxHashMap<ShapeId, Route>,
    recent: RecentCommits,
    open: Option<OpenTransaction>,
    chunk_bytes: u64,
    near_xid: u64,
    /// The position of the last transaction, for `global_last_seen_lsn`.
    processed_lsn: Arc<AtomicU64>,
    /// Runs to store.
    writes: Vec<RunWrite>,
    /// Parts of the open transaction that were written, or have to be.
    parts: Vec<RunWrite>,
    /// Shapes with parts of the open transaction.
    parted: Vec<Arc<Shape>>,
    /// Parts of transactions that did not commit here.
    discarded: Vec<Extent>,
    /// Everything before this position is applied.
    applied_lsn: u64,
    /// Removed shapes, to be forgotten by the index and the store.
    removed: Vec<Arc<Shape>>,
    /// Whether a table was emptied or altered.
    tables_changed: bool,
    /// Shapes with a filter, and the position at which it ends.
    filtered: VecDeque<(u64, ShapeId)>,
}

impl Routing {
    /// A router without shapes. `near_xid` is a recent transaction ID.
    #[must_use]
    pub(crate) fn new(chunk_bytes: u64, near_xid: u64, processed_lsn: Arc<AtomicU64>) -> Self {
        Self {
            tables: FxHashMap::default(),
            roots: FxHashMap::default(),
            routes: FxHashMap::default(),
            recent: RecentCommits::default(),
            open: None,
            chunk_bytes,
            near_xid,
            applied_lsn: processed_lsn.load(Ordering::Relaxed),
            processed_lsn,
            writes: Vec::new(),
            parts: Vec::new(),
            parted: Vec::new(),
            discarded: Vec::new(),
            removed: Vec::new(),
            tables_changed: false,
            filtered: VecDeque::new(),
        }
    }

    /// Whether shapes can be registered and removed now.
    #[must_use]
    pub(crate) fn is_between_transactions(&self) -> bool {
        self.open.is_none()
    }

    /// Adds a shape of an earlier process, whose log is complete.
    pub(crate) fn restore(&mut self, shape: &Arc<Shape>, predicate: &Arc<Predicate>) {
        let filter = shape.log().filter.take();
        self.filtered.extend(filter.as_ref().map(|filter| (filter.until_lsn, shape.id)));
        self.insert(shape, predicate, RouteState::Live { filter });
    }

    fn insert(&mut self, shape: &Arc<Shape>, predicate: &Arc<Predicate>, state: RouteState) {
        let table = &shape.definition.form.table;
        if self.tables.get(&table.oid).is_some_and(|routes| !routes.is_of(table)) {
            // The catalogue was read again before the stream described the table: the older shapes end.
            self.remove_table(table.oid);
        }
        if table.is_partitioned() {
            self.roots.extend(table.partitions.iter().map(|partition| (*partition, table.oid)));
        }
        let routes = self.tables.entry(table.oid).or_insert_with(|| TableRoutes::new(table, predicate.table()));
        routes.insert(shape.id, predicate);
        self.routes.insert(shape.id, Route { shape: Arc::clone(shape), state });
    }

    /// Handles a command.
    pub(crate) fn command(&mut self, command: RouteCommand) {
        match command {
            RouteCommand::Register { shape, predicate, done } => {
                let registered_at = self.recent.next();
                let pending = PendingRoute { registered_at, runs: Vec::new(), bytes: 0 };
                self.insert(&shape, &predicate, RouteState::Pending(Box::new(pending)));
                // The requester may have left.
                let _ = done.send(());
            }
            RouteCommand::SnapshotBegan { id, filter, done } => {
                let _ = done.send(self.snapshot_began(id, &filter));
            }
            RouteCommand::Remove(shape) => {
                if !self.remove(shape.id) {
                    self.removed.push(shape);
                }
            }
            RouteCommand::RemoveTable(oid) => self.remove_table(oid),
        }
    }

    fn snapshot_began(&mut self, id: ShapeId, filter: &SnapshotFilter) -> SeamResult {
        let Some(route) = self.routes.get_mut(&id) else { return SeamResult::Gone };
        let RouteState::Pending(pending) = &mut route.state else { return SeamResult::Gone };
        self.near_xid = self.near_xid.max(filter.snapshot.xmax);
        if self.recent.any_unseen(pending.registered_at, &filter.snapshot) {
            return SeamResult::Retry;
        }
        let runs = std::mem::take(&mut pending.runs);
        route.state = RouteState::Live { filter: Some(Box::new(filter.clone())) };
        let shape = Arc::clone(&route.shape);
        self.filtered.push_back((filter.until_lsn, id));
        for pending in runs {
            let lsn = pending.run.last.tx;
            if !filter.has(pending.xid, lsn) {
                self.writes.extend(append(&shape, pending.run, self.chunk_bytes));
            }
        }
        SeamResult::Sound
    }

    /// Removes a shape and wakes its waiters (SH-37). False if it is not routed.
    fn remove(&mut self, id: ShapeId) -> bool {
        let Some(route) = self.routes.remove(&id) else { return false };
        let oid = route.shape.definition.form.table.oid;
        if let Some(routes) = self.tables.get_mut(&oid) {
            routes.remove(id);
            if routes.is_empty() {
                for partition in routes.row_tables() {
                    self.roots.remove(partition);
                }
                self.tables.remove(&oid);
            }
        }
        if let Some(open) = &mut self.open {
            open.runs.remove(&id);
        }
        self.writes.retain(|write| write.shape.id != id);
        self.parts.retain(|part| part.shape.id != id);
        route.shape.update(|log| {
            if !matches!(log.phase, ShapePhase::Failed(_)) {
                log.phase = ShapePhase::Removed;
            }
        });
        self.removed.push(route.shape);
        true
    }

    /// The table whose shapes have the rows of a relation.
    fn root(&self, relation: u32) -> u32 {
        self.roots.get(&relation).copied().unwrap_or(relation)
    }

    fn remove_table(&mut self, oid: u32) {
        self.tables_changed = true;
        let ids: Vec<ShapeId> = self.tables.get(&oid).map(|routes| routes.shapes().collect()).unwrap_or_default();
        for id in ids {
            self.remove(id);
        }
    }

    /// Applies an event of the stream.
    pub(crate) fn apply(&mut self, event: &ChangeEvent) {
        match event {
            ChangeEvent::Begin(begin) => {
                let xid = widen(begin.xid, self.near_xid);
                self.near_xid = self.near_xid.max(xid);
                self.discard_open();
                self.open = Some(OpenTransaction::new(begin.commit_lsn.0, xid, begin.xid));
            }
            ChangeEvent::Schema(schema) => self.schema(schema),
            ChangeEvent::Change(change) => self.change(change),
            ChangeEvent::Commit(commit) => {
                self.commit();
                self.applied_lsn = self.applied_lsn.max(commit.end_lsn.0);
                self.processed_lsn.fetch_max(commit.commit_lsn.0, Ordering::Release);
                self.drop_filters(commit.commit_lsn.0);
            }
            ChangeEvent::Message(message) => self.applied_lsn = self.applied_lsn.max(message.end_lsn.0),
            ChangeEvent::Progress(lsn) => {
                self.applied_lsn = self.applied_lsn.max(lsn.0);
                self.processed_lsn.fetch_max(lsn.0, Ordering::Release);
                self.drop_filters(lsn.0);
            }
            _ => {}
        }
    }

    /// Frees the filters that the stream has passed: idle shapes keep none.
    fn drop_filters(&mut self, lsn: u64) {
        while let Some((_, id)) = self.filtered.pop_front_if(|(until, _)| *until <= lsn) {
            if let Some(Route { state: RouteState::Live { filter }, .. }) = self.routes.get_mut(&id) {
                *filter = None;
            }
        }
    }

    /// Handles a description of a table: shapes with another description end.
    fn schema(&mut self, schema: &SchemaChange) {
        let root = self.root(schema.after.oid);
        let Some(routes) = self.tables.get_mut(&root) else { return };
        let is_full = schema.after.identity == ReplicaIdentity::Full;
        if is_full && routes.describe(&schema.after) {
            return;
        }
        let table = format!("{}.{}", schema.after.schema, schema.after.name);
        let reason = if is_full { "its definition has changed" } else { "its replica identity is not FULL any more" };
        tracing::info!(table, reason, "shapes of the table are removed");
        self.remove_table(root);
    }

    fn change(&mut self, change: &Change) {
        match &change.kind {
            ChangeKind::Row(row) => {
                let relation: &Arc<Relation> = row.relation();
                let root = self.root(relation.oid);
                let Some(routes) = self.tables.get_mut(&root) else { return };
                let Some(open) = &mut self.open else { return };
                let failed = routes.route(row, change.id.seq, &self.routes, open);
                if !open.parts.is_empty() {
                    self.add_parts();
                }
                for id in failed {
                    self.remove(id);
                }
            }
            ChangeKind::Truncate(truncate) => {
                for relation in &truncate.relations {
                    let root = self.root(relation.oid);
                    if self.tables.contains_key(&root) {
                        tracing::info!(table = %relation.name, "shapes of a truncated table are removed");
                    }
                    self.remove_table(root);
                }
            }
            ChangeKind::Message(_) => {}
        }
    }

    /// Prepares parts of the open transaction for the store. Readers see them after the commit.
    fn add_parts(&mut self) {
        let parts = self.open.as_mut().map(|open| std::mem::take(&mut open.parts)).unwrap_or_default();
        for part in parts {
            let Some(route) = self.routes.get(&part.shape) else { continue };
            let (shape, bytes) = (Arc::clone(&route.shape), bytes::Bytes::from(part.bytes));
            let mut log = shape.log();
            // A replay of what the log has (SH-18).
            if log.has(part.last.tx) {
                continue;
            }
            let open_bytes = log.open_chunk_bytes;
            let open = log.parts.get_or_insert_with(|| Box::new(OpenParts::new(open_bytes)));
            let chunk_ends = run::chunk_ends(&bytes, self.chunk_bytes, &mut open.chunk_bytes);
            open.chunk_ends.extend_from_slice(&chunk_ends);
            open.extents.push(Extent { last: part.last, place: None, bytes: Some(bytes.clone()) });
            let (open_chunk_bytes, is_first) = (open.chunk_bytes, open.extents.len() == 1);
            drop(log);
            if is_first {
                self.parted.push(Arc::clone(&shape));
            }
            let (first, last) = (part.first, part.last);
            self.parts.push(RunWrite { shape, first, last, bytes, chunk_ends, open_chunk_bytes });
        }
    }

    /// Forgets a transaction whose commit was not received: the stream was interrupted.
    fn discard_open(&mut self) {
        self.open = None;
        for shape in self.parted.drain(..) {
            let parts = shape.log().parts.take();
            self.discarded.extend(parts.into_iter().flat_map(|parts| parts.extents));
        }
    }

    /// The parts to write since the last call, and those that are not needed any more.
    pub(crate) fn take_parts(&mut self) -> (Vec<RunWrite>, Vec<Extent>) {
        (std::mem::take(&mut self.parts), std::mem::take(&mut self.discarded))
    }

    fn commit(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.parted.clear();
        self.recent.push(open.xid);
        let mut oversized = Vec::new();
        for (id, mut run) in open.runs {
            let Some(route) = self.routes.get_mut(&id) else { continue };
            run.finish();
            match &mut route.state {
                RouteState::Pending(pending) => {
                    pending.bytes += run.bytes.len();
                    pending.runs.push(PendingRun { xid: open.xid, run });
                    if pending.bytes > PENDING_BYTES_MAX {
                        oversized.push(id);
                    }
                }
                RouteState::Live { filter } => {
                    if filter.as_ref().is_none_or(|filter| !filter.has(open.xid, open.lsn)) {
                        self.writes.extend(append(&route.shape, run, self.chunk_bytes));
                    }
                }
            }
        }
        for id in oversized.into_iter().chain(open.oversized) {
            tracing::warn!(shape = id, "shape removed: a transaction or the wait for its snapshot exceeds a limit");
            self.remove(id);
        }
    }

    /// The runs to store since the last call, and the position that they complete. Empty within a transaction.
    pub(crate) fn take_writes(&mut self) -> (Vec<RunWrite>, u64) {
        (std::mem::take(&mut self.writes), self.applied_lsn)
    }

    /// The shapes that were removed since the last call.
    pub(crate) fn take_removed(&mut self) -> Vec<Arc<Shape>> {
        std::mem::take(&mut self.removed)
    }

    /// Whether definitions of tables may have changed since the last call.
    pub(crate) fn take_tables_changed(&mut self) -> bool {
        std::mem::take(&mut self.tables_changed)
    }

    /// Whether there are no shapes.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
}

/// Appends the messages of one transaction to a log and wakes its waiters. `None` if the log has the transaction already: a
/// replay after a restart (SH-18).
fn append(shape: &Arc<Shape>, run: OpenRun, chunk_bytes: u64) -> Option<RunWrite> {
    let OpenRun { bytes, first, last, rows, .. } = run;
    let bytes = bytes::Bytes::from(bytes);
    let write = shape.update(|log| {
        if log.phase == ShapePhase::Removed || log.has(last.tx) {
            return None;
        }
        if let Some(parts) = log.parts.take() {
            log.runs.extend(parts.extents);
            log.chunk_ends.extend(parts.chunk_ends);
            log.open_chunk_bytes = parts.chunk_bytes;
        }
        let chunk_ends = run::chunk_ends(&bytes, chunk_bytes, &mut log.open_chunk_bytes);
        log.chunk_ends.extend_from_slice(&chunk_ends);
        log.runs.push(Extent { last, place: None, bytes: Some(bytes.clone()) });
        log.end = last;
        let open_chunk_bytes = log.open_chunk_bytes;
        Some(RunWrite { shape: Arc::clone(shape), first, last, bytes: bytes.clone(), chunk_ends, open_chunk_bytes })
    });
    if write.is_some() {
        shape.record_change(rows);
    }
    write
}

#[cfg(test)]
mod tests;
