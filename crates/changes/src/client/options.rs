//! How to connect.

use std::{str::FromStr, time::Duration};

use tidegate_config::{ChannelBindingMode, Host, PgUrl, Secret, ServerTls, SessionAttrs, SslMode, SslNegotiation};

use super::ClientError;

/// Whether a connection takes replication commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicationMode {
    /// SQL alone.
    Off,
    /// Replication commands and simple queries, in a database.
    Database,
}

/// Parameters that fix the forms of values.
const VALUE_FORMS: &[(&str, &str)] = &[
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO, YMD"),
    ("timezone", "UTC"),
    ("intervalstyle", "iso_8601"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "3"),
];

/// Servers, login and TLS of a connection.
///
/// ```
/// use tidegate_changes::ConnectOptions;
///
/// let options = ConnectOptions::from_url("postgres://cdc:secret@10.0.0.5/shop?sslmode=verify-full")?;
/// assert_eq!(options.database(), "shop");
/// // The password is in no debug output.
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok::<(), tidegate_changes::ClientError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) password: Secret,
    database: String,
    pub(super) tls: ServerTls,
    pub(super) parameters: Vec<(String, String)>,
    /// Role of the server to use if the URL names several: primary, or `target_session_attrs` of the URL.
    pub server: SessionAttrs,
    /// Parameters that the client sends of its own.
    fixed: &'static [(&'static str, &'static str)],
    default_application: &'static str,
    /// Limit for a connection with its login, per host. 10 seconds, or `connect_timeout` of the URL.
    pub connect_timeout: Duration,
    /// Limit for the answer to a command, and for each write. 30 seconds.
    pub command_timeout: Duration,
}

impl ConnectOptions {
    /// Reads a URL with libpq's grammar and parameters.
    ///
    /// # Errors
    /// The URL is invalid. The error repeats nothing that may be a password.
    pub fn from_url(url: &str) -> Result<Self, ClientError> {
        let url = PgUrl::from_str(url).map_err(ClientError::Option)?;
        let mut tls = ServerTls {
            mode: SslMode::Prefer,
            root_cert: "".into(),
            cert: "".into(),
            key: "".into(),
            negotiation: SslNegotiation::Postgres,
            ciphers: Vec::new(),
            binding: ChannelBindingMode::Prefer,
        };
        let mut server = SessionAttrs::Primary;
        for (name, value) in &url.keys {
            match *name {
                "sslmode" => tls.mode = value.parse().map_err(ClientError::Option)?,
                "sslrootcert" if value == "system" => tls.mode = SslMode::VerifyFull,
                "sslrootcert" => tls.root_cert = value.into(),
                "sslcert" => tls.cert = value.into(),
                "sslkey" => tls.key = value.into(),
                "sslnegotiation" => tls.negotiation = value.parse().map_err(ClientError::Option)?,
                "target_session_attrs" => server = value.parse().map_err(ClientError::Option)?,
                "channel_binding" => tls.binding = value.parse().map_err(ClientError::Option)?,
                _ => {}
            }
        }
        let user = if url.user.is_empty() { "postgres".to_owned() } else { url.user };
        Ok(Self {
            hosts: url.hosts,
            database: if url.dbname.is_empty() { user.clone() } else { url.dbname },
            user,
            password: url.password,
            tls,
            parameters: url.parameters,
            server,
            fixed: VALUE_FORMS,
            default_application: "tidegate changes",
            connect_timeout: Duration::from_secs(url.connect_timeout.filter(|s| *s > 0).unwrap_or(10).into()),
            command_timeout: Duration::from_secs(30),
        })
    }

    /// The servers, in order.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Sets the password, for URLs without one.
    ///
    /// ```
    /// use tidegate_changes::{ConnectOptions, Secret};
    ///
    /// let options = ConnectOptions::from_url("postgres://cdc@10.0.0.5/shop")?.with_password(Secret::new("secret"));
    /// # Ok::<(), tidegate_changes::ClientError>(())
    /// ```
    #[must_use]
    pub fn with_password(mut self, password: Secret) -> Self {
        self.password = password;
        self
    }

    /// Sends no parameters but those of the URL, and this application name by default: for the admin console of a gateway,
    /// which has no forms of values.
    #[must_use]
    pub fn for_console(mut self, application: &'static str) -> Self {
        self.fixed = &[("client_encoding", "UTF8")];
        self.default_application = application;
        self
    }

    /// Startup parameters. The forms of values are fixed, so that the stream and a snapshot write them alike (CH-47).
    pub(super) fn startup_parameters(&self, replication: ReplicationMode) -> Vec<(String, String)> {
        let mut all = vec![("user".to_owned(), self.user.clone()), ("database".to_owned(), self.database.clone())];
        if replication == ReplicationMode::Database {
            all.push(("replication".to_owned(), "database".to_owned()));
        }
        let is_fixed = |name: &str| self.fixed.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        all.extend(self.parameters.iter().filter(|(name, _)| !is_fixed(name)).cloned());
        if !self.parameters.iter().any(|(name, _)| name == "application_name") {
            all.push(("application_name".to_owned(), self.default_application.to_owned()));
        }
        all.extend(self.fixed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        all
    }
}
