//! A thread of the data plane: its clients, its share of each pool, its counters.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    ops::ControlFlow,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::{FxHashMap, FxHashSet};
use tidegate_link::{AcceptedSocket, Reactor};
use tidegate_pool::{CloseReason, Lease, LocalPool, PendingConnect, Transfer};
use tidegate_supervise::Scope;
use tidegate_topology::{Cluster, ClusterNode};
use tidegate_wire::backend::TxStatus;

use tidegate_config::{Dialect, Host, PoolPlan, Route};
use tidegate_pg_client::{ConnectError, ServerIdentity};
use tidegate_query_log::writer::{PeerInfo, Recorder, SessionLog};
use tidegate_session_state::{
    params::{Settings, SettingsInterner},
    statements::StatementCatalog,
};
use tidegate_sql::classify::parse_sets;

use crate::{
    plane::{
        CancelStage, ClientInfo, ClientRegistry, ConnectionUse, Console, Gateway, Greetings, Phase, PoolKey,
        QuotaGuard, Setup, SharedPool, Signal,
        mailbox::{Mail, Mailbox, Mailboxes},
        within,
        worker_pool::{OpenHostPool, WorkerPool},
    },
    server::{Server, cancel, clean},
};
use tidegate_stats::{PoolStats, PoolTotals, Spread};

mod moves;
mod reset;

use moves::MoveProgress;
use reset::clean_lease;

/// Dropped when a cancel request has completed; the client that sent it waits for that.
pub type CancelAsker = tokio::sync::mpsc::Sender<std::convert::Infallible>;

/// The mailbox of a thread.
pub type WorkerMailbox = Mailbox<Worker>;

/// The threads of a gateway.
pub type Workers = Mailboxes<Worker>;

/// A thread of the data plane.
pub struct Worker {
    /// Number of the thread.
    pub index: usize,
    /// Event loop of the thread.
    pub reactor: Reactor,
    /// State shared by all threads.
    pub gateway: Arc<Gateway>,
    /// All threads.
    pub workers: Arc<Workers>,
    /// Prepared statements of its clients.
    pub catalog: StatementCatalog,
    /// Run-time parameters of its clients, interned.
    pub interned: SettingsInterner,
    /// Serves clients of the admin console.
    pub console: Console,
    /// Greetings of recent logins.
    pub greetings: Greetings<Route>,
    /// Clients of the thread.
    pub registry: ClientRegistry,
    /// Tasks of clients.
    pub client_scope: Scope,
    /// Tasks around server connections.
    pub chores: Scope,
    /// Writes the query log, if there is one.
    pub recorder: Option<Rc<Recorder>>,
    mailbox: Arc<WorkerMailbox>,
    pools: RefCell<FxHashMap<PoolKey, Rc<WorkerPool>>>,
    /// Removed pools whose key is in use again in `pools`. Their waiters still have to get an error.
    former: RefCell<Vec<Rc<WorkerPool>>>,
    /// Counters of forgotten pools, by database.
    forgotten: RefCell<FxHashMap<Arc<str>, (PoolTotals, Spread)>>,
    /// Servers being cleaned, by id, and whether they still wait for a cancel request.
    cleaning: RefCell<FxHashMap<u64, bool>>,
    /// See [`Worker::is_suspended`].
    suspended: Cell<bool>,
    /// Clients with nothing in flight during SUSPEND, by id.
    held: RefCell<FxHashSet<u64>>,
    moves: MoveProgress,
    stopped: Cell<bool>,
    swept_at: Cell<Instant>,
}

/// Interval of pool maintenance.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Worker {
    /// A worker of the calling thread.
    ///
    /// # Panics
    /// If the mailboxes of the threads are not set.
    #[must_use]
    pub fn new(
        index: usize,
        reactor: Reactor,
        gateway: Arc<Gateway>,
        workers: Arc<Workers>,
        console: Console,
    ) -> Rc<Self> {
        let client_scope = gateway.lifecycle.client_scope.child(&index.to_string());
        let chores = gateway.lifecycle.scope.child(&format!("chores-{index}"));
        let settings = &gateway.config.setup().config.journal;
        let query_log = gateway.query_log.as_ref();
        let recorder = query_log.and_then(|query_log| Recorder::new(query_log, index, settings, reactor.now()));
        Rc::new(Self {
            index,
            swept_at: Cell::new(reactor.now()),
            reactor,
            catalog: StatementCatalog::new(gateway.pools.catalog_changes.clone())
                .ignoring_trace_comments(gateway.config.setup().config.traces.is_on()),
            gateway,
            mailbox: workers.all()[index].clone(),
            workers,
            interned: SettingsInterner::default(),
            console,
            greetings: Greetings::default(),
            registry: ClientRegistry::default(),
            client_scope,
            chores,
            recorder,
            pools: RefCell::default(),
            former: RefCell::default(),
            forgotten: RefCell::default(),
            cleaning: RefCell::default(),
            suspended: Cell::new(false),
            held: RefCell::default(),
            moves: MoveProgress::default(),
            stopped: Cell::new(false),
        })
    }

    /// Ends the event loop at its next turn.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    /// Runs the event loop until it is stopped. `client` starts the task of an accepted client.
    ///
    /// # Errors
    /// If the event loop fails.
    pub fn run(self: &Rc<Self>, client: impl Fn(&Rc<Self>, AcceptedSocket)) -> std::io::Result<()> {
        let worker = self.clone();
        let timer = self.gateway.lifecycle.sweep_scope.wrap_as(self.index, |ctx| async move {
            // The timer only ends the wait; `turn` does the maintenance.
            while within(&worker.reactor, SWEEP_EVERY, ctx.cancelled()).await.is_none() {}
        });
        if let Ok(timer) = timer {
            self.reactor.spawn(timer);
        }
        let ran = self.reactor.run(|| {
            if self.mailbox.has_new() {
                self.read_mail(&client);
            }
            let now = self.reactor.now();
            if now - self.swept_at.get() >= SWEEP_EVERY {
                self.swept_at.set(now);
                self.sweep(now);
            }
            if self.stopped.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.mailbox.close();
        self.pools.borrow_mut().clear();
        self.former.borrow_mut().clear();
        ran
    }

    fn read_mail(self: &Rc<Self>, client: &impl Fn(&Rc<Self>, AcceptedSocket)) {
        for mail in self.mailbox.take() {
            match mail {
                Mail::Client(accepted) => client(self, accepted),
                Mail::Pool(key) => {
                    let pool = self.pools.borrow().get(&key).cloned();
                    let former = self.former.borrow().clone();
                    for pool in pool.iter().chain(former.iter().filter(|pool| pool.shared.key == key)) {
                        pool.read_mail(self.reactor.now());
                    }
                }
                Mail::Visit(call) => call(self),
            }
        }
    }

    fn sweep(&self, now: Instant) {
        if let Some(recorder) = &self.recorder {
            recorder.set_clock(now);
        }
        if self.is_suspended() {
            // During SUSPEND no connection is closed for its age.
            return;
        }
        for pool in self.pools() {
            pool.local.maintain(now);
            if let Some(replica_set) = pool.replica_set() {
                replica_set.forget_gone();
            }
        }
        self.drop_gone_pools();
        let former = self.former.take();
        former.iter().for_each(|pool| pool.local.maintain(now));
        self.former.borrow_mut().extend(former.into_iter().filter(|pool| !pool.is_over()));
    }

    /// Drops the pools of removed servers that have no open connection left.
    fn drop_gone_pools(&self) {
        let mut pools = self.pools.borrow_mut();
        let gone: Vec<PoolKey> = pools.iter().filter(|(_, pool)| pool.is_gone()).map(|(key, _)| key.clone()).collect();
        let gone: Vec<_> = gone.iter().filter_map(|key| pools.remove(key)).collect();
        drop(pools);
        gone.iter().for_each(|pool| pool.log_closed());
    }

    /// The pools in use by this thread.
    #[must_use]
    pub fn pools(&self) -> Vec<Rc<WorkerPool>> {
        self.pools.borrow().values().cloned().collect()
    }

    /// The pools among these that a task of this thread uses.
    pub fn pools_in_use(self: &Rc<Self>, keys: &[PoolKey]) -> Vec<PoolKey> {
        let pools = self.pools.borrow();
        let in_use = |key: &&PoolKey| pools.get(key).is_some_and(|pool| Rc::strong_count(pool) > 1);
        keys.iter().filter(in_use).cloned().collect()
    }

    /// Forgets this thread's share of pools that no task uses. Their counters stay with their databases, except for databases
    /// that only `*` matches. Pools of single servers must come after the pool of their clients.
    pub fn forget_pools(&self, keys: &[PoolKey]) {
        for key in keys {
            let mut pools = self.pools.borrow_mut();
            let is_unused = pools.get(key).is_some_and(|pool| Rc::strong_count(pool) == 1);
            let forgotten = if is_unused { pools.remove(key) } else { None };
            drop(pools);
            // Outside of the borrow: destructors may look up the pool.
            let Some(pool) = forgotten else { continue };
            if pool.shared.key.host.is_none() && pool.plan().entry != "*" {
                let mut forgotten = self.forgotten.borrow_mut();
                let (totals, spread) = forgotten.entry(key.database.clone()).or_default();
                totals.add(&pool.stats.totals());
                spread.add(&pool.stats.spread());
            }
        }
    }

    /// Counters of this thread, by pool; a database may occur more than once.
    pub fn totals(self: &Rc<Self>) -> Vec<(Arc<str>, PoolTotals)> {
        let mut totals = self.counted(PoolStats::totals);
        totals.extend(self.forgotten.borrow().iter().map(|(database, (totals, _))| (database.clone(), *totals)));
        totals
    }

    /// Durations of this thread, by pool; a database may occur more than once.
    pub fn spreads(self: &Rc<Self>) -> Vec<(Arc<str>, Spread)> {
        let mut spreads = self.counted(PoolStats::spread);
        spreads
            .extend(self.forgotten.borrow().iter().map(|(database, (_, spread))| (database.clone(), spread.clone())));
        spreads
    }

    fn counted<T>(&self, read: impl Fn(&PoolStats) -> T) -> Vec<(Arc<str>, T)> {
        let pools = self.pools.borrow();
        // Pools of single servers share the counters of the pool of their clients.
        let homes = pools.values().filter(|pool| pool.shared.key.host.is_none());
        homes.map(|pool| (pool.shared.key.database.clone(), read(&pool.stats))).collect()
    }

    /// Servers being cleaned by this thread, by id, and whether they still wait for a cancel request.
    #[must_use]
    pub fn cleaning(&self) -> Vec<(u64, bool)> {
        self.cleaning.borrow().iter().map(|(id, is_held_up)| (*id, *is_held_up)).collect()
    }

    /// Idle servers of this thread that are checked before their next use, by id, with their pools.
    #[must_use]
    pub fn unchecked(&self) -> Vec<(u64, PoolKey)> {
        let now = self.reactor.now();
        let mut found = Vec::new();
        for pool in self.pools() {
            let plan = pool.plan();
            pool.local.for_each_idle(|server, opened_at, released_at| {
                if plan.needs_server_check(opened_at, released_at, now) {
                    found.push((server.identity.id, pool.shared.key.clone()));
                }
            });
        }
        found
    }

    /// This thread's share of a pool.
    pub fn pool(self: &Rc<Self>, shared: &Arc<SharedPool>) -> Rc<WorkerPool> {
        let known = self.pools.borrow().get(&shared.key).cloned();
        if let Some(pool) = known.as_ref().filter(|pool| Arc::ptr_eq(&pool.shared, shared)) {
            return pool.clone();
        }
        let stats = match &shared.key.host {
            // A pool that was removed and added again continues its counters.
            None => known.map(|pool| pool.stats.clone()).unwrap_or_default(),
            // Servers come and go, so their work is counted for the pool of the clients.
            Some(host) => {
                tracing::debug!(database = %shared.key.database, user = %shared.key.user, server = %host, "pool opened");
                let home = PoolKey { host: None, ..shared.key.clone() };
                self.pools.borrow().get(&home).map(|home| home.stats.clone()).unwrap_or_default()
            }
        };
        let pool = WorkerPool::new(shared, stats, |pool| {
            let host = PoolHost { worker: Rc::downgrade(self), pool };
            LocalPool::new(&shared.pool, self.index, self.reactor.now(), host)
        });
        let before = self.pools.borrow_mut().insert(shared.key.clone(), pool.clone());
        if let Some(before) = &before
            && before.shared.key.host.is_some()
        {
            before.log_closed();
        }
        self.former.borrow_mut().extend(before);
        pool
    }

    /// The session log of a client, if there is a query log.
    pub fn session_log(&self, client_info: &ClientInfo, settings: Option<&Rc<Settings>>) -> Option<Rc<SessionLog>> {
        let recorder = self.recorder.as_ref()?;
        let peer = PeerInfo {
            client: client_info.peer.to_string(),
            user: client_info.user.to_string(),
            database: client_info.database.to_string(),
            application: Box::default(),
        };
        Some(SessionLog::new(recorder, peer, client_info.id, settings, self.reactor.now()))
    }

    /// Applies the settings of a reload.
    pub fn refresh_plans(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.reload(&self.gateway.config.setup().config.journal);
        }
        self.pools.borrow().values().for_each(|pool| pool.refresh_plan());
        for pool in self.pools() {
            pool.read_mail(self.reactor.now());
        }
        self.dismiss_removed();
        self.note_replaced_pools();
        // Clients in session mode leave with servers that are to be replaced.
        self.registry.wake_all();
    }

    /// Disconnects clients whose database was removed.
    fn dismiss_removed(&self) {
        let pools = self.pools.borrow();
        let is_removed = |client_info: &Rc<ClientInfo>| {
            pools.get(&client_info.key()).is_some_and(|pool| pool.shared.pool.is_closed())
        };
        self.registry
            .client_infos()
            .iter()
            .filter(|client_info| is_removed(client_info))
            .for_each(|client_info| client_info.signal(Signal::Removed));
    }

    /// Informs clients whose servers now log in as another user, or whose pool is now shared or no longer shared.
    fn note_replaced_pools(&self) {
        let setup = self.gateway.config.setup();
        for client_info in self.registry.client_infos() {
            let key = client_info.key();
            client_info.is_pool_replaced.set(*key.user != *setup.config.pool_user(&key.database, &client_info.user));
        }
    }

    /// Whether SUSPEND is in force: nothing is read from clients and servers, and no timeout runs.
    #[inline]
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended.get()
    }

    /// Records whether everything received from a client and its server is sent, during SUSPEND.
    pub fn hold(&self, client_info: &ClientInfo, is_sent: bool) {
        let mut held = self.held.borrow_mut();
        if is_sent {
            held.insert(client_info.id);
        } else {
            held.remove(&client_info.id);
        }
    }

    /// Clients with nothing in flight, and clients with something in flight, during SUSPEND.
    #[must_use]
    pub fn held_and_others(&self) -> (Vec<Rc<ClientInfo>>, Vec<Rc<ClientInfo>>) {
        let held = self.held.borrow();
        let mut client_infos = self.registry.client_infos();
        client_infos.retain(|client_info| client_info.server_handle().is_some());
        client_infos.into_iter().partition(|client_info| held.contains(&client_info.id))
    }

    /// Applies the suspension of the gateway.
    pub fn follow_phase(&self) {
        self.suspended.set(self.gateway.lifecycle.phase() == Phase::Suspended);
        self.held.borrow_mut().clear();
        for client_info in self.registry.client_infos() {
            if client_info.peek_signal() == Some(Signal::SuspendTimeout) {
                client_info.clear_signal();
            }
        }
        self.registry.wake_all();
    }

    /// Starts a task for the server connection with this id; 0 if there is none yet.
    #[track_caller]
    pub fn spawn_chore(&self, server: u64, task: impl Future<Output = ()> + 'static) {
        if let Ok(task) = self.chores.wrap_numbered(server, |_| task) {
            self.reactor.spawn(task);
        }
    }

    /// Starts a task that a shutdown may abort at any point: only a connection attempt is lost.
    #[track_caller]
    pub fn spawn_attempt(&self, task: impl Future<Output = ()> + 'static) {
        let task = self.chores.wrap(|ctx| async move { ctx.run_until_cancelled(task).await.unwrap_or_default() });
        if let Ok(task) = task {
            self.reactor.spawn(task);
        }
    }

    /// Waits until the shared limits admit one more connection. If a client waits for it, an idle connection of another pool
    /// is closed. `None` if the gateway is stopping or the connection is no longer needed.
    pub async fn reserve_connection(&self, pool: &WorkerPool, room: ConnectionUse) -> Option<QuotaGuard> {
        let (gateway, key) = (&self.gateway, &pool.shared.key);
        let mut evicted_at: Option<Instant> = None;
        loop {
            // The limits may change while waiting.
            let plan = pool.shared.plan();
            let full = match gateway.pools.admit_server(key, &plan) {
                Ok(quota) => return Some(quota),
                Err(full) => full,
            };
            if gateway.lifecycle.phase() == Phase::Stopping || room.is_given_up(&pool.shared.pool) {
                return None;
            }
            let now = self.reactor.now();
            // Evict one per iteration: the next iteration sees the place that it freed.
            let asked = evicted_at.is_some_and(|at| now - at < ROOM_EVERY * 2);
            if !asked && (room == ConnectionUse::DedicatedServer || pool.shared.pool.counts().waiting > 0) {
                gateway.pools.evict_for(key, &plan, full, room);
                evicted_at = Some(now);
            }
            self.reactor.sleep(ROOM_EVERY).await;
        }
    }

    /// Sends a cancel request to a server of `pool` for its current client. No other client gets the server before the
    /// request has completed. `asker` is dropped then; `None` for a request of the gateway itself.
    pub fn cancel(
        self: &Rc<Self>,
        identity: Arc<ServerIdentity>,
        under_way: cancel::UnderWay,
        pool: Arc<SharedPool>,
        asker: Option<CancelAsker>,
    ) {
        let worker = self.clone();
        let limit = self.gateway.config.setup().config.timeouts.cancel;
        self.spawn_chore(identity.id, async move {
            let coming = Cell::new(asker.as_ref().map(|_| pool.count_cancel(CancelStage::Coming)));
            let sent = Cell::new(None);
            let on_sent = || {
                coming.take();
                let asked = asker.as_ref().map(|_| pool.count_cancel(CancelStage::Sent));
                sent.set(Some((asked, pool.count_cancel(CancelStage::Carried))));
            };
            let delivery = tidegate_pg_client::cancel::send(&worker.reactor, &identity, on_sent);
            match within(&worker.reactor, limit, delivery).await {
                Some(Ok(())) => return drop(under_way),
                Some(Err(error)) => {
                    tracing::warn!(server = %identity.address.host, %error, "cancel request not delivered");
                }
                None => tracing::warn!(server = %identity.address.host, "cancel request not delivered in time"),
            }
            if sent.take().is_some() {
                under_way.lose();
            }
        });
    }
}

impl OpenHostPool for Rc<Worker> {
    fn open_host_pool(&self, home: &WorkerPool, cluster: &Arc<Cluster>, node: &ClusterNode) -> Option<Rc<WorkerPool>> {
        Some(self.pool(&self.gateway.host_pool(&home.shared, cluster, node)?))
    }
}

/// The functions that a pool calls on a thread.
struct PoolHost {
    worker: Weak<Worker>,
    pool: Weak<WorkerPool>,
}

impl PoolHost {
    fn upgrade(&self) -> Option<(Rc<Worker>, Rc<WorkerPool>)> {
        Some((self.worker.upgrade()?, self.pool.upgrade()?))
    }
}

impl tidegate_pool::ManageConnection<Server> for PoolHost {
    fn connect(&self, pending: PendingConnect<Server>) {
        let Some((worker, pool)) = self.upgrade() else { return };
        worker.spawn_attempt(connect(worker.clone(), pool, pending));
    }

    fn clean(&self, lease: Lease<Server>) {
        let Some((worker, pool)) = self.upgrade() else { return };
        let id = lease.identity.id;
        let task = clean_lease(worker.clone(), pool, lease);
        worker.spawn_chore(id, task);
    }

    fn on_close(&self, server: &Server, why: CloseReason) {
        if let Some((worker, pool)) = self.upgrade() {
            if why == CloseReason::Unusable || server.is_closing() {
                // The server may have been restarted with another configuration.
                pool.shared.outdate_server_params();
            }
            log_closed(&worker.gateway.config.setup(), &pool.shared, server, why);
        }
    }

    fn run_transfer(&self, transfer: Transfer<Server>) {
        if let Some((worker, pool)) = self.upgrade() {
            worker.spawn_chore(0, async move {
                transfer.await;
                // Last: a pool that no task uses may be forgotten and created again.
                drop(pool);
            });
        }
    }
}

async fn connect(worker: Rc<Worker>, pool: Rc<WorkerPool>, pending: PendingConnect<Server>) {
    let Some(quota) = worker.reserve_connection(&pool, ConnectionUse::InPool).await else {
        return pending.cancel(worker.reactor.now());
    };
    // Not this thread's copy, which may date from before a reload.
    let plan = pool.shared.plan();
    let setup = worker.gateway.config.setup();
    if setup.config.listen.dialect == Dialect::Pgbouncer && pool.shared.pool.counts().open > plan.pool.size as usize {
        let PoolKey { database, user, .. } = &pool.shared.key;
        tracing::warn!("{database}/{user}: taking connection from reserve_pool");
    }
    let limit = plan.timeouts.connect;
    let tls = setup.server_tls.get(&plan.entry);
    let attempt = async {
        let mut server = Server::new(worker.gateway.pools.connector.connect(&worker.reactor, &plan, tls).await?);
        introduce(&mut server, &worker, plan.connect_query.reveal()).await?;
        server.take_news();
        Ok(server)
    };
    let in_time = Box::pin(within(&worker.reactor, limit, attempt));
    // A server that does not respond delays neither a pause nor the waiters of what a reload put in its place.
    let Some(outcome) = pool.unless(|| pending.is_revoked(), in_time).await else {
        return pending.cancel(worker.reactor.now());
    };
    let outcome = outcome.unwrap_or(Err(ConnectError::Timeout(limit)));
    worker.gateway.follow_names();
    let now = worker.reactor.now();
    match outcome {
        Ok(mut server) => {
            // Held as a child task while it is open, idle or leased; a stopping gateway accepts none.
            let Ok(held) = worker.gateway.lifecycle.server_scope.hold(server.identity.id) else { return };
            server.quota = Some(Box::new((quota, held)));
            pool.shared.set_server_params(&server.settings, server.identity.connected_at);
            let identity = server.identity.clone();
            worker.gateway.pools.note_server(&pool.shared.key, &identity);
            log_opened(&setup, &pool.shared, &identity);
            pending.succeed(server, now);
        }
        Err(error) => {
            pool.stats.server_login_error_count.add(1);
            log_failed(&worker, &pool.shared, &plan, &error, &error.log_reason());
            let alone = pool.shared.key.host.is_none();
            if worker.waits_for_server(&plan, alone, &error) {
                pending.retry(now);
            } else if error.is_login_refusal() && setup.config.listen.dialect == Dialect::Postgres {
                pending.refuse(error, now);
            } else {
                pending.fail(error, now);
            }
        }
    }
}

/// Address of a server as in PgBouncer's log.
fn place_of(host: &Host, address: Option<SocketAddr>) -> String {
    match (host, address) {
        (Host::Unix { port, .. }, _) => format!("unix:{port}"),
        (_, Some(address)) => address.to_string(),
        (host, None) => host.to_string(),
    }
}

/// Logs a new connection, in PgBouncer's format for its dialect.
fn log_opened(setup: &Setup, pool: &SharedPool, identity: &ServerIdentity) {
    let (host, PoolKey { database, user, .. }) = (&identity.address.host, &pool.key);
    tracing::debug!(%database, %user, server = %host, pid = identity.pid, "server connected");
    if pool.take_failure() && setup.config.listen.dialect == Dialect::Postgres {
        tracing::info!(%database, %user, server = %host, "server connections work again");
    }
    if setup.config.log.connections && setup.config.listen.dialect == Dialect::Pgbouncer {
        let from = identity.local.map(|local| format!(" (from {local})")).unwrap_or_default();
        let place = place_of(host, identity.address.address.as_socket());
        tracing::info!("S-{}: {database}/{user}@{place} new connection to server{from}", identity.id);
    }
}

/// Logs a connection that the pool closes, in the same formats.
fn log_closed(setup: &Setup, pool: &SharedPool, server: &Server, why: CloseReason) {
    let (identity, PoolKey { database, user, .. }) = (&server.identity, &pool.key);
    let (id, host) = (identity.id, &identity.address.host);
    tracing::debug!(%database, %user, server = %host, pid = identity.pid, ?why, "server closed");
    if setup.config.listen.dialect == Dialect::Pgbouncer && setup.config.log.disconnections {
        let reason = match why {
            CloseReason::Lifetime => "server lifetime over",
            CloseReason::IdleTimeout => "server idle timeout",
            CloseReason::Replaced if pool.is_closed_by_pause() => "pause mode",
            CloseReason::Replaced => "database configuration changed",
            CloseReason::Surplus => "evicted",
            CloseReason::Released if !server.is_closing() => server.fault.unwrap_or("unclean server"),
            _ => "server conn crashed?",
        };
        let age = identity.connected_at.elapsed().map_or(0, |age| age.as_secs());
        let place = place_of(host, identity.address.address.as_socket());
        tracing::info!("S-{id}: {database}/{user}@{place} closing because: {reason} (age={age}s)");
    }
}

/// Logs a failed connection attempt, in the same formats; `reason` is the one of PgBouncer.
pub(crate) fn log_failed(worker: &Worker, pool: &SharedPool, plan: &PoolPlan, error: &ConnectError, reason: &str) {
    let PoolKey { database, user, .. } = &pool.key;
    pool.note_failure(&error.to_string());
    tracing::warn!(%database, %user, host = %plan.hosts[0], %error, "server connection failed");
    if plan.dialect == Dialect::Pgbouncer {
        let id = worker.gateway.pools.connector.next_id();
        let place = place_of(&plan.hosts[0], plan.address);
        if let Some((severity, message)) = error.server_error() {
            tracing::warn!("server login failed: {severity} {message}");
        }
        tracing::info!("S-{id}: {database}/{user}@{place} closing because: {reason} (age=0s)");
    }
}

/// Interval between two checks of the shared limits.
const ROOM_EVERY: Duration = Duration::from_millis(20);

/// Runs the database's `connect_query` on a new connection.
async fn introduce(server: &mut Server, worker: &Worker, sql: &str) -> Result<(), ConnectError> {
    if sql.is_empty() {
        return Ok(());
    }
    let goes_on = worker.gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
    let failed = |error: &dyn std::fmt::Display| ConnectError::Query(error.to_string());
    server.settle(&worker.reactor).map_err(|error| failed(&error))?;
    let before = server.settings.clone();
    match clean::run(server, sql).await {
        // PgBouncer continues without it.
        Err(clean::CleanError::Refused(reason)) if server.status == TxStatus::Idle && goes_on => {
            tracing::warn!(server = %server.identity.address.host, reason, "connect_query failed");
        }
        outcome => outcome.map_err(|error| failed(&error))?,
    }
    server.settings.record_connect_query(&before, parse_sets(sql.as_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use tidegate_pool::CheckoutError;

    use super::*;
    use tidegate_config::Config;
    use tidegate_pg_client::resolve::Resolver;

    #[test]
    fn waiter_of_removed_pool_gets_error_when_name_reused() {
        let control = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let setup = |database: &str| {
            let url = format!("postgres://db.example/{database}");
            Setup::new(Config::from_url(&url).unwrap()).unwrap()
        };
        let workers = Arc::new(Workers::new(1));
        let resolver = Resolver::new(control.handle().clone());
        let gateway = Arc::new(Gateway::new(setup("shop"), workers.clone(), resolver).unwrap());
        let reactor = Reactor::new(&tidegate_link::ReactorConfig::default()).unwrap();
        workers.set(vec![Arc::new(Mailbox::new(reactor.waker()))]);
        let console: Console = Rc::new(|_, _| Box::pin(async { "no console" }));
        let worker = Worker::new(0, reactor, gateway.clone(), workers, console);
        gateway.pause(None);
        let old = worker.pool(&gateway.pool("shop", "a").unwrap());
        let mut waiting = pin!(old.local.checkout(worker.reactor.now()));
        gateway.replace_setup(setup("books"));
        gateway.replace_setup(setup("shop"));
        // A client logs in before the thread has processed the message.
        let new = worker.pool(&gateway.pool("shop", "a").unwrap());
        assert!(!Rc::ptr_eq(&old, &new));
        worker.read_mail(&|_, _| ());
        let answer = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let gets_error = matches!(answer, Poll::Ready(Err(CheckoutError::Closed(_))));
        assert!(gets_error, "the waiter gets no error");
    }
}
