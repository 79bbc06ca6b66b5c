//! The login of a client: TLS, startup packet, authentication, and messages up to the first ReadyForQuery.

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tidegate_wire::backend::ErrorReply;

use rustix::net::{UCred, sockopt::socket_peercred};
use tidegate_link::{AcceptedSocket, Link, PeerAddress};
use tidegate_supervise::Ctx;
use tidegate_wire::{DecodeError, sqlstate};

use super::{
    canceller::CancelRequest, console::ConsoleLogin, log, passthrough::ReplicationLogin, route, session::Session,
};
use opening::Requested;
use tidegate_config::{AdminConfig, Dialect};
use tidegate_pg_client::tcp;
use tidegate_tls as tls;

use crate::error::Cause;
use crate::plane::{ConsoleClient, CountGuard, Lifecycle, PoolKey, QuotaGuard, Worker, WorkerPool, within};

mod admission;
mod brake;
mod greeting;
mod opening;
mod packet;
mod proof;
mod random;
mod refusal;

pub(super) use packet::Request;
pub(super) use random::random;

/// Why a login ended without a session.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    /// The client disconnected.
    #[error("the client left")]
    Gone,
    /// The connection broke.
    #[error(transparent)]
    Link(#[from] std::io::Error),
    /// The client sent an invalid message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The length of the first packet is invalid.
    #[error("{0}")]
    Length(DecodeError),
    /// The login was refused.
    #[error("{0}")]
    Refused(ErrorReply),
    /// A limit or the state of the gateway refused the login.
    #[error("{1}")]
    Limited(Cause, ErrorReply),
    /// The database does not exist or is disabled.
    #[error("{0}")]
    NoDatabase(ErrorReply),
    /// No server became free in time.
    #[error("{0}")]
    CheckoutTimeout(ErrorReply),
    /// Authentication failed.
    #[error("{0}")]
    Denied(ErrorReply),
    /// The server refused the login with this error message.
    #[error("the server could not be connected")]
    Server(Vec<u8>),
    /// The login timed out.
    #[error("the login took too long")]
    Timeout,
}

/// Result of a login. The login itself serves none of these.
pub(super) enum Admitted {
    /// A database session.
    Session(Box<Session>),
    /// The admin console.
    Console(ConsoleLogin),
    /// A replication connection.
    Replication(Box<ReplicationLogin>),
    /// A cancel request to deliver.
    Cancel(CancelRequest),
}

/// Logs a client in. Returns `None` if it disconnected or was refused.
pub(super) async fn log_in(worker: Rc<Worker>, accepted: AcceptedSocket, id: u64, ctx: Ctx) -> Option<Admitted> {
    let peer = accepted.peer;
    match arrive(worker, accepted, id, &ctx).await {
        Ok(admitted) => Some(admitted),
        Err(error) => {
            tracing::debug!(%peer, %error, "client did not log in");
            None
        }
    }
}

async fn arrive(worker: Rc<Worker>, accepted: AcceptedSocket, id: u64, ctx: &Ctx) -> Result<Admitted, LoginError> {
    let mut arriving = Arriving::new(worker, accepted, id)?;
    let worker = arriving.worker.clone();
    let limit = worker.gateway.config.setup().config.timeouts.login;
    let in_time = async |arriving: &mut Arriving| {
        within(&worker.reactor, limit, arriving.authorize()).await.unwrap_or(Err(LoginError::Timeout))
    };
    let (destination, request) = match arriving.unless_stopped(ctx, in_time).await {
        Ok(Opening::Startup(destination, request)) => (destination, request),
        Ok(Opening::Cancel { pid, key }) => {
            return Ok(Admitted::Cancel(CancelRequest { worker, link: arriving.link, pid, key }));
        }
        Err(error) => return Err(Box::pin(arriving.turn_away(error, ctx)).await),
    };
    match destination {
        Destination::Pool(pool) => Box::pin(arriving.open_session(pool, &request, ctx)).await,
        Destination::Console { may_change } => arriving.open_console(request, may_change),
        Destination::Replication(pool) => {
            let entry = arriving.enter(pool.shared.key.clone(), &request)?;
            Ok(Admitted::Replication(Box::new(ReplicationLogin { arriving, pool, request, entry })))
        }
    }
}

/// Request of the first packets of a connection.
enum Opening {
    /// A session of an authenticated user.
    Startup(Destination, Request),
    /// A cancel request for another client.
    Cancel { pid: u32, key: Box<[u8]> },
}

/// Destination of an authenticated client.
enum Destination {
    Pool(Rc<WorkerPool>),
    Console { may_change: bool },
    Replication(Rc<WorkerPool>),
}

pub(super) struct Arriving {
    worker: Rc<Worker>,
    /// Unique client id in the gateway.
    id: u64,
    link: Link,
    peer: PeerAddress,
    /// Local address of the connection, if known without a system call.
    local: Option<SocketAddr>,
    /// Process id and user of the peer of a unix socket.
    process: Option<UCred>,
    /// Hash of the server certificate, for channel binding.
    end_point: Option<Arc<[u8]>>,
    /// Received bytes that were not parsed yet.
    bytes: Vec<u8>,
    /// User and database of the startup packet, for the query log.
    asked: Option<(String, String)>,
    /// `application_name`, if there is a query log.
    application: Box<[u8]>,
    /// Counts the client in the limits of its database and user.
    quota: Option<QuotaGuard>,
    /// Whether the failed-login delay of the address was applied.
    is_admitted: bool,
    /// When the client's last password message arrived.
    answered_at: Option<Instant>,
    /// Counts the client in the limit of its address, if there is one.
    address: Option<CountGuard>,
    /// Counts the connection among those of its address before login.
    arrival: Option<CountGuard>,
    /// The wait for a server that the login ended with.
    waited: Option<Duration>,
    since: Instant,
}

/// Peer process of a unix socket connection.
fn process_of(accepted: &AcceptedSocket) -> Option<UCred> {
    if accepted.peer != PeerAddress::Unix {
        return None;
    }
    socket_peercred(&accepted.fd).ok()
}

impl Arriving {
    fn new(worker: Rc<Worker>, accepted: AcceptedSocket, id: u64) -> Result<Self, LoginError> {
        let (peer, local, process) = (accepted.peer, accepted.local, process_of(&accepted));
        if peer != PeerAddress::Unix {
            tcp::configure(&accepted.fd, &worker.gateway.config.setup().config.tcp)?;
        }
        Ok(Self {
            link: Link::new(&worker.reactor, accepted.fd)?,
            since: worker.reactor.now(),
            worker,
            id,
            peer,
            local,
            process,
            end_point: None,
            bytes: Vec::new(),
            asked: None,
            application: Box::default(),
            quota: None,
            is_admitted: false,
            answered_at: None,
            address: None,
            arrival: None,
            waited: None,
        })
    }

    pub(super) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// Runs a part of the login, unless the gateway stops meanwhile.
    async fn unless_stopped<T>(
        &mut self,
        ctx: &Ctx,
        step: impl AsyncFnOnce(&mut Self) -> Result<T, LoginError>,
    ) -> Result<T, LoginError> {
        let outcome = ctx.run_until_cancelled(step(self)).await;
        outcome.unwrap_or_else(|| Err(self.shutting_down()))
    }

    /// Reads the startup packet, authenticates the user and finds the database.
    async fn authorize(&mut self) -> Result<Opening, LoginError> {
        self.count_arrival()?;
        let mut request = match self.first_packet().await? {
            Requested::Startup(request) => request,
            Requested::Cancel { pid, key } => return Ok(Opening::Cancel { pid, key }),
        };
        self.asked = Some((request.user.clone(), request.database.clone()));
        if self.worker.recorder.is_some() {
            self.application = request.application().into();
        }
        self.log_attempt(&request);
        self.await_turn().await?;
        self.admit(&request)?;
        self.negotiate(&request);
        let setup = self.worker.gateway.config.setup();
        let gateway = self.worker.gateway.clone();
        if self.is_own_process(&request) {
            return Ok(Opening::Startup(Destination::Console { may_change: true }, request));
        }
        self.authenticate(&setup, &request).await?;
        self.arrival = None;
        if AdminConfig::CONSOLE_DATABASES.contains(&request.database.as_str()) {
            let may_change = self.may_change_console(&request.user)?;
            self.count_console_client(&setup.config, &request.user, may_change)?;
            return Ok(Opening::Startup(Destination::Console { may_change }, request));
        }
        let Some(shared) = gateway.pool(&request.database, &request.user) else {
            return Err(LoginError::NoDatabase(no_database(
                &gateway.lifecycle,
                setup.config.listen.dialect,
                &request.database,
            )));
        };
        let pool = self.worker.pool(&shared);
        let admitted = gateway.clients.admit(
            &request.database,
            &request.user,
            &setup.config.client_limits(&request.database, &request.user),
        );
        let quota = admitted.map_err(|full| self.cause(full.cause()))?;
        self.quota = Some(quota.with_address(self.address.take()));
        if pool.replica_set().is_some() {
            request.route = route::asked_for(&mut request.params).map_err(LoginError::Refused)?;
        }
        if request.replication.is_some() {
            return Ok(Opening::Startup(Destination::Replication(pool), request));
        }
        Ok(Opening::Startup(Destination::Pool(pool), request))
    }

    /// Opens a session. The client may wait for a server connection, and is visible in `SHOW CLIENTS` meanwhile.
    async fn open_session(
        mut self,
        pool: Rc<WorkerPool>,
        request: &Request,
        ctx: &Ctx,
    ) -> Result<Admitted, LoginError> {
        let entry = self.enter(pool.shared.key.clone(), request)?;
        let greeting = async |arriving: &mut Self| {
            let greeting = arriving.greeting(&pool, request, &entry.client_info).await?;
            Ok((greeting, arriving.reserve_server(&pool, &entry.client_info).await?))
        };
        match self.unless_stopped(ctx, greeting).await {
            Ok((greeting, server)) => {
                Ok(Admitted::Session(Box::new(self.begin_session(pool, request, greeting, server, entry))))
            }
            Err(error) => {
                self.worker.registry.leave(&entry);
                Err(Box::pin(self.refuse(error)).await)
            }
        }
    }

    fn open_console(mut self, request: Request, may_change: bool) -> Result<Admitted, LoginError> {
        let entry = self.enter(PoolKey::new(&request.database, &request.user), &request)?;
        self.greet_console(&request, &entry);
        let session_log = self.worker.session_log(&entry.client_info, None);
        let client = ConsoleClient { link: self.link, user: request.user, may_change, entry };
        Ok(Admitted::Console(ConsoleLogin { worker: self.worker, client, session_log, _quota: self.quota }))
    }

    /// Peer process id for a unix socket; otherwise 0.
    fn process_number(&self) -> u32 {
        self.process.map_or(0, |process| process.pid.as_raw_nonzero().get().unsigned_abs())
    }

    fn log_attempt(&self, request: &Request) {
        let attempt = log::LoginAttempt {
            id: self.id,
            peer: self.peer,
            process: self.process_number(),
            database: &request.database,
            user: &request.user,
            tls: self.link.tls_info().map(|info| tls::version_and_cipher(&info)),
            replicates: request.replication.is_some(),
        };
        attempt.log(&self.worker.gateway.config);
    }
}

/// Error for a client of a database that does not exist or is disabled.
pub(super) fn no_database(lifecycle: &Lifecycle, dialect: Dialect, name: &str) -> ErrorReply {
    let disabled = lifecycle.is_disabled(name);
    match (dialect, disabled) {
        (Dialect::Pgbouncer, false) => ErrorReply::protocol(format!("no such database: {name}")),
        (Dialect::Pgbouncer, true) => ErrorReply::protocol(format!("database \"{name}\" is disabled")),
        (Dialect::Postgres, _) => {
            let fault = if disabled { "is disabled" } else { "does not exist" };
            ErrorReply::new(sqlstate::INVALID_CATALOG_NAME, format!("database \"{name}\" {fault}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F>(_: fn(Rc<Worker>, AcceptedSocket, u64, Ctx) -> F) -> usize {
        size_of::<F>()
    }

    /// A connection burst allocates one such future per client; most of it is rarely used.
    #[test]
    fn login_future_is_small() {
        assert!(size(log_in) <= 2048, "{} bytes: is something rare not in a box of its own?", size(log_in));
    }
}
