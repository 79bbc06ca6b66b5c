//! Opens a connection to Postgres: name resolution, socket, TLS, login.

use tidegate_wire::backend::ErrorReply;

use crate::os_error::OsErrorText;
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

use crate::{Connection, ServerIdentity, login, resolve::Resolver, secrets::Secrets, tcp};

/// Reason why no connection could be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host name is unknown.
    #[error("the host name \"{0}\" could not be resolved: {1}")]
    Resolve(String, String),
    /// The server could not be reached.
    #[error("could not connect to {0}: {error}", error = OsErrorText(.1))]
    Socket(String, #[source] io::Error),
    /// The connection broke during login.
    #[error("{0} closed the connection during login: {1}")]
    Broken(String, #[source] io::Error),
    /// TLS failed.
    #[error("TLS with {0} failed: {1}")]
    Tls(String, String),
    /// The server rejected the login with this ErrorResponse.
    #[error("the server refused the login: {}", message_of(.0))]
    Refused(Box<[u8]>),
    /// The server requires a secret or a method that the configuration lacks.
    #[error("{0}")]
    Secret(&'static str),
    /// The server violates the protocol.
    #[error("{0} sent an invalid message during login: {1}")]
    Protocol(String, String),
    /// Connecting took too long.
    #[error("connecting to the server took longer than {0:?}")]
    Timeout(Duration),
    /// The database's `connect_query` failed.
    #[error("connect_query failed: {0}")]
    Query(String),
    /// The pool is closed.
    #[error("{0}")]
    Closed(&'static str),
    /// The pool is closed because its database was removed, with the error for clients.
    #[error("{}", .0.message)]
    Removed(ErrorReply),
}

fn message_of(body: &[u8]) -> String {
    let fields = ErrorFields::decode(body).ok();
    fields.and_then(|fields| fields.message().map(|text| text.into_owned())).unwrap_or_else(|| "no reason given".into())
}

impl ConnectError {
    /// Whether the server is unavailable, so that another server may work; false for a wrong login.
    #[must_use]
    pub fn is_server_fault(&self) -> bool {
        match self {
            Self::Refused(_) => is_starting(self),
            Self::Secret(_) | Self::Closed(_) | Self::Removed(_) | Self::Query(_) => false,
            _ => !self.is_local_fault(),
        }
    }

    /// Whether a resource of this machine is exhausted (file descriptors, ports, memory), independent of the server.
    #[must_use]
    pub fn is_local_fault(&self) -> bool {
        let Self::Socket(_, error) = self else { return false };
        let known = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM];
        known.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
    }

    /// Whether the server cannot have another connection (SQLSTATE 53300 and the like), while another server may.
    #[must_use]
    pub fn is_out_of_resources(&self) -> bool {
        match self {
            // Class 53: insufficient resources.
            Self::Refused(body) => ErrorFields::decode(body)
                .is_ok_and(|fields| fields.get(b'C').is_some_and(|code| code.starts_with(b"53"))),
            _ => self.is_local_fault(),
        }
    }

    /// Whether a server has rejected the login: the user, the secret or the database.
    #[must_use]
    pub fn is_login_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Secret(_)) && !self.is_transient() && !self.is_out_of_resources()
    }

    /// Whether the certificate of the server is not trusted.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        matches!(self, Self::Tls(_, reason) if reason.starts_with("invalid peer certificate"))
    }

    /// Whether the error may disappear without a change of the configuration, as while Postgres restarts.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Resolve(..) | Self::Socket(..) | Self::Broken(..) | Self::Timeout(_) => true,
            Self::Refused(_) => is_starting(self),
            _ => false,
        }
    }

    /// The reason in the wording of PgBouncer's log, after `closing because: `.
    #[must_use]
    pub fn log_reason(&self) -> String {
        match self {
            Self::Resolve(..) => "server DNS lookup failed".to_owned(),
            Self::Socket(..) => "connect failed".to_owned(),
            Self::Timeout(_) => "connect timeout".to_owned(),
            Self::Broken(..) => "server conn crashed?".to_owned(),
            Self::Refused(body) => message_of(body),
            Self::Tls(_, reason) if self.is_untrusted() => {
                format!("TLS handshake error: certificate verify failed ({reason})")
            }
            other => other.to_string(),
        }
    }

    /// Severity and message of the server, if it has refused the login.
    #[must_use]
    pub fn server_error(&self) -> Option<(String, String)> {
        let Self::Refused(body) = self else { return None };
        let fields = ErrorFields::decode(body).ok()?;
        let severity = fields.get(b'V').or_else(|| fields.get(b'S')).unwrap_or(b"FATAL");
        Some((String::from_utf8_lossy(severity).into_owned(), message_of(body)))
    }

    /// The ErrorResponse for clients that wait for the connection: the server's own error if there is one.
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

/// Address of a server connection, for cancel requests and the console.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// The configured host.
    pub host: Host,
    /// The socket address.
    pub address: SockAddr,
    /// How TLS was negotiated, if it was.
    pub tls: Option<TlsPlan>,
}

/// How to negotiate TLS with a server.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// The rustls configuration.
    pub config: Arc<ClientConfig>,
    /// The name that the server must prove.
    pub name: ServerName<'static>,
    /// Direct negotiation, without SSLRequest.
    pub direct: bool,
}

/// Numbers of connections, unique among all holders of a copy. As in PgBouncer, clients and servers share a sequence, so that an
/// id in a log or a table names one connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectionIds(Arc<AtomicU64>);

impl ConnectionIds {
    /// Returns the next number, from 1.
    pub fn assign(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Shared state for opening connections; one per process.
pub struct Connector {
    /// Resolves host names.
    pub resolver: Resolver,
    /// Secrets obtained when clients logged in.
    pub secrets: Secrets,
    ids: ConnectionIds,
    /// Hosts with `sslmode=prefer` whose TLS failed, with the reason: each pair is logged once.
    clear_text: Mutex<HashSet<(Host, String)>>,
}

/// Limit of remembered hosts and reasons.
const CLEAR_TEXT_MAX: usize = 1024;

impl Connector {
    /// Creates a connector without secrets.
    #[must_use]
    pub fn new(resolver: Resolver) -> Self {
        Self { resolver, secrets: Secrets::default(), ids: ConnectionIds::default(), clear_text: Mutex::default() }
    }

    /// The ids of this connector's connections.
    #[must_use]
    pub fn ids(&self) -> &ConnectionIds {
        &self.ids
    }

    /// Returns a unique id for a connection.
    pub fn next_id(&self) -> u64 {
        self.ids.assign()
    }

    /// Connects to the first host of the pool that accepts the login.
    ///
    /// # Errors
    /// The error of the last host.
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
        let plan = match self.secrets.login_secret(plan) {
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
                let target = ConnectTarget { host, address, plan, tls, extra };
                match self.connect_to(reactor, &target).await {
                    Ok(server) => return Ok(server),
                    // A rejected login would be rejected by every server.
                    Err(error @ (ConnectError::Refused(_) | ConnectError::Secret(_))) if !is_starting(&error) => {
                        return Err(error);
                    }
                    Err(error) => last = Some(error),
                }
            }
        }
        Err(last.unwrap_or(ConnectError::Secret("the database has no host")))
    }

    /// Resolves the addresses of a host.
    ///
    /// # Errors
    /// If the name cannot be resolved, or the path of a socket is invalid.
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

    async fn connect_to(&self, reactor: &Reactor, target: &ConnectTarget<'_>) -> Result<Connection, ConnectError> {
        let mode = if matches!(target.host, Host::Unix { .. }) { SslMode::Disable } else { target.plan.tls.mode };
        let first_with_tls = !matches!(mode, SslMode::Disable | SslMode::Allow);
        let mut used_tls = false;
        match self.attempt(reactor, target, first_with_tls, &mut used_tls).await {
            // libpq's "prefer" and "allow": retry with the other choice of TLS.
            Err(ConnectError::Tls(_, reason)) if mode == SslMode::Prefer => {
                self.warn_about_clear_text(target, &reason);
                self.attempt(reactor, target, false, &mut used_tls).await
            }
            // A server that has declined TLS has refused the login in clear text already.
            Err(ConnectError::Refused(_)) if mode == SslMode::Prefer && used_tls => {
                self.attempt(reactor, target, false, &mut used_tls).await
            }
            Err(ConnectError::Refused(_)) if mode == SslMode::Allow => {
                self.attempt(reactor, target, true, &mut used_tls).await
            }
            outcome => outcome,
        }
    }

    /// Logs once per host and reason that the connection is in clear text although the server supports TLS.
    fn warn_about_clear_text(&self, target: &ConnectTarget<'_>, reason: &str) {
        let mut logged = self.clear_text.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= CLEAR_TEXT_MAX {
            logged.clear();
        }
        if logged.insert((target.host.clone(), reason.to_owned())) {
            let (server, database) = (target.label(), &target.plan.entry);
            tracing::warn!(server, database, reason, "TLS failed: connecting in clear text, as sslmode is prefer");
        }
    }

    /// Connects once. Sets `used_tls` if the login is sent over TLS, also if it fails.
    async fn attempt(
        &self,
        reactor: &Reactor,
        target: &ConnectTarget<'_>,
        with_tls: bool,
        used_tls: &mut bool,
    ) -> Result<Connection, ConnectError> {
        let label = target.label();
        let socket_error = |error| ConnectError::Socket(label.clone(), error);
        let is_tcp = target.address.is_ipv4() || target.address.is_ipv6();
        let prepare = |socket: &socket2::Socket| {
            if is_tcp {
                tcp::configure(socket, &target.plan.tcp)?;
                tcp::set_buffers(socket, &target.plan.tcp)?;
            }
            Ok(())
        };
        let fd = reactor.connect_with(target.address.clone(), prepare).await.map_err(socket_error)?;
        let local = SockRef::from(&fd).local_addr().ok().and_then(|address| address.as_socket());
        let mut link = Link::new(reactor, fd).map_err(socket_error)?;
        let tls = if with_tls { target.negotiate_tls(reactor, &mut link).await? } else { None };
        *used_tls = tls.is_some();
        let login = login::login(self, &mut link, target).await?;
        let identity = ServerIdentity {
            id: self.next_id(),
            address: ServerAddress { host: target.host.clone(), address: target.address.clone(), tls },
            local,
            pid: login.pid,
            cancel_key: login.cancel_key,
            connected_at: SystemTime::now(),
            tls: link.tls_info().map(|info| tls::version_and_cipher(&info)),
            prepared: AtomicU32::new(0),
        };
        if let Some(rest) = login.rest {
            link.unread(rest);
        }
        Ok(Connection { link, parameters: login.parameters, identity })
    }
}

/// Whether the server does not accept connections yet or any more; another server may.
fn is_starting(error: &ConnectError) -> bool {
    let ConnectError::Refused(body) = error else { return false };
    ErrorFields::decode(body).ok().and_then(|fields| fields.code()) == Some(sqlstate::CANNOT_CONNECT_NOW)
}

/// An address to connect to.
pub(super) struct ConnectTarget<'a> {
    pub(super) host: &'a Host,
    address: SockAddr,
    pub(super) plan: &'a PoolPlan,
    tls: Option<&'a Arc<ClientConfig>>,
    pub(super) extra: &'a [(&'a [u8], &'a [u8])],
}

impl ConnectTarget<'_> {
    /// Host for errors; with the address, if the host is a name.
    pub(super) fn label(&self) -> String {
        match (self.host, self.address.as_socket()) {
            (Host::Tcp { name, .. }, Some(address)) if name.parse::<IpAddr>().is_err() => {
                format!("{} ({})", self.host, address.ip())
            }
            _ => self.host.to_string(),
        }
    }

    /// Negotiates TLS. `None` if the server does not support it and `sslmode` allows clear text.
    async fn negotiate_tls(&self, reactor: &Reactor, link: &mut Link) -> Result<Option<TlsPlan>, ConnectError> {
        let label = self.label();
        let Some(config) = self.tls else { return self.without_tls(label) };
        let Host::Tcp { name, .. } = self.host else { return Ok(None) };
        let name = ServerName::try_from(name.clone()).map_err(|_| {
            ConnectError::Tls(label.clone(), format!("\"{name}\" is not a valid name for a certificate"))
        })?;
        let direct = self.plan.tls.negotiation == SslNegotiation::Direct;
        let plan = TlsPlan { config: config.clone(), name, direct };
        match negotiate_tls(reactor, link, &plan).await {
            Ok(true) => Ok(Some(plan)),
            Ok(false) if self.allows_clear_text() => Ok(None),
            Ok(false) => Err(ConnectError::Tls(label, "the server does not support it".into())),
            Err(error) => Err(ConnectError::Tls(label, error.to_string())),
        }
    }

    /// There is no TLS configuration, because the database was removed from the configuration a moment ago.
    fn without_tls(&self, label: String) -> Result<Option<TlsPlan>, ConnectError> {
        match self.allows_clear_text() {
            true => Ok(None),
            false => Err(ConnectError::Tls(label, "the database was removed from the configuration".into())),
        }
    }

    fn allows_clear_text(&self) -> bool {
        matches!(self.plan.tls.mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer)
    }
}

/// Negotiates TLS on a new connection to Postgres. Returns false if the server does not support it.
///
/// # Errors
/// Errors of the socket and of TLS.
pub async fn negotiate_tls(reactor: &Reactor, link: &mut Link, plan: &TlsPlan) -> io::Result<bool> {
    if !plan.direct {
        let mut request = Vec::new();
        startup::ssl_request(&mut request);
        link.write(request);
        link.flush().await?;
        let answer = link.read().await?;
        match &answer[..] {
            b"S" => {}
            b"N" => return Ok(false),
            // Reject additional bytes before TLS: they are not authenticated (CVE-2021-23222).
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected reply to SSLRequest")),
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
    fn local_faults_are_no_server_faults() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL] {
            let error = socket(errno);
            assert!(error.is_local_fault() && error.is_out_of_resources() && !error.is_server_fault(), "{error}");
        }
        for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT] {
            let error = socket(errno);
            assert!(!error.is_local_fault() && !error.is_out_of_resources() && error.is_server_fault(), "{error}");
        }
    }

    /// The database was removed from the configuration while the connection was opened.
    #[test]
    fn required_tls_without_a_configuration_is_an_error() {
        for (mode, is_plain) in [("disable", true), ("allow", true), ("prefer", true), ("require", false)] {
            let config = Config::from_url(&format!("postgres://db.example/shop?sslmode={mode}")).unwrap();
            let plan = config.pool_for("shop", "app").unwrap();
            let address = SocketAddr::from(([127, 0, 0, 1], 5432)).into();
            let target = ConnectTarget { host: &plan.hosts[0], address, plan: &plan, tls: None, extra: &[] };
            assert_eq!(target.without_tls("db.example".into()).is_ok(), is_plain, "{mode}");
        }
    }

    #[test]
    fn server_without_free_connections_is_available() {
        for (code, is_full, is_unavailable) in
            [("53300", true, false), ("53400", true, false), ("57P03", false, true), ("28P01", false, false)]
        {
            let error = refused(code);
            assert_eq!((error.is_out_of_resources(), error.is_server_fault()), (is_full, is_unavailable), "{code}");
        }
    }
}
