//! What the operator wants: text to raw to checked.
//!
//! [`toml`] reads text into raw tables of keys and values with their places; [`check`](self) turns those into
//! [`Config`], whose every field holds a value that can be used as it stands. The middle is shared by all formats, so a
//! further one adds a reader and nothing else. A configuration is a plain value: nothing here is global, and two
//! gateways can live in one process with two of them.
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

mod change;
pub mod check;
pub mod escape;
mod exposure;
pub mod finding;
pub mod hba;
mod hosts;
mod keys;
mod path;
pub mod pgbouncer;
pub mod pgpass;
pub mod raw;
mod rule;
mod secret;
mod section;
pub mod setting;
mod show;
pub mod stream;
mod suite;
#[cfg(test)]
mod tests;
pub mod toml;
pub mod url;

pub use change::ChangeError;
pub use finding::{ConfigErrors, Finding, FindingKind, Severity};
pub use hosts::{HostList, HostSpec, Policy, Route, RouteSettings, SessionAttrs};
pub use keys::{
    Admin, Auth, AuthMethod, ChannelBinding, ClientCertificate, ClientTls, Compress, DatabaseKeys, Dialect, Dns, Io,
    Journal, JournalAck, JournalFormat, Listen, Log, LogFormat, LogLevel, MESSAGE_MAX, Metrics, Mode, NameServers,
    Overflow, ParameterForm, Parameters, PeerKeys, Per, PoolSettings, Runtime, SslMode, SslNegotiation, StatementForm,
    SyslogFacility, Tcp, Timeouts, UserKeys,
};
pub use path::holds;
pub use rule::{Action, Rule, Rules, Work, Works};
pub use secret::{Secret, UserSecret, loggable};
pub use section::{Key, Reload, Scope};
pub use setting::{FileMode, Holds};
pub use show::Row;
pub use stream::Stream;
pub use suite::{CipherSuite, KeyGroup};
pub use url::{Host, PgUrl};

use keys::Overrides;

/// Why method `pam` cannot be used in this build.
pub const NO_PAM: &str = "this build is without PAM";
/// What to do about that.
pub const NO_PAM_HELP: &str =
    "build it with `cargo build --release --features pam`, which needs the system's libpam (libpam0g-dev)";

/// Why method `ldap` cannot be used in this build.
pub const NO_LDAP: &str = "this build is without LDAP";
/// What to do about that.
pub const NO_LDAP_HELP: &str = "build it with `cargo build --release --features ldap`, or let PAM ask the directory";

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where clients come in.
    pub listen: Listen,
    /// How clients prove who they are.
    pub auth: Auth,
    /// What holds for pools of which nothing else is said; ask [`Config::pool_for`] for one pool's.
    pub pool: PoolSettings,
    /// What holds for pools of which nothing else is said, and for the process.
    pub timeouts: Timeouts,
    /// What holds for databases with several servers of which nothing else is said.
    pub route: RouteSettings,
    /// The upstreams by the name that clients say; `*` is any other name.
    pub databases: BTreeMap<String, Database>,
    /// The users that may log in, and the settings of users, by name.
    pub users: BTreeMap<String, User>,
    /// Other gateways behind the same address, by their numbers.
    pub peers: BTreeMap<u16, PeerKeys>,
    /// Who may use the console.
    pub admin: Admin,
    /// What is logged, and how.
    pub log: Log,
    /// Who is asked for the addresses of servers.
    pub dns: Dns,
    /// Figures for Prometheus.
    pub metrics: Metrics,
    /// When a peer that says nothing is held for gone.
    pub tcp: Tcp,
    /// What is written to the query journal.
    pub journal: Journal,
    /// Threads and I/O.
    pub runtime: Runtime,
    /// What flows beside the queries.
    pub streams: Vec<Stream>,
    /// The file beside the configuration that users were read from, as it names it; empty if they stand in the configuration.
    pub user_file: String,
    /// The files whose text has secrets in it.
    pub secret_files: std::collections::BTreeSet<PathBuf>,
    /// What looked odd but works; for the log and for `tidegate check`.
    pub warnings: Vec<Finding>,
}

/// An upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Database {
    /// The servers; never empty.
    pub hosts: Vec<HostSpec>,
    /// Name on the server; empty for the name that the client says.
    pub dbname: String,
    /// User of every login to the server; empty for the client's own name.
    pub user: String,
    /// Password of `user` in one of its forms; empty for the one in `[users]`, if there is one.
    pub password: UserSecret,
    /// TLS to the server.
    pub tls: ServerTls,
    /// Parameters of server logins, in the order of the text.
    pub startup_parameters: Parameters,
    /// Whether all clients share one pool, if there is a user.
    pub shared_pool: bool,
    /// SQL that every new connection runs first; empty for none.
    pub connect_query: Secret,
    /// Server connections of all its pools, if it has a limit of its own.
    pub max_servers: Option<u32>,
    /// Clients, if it has a limit of its own.
    pub max_clients: Option<u32>,
    /// How its clients are looked up; what is empty is as in `[auth]`.
    pub lookup: Lookup,
    overrides: Overrides,
}

/// How users that the configuration does not know are looked up on a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lookup {
    /// Who logs in for it; empty for no look-up.
    pub user: String,
    /// The query.
    pub query: String,
    /// In which database; empty for the client's.
    pub database: String,
}

/// TLS to a server; an empty path means none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// Whether TLS is used, and how strictly.
    pub mode: SslMode,
    /// Trusted authorities; empty for those of the machine.
    pub root_cert: PathBuf,
    /// Certificate shown to the server.
    pub cert: PathBuf,
    /// Key of `cert`.
    pub key: PathBuf,
    /// How TLS begins.
    pub negotiation: SslNegotiation,
    /// The cipher suites that may be used; empty for all.
    pub ciphers: Vec<CipherSuite>,
    /// Whether SCRAM logins are bound to the server's certificate.
    pub binding: ChannelBinding,
}

/// A client's user.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    /// Whether the configuration says that the user exists. Settings alone do not say so.
    pub is_declared: bool,
    /// The password in one of its forms, if one is written. An empty one lets nobody in, except with method trust.
    pub secret: Option<UserSecret>,
    /// Server connections of all its pools, if it has a limit of its own.
    pub max_servers: Option<u32>,
    /// Clients, if it has a limit of its own.
    pub max_clients: Option<u32>,
    /// Nothing for most, of whom there may be very many.
    overrides: Option<Box<Overrides>>,
}

/// Everything about one pool: the defaults, the database's settings over them, and the user's over those.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolPlan {
    /// The `[databases]` entry it comes from; `*` for the fallback.
    pub entry: String,
    /// The servers, tried in order; never empty.
    pub hosts: Vec<Host>,
    /// The servers that each transaction has a choice of; none if there is one server, or one was chosen.
    pub choice: Option<Vec<HostSpec>>,
    /// By which rules it is made.
    pub route: RouteSettings,
    /// The address of the only host, if it is known already.
    pub address: Option<SocketAddr>,
    /// Name of the database on the server.
    pub dbname: String,
    /// User that logs in to the server.
    pub user: String,
    /// What that login can be computed from, if anything is stored; a client's own SCRAM keys go before a verifier.
    pub secret: Option<UserSecret>,
    /// Whether every client logs in as `user`, whatever its own name.
    pub forced_user: bool,
    /// TLS to the server.
    pub tls: ServerTls,
    /// Parameters of server logins.
    pub startup_parameters: Parameters,
    /// SQL that every new connection runs first; empty for none.
    pub connect_query: Secret,
    /// Limits that it shares with other pools.
    pub shared: SharedLimits,
    /// When a server that says nothing is held for gone.
    pub tcp: Tcp,
    /// Mode, sizes and the like.
    pub pool: PoolSettings,
    /// Times; those of the process (`login`, `shutdown`, `cancel`) are the same in every plan.
    pub timeouts: Timeouts,
}

impl PoolPlan {
    /// Identifies the servers that share prepared statements: the entry of `[databases]`, database and user on the server.
    #[must_use]
    pub fn identity(&self) -> [&str; 3] {
        [&self.entry, &self.dbname, &self.user]
    }

    /// Whether a server that was opened and given back at these moments has to show that it still answers.
    #[inline]
    #[must_use]
    pub fn checks_server(&self, opened: Instant, released: Option<Instant>, now: Instant) -> bool {
        if self.pool.server_check.is_empty() {
            return false;
        }
        let after = self.pool.server_check_after;
        match released {
            // It was logged in a moment ago.
            None if after.is_zero() => false,
            released => now.saturating_duration_since(released.unwrap_or(opened)) >= after,
        }
    }
}

/// Limits of what all pools of a database, or of a user, have together; 0 is without limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedLimits {
    /// Server connections of the database.
    pub database_servers: u32,
    /// Server connections of the user that logs in to the server.
    pub user_servers: u32,
    /// Clients of the database.
    pub database_clients: u32,
    /// Clients of the user.
    pub user_clients: u32,
}

impl Config {
    /// A gateway for one Postgres URL, listening on 127.0.0.1:6432.
    ///
    /// Clients find it under the name of the URL's database, or under any name if the URL has none. If the URL has a
    /// user and a password, clients log in with the same two (SCRAM-SHA-256), and that user may use the console.
    /// Otherwise whoever reaches 127.0.0.1 is let in (`trust`), and the server is asked to believe the URL's user, or
    /// the client's own name.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn from_url(url: &str) -> Result<Self, ConfigErrors> {
        let source = raw::Source::new("--database", url);
        check::check(&source, &url::document(url), check::Disk::Untouched)
    }

    /// The stream that a command line describes: keys of `[[streams]]` with their values, and the flag that each was
    /// written with.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn stream_of(flags: &[(&str, stream::Flag)]) -> Result<Stream, ConfigErrors> {
        let (source, table) = stream::document(flags);
        check::stream::one(&source, &table, check::Disk::Folder(std::path::Path::new("")))
    }

    /// Listens on other addresses than the configured ones.
    pub fn listen_on(&mut self, addresses: Vec<SocketAddr>) {
        self.listen.addresses = addresses;
        self.warnings.retain(|warning| warning.key != check::OPEN_TO_ALL);
        if check::is_open_to_all(&self.auth, &self.listen) {
            let text = setting::Setting::show(&self.listen.addresses);
            let source = raw::Source::new("--listen", text);
            let finding = Finding::new(&source, &(0..source.text.len()), Severity::Warning, check::OPEN_TO_ALL);
            self.warnings.push(check::open_to_all(finding));
        }
    }

    /// The upstream for the name that a client says: its own entry, else `*`.
    pub fn database(&self, name: &str) -> Option<(&str, &Database)> {
        let found = self.databases.get_key_value(name).or_else(|| self.databases.get_key_value("*"));
        found.map(|(entry, database)| (entry.as_str(), database))
    }

    /// The databases whose clients all log in as one user, with that user.
    pub fn shared_users(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = self.databases.iter().filter(|(name, _)| *name != "*");
        named.filter_map(|(name, database)| Some((name.as_str(), database.shared_user()?)))
    }

    /// The settings of the pool for a client of that database and user; `None` if there is no such database.
    pub fn pool_for(&self, database: &str, user: &str) -> Option<PoolPlan> {
        let (_, found) = self.database(database)?;
        let login = if found.user.is_empty() { user } else { &found.user };
        self.plan(database, user, login, !found.user.is_empty())
    }

    /// The settings of the pool on which users are looked up as `user`, whoever clients of the database become on its
    /// servers; `None` if there is no such database.
    pub fn lookup_pool_for(&self, database: &str, user: &str) -> Option<PoolPlan> {
        self.plan(database, user, user, false)
    }

    fn plan(&self, database: &str, user: &str, login: &str, forced_user: bool) -> Option<PoolPlan> {
        let (entry, found) = self.database(database)?;
        let person = self.users.get(user);
        let mut pool = merged(&self.pool, found, person, |overrides, base| overrides.pool.over(base));
        // A user with a small pool inherits the minimum of a larger one.
        pool.min_size = pool.min_size.min(pool.size);
        Some(PoolPlan {
            entry: entry.to_owned(),
            hosts: found.hosts.iter().map(|spec| spec.host.clone()).collect(),
            choice: found.has_choice().then(|| found.hosts.clone()),
            route: merged(&self.route, found, person, |overrides, base| overrides.route.over(base)),
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
            timeouts: merged(&self.timeouts, found, person, |overrides, base| overrides.timeouts.over(base)),
        })
    }

    /// Whose pool a client of that database and user gets: its own, or the one that all clients share.
    pub fn pool_user<'u>(&'u self, database: &str, user: &'u str) -> &'u str {
        self.database(database).and_then(|(_, found)| found.shared_user()).unwrap_or(user)
    }

    /// The limits for clients of that database and user.
    pub fn client_limits(&self, database: &str, user: &str) -> SharedLimits {
        self.database(database).map(|(_, found)| self.shared_limits(found, user, user)).unwrap_or_default()
    }

    /// The limits that a pool shares with others; `login` is who logs in to the server.
    fn shared_limits(&self, database: &Database, user: &str, login: &str) -> SharedLimits {
        let of = |name: &str, own: fn(&User) -> Option<u32>| self.users.get(name).and_then(own);
        SharedLimits {
            database_servers: database.max_servers.unwrap_or(self.pool.max_per_database),
            user_servers: of(login, |user| user.max_servers).unwrap_or(self.pool.max_per_user),
            database_clients: database.max_clients.unwrap_or(self.pool.max_clients_per_database),
            user_clients: of(user, |user| user.max_clients).unwrap_or(self.pool.max_clients_per_user),
        }
    }

    /// How users without a password here are looked up for clients of a database; `None` if they are not.
    pub fn lookup(&self, database: &str) -> Option<Lookup> {
        let found = match self.database(database) {
            Some((_, found)) => &found.lookup,
            None if self.auth.lookup_database.is_empty() => return None,
            None => &Lookup::default(),
        };
        let or = |own: &String, general: &String| if own.is_empty() { general.clone() } else { own.clone() };
        let lookup = Lookup {
            user: or(&found.user, &self.auth.lookup_user),
            query: or(&found.query, &self.auth.lookup_query),
            database: or(&found.database, &self.auth.lookup_database),
        };
        (!lookup.user.is_empty()).then_some(lookup)
    }

    /// The user of that name, if the configuration says that there is one.
    pub fn declared_user(&self, name: &str) -> Option<&User> {
        self.users.get(name).filter(|user| user.is_declared)
    }

    /// Whether any users are looked up on a server.
    pub fn looks_up_users(&self) -> bool {
        looks_up_users(&self.auth, &self.databases)
    }

    /// The secret for logins to a server: the database's password, unless that is somebody else's, else that of the user of
    /// the same name.
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
    /// Whether a client is believed by now: without more, by its certificate, or by the line of the file that fits.
    #[must_use]
    pub fn asks_nothing(self) -> bool {
        matches!(self, Self::Trust | Self::Hba | Self::Cert)
    }

    /// Whether a client may be let in by a password that only somebody else knows.
    #[must_use]
    pub fn may_vouch(self) -> bool {
        matches!(self, Self::Pam | Self::Ldap | Self::Hba)
    }
}

impl Database {
    /// The mode of its pools, if it has one of its own.
    #[must_use]
    pub fn own_mode(&self) -> Option<Mode> {
        self.overrides.pool.mode
    }

    /// The user that all its clients share a pool of, if they do.
    #[must_use]
    pub fn shared_user(&self) -> Option<&str> {
        (self.shared_pool && !self.user.is_empty()).then_some(&self.user)
    }

    /// Several servers, a name that stands for several, or a route that was asked for: then each transaction gets one
    /// that fits.
    fn has_choice(&self) -> bool {
        self.hosts.len() > 1 || self.hosts.iter().any(|spec| spec.srv) || self.overrides.route.route.is_some()
    }
}

fn looks_up_users(auth: &Auth, databases: &BTreeMap<String, Database>) -> bool {
    !auth.lookup_user.is_empty() || databases.values().any(|database| !database.lookup.user.is_empty())
}

/// The user's settings over the database's over the defaults.
fn merged<T>(base: &T, database: &Database, user: Option<&User>, over: impl Fn(&Overrides, &T) -> T) -> T {
    let settings = over(&database.overrides, base);
    match user.and_then(|user| user.overrides.as_deref()) {
        Some(overrides) => over(overrides, &settings),
        None => settings,
    }
}

/// Reads an address to listen on: `127.0.0.1:6432`, `[::1]:6432`, `localhost:6432`, `*:6432`.
///
/// # Errors
/// A sentence that says what is wrong and what to write instead.
pub fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    setting::listen_address(text).map_err(|wrong| format!("{}; {}", wrong.reason, wrong.help))
}

/// Reads a time with its unit: `250ms`, `5s`, `2min`, `1h`.
///
/// # Errors
/// A sentence that says what is wrong and what to write instead.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    setting::duration(text).map_err(|wrong| format!("{}; {}", wrong.reason, wrong.help.replace("; 0 is off", "")))
}

impl Listen {
    /// Whether clients are asked for a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.tls != ClientTls::Off && !self.tls_client_ca.as_os_str().is_empty()
    }

    /// The port by which clients know the unix socket, whether there is one or not.
    pub fn unix_port(&self) -> u16 {
        let first = self.addresses.first().map_or(DEFAULT_PORT, SocketAddr::port);
        if self.unix_socket_port == 0 { first } else { self.unix_socket_port }
    }

    /// The file of the unix socket, if there is to be one.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        let is_wanted = !self.unix_socket_dir.as_os_str().is_empty();
        is_wanted.then(|| url::socket_path(&self.unix_socket_dir, self.unix_port()))
    }
}

/// The port clients are told to use.
pub const DEFAULT_PORT: u16 = 6432;

impl Admin {
    /// The databases that are the console; no upstream can have such a name.
    pub const DATABASES: &'static [&'static str] = &["tidegate", "pgbouncer"];
    /// What the console is called in its own tables, as database, as pool and as user, under whichever name clients have
    /// come to it: dashboards know this one.
    pub const SHOWN: &'static str = "pgbouncer";

    /// What rules call it, under whichever name clients come to it.
    #[must_use]
    pub const fn name(dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Postgres => "tidegate",
            Dialect::Pgbouncer => Self::SHOWN,
        }
    }
}
