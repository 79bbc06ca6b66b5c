//! Admission of a client: limits, registration, login reply, session.

use std::{
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::{Duration, SystemTime},
};
use tidegate_wire::backend::ErrorReply;

use socket2::SockRef;
use tidegate_link::{Link, PeerAddress, canonical};
use tidegate_pool::{Lease, ReleaseAction};
use tidegate_wire::{
    backend::{self, ErrorReport, Severity, TxStatus},
    sqlstate,
};

use super::{Arriving, LoginError, packet::Request, random};
use tidegate_config::{AdminConfig, Config, Dialect, PoolMode, SharedLimits, pgbouncer};
use tidegate_session_state::params::{ParameterValue, Settings, is_settable};
use tidegate_tls as tls;

use crate::{
    client::{
        checkout_timeout::{checkout_timeout, wait_limit},
        log,
        passthrough::unless_killed,
        session::Session,
    },
    error::Cause,
    exchange::ClientSide,
    plane::{
        ClientInfo, ClientState, Greeting, NewClient, PROCESS_ID_MAX, Phase, PoolKey, RegisteredClient, ReportedParams,
        WorkerPool, peer_key, within,
    },
    server::Server,
};

impl Arriving {
    /// The client connection.
    pub(in crate::client) fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Runs `work`, unless the client disconnects or the wait for a server takes too long.
    pub(in crate::client) async fn bounded_wait<T>(
        &mut self,
        pool: &WorkerPool,
        work: impl Future<Output = T>,
    ) -> Result<T, LoginError> {
        let (plan, dialect) = (pool.plan(), self.dialect());
        let limit = wait_limit(&plan.timeouts, dialect);
        let worker = self.worker.clone();
        let work = while_there(&mut self.link, &mut self.bytes, work);
        let since = worker.reactor.now();
        match within(&worker.reactor, limit, work).await {
            Some(outcome) => outcome.ok_or(LoginError::Gone),
            None => {
                self.waited = Some(worker.reactor.now() - since);
                pool.stats.checkout_timeout_count.add(1);
                Err(LoginError::CheckoutTimeout(checkout_timeout(&worker, pool, plan.route.route, dialect)))
            }
        }
    }

    /// Returns bytes that were received early to the link.
    pub(in crate::client) fn unread_early(&mut self) {
        if !self.bytes.is_empty() {
            self.link.unread(std::mem::take(&mut self.bytes).into());
        }
    }

    /// Checks the limits that are known before authentication.
    pub(super) fn admit(&mut self, request: &Request) -> Result<(), LoginError> {
        let gateway = self.worker.gateway.clone();
        let to_console = AdminConfig::CONSOLE_DATABASES.contains(&request.database.as_str());
        // A shutdown that waits for clients admits those that were accepted before the listeners closed.
        let ends = matches!(gateway.lifecycle.phase(), Phase::WaitingForTransactions | Phase::Stopping);
        if ends && !to_console {
            return Err(self.shutting_down());
        }
        let max = gateway.config.setup().config.listen.max_clients as usize;
        if gateway.clients.count() > max && !to_console {
            return Err(self.cause(Cause::Clients));
        }
        self.count_address(request)
    }

    /// Counts a client of the console in the limits of its user and of the console, as PgBouncer does: administrators count, and
    /// are not limited.
    pub(super) fn count_console_client(
        &mut self,
        config: &Config,
        user: &str,
        is_admin: bool,
    ) -> Result<(), LoginError> {
        if self.dialect() != Dialect::Pgbouncer {
            return Ok(());
        }
        let limits = if is_admin { SharedLimits::default() } else { config.console_limits(user) };
        let admitted = self.worker.gateway.clients.admit(AdminConfig::DISPLAY_NAME, user, &limits);
        self.quota = Some(admitted.map_err(|full| self.cause(full.cause()))?);
        Ok(())
    }

    /// Whether a console user may run commands that change state.
    pub(super) fn may_change_console(&self, user: &str) -> Result<bool, LoginError> {
        let setup = self.worker.gateway.config.setup();
        let admin = &setup.config.admin;
        let may_change = admin.users.iter().any(|admin| admin == user);
        if may_change || admin.stats_users.iter().any(|reader| reader == user) {
            return Ok(may_change);
        }
        if self.dialect() == Dialect::Pgbouncer {
            return Err(LoginError::Refused(ErrorReply::protocol("not allowed")));
        }
        let message = format!("user \"{user}\" is not an admin user");
        let refusal = ErrorReply::new(sqlstate::INSUFFICIENT_PRIVILEGE, message)
            .hint("Name it in users or stats_users of [admin].");
        Err(LoginError::Refused(refusal))
    }

    pub(super) fn enter(&self, key: PoolKey, request: &Request) -> Result<RegisteredClient, LoginError> {
        let secret: Box<[u8]> = if request.minor >= 2 { Box::from(random::<32>()?) } else { Box::from(random::<4>()?) };
        let (pid, secret) = match self.worker.gateway.peers.own_id() {
            0 => (None, secret),
            own => {
                let pid = peer_key::pid(own, u32::from_ne_bytes(random::<4>()?));
                (Some(pid), peer_key::with_hops(&secret, peer_key::HOPS_MAX))
            }
        };
        let tls = self.link.tls_info().map(|info| tls::version_and_cipher(&info).into());
        let entry = self.worker.registry.enter(NewClient {
            id: self.id,
            key,
            user: &request.user,
            peer: self.peer,
            local: self.local_address(),
            process: self.process_number(),
            tls,
            pid,
            secret,
            connected_at: SystemTime::now(),
        });
        Ok(entry)
    }

    /// Local address of the connection; `None` for a unix socket.
    fn local_address(&self) -> Option<SocketAddr> {
        if self.peer == PeerAddress::Unix {
            return None;
        }
        self.local.or_else(|| SockRef::from(&self.link).local_addr().ok()?.as_socket().map(canonical))
    }

    pub(super) fn greet_console(&mut self, request: &Request, entry: &RegisteredClient) {
        let mut settings = Settings::default();
        // Drivers read a number at the start.
        let version = match self.dialect() {
            Dialect::Pgbouncer => format!("{}/bouncer", pgbouncer::VERSION),
            Dialect::Postgres => concat!(env!("CARGO_PKG_VERSION"), "/tidegate").to_owned(),
        };
        for (name, value) in [
            ("server_version", version.as_str()),
            ("client_encoding", "UTF8"),
            ("server_encoding", "UTF8"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("standard_conforming_strings", "on"),
            ("integer_datetimes", "on"),
            ("is_superuser", "on"),
        ] {
            settings.set(name, ParameterValue::text(value.as_bytes()));
        }
        let mut own = Settings::default();
        for (name, value) in &request.params {
            own.set(name, ParameterValue::text(value));
            if is_settable(name) && settings.get(name).is_some() {
                settings.set(name, ParameterValue::text(value));
            }
        }
        let greeting = self.compose(ReportedParams { settings: own, reported: settings }, None, None);
        self.greet(&greeting, entry);
        entry.client_info.note_settings(&greeting.settings);
        self.link.unread(std::mem::take(&mut self.bytes).into());
    }

    fn greet(&mut self, greeting: &Greeting, entry: &RegisteredClient) {
        let mut out = Vec::with_capacity(greeting.words.len() + 64);
        out.extend_from_slice(&greeting.words);
        backend::backend_key_data(self.worker.pid_of(entry), entry.client_info.secret(), &mut out);
        let setup = self.worker.gateway.config.setup();
        if !setup.config.listen.login_notice.is_empty() {
            let notice = &setup.config.listen.login_notice;
            let report = ErrorReport::new(Severity::Notice, sqlstate::SUCCESSFUL_COMPLETION, notice);
            backend::notice_response(&report, &mut out);
        }
        backend::ready_for_query(TxStatus::Idle, &mut out);
        self.link.write(out);
    }

    /// Refusal during shutdown.
    pub(super) fn shutting_down(&self) -> LoginError {
        let refusal = match self.dialect() {
            Dialect::Postgres => ErrorReply::new(sqlstate::CANNOT_CONNECT_NOW, "the gateway is shutting down"),
            dialect => Cause::ShuttingDown.refusal(dialect),
        };
        LoginError::Limited(Cause::ShuttingDown, refusal)
    }

    pub(super) fn begin_session(
        mut self,
        pool: Rc<WorkerPool>,
        request: &Request,
        greeting: Greeting,
        server: Option<Lease<Server>>,
        entry: RegisteredClient,
    ) -> Session {
        self.greet(&greeting, &entry);
        pool.stats.client_login_count.add(1);
        log::arrived(&self.worker.gateway.config, &entry.client_info);
        self.unread_early();
        entry.client_info.note_settings(&greeting.settings);
        let front = ClientSide::new(self.link, entry.client_info.id, greeting.settings, greeting.reported);
        let mut session = Session::new(self.worker, front, pool, request.route, entry, self.quota);
        session.reserve(server);
        session
    }

    /// Checks out the client's server at login in session mode, unless all are in use: clients compare the reported process
    /// id with that of their session, and terminate sessions by it. PgBouncer assigns servers at the first query, and so does
    /// its dialect. With peers, the process id identifies the peer.
    pub(super) async fn reserve_server(
        &mut self,
        pool: &Rc<WorkerPool>,
        client_info: &ClientInfo,
    ) -> Result<Option<Lease<Server>>, LoginError> {
        let is_kept = pool.plan().pool.mode == PoolMode::Session && pool.replica_set().is_none();
        if !is_kept || self.dialect() != Dialect::Postgres || self.worker.gateway.peers.own_id() != 0 {
            return Ok(None);
        }
        let now = self.worker.reactor.now();
        let server = match pool.local.try_checkout(now) {
            Some(server) => Some(server),
            None if pool.local.is_exhausted() => None,
            None => Box::pin(self.wait_to_reserve(pool, client_info)).await?,
        };
        let Some(mut server) = server else { return Ok(None) };
        if server.settle(&self.worker.reactor).is_err() || server.identity.pid > PROCESS_ID_MAX {
            server.release(ReleaseAction::Reuse, self.worker.reactor.now());
            return Ok(None);
        }
        client_info.announce(&server.identity);
        Ok(Some(server))
    }

    /// Waits for a server of another thread or a new one. The client gets a connect error at its first request.
    async fn wait_to_reserve(
        &mut self,
        pool: &Rc<WorkerPool>,
        client_info: &ClientInfo,
    ) -> Result<Option<Lease<Server>>, LoginError> {
        let worker = self.worker.clone();
        client_info.state.set(ClientState::Waiting(worker.reactor.now()));
        let checkout = unless_killed(client_info, pool.local.checkout(worker.reactor.now()));
        let checkout = while_there(&mut self.link, &mut self.bytes, checkout);
        let outcome = within(&worker.reactor, RESERVE_LIMIT, checkout).await;
        client_info.state.set(ClientState::Idle);
        match outcome {
            None => Ok(None),
            Some(None) => Err(LoginError::Gone),
            Some(Some(None)) => Err(self.cause(Cause::Killed)),
            Some(Some(Some(server))) => Ok(server.ok()),
        }
    }
}

/// Maximum wait of a login for a server that the client may not need.
const RESERVE_LIMIT: Duration = Duration::from_secs(1);

/// Runs `work`; returns `None` if the client disconnects meanwhile. Bytes received early are kept.
pub(super) async fn while_there<T>(link: &mut Link, bytes: &mut Vec<u8>, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut reads) = (pin!(work), true);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(outcome) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        if reads {
            match std::task::ready!(link.poll_read(cx)) {
                Ok(chunk) if !chunk.is_empty() => bytes.extend_from_slice(&chunk),
                _ => return Poll::Ready(None),
            }
            // Stop after one chunk: further bytes are read after the login.
            reads = false;
        }
        link.poll_peer_closed(cx).map(|()| None)
    })
    .await
}
