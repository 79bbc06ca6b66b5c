//! A client's session: request, checkout, exchange, release, and again.

use std::{
    rc::Rc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tidegate_balance::CallOutcome;
use tidegate_link::{Chunk, Deadline};
use tidegate_pool::{CheckoutError, Lease, ReleaseAction};
use tidegate_supervise::Ctx;
use tidegate_wire::{
    DecodeErrorKind,
    backend::{self, ErrorReply},
    frontend::Parse,
    sqlstate,
};

use super::{
    check,
    idle::{Idle, IdleAction, KnownStatements},
    route::{begins_read_only, is_serializable, narrowed},
};
use tidegate_config::{Dialect, PoolMode, PoolPlan, Route};
use tidegate_pg_client::ConnectError;
use tidegate_query_log::writer::{QueryServer, QueryTracker, SessionLog};
use tidegate_session_state::{
    params::Settings,
    statements::{ClientStatements, StatementCatalog},
};

use crate::{
    error::{Cause, pgbouncer_reason},
    exchange::{
        Activity, ClientSide, End, Exchange, ExchangeCtx, ExchangeError, ExchangeStart, QUEUE_BYTES_MAX, ServerResidue,
    },
    plane::{
        ClientInfo, ClientState, Gateway, Placed, QuotaGuard, RegisteredClient, ReplicaSet, Signal, Worker, WorkerPool,
    },
    server::{Cleaning, Health, ResetNeed, Server},
};

mod arrival;
mod departure;
mod end;
mod interrupts;
mod wait;

pub use arrival::Arrivals;
use departure::Mobility;
use end::SessionEnd;
use interrupts::Interrupts;

/// A client that is logged in.
pub(super) struct Session {
    worker: Rc<Worker>,
    front: ClientSide,
    /// The client's own pool.
    home: Rc<WorkerPool>,
    /// The pool of the current server: `home`, or the pool of the server that was routed to last.
    pool: Rc<WorkerPool>,
    /// The server that was routed to for the current transaction, in a database with several servers.
    placed: Option<Placed>,
    /// The server whose process id the login reported in session mode, until the first request; or the server with which a pinned
    /// client has arrived from another process.
    reserved: Option<Lease<Server>>,
    /// The route that the client requested at login.
    asked: Option<Route>,
    entry: RegisteredClient,
    deadline: Deadline,
    idle: Idle,
    /// Whether the wait notice was sent in the current wait.
    notified: bool,
    /// The wait for a server that the session ended with.
    ended_wait: Option<Duration>,
    /// Records the queries in the query log, if there is one.
    session_log: Option<Rc<SessionLog>>,
    /// Whether the session may move to another process.
    mobility: Mobility,
    /// Counts the client in the limits of its database and user.
    _quota: Option<QuotaGuard>,
}

/// Serves a client until either side ends the session, or until another process has it.
pub(super) async fn run(mut session: Box<Session>, ctx: &Ctx) {
    std::future::poll_fn(|cx| {
        session.entry.client_info.set_waker(cx.waker());
        Poll::Ready(())
    })
    .await;
    let mut pinned = session.take_arrived_server();
    loop {
        let has_moved = match session.serve(pinned.take(), ctx).await {
            SessionEnd::Departs(permit) => Box::pin(session.depart(permit)).await,
            SessionEnd::DepartsWithServer(permit, server) => {
                pinned = Box::pin(session.depart_with(permit, server)).await;
                pinned.is_none()
            }
            // Boxed, so that the future around every query stays small.
            session_end => return Box::pin(session.leave(session_end)).await,
        };
        if has_moved {
            // Removes the socket from the event loop: the other process keeps the connection open.
            return drop(session.front.link.park());
        }
    }
}

impl Session {
    pub(super) fn new(
        worker: Rc<Worker>,
        front: ClientSide,
        home: Rc<WorkerPool>,
        asked: Option<Route>,
        entry: RegisteredClient,
        quota: Option<QuotaGuard>,
    ) -> Self {
        let deadline = worker.reactor.deadline();
        let session_log = worker.session_log(&entry.client_info, Some(&front.settings));
        let (pool, placed) = (home.clone(), None);
        Self {
            worker,
            front,
            home,
            pool,
            placed,
            reserved: None,
            asked,
            entry,
            deadline,
            idle: Idle::default(),
            notified: false,
            ended_wait: None,
            session_log,
            mobility: Mobility::Possible,
            _quota: quota,
        }
    }

    /// Keeps a server for the client since its login.
    pub(super) fn reserve(&mut self, server: Option<Lease<Server>>) {
        self.reserved = server;
    }

    /// Serves the client until the session ends or may move. `pinned` is the server that the client is pinned to already.
    async fn serve(&mut self, mut pinned: Option<Box<PinnedServer>>, ctx: &Ctx) -> SessionEnd {
        loop {
            let (lease, start) = match pinned.take() {
                Some(pinned) => (pinned.lease, ExchangeStart::Idle(pinned.idle_since)),
                None => {
                    let request = match std::future::poll_fn(|cx| self.poll_request(ctx, cx)).await {
                        Ok(request) => request,
                        Err(session_end) => return session_end,
                    };
                    if self.entry.client_info.is_pool_replaced.get() {
                        self.follow_pool();
                    }
                    let now = self.worker.reactor.now();
                    self.entry.client_info.request_at.set(Some(now));
                    let (lease, request) = match self.try_server(&request, now) {
                        Some(lease) => {
                            self.pool.stats.durations.wait.record_none();
                            (lease, request)
                        }
                        // Waiting is rare and its state is large: boxed, it does not count towards the memory of an idle client.
                        None => match Box::pin(self.wait_for_server(request, ctx)).await {
                            Ok(Some(got)) => got,
                            Ok(None) => continue,
                            Err(session_end) => return session_end,
                        },
                    };
                    (lease, ExchangeStart::Request(request))
                }
            };
            // The exchange is boxed for the same reason; the box costs less than 1% of a query. Its only place: a second one
            // would keep the compiler from inlining it.
            if let Err(session_end) = Box::pin(self.exchange(lease, start, ctx)).await {
                return session_end;
            }
        }
    }

    /// Switches to the client's pool after a reload: servers of the previous pool are logged in as another user.
    #[cold]
    fn follow_pool(&mut self) {
        let client_info = &self.entry.client_info;
        client_info.is_pool_replaced.set(false);
        // `Signal::Removed` disconnects a client whose database was removed.
        let Some(shared) = self.worker.gateway.pool_of_client(&client_info.database, &client_info.user) else { return };
        client_info.set_pool_user(shared.key.user.clone());
        self.home = self.worker.pool(&shared);
        self.pool = self.home.clone();
        self.placed = None;
        self.release_reserved();
    }

    /// Returns the reserved server to the pool; the client has not used it.
    fn release_reserved(&mut self) {
        if let Some(server) = self.reserved.take() {
            server.release(ReleaseAction::Reuse, self.worker.reactor.now());
        }
    }

    /// Takes the reserved server, unless it must be replaced. If it has closed meanwhile, the client gets the server's error,
    /// as without a gateway.
    #[cold]
    fn take_reserved(&mut self, now: Instant) -> Option<Lease<Server>> {
        let server = self.reserved.take()?;
        if server.generation() == self.home.shared.pool.generation() {
            return Some(server);
        }
        server.release(ReleaseAction::Close, now);
        None
    }

    /// Checks out a server that is idle on this thread.
    #[inline]
    fn try_server(&mut self, request: &[u8], now: Instant) -> Option<Lease<Server>> {
        let Some(replica_set) = self.home.replica_set() else {
            if self.reserved.is_some()
                && let Some(server) = self.take_reserved(now)
            {
                return Some(server);
            }
            if !Rc::ptr_eq(&self.pool, &self.home) {
                // A reload has reduced the database to one server.
                self.pool = self.home.clone();
            }
            return self.pool.local.try_checkout(now);
        };
        let route = self.route(request);
        self.place(replica_set.pick(&self.worker, &self.home, route, &[], now)?);
        self.pool.local.try_checkout(now).or_else(|| self.try_another(&replica_set, route, now))
    }

    /// Checks out an idle connection of an equivalent server if the chosen server's pool is exhausted.
    fn try_another(&mut self, replica_set: &ReplicaSet, route: Route, now: Instant) -> Option<Lease<Server>> {
        if !self.pool.local.is_exhausted() {
            return None;
        }
        let chosen = self.placed.as_ref()?.node();
        let other = replica_set.pick_idle_like(&self.worker, &self.home, narrowed(route, chosen), chosen, now)?;
        let lease = other.pool.local.try_checkout(now)?;
        self.place(other);
        Some(lease)
    }

    fn place(&mut self, placed: Placed) {
        if !Rc::ptr_eq(&self.pool, &placed.pool) {
            self.pool = placed.pool.clone();
        }
        self.placed = Some(placed);
    }

    /// Route of the transaction that begins with `request`.
    fn route(&self, request: &[u8]) -> Route {
        let plan = self.home.plan();
        let route = self.asked.unwrap_or(plan.route.route);
        // Session mode would pin the replica for later writes.
        let may_follow = plan.route.read_only_to_replica && plan.pool.mode != PoolMode::Session;
        let follows =
            may_follow && matches!(route, Route::Primary | Route::Any) && !is_serializable(&self.front.settings);
        if follows && begins_read_only(request, self.front.statements.as_deref()) {
            return Route::PreferReplica;
        }
        route
    }

    /// Checks the signals that end any wait of the client.
    fn poll_interrupt(&self, ctx: &Ctx, cx: &mut Context<'_>) -> Option<SessionEnd> {
        let disconnect_cause = match self.entry.client_info.peek_signal() {
            Some(Signal::Kill) => Some(Cause::Killed),
            Some(Signal::Removed) => Some(Cause::Removed),
            _ => None,
        };
        if let Some(cause) = disconnect_cause {
            return Some(SessionEnd::cause(cause, &self.worker.gateway));
        }
        if ctx.poll_cancelled(cx).is_ready() {
            return Some(SessionEnd::cause(Cause::ShuttingDown, &self.worker.gateway));
        }
        None
    }

    /// Waits for bytes that need a server.
    fn poll_request(&mut self, ctx: &Ctx, cx: &mut Context<'_>) -> Poll<Result<Chunk, SessionEnd>> {
        if let Some(session_end) = self.poll_interrupt(ctx, cx) {
            return Poll::Ready(Err(session_end));
        }
        let now = self.worker.reactor.now();
        loop {
            if let Poll::Ready(Err(_)) = self.front.link.poll_flush(cx) {
                return Poll::Ready(Err(SessionEnd::Gone("connection lost")));
            }
            if self.worker.is_moving()
                && let Some(permit) = self.try_depart(cx)
            {
                return Poll::Ready(Err(SessionEnd::Departs(permit)));
            }
            // Stop reading from a client whose send queue is full.
            let read = if self.front.link.queued_bytes() < QUEUE_BYTES_MAX {
                self.front.link.poll_read(cx)
            } else {
                Poll::Pending
            };
            match read {
                Poll::Pending if self.has_news_of_reserved(cx) => return Poll::Ready(Ok(Chunk::empty())),
                Poll::Pending => return self.poll_idle_deadline(now, cx),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(SessionEnd::Gone("connection lost"))),
                Poll::Ready(Ok(chunk)) if chunk.is_empty() => {
                    return Poll::Ready(Err(SessionEnd::Gone("client closed the connection")));
                }
                Poll::Ready(Ok(chunk)) => {
                    self.deadline.set(None);
                    if let Some(request) = self.on_message(chunk)? {
                        return Poll::Ready(Ok(request));
                    }
                }
            }
        }
    }

    /// Returns whether the reserved server has sent something, or has closed: the exchange then serves the session, as after
    /// its first request. Clients see the end of their session without a request.
    fn has_news_of_reserved(&mut self, cx: &Context<'_>) -> bool {
        let Some(server) = &mut self.reserved else { return false };
        if server.generation() != self.home.shared.pool.generation() || !self.idle.is_between_messages() {
            return false;
        }
        match server.link().poll_read(cx) {
            Poll::Pending => false,
            Poll::Ready(Ok(chunk)) if !chunk.is_empty() => {
                server.link().unread(chunk);
                true
            }
            // The exchange reads the end again.
            Poll::Ready(_) => true,
        }
    }

    fn poll_idle_deadline(&mut self, now: Instant, cx: &Context<'_>) -> Poll<Result<Chunk, SessionEnd>> {
        let limit = self.pool.plan().timeouts.client_idle;
        if limit.is_zero() || self.worker.is_suspended() {
            return Poll::Pending;
        }
        if self.deadline.at().is_none() {
            self.deadline.set(Some(now + limit));
        }
        self.deadline.poll(now, cx).map(|()| Err(SessionEnd::cause(Cause::ClientIdle, &self.worker.gateway)))
    }

    /// Handles bytes of an idle client. Returns those that need a server.
    fn on_message(&mut self, chunk: Chunk) -> Result<Option<Chunk>, SessionEnd> {
        let mut out = Vec::new();
        let known = PoolStatements {
            catalog: &self.worker.catalog,
            pool: &self.home,
            settings: &self.front.settings,
            client_info: &self.entry.client_info,
        };
        let action = self.idle.on_message(chunk, &mut self.front.statements, &known, &mut out);
        if !out.is_empty() {
            self.count_answered();
            self.front.link.write(out);
        }
        match action {
            Ok(IdleAction::Request(request)) => Ok(Some(request)),
            Ok(IdleAction::Nothing) => match self.idle.awaited_bytes() {
                // The exchange checks the length of complete messages.
                Some(bytes) => self.check_length(bytes).map(|()| None),
                None => Ok(None),
            },
            Ok(IdleAction::Terminate) => Err(SessionEnd::Gone("client sent Terminate")),
            Ok(IdleAction::Unknown(tag)) => Err(unknown_message(tag)),
            Err(error) => Err(bad_client(&error)),
        }
    }

    /// Counts what was answered without a server. PgBouncer sends each Sync to a server, and counts a transaction.
    fn count_answered(&mut self) {
        let synced = self.idle.take_synced();
        if synced > 0 && self.worker.gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer {
            let stats = &self.pool.stats;
            stats.server_assignment_count.add(synced);
            stats.xact_count.add(synced);
            stats.query_count.add(synced);
        }
    }

    /// Rejects an incomplete message longer than `pool.message_max` instead of buffering it.
    fn check_length(&self, bytes: usize) -> Result<(), SessionEnd> {
        let bytes_max = self.home.plan().pool.message_max as usize;
        if bytes <= bytes_max {
            return Ok(());
        }
        Err(too_long(bytes, bytes_max, self.worker.gateway.config.setup().config.listen.dialect))
    }

    /// Registers the leased server connection with the event loop of this thread.
    fn register(&mut self, lease: &mut Lease<Server>) -> Result<(), SessionEnd> {
        lease.settle(&self.worker.reactor).map_err(|_| {
            self.placed = None;
            let refusal = ErrorReply::new(sqlstate::INSUFFICIENT_RESOURCES, "the gateway is out of file descriptors");
            SessionEnd::refusal(&refusal, "server not registered")
        })
    }

    /// Serves requests on one server connection until it can be released, or until both may move to another process.
    async fn exchange(
        &mut self,
        mut lease: Lease<Server>,
        mut start: ExchangeStart,
        ctx: &Ctx,
    ) -> Result<(), SessionEnd> {
        let plan = self.pool.plan();
        if let ExchangeStart::Request(mut request) = start {
            self.register(&mut lease)?;
            if check::is_due(&lease, &plan, self.worker.reactor.now()) {
                match Box::pin(self.wait_for_check(lease, request, &plan, ctx)).await? {
                    Some(sound) => (lease, request) = sound,
                    None => return Ok(()),
                }
            }
            self.pool.stats.server_assignment_count.add(1);
            start = ExchangeStart::Request(request);
        }
        let client_info = &self.entry.client_info;
        client_info.state.set(ClientState::Active);
        client_info.link(Some(lease.server_handle.clone()));
        let exchange_ctx = ExchangeCtx {
            catalog: &self.worker.catalog,
            interned: &self.worker.interned,
            plan: &plan,
            stats: &self.pool.stats,
            is_routed: self.pool.shared.key.host.is_some(),
        };
        let keep = plan.pool.mode == PoolMode::Session;
        let may_depart = self.may_depart_with_server(keep);
        let reactor = &self.worker.reactor;
        let query_tracker = self.new_query_tracker(&lease);
        let generation = lease.generation();
        let mut exchange = Exchange::new(&mut self.front, &mut lease, &exchange_ctx, keep, reactor.now());
        exchange.set_query_tracker(query_tracker);
        let mut interrupts = Interrupts {
            deadline: &mut self.deadline,
            entry: &self.entry,
            plan: &plan,
            gateway: &self.worker.gateway,
            kept: keep.then(|| (self.pool.shared.clone(), generation)),
        };
        let ended = match exchange.start(start, reactor.now()) {
            Err(end) => Ok(ServedOutcome::Exchange(end)),
            Ok(()) => {
                std::future::poll_fn(|cx| {
                    if self.worker.is_suspended() {
                        return interrupts.poll_held(&self.worker, &mut exchange, ctx, cx).map(Ok);
                    }
                    let now = reactor.now();
                    if let Poll::Ready(end) = exchange.poll(now, cx) {
                        return Poll::Ready(Ok(ServedOutcome::Exchange(end)));
                    }
                    if let Some(news) = exchange.take_news() {
                        self.pool.shared.renew_server_params(&news);
                    }
                    if may_depart && self.worker.is_moving() && self.entry.client_info.peek_signal().is_none() {
                        let permit = departure::permit_of(&self.worker, &mut self.mobility, &mut exchange, cx);
                        if let (Some(permit), Activity::Idle(since)) = (permit, exchange.activity()) {
                            return Poll::Ready(Err((permit, since)));
                        }
                    }
                    interrupts.poll(&exchange, now, ctx, cx).map(|end| Ok(ServedOutcome::Interrupted(end)))
                })
                .await
            }
        };
        let (residue, query_tracker) = (exchange.residue(), exchange.take_query_tracker());
        match ended {
            Ok(ended) => self.end_exchange(lease, ended, residue, query_tracker, &plan),
            Err((permit, idle_since)) => {
                if let Some(tracker) = query_tracker {
                    tracker.finish(Default::default(), self.worker.reactor.now());
                }
                Err(SessionEnd::DepartsWithServer(permit, Box::new(PinnedServer { lease, idle_since })))
            }
        }
    }

    /// Releases the server, and records how the exchange ended.
    fn end_exchange(
        &mut self,
        mut lease: Lease<Server>,
        ended: ServedOutcome,
        residue: ServerResidue,
        query_tracker: Option<Box<QueryTracker>>,
        plan: &PoolPlan,
    ) -> Result<(), SessionEnd> {
        // Do not inject an error in the middle of a message.
        let is_mid_message = lease.scanner.is_streaming();
        self.deadline.set(None);
        let client_info = &self.entry.client_info;
        client_info.state.set(ClientState::Idle);
        client_info.link(None);
        self.show_state();
        let routed_call =
            self.placed.take().map(|placed| (placed, call_outcome(&ended, std::mem::take(&mut lease.suspect))));
        let outcome = self.release_server(lease, residue, ended, plan);
        if let Some((placed, (outcome, suspect))) = routed_call {
            if suspect {
                placed.node().request_probe();
            }
            placed.finish(self.worker.reactor.now(), outcome);
        }
        if let Some(tracker) = query_tracker {
            let fields = outcome.as_ref().err().map(SessionEnd::log_fields).unwrap_or_default();
            tracker.finish(fields, self.worker.reactor.now());
        }
        match outcome {
            Err(SessionEnd::Terminated(_, reason)) if is_mid_message => Err(SessionEnd::Terminated(Vec::new(), reason)),
            outcome => outcome,
        }
    }

    /// Updates the client's state in the admin console.
    fn show_state(&self) {
        let client_info = &self.entry.client_info;
        client_info.pins.set(self.front.pins);
        client_info.note_settings(&self.front.settings);
        client_info.prepared.set(self.front.statements.as_ref().map_or(0, |known| known.len() as u32));
    }

    /// Records the queries of this exchange in the query log.
    fn new_query_tracker(&self, server: &Server) -> Option<Box<QueryTracker>> {
        let (session_log, identity, client_info) =
            (self.session_log.as_ref()?, &server.identity, &self.entry.client_info);
        let now = self.worker.reactor.now();
        let tracker = QueryTracker::new(session_log, &self.front.settings, client_info.request_at.get(), now);
        let (id, address, pid) = (identity.id, &identity.address.host, identity.pid);
        Some(Box::new(tracker.with_server(QueryServer { id, address, pid })))
    }

    /// Returns the server to the pool according to its state after the exchange.
    fn release_server(
        &mut self,
        mut lease: Lease<Server>,
        residue: ServerResidue,
        ended: ServedOutcome,
        plan: &PoolPlan,
    ) -> Result<(), SessionEnd> {
        let now = self.worker.reactor.now();
        self.pool.publish_news(&mut lease);
        let stays = matches!(ended, ServedOutcome::Exchange(End::Over(_)));
        let (keep, always) = (plan.pool.mode == PoolMode::Session, plan.pool.server_reset_always);
        let is_pinned = !keep && !self.front.pins.is_empty();
        let reset = keep || always || is_pinned;
        let session_end = match ended {
            ServedOutcome::Exchange(End::Over(beginning)) => {
                self.idle.put_back(beginning);
                Ok(())
            }
            ServedOutcome::Exchange(End::Terminate) => Err(SessionEnd::Gone("client sent Terminate")),
            ServedOutcome::Exchange(End::Again(request)) => {
                lease.needs_reset(ResetNeed::Session);
                self.front.link.unread_before(request);
                Ok(())
            }
            ServedOutcome::Exchange(End::Cancelled(request, error)) => {
                lease.needs_reset(ResetNeed::Session);
                self.refuse_cancelled(request, &error)
            }
            ServedOutcome::Exchange(End::ExchangeError(exchange_error)) => {
                let (session_end, server_is_sound) =
                    session_end_of(&exchange_error, lease.is_closing(), plan, &self.worker.gateway);
                if !server_is_sound {
                    lease.fault = Some(pgbouncer_reason(session_end.reason()));
                    lease.release(ReleaseAction::Close, now);
                    return Err(session_end);
                }
                Err(session_end)
            }
            ServedOutcome::Interrupted(session_end) => Err(session_end),
        };
        lease.fault = session_end.as_ref().err().map(|session_end| fault_of(session_end.reason()));
        let cleaning = Cleaning {
            in_transaction: matches!(
                residue,
                ServerResidue::Transaction | ServerResidue::Prepared { in_transaction: true }
            ),
            unsynced: matches!(residue, ServerResidue::Prepared { .. }),
            reset: reset && (always || !stays),
            discard: is_pinned && !stays,
        };
        self.return_lease(lease, residue, cleaning);
        session_end
    }

    fn return_lease(&self, mut lease: Lease<Server>, residue: ServerResidue, cleaning: Cleaning) {
        let now = self.worker.reactor.now();
        let release_action = match residue {
            _ if lease.health != Health::Clean || lease.cancels.has_lost() => ReleaseAction::Close,
            _ if lease.reset_need == ResetNeed::Connection => ReleaseAction::Close,
            ServerResidue::Unsynced => ReleaseAction::Close,
            ServerResidue::Nothing
                if !cleaning.reset && lease.reset_need == ResetNeed::Nothing && lease.cancels.is_open() =>
            {
                ReleaseAction::Reuse
            }
            ServerResidue::Nothing | ServerResidue::Transaction | ServerResidue::Prepared { .. } => {
                lease.cleaning = cleaning;
                ReleaseAction::Clean
            }
            // The server still runs a query of a disconnected client: cancel the query and close the connection.
            ServerResidue::Busy => {
                let (identity, under_way) = (lease.identity.clone(), lease.cancels.begin());
                self.worker.cancel(identity, under_way, self.pool.shared.clone(), None);
                ReleaseAction::Close
            }
        };
        if release_action != ReleaseAction::Close && self.pool.plan().timeouts.server_lifetime.is_single_use() {
            lease.fault = Some("server lifetime over");
            return lease.release(ReleaseAction::Close, now);
        }
        lease.release(release_action, now);
    }
}

/// Prepared statements that the servers of a client's pool have parsed under the client's settings.
struct PoolStatements<'a> {
    catalog: &'a StatementCatalog,
    pool: &'a WorkerPool,
    settings: &'a Settings,
    client_info: &'a ClientInfo,
}

impl KnownStatements for PoolStatements<'_> {
    fn take(&self, parse: &Parse<'_>, statements: &mut Option<Box<ClientStatements>>) -> bool {
        let plan = self.pool.plan();
        let is_kept = plan.pool.mode == PoolMode::Session || plan.pool.prepared_statements_per_server == 0;
        let is_taken = statements.as_ref().is_some_and(|statements| statements.get(parse.name).is_some());
        if parse.name.is_empty() || is_kept || is_taken {
            return false;
        }
        let Some(statement) = self.catalog.find_valid(parse, self.settings, plan.identity()) else { return false };
        let freshness = self.catalog.freshness(&statement, &plan.dbname, plan.pool.prepared_statement_max_age);
        let statements = statements.get_or_insert_default();
        statements.insert(parse.name, statement, freshness);
        self.client_info.prepared.set(statements.len() as u32);
        self.pool.stats.client_parse_count.add(1);
        true
    }
}

/// PgBouncer's log text for a server that a client left in use, given the reason for the disconnect.
fn fault_of(reason: &'static str) -> &'static str {
    let timeouts = [Cause::Query, Cause::IdleInTransaction, Cause::Transaction];
    match timeouts.iter().any(|cause| cause.reason() == reason) {
        true => pgbouncer_reason(reason),
        false => "client disconnect while server was not ready",
    }
}

/// The server that a client is pinned to, between two transactions.
struct PinnedServer {
    lease: Lease<Server>,
    idle_since: Instant,
}

/// How an exchange ended.
enum ServedOutcome {
    Exchange(End),
    Interrupted(SessionEnd),
}

/// Outcome of an exchange for the load balancer, and whether the server must be probed.
fn call_outcome(ended: &ServedOutcome, suspect: bool) -> (CallOutcome, bool) {
    match ended {
        ServedOutcome::Exchange(End::ExchangeError(ExchangeError::ServerGone(_) | ExchangeError::BadServer(_))) => {
            (CallOutcome::Failure, true)
        }
        ServedOutcome::Exchange(End::Over(_) | End::Terminate) => (CallOutcome::Success, suspect),
        ServedOutcome::Exchange(End::Again(_) | End::Cancelled(..) | End::ExchangeError(_))
        | ServedOutcome::Interrupted(_) => (CallOutcome::Neutral, suspect),
    }
}

/// Maps an exchange error to the end of the session, and returns whether the server stays usable.
fn session_end_of(
    exchange_error: &ExchangeError,
    server_sent_error: bool,
    plan: &PoolPlan,
    gateway: &Gateway,
) -> (SessionEnd, bool) {
    match exchange_error {
        ExchangeError::ClientGone(_) => (SessionEnd::Gone("client left during a query"), true),
        ExchangeError::BadClient(error) => match error.kind {
            DecodeErrorKind::Length { len, max, .. } if len > max && max == plan.pool.message_max as usize => {
                (too_long(len, max, gateway.config.setup().config.listen.dialect), true)
            }
            _ => (bad_client(error), true),
        },
        ExchangeError::Settings(error) => {
            (SessionEnd::Terminated(as_fatal(error), "settings refused by the server"), true)
        }
        ExchangeError::UnknownMessage(tag) => (unknown_message(*tag), true),
        ExchangeError::SimpleQuery => {
            let refusal = ErrorReply::protocol("PQexec disallowed").hint("Only the extended protocol is allowed here.");
            (SessionEnd::refusal(&refusal, "PQexec disallowed"), true)
        }
        ExchangeError::ServerGone(_) if server_sent_error => {
            (SessionEnd::Terminated(Vec::new(), "server ended the connection"), false)
        }
        ExchangeError::ServerGone(_) => (SessionEnd::cause(Cause::ServerGone, gateway), false),
        ExchangeError::Unasked(tag) => {
            let message = format!("the server sent unexpected message '{}'", char::from(*tag));
            (SessionEnd::refusal(&ErrorReply::protocol(message), "server broke the protocol"), false)
        }
        ExchangeError::BadServer(error) => {
            let refusal = ErrorReply::protocol(format!("the server sent an invalid message: {error}"));
            (SessionEnd::refusal(&refusal, "server broke the protocol"), false)
        }
    }
}

/// Rewrites an ErrorResponse of the server with severity FATAL.
pub(super) fn as_fatal(body: &[u8]) -> Vec<u8> {
    let mut out = vec![backend::ERROR_RESPONSE, 0, 0, 0, 0];
    for field in body.split(|byte| *byte == 0).filter(|field| !field.is_empty()) {
        match field[0] {
            kind @ (b'S' | b'V') => out.extend_from_slice(&[&[kind], &b"FATAL"[..]].concat()),
            _ => out.extend_from_slice(field),
        }
        out.push(0);
    }
    out.push(0);
    let len = u32::try_from(out.len() - 1).unwrap_or(u32::MAX);
    out[1..5].copy_from_slice(&len.to_be_bytes());
    out
}

/// Disconnects a client whose message is longer than `pool.message_max`, or PgBouncer's `max_packet_size`.
fn too_long(bytes: usize, bytes_max: usize, dialect: Dialect) -> SessionEnd {
    let text = match dialect {
        Dialect::Pgbouncer => format!("bad packet header: {bytes} bytes, max_packet_size is {bytes_max}"),
        Dialect::Postgres => format!("invalid message: {bytes} bytes, message_max is {bytes_max}"),
    };
    SessionEnd::refusal(&ErrorReply::protocol(text), "message too long")
}

fn bad_client(error: &tidegate_wire::DecodeError) -> SessionEnd {
    SessionEnd::refusal(&ErrorReply::protocol(format!("invalid message: {error}")), "client broke the protocol")
}

fn unknown_message(tag: u8) -> SessionEnd {
    SessionEnd::refusal(
        &ErrorReply::protocol(format!("invalid frontend message type {tag}")),
        "client broke the protocol",
    )
}

/// Error for a client that got no server.
pub(super) fn checkout_error(error: &CheckoutError<ConnectError>) -> Vec<u8> {
    match error {
        CheckoutError::Connect(error) | CheckoutError::Closed(error) => error.client_view(),
        _ => ErrorReply::new(sqlstate::TOO_MANY_CONNECTIONS, "too many clients wait for a server already").fatal(),
    }
}
