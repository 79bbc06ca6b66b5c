//! Connects to Postgres, or to the gateway itself.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use tidegate_config::{
    ChannelBindingMode, Host, PgUrl, ServerTls, SessionAttrs, StreamConfig,
    stream::{GatewayTarget, StreamSink},
};
use tidegate_tls::{self as tls, ServerSocket, ServerSocketError};

use crate::{
    error::{StreamError, error_chain},
    gateway_access::{GatewayAccess, GatewayConnector},
};

/// How to log in.
pub(super) struct PostgresLogin {
    config: tokio_postgres::Config,
    route: LoginRoute,
    /// Limit per address.
    limit: Duration,
    server: SessionAttrs,
}

/// Limit for all hosts together, unless the URL has a `connect_timeout` per host; and the minimum per host.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
const HOST_LIMIT_MIN: Duration = Duration::from_secs(3);

enum LoginRoute {
    InProcess(GatewayConnector),
    Hosts { hosts: Vec<Host>, tls: Option<Arc<ClientConfig>>, settings: ServerTls },
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SinkConnectError {
    /// The server may accept the same login later.
    Away(String),
    /// The login is refused until the configuration of one side changes.
    Refused(String),
}

impl SinkConnectError {
    fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Away(text) => Self::Away(change(text)),
            Self::Refused(text) => Self::Refused(change(text)),
        }
    }

    /// The errors of several addresses: a later attempt is of use if one of them may accept it.
    fn joined(errors: Vec<Self>) -> Self {
        let is_away = errors.iter().any(|error| matches!(error, Self::Away(_)));
        let texts: Vec<_> = errors.into_iter().map(|error| error.to_string()).collect();
        if is_away { Self::Away(texts.join("; ")) } else { Self::Refused(texts.join("; ")) }
    }

    fn of_login(error: &tokio_postgres::Error) -> Self {
        let text = error_chain(error);
        let is_refused = match error.as_db_error() {
            Some(reported) => is_refusal(reported.code().code()),
            // The socket has ended, or the login needs what the configuration does not have, such as a password.
            None => !error.is_closed() && !is_io(error),
        };
        if is_refused { Self::Refused(text) } else { Self::Away(text) }
    }
}

impl std::fmt::Display for SinkConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Away(text) | Self::Refused(text)) = self;
        f.write_str(text)
    }
}

impl From<SinkConnectError> for StreamError {
    fn from(error: SinkConnectError) -> Self {
        let text = format!("cannot connect: {error}");
        if matches!(error, SinkConnectError::Away(_)) { Self::SinkAway(text) } else { Self::Sink(text) }
    }
}

/// Whether a server refuses a login until either side is changed: authorisation (28), no such database (3D), and errors of
/// the startup parameters.
fn is_refusal(code: &str) -> bool {
    ["28", "3D", "0A", "22", "42"].iter().any(|class| code.starts_with(class))
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<io::Error>())
}

/// A connection, and the task that drives it.
pub(in crate::sink) struct Connected {
    pub(super) client: Client,
    task: JoinHandle<()>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PostgresLogin {
    pub(super) fn new(stream: &StreamConfig, access: &GatewayAccess) -> Result<Self, StreamError> {
        match &stream.keys.to {
            StreamSink::Postgres(url) => Self::to_server(url, stream),
            StreamSink::Gateway(target) => Self::to_gateway(target, stream, access),
            _ => unreachable!("the caller checked the sink"),
        }
    }

    fn to_server(url: &PgUrl, stream: &StreamConfig) -> Result<Self, StreamError> {
        let user = if url.user.is_empty() { "postgres" } else { &url.user };
        let mut config = config(stream, user, if url.dbname.is_empty() { user } else { &url.dbname });
        if !url.password.is_empty() {
            config.password(url.password.reveal());
        }
        for (name, value) in &url.parameters {
            if name == "options" {
                config.options(value);
            } else if name == "application_name" {
                config.application_name(value);
            }
        }
        if stream.tls.binding == ChannelBindingMode::Require {
            // The driver is not given the certificate, so the login fails instead of continuing without channel binding.
            config.channel_binding(tokio_postgres::config::ChannelBinding::Require);
        }
        let tls = tls::for_servers(&stream.tls).map_err(|error| StreamError::Sink(error.to_string()))?;
        let host_limit =
            (CONNECT_LIMIT / u32::try_from(url.hosts.len().max(1)).unwrap_or(u32::MAX)).max(HOST_LIMIT_MIN);
        let configured = url.connect_timeout.filter(|seconds| *seconds > 0);
        let limit = configured.map_or(host_limit, |seconds| Duration::from_secs(seconds.into()));
        let route = LoginRoute::Hosts { hosts: url.hosts.clone(), tls, settings: stream.tls.clone() };
        Ok(Self { config, route, limit, server: stream.server })
    }

    fn to_gateway(target: &GatewayTarget, stream: &StreamConfig, access: &GatewayAccess) -> Result<Self, StreamError> {
        let Some(connector) = access.connector.clone() else {
            let text = "there is no gateway: use a postgres:// URL, or a configuration with -c".to_owned();
            return Err(StreamError::Sink(text));
        };
        let mut config = config(stream, &target.user, &target.database);
        let configured = Some(&target.password).filter(|password| !password.is_empty());
        if let Some(password) = configured.or_else(|| access.password(&target.user)) {
            config.password(password.reveal());
        }
        let route = match connector {
            GatewayConnector::Hosts(hosts) => LoginRoute::Hosts { hosts, tls: None, settings: stream.tls.clone() },
            in_process @ GatewayConnector::InProcess(_) => LoginRoute::InProcess(in_process),
        };
        Ok(Self { config, route, limit: CONNECT_LIMIT, server: SessionAttrs::Any })
    }

    /// Tries the hosts in order, each at all of its addresses.
    pub(super) async fn connect(&self) -> Result<Connected, SinkConnectError> {
        match &self.route {
            LoginRoute::InProcess(GatewayConnector::InProcess(open)) => {
                let opened = open().and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    UnixStream::from_std(socket)
                });
                let socket = opened.map_err(|error| SinkConnectError::Away(error.to_string()))?;
                self.within(self.log_in(socket)).await
            }
            LoginRoute::InProcess(GatewayConnector::Hosts(_)) => {
                Err(SinkConnectError::Refused("there is no gateway in this process".to_owned()))
            }
            LoginRoute::Hosts { hosts, tls, settings } => {
                let mut reasons = Vec::new();
                for host in hosts {
                    match self.connect_to(host, tls.as_ref(), settings).await {
                        Ok(connected) => return Ok(connected),
                        Err(error) => reasons.push(error),
                    }
                }
                if reasons.is_empty() {
                    return Err(SinkConnectError::Refused("no host is configured".to_owned()));
                }
                Err(SinkConnectError::joined(reasons))
            }
        }
    }

    /// Errors name the host or address.
    async fn connect_to(
        &self,
        host: &Host,
        tls: Option<&Arc<ClientConfig>>,
        settings: &ServerTls,
    ) -> Result<Connected, SinkConnectError> {
        let away = |error: io::Error| SinkConnectError::Away(error.to_string());
        let at_host = |error: SinkConnectError| error.map(|text| format!("{host}: {text}"));
        let (name, port) = match host {
            Host::Unix { .. } => {
                let opened = ServerSocket::open(host, tls, settings);
                return self.within(self.log_in_on(opened)).await.map_err(at_host);
            }
            Host::Tcp { name, port } => (name, *port),
        };
        let looked_up = self.within(async { tokio::net::lookup_host((name.as_str(), port)).await.map_err(away) }).await;
        let mut reasons = Vec::new();
        for address in looked_up.map_err(at_host)? {
            match self.within(self.log_in_on(ServerSocket::open_at(address, name, tls, settings))).await {
                Ok(connected) => return Ok(connected),
                Err(error) if name.parse::<IpAddr>().is_ok() => reasons.push(at_host(error)),
                // A name may have several addresses.
                Err(error) => reasons.push(error.map(|text| format!("{host} ({}): {text}", address.ip()))),
            }
        }
        if reasons.is_empty() {
            return Err(at_host(SinkConnectError::Away("the name has no address".to_owned())));
        }
        Err(SinkConnectError::joined(reasons))
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, SinkConnectError>>) -> Result<T, SinkConnectError> {
        let done = tokio::time::timeout(self.limit, work).await;
        done.unwrap_or_else(|_| Err(SinkConnectError::Away(format!("no answer within {:?}", self.limit))))
    }

    async fn log_in_on(
        &self,
        opened: impl Future<Output = Result<ServerSocket, ServerSocketError>>,
    ) -> Result<Connected, SinkConnectError> {
        let opened = opened.await.map_err(|error| match error {
            ServerSocketError::Io(error) => SinkConnectError::Away(error.to_string()),
            ServerSocketError::Tls(text) => SinkConnectError::Refused(text),
        });
        self.log_in(opened?.stream).await
    }

    async fn log_in<S>(&self, socket: S) -> Result<Connected, SinkConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let logged_in = self.config.connect_raw(socket, NoTls).await;
        let (client, connection) = logged_in.map_err(|error| SinkConnectError::of_login(&error))?;
        // The next statement reports why the connection ended.
        let task = tokio::spawn(async move { drop(connection.await) });
        let connected = Connected { client, task };
        self.check(&connected.client).await?;
        Ok(connected)
    }

    /// Checks that the server has the requested role.
    async fn check(&self, client: &Client) -> Result<(), SinkConnectError> {
        let (query, message) = match self.server {
            SessionAttrs::ReadWrite => ("show transaction_read_only", "it takes no writes"),
            SessionAttrs::Primary => ("select pg_catalog.pg_is_in_recovery()", "it is not the primary"),
            _ => return Ok(()),
        };
        let answer = client.simple_query(query).await.map_err(|error| SinkConnectError::of_login(&error))?;
        let reported = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        // A failover may be under way.
        if matches!(reported, Some("off" | "f")) { Ok(()) } else { Err(SinkConnectError::Away(message.to_owned())) }
    }
}

fn config(stream: &StreamConfig, user: &str, database: &str) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    config.user(user).dbname(database).application_name(format!("tidegate stream {}", stream.keys.name));
    config
}
