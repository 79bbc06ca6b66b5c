//! Connections for queries.

use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tidegate_config::{Config, Host, ServerTls, SslMode, SslNegotiation, UserSecret};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};
use tokio_rustls::TlsConnector;

use super::error_text;

/// Limit of a login.
const LOGIN_LIMIT: Duration = Duration::from_secs(10);

/// No connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot connect to the database: {0}")]
pub struct ConnectionError(pub String);

/// How to log in to one database.
#[derive(Clone, Debug)]
pub struct DatabaseLogin {
    hosts: Vec<Host>,
    config: tokio_postgres::Config,
    tls: Option<Arc<ClientConfig>>,
    tls_settings: ServerTls,
    database: String,
}

/// A connection; it ends when the value is dropped.
#[derive(Debug)]
pub struct DatabaseClient {
    client: Client,
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
        Ok(Self {
            hosts: database.hosts.iter().map(|spec| spec.host.clone()).collect(),
            config: login,
            tls,
            tls_settings: database.tls.clone(),
            database: dbname.to_owned(),
        })
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
        for host in &self.hosts {
            match tokio::time::timeout(LOGIN_LIMIT, self.connect_to(host)).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) => reasons.push(format!("{host}: {error}")),
                Err(_) => reasons.push(format!("{host}: no answer within {LOGIN_LIMIT:?}")),
            }
        }
        Err(ConnectionError(reasons.join("; ")))
    }

    async fn connect_to(&self, host: &Host) -> Result<DatabaseClient, String> {
        let text = |error: io::Error| error.to_string();
        let (name, port) = match host {
            Host::Unix { .. } => {
                let path = host.socket_path().unwrap_or_default();
                return self.log_in(UnixStream::connect(path).await.map_err(text)?).await;
            }
            Host::Tcp { name, port } => (name.as_str(), *port),
        };
        let mut socket = TcpStream::connect((name, port)).await.map_err(text)?;
        socket.set_nodelay(true).map_err(text)?;
        let settings = &self.tls_settings;
        let Some(tls) = self.tls.as_ref().filter(|_| settings.mode != SslMode::Allow) else {
            return self.log_in(socket).await;
        };
        if settings.negotiation != SslNegotiation::Direct && !request_tls(&mut socket).await.map_err(text)? {
            if settings.mode == SslMode::Prefer {
                return self.log_in(socket).await;
            }
            return Err(format!("the server does not support TLS, and sslmode is {}", settings.mode));
        }
        let server = match name.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?,
        };
        let socket = TlsConnector::from(Arc::clone(tls)).connect(server, socket).await.map_err(text)?;
        self.log_in(socket).await
    }

    async fn log_in<S>(&self, socket: S) -> Result<DatabaseClient, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (client, connection) = self.config.connect_raw(socket, NoTls).await.map_err(|error| error_text(&error))?;
        // The next statement reports why the connection ended.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(DatabaseClient { client, task })
    }
}

/// Sends SSLRequest. Returns whether the server accepts.
async fn request_tls(socket: &mut TcpStream) -> io::Result<bool> {
    // Length 8 and the request code (PostgreSQL documentation, "SSLRequest").
    socket.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await?;
    Ok(socket.read_u8().await? == b'S')
}
