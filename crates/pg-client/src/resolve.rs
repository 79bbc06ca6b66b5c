//! Work that a data-plane thread must not block on: name resolution and key derivation, run on the control plane.

mod names;
mod rotation;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate_balance::{
    Backoff, DnsClient, EndpointAddress, Resolution, Resolve, ResolveError, ResolveFuture, ResolveSettings,
    ResolvedAddress,
};
use tidegate_supervise::{Scope, Supervisor, Tokio};
use tokio::runtime::Handle;

use names::{LookupResult, NameCache};
use tidegate_config as config;
use tidegate_tasks as tasks;
use tidegate_tasks::JobKey;

pub use names::{CachedName, ChangedName};
pub use rotation::AddressRotation;

/// Runs work on the control plane and returns its result.
#[derive(Clone, Debug)]
pub struct Resolver {
    jobs: Supervisor<Tokio, JobKey>,
    jobs_started: Arc<AtomicU64>,
    /// Client for name servers; `None` for the system's resolver.
    dns: Option<DnsClient>,
    rules: ResolveSettings,
    names: Arc<Mutex<NameCache>>,
}

/// Static host names of the system; they precede name servers.
const HOSTS_FILE: &str = "/etc/hosts";

/// Limit of one look-up for a connection.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(10);

impl Resolver {
    /// Creates a resolver that works on this tokio runtime and uses the system's resolver.
    #[must_use]
    pub fn new(control: Handle) -> Self {
        let jobs = Scope::root("look-ups").on(Tokio::new(control));
        Self {
            jobs,
            jobs_started: Arc::default(),
            dns: None,
            rules: rules(&config::DnsConfig::default()),
            names: Arc::default(),
        }
    }

    /// Applies the settings of `[dns]`.
    #[must_use]
    pub fn with_settings(self, settings: &config::DnsConfig) -> Self {
        let (servers, file) = (&settings.servers.0, &settings.resolv_conf);
        let dns = if !servers.is_empty() {
            Some(DnsClient::from_servers_and_hosts(servers.iter().copied(), HOSTS_FILE))
        } else if !file.as_os_str().is_empty() {
            Some(DnsClient::from_files(file, HOSTS_FILE))
        } else {
            None
        };
        self.set_times(settings);
        Self { dns, rules: rules(settings), ..self }
    }

    fn names(&self) -> MutexGuard<'_, NameCache> {
        // A holder that panicked left consistent data.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long successful and failed look-ups are cached, and how long an address of a rotating name may be missing.
    pub fn set_times(&self, settings: &config::DnsConfig) {
        self.names().set_times(settings.cache_ttl, settings.cache_failure_ttl, settings.rotation_grace);
    }

    /// How long an address of a rotating name may be missing.
    #[must_use]
    pub fn rotation_grace(&self) -> Duration {
        self.names().rotation_grace()
    }

    /// Runs all further work in a child of `parent`.
    #[must_use]
    pub fn in_scope(self, parent: &Scope) -> Self {
        let jobs = tasks::observed_scope(parent, "look-ups").build().on(self.runtime());
        Self { jobs, ..self }
    }

    /// The runtime of the control plane.
    #[must_use]
    pub fn runtime(&self) -> Tokio {
        self.jobs.runtime().clone()
    }

    fn job(&self, what: &str) -> JobKey {
        JobKey { what: what.to_owned(), number: self.jobs_started.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// When followed names are resolved again.
    #[must_use]
    pub fn rules(&self) -> ResolveSettings {
        self.rules.clone()
    }

    /// Resolves a name repeatedly.
    #[must_use]
    pub fn follow(&self, name: &str, port: u16) -> Box<dyn Resolve> {
        match &self.dns {
            Some(dns) => dns.host(name, port),
            None => Box::new(SystemName { name: name.to_owned(), port, resolver: self.clone() }),
        }
    }

    /// Resolves the SRV records of a name repeatedly.
    #[must_use]
    pub fn follow_srv(&self, name: &str) -> Box<dyn Resolve> {
        // The system's resolver has no SRV records; its name servers do.
        self.dns.clone().unwrap_or_else(DnsClient::system).srv(name)
    }

    /// Returns the addresses of a name, from the cache if the entry is valid.
    ///
    /// # Errors
    /// The error of the resolver.
    ///
    /// # Cancel safety
    /// Safe: the look-up ends by itself and its result is dropped.
    pub async fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let known = self.names().get(name, Instant::now());
        let found = match known {
            Some(found) => found,
            None => self.look_up(name).await,
        };
        let mut addresses = found?;
        addresses.iter_mut().for_each(|address| address.set_port(port));
        Ok(addresses)
    }

    async fn look_up(&self, name: &str) -> LookupResult {
        let found = match &self.dns {
            Some(dns) => self.query(name, dns.host(name, 0)).await,
            None => self.query_system(name).await,
        };
        self.names().record(name, &found, Instant::now());
        found
    }

    async fn query_system(&self, name: &str) -> LookupResult {
        let owned_name = name.to_owned();
        let found = self.offload(name, move || {
            use std::net::ToSocketAddrs;
            (owned_name.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>)
        });
        match found.await {
            Some(Ok(addresses)) if addresses.is_empty() => Err("the name has no address".into()),
            Some(found) => found.map_err(|error| error.to_string()),
            None => Err(STOPPING.into()),
        }
    }

    /// Resolves all cached names again.
    ///
    /// # Cancel safety
    /// Safe: names that are missing are resolved when they are needed.
    pub async fn refresh(&self) {
        for known in self.cached_names() {
            // Errors are returned to the next user of the name.
            drop(self.look_up(&known.name).await);
        }
    }

    /// The cached names, in order.
    #[must_use]
    pub fn cached_names(&self) -> Vec<CachedName> {
        self.names().known(Instant::now())
    }

    /// Returns the names whose addresses have changed since the last call.
    #[must_use]
    pub fn take_changed_names(&self) -> Vec<ChangedName> {
        self.names().take_changed()
    }

    /// Queries name servers from a thread of the data plane.
    async fn query(&self, name: &str, mut look: Box<dyn Resolve>) -> Result<Vec<SocketAddr>, String> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let spawned = self.jobs.spawn_as(self.job(name), |ctx| async move {
            let looked = tokio::select! {
                () = ctx.cancelled() => return,
                looked = tokio::time::timeout(LOOK_UP_LIMIT, look.resolve()) => looked,
            };
            // The receiver may be gone.
            let _ = send.send(looked.unwrap_or(Err(ResolveError::TimedOut(LOOK_UP_LIMIT))));
        });
        spawned.map_err(|_| STOPPING.to_owned())?;
        let found = receive.await.map_err(|_| STOPPING.to_owned())?.map_err(|error| error.to_string())?.addresses;
        let socket = |resolved: ResolvedAddress| match resolved.address {
            EndpointAddress::Socket(address) => Some(address),
            _ => None,
        };
        Ok(found.into_iter().filter_map(socket).collect())
    }

    /// Runs `work` on a blocking thread; `what` names it in reports about tasks. `None` if the process is stopping, or if `work`
    /// panicked.
    ///
    /// # Cancel safety
    /// Safe: the work ends by itself and its result is dropped.
    pub async fn offload<T: Send + 'static>(&self, what: &str, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (send, receive) = tokio::sync::oneshot::channel();
        // The receiver may be gone.
        let spawned = self.jobs.spawn_blocking_as(self.job(what), move |_| drop(send.send(work())));
        spawned.ok()?;
        receive.await.ok()
    }

    /// Runs asynchronous work that is CPU-bound between its waits.
    ///
    /// # Cancel safety
    /// Safe: the work ends by itself and its result is dropped.
    pub async fn offload_async<T, F>(&self, what: &str, work: impl FnOnce() -> F + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        self.offload(what, move || tokio::runtime::Handle::current().block_on(work())).await
    }
}

const STOPPING: &str = "the gateway is stopping";

fn rules(settings: &config::DnsConfig) -> ResolveSettings {
    let defaults = ResolveSettings::default();
    ResolveSettings {
        interval_min: settings.ttl_min,
        interval_max: settings.ttl_max,
        interval: defaults.interval.min(settings.ttl_max).max(settings.ttl_min),
        backoff: Backoff { first: settings.ttl_min, max: settings.ttl_max, ..defaults.backoff },
        ..defaults
    }
}

/// A name resolved by the system, for a database with one host.
struct SystemName {
    name: String,
    port: u16,
    resolver: Resolver,
}

impl Resolve for SystemName {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        Box::pin(async {
            // Never from the cache: the follower decides when to resolve again.
            let found = self.resolver.look_up(&self.name).await;
            let found = found.map_err(|error| ResolveError::lookup(&self.name, std::io::Error::other(error)))?;
            // Only the port changes: an IPv6 address may have a zone.
            let socket = |mut address: SocketAddr| {
                address.set_port(self.port);
                ResolvedAddress::new(EndpointAddress::Socket(address))
            };
            let addresses = found.into_iter().map(socket).collect();
            Ok(Resolution { addresses, ttl: None })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn link_local_address_keeps_its_zone() {
        let resolver = Resolver::new(Handle::current());
        let known = resolver.resolve("fe80::1%lo", 5432).await.expect("an address");
        let followed = resolver.follow("fe80::1%lo", 5432).resolve().await.expect("an address").addresses;
        let followed = followed.iter().map(|found| &found.address).collect::<Vec<_>>();
        assert_eq!(followed, [&EndpointAddress::Socket(known[0])]);
        assert!(matches!(known[0], SocketAddr::V6(address) if address.scope_id() > 0 && address.port() == 5432));
    }
}
