//! Connections for queries.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tidegate_config::{Config, Host, ServerTls, UserSecret};
use tidegate_tls::ServerSocket;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

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
        let opened = ServerSocket::open(host, self.tls.as_ref(), &self.tls_settings).await;
        let stream = opened.map_err(|error| error.to_string())?.stream;
        let (client, connection) = self.config.connect_raw(stream, NoTls).await.map_err(|error| error_text(&error))?;
        // The next statement reports why the connection ended.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(DatabaseClient { client, task })
    }
}
