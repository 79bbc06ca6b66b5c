//! State shared by all threads of one gateway. No query touches it while it runs.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Instant, SystemTime},
};

use arc_swap::ArcSwap;
use rustls::{ClientConfig, ServerConfig};
use tidegate_config::{AuthMethod, Config, Diagnostic, Dialect, PoolPlan, ReserveDelay, hba};
use tidegate_login_throttle::MockSecrets;
use tidegate_pg_client::{ConnectError, Connector, resolve::Resolver};
use tidegate_pool::{Limits, Pool};
use tidegate_query_log::writer::QueryLog;
use tidegate_tls as tls;
use tidegate_tls::{HttpAlpn, TlsError};
use tidegate_topology::{Cluster, ClusterNode};

use super::{lock, pool_key::PoolKey};
use crate::{error::Cause, server::Server};

mod cancels;
mod clients;
mod clusters;
mod configuration;
mod first_login;
mod lifecycle;
mod operator;
mod outcomes;
mod peers;
mod pools;
mod quota;
mod register;
mod server_params;
mod statistics;
mod thread_control;

use cancels::Cancels;
use first_login::FirstLogins;
use server_params::ServerParams;

pub use cancels::{CancelStage, CountedCancel};
pub use clients::Clients;
pub use configuration::{Configuration, FileReader, OLD_TLS, ReloadAnswer, ReloadOutcome, ReloadReply};
pub use first_login::FirstLogin;
pub use lifecycle::{Lifecycle, Phase};
pub use outcomes::ClientOutcomes;
pub use peers::{PeerCounts, PeerQueue, PeerRequest, Peers};
pub use pools::Pools;
pub use quota::{ConnectionUse, CountGuard, QuotaExceeded, QuotaGuard};
pub use register::ServerEntry;
pub use statistics::{ConsoleCounts, Statistics};
pub use thread_control::ThreadControl;
use tidegate_handover::SessionMoves;
pub use tidegate_login_throttle::{
    FailedLoginCounts, FailedLoginSource, FailedLogins, Network, Rules as FailedLoginRules,
};
pub use tidegate_tls::CertificateExpiry;

/// A configuration with the files it names, loaded. Replaced as a whole.
pub struct Setup {
    /// The configuration.
    pub config: Config,
    /// TLS for clients.
    pub client_tls: Option<Arc<tls::TlsAcceptor>>,
    /// TLS of the metrics endpoint.
    pub metrics_tls: Option<Arc<ServerConfig>>,
    /// TLS of the web console.
    pub web_tls: Option<Arc<ServerConfig>>,
    /// TLS of the addresses of `[shapes]`.
    pub shapes_tls: Option<Arc<ServerConfig>>,
    /// When the certificates of the configuration expire.
    pub expiries: Vec<CertificateExpiry>,
    /// TLS for server connections, by entry of `[databases]`.
    pub server_tls: HashMap<String, Arc<ClientConfig>>,
    /// The rules of the HBA file, for method `hba`.
    pub hba: Option<hba::HbaRules>,
    /// The directory, for method `ldap`.
    pub ldap: Option<Arc<hba::LdapConfig>>,
    /// Mock secrets for unknown users.
    mock_secrets: MockSecrets,
}

/// A file of the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The HBA file or the ident map file.
    #[error(transparent)]
    Hba(#[from] hba::HbaError),
    /// `ldap_options`.
    #[error("auth.ldap_options: {0}")]
    Ldap(String),
}

impl SetupError {
    /// The error as a finding, placed in the file at fault, or at the key.
    #[must_use]
    pub fn finding(&self) -> Diagnostic {
        match self {
            Self::Tls(error) => Diagnostic::file_error(error.path(), 1, "tls", self.to_string()),
            Self::Hba(error) => {
                Diagnostic::file_error(error.file(), error.line(), "auth.hba_file", error.reason().to_owned())
            }
            Self::Ldap(reason) => Diagnostic::file_error("auth.ldap_options", 1, "auth.ldap_options", reason.clone()),
        }
    }

    /// The file or key, without its content: safe for an admin console.
    #[must_use]
    pub fn outline(&self) -> String {
        match self {
            Self::Tls(error) => error.outline(),
            Self::Hba(error) => error.outline(),
            Self::Ldap(_) => "auth.ldap_options: invalid setting".to_owned(),
        }
    }
}

impl Setup {
    /// Loads the files that the configuration names.
    ///
    /// # Errors
    /// The first file that cannot be used, and why.
    pub fn new(config: Config) -> Result<Self, SetupError> {
        let client_tls = tls::for_clients(&config.listen)?;
        let mut server_tls = HashMap::new();
        for (entry, database) in &config.databases {
            if let Some(tls) = tls::for_servers(&database.tls)? {
                server_tls.insert(entry.clone(), tls);
            }
        }
        Self::with_tls(config, client_tls, server_tls)
    }

    /// As [`Setup::new`], with the TLS of `old` for all clients, and for servers of databases that it has. PgBouncer applies a
    /// configuration whose certificates cannot be used in this way: a certificate and its key are often replaced one by one.
    ///
    /// # Errors
    /// As [`Setup::new`], for other files.
    pub fn with_old_tls(mut config: Config, old: &Self) -> Result<Self, SetupError> {
        config.keep_tls(&old.config);
        let mut server_tls = HashMap::new();
        for (entry, database) in &config.databases {
            let known = old.config.databases.contains_key(entry).then(|| old.server_tls.get(entry).cloned());
            let tls = known.map_or_else(|| tls::for_servers(&database.tls), Ok)?;
            server_tls.extend(tls.map(|tls| (entry.clone(), tls)));
        }
        Self::with_tls(config, old.client_tls.clone(), server_tls)
    }

    fn with_tls(
        config: Config,
        client_tls: Option<Arc<tls::TlsAcceptor>>,
        server_tls: HashMap<String, Arc<ClientConfig>>,
    ) -> Result<Self, SetupError> {
        let [metrics_tls, web_tls, shapes_tls] = http_tls(&config);
        let (metrics_tls, web_tls, shapes_tls) = (metrics_tls?, web_tls?, shapes_tls?);
        let (hba, ldap) = (rules(&config)?, directory(&config)?);
        let expiries = tls::expiries(&config);
        let mock_secrets = MockSecrets::of(config.users.values());
        Ok(Self { config, client_tls, metrics_tls, web_tls, shapes_tls, expiries, server_tls, hba, ldap, mock_secrets })
    }

    /// Every error, where [`Setup::new`] stops at the first.
    #[must_use]
    pub fn errors(config: &Config) -> Vec<SetupError> {
        let clients = tls::for_clients(&config.listen).err().map(SetupError::Tls);
        let mut errors: Vec<SetupError> = clients.into_iter().collect();
        errors.extend(http_tls(config).into_iter().filter_map(|tls| tls.err().map(SetupError::Tls)));
        for database in config.databases.values() {
            let error = tls::for_servers(&database.tls).err().map(SetupError::Tls);
            // Most databases name the same files.
            errors.extend(error.filter(|new| errors.iter().all(|known| known.to_string() != new.to_string())));
        }
        errors.extend(rules(config).err().map(SetupError::Hba));
        errors.extend(directory(config).err());
        errors
    }
}

/// TLS of metrics, of the web console and of shapes.
fn http_tls(config: &Config) -> [Result<Option<Arc<ServerConfig>>, TlsError>; 3] {
    let Config { metrics, admin_http, shapes, .. } = config;
    [
        tls::for_http(&metrics.tls_cert, &metrics.tls_key, HttpAlpn::Http1),
        tls::for_http(&admin_http.tls_cert, &admin_http.tls_key, HttpAlpn::Http1),
        tls::for_http(&shapes.tls_cert, &shapes.tls_key, HttpAlpn::Http1And2),
    ]
}

/// The HBA rules of a configuration with method `hba`. Rules that need a certificate are refused if clients are not asked for
/// one.
fn rules(config: &Config) -> Result<Option<hba::HbaRules>, hba::HbaError> {
    if config.auth.method != AuthMethod::Hba {
        return Ok(None);
    }
    let rules = hba::HbaRules::load(&config.auth.hba_file, &config.auth.ident_file)?;
    if !config.listen.requests_client_certificates() {
        match rules.reject_certificate_rules(&config.auth.hba_file) {
            // Like PgBouncer: such clients are rejected.
            Err(error) if config.listen.dialect == Dialect::Pgbouncer => tracing::warn!(%error, "hba_file"),
            checked => checked?,
        }
    }
    Ok(Some(rules))
}

/// The directory of a configuration with method `ldap`.
fn directory(config: &Config) -> Result<Option<Arc<hba::LdapConfig>>, SetupError> {
    if config.auth.method != AuthMethod::Ldap {
        return Ok(None);
    }
    let options = hba::LdapConfig::parse(config.auth.ldap_options.reveal());
    options.map(|ldap| Some(Arc::new(ldap))).map_err(SetupError::Ldap)
}

/// A pool, shared by all threads.
pub struct SharedPool {
    /// The key of the pool.
    pub key: PoolKey,
    /// Number in order of creation.
    pub id: usize,
    /// The connections.
    pub pool: Arc<Pool<Server>>,
    /// Parameters reported to a client without settings. Shared by all servers of a cluster.
    server_params: Arc<Mutex<ServerParams>>,
    first_logins: FirstLogins,
    /// See [`hold_spreading`](Self::hold_spreading).
    spreading: Mutex<()>,
    /// The cluster that its transactions choose from.
    cluster: Mutex<Option<Arc<Cluster>>>,
    plan: ArcSwap<PoolPlan>,
    reconnected_at: Mutex<Option<SystemTime>>,
    /// The last reconnect was caused by a pause.
    closed_by_pause: AtomicBool,
    /// Error of the last connection attempt, if it failed.
    failure: Mutex<Option<Arc<str>>>,
    /// See [`spare_places`](Self::spare_places).
    spare_places: AtomicUsize,
    /// Server connections of replication clients, which do not belong to the pool.
    replicating: AtomicUsize,
    cancels: Cancels,
}

/// A server connection of a replication client; counted until dropped.
pub struct Replicating(Arc<SharedPool>);

impl Drop for Replicating {
    fn drop(&mut self) {
        self.0.replicating.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SharedPool {
    /// Counts a server connection for a replication client; `None` while the pool is paused, and if there are `max` already.
    #[must_use]
    pub fn replicate(self: &Arc<Self>, max: usize) -> Option<Replicating> {
        // Counted before the check, so that of a concurrent pause and a new client at least one sees the other.
        let before = self.replicating.fetch_add(1, Ordering::SeqCst);
        let counted = Replicating(self.clone());
        (before < max && !self.pool.is_paused()).then_some(counted)
    }

    /// Number of server connections of replication clients.
    #[must_use]
    pub fn replicating(&self) -> usize {
        self.replicating.load(Ordering::SeqCst)
    }

    /// All server connections: pooled, and of replication clients.
    #[must_use]
    pub fn open(&self) -> usize {
        self.pool.counts().open + self.replicating()
    }

    /// Queue places of its clients beyond one per client. A client that waits for several servers has several places.
    #[must_use]
    pub fn spare_places(&self) -> usize {
        self.spare_places.load(Ordering::Relaxed)
    }

    /// Changes the number of places of one client.
    pub fn recount_places(&self, before: usize, now: usize) {
        // Wrapping subtraction: `now` may be smaller.
        self.spare_places.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Serialises the choice of a server for clients that found no idle connection, until the connect has started.
    pub fn hold_spreading(&self) -> MutexGuard<'_, ()> {
        lock(&self.spreading)
    }

    /// Records the error of a failed connection attempt.
    pub fn note_failure(&self, error: &str) {
        *lock(&self.failure) = Some(error.into());
    }

    /// Error of the last connection attempt, if it failed.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<str>> {
        lock(&self.failure).clone()
    }

    /// Whether the last connection attempt failed.
    fn fails(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// Whether the previous connection attempt failed; clears the flag.
    pub fn take_failure(&self) -> bool {
        lock(&self.failure).take().is_some()
    }

    /// Settings of the pool.
    #[must_use]
    pub fn plan(&self) -> Arc<PoolPlan> {
        self.plan.load_full()
    }

    /// The cluster that its transactions choose from; for the pool of a single server, the cluster of that server.
    #[must_use]
    pub fn cluster(&self) -> Option<Arc<Cluster>> {
        lock(&self.cluster).clone()
    }
}

/// State shared by all threads of one gateway, by owner. A function takes the owner that it uses, not the whole gateway.
pub struct Gateway {
    /// The configuration in force, and the requests to reload it.
    pub config: Configuration,
    /// Server connections: pools, clusters of servers, and what opens a connection.
    pub pools: Pools,
    /// Clients: their number, their limits and the state of failed logins.
    pub clients: Clients,
    /// The phase of the gateway, the orders of operators and the tree of tasks.
    pub lifecycle: Lifecycle,
    /// Other gateways behind the same address.
    pub peers: Peers,
    /// Sessions that move between this process, its predecessor and its successor.
    pub moves: SessionMoves,
    /// Counters of the console, and samples for averages.
    pub statistics: Statistics,
    /// The query log, if there is one.
    pub query_log: Option<QueryLog>,
    threads: Arc<dyn ThreadControl>,
}

impl Gateway {
    /// A gateway with these threads, which the caller starts.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(setup: Setup, threads: Arc<dyn ThreadControl>, resolver: Resolver) -> std::io::Result<Self> {
        let lifecycle = Lifecycle::new(&resolver);
        resolver.set_times(&setup.config.dns);
        let connector = Connector::new(resolver.in_scope(&lifecycle.scope));
        let clients = Clients::new(threads.count(), &setup.config.auth, connector.ids().clone())?;
        Ok(Self {
            pools: Pools::new(connector),
            clients,
            lifecycle,
            peers: Peers::new(setup.config.listen.peer_id),
            moves: SessionMoves::default(),
            statistics: Statistics::new(Instant::now()),
            config: Configuration::new(setup),
            query_log: None,
            threads,
        })
    }

    /// Puts a configuration in force for logins and pools.
    pub fn replace_setup(self: &Arc<Self>, setup: Setup) {
        let replacing = self.pools.hold_replacing();
        self.config.store(setup);
        let connector = &self.pools.connector;
        connector.secrets.clear_derived();
        let setup = self.config.setup();
        if !setup.config.auth.method.allows_external_auth() {
            connector.secrets.clear_external_passwords();
        }
        connector.resolver.set_times(&setup.config.dns);
        let (homes, _) = self.pools.homes_and_hosts();
        homes.iter().for_each(|pool| self.follow_setup(&setup, pool));
        // Before the pools of the servers: a closed cluster creates no pool.
        self.close_unused_clusters();
        let (_, hosts) = self.pools.homes_and_hosts();
        hosts.iter().for_each(|pool| self.follow_setup(&setup, pool));
        drop(replacing);
        self.open_kept_pools();
    }

    /// Opens the pools with `min_size` before a client connects. Only databases with one server user for all clients have
    /// such a pool; the users of the others are unknown.
    pub fn open_kept_pools(self: &Arc<Self>) {
        for (database, user) in self.config.setup().config.shared_users() {
            let plan = self.config.setup().config.pool_for(database, user);
            if plan.is_none_or(|plan| plan.pool.min_size == 0 || plan.choice.is_some()) {
                continue;
            }
            if let Some(pool) = self.pool(database, user) {
                // The sweep timer of that thread opens the connections.
                self.threads.open_pool(pool.id % self.threads.count().max(1), pool);
            }
        }
    }

    /// Applies a new configuration to a pool, or removes the pool.
    fn follow_setup(self: &Arc<Self>, setup: &Setup, pool: &SharedPool) {
        let Some(plan) = pool.key.plan(&setup.config) else {
            let refusal = Cause::Removed.refusal(setup.config.listen.dialect);
            return self.pools.remove(pool, ConnectError::Removed(refusal));
        };
        let Some(plan) = self.follow_choice(pool, plan) else {
            let why = ConnectError::Closed("the server was taken out of the configuration");
            return self.pools.remove(pool, why);
        };
        let old = pool.plan();
        pool.pool.set_limits(limits(&plan));
        let reconnects = needs_reconnect(&old, &plan);
        pool.plan.store(Arc::new(plan));
        // Last, so that connections opened from here on follow the new plan.
        if reconnects {
            pool.reconnect();
        }
    }

    /// The pool for a client's database and user; `None` if the database does not exist or is disabled.
    #[must_use]
    pub fn pool(self: &Arc<Self>, database: &str, user: &str) -> Option<Arc<SharedPool>> {
        if self.lifecycle.is_disabled(database) {
            return None;
        }
        self.pool_of_client(database, user)
    }

    /// The pool of a client that is logged in; `None` if the database was removed.
    #[must_use]
    pub fn pool_of_client(self: &Arc<Self>, database: &str, user: &str) -> Option<Arc<SharedPool>> {
        let setup = self.config.setup();
        let user = setup.config.pool_user(database, user);
        self.pool_of(PoolKey::new(database, user), &setup)
    }

    /// The pool for look-ups of users of a database; `None` as for [`pool`](Self::pool).
    pub fn lookup_pool(self: &Arc<Self>, database: &str, user: &str) -> Option<Arc<SharedPool>> {
        if self.lifecycle.is_disabled(database) {
            return None;
        }
        self.pool_of(PoolKey { looks_up: true, ..PoolKey::new(database, user) }, &self.config.setup())
    }

    fn pool_of(self: &Arc<Self>, key: PoolKey, setup: &Arc<Setup>) -> Option<Arc<SharedPool>> {
        if let Some(pool) = self.pools.get(&key) {
            return Some(pool);
        }
        let plan = key.plan(&setup.config)?;
        if plan.entry == "*"
            && setup.config.listen.dialect == Dialect::Pgbouncer
            && !self.pools.has_database(&key.database)
        {
            tracing::info!("registered new auto-database: {}", key.database);
        }
        let cluster = self.cluster_of(&plan);
        let pool = self.enter_pool(key, plan, cluster, Arc::default());
        // A concurrent reload may not have seen the new pool.
        let _replacing = self.pools.hold_replacing();
        let now = self.config.setup();
        if !Arc::ptr_eq(&now, setup) {
            self.follow_setup(&now, &pool);
        }
        if let Some(cluster) = pool.cluster() {
            self.watch_cluster(&cluster, &pool.plan());
        }
        (!pool.pool.is_closed()).then_some(pool)
    }

    /// The pool of one server of a cluster, for the clients of `home`; `None` if the server or the cluster was removed.
    #[must_use]
    pub fn host_pool(
        self: &Arc<Self>,
        home: &SharedPool,
        cluster: &Arc<Cluster>,
        node: &ClusterNode,
    ) -> Option<Arc<SharedPool>> {
        let key = PoolKey { host: Some(node.name.clone()), ..home.key.clone() };
        let plan = one_of(&home.plan(), node);
        let pool = self.enter_pool(key, plan, Some(cluster.clone()), home.server_params.clone());
        // Checked after the pool is registered: a removal marks the server first and looks for its pools second.
        if !cluster.is_closed() && !node.is_removed() {
            return Some(pool);
        }
        // If another cluster has taken the pool over, it stays.
        if pool.cluster().is_some_and(|own| Arc::ptr_eq(&own, cluster)) {
            self.pools.remove(&pool, ConnectError::Closed("the server was taken out"));
        }
        None
    }

    /// The pool with that key; created if missing.
    fn enter_pool(
        self: &Arc<Self>,
        key: PoolKey,
        plan: PoolPlan,
        cluster: Option<Arc<Cluster>>,
        server_params: Arc<Mutex<ServerParams>>,
    ) -> Arc<SharedPool> {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(&key) {
            return pool.clone();
        }
        let pool = Arc::new(SharedPool {
            key: key.clone(),
            id: self.pools.next_id(),
            pool: self.open_pool(&plan, &key),
            server_params,
            first_logins: FirstLogins::default(),
            spreading: Mutex::default(),
            cluster: Mutex::new(cluster),
            plan: ArcSwap::from_pointee(plan),
            reconnected_at: Mutex::default(),
            closed_by_pause: AtomicBool::new(false),
            failure: Mutex::default(),
            spare_places: AtomicUsize::new(0),
            replicating: AtomicUsize::new(0),
            cancels: Cancels::default(),
        });
        if self.lifecycle.is_paused(&key.database) {
            pool.pool.pause();
        }
        pools.insert(key, pool.clone());
        pool
    }

    fn open_pool(&self, plan: &PoolPlan, key: &PoolKey) -> Arc<Pool<Server>> {
        let (threads, key) = (self.threads.clone(), key.clone());
        let wake = move |thread: usize| threads.pool_mail(thread, key.clone());
        Pool::new(self.clients.threads(), limits(plan), fastrand::u64(..), Instant::now(), wake)
    }

    /// SCRAM iterations that a mock login of an unknown user shows; `None` if it appears to have a password or an md5 hash.
    #[must_use]
    pub fn mock_iterations(&self, entry: &str, user: &str) -> Option<u32> {
        match self.pools.connector.secrets.lookup_iterations(entry) {
            Some(looked_up) => looked_up,
            None => self.config.setup().mock_secrets.pick(self.clients.salt_secret(), user),
        }
    }
}

/// Limits of the pool, from its settings.
fn limits(plan: &PoolPlan) -> Limits {
    let or_none = |time: std::time::Duration| (!time.is_zero()).then_some(time);
    let (pool, timeouts) = (&plan.pool, &plan.timeouts);
    let (reserve, reserve_after) = match pool.reserve_after {
        ReserveDelay::Wait(wait) => (pool.reserve_size, wait),
        ReserveDelay::Never => (0, std::time::Duration::ZERO),
    };
    // A connection for a single use is closed by its session.
    let lifetime = timeouts.server_lifetime.age();
    Limits {
        size: pool.size as usize,
        // Where several servers can be chosen, each has a pool of its own, and this one opens nothing.
        min: if plan.choice.is_some() { 0 } else { pool.min_size as usize },
        reserve: reserve as usize,
        reserve_after,
        connecting_max: pool.connects_in_flight as usize,
        lifetime,
        lifetime_jitter: lifetime.unwrap_or_default() / 10,
        idle_timeout: or_none(timeouts.server_idle),
        oldest_first: pool.oldest_first,
        retry_start: timeouts.connect_retry,
        retry_max: timeouts.connect_retry_max.max(timeouts.connect_retry),
        ..Limits::default()
    }
}

/// The settings for the pool of a single server.
pub(super) fn one_of(plan: &PoolPlan, node: &ClusterNode) -> PoolPlan {
    PoolPlan { hosts: vec![node.host.clone()], address: node.address, choice: None, ..plan.clone() }
}

/// Whether connections opened under the old settings must be replaced.
fn needs_reconnect(old: &PoolPlan, new: &PoolPlan) -> bool {
    old.hosts != new.hosts
        || old.address != new.address
        || old.choice.is_some() != new.choice.is_some()
        || old.dbname != new.dbname
        || old.user != new.user
        || old.tls != new.tls
        || old.startup_parameters != new.startup_parameters
        || old.connect_query != new.connect_query
}
