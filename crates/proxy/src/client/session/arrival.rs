//! Sessions that arrive from the process that this one replaces.

use std::{
    io,
    os::fd::OwnedFd,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use tidegate_config::{PoolMode, Route};
use tidegate_handover::{IncomingSessions, ServerRecord, SessionRecord, SessionSockets};
use tidegate_link::{Link, PeerAddress};
use tidegate_pg_client::{ServerIdentity, tcp};
use tidegate_pool::Lease;

use super::{PinnedServer, Session, run};
use crate::{
    client::{ClientGuard, idle::Idle},
    exchange::ClientSide,
    plane::{Gateway, NewClient, Phase, QuotaGuard, SharedPool, Worker, Workers},
    server::{
        Server,
        server_record::{identity_of, opened_at},
    },
};

/// Adopts sessions of the previous process.
pub struct Arrivals {
    gateway: Arc<Gateway>,
    workers: Arc<Workers>,
    /// Number of sessions so far, for an equal share of all threads.
    count: AtomicUsize,
}

/// A session that was checked.
pub struct ArrivedSession {
    record: SessionRecord,
    client: OwnedFd,
    server: Option<ArrivedServer>,
    worker: usize,
    pool: Arc<SharedPool>,
    quota: QuotaGuard,
    guard: ClientGuard,
}

/// The server that a client is pinned to.
struct ArrivedServer {
    record: ServerRecord,
    fd: OwnedFd,
    identity: ServerIdentity,
    quota: QuotaGuard,
}

impl Arrivals {
    /// Adopts sessions for this gateway.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>, workers: Arc<Workers>) -> Self {
        Self { gateway, workers, count: AtomicUsize::new(0) }
    }

    /// Counts the client in all limits.
    fn admit(&self, record: &SessionRecord) -> Result<QuotaGuard, String> {
        let setup = self.gateway.config.setup();
        let (config, clients) = (&setup.config, &self.gateway.clients);
        if clients.count() > config.listen.max_clients as usize {
            return Err("too many clients".to_owned());
        }
        let limits = config.client_limits(&record.database, &record.user);
        let full = |_| "too many clients of its database or user".to_owned();
        let quota = clients.admit(&record.database, &record.user, &limits).map_err(full)?;
        let max = config.listen.max_clients_per_address;
        let address = match record.peer_address().filter(|_| max > 0) {
            Some(peer) => Some(clients.admit_address(peer.ip(), max).ok_or("too many clients of its address")?),
            None => None,
        };
        Ok(quota.with_address(address))
    }
}

impl IncomingSessions for Arrivals {
    type Ready = ArrivedSession;

    fn check(&self, mut record: SessionRecord, sockets: SessionSockets) -> Result<ArrivedSession, String> {
        let gateway = &self.gateway;
        let worker = self.count.fetch_add(1, Ordering::Relaxed) % gateway.clients.threads();
        // Counted before the check: a process that ends when it has no clients sees one of the two.
        let guard = ClientGuard::take(gateway, worker);
        let is_relay = gateway.lifecycle.is_handed_over() && gateway.lifecycle.phase() == Phase::WaitingForClients;
        if !is_relay && !gateway.lifecycle.phase().goes_on() {
            return Err("the new process is stopping".to_owned());
        }
        let pool = gateway.pool_of_client(&record.database, &record.user);
        let pool = pool.ok_or_else(|| format!("database \"{}\" does not exist", record.database))?;
        let plan = pool.plan();
        if plan.pool.mode == PoolMode::Session {
            return Err("the new process has its pool in session mode".to_owned());
        }
        let quota = self.admit(&record)?;
        let server = match record.server.take().zip(sockets.server) {
            Some(_) if plan.choice.is_some() => return Err("its database has several servers now".to_owned()),
            Some((record, fd)) => {
                let identity = identity_of(&record, &plan, gateway.pools.connector.next_id())?;
                let quota = gateway.pools.count_server(&pool.key, &plan).ok_or("too many servers")?;
                Some(ArrivedServer { record, fd, identity, quota })
            }
            None => None,
        };
        let mut secrets = record.take_login();
        if !gateway.config.setup().config.auth.method.allows_external_auth() {
            secrets.external = None;
        }
        gateway.pools.connector.secrets.adopt(&plan, secrets);
        Ok(ArrivedSession { record, client: sockets.client, server, worker, pool, quota, guard })
    }

    fn serve(&self, session: ArrivedSession) {
        self.gateway.moves.count_arrival();
        self.workers.all()[session.worker].visit(move |worker| adopt(worker, session));
    }

    fn on_streams_ended(&self) {
        self.gateway.moves.streams_may_start.send_replace(true);
    }
}

/// Spawns the task of an adopted client on its thread.
fn adopt(worker: &Rc<Worker>, session: ArrivedSession) {
    let ArrivedSession { record, client, server, pool, quota, guard, .. } = session;
    let id = worker.gateway.clients.next_id();
    let restored = Session::restore(worker, &record, client, &pool, (id, quota)).and_then(|mut session| {
        session.reserved = server.map(|server| adopt_server(&session, id, server)).transpose()?;
        Ok(session)
    });
    let session = match restored {
        Ok(session) => session,
        Err(error) => return tracing::warn!(client = id, %error, "cannot serve a client of the previous process"),
    };
    let task = worker.client_scope.wrap_numbered(id, move |ctx| async move {
        run(session, &ctx).await;
        drop(guard);
    });
    match task {
        Ok(task) => worker.reactor.spawn(task),
        Err(refused) => tracing::debug!(client = id, %refused, "client not served"),
    }
}

/// Adds a server to the pool of its client.
fn adopt_server(session: &Session, client: u64, server: ArrivedServer) -> io::Result<Lease<Server>> {
    let ArrivedServer { record, fd, identity, quota } = server;
    let (worker, home) = (&session.worker, &session.home);
    let held = worker.gateway.lifecycle.server_scope.hold(identity.id).map_err(io::Error::other)?;
    let link = Link::new(&worker.reactor, fd)?;
    let mut server = Server::restore(link, &record, identity, client, worker.catalog.changes());
    server.quota = Some(Box::new((quota, held)));
    server.note_statements();
    worker.gateway.pools.note_server(&home.shared.key, &server.identity);
    let now = worker.reactor.now();
    Ok(home.local.adopt(server, opened_at(&record, now), now))
}

impl Session {
    /// The server with which a pinned client has arrived.
    pub(super) fn take_arrived_server(&mut self) -> Option<Box<PinnedServer>> {
        // A server of session mode is reserved for the first request.
        let is_pinned = !self.front.pins.is_empty() && self.home.plan().pool.mode != PoolMode::Session;
        let lease = self.reserved.take_if(|_| is_pinned)?;
        Some(Box::new(PinnedServer { lease, idle_since: self.worker.reactor.now() }))
    }

    fn restore(
        worker: &Rc<Worker>,
        record: &SessionRecord,
        fd: OwnedFd,
        pool: &Arc<SharedPool>,
        (id, quota): (u64, QuotaGuard),
    ) -> std::io::Result<Box<Self>> {
        let peer = record.peer_address().map_or(PeerAddress::Unix, PeerAddress::Tcp);
        if peer != PeerAddress::Unix {
            tcp::configure(&fd, &worker.gateway.config.setup().config.tcp)?;
        }
        let link = Link::new(&worker.reactor, fd)?;
        let home = worker.pool(pool);
        let state = (&worker.catalog, &worker.interned);
        let mut front = ClientSide::restore(link, id, record, state, home.plan().identity());
        let entry = worker.registry.enter(NewClient {
            id,
            key: pool.key.clone(),
            user: &record.user,
            peer,
            local: record.local_address(),
            process: record.process,
            tls: None,
            pid: Some(record.pid),
            secret: record.secret.as_slice().into(),
            connected_at: UNIX_EPOCH + Duration::from_micros(record.connected_at_us),
        });
        entry.client_info.note_settings(&front.settings);
        entry.client_info.prepared.set(front.statements.as_ref().map_or(0, |known| known.len() as u32));
        front.link.unread(record.unread.as_slice().to_vec().into());
        let asked = record.route.parse::<Route>().ok();
        let mut session = Self::new(worker.clone(), front, home, asked, entry, Some(quota));
        session.idle = Idle::restore(record);
        Ok(Box::new(session))
    }
}
