//! Work that a data-plane thread must not wait for: name look-ups and key derivations, done on the control plane.

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

use names::{Found, Names};
use tidegate_config as config;
use tidegate_tasks as tree;
use tidegate_tasks::Job;

pub use names::{ChangedName, KnownName};
pub use rotation::Rotation;

/// Hands work to the control plane, and brings the result back.
#[derive(Clone, Debug)]
pub struct Resolver {
    jobs: Supervisor<Tokio, Job>,
    jobs_begun: Arc<AtomicU64>,
    /// Who is asked for addresses; the system itself, if nobody is named.
    dns: Option<DnsClient>,
    rules: ResolveSettings,
    names: Arc<Mutex<Names>>,
}

/// The system's fixed names; they go before name servers.
const HOSTS_FILE: &str = "/etc/hosts";

/// One look-up for a connection takes no longer.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(10);

impl Resolver {
    /// Works on this tokio runtime, and asks the system for addresses.
    #[must_use]
    pub fn new(control: Handle) -> Self {
        let jobs = Scope::root("look-ups").on(Tokio::new(control));
        Self {
            jobs,
            jobs_begun: Arc::default(),
            dns: None,
            rules: rules(&config::Dns::default()),
            names: Arc::default(),
        }
    }

    /// The same with other settings.
    #[must_use]
    pub fn with(self, settings: &config::Dns) -> Self {
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

    fn names(&self) -> MutexGuard<'_, Names> {
        // Whoever panicked here has changed nothing by halves.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long look-ups for connections hold, and those that found nothing; and for how long addresses of names whose
    /// answers take turns may be left out.
    pub fn set_times(&self, settings: &config::Dns) {
        self.names().set_times(settings.cache_ttl, settings.cache_failure_ttl, settings.rotation_grace);
    }

    /// For how long addresses of names whose answers take turns may be left out.
    #[must_use]
    pub fn rotation_grace(&self) -> Duration {
        self.names().rotation_grace()
    }

    /// The same, with all that it does from now on below this scope.
    #[must_use]
    pub fn under(self, parent: &Scope) -> Self {
        let jobs = tree::control(parent, "look-ups").build().on(self.runtime());
        Self { jobs, ..self }
    }

    /// The control plane.
    #[must_use]
    pub fn runtime(&self) -> Tokio {
        self.jobs.runtime().clone()
    }

    fn job(&self, what: &str) -> Job {
        Job { what: what.to_owned(), number: self.jobs_begun.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// When names that are followed are looked up again.
    #[must_use]
    pub fn rules(&self) -> ResolveSettings {
        self.rules.clone()
    }

    /// Looks a name up again and again.
    #[must_use]
    pub fn follow(&self, name: &str, port: u16) -> Box<dyn Resolve> {
        match &self.dns {
            Some(dns) => dns.host(name, port),
            None => Box::new(SystemName { name: name.to_owned(), port, resolver: self.clone() }),
        }
    }

    /// Looks the SRV records of a name up again and again.
    #[must_use]
    pub fn services(&self, name: &str) -> Box<dyn Resolve> {
        // The system's own resolver does not know of them; its name servers do.
        self.dns.clone().unwrap_or_else(DnsClient::system).srv(name)
    }

    /// The addresses of a name, as they were found a while ago if that holds still.
    ///
    /// # Errors
    /// What the resolver says.
    ///
    /// # Cancel safety
    /// Safe: the look-up ends by itself, its result is dropped.
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

    async fn look_up(&self, name: &str) -> Found {
        let found = match &self.dns {
            Some(dns) => self.ask(name, dns.host(name, 0)).await,
            None => self.ask_system(name).await,
        };
        self.names().learn(name, &found, Instant::now());
        found
    }

    async fn ask_system(&self, name: &str) -> Found {
        let asked = name.to_owned();
        let found = self.offload(name, move || {
            use std::net::ToSocketAddrs;
            (asked.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>)
        });
        match found.await {
            Some(Ok(addresses)) if addresses.is_empty() => Err("it has no address".into()),
            Some(found) => found.map_err(|error| error.to_string()),
            None => Err(STOPPING.into()),
        }
    }

    /// Looks up again what was looked up before.
    ///
    /// # Cancel safety
    /// Safe: the others are looked up when they are needed.
    pub async fn refresh(&self) {
        for known in self.known_names() {
            // What is wrong with it is told to whoever needs it.
            drop(self.look_up(&known.name).await);
        }
    }

    /// The names that are kept, in order.
    #[must_use]
    pub fn known_names(&self) -> Vec<KnownName> {
        self.names().known(Instant::now())
    }

    /// The names that were found to mean other addresses since this was asked last.
    #[must_use]
    pub fn take_changed_names(&self) -> Vec<ChangedName> {
        self.names().take_changed()
    }

    /// Asks name servers, from a thread of the data plane.
    async fn ask(&self, name: &str, mut look: Box<dyn Resolve>) -> Result<Vec<SocketAddr>, String> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let asking = self.jobs.spawn_as(self.job(name), |ctx| async move {
            let looked = tokio::select! {
                () = ctx.cancelled() => return,
                looked = tokio::time::timeout(LOOK_UP_LIMIT, look.resolve()) => looked,
            };
            // The asker may have gone.
            let _ = send.send(looked.unwrap_or(Err(ResolveError::TimedOut(LOOK_UP_LIMIT))));
        });
        asking.map_err(|_| STOPPING.to_owned())?;
        let found = receive.await.map_err(|_| STOPPING.to_owned())?.map_err(|error| error.to_string())?.addresses;
        let socket = |resolved: ResolvedAddress| match resolved.address {
            EndpointAddress::Socket(address) => Some(address),
            _ => None,
        };
        Ok(found.into_iter().filter_map(socket).collect())
    }

    /// Runs `work` on a thread that may block; `what` names it where tasks are reported. `None` if the process is stopping,
    /// or if `work` panicked.
    ///
    /// # Cancel safety
    /// Safe: the work ends by itself, its result is dropped.
    pub async fn offload<T: Send + 'static>(&self, what: &str, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (send, receive) = tokio::sync::oneshot::channel();
        // The asker may have gone.
        let begun = self.jobs.spawn_blocking_as(self.job(what), move |_| drop(send.send(work())));
        begun.ok()?;
        receive.await.ok()
    }

    /// The same for work that waits as well, and has much to do in between.
    ///
    /// # Cancel safety
    /// Safe: the work ends by itself, its result is dropped.
    pub async fn offload_async<T, F>(&self, what: &str, work: impl FnOnce() -> F + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        self.offload(what, move || tokio::runtime::Handle::current().block_on(work())).await
    }
}

const STOPPING: &str = "the gateway is stopping";

fn rules(settings: &config::Dns) -> ResolveSettings {
    let usual = ResolveSettings::default();
    ResolveSettings {
        interval_min: settings.ttl_min,
        interval_max: settings.ttl_max,
        interval: usual.interval.min(settings.ttl_max).max(settings.ttl_min),
        backoff: Backoff { first: settings.ttl_min, max: settings.ttl_max, ..usual.backoff },
        ..usual
    }
}

/// A name as the system resolves it, as for a database with one host.
struct SystemName {
    name: String,
    port: u16,
    resolver: Resolver,
}

impl Resolve for SystemName {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        Box::pin(async {
            // Anew: whoever follows a name has rules of its own for when to ask.
            let found = self.resolver.look_up(&self.name).await;
            let found = found.map_err(|error| ResolveError::lookup(&self.name, std::io::Error::other(error)))?;
            // The port alone is changed: an address of IPv6 may have a zone.
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
    async fn an_address_of_a_link_keeps_its_zone() {
        let resolver = Resolver::new(Handle::current());
        let known = resolver.resolve("fe80::1%lo", 5432).await.expect("an address");
        let followed = resolver.follow("fe80::1%lo", 5432).resolve().await.expect("an address").addresses;
        let followed = followed.iter().map(|found| &found.address).collect::<Vec<_>>();
        assert_eq!(followed, [&EndpointAddress::Socket(known[0])]);
        assert!(matches!(known[0], SocketAddr::V6(address) if address.scope_id() > 0 && address.port() == 5432));
    }
}
