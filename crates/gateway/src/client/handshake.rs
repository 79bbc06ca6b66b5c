//! From the first byte to the first ReadyForQuery: TLS, start-up packet, login, greeting.

use std::{future::Future, pin::Pin, rc::Rc, sync::Arc};

use tidegate_link::{Accepted, Address, Chunk, Link, TlsSide};
use tidegate_wire::{
    DecodeError, Reason, backend,
    backend::{ErrorFields, TxStatus},
    frame::HEADER,
    sqlstate,
    startup::{self, First, Startup},
};

use super::{
    auth::Login,
    canceller, lookup, part, passthrough,
    route::{self, find_server},
    session::Session,
};
use crate::{
    config::{Admin, AuthMethod, ClientTls, Dialect, Route, UserSecret},
    error::{Cause, Refusal},
    exchange::Frontend,
    hba::{self, Caller, Verdict},
    params::{ServerSettings, Settings, Value, canonical_encoding, is_settable},
    plane::{Entry, NewCard, Phase, PoolKey, Quota, Setup, Worker, WorkerPool, lock, peer_key, within},
    record::{Stranger, Witness},
    server::tcp,
    tls,
};

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
    /// It was refused.
    #[error("{0}")]
    Refused(Refusal),
    /// It was refused in the words of the server.
    #[error("the server could not be connected")]
    Server(Vec<u8>),
    /// It took too long.
    #[error("the login took too long")]
    Timeout,
}

/// A client that asked for the console, logged in.
pub struct ConsoleClient {
    /// Its connection, with the greeting under way.
    pub link: Link,
    /// Its user.
    pub user: String,
    /// Whether it may change anything.
    pub may_change: bool,
    /// Its place among the clients.
    pub entry: Entry,
}

/// Serves a client of the console.
pub type Console = fn(Rc<Worker>, ConsoleClient) -> Pin<Box<dyn Future<Output = ()>>>;

/// Fresh random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], LoginError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

/// Brings a client in. `None` if it has had all it wanted, or was refused.
pub(super) async fn shake(worker: Rc<Worker>, accepted: Accepted, console: Console) -> Option<Box<Session>> {
    let peer = accepted.peer;
    match arrive(worker, accepted, console).await {
        Ok(session) => session,
        Err(error) => {
            tracing::debug!(%peer, %error, "client did not log in");
            None
        }
    }
}

async fn arrive(worker: Rc<Worker>, accepted: Accepted, console: Console) -> Result<Option<Box<Session>>, LoginError> {
    let peer = accepted.peer;
    let uid = uid_of(&accepted);
    if uid.is_none() {
        tcp::tune(&accepted.fd, &worker.gateway.setup().config.tcp)?;
    }
    let link = Link::new(&worker.reactor, accepted.fd)?;
    let mut arriving = Arriving { link, worker, peer, uid, bytes: Vec::new(), asked: None, quota: None };
    let worker = arriving.worker.clone();
    let limit = worker.gateway.setup().config.timeouts.login;
    let outcome = within(&worker.reactor, limit, arriving.log_in()).await.unwrap_or(Err(LoginError::Timeout));
    let (pool, request) = match outcome {
        Ok(Admitted::Pool(pool, request)) => (pool, request),
        Ok(Admitted::Console(request, may_change)) => {
            let entry = arriving.enter(console_key(&request.user), &request)?;
            arriving.greet_console(&request, &entry);
            let witness = worker.witness(&entry.card, None);
            let client = ConsoleClient { link: arriving.link, user: request.user, may_change, entry };
            console(worker.clone(), client).await;
            leave(witness.as_deref(), &worker, "console closed");
            return Ok(None);
        }
        Ok(Admitted::Replication(pool, request)) => {
            let witness = arriving.witness_of_replication();
            let result = passthrough::replicate(&worker, &mut arriving.link, &pool, &request).await;
            leave(witness.as_deref(), &worker, "replication ended");
            return match result {
                Ok(()) => Ok(None),
                Err(error) => Err(arriving.refuse(error).await),
            };
        }
        Ok(Admitted::Served) => return Ok(None),
        Err(error) => return Err(arriving.refuse(error).await),
    };
    match arriving.begin_session(pool, &request).await {
        Ok(session) => Ok(Some(Box::new(session))),
        Err((mut arriving, error)) => Err(arriving.refuse(error).await),
    }
}

fn leave(witness: Option<&Witness>, worker: &Worker, reason: &str) {
    if let Some(witness) = witness {
        witness.leave(reason, worker.reactor.now());
    }
}

fn console_key(user: &str) -> PoolKey {
    PoolKey::new(Admin::DATABASES[0], user)
}

/// What a client asks for in its start-up packet.
pub(super) struct Request {
    pub(super) minor: u16,
    pub(super) user: String,
    pub(super) database: String,
    /// Name and value of all other parameters, `options` taken apart.
    pub(super) params: Vec<(String, Vec<u8>)>,
    pub(super) replication: Option<Vec<u8>>,
    /// The route that it asks for, where there is a choice of servers.
    pub(super) route: Option<Route>,
    unknown: Vec<Vec<u8>>,
}

enum Admitted {
    Pool(Rc<WorkerPool>, Request),
    Console(Request, bool),
    Replication(Rc<WorkerPool>, Request),
    /// A cancel request, or nothing at all.
    Served,
}

struct Arriving {
    worker: Rc<Worker>,
    link: Link,
    peer: Address,
    /// Whose process is at the other end of a unix socket.
    uid: Option<u32>,
    /// Received and not yet looked at.
    bytes: Vec<u8>,
    /// As whom it comes and to which database, once it has said so; for the journal.
    asked: Option<(String, String)>,
    /// Its place among the clients of its database and of its user.
    quota: Option<Quota>,
}

/// Whose process has connected to the unix socket.
fn uid_of(accepted: &Accepted) -> Option<u32> {
    let credentials = rustix::net::sockopt::socket_peercred(&accepted.fd);
    credentials.ok().filter(|_| accepted.peer == Address::Unix).map(|credentials| credentials.uid.as_raw())
}

impl Arriving {
    /// Tells the client why, and gives the reason back for the log.
    async fn refuse(&mut self, error: LoginError) -> LoginError {
        let words = match &error {
            LoginError::Refused(refusal) => refusal.fatal(),
            LoginError::Server(message) => message.clone(),
            LoginError::Timeout => Cause::Login.refusal(self.dialect()).fatal(),
            LoginError::Decode(fault) if !self.looks_like_http() => {
                Refusal::protocol(format!("invalid start-up packet: {fault}")).fatal()
            }
            _ => {
                self.link.shutdown();
                return error;
            }
        };
        self.log_refusal(&error);
        self.record_refusal(&words);
        part(&self.worker, &mut self.link, words).await;
        error
    }

    fn dialect(&self) -> Dialect {
        self.worker.gateway.setup().config.listen.dialect
    }

    fn cause(&self, cause: Cause) -> LoginError {
        LoginError::Refused(cause.refusal(self.dialect()))
    }

    fn log_refusal(&self, error: &LoginError) {
        let setup = self.worker.gateway.setup();
        let (sqlstate, reason) = match error {
            LoginError::Refused(refusal) => (refusal.sqlstate, refusal.message.to_string()),
            LoginError::Timeout => (sqlstate::PROTOCOL_VIOLATION, Cause::Login.reason().to_owned()),
            _ => return,
        };
        if setup.config.listen.dialect == Dialect::Postgres {
            tracing::info!(peer = %self.peer, %sqlstate, %reason, "login refused");
            return;
        }
        let (user, database) = self.asked.clone().unwrap_or_else(|| ("(nouser)".into(), "(nodb)".into()));
        let who = format!("C-0: {database}/{user}@{}", self.peer);
        if setup.config.log.disconnections {
            tracing::info!("{who} closing because: {reason} (age=0s)");
        }
        if setup.config.log.refusals {
            tracing::warn!("{who} pooler error: {reason}");
        }
    }

    fn stranger(&self) -> Stranger {
        let (user, database) = self.asked.clone().unwrap_or_default();
        Stranger { client: self.peer.to_string(), user, database }
    }

    fn record_refusal(&self, words: &[u8]) {
        let Some(recorder) = &self.worker.recorder else { return };
        let fields = words.get(HEADER..).and_then(|body| ErrorFields::decode(body).ok());
        let field = |code| fields.as_ref().and_then(|fields| fields.get(code)).unwrap_or_default();
        recorder.refuse(&self.stranger(), field(b'C'), field(b'M'), self.worker.reactor.now());
    }

    fn witness_of_replication(&self) -> Option<Rc<Witness>> {
        let recorder = self.worker.recorder.as_ref()?;
        let id = self.worker.gateway.next_client_id();
        Some(Witness::new(recorder, self.stranger(), id, None, self.worker.reactor.now()))
    }

    /// A health check, or a browser gone astray: closed without a word.
    fn looks_like_http(&self) -> bool {
        [&b"GET "[..], b"HEAD", b"POST", b"PUT ", b"OPTI"].iter().any(|verb| self.bytes.starts_with(verb))
    }

    async fn log_in(&mut self) -> Result<Admitted, LoginError> {
        let Some(mut request) = self.first_packet().await? else { return Ok(Admitted::Served) };
        self.asked = Some((request.user.clone(), request.database.clone()));
        self.admit(&request)?;
        self.negotiate(&request);
        let setup = self.worker.gateway.setup();
        let gateway = self.worker.gateway.clone();
        if self.is_own_process(&request) {
            return Ok(Admitted::Console(request, true));
        }
        self.authenticate(&setup, &request).await?;
        if Admin::DATABASES.contains(&request.database.as_str()) {
            return self.admit_to_console(request);
        }
        let Some(shared) = gateway.pool(&request.database, &request.user) else {
            return Err(LoginError::Refused(self.no_database(&request.database)));
        };
        let pool = self.worker.pool(&shared);
        let seated = gateway.seat_client(
            &request.database,
            &request.user,
            &setup.config.client_limits(&request.database, &request.user),
        );
        self.quota = Some(seated.map_err(|full| self.cause(full.cause()))?);
        if pool.fleet().is_some() {
            request.route = route::asked_for(&mut request.params).map_err(LoginError::Refused)?;
        }
        if request.replication.is_some() {
            return Ok(Admitted::Replication(pool, request));
        }
        Ok(Admitted::Pool(pool, request))
    }

    /// Why a database cannot be had.
    fn no_database(&self, name: &str) -> Refusal {
        let disabled = self.worker.gateway.is_disabled(name);
        match (self.dialect(), disabled) {
            (Dialect::Pgbouncer, false) => Refusal::protocol(format!("no such database: {name}")),
            (Dialect::Pgbouncer, true) => Refusal::protocol(format!("database \"{name}\" is disabled")),
            (Dialect::Postgres, _) => {
                let fault = if disabled { "is disabled" } else { "does not exist" };
                Refusal::new(sqlstate::INVALID_CATALOG_NAME, format!("database \"{name}\" {fault}"))
            }
        }
    }

    /// PgBouncer lets the user it runs as into its console, without more, under the console's own name.
    fn is_own_process(&self, request: &Request) -> bool {
        let to_console = Admin::DATABASES.contains(&request.database.as_str());
        let own = self.uid == Some(rustix::process::geteuid().as_raw());
        to_console && own && Admin::DATABASES.contains(&request.user.as_str())
    }

    async fn authenticate(&mut self, setup: &Setup, request: &Request) -> Result<(), LoginError> {
        let method = match self.judge(setup, request)? {
            Verdict::Method(method) => method,
            Verdict::Peer(map) => return self.check_peer(setup, request, map.as_deref()).await,
            Verdict::Reject => return Err(self.cause(Cause::Rejected)),
        };
        let (known, secret) = self.secret(setup, request).await?;
        if method == AuthMethod::Trust && !known && !setup.config.auth.strangers {
            return Err(self.cause(Cause::Stranger));
        }
        let bytes = std::mem::take(&mut self.bytes);
        let gateway = self.worker.gateway.clone();
        let mut login = Login { gateway: &gateway, link: &mut self.link, user: &request.user, secret, bytes };
        login.authenticate(method).await?;
        self.bytes = std::mem::take(&mut login.bytes);
        Ok(())
    }

    /// How the client has to prove who it is.
    fn judge(&self, setup: &Setup, request: &Request) -> Result<Verdict, LoginError> {
        let Some(rules) = &setup.hba else { return Ok(Verdict::Method(setup.config.auth.method)) };
        let ip = match self.peer {
            Address::Tcp(address) => Some(address.ip()),
            Address::Unix => None,
        };
        let physical = request.replication.as_deref().is_some_and(|mode| !mode.eq_ignore_ascii_case(b"database"));
        let (database, user) = (request.database.as_str(), request.user.as_str());
        let caller = Caller { ip, tls: self.link.is_tls(), replication: physical, database, user };
        rules.judge(&caller).cloned().ok_or_else(|| self.cause(Cause::NoRule))
    }

    async fn check_peer(&self, setup: &Setup, request: &Request, map: Option<&str>) -> Result<(), LoginError> {
        let Some(uid) = self.uid else { return Err(self.cause(Cause::Peer)) };
        // The file of users is read on a thread that may wait.
        let resolver = &self.worker.gateway.connector.resolver;
        let name = resolver.offload(move || hba::name_of_uid(uid)).await.flatten();
        let may = |name: &String| setup.hba.as_ref().is_some_and(|rules| rules.may_come_as(map, name, &request.user));
        if name.as_ref().is_some_and(may) { Ok(()) } else { Err(self.cause(Cause::Peer)) }
    }

    /// Whether the user is known, and the secret: the configured one, or what the server says.
    async fn secret(&self, setup: &Setup, request: &Request) -> Result<(bool, Option<UserSecret>), LoginError> {
        let configured = setup.config.users.get(&request.user).map(|user| user.secret.clone());
        let has_secret = configured.as_ref().is_some_and(|secret| !secret.secret().is_empty());
        let lookup = setup.config.lookup(&request.database).filter(|lookup| lookup.user != request.user);
        let (false, Some(lookup)) = (has_secret, lookup) else { return Ok((configured.is_some(), configured)) };
        match lookup::look_up(&self.worker, &lookup, &request.database, &request.user).await? {
            lookup::Known::Nobody => Ok((configured.is_some(), configured)),
            lookup::Known::User(secret) => {
                let mut known = lock(&self.worker.gateway.connector.looked_up);
                match &secret {
                    Some(secret) => drop(known.insert(request.user.clone(), secret.clone())),
                    None => drop(known.remove(&request.user)),
                }
                Ok((true, secret))
            }
        }
    }

    /// Whether there is room for one more, as far as that is known before the login.
    fn admit(&self, request: &Request) -> Result<(), LoginError> {
        let gateway = &self.worker.gateway;
        let to_console = Admin::DATABASES.contains(&request.database.as_str());
        // Who was accepted before the listeners were closed is one of those that a slow stop waits for.
        let ends = matches!(gateway.phase(), Phase::WaitingForTransactions | Phase::Stopping);
        if ends && !to_console {
            return Err(LoginError::Refused(match self.dialect() {
                Dialect::Postgres => Refusal::new(sqlstate::CANNOT_CONNECT_NOW, "the gateway is shutting down"),
                dialect => Cause::ShuttingDown.refusal(dialect),
            }));
        }
        let max = gateway.setup().config.listen.max_clients as usize;
        if gateway.client_count() > max && !to_console {
            return Err(self.cause(Cause::Clients));
        }
        Ok(())
    }

    fn admit_to_console(&self, request: Request) -> Result<Admitted, LoginError> {
        let setup = self.worker.gateway.setup();
        let admin = &setup.config.admin;
        let may_change = admin.users.contains(&request.user);
        if may_change || admin.stats_users.contains(&request.user) {
            return Ok(Admitted::Console(request, may_change));
        }
        if self.dialect() == Dialect::Pgbouncer {
            return Err(LoginError::Refused(Refusal::protocol("not allowed")));
        }
        let message = format!("user \"{}\" is not an admin user", request.user);
        let refusal =
            Refusal::new(sqlstate::INSUFFICIENT_PRIVILEGE, message).hint("Name it in users or stats_users of [admin].");
        Err(LoginError::Refused(refusal))
    }

    /// Reads up to the start-up packet, through TLS if the client asks for it.
    async fn first_packet(&mut self) -> Result<Option<Request>, LoginError> {
        self.fill(1).await?;
        if self.bytes.first() == Some(&startup::TLS_RECORD) {
            self.direct_tls().await?;
        }
        loop {
            self.fill(4).await?;
            let Some(len) = startup::peek_len(&self.bytes)? else { return Err(LoginError::Gone) };
            self.fill(len).await?;
            let packet: Vec<u8> = self.bytes.drain(..len).collect();
            match decode_first(&packet)? {
                First::Ssl => self.answer_ssl().await?,
                First::Gss => {
                    self.nothing_early()?;
                    self.link.write(&b"N"[..]);
                    self.link.flush().await?;
                }
                First::Cancel { pid, key } => {
                    canceller::act(&self.worker, pid, key).await;
                    return Ok(None);
                }
                First::Startup(startup) => {
                    self.require_tls()?;
                    let setup = self.worker.gateway.setup();
                    let listen = &setup.config.listen;
                    let mut request = read_startup(&startup, &listen.ignore_startup_parameters)?;
                    if listen.application_name_add_host {
                        self.add_host(&mut request);
                    }
                    return Ok(Some(request));
                }
            }
        }
    }

    /// Appends where the client comes from to the name that it calls itself.
    fn add_host(&self, request: &mut Request) {
        let is_name = |(name, _): &(String, Vec<u8>)| name.eq_ignore_ascii_case("application_name");
        let given = request.params.iter().rev().find(|pair| is_name(pair)).map(|(_, value)| value.clone());
        let given = given.filter(|name| !name.is_empty()).unwrap_or_else(|| b"app".to_vec());
        let name = format!("{} - {}", String::from_utf8_lossy(&given), self.peer);
        request.params.retain(|pair| !is_name(pair));
        request.params.push(("application_name".to_owned(), name.into_bytes()));
    }

    /// Receives until there are `count` bytes.
    async fn fill(&mut self, count: usize) -> Result<(), LoginError> {
        while self.bytes.len() < count {
            let chunk = self.link.read().await?;
            if chunk.is_empty() {
                return Err(LoginError::Gone);
            }
            self.bytes.extend_from_slice(&chunk);
        }
        Ok(())
    }

    /// What arrives in clear text after a request for encryption may come from anybody (CVE-2021-23214).
    fn nothing_early(&self) -> Result<(), LoginError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(LoginError::Refused(
            Refusal::protocol("received unencrypted data after SSL request")
                .hint("This may be a faulty client, or somebody in the middle of the connection."),
        ))
    }

    async fn answer_ssl(&mut self) -> Result<(), LoginError> {
        self.nothing_early()?;
        let config = self.worker.gateway.setup().client_tls.clone();
        let Some(config) = config.filter(|_| !self.link.is_tls() && matches!(self.peer, Address::Tcp(_))) else {
            self.link.write(&b"N"[..]);
            return Ok(self.link.flush().await?);
        };
        self.link.write(&b"S"[..]);
        self.link.flush().await?;
        self.link.start_tls(&self.worker.reactor, TlsSide::Server(config), Chunk::empty())?;
        self.link.handshake().await?;
        Ok(())
    }

    async fn direct_tls(&mut self) -> Result<(), LoginError> {
        let Some(config) = self.worker.gateway.setup().client_tls.clone() else {
            return Err(LoginError::Gone);
        };
        let early = std::mem::take(&mut self.bytes);
        self.link.start_tls(&self.worker.reactor, TlsSide::Server(config), early.into())?;
        let info = self.link.handshake().await?;
        if info.alpn.as_deref() != Some(tls::ALPN) {
            // Without it a page in a browser could be made to speak to us.
            return Err(LoginError::Refused(Refusal::protocol(
                "received direct SSL connection request without ALPN protocol negotiation extension",
            )));
        }
        Ok(())
    }

    fn require_tls(&self) -> Result<(), LoginError> {
        let required = self.worker.gateway.setup().config.listen.tls == ClientTls::Require;
        if required && !self.link.is_tls() && matches!(self.peer, Address::Tcp(_)) {
            return Err(LoginError::Refused(
                Refusal::new(sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "this gateway requires TLS")
                    .hint("Connect with sslmode=require or stricter."),
            ));
        }
        Ok(())
    }

    /// Answers a version or an option that is not known with those that are.
    fn negotiate(&mut self, request: &Request) {
        if request.minor <= MINOR_MAX && request.unknown.is_empty() {
            return;
        }
        let unknown: Vec<&[u8]> = request.unknown.iter().map(Vec::as_slice).collect();
        let mut out = Vec::new();
        startup::negotiate_protocol_version(request.minor.min(MINOR_MAX), &unknown, &mut out);
        self.link.write(out);
    }

    fn enter(&self, key: PoolKey, request: &Request) -> Result<Entry, LoginError> {
        let secret: Box<[u8]> = if request.minor >= 2 { Box::from(random::<32>()?) } else { Box::from(random::<4>()?) };
        let (pid, secret) = match self.worker.gateway.peer_id() {
            0 => (None, secret),
            own => {
                let pid = peer_key::pid(own, u32::from_ne_bytes(random::<4>()?));
                (Some(pid), peer_key::with_hops(&secret, peer_key::HOPS_MAX))
            }
        };
        let tls = self.link.tls_info().map(|info| format!("{}/{}", info.version, info.cipher).into());
        let id = self.worker.gateway.next_client_id();
        let entry = self.worker.roster.enter(NewCard {
            id,
            key,
            user: request.user.as_str().into(),
            peer: self.peer,
            tls,
            pid,
            secret,
        });
        Ok(entry)
    }

    fn greet_console(&mut self, request: &Request, entry: &Entry) {
        let mut settings = ServerSettings::default();
        let version = concat!(env!("CARGO_PKG_VERSION"), "/tidegate");
        for (name, value) in [
            ("server_version", version),
            ("client_encoding", "UTF8"),
            ("server_encoding", "UTF8"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("standard_conforming_strings", "on"),
            ("integer_datetimes", "on"),
            ("is_superuser", "on"),
        ] {
            settings.report(name, value.as_bytes());
        }
        let wanted = wanted_settings(&settings, request);
        self.greet(&settings, &wanted, entry);
        *entry.card.settings.borrow_mut() = Some(self.worker.interned.intern(wanted));
        self.link.unread(std::mem::take(&mut self.bytes).into());
    }

    fn greet(&mut self, server: &ServerSettings, wanted: &Settings, entry: &Entry) {
        let mut out = Vec::with_capacity(512);
        backend::authentication_ok(&mut out);
        for (name, value) in server.reported.iter() {
            let own = if is_settable(name) { wanted.get(name) } else { None };
            if let Value::Text(text) = own.unwrap_or(value) {
                backend::parameter_status(name.as_bytes(), text, &mut out);
            }
        }
        backend::backend_key_data(entry.pid(self.worker.index), entry.card.secret(), &mut out);
        backend::ready_for_query(TxStatus::Idle, &mut out);
        self.link.write(out);
    }

    async fn begin_session(mut self, pool: Rc<WorkerPool>, request: &Request) -> Result<Session, (Self, LoginError)> {
        let welcome = match self.welcome(&pool, request.route).await {
            Ok(welcome) => welcome,
            Err(error) => return Err((self, error)),
        };
        let entry = match self.enter(pool.shared.key.clone(), request) {
            Ok(entry) => entry,
            Err(error) => return Err((self, error)),
        };
        let wanted = wanted_settings(&welcome, request);
        self.greet(&welcome, &wanted, &entry);
        pool.stats.client_login_count.add(1);
        let setup = self.worker.gateway.setup();
        if setup.config.log.connections && setup.config.listen.dialect == Dialect::Pgbouncer {
            let (id, tls) = (entry.card.id, entry.card.tls.as_deref().unwrap_or("no"));
            let (database, user) = (&request.database, &request.user);
            let replication = if request.replication.is_some() { "yes" } else { "no" };
            tracing::info!(
                "C-{id}: {database}/{user}@{} login attempt: db={database} user={user} tls={tls} replication={replication}",
                self.peer
            );
        } else if setup.config.log.connections {
            tracing::info!(client = entry.card.id, peer = %self.peer, database = %request.database,
                user = %request.user, tls = entry.card.tls.as_deref().unwrap_or("none"), "client connected");
        }
        if !self.bytes.is_empty() {
            self.link.unread(std::mem::take(&mut self.bytes).into());
        }
        let settings = self.worker.interned.intern(wanted);
        *entry.card.settings.borrow_mut() = Some(settings.clone());
        let front = Frontend::new(self.link, entry.card.id, settings);
        Ok(Session::new(self.worker, front, pool, request.route, entry, self.quota))
    }

    /// What a server of the pool says of itself. The first client of a pool waits for a server to be connected.
    async fn welcome(
        &mut self,
        pool: &Rc<WorkerPool>,
        asked: Option<Route>,
    ) -> Result<Arc<ServerSettings>, LoginError> {
        if let Some(welcome) = pool.shared.welcome() {
            return Ok(match pool.fleet() {
                None => welcome,
                Some(_) => as_routed(&welcome, asked.unwrap_or(pool.plan().route.route)),
            });
        }
        let limit = pool.plan().timeouts.checkout;
        let route = asked.unwrap_or(pool.plan().route.route);
        let found = async {
            match pool.fleet() {
                None => {
                    let checkout = pool.local.checkout(self.worker.reactor.now());
                    checkout.await.map(|lease| (None, lease)).map_err(route::Unserved::Checkout)
                }
                Some(_) => find_server(&self.worker, pool, route, None).await,
            }
        };
        match within(&self.worker.reactor, limit, found).await {
            Some(Ok((_, lease))) => {
                lease.release(tidegate_pool::Fate::Reuse, self.worker.reactor.now());
                pool.shared.welcome().ok_or(LoginError::Gone)
            }
            Some(Err(unserved)) => Err(LoginError::Server(unserved.words())),
            None => Err(LoginError::Refused(super::session::checkout_timeout(limit, self.dialect()))),
        }
    }
}

/// What a server on that route would have said where it differs from others: drivers look at it to tell a primary from a
/// replica.
fn as_routed(welcome: &Arc<ServerSettings>, route: Route) -> Arc<ServerSettings> {
    const NAME: &str = "in_hot_standby";
    let value: &[u8] = match route {
        Route::Primary => b"off",
        Route::Replica => b"on",
        Route::PreferReplica | Route::Any => return welcome.clone(),
    };
    match welcome.reported.text(NAME) {
        Some(known) if known != value => {
            let mut welcome = ServerSettings::clone(welcome);
            welcome.report(NAME, value);
            Arc::new(welcome)
        }
        // It says so already, or is of before Postgres 14.
        _ => welcome.clone(),
    }
}

/// A start-up packet, with the words of Postgres for a protocol that is not spoken. A cancel request is never answered,
/// not even a broken one.
fn decode_first(packet: &[u8]) -> Result<First<'_>, LoginError> {
    const CANCEL_CODE: [u8; 4] = 80_877_102_u32.to_be_bytes();
    First::decode(packet).map_err(|error| match error.reason {
        _ if packet.get(4..8) == Some(&CANCEL_CODE) => LoginError::Gone,
        Reason::Version { major, minor } => LoginError::Refused(Refusal::new(
            sqlstate::FEATURE_NOT_SUPPORTED,
            format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.{MINOR_MAX}"),
        )),
        _ => LoginError::Decode(error),
    })
}

/// The newest protocol that clients may speak.
const MINOR_MAX: u16 = 2;

/// Reads the packet, without the parameters that are to be ignored; `options` among them stands for all in `options`.
fn read_startup(startup: &Startup<'_>, ignored: &[String]) -> Result<Request, LoginError> {
    let is_ignored = |name: &str| ignored.iter().any(|known| known.eq_ignore_ascii_case(name));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(user) = startup.get("user").filter(|user| !user.is_empty()).map(text) else {
        let message = "no PostgreSQL user name specified in startup packet";
        return Err(LoginError::Refused(Refusal::new(sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, message)));
    };
    let database = startup.get("database").filter(|name| !name.is_empty()).map_or_else(|| user.clone(), text);
    let mut request = Request {
        minor: startup.minor,
        user,
        database,
        params: Vec::new(),
        replication: None,
        route: None,
        unknown: startup.extensions().map(<[u8]>::to_vec).collect(),
    };
    for (name, value) in startup.params() {
        match name {
            b"user" | b"database" => {}
            b"replication" => request.replication = wants_replication(value).then(|| value.to_vec()),
            b"options" if is_ignored("options") => {}
            b"options" => {
                let options = startup::parse_options(value)
                    .map_err(|error| LoginError::Refused(Refusal::protocol(format!("invalid options: {error}"))))?;
                request.params.extend(options.into_iter().map(|(name, value)| (name, value.into_bytes())));
            }
            name if name.starts_with(b"_pq_.") => {}
            name => request.params.push((text(name), value.to_vec())),
        }
    }
    request.params.retain(|(name, _)| !is_ignored(name));
    Ok(request)
}

fn wants_replication(value: &[u8]) -> bool {
    !["false", "off", "no", "0", ""].iter().any(|no| value.eq_ignore_ascii_case(no.as_bytes()))
}

/// The settings of a client that asks for `request` of a server like this.
fn wanted_settings(server: &ServerSettings, request: &Request) -> Settings {
    let mut wanted = server.defaults();
    for (name, value) in &request.params {
        let value = if name.eq_ignore_ascii_case("client_encoding") {
            canonical_encoding(value)
        } else {
            value.as_slice().into()
        };
        wanted.set(name, Value::text(&value));
    }
    wanted
}
