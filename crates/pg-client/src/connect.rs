//! Opens a connection to Postgres: name look-up, socket, TLS, login.

use tidegate_wire::backend::ErrorReply;

use crate::os_error::WithLimit;
use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rustix::io::Errno;
use rustls::{ClientConfig, pki_types::ServerName};
use socket2::{SockAddr, SockRef};
use tidegate_config::{Host, PoolPlan, SslMode, SslNegotiation};
use tidegate_link::{Chunk, Link, Reactor, TlsSide, unix_address};
use tidegate_tls as tls;
use tidegate_wire::{backend::ErrorFields, sqlstate, startup};

use crate::{Connection, Identity, login, resolve::Resolver, secrets::Secrets, tcp};

/// Why no connection could be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name is not known.
    #[error("the host name \"{0}\" could not be resolved: {1}")]
    Resolve(String, String),
    /// The server could not be reached.
    #[error("could not connect to {0}: {told}", told = WithLimit(.1))]
    Socket(String, #[source] io::Error),
    /// The connection broke during login.
    #[error("{0} closed the connection during login: {1}")]
    Broken(String, #[source] io::Error),
    /// TLS failed.
    #[error("TLS with {0} failed: {1}")]
    Tls(String, String),
    /// The server refused the login, with this ErrorResponse.
    #[error("the server refused the login: {}", message_of(.0))]
    Refused(Box<[u8]>),
    /// The server asks for what the configuration does not give.
    #[error("{0}")]
    Secret(&'static str),
    /// The server does not speak the protocol.
    #[error("{0} sent an invalid message during login: {1}")]
    Protocol(String, String),
    /// It took too long.
    #[error("connecting to the server took longer than {0:?}")]
    Timeout(Duration),
    /// The database's `connect_query` failed.
    #[error("connect_query failed: {0}")]
    Query(String),
    /// The pool is closed.
    #[error("{0}")]
    Closed(&'static str),
    /// The pool is closed, as its database is none any more; in the words for clients.
    #[error("{}", .0.message)]
    Removed(ErrorReply),
}

fn message_of(body: &[u8]) -> String {
    let fields = ErrorFields::decode(body).ok();
    fields.and_then(|fields| fields.message().map(|text| text.into_owned())).unwrap_or_else(|| "no reason given".into())
}

impl ConnectError {
    /// Whether it is the server that is not there, so that another one may do: not the login that is wrong.
    #[must_use]
    pub fn is_of_server(&self) -> bool {
        match self {
            Self::Refused(_) => is_starting(self),
            Self::Secret(_) | Self::Closed(_) | Self::Removed(_) | Self::Query(_) => false,
            _ => !self.is_of_gateway(),
        }
    }

    /// Whether what is missing is missing here, so that nothing is known of the server: file descriptors, ports, memory.
    #[must_use]
    pub fn is_of_gateway(&self) -> bool {
        let Self::Socket(_, error) = self else { return false };
        let known = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM];
        known.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
    }

    /// Whether the server has, or can be given, no connection more (53300 and its like), while another one may have some.
    #[must_use]
    pub fn is_lack_of_room(&self) -> bool {
        match self {
            // Class 53: insufficient resources.
            Self::Refused(body) => ErrorFields::decode(body)
                .is_ok_and(|fields| fields.get(b'C').is_some_and(|code| code.starts_with(b"53"))),
            _ => self.is_of_gateway(),
        }
    }

    /// Whether a server has looked at the login and refused it: who it is, or which database it wants.
    #[must_use]
    pub fn is_of_login(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Secret(_)) && !self.may_pass() && !self.is_lack_of_room()
    }

    /// Whether it may pass by itself, as when Postgres is started again: not a login or a certificate that is wrong.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Resolve(..) | Self::Socket(..) | Self::Broken(..) | Self::Timeout(_) => true,
            Self::Refused(_) => is_starting(self),
            _ => false,
        }
    }

    /// What PgBouncer's log would say of it, behind `closing because: `.
    #[must_use]
    pub fn log_words(&self) -> String {
        match self {
            Self::Resolve(..) => "server DNS lookup failed".to_owned(),
            Self::Socket(..) => "connect failed".to_owned(),
            Self::Timeout(_) => "connect timeout".to_owned(),
            Self::Broken(..) => "server conn crashed?".to_owned(),
            Self::Refused(body) => message_of(body),
            other => other.to_string(),
        }
    }

    /// What a client that waits for the connection is told: the server's own words where there are any.
    #[must_use]
    pub fn client_view(&self) -> Vec<u8> {
        match self {
            Self::Refused(body) => {
                let mut out = vec![tidegate_wire::backend::ERROR_RESPONSE];
                let len = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(body);
                out
            }
            Self::Secret(_) => ErrorReply::new(sqlstate::INVALID_PASSWORD, self.to_string()).fatal(),
            Self::Closed(_) => ErrorReply::new(sqlstate::ADMIN_SHUTDOWN, self.to_string()).fatal(),
            Self::Removed(refusal) => refusal.fatal(),
            _ => ErrorReply::new(sqlstate::CONNECTION_FAILURE, self.to_string()).fatal(),
        }
    }
}

/// Where a server was reached, for cancel requests and for the console.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// As it was configured.
    pub host: Host,
    /// The socket address.
    pub address: SockAddr,
    /// How TLS was begun, if it was.
    pub tls: Option<TlsPlan>,
}

/// How to begin TLS with a server.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// rustls' configuration.
    pub config: Arc<ClientConfig>,
    /// The name that the server must prove.
    pub name: ServerName<'static>,
    /// Without asking first.
    pub direct: bool,
}

/// What connecting needs beside the pool's settings; shared by all threads.
pub struct Connector {
    /// Names to addresses.
    pub resolver: Resolver,
    /// What came up when clients logged in.
    pub secrets: Secrets,
    ids: AtomicU64,
    /// Hosts with TLS that are spoken to without, and why: each is told once.
    clear_text: Mutex<HashSet<(Host, String)>>,
}

/// Hosts and reasons that are remembered.
const CLEAR_TEXT_MAX: usize = 1024;

impl Connector {
    /// Without any keys yet.
    #[must_use]
    pub fn new(resolver: Resolver) -> Self {
        Self { resolver, secrets: Secrets::default(), ids: AtomicU64::new(1), clear_text: Mutex::default() }
    }

    /// A number that tells connections apart.
    pub fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Connects to the first of the pool's hosts that lets us in.
    ///
    /// # Errors
    /// Why the last host did not.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(
        &self,
        reactor: &Reactor,
        plan: &PoolPlan,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Connection, ConnectError> {
        let extra: &[(&[u8], &[u8])] = &[];
        self.connect_as(reactor, plan, tls, extra).await
    }

    /// As [`Connector::connect`], with further startup parameters.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    pub async fn connect_as(
        &self,
        reactor: &Reactor,
        plan: &PoolPlan,
        tls: Option<&Arc<ClientConfig>>,
        extra: &[(&[u8], &[u8])],
    ) -> Result<Connection, ConnectError> {
        let with_secret;
        let plan = match self.secrets.found(plan) {
            None => plan,
            secret => {
                with_secret = PoolPlan { secret, ..plan.clone() };
                &with_secret
            }
        };
        let mut last = None;
        for host in &plan.hosts {
            let known = plan.address.map(|address| Ok(vec![address.into()]));
            let addresses = match known {
                Some(known) => known,
                None => self.addresses(host).await,
            };
            let addresses: Vec<SockAddr> = match addresses {
                Ok(addresses) => addresses,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            for address in addresses {
                let target = Target { host, address, plan, tls, extra };
                match self.connect_to(reactor, &target).await {
                    Ok(server) => return Ok(server),
                    // A server that has looked at the login and refused it speaks for all.
                    Err(error @ (ConnectError::Refused(_) | ConnectError::Secret(_))) if !is_starting(&error) => {
                        return Err(error);
                    }
                    Err(error) => last = Some(error),
                }
            }
        }
        Err(last.unwrap_or(ConnectError::Secret("the database has no host")))
    }

    /// The addresses of a host.
    ///
    /// # Errors
    /// When its name is not known, or its path is no path of a socket.
    pub async fn addresses(&self, host: &Host) -> Result<Vec<SockAddr>, ConnectError> {
        let (name, port) = match host {
            Host::Tcp { name, port } => (name, *port),
            Host::Unix { .. } => {
                let path = host.socket_path().unwrap_or_default();
                let address = unix_address(&path).map_err(|error| ConnectError::Socket(host.to_string(), error))?;
                return Ok(vec![address]);
            }
        };
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port).into()]);
        }
        let found = self.resolver.resolve(name, port).await;
        let found = found.map_err(|error| ConnectError::Resolve(name.clone(), error))?;
        Ok(found.into_iter().map(SockAddr::from).collect())
    }

    async fn connect_to(&self, reactor: &Reactor, target: &Target<'_>) -> Result<Connection, ConnectError> {
        let mode = if matches!(target.host, Host::Unix { .. }) { SslMode::Disable } else { target.plan.tls.mode };
        let first_with_tls = !matches!(mode, SslMode::Disable | SslMode::Allow);
        match self.attempt(reactor, target, first_with_tls).await {
            // libpq's "prefer" and "allow": the other way round if the first is refused.
            Err(error @ (ConnectError::Refused(_) | ConnectError::Tls(..))) if mode == SslMode::Prefer => {
                if let ConnectError::Tls(_, reason) = &error {
                    self.warn_of_clear_text(target, reason);
                }
                self.attempt(reactor, target, false).await
            }
            Err(ConnectError::Refused(_)) if mode == SslMode::Allow => self.attempt(reactor, target, true).await,
            outcome => outcome,
        }
    }

    /// Says, once per host and reason, that a server with TLS is spoken to without.
    fn warn_of_clear_text(&self, target: &Target<'_>, reason: &str) {
        let mut told = self.clear_text.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= CLEAR_TEXT_MAX {
            told.clear();
        }
        if told.insert((target.host.clone(), reason.to_owned())) {
            let (server, database) = (target.label(), &target.plan.entry);
            tracing::warn!(server, database, reason, "TLS failed: connecting in clear text, as sslmode is prefer");
        }
    }

    async fn attempt(
        &self,
        reactor: &Reactor,
        target: &Target<'_>,
        with_tls: bool,
    ) -> Result<Connection, ConnectError> {
        let label = target.label();
        let socket_error = |error| ConnectError::Socket(label.clone(), error);
        let fd = reactor.connect(target.address.clone()).await.map_err(socket_error)?;
        if target.address.is_ipv4() || target.address.is_ipv6() {
            tcp::tune(&fd, &target.plan.tcp).map_err(socket_error)?;
        }
        let local = SockRef::from(&fd).local_addr().ok().and_then(|address| address.as_socket());
        let mut link = Link::new(reactor, fd).map_err(socket_error)?;
        let tls = if with_tls { target.begin_tls(reactor, &mut link).await? } else { None };
        let login = login::login(self, &mut link, target).await?;
        let identity = Identity {
            id: self.next_id(),
            address: ServerAddress { host: target.host.clone(), address: target.address.clone(), tls },
            local,
            pid: login.pid,
            cancel_key: login.cancel_key,
            connected_at: SystemTime::now(),
            tls: link.tls_info().map(|info| tls::told(&info)),
            prepared: AtomicU32::new(0),
        };
        if let Some(rest) = login.rest {
            link.unread(rest);
        }
        Ok(Connection { link, parameters: login.parameters, identity })
    }
}

/// The server is up but not ready to let anybody in: another one may be.
fn is_starting(error: &ConnectError) -> bool {
    let ConnectError::Refused(body) = error else { return false };
    ErrorFields::decode(body).ok().and_then(|fields| fields.code()) == Some(sqlstate::CANNOT_CONNECT_NOW)
}

/// One address to be tried.
pub(super) struct Target<'a> {
    pub(super) host: &'a Host,
    address: SockAddr,
    pub(super) plan: &'a PoolPlan,
    tls: Option<&'a Arc<ClientConfig>>,
    pub(super) extra: &'a [(&'a [u8], &'a [u8])],
}

impl Target<'_> {
    /// For people: a name may have several addresses.
    pub(super) fn label(&self) -> String {
        match (self.host, self.address.as_socket()) {
            (Host::Tcp { name, .. }, Some(address)) if name.parse::<IpAddr>().is_err() => {
                format!("{} ({})", self.host, address.ip())
            }
            _ => self.host.to_string(),
        }
    }

    /// Begins TLS; `None` if the server has none and the mode lets that pass.
    async fn begin_tls(&self, reactor: &Reactor, link: &mut Link) -> Result<Option<TlsPlan>, ConnectError> {
        let label = self.label();
        let Some(config) = self.tls else { return self.without_tls(label) };
        let Host::Tcp { name, .. } = self.host else { return Ok(None) };
        let name = ServerName::try_from(name.clone())
            .map_err(|_| ConnectError::Tls(label.clone(), format!("\"{name}\" is no name for a certificate")))?;
        let direct = self.plan.tls.negotiation == SslNegotiation::Direct;
        let plan = TlsPlan { config: config.clone(), name, direct };
        match begin_tls(reactor, link, &plan).await {
            Ok(true) => Ok(Some(plan)),
            Ok(false) if self.may_be_plain() => Ok(None),
            Ok(false) => Err(ConnectError::Tls(label, "the server does not support it".into())),
            Err(error) => Err(ConnectError::Tls(label, error.to_string())),
        }
    }

    /// There is nothing to begin TLS with: its database was taken out of the configuration a moment ago.
    fn without_tls(&self, label: String) -> Result<Option<TlsPlan>, ConnectError> {
        match self.may_be_plain() {
            true => Ok(None),
            false => Err(ConnectError::Tls(label, "the database was taken out of the configuration".into())),
        }
    }

    fn may_be_plain(&self) -> bool {
        matches!(self.plan.tls.mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer)
    }
}

/// Begins TLS on a fresh connection to Postgres. False if the server has none.
///
/// # Errors
/// Those of the socket and of TLS.
pub async fn begin_tls(reactor: &Reactor, link: &mut Link, plan: &TlsPlan) -> io::Result<bool> {
    if !plan.direct {
        let mut request = Vec::new();
        startup::ssl_request(&mut request);
        link.write(request);
        link.flush().await?;
        let answer = link.read().await?;
        match &answer[..] {
            b"S" => {}
            b"N" => return Ok(false),
            // More than one byte before TLS begins was not sent by the server that we will have verified.
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected answer to the request for TLS")),
        }
    }
    link.start_tls(reactor, TlsSide::Client(plan.config.clone(), plan.name.clone()), Chunk::empty())?;
    link.handshake().await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Config;

    fn socket(errno: Errno) -> ConnectError {
        ConnectError::Socket("db:5432".to_owned(), errno.into())
    }

    fn refused(code: &str) -> ConnectError {
        ConnectError::Refused(format!("SFATAL\0VFATAL\0C{code}\0Mno\0\0").into_bytes().into())
    }

    #[test]
    fn what_is_missing_here_says_nothing_of_the_server() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL] {
            let error = socket(errno);
            assert!(error.is_of_gateway() && error.is_lack_of_room() && !error.is_of_server(), "{error}");
        }
        for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT] {
            let error = socket(errno);
            assert!(!error.is_of_gateway() && !error.is_lack_of_room() && error.is_of_server(), "{error}");
        }
    }

    /// Its database was taken out of the configuration while it was being connected.
    #[test]
    fn a_login_that_wants_tls_does_not_go_out_in_the_clear_when_there_is_nothing_to_begin_it_with() {
        for (mode, is_plain) in [("disable", true), ("allow", true), ("prefer", true), ("require", false)] {
            let config = Config::from_url(&format!("postgres://db.example/shop?sslmode={mode}")).unwrap();
            let plan = config.pool_for("shop", "app").unwrap();
            let address = SocketAddr::from(([127, 0, 0, 1], 5432)).into();
            let target = Target { host: &plan.hosts[0], address, plan: &plan, tls: None, extra: &[] };
            assert_eq!(target.without_tls("db.example".into()).is_ok(), is_plain, "{mode}");
        }
    }

    #[test]
    fn a_server_without_room_is_there() {
        for (code, is_full, is_away) in
            [("53300", true, false), ("53400", true, false), ("57P03", false, true), ("28P01", false, false)]
        {
            let error = refused(code);
            assert_eq!((error.is_lack_of_room(), error.is_of_server()), (is_full, is_away), "{code}");
        }
    }
}
