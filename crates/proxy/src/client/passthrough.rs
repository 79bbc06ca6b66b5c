//! Replication connections: a dedicated server connection, with bytes forwarded unparsed.
//!
//! The server counts in the limits of its database and user. A pool has at most as many of them as its size, beside its own
//! servers; further clients wait.

use std::{
    pin::pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use tidegate_link::Link;
use tidegate_supervise::Ctx;
use tidegate_wire::{
    backend::{self, ErrorReport, Severity, TxStatus},
    sqlstate,
};

use super::{
    handshake::{Arriving, LoginError, Request},
    log::{self, Departure},
    route::find_server,
};
use tidegate_config::Dialect;
use tidegate_pg_client::ConnectError;
use tidegate_session_state::params::ParameterValue;

use crate::{
    error::Cause,
    plane::{
        ClientInfo, ClientState, ConnectionUse, QuotaGuard, RegisteredClient, Replicating, Signal, Worker, WorkerPool,
        log_failed, within,
    },
    server::Server,
};

/// A client that was admitted to a replication connection.
pub(super) struct ReplicationLogin {
    pub(super) arriving: Arriving,
    pub(super) pool: Rc<WorkerPool>,
    pub(super) request: Request,
    pub(super) entry: RegisteredClient,
}

impl ReplicationLogin {
    /// Serves the client until either side closes or the gateway stops.
    pub(super) async fn serve(mut self, ctx: &Ctx) {
        let worker = self.arriving.worker().clone();
        let (entry, arriving) = (&self.entry, &mut self.arriving);
        entry.client_info.state.set(ClientState::Replicating(self.request.stream()));
        let session_log = arriving.replication_session_log();
        log::arrived(&worker.gateway.config, &entry.client_info);
        let replication = Box::pin(replicate(&worker, arriving, &self.pool, &self.request, &entry.client_info));
        // A replication connection has no transaction to wait for. Message boundaries are not tracked, so it is closed
        // without an error message; the standby resumes from its confirmed position.
        let outcome = ctx.run_until_cancelled(replication).await.unwrap_or(Ok(Cause::ShuttingDown.reason()));
        worker.registry.leave(entry);
        let reason = outcome.as_ref().map_or("replication ended", |reason| reason);
        // `refuse` logs a refusal with its reason.
        if !outcome.as_ref().is_err_and(LoginError::has_reply) {
            log::left(
                &worker.gateway.config,
                &worker.gateway.clients.outcomes,
                &entry.client_info,
                &Departure::of(reason),
            );
        }
        if let Some(session_log) = session_log {
            session_log.log_disconnect(reason, worker.reactor.now());
        }
        if let Err(error) = outcome {
            let error = Box::pin(arriving.refuse(error)).await;
            tracing::debug!(client = entry.client_info.id, %error, "client did not log in");
        }
    }
}

/// Connects a replication client to a dedicated server until either side closes.
async fn replicate(
    worker: &Rc<Worker>,
    arriving: &mut Arriving,
    pool: &Rc<WorkerPool>,
    request: &Request,
    client_info: &ClientInfo,
) -> Result<&'static str, LoginError> {
    let found = unless_killed(client_info, find(worker, pool, request));
    let Some(found) = arriving.bounded_wait(pool, found).await? else { return Ok(Cause::Killed.reason()) };
    let DedicatedServer { mut server, _held } = found?;
    client_info.link(Some(server.server_handle.clone()));
    let mut out = Vec::new();
    backend::authentication_ok(&mut out);
    for (name, value) in server.settings.reported().iter() {
        if let ParameterValue::Text(text) = value {
            backend::parameter_status(name.as_bytes(), text, &mut out);
        }
    }
    // Cancel requests would need the server's own cancel key, which clients do not get.
    backend::backend_key_data(0, &[0; 4], &mut out);
    backend::ready_for_query(TxStatus::Idle, &mut out);
    arriving.unread_early();
    let client = arriving.link();
    client.write(out);
    let streaming = std::future::poll_fn(|cx| match worker.is_suspended() {
        true => poll_held(client, server.link(), (worker, client_info), cx),
        false => poll_both(client, server.link(), cx),
    });
    let Some(ended) = unless_killed(client_info, streaming).await else { return Ok(Cause::Killed.reason()) };
    // The final bytes of one side are still queued for the other side, which may read slowly.
    let other = match ended? {
        Side::Client => server.link(),
        Side::Server => client,
    };
    other.write_close_notify();
    let sent = unless_killed(client_info, other.flush()).await;
    Ok(sent.map_or(Cause::Killed.reason(), |_| "replication ended"))
}

/// Runs `work`; returns `None` if an operator kills the client meanwhile.
pub(super) async fn unless_killed<T>(client_info: &ClientInfo, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        client_info.set_waker(cx.waker());
        if client_info.peek_signal() == Some(Signal::Kill) {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A server outside all pools, and its entries in the connection counts.
struct DedicatedServer {
    server: Server,
    _held: (Replicating, QuotaGuard),
}

/// How often the end of a pause, and a free place, are polled.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_millis(20);

async fn find(worker: &Rc<Worker>, pool: &Rc<WorkerPool>, request: &Request) -> Result<DedicatedServer, LoginError> {
    // The route picks one of several servers, as for a transaction.
    let chosen = match pool.replica_set() {
        None => pool.clone(),
        Some(_) => {
            let route = request.route.unwrap_or(pool.plan().route.route);
            let found = find_server(worker, pool, route, None).await;
            let (placed, lease) = found.map_err(|unserved| LoginError::Server(unserved.message()))?;
            lease.release(tidegate_pool::ReleaseAction::Reuse, worker.reactor.now());
            placed.map_or_else(|| pool.clone(), |placed| placed.pool.clone())
        }
    };
    loop {
        // As many as the pool has servers: further clients would only exhaust `max_wal_senders` of the server.
        let max = chosen.shared.plan().pool.size as usize;
        if !chosen.shared.pool.is_paused() && chosen.shared.replicating() < max {
            let quota =
                worker.reserve_connection(&chosen, ConnectionUse::DedicatedServer).await.ok_or(LoginError::Gone)?;
            // Like in PgBouncer, an idle server of the pool makes room.
            let counts = chosen.shared.pool.counts();
            let is_full = counts.open + chosen.shared.replicating() >= max;
            if is_full && counts.idle > 0 && chosen.shared.plan().dialect == Dialect::Pgbouncer {
                chosen.shared.pool.evict_idle();
            }
            if let Some(replicating) = chosen.shared.replicate(max)
                && let Some(connected) = connect_unless_outdated(worker, &chosen, request).await
            {
                let server = connected.map_err(|error| refused_login(worker, &chosen, &error))?;
                worker.gateway.pools.note_server(&chosen.shared.key, &server.identity);
                return Ok(DedicatedServer { server, _held: (replicating, quota) });
            }
        }
        worker.reactor.sleep(PAUSE_POLL_INTERVAL).await;
    }
}

/// Logs a failed login, and returns the error for the client: of PgBouncer, `login failed`, with the reason as its detail.
fn refused_login(worker: &Worker, pool: &WorkerPool, error: &ConnectError) -> LoginError {
    const REASON: &str = "login failed";
    let plan = pool.shared.plan();
    let Some((_, reason)) = error.server_error().filter(|_| plan.dialect == Dialect::Pgbouncer) else {
        return LoginError::Server(error.client_view());
    };
    log_failed(worker, &pool.shared, &plan, error, REASON);
    let report = ErrorReport {
        detail: Some(&reason),
        ..ErrorReport::new(Severity::Fatal, sqlstate::PROTOCOL_VIOLATION, REASON)
    };
    let mut out = Vec::new();
    backend::error_response(&report, &mut out);
    LoginError::Server(out)
}

/// Opens a connection; returns `None` if the pool is paused or reconfigured meanwhile.
async fn connect_unless_outdated(
    worker: &Worker,
    pool: &WorkerPool,
    request: &Request,
) -> Option<Result<Server, ConnectError>> {
    let shared = &pool.shared.pool;
    let generation = shared.generation();
    let is_outdated = || shared.is_paused() || shared.is_closed() || shared.generation() != generation;
    // Boxed: otherwise each enclosing future would hold a copy of its state.
    pool.unless(is_outdated, Box::pin(connect(worker, pool, request))).await
}

async fn connect(worker: &Worker, pool: &WorkerPool, request: &Request) -> Result<Server, ConnectError> {
    // Not this thread's copy of the plan: it may be outdated after a reload.
    let plan = pool.shared.plan();
    let setup = worker.gateway.config.setup();
    let mode = request.replication.as_deref().unwrap_or(b"true");
    let mut extra: Vec<(&[u8], &[u8])> = vec![(b"replication", mode)];
    extra.extend(request.params.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())));
    let limit = plan.timeouts.connect;
    let tls = setup.server_tls.get(&plan.entry);
    let attempt = worker.gateway.pools.connector.connect_as(&worker.reactor, &plan, tls, &extra);
    within(&worker.reactor, limit, attempt).await.unwrap_or(Err(ConnectError::Timeout(limit))).map(Server::new)
}

/// The side that closed.
enum Side {
    Client,
    Server,
}

/// Forwards bytes in both directions until one side closes.
fn poll_both(client: &mut Link, server: &mut Link, cx: &Context<'_>) -> Poll<std::io::Result<Side>> {
    loop {
        let there = poll_one(client, server, cx)?;
        let back = poll_one(server, client, cx)?;
        match (there, back) {
            (Poll::Ready(Passed::End), _) => return Poll::Ready(Ok(Side::Client)),
            (_, Poll::Ready(Passed::End)) => return Poll::Ready(Ok(Side::Server)),
            (Poll::Pending, Poll::Pending) => return Poll::Pending,
            _ => {}
        }
    }
}

/// While the gateway is suspended: flushes pending bytes and reads nothing.
fn poll_held(
    a: &mut Link,
    b: &mut Link,
    (worker, client_info): (&Worker, &ClientInfo),
    cx: &Context<'_>,
) -> Poll<std::io::Result<Side>> {
    if client_info.peek_signal() == Some(Signal::SuspendTimeout) {
        return Poll::Ready(Err(std::io::Error::other(Cause::Suspend.reason())));
    }
    let (there, back) = (a.poll_sent(cx)?, b.poll_sent(cx)?);
    worker.hold(client_info, there.is_ready() && back.is_ready());
    Poll::Pending
}

enum Passed {
    Some,
    End,
}

fn poll_one(from: &mut Link, to: &mut Link, cx: &Context<'_>) -> Poll<std::io::Result<Passed>> {
    std::task::ready!(to.poll_flush(cx))?;
    let chunk = std::task::ready!(from.poll_read(cx))?;
    if chunk.is_empty() {
        return Poll::Ready(Ok(Passed::End));
    }
    to.write(chunk);
    let _ = to.poll_flush(cx)?;
    Poll::Ready(Ok(Passed::Some))
}
