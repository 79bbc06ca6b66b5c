//! Applies transactions to shape logs.
//!
//! One task applies all transactions in commit order: it finds the shapes of each change, encodes the change once for all
//! shapes with the same columns, and appends whole transactions to the logs. Shapes are registered and removed between two
//! transactions.

mod held;
mod moving;
mod recent;
mod subqueries;
mod table_routes;
mod transaction;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use tidegate_changes::{Change, ChangeEvent, ChangeKind, Relation, ReplicaIdentity, SchemaChange};
use tidegate_predicate::{EvalError, Predicate, Table, ValueSet};
use tokio::sync::oneshot;

use crate::offset::LogOffset;
use crate::parameters::LogMode;
use crate::run;
use crate::shape::{Extent, OpenParts, Shape, ShapeId, ShapePhase, SnapshotFilter};
use crate::store::RunWrite;
use crate::table::TableInfo;
use crate::xid::widen;
pub(crate) use held::HeldRow;
use held::{ChangedPart, HeldTransaction};
pub(crate) use moving::{MOVED_BYTES_MAX, MoveLevel};
use moving::{MoveError, MovingTransaction};
use recent::RecentCommits;
use subqueries::{LevelEnd, SubqueryEffect, SubqueryRoute, SubqueryState};
pub(crate) use subqueries::{Move, MoveQuery};
use table_routes::TableRoutes;
use transaction::{OpenRun, RoutedTransaction, RunMode};

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
    /// The results of the subqueries of a shape are known.
    SubqueriesKnown {
        /// The shape.
        id: ShapeId,
        /// Results of the subqueries, and the transactions that they have.
        results: Box<SubqueryResults>,
        /// Whether the changes of the shape are held further.
        done: oneshot::Sender<SeamResult>,
    },
    /// A part of the rows that may have moved.
    RowsRead {
        /// The shape.
        id: ShapeId,
        /// The rows.
        rows: Vec<HeldRow>,
        /// Answered when the next part can be sent.
        done: oneshot::Sender<SeamResult>,
    },
    /// The rows that may have moved are known.
    RowsMoved {
        /// The shape.
        id: ShapeId,
        /// The last part of the rows.
        rows: Vec<HeldRow>,
        /// The transactions that the rows have.
        filter: SnapshotFilter,
        /// Answered when all those transactions were received.
        done: oneshot::Sender<MoveStep>,
    },
    /// The results of the subqueries of a shape of an earlier process, whose log is not compared.
    ResultsRead {
        /// The shape.
        id: ShapeId,
        /// Results by the number of the subquery.
        sets: Vec<ValueSet>,
        /// The transactions that the results have.
        filter: SnapshotFilter,
        /// Answered when all those transactions were received.
        done: oneshot::Sender<MoveStep>,
    },
    /// Answer with the position of the first transaction that a shape holds, as soon as there is one.
    FirstHeld {
        /// The shape.
        id: ShapeId,
        /// The position.
        done: oneshot::Sender<u64>,
    },
    /// Remove a shape.
    Remove(Arc<Shape>),
    /// Remove all shapes of a table.
    RemoveTable(u32),
}

/// The results of the subqueries of a shape in a snapshot.
#[derive(Debug)]
pub(crate) struct SubqueryResults {
    /// Results by the number of the subquery.
    pub(crate) sets: Vec<ValueSet>,
    /// The transactions that the snapshot has.
    pub(crate) filter: SnapshotFilter,
    /// The rows that moved, as messages; none if no row has, or if they are in the chunks of a first snapshot.
    pub(crate) moves: Option<MovedRows>,
    /// Whether the messages have the position of the first transaction that is held, and not of one before it.
    pub(crate) is_at_first_held: bool,
}

/// Messages that bring the log of a shape to a snapshot.
#[derive(Debug)]
pub(crate) struct MovedRows {
    /// The items.
    pub(crate) run: Vec<u8>,
    /// Position of the first and of the last item.
    pub(crate) ends: (LogOffset, LogOffset),
    /// Rows that the shape has more.
    pub(crate) rows: i64,
}

/// A part of a snapshot that waits until the stream has passed it.
#[derive(Debug)]
struct ArrivedSnapshot {
    id: ShapeId,
    part: SnapshotPart,
    filter: SnapshotFilter,
    done: oneshot::Sender<MoveStep>,
}

#[derive(Debug)]
enum SnapshotPart {
    /// The last rows that may have moved.
    Rows(Vec<HeldRow>),
    /// The results of the subqueries.
    Results(Vec<ValueSet>),
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

/// The step after a snapshot of rows that may have moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveStep {
    /// The transaction is complete, or the shape is not registered any more.
    Done,
    /// The snapshot lacks a transaction ([`SeamResult::Retry`]).
    Retry,
    /// Further rows have to be read.
    Next(MoveQuery),
}

impl From<SeamResult> for MoveStep {
    fn from(result: SeamResult) -> Self {
        match result {
            SeamResult::Sound | SeamResult::Gone => Self::Done,
            SeamResult::Retry => Self::Retry,
        }
    }
}

/// State of a route.
#[derive(Debug)]
enum RouteState {
    /// The snapshot has not begun.
    Pending(Box<PendingRoute>),
    /// The shape follows the stream. The filter is dropped when the stream has passed the snapshot.
    Live { filter: Option<Box<SnapshotFilter>> },
    /// The predicate has subqueries.
    Subqueries(Box<SubqueryRoute>),
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
    fn mode(&self, open: &RoutedTransaction) -> RunMode {
        match &self.state {
            RouteState::Pending(_) => RunMode::Hold,
            RouteState::Live { filter: Some(filter) } if filter.has(open.xid, open.lsn) => RunMode::Skip,
            RouteState::Live { .. } => RunMode::Write,
            // Rows may move at the end of the transaction, which makes its messages wrong.
            RouteState::Subqueries(_) => RunMode::Hold,
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
    open: Option<RoutedTransaction>,
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
    /// The position of the last transaction that was applied: an interrupted stream repeats some.
    committed_lsn: u64,
    /// Removed shapes, to be forgotten by the index and the store.
    removed: Vec<Arc<Shape>>,
    /// Shapes whose rows have to be read from a snapshot.
    moves: Vec<Move>,
    arrived: Vec<ArrivedSnapshot>,
    /// Shapes with subqueries and without snapshot that hold transactions. After a restart, their logs are not compared: the
    /// stream has to repeat what they hold.
    unlogged: FxHashMap<ShapeId, Arc<Shape>>,
    /// Shapes of an earlier process with subqueries, and the position up to which the stream repeats what their logs have.
    restored: Vec<(u64, ShapeId)>,
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
            committed_lsn: 0,
            removed: Vec::new(),
            moves: Vec::new(),
            arrived: Vec::new(),
            unlogged: FxHashMap::default(),
            restored: Vec::new(),
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
        if !predicate.subqueries().is_empty() {
            let lsn = shape.log().end.tx;
            let filter = shape.log().take_filter();
            shape.hold(self.applied_lsn);
            keep_repeatable(&mut self.unlogged, shape);
            // A comparison drops what its own snapshot has.
            let filter = filter.filter(|_| shape.definition.log == LogMode::ChangesOnly);
            let route = SubqueryRoute::restored(predicate, lsn, filter);
            self.insert(shape, predicate, RouteState::Subqueries(Box::new(route)));
            self.restored.push((lsn, shape.id));
            self.begin_restored(self.applied_lsn);
            return;
        }
        let filter = shape.log().take_filter();
        self.filtered.extend(filter.as_ref().map(|filter| (filter.until_lsn, shape.id)));
        self.insert(shape, predicate, RouteState::Live { filter });
    }

    fn insert(&mut self, shape: &Arc<Shape>, predicate: &Arc<Predicate>, state: RouteState) {
        let routes = self.table_routes(&shape.definition.form.table, predicate.table());
        if predicate.subqueries().is_empty() {
            routes.insert(shape.id, predicate);
        } else {
            routes.insert(shape.id, &Arc::new(predicate.candidates()));
        }
        for (number, (subquery, table)) in (0..).zip(predicate.subqueries().iter().zip(shape.definition.inner_tables()))
        {
            let candidates = Arc::new(subquery.candidates());
            self.table_routes(table, subquery.table()).insert_subquery(shape.id, number, &candidates);
        }
        self.routes.insert(shape.id, Route { shape: Arc::clone(shape), state });
    }

    /// The routes of a table. Older shapes of another definition of it end.
    fn table_routes(&mut self, table: &Arc<TableInfo>, predicate_table: &Arc<Table>) -> &mut TableRoutes {
        if self.tables.get(&table.oid).is_some_and(|routes| !routes.is_of(table)) {
            // The catalogue was read again before the stream described the table.
            self.remove_table(table.oid);
        }
        if table.is_partitioned() {
            self.roots.extend(table.partitions.iter().map(|partition| (*partition, table.oid)));
        }
        self.tables.entry(table.oid).or_insert_with(|| TableRoutes::new(table, predicate_table))
    }

    /// Handles a command.
    pub(crate) fn command(&mut self, command: RouteCommand) {
        match command {
            RouteCommand::Register { shape, predicate, done } => {
                let registered_at = self.recent.next();
                let state = if predicate.subqueries().is_empty() {
                    RouteState::Pending(Box::new(PendingRoute { registered_at, runs: Vec::new(), bytes: 0 }))
                } else {
                    RouteState::Subqueries(Box::new(SubqueryRoute::new(&predicate, registered_at)))
                };
                self.insert(&shape, &predicate, state);
                // The requester may have left.
                let _ = done.send(());
            }
            RouteCommand::SnapshotBegan { id, filter, done } => {
                let _ = done.send(self.snapshot_began(id, &filter));
            }
            RouteCommand::SubqueriesKnown { id, results, done } => {
                let _ = done.send(self.subqueries_known(id, *results));
            }
            RouteCommand::RowsRead { id, rows, done } => {
                let _ = done.send(self.add_rows(id, &rows));
            }
            RouteCommand::RowsMoved { id, rows, filter, done } => {
                self.arrived.push(ArrivedSnapshot { id, part: SnapshotPart::Rows(rows), filter, done });
                self.end_moves();
            }
            RouteCommand::ResultsRead { id, sets, filter, done } => {
                self.arrived.push(ArrivedSnapshot { id, part: SnapshotPart::Results(sets), filter, done });
                self.end_moves();
            }
            RouteCommand::FirstHeld { id, done } => {
                if let Some(Route { state: RouteState::Subqueries(route), .. }) = self.routes.get_mut(&id) {
                    route.send_first(done);
                }
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
        self.near_xid = self.near_xid.max(filter.snapshot.xmax);
        if let RouteState::Subqueries(route) = &mut route.state {
            let Some(held) = route.held() else { return SeamResult::Gone };
            if self.recent.any_unseen(held.registered_at, &filter.snapshot) {
                return SeamResult::Retry;
            }
            route.begin_rows();
            return SeamResult::Sound;
        }
        let RouteState::Pending(pending) = &mut route.state else { return SeamResult::Gone };
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

    /// Adds the rows that moved to the log of a shape, and the transactions that were held and are not in the snapshot.
    fn subqueries_known(&mut self, id: ShapeId, results: SubqueryResults) -> SeamResult {
        let SubqueryResults { sets, filter, moves, is_at_first_held } = results;
        let Some(Route { shape, state: RouteState::Subqueries(route) }) = self.routes.get_mut(&id) else {
            return SeamResult::Gone;
        };
        let SubqueryState::Held(held) = &mut route.state else { return SeamResult::Gone };
        if self.recent.any_unseen(held.registered_at, &filter.snapshot) {
            return SeamResult::Retry;
        }
        let is_first_seen = || held.transactions.first().is_some_and(|first| filter.has(first.xid, first.lsn));
        if is_at_first_held && moves.is_some() && !is_first_seen() {
            // The messages of that transaction would have the same position.
            return SeamResult::Retry;
        }
        let transactions = std::mem::take(&mut held.transactions);
        route.state = SubqueryState::Known { sets, filter: Some(filter.clone()) };
        self.filtered.push_back((filter.until_lsn, id));
        if let Some(MovedRows { run, ends: (first, last), rows }) = moves {
            let bytes = bytes::Bytes::from(run);
            self.writes.extend(append_bytes(shape, &bytes, first, last, rows, self.chunk_bytes));
        }
        self.follow(id, transactions.into_iter().filter(|held| !filter.has(held.xid, held.lsn)))
    }

    /// Completes the moves whose snapshot the stream has passed: all transactions of the snapshot were received.
    fn end_moves(&mut self) {
        for arrived in
            self.arrived.extract_if(.., |arrived| arrived.filter.until_lsn <= self.applied_lsn).collect::<Vec<_>>()
        {
            let ArrivedSnapshot { id, part, filter, done } = arrived;
            // The task may have ended.
            let _ = done.send(self.end_snapshot(id, part, &filter));
        }
    }

    /// Adds rows of a snapshot that may have moved.
    fn add_rows(&mut self, id: ShapeId, rows: &[HeldRow]) -> SeamResult {
        let Some(Route { shape, state: RouteState::Subqueries(route) }) = self.routes.get_mut(&id) else {
            return SeamResult::Gone;
        };
        match route.add_rows(shape, rows) {
            Ok(()) => SeamResult::Sound,
            Err(error) => self.end_unmoved(id, &error),
        }
    }

    /// Completes what a shape has waited for, and applies the transactions that it holds.
    fn end_snapshot(&mut self, id: ShapeId, part: SnapshotPart, filter: &SnapshotFilter) -> MoveStep {
        let Some(Route { shape, state: RouteState::Subqueries(route) }) = self.routes.get_mut(&id) else {
            return MoveStep::Done;
        };
        let Some(held) = route.held() else { return MoveStep::Done };
        if self.recent.any_unseen(held.registered_at, &filter.snapshot) {
            return MoveStep::Retry;
        }
        let is_moving = matches!(route.state, SubqueryState::Moving(_));
        let ended = match part {
            SnapshotPart::Rows(rows) if is_moving => route.end_level(shape, &rows, filter, self.recent.next()),
            SnapshotPart::Results(sets) if !is_moving => route.resume(shape, sets, filter),
            SnapshotPart::Rows(_) | SnapshotPart::Results(_) => return MoveStep::Done,
        };
        match ended {
            Ok(LevelEnd::Next(query)) => MoveStep::Next(query),
            Ok(LevelEnd::Complete(run, later)) => {
                self.writes.extend(run.and_then(|run| append_open(shape, run, self.chunk_bytes)));
                self.follow(id, later.into_iter()).into()
            }
            Err(error) => self.end_unmoved(id, &error).into(),
        }
    }

    /// Ends a shape whose rows cannot be moved.
    fn end_unmoved(&mut self, id: ShapeId, error: &MoveError) -> SeamResult {
        tracing::warn!(shape = id, %error, "shape removed: rows that moved cannot be read");
        self.remove(id);
        SeamResult::Gone
    }

    /// Applies transactions that were held, until one of them moves rows: it and those after it are held further.
    fn follow(&mut self, id: ShapeId, mut transactions: impl Iterator<Item = HeldTransaction>) -> SeamResult {
        while let Some(transaction) = transactions.next() {
            let Some(Route { shape, state: RouteState::Subqueries(route) }) = self.routes.get_mut(&id) else {
                return SeamResult::Gone;
            };
            match replay(shape, route, &transaction) {
                Ok((run, SubqueryEffect::None)) => {
                    self.writes.extend(run.and_then(|run| append_open(shape, run, self.chunk_bytes)));
                }
                Ok((run, SubqueryEffect::Moved(moved))) => {
                    let HeldTransaction { xid, txid, lsn, .. } = transaction;
                    let transaction = MovingTransaction { xid, txid, lsn, run };
                    let (next, later) = (self.recent.next(), transactions.collect());
                    self.moves.push(route.begin_move(shape, transaction, *moved, next, later));
                    keep_repeatable(&mut self.unlogged, shape);
                    return SeamResult::Sound;
                }
                Err(error) => {
                    tracing::warn!(shape = id, %error, "shape removed: its predicate fails on a row");
                    self.remove(id);
                    return SeamResult::Gone;
                }
            }
        }
        // Not before: until then, the log lacks transactions that were applied.
        if let Some(route) = self.routes.get(&id) {
            route.shape.release();
        }
        self.unlogged.remove(&id);
        SeamResult::Sound
    }

    /// Starts to compare the restored shapes of which the stream has repeated all that their logs have, up to `lsn`.
    fn begin_restored(&mut self, lsn: u64) {
        for (_, id) in self.restored.extract_if(.., |(until, _)| *until < lsn).collect::<Vec<_>>() {
            let Some(Route { shape, state: RouteState::Subqueries(route) }) = self.routes.get_mut(&id) else {
                continue;
            };
            let Some(held) = route.held() else { continue };
            held.registered_at = self.recent.next();
            let (shape, predicate) = (Arc::clone(shape), Arc::clone(&route.predicate));
            self.moves.push(Move { shape, predicate, lsn: 0, query: MoveQuery::Restored });
        }
    }

    /// Removes a shape and wakes its waiters (SH-37). False if it is not routed.
    fn remove(&mut self, id: ShapeId) -> bool {
        let Some(route) = self.routes.remove(&id) else { return false };
        self.unlogged.remove(&id);
        let definition = Arc::clone(&route.shape.definition);
        self.leave_table(definition.form.table.oid, |routes| routes.remove(id));
        for (number, table) in (0..).zip(definition.inner_tables()) {
            self.leave_table(table.oid, |routes| routes.remove_subquery(id, number));
        }
        if let Some(open) = &mut self.open {
            open.runs.remove(&id);
        }
        self.writes.retain(|write| write.shape.id != id);
        self.parts.retain(|part| part.shape.id != id);
        route.shape.update(|log| {
            if log.phase != ShapePhase::Failed {
                log.phase = ShapePhase::Removed;
            }
        });
        self.removed.push(route.shape);
        true
    }

    fn leave_table(&mut self, oid: u32, remove: impl FnOnce(&mut TableRoutes)) {
        let Some(routes) = self.tables.get_mut(&oid) else { return };
        remove(routes);
        if routes.is_empty() {
            for partition in routes.row_tables() {
                self.roots.remove(partition);
            }
            self.tables.remove(&oid);
        }
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
                let mut open = RoutedTransaction::new(begin.commit_lsn.0, xid, begin.xid);
                open.is_repeated = open.lsn <= self.committed_lsn;
                self.open = Some(open);
            }
            ChangeEvent::Schema(schema) => self.schema(schema),
            ChangeEvent::Change(change) => self.change(change),
            ChangeEvent::Commit(commit) => {
                self.commit();
                self.applied_lsn = self.applied_lsn.max(commit.end_lsn.0);
                self.committed_lsn = self.committed_lsn.max(commit.commit_lsn.0);
                self.processed_lsn.fetch_max(commit.commit_lsn.0, Ordering::Release);
                self.drop_filters(commit.commit_lsn.0);
                self.passed();
            }
            ChangeEvent::Message(message) => self.applied_lsn = self.applied_lsn.max(message.end_lsn.0),
            ChangeEvent::Progress(lsn) => {
                self.applied_lsn = self.applied_lsn.max(lsn.0);
                // The commit record of the next transaction may begin at this position.
                self.processed_lsn.fetch_max(lsn.0.saturating_sub(1), Ordering::Release);
                self.drop_filters(lsn.0);
                self.passed();
            }
            _ => {}
        }
    }

    /// Continues what waits for a position of the stream.
    fn passed(&mut self) {
        if !self.restored.is_empty() {
            self.begin_restored(self.applied_lsn);
        }
        if !self.arrived.is_empty() {
            self.end_moves();
        }
    }

    /// Frees the filters that the stream has passed: idle shapes keep none.
    fn drop_filters(&mut self, lsn: u64) {
        while let Some((_, id)) = self.filtered.pop_front_if(|(until, _)| *until <= lsn) {
            match self.routes.get_mut(&id).map(|route| &mut route.state) {
                Some(RouteState::Live { filter }) => *filter = None,
                Some(RouteState::Subqueries(route)) => route.drop_filter(lsn),
                _ => {}
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
                let failed = routes.route(row, change.id.seq, &mut self.routes, open);
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
            let open = log.rare_mut().parts.get_or_insert_with(|| OpenParts::new(open_bytes));
            let chunk_ends = run::chunk_ends(&bytes, self.chunk_bytes, &mut open.chunk_bytes);
            open.chunk_ends.extend_from_slice(&chunk_ends);
            open.extents.push(Extent::unwritten(part.last, bytes.clone()));
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
        for id in self.open.take().map(|open| open.touched).unwrap_or_default() {
            if let Some(Route { state: RouteState::Subqueries(route), .. }) = self.routes.get_mut(&id) {
                route.roll_back();
            }
        }
        for shape in self.parted.drain(..) {
            let parts = shape.log().take_parts();
            self.discarded.extend(parts.into_iter().flat_map(|parts| parts.extents));
        }
    }

    /// The parts to write since the last call, and those that are not needed any more.
    pub(crate) fn take_parts(&mut self) -> (Vec<RunWrite>, Vec<Extent>) {
        (std::mem::take(&mut self.parts), std::mem::take(&mut self.discarded))
    }

    fn commit(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        self.parted.clear();
        self.recent.push(open.xid);
        let mut oversized = self.commit_subqueries(&mut open);
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
                // Held transactions have no run.
                RouteState::Subqueries(_) => self.writes.extend(append(&route.shape, run, self.chunk_bytes)),
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

    /// Ends a transaction for shapes with subqueries. Returns shapes that hold too much.
    fn commit_subqueries(&mut self, open: &mut RoutedTransaction) -> Vec<ShapeId> {
        let mut ended = Vec::new();
        for id in std::mem::take(&mut open.touched) {
            let Some(Route { shape, state: RouteState::Subqueries(route) }) = self.routes.get_mut(&id) else {
                continue;
            };
            let (xid, txid, lsn) = (open.xid, open.txid, open.lsn);
            if let SubqueryEffect::Moved(moved) = route.commit(xid, txid, lsn) {
                let transaction = MovingTransaction { xid, txid, lsn, run: open.runs.remove(&id) };
                let next = self.recent.next();
                self.moves.push(route.begin_move(shape, transaction, *moved, next, Vec::new()));
                keep_repeatable(&mut self.unlogged, shape);
            }
            if route.is_oversized() {
                ended.push(id);
            }
        }
        ended
    }

    /// Shapes whose rows have moved since the last call.
    pub(crate) fn take_moves(&mut self) -> Vec<Move> {
        std::mem::take(&mut self.moves)
    }

    /// The runs to store since the last call, and the position that they complete: from there on the stream is repeated after
    /// a restart. Empty within a transaction.
    pub(crate) fn take_writes(&mut self) -> (Vec<RunWrite>, u64) {
        // A shape that holds transactions for too long, or too many, is removed.
        let held = self.unlogged.values().map(|shape| shape.held_lsn()).min();
        (std::mem::take(&mut self.writes), held.map_or(self.applied_lsn, |held| self.applied_lsn.min(held)))
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

/// Keeps the stream at a transaction that a shape holds, if its log cannot be compared.
fn keep_repeatable(unlogged: &mut FxHashMap<ShapeId, Arc<Shape>>, shape: &Arc<Shape>) {
    if shape.definition.log == LogMode::ChangesOnly {
        unlogged.insert(shape.id, Arc::clone(shape));
    }
}

/// Evaluates a transaction that was held. Returns its messages, of which the last is not marked.
fn replay(
    shape: &Shape,
    route: &mut SubqueryRoute,
    transaction: &HeldTransaction,
) -> Result<(Option<OpenRun>, SubqueryEffect), EvalError> {
    let HeldTransaction { xid, txid, lsn, changes } = transaction;
    let mut open = RoutedTransaction::new(*lsn, *xid, *txid);
    for change in changes {
        let (old, new) = (change.rows.old(), change.rows.new_row());
        let (old, new) = (old.as_deref(), new.as_deref());
        match change.part {
            ChangedPart::Shape(seq) => {
                let has = route.membership(old, new)?;
                let (old, new) = (old.filter(|_| has.0), new.filter(|_| has.1));
                open.push_change(shape.id, &shape.definition, seq, old, new);
            }
            ChangedPart::Subquery(number) => route.count(number, old, new)?,
        }
    }
    let effect = route.commit(*xid, *txid, *lsn);
    Ok((open.runs.remove(&shape.id), effect))
}

/// Appends the messages of one transaction to a log and wakes its waiters. `None` if the log has the transaction already: a
/// replay after a restart (SH-18).
fn append(shape: &Arc<Shape>, run: OpenRun, chunk_bytes: u64) -> Option<RunWrite> {
    let OpenRun { bytes, first, last, rows, .. } = run;
    append_bytes(shape, &bytes.into(), first, last, rows, chunk_bytes)
}

/// [`append`] for a run whose last message is not marked.
fn append_open(shape: &Arc<Shape>, mut run: OpenRun, chunk_bytes: u64) -> Option<RunWrite> {
    run.finish();
    append(shape, run, chunk_bytes)
}

/// [`append`] for items that are encoded.
fn append_bytes(
    shape: &Arc<Shape>,
    bytes: &bytes::Bytes,
    first: LogOffset,
    last: LogOffset,
    rows: i64,
    chunk_bytes: u64,
) -> Option<RunWrite> {
    let write = shape.update(|log| {
        if log.phase == ShapePhase::Removed || log.has(last.tx) {
            return None;
        }
        if let Some(parts) = log.take_parts() {
            log.runs.extend(parts.extents);
            log.add_chunk_ends(&parts.chunk_ends);
            log.open_chunk_bytes = parts.chunk_bytes;
        }
        let chunk_ends = run::chunk_ends(bytes, chunk_bytes, &mut log.open_chunk_bytes);
        log.add_chunk_ends(&chunk_ends);
        log.append(Extent::unwritten(last, bytes.clone()), shape.reads_durable_only());
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
