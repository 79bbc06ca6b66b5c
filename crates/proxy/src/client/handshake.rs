//! From the first byte to the first ReadyForQuery: TLS, start-up packet, login, greeting.

use std::{net::SocketAddr, rc::Rc, sync::Arc, time::Instant};
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

use crate::plane::{ConsoleClient, CountGuard, Gateway, PoolKey, QuotaGuard, Worker, WorkerPool, within};

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

/// Why a client did not get as far as a session.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    /// It left.
    #[error("the client left")]
    Gone,
    /// Its connection broke.
    #[error("{0}")]
    Link(#[from] std::io::Error),
    /// It sent what is no message.
    #[error("{0}")]
    Decode(#[from] DecodeError),
    /// Its first packet has a length that no packet has.
    #[error("{0}")]
    Length(DecodeError),
    /// It was refused.
    #[error("{0}")]
    Refused(ErrorReply),
    /// It was refused since it did not prove who it is.
    #[error("{0}")]
    Denied(ErrorReply),
    /// It was refused in the words of the server.
    #[error("the server could not be connected")]
    Server(Vec<u8>),
    /// It took too long.
    #[error("the login took too long")]
    Timeout,
}

/// What a client was admitted to. The login serves none of it.
pub(super) enum Admitted {
    /// A database.
    Session(Box<Session>),
    /// The admin console.
    Console(ConsoleLogin),
    /// A replication connection.
    Replication(Box<ReplicationLogin>),
    /// The delivery of a cancel request.
    Cancel(CancelRequest),
}

/// Logs a client in. `None` if it left or was refused.
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

/// What the first packets of a connection ask for.
enum Opening {
    /// A session, whose user has proven its identity.
    Startup(Destination, Request),
    /// To cancel a query of another client.
    Cancel { pid: u32, key: Box<[u8]> },
}

/// Where an authenticated client goes.
enum Destination {
    Pool(Rc<WorkerPool>),
    Console { may_change: bool },
    Replication(Rc<WorkerPool>),
}

pub(super) struct Arriving {
    worker: Rc<Worker>,
    /// Tells it from all other clients of the gateway.
    id: u64,
    link: Link,
    peer: PeerAddress,
    /// Where it has connected to, if that was known without asking.
    local: Option<SocketAddr>,
    /// The process at the other end of a unix socket, and whose it is.
    process: Option<UCred>,
    /// The hash of the certificate that it was shown, which its login can be bound to.
    end_point: Option<Arc<[u8]>>,
    /// Received and not yet looked at.
    bytes: Vec<u8>,
    /// As whom it comes and to which database, once it has said so; for the journal.
    asked: Option<(String, String)>,
    /// What it calls itself, if there is a journal.
    application: Box<[u8]>,
    /// Its place among the clients of its database and of its user.
    quota: Option<QuotaGuard>,
    /// Its turn has come, should there be many failed logins of its address.
    is_admitted: bool,
    /// When its last answer to a question for its password was there.
    answered_at: Option<Instant>,
    /// Its place among the clients of its address, if those have a limit.
    address: Option<CountGuard>,
    /// The same among the connections of its address that have not logged in.
    arrival: Option<CountGuard>,
    since: Instant,
}

/// The process that has connected to the unix socket.
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
        })
    }

    pub(super) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// What a part of the login comes to, unless the gateway ends meanwhile.
    async fn unless_stopped<T>(
        &mut self,
        ctx: &Ctx,
        close_with: impl AsyncFnOnce(&mut Self) -> Result<T, LoginError>,
    ) -> Result<T, LoginError> {
        let outcome = ctx.run_until_cancelled(close_with(self)).await;
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
            return Ok(Opening::Startup(Destination::Console { may_change }, request));
        }
        let Some(shared) = gateway.pool(&request.database, &request.user) else {
            return Err(LoginError::Refused(no_database(&gateway, &request.database)));
        };
        let pool = self.worker.pool(&shared);
        let seated = gateway.clients.admit(
            &request.database,
            &request.user,
            &setup.config.client_limits(&request.database, &request.user),
        );
        let quota = seated.map_err(|full| self.cause(full.cause()))?;
        self.quota = Some(quota.with_address(self.address.take()));
        if pool.replica_set().is_some() {
            request.route = route::asked_for(&mut request.params).map_err(LoginError::Refused)?;
        }
        if request.replication.is_some() {
            return Ok(Opening::Startup(Destination::Replication(pool), request));
        }
        Ok(Opening::Startup(Destination::Pool(pool), request))
    }

    /// Greets the client of a database; it may have to wait for a server connection, and is in `SHOW CLIENTS` meanwhile.
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
        Ok(Admitted::Console(ConsoleLogin { worker: self.worker, client, session_log }))
    }

    /// The process at the other end of a unix socket; else 0.
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
        attempt.log(&self.worker.gateway);
    }
}

/// The error for a client of a database that does not exist or is disabled.
pub(super) fn no_database(gateway: &Gateway, name: &str) -> ErrorReply {
    let disabled = gateway.lifecycle.is_disabled(name);
    match (gateway.config.setup().config.listen.dialect, disabled) {
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

    /// Thousands may arrive at once, and each is given this much memory, of which most see little use.
    #[test]
    fn whoever_arrives_takes_little_memory() {
        assert!(size(log_in) <= 2048, "{} bytes: is something rare not in a box of its own?", size(log_in));
    }
}
