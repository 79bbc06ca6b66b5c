//! Connections for queries.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tidegate_config::stream::GatewayTarget;
use tidegate_config::{Config, Host, ServerTls, UserSecret};
use tidegate_tls::ServerSocket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use super::error_text;

/// Limit of a login.
const LOGIN_LIMIT: Duration = Duration::from_secs(10);

/// No connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot connect to the database: {0}")]
pub struct ConnectionError(pub String);

/// Opens a connection to the gateway in this process, as if a client had connected to its unix socket.
pub type GatewaySocket = Arc<dyn Fn() -> io::Result<UnixStream> + Send + Sync>;

/// How to log in to one database.
#[derive(Clone)]
pub struct DatabaseLogin {
    route: LoginRoute,
    config: tokio_postgres::Config,
    database: String,
}

#[derive(Clone)]
enum LoginRoute {
    Hosts { hosts: Vec<Host>, tls: Option<Arc<ClientConfig>>, settings: ServerTls },
    Gateway(GatewaySocket),
}

impl fmt::Debug for DatabaseLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_pooled = matches!(self.route, LoginRoute::Gateway(_));
        f.debug_struct("DatabaseLogin").field("database", &self.database).field("is_pooled", &is_pooled).finish()
    }
}

/// A connection; it ends when the value is dropped.
#[derive(Debug)]
pub struct DatabaseClient {
    client: Client,
    /// Whether it uses the pool of the gateway.
    pub(crate) is_pooled: bool,
    task: JoinHandle<()>,
}

impl Drop for DatabaseClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Deref for DatabaseClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DatabaseLogin {
    /// The login of a Postgres URL.
    ///
    /// # Errors
    /// If the URL is malformed, names no database, or its TLS files cannot be used.
    pub fn from_url(url: &str) -> Result<Self, ConnectionError> {
        let config = Config::from_url(url).map_err(|errors| ConnectionError(errors.to_string()))?;
        let database = config.databases.iter().next();
        let (name, database) = database.ok_or_else(|| ConnectionError("the URL has no database".to_owned()))?;
        let user = if database.user.is_empty() { "postgres" } else { &database.user };
        let dbname = match (database.dbname.as_str(), name.as_str()) {
            ("", "*") => user,
            ("", name) => name,
            (dbname, _) => dbname,
        };
        let mut login = tokio_postgres::Config::new();
        login.user(user).dbname(dbname).application_name("tidegate shapes");
        if let UserSecret::Plain(password) = &database.password
            && !password.is_empty()
        {
            login.password(password.reveal());
        }
        let tls = tidegate_tls::for_servers(&database.tls).map_err(|error| ConnectionError(error.to_string()))?;
        let hosts = database.hosts.iter().map(|spec| spec.host.clone()).collect();
        let route = LoginRoute::Hosts { hosts, tls, settings: database.tls.clone() };
        Ok(Self { route, config: login, database: dbname.to_owned() })
    }

    /// A login at the gateway of this process, so that queries use its pool.
    #[must_use]
    pub fn through_gateway(open: GatewaySocket, target: &GatewayTarget) -> Self {
        let mut login = tokio_postgres::Config::new();
        login.user(&target.user).dbname(&target.database).application_name("tidegate shapes");
        if !target.password.is_empty() {
            login.password(target.password.reveal());
        }
        Self { route: LoginRoute::Gateway(open), config: login, database: target.database.clone() }
    }

    /// Whether connections use the pool of the gateway: they keep no state between transactions.
    #[must_use]
    pub(crate) fn is_pooled(&self) -> bool {
        matches!(self.route, LoginRoute::Gateway(_))
    }

    /// The name of the database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Opens a connection to the first host that answers.
    ///
    /// # Errors
    /// The reason of each host.
    pub async fn connect(&self) -> Result<DatabaseClient, ConnectionError> {
        let mut reasons = Vec::new();
        let (hosts, tls, settings) = match &self.route {
            LoginRoute::Hosts { hosts, tls, settings } => (hosts, tls.as_ref(), settings),
            LoginRoute::Gateway(open) => {
                let opened = open().and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    tokio::net::UnixStream::from_std(socket)
                });
                let socket = opened.map_err(|error| ConnectionError(error.to_string()))?;
                return match tokio::time::timeout(LOGIN_LIMIT, self.log_in(socket)).await {
                    Ok(connected) => connected.map_err(ConnectionError),
                    Err(_) => Err(ConnectionError(format!("no answer of the gateway within {LOGIN_LIMIT:?}"))),
                };
            }
        };
        for host in hosts {
            match tokio::time::timeout(LOGIN_LIMIT, self.connect_to(host, tls, settings)).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) => reasons.push(format!("{host}: {error}")),
                Err(_) => reasons.push(format!("{host}: no answer within {LOGIN_LIMIT:?}")),
            }
        }
        Err(ConnectionError(reasons.join("; ")))
    }

    async fn connect_to(
        &self,
        host: &Host,
        tls: Option<&Arc<ClientConfig>>,
        settings: &ServerTls,
    ) -> Result<DatabaseClient, String> {
        let opened = ServerSocket::open(host, tls, settings).await;
        self.log_in(opened.map_err(|error| error.to_string())?.stream).await
    }

    async fn log_in<S>(&self, stream: S) -> Result<DatabaseClient, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (client, connection) = self.config.connect_raw(stream, NoTls).await.map_err(|error| error_text(&error))?;
        // The next statement reports why the connection ended.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(DatabaseClient { client, is_pooled: self.is_pooled(), task })
    }
}
