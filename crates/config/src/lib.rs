//! Typed configuration of a gateway.
//!
//! A pooler is configured in several formats (`tidegate.toml`, `pgbouncer.ini`, `pg_hba.conf`), by people who make typing
//! errors and who reload the file on a running system. A wrong value must be found before it is in force, with its place in
//! the file, and a secret must never appear in a log or a table.
//!
//! [`toml`] and [`pgbouncer`] read a text into raw tables of keys and values with their positions. A common check turns
//! these into [`Config`], so another format needs only another reader. [`hba`] reads rules and user name maps.
//!
//! # Contract
//!
//! - All errors of a file are returned together, as [`ConfigErrors`]. Each [`Diagnostic`] has file, line, column,
//!   reason and help.
//! - An unknown key is an error, with the most similar known key.
//! - Every field of [`Config`] can be used without further checks.
//! - Secrets have the type [`Secret`]. No diagnostic, `Debug` output or row of `SHOW CONFIG` shows one.
//! - A configuration is a plain value. Nothing is global, so a process can run two gateways.
//!
//! # Example
//!
//! ```
//! let config = tidegate_config::toml::parse("[databases.shop]\nhost = \"10.0.0.7\"\n", "tidegate.toml")?;
//! let plan = config.pool_for("shop", "app").ok_or("no such database")?;
//! assert_eq!((plan.dbname.as_str(), plan.user.as_str(), plan.pool.size), ("shop", "app", 20));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

pub mod check;
mod cipher_suite;
pub mod diagnostic;
mod documentation;
pub mod environment;
pub mod escape;
mod exposure;
pub mod hba;
mod hosts;
mod journal_rule;
mod key_path;
mod keys;
pub mod pgbouncer;
pub mod pgpass;
pub mod raw;
mod secret;
mod section;
mod set;
pub mod setting;
mod show;
pub mod stream;
#[cfg(test)]
mod tests;
mod time_limit;
pub mod toml;
pub mod url;
mod write_access;

pub use cipher_suite::{CipherSuite, KeyGroup};
pub use diagnostic::{ConfigErrors, Diagnostic, DiagnosticKind, DiagnosticSeverity};
pub use documentation::{DocumentedSection, documented_sections};
pub use hosts::{HostList, HostSpec, Route, RouteConfig, RoutePolicy, SessionAttrs};
pub use journal_rule::{JournalRule, JournalRules, RuleAction, StatementClass, StatementClasses};
pub use key_path::value_class;
pub use keys::{
    AdminConfig, AdminHttpConfig, AuthConfig, AuthMethod, ChannelBindingMode, ClientCertificate, ClientTls,
    DatabaseKeys, Dialect, DnsConfig, IoBackend, JournalAck, JournalCompression, JournalFormat, JournalOverload,
    ListenConfig, LogConfig, LogFormat, LogLevel, MESSAGE_MAX, MetricsConfig, NameServers, ParameterForm, PeerKeys,
    PoolConfig, PoolMode, QueryLogConfig, RecordUnit, RuntimeConfig, ShapesConfig, SslMode, SslNegotiation,
    StartupParameters, StatementForm, SyslogFacility, TcpConfig, TimeoutConfig, TracesConfig, UserKeys,
};
pub use secret::{Secret, UserSecret, loggable};
pub use section::{ConfigKey, KeyScope, Reload};
pub use set::ChangeError;
pub use setting::{FileMode, ValueClass};
pub use show::SettingRow;
pub use stream::StreamConfig;
pub use time_limit::{ReserveDelay, ServerLifetime};
pub use url::{Host, PgUrl};

use keys::PoolOverrides;

/// Reason for refusing method `pam` in a build without it.
pub const NO_PAM: &str = "this build does not support PAM";
/// Help for [`NO_PAM`].
pub const NO_PAM_HELP: &str =
    "build it with `cargo build --release --features pam`, which needs the system's libpam (libpam0g-dev)";

/// Reason for refusing method `ldap` in a build without it.
pub const NO_LDAP: &str = "this build does not support LDAP";
/// Help for [`NO_LDAP`].
pub const NO_LDAP_HELP: &str = "build it with `cargo build --release --features ldap`, or use LDAP through PAM";

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Addresses and sockets for clients.
    pub listen: ListenConfig,
    /// Authentication of clients.
    pub auth: AuthConfig,
    /// Defaults of pools; see [`Config::pool_for`] for the settings of one pool.
    pub pool: PoolConfig,
    /// Timeouts of the process, and defaults of pools.
    pub timeouts: TimeoutConfig,
    /// Defaults for databases with several servers.
    pub route: RouteConfig,
    /// Upstream databases by the name that clients use; `*` is any other name.
    pub databases: BTreeMap<String, Database>,
    /// Users that may log in, and settings of users, by name.
    pub users: BTreeMap<String, User>,
    /// Other gateways behind the same address, by number.
    pub peers: BTreeMap<u16, PeerKeys>,
    /// Users of the admin console.
    pub admin: AdminConfig,
    /// Logging.
    pub log: LogConfig,
    /// Resolution of server names.
    pub dns: DnsConfig,
    /// Metrics for Prometheus.
    pub metrics: MetricsConfig,
    /// Live queries over HTTP.
    pub shapes: ShapesConfig,
    /// `[admin.http]`.
    pub admin_http: AdminHttpConfig,
    /// TCP keepalive and timeouts.
    pub tcp: TcpConfig,
    /// The query log.
    pub journal: QueryLogConfig,
    /// Spans for an OpenTelemetry collector.
    pub traces: TracesConfig,
    /// Threads and I/O.
    pub runtime: RuntimeConfig,
    /// Streams.
    pub streams: Vec<StreamConfig>,
    /// The separate file of users, as the configuration names it; empty if users are in the configuration.
    pub user_file: String,
    /// The lines of a `pgbouncer.ini`, if the configuration came from one.
    pub ini_file: Option<pgbouncer::IniFile>,
    /// Files that contain secrets.
    pub secret_files: std::collections::BTreeSet<PathBuf>,
    /// Warnings, for the log and for `tidegate check`.
    pub warnings: Vec<Diagnostic>,
}

/// An upstream database.
#[derive(Debug, Clone, PartialEq)]
pub struct Database {
    /// The servers; never empty.
    pub hosts: Vec<HostSpec>,
    /// Name of the database on the server; empty for the name that the client uses.
    pub dbname: String,
    /// User of all logins to the server; empty for the name of the client.
    pub user: String,
    /// Password of `user`; empty for the password in `[users]`, if there is one.
    pub password: UserSecret,
    /// TLS to the server.
    pub tls: ServerTls,
    /// Startup parameters of server logins, in file order.
    pub startup_parameters: StartupParameters,
    /// Whether all clients share one pool, which needs `user`.
    pub shared_pool: bool,
    /// SQL that every new connection runs first; empty for none.
    pub connect_query: Secret,
    /// Maximum number of server connections of all its pools, if set.
    pub max_servers: Option<u32>,
    /// Maximum number of clients, if set.
    pub max_clients: Option<u32>,
    /// Look-up of users; empty fields are as in `[auth]`.
    pub lookup: UserLookup,
    overrides: PoolOverrides,
}

/// Look-up of passwords on the server for users without one in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserLookup {
    /// User that runs the query; empty for no look-up.
    pub user: String,
    /// The query.
    pub query: String,
    /// Database of the query; empty for the database of the client.
    pub database: String,
}

/// TLS to a server; empty paths are not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// Whether TLS is used and what is verified.
    pub mode: SslMode,
    /// Trusted certificate authorities; empty for those of the system.
    pub root_cert: PathBuf,
    /// Client certificate.
    pub cert: PathBuf,
    /// Key of `cert`.
    pub key: PathBuf,
    /// How TLS starts.
    pub negotiation: SslNegotiation,
    /// Allowed cipher suites; empty for all.
    pub ciphers: Vec<CipherSuite>,
    /// Whether SCRAM logins are bound to the server's certificate.
    pub binding: ChannelBindingMode,
}

/// A user of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    /// Whether the configuration declares the user. A table with settings only does not.
    pub is_declared: bool,
    /// The password, if one is set. An empty one admits no client, except with method trust.
    pub secret: Option<UserSecret>,
    /// Maximum number of server connections of all its pools, if set.
    pub max_servers: Option<u32>,
    /// Maximum number of clients, if set.
    pub max_clients: Option<u32>,
    /// `None` for most users, of which there may be hundreds of thousands.
    overrides: Option<Box<PoolOverrides>>,
}

/// The settings of one pool: defaults, overridden by the database, overridden by the user.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolPlan {
    /// Wording of errors and log lines.
    pub dialect: Dialect,
    /// The `[databases]` entry; `*` for the fallback.
    pub entry: String,
    /// The servers, tried in order; never empty.
    pub hosts: Vec<Host>,
    /// The servers among which each transaction chooses; `None` for one server, or if one was chosen.
    pub choice: Option<Vec<HostSpec>>,
    /// Rules of the choice.
    pub route: RouteConfig,
    /// Address of the only host, if it is resolved.
    pub address: Option<SocketAddr>,
    /// Name of the database on the server.
    pub dbname: String,
    /// User that logs in to the server.
    pub user: String,
    /// Secret of that login, if one is stored. SCRAM keys of a client take precedence over a verifier.
    pub secret: Option<UserSecret>,
    /// Whether all clients log in as `user`.
    pub forced_user: bool,
    /// TLS to the server.
    pub tls: ServerTls,
    /// Parameters of server logins.
    pub startup_parameters: StartupParameters,
    /// SQL that every new connection runs first; empty for none.
    pub connect_query: Secret,
    /// Limits shared with other pools.
    pub shared: SharedLimits,
    /// TCP keepalive and timeouts.
    pub tcp: TcpConfig,
    /// Mode and sizes.
    pub pool: PoolConfig,
    /// Timeouts; those of the process (`login`, `shutdown`, `cancel`) are equal in all plans.
    pub timeouts: TimeoutConfig,
}

impl PoolPlan {
    /// Identifies servers that share prepared statements: entry of `[databases]`, database and user on the server.
    #[must_use]
    pub fn identity(&self) -> [&str; 3] {
        [&self.entry, &self.dbname, &self.user]
    }

    /// Whether a server connection must pass `server_check` before its next use.
    #[inline]
    #[must_use]
    pub fn needs_server_check(&self, opened: Instant, released: Option<Instant>, now: Instant) -> bool {
        if self.pool.server_check.is_empty() {
            return false;
        }
        let after = self.pool.server_check_after;
        match released {
            // The login has just shown that the server answers.
            None if after.is_zero() => false,
            released => now.saturating_duration_since(released.unwrap_or(opened)) >= after,
        }
    }
}

/// Limits over all pools of a database or of a user; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedLimits {
    /// Maximum number of server connections of the database.
    pub database_servers: u32,
    /// Maximum number of server connections of the user that logs in to the server.
    pub user_servers: u32,
    /// Maximum number of clients of the database.
    pub database_clients: u32,
    /// Maximum number of clients of the user.
    pub user_clients: u32,
}

/// Name of the database in the startup packet of a standby.
const REPLICATION_DBNAME: &str = "replication";

impl Config {
    /// A gateway for one Postgres URL, listening on 127.0.0.1:6432.
    ///
    /// The database has the name of the URL's database, or any name if the URL has none. If the URL has a user and a
    /// password, clients log in with them (SCRAM-SHA-256), and that user may use the console. Otherwise every client of
    /// 127.0.0.1 is admitted (`trust`), and the gateway logs in to the server as the URL's user, or as the client's user.
    ///
    /// # Errors
    /// The errors of the URL.
    pub fn from_url(url: &str) -> Result<Self, ConfigErrors> {
        let source = raw::SourceText::new("--database", url);
        check::check(&source, &url::document(url), check::FileAccess::None)
    }

    /// The stream of a command line: keys of `[[streams]]` with the values of their flags.
    ///
    /// # Errors
    /// The errors of the flags.
    pub fn stream_from_flags(flags: &[(&str, stream::FlagValue)]) -> Result<StreamConfig, ConfigErrors> {
        let (source, table) = stream::document(flags);
        check::stream::one(&source, &table, check::FileAccess::RelativeTo(std::path::Path::new("")))
    }

    /// Replaces the configured listen addresses.
    pub fn set_listen_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.listen.addresses = addresses;
        self.warnings.retain(|warning| warning.key != check::OPEN_TO_ALL_KEY);
        if check::is_open_to_all(&self.auth, &self.listen) {
            let text = setting::Setting::show(&self.listen.addresses);
            let source = raw::SourceText::new("--listen", text);
            let diagnostic =
                Diagnostic::new(&source, &(0..source.text.len()), DiagnosticSeverity::Warning, check::OPEN_TO_ALL_KEY);
            self.warnings.push(check::open_to_all(diagnostic));
        }
    }

    /// The database of a name that a client uses: its own entry, otherwise `*`.
    pub fn database(&self, name: &str) -> Option<(&str, &Database)> {
        let found = self.databases.get_key_value(name).or_else(|| self.databases.get_key_value("*"));
        found.map(|(entry, database)| (entry.as_str(), database))
    }

    /// Databases with a shared pool, with the user of that pool.
    pub fn shared_users(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = self.databases.iter().filter(|(name, _)| *name != "*");
        named.filter_map(|(name, database)| Some((name.as_str(), database.shared_user()?)))
    }

    /// The settings of the pool for a database and user; `None` if the database does not exist.
    pub fn pool_for(&self, database: &str, user: &str) -> Option<PoolPlan> {
        let (_, found) = self.database(database)?;
        let login = if found.user.is_empty() { user } else { &found.user };
        self.plan(database, user, login, !found.user.is_empty())
    }

    /// The settings of the pool that looks up users as `user`, also if the database forces another user for clients; `None`
    /// if the database does not exist.
    pub fn lookup_pool_for(&self, database: &str, user: &str) -> Option<PoolPlan> {
        let mut plan = self.plan(database, user, user, false)?;
        // The name that libpq sends for physical replication; walsenders accept it, and there is no such database.
        if plan.dbname == REPLICATION_DBNAME && self.database(database)?.1.dbname.is_empty() {
            plan.dbname = "postgres".to_owned();
        }
        Some(plan)
    }

    fn plan(&self, database: &str, user: &str, login: &str, forced_user: bool) -> Option<PoolPlan> {
        let (entry, found) = self.database(database)?;
        let settings = self.users.get(user);
        let mut pool = merged(&self.pool, found, settings, |overrides, base| overrides.pool.over(base));
        // A user with a smaller pool inherits the minimum of the database.
        pool.min_size = pool.min_size.min(pool.size);
        Some(PoolPlan {
            dialect: self.listen.dialect,
            entry: entry.to_owned(),
            hosts: found.hosts.iter().map(|spec| spec.host.clone()).collect(),
            choice: found.has_choice().then(|| found.hosts.clone()),
            route: merged(&self.route, found, settings, |overrides, base| overrides.route.over(base)),
            address: None,
            dbname: if found.dbname.is_empty() { database.to_owned() } else { found.dbname.clone() },
            user: login.to_owned(),
            secret: self.secret_of(found, login),
            forced_user,
            tls: found.tls.clone(),
            startup_parameters: found.startup_parameters.clone(),
            connect_query: found.connect_query.clone(),
            shared: self.shared_limits(found, user, login),
            tcp: self.tcp.clone(),
            pool,
            timeouts: merged(&self.timeouts, found, settings, |overrides, base| overrides.timeouts.over(base)),
        })
    }

    /// The user of the pool for clients of a database and user: their own, or the shared one.
    pub fn pool_user<'u>(&'u self, database: &str, user: &'u str) -> &'u str {
        self.database(database).and_then(|(_, found)| found.shared_user()).unwrap_or(user)
    }

    /// The limits for clients of a database and user.
    pub fn client_limits(&self, database: &str, user: &str) -> SharedLimits {
        self.database(database).map(|(_, found)| self.shared_limits(found, user, user)).unwrap_or_default()
    }

    /// Limits of clients of the console with PgBouncer's files.
    #[must_use]
    pub fn console_limits(&self, user: &str) -> SharedLimits {
        let own = self.users.get(user).and_then(|user| user.max_clients);
        SharedLimits {
            database_clients: self.pool.max_clients_per_database,
            user_clients: own.unwrap_or(self.pool.max_clients_per_user),
            ..SharedLimits::default()
        }
    }

    /// The limits that a pool shares with others; `login` is the user on the server.
    fn shared_limits(&self, database: &Database, user: &str, login: &str) -> SharedLimits {
        let of = |name: &str, own: fn(&User) -> Option<u32>| self.users.get(name).and_then(own);
        SharedLimits {
            database_servers: database.max_servers.unwrap_or(self.pool.max_per_database),
            user_servers: of(login, |user| user.max_servers).unwrap_or(self.pool.max_per_user),
            database_clients: database.max_clients.unwrap_or(self.pool.max_clients_per_database),
            user_clients: of(user, |user| user.max_clients).unwrap_or(self.pool.max_clients_per_user),
        }
    }

    /// The look-up of users for clients of a database; `None` if there is none.
    pub fn lookup(&self, database: &str) -> Option<UserLookup> {
        let found = match self.database(database) {
            Some((_, found)) => &found.lookup,
            None if self.auth.lookup_database.is_empty() => return None,
            None => &UserLookup::default(),
        };
        let or = |own: &String, general: &String| if own.is_empty() { general.clone() } else { own.clone() };
        let lookup = UserLookup {
            user: or(&found.user, &self.auth.lookup_user),
            query: or(&found.query, &self.auth.lookup_query),
            database: or(&found.database, &self.auth.lookup_database),
        };
        (!lookup.user.is_empty()).then_some(lookup)
    }

    /// The user, if the configuration declares it.
    pub fn declared_user(&self, name: &str) -> Option<&User> {
        self.users.get(name).filter(|user| user.is_declared)
    }

    /// Whether users are looked up on a server.
    pub fn has_user_lookup(&self) -> bool {
        has_user_lookup(&self.auth, &self.databases)
    }

    /// The secret of a login to the server: the password of the database if it belongs to `login`, otherwise the password
    /// of the user of the same name.
    fn secret_of(&self, database: &Database, login: &str) -> Option<UserSecret> {
        let is_own = database.user.is_empty() || database.user == login;
        if is_own && !database.password.secret().is_empty() {
            return Some(database.password.clone());
        }
        let stored = self.users.get(login).and_then(|user| user.secret.as_ref());
        stored.filter(|stored| !stored.secret().is_empty()).cloned()
    }
}

impl AuthMethod {
    /// Whether the client is authenticated without a challenge: always, by its certificate, or by a rule.
    #[must_use]
    pub fn needs_no_challenge(self) -> bool {
        matches!(self, Self::Trust | Self::Hba | Self::Cert)
    }

    /// Whether an external service may verify the password.
    #[must_use]
    pub fn allows_external_auth(self) -> bool {
        matches!(self, Self::Pam | Self::Ldap | Self::Hba)
    }
}

impl Database {
    /// The pool mode of the database, if set.
    #[must_use]
    pub fn own_mode(&self) -> Option<PoolMode> {
        self.overrides.pool.mode
    }

    /// The user of the shared pool, if there is one.
    #[must_use]
    pub fn shared_user(&self) -> Option<&str> {
        (self.shared_pool && !self.user.is_empty()).then_some(&self.user)
    }

    /// Each transaction chooses a server if there are several, if a name stands for several, or if a route is set.
    fn has_choice(&self) -> bool {
        self.hosts.len() > 1 || self.hosts.iter().any(|spec| spec.srv) || self.overrides.route.route.is_some()
    }
}

fn has_user_lookup(auth: &AuthConfig, databases: &BTreeMap<String, Database>) -> bool {
    !auth.lookup_user.is_empty() || databases.values().any(|database| !database.lookup.user.is_empty())
}

/// The defaults, overridden by the database, overridden by the user.
fn merged<T>(base: &T, database: &Database, user: Option<&User>, over: impl Fn(&PoolOverrides, &T) -> T) -> T {
    let settings = over(&database.overrides, base);
    match user.and_then(|user| user.overrides.as_deref()) {
        Some(overrides) => over(overrides, &settings),
        None => settings,
    }
}

/// The addresses of one text: `*:6432` stands for two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddresses(pub Vec<SocketAddr>);

/// Parses an address to listen on: `127.0.0.1:6432`, `[::1]:6432`, `localhost:6432`, `*:6432`.
///
/// # Errors
/// Why the text is not an address, and what to write.
pub fn parse_listen_addresses(text: &str) -> Result<ListenAddresses, String> {
    let addresses = setting::listen_addresses(text).map(ListenAddresses);
    addresses.map_err(|error| format!("{}; {}", error.reason, error.help))
}

/// Parses an address as [`parse_listen_addresses`], and takes the first one.
///
/// # Errors
/// Why the text is not an address, and what to write.
pub fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    let ListenAddresses(addresses) = parse_listen_addresses(text)?;
    addresses.into_iter().next().ok_or_else(|| format!("{text}: no address"))
}

/// Parses a duration with its unit: `250ms`, `5s`, `2min`, `1h`.
///
/// # Errors
/// Why the text is not a duration, and what to write.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    setting::duration(text).map_err(|error| format!("{}; {}", error.reason, error.help.replace("; 0 is off", "")))
}

impl ListenConfig {
    /// Whether clients are asked for a certificate.
    pub fn requests_client_certificates(&self) -> bool {
        self.tls != ClientTls::Off && !self.tls_client_ca.as_os_str().is_empty()
    }

    /// The port in the name of the Unix socket, also if there is no socket.
    pub fn unix_port(&self) -> u16 {
        let first = self.addresses.first().map_or(DEFAULT_PORT, SocketAddr::port);
        if self.unix_socket_port == 0 { first } else { self.unix_socket_port }
    }

    /// The file of the Unix socket, if there is one.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        let has_socket = !self.unix_socket_dir.as_os_str().is_empty();
        has_socket.then(|| url::socket_path(&self.unix_socket_dir, self.unix_port()))
    }
}

/// Default port of clients.
pub const DEFAULT_PORT: u16 = 6432;

impl AdminConfig {
    /// Names of the console database; no upstream may have one of them.
    pub const CONSOLE_DATABASES: &'static [&'static str] = &["tidegate", "pgbouncer"];
    /// Name of the console in its own tables, as database, pool and user, because dashboards for PgBouncer expect it.
    pub const DISPLAY_NAME: &'static str = "pgbouncer";

    /// Name of the console in rules, whichever of the names the client uses.
    #[must_use]
    pub const fn name(dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Postgres => "tidegate",
            Dialect::Pgbouncer => Self::DISPLAY_NAME,
        }
    }
}
