//! Names by DNS: A and AAAA looked up apart, SRV with priorities and weights, the system's files read when they change.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Resolver, TokioResolver};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::hosts::Hosts;
use super::{Resolution, Resolve, ResolveError, Resolving};
use crate::address::{Address, Resolved, interleave};

/// So many look-ups of one [`Dns`] are under way at once, however many names are followed.
const LOOKUPS_MAX: usize = 64;
/// So many targets of one SRV answer are looked up.
const SRV_TARGETS_MAX: usize = 128;
/// Once one family has addresses, the other has so long: some name servers never answer questions for AAAA records.
const SECOND_FAMILY_WAIT: Duration = Duration::from_secs(1);

/// A name service. Clones share its connections, and its bound on look-ups under way.
#[derive(Clone, Debug)]
pub struct Dns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    loaded: Mutex<Option<Arc<Loaded>>>,
    permits: Semaphore,
}

#[derive(Debug)]
enum Source {
    Files { resolv_conf: PathBuf, hosts: PathBuf },
    Servers { servers: Vec<SocketAddr>, hosts: Option<PathBuf> },
}

/// What the files said, and when they were written.
struct Loaded {
    stamp: [Option<(SystemTime, u64)>; 2],
    resolver: TokioResolver,
    hosts: Hosts,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("stamp", &self.stamp).finish_non_exhaustive()
    }
}

impl Dns {
    /// The system's name servers and its hosts file. Both files are read again when they change.
    pub fn system() -> Self {
        Self::from_files("/etc/resolv.conf", "/etc/hosts")
    }

    /// Like [`system`](Self::system), with files elsewhere.
    pub fn from_files(resolv_conf: impl Into<PathBuf>, hosts: impl Into<PathBuf>) -> Self {
        Self::of(Source::Files { resolv_conf: resolv_conf.into(), hosts: hosts.into() })
    }

    /// These name servers, and no hosts file.
    pub fn from_servers(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self::of(Source::Servers { servers: servers.into_iter().collect(), hosts: None })
    }

    /// These name servers, after a hosts file such as `/etc/hosts`, which is read again when it changes.
    pub fn from_servers_and_hosts(servers: impl IntoIterator<Item = SocketAddr>, hosts: impl Into<PathBuf>) -> Self {
        Self::of(Source::Servers { servers: servers.into_iter().collect(), hosts: Some(hosts.into()) })
    }

    fn of(source: Source) -> Self {
        Self(Arc::new(Inner { source, loaded: Mutex::new(None), permits: Semaphore::new(LOOKUPS_MAX) }))
    }

    /// Resolves the A and AAAA records of `host`; each address gets the port. When one of the two look-ups fails, or has no
    /// answer a second after the other one has, the addresses that it last found stand.
    pub fn name(&self, host: &str, port: u16) -> Box<dyn Resolve> {
        Box::new(Name { dns: self.clone(), host: host.to_owned(), port, families: Default::default() })
    }

    /// Resolves the SRV records of `name`, and the addresses of their targets, those of each family apart as with
    /// [`name`](Self::name). A lower priority is a lower tier. A target that has no addresses is left out, unless none has
    /// any; one that cannot be looked up and was never found fails the whole look.
    pub fn srv(&self, name: &str) -> Box<dyn Resolve> {
        Box::new(Srv { dns: self.clone(), name: name.to_owned(), targets: HashMap::new() })
    }

    /// The resolver, made anew if a file has changed.
    fn current(&self) -> Result<Arc<Loaded>, ResolveError> {
        let mut loaded = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.0.source.stamp();
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.stamp == stamp) {
            return Ok(Arc::clone(loaded));
        }
        let fresh = self.0.source.load(stamp).map_err(|error| ResolveError::Start(Arc::new(error)))?;
        Ok(Arc::clone(loaded.insert(Arc::new(fresh))))
    }

    async fn lookup(&self, loaded: &Loaded, name: &str, kind: RecordType) -> Answer {
        // The semaphore is never closed; if it were, the bound would be lost, but not the answer.
        let _permit = self.0.permits.acquire().await;
        match loaded.resolver.lookup(name, kind).await {
            Ok(lookup) => Answer::Found(lookup),
            Err(error) if error.is_no_records_found() || error.is_nx_domain() => Answer::Nothing,
            Err(error) => Answer::Failed(error),
        }
    }
}

impl Source {
    fn stamp(&self) -> [Option<(SystemTime, u64)>; 2] {
        let of = |path: &Path| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len()))
        };
        match self {
            Self::Files { resolv_conf, hosts } => [of(resolv_conf), of(hosts)],
            Self::Servers { hosts, .. } => [None, hosts.as_deref().and_then(of)],
        }
    }

    fn load(&self, stamp: [Option<(SystemTime, u64)>; 2]) -> io::Result<Loaded> {
        // No hosts file is as good as an empty one. Comments may be in any encoding.
        let read = |hosts: &PathBuf| std::fs::read(hosts).unwrap_or_default();
        let fixed = |hosts: &PathBuf| Hosts::parse(&String::from_utf8_lossy(&read(hosts)));
        let (config, mut options, hosts) = match self {
            Self::Servers { servers, hosts } => {
                (of_servers(servers), ResolverOpts::default(), hosts.as_ref().map(fixed).unwrap_or_default())
            }
            Self::Files { resolv_conf, hosts } => {
                let (config, options) = parse_resolv_conf(std::fs::read(resolv_conf)?).map_err(io::Error::other)?;
                (config, options, fixed(hosts))
            }
        };
        // The schedule knows when an answer is old, and the hosts file is read here.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(io::Error::other)?;
        Ok(Loaded { stamp, resolver, hosts })
    }
}

fn of_servers(servers: &[SocketAddr]) -> ResolverConfig {
    let on_port = |mut connection: ConnectionConfig, port| {
        connection.port = port;
        connection
    };
    let of = |server: &SocketAddr| {
        let both = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        let connections = both.map(|connection| on_port(connection, server.port()));
        NameServerConfig::new(server.ip(), true, connections.into())
    };
    ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(of).collect())
}

enum Answer {
    Found(Lookup),
    /// The name does not exist, or has no records of this kind.
    Nothing,
    Failed(NetError),
}

/// What was last found of a family.
#[derive(Clone, Debug, Default)]
struct Family {
    addresses: Vec<IpAddr>,
}

impl Family {
    /// Takes an answer over; its time to live, if it has one.
    fn take(&mut self, answer: Answer) -> Option<Duration> {
        match answer {
            Answer::Found(lookup) => {
                self.addresses = lookup.answers().iter().filter_map(|record| address(&record.data)).collect();
                Some(ttl(&lookup))
            }
            Answer::Nothing => {
                self.addresses.clear();
                None
            }
            Answer::Failed(_) => None,
        }
    }
}

fn address(data: &RData) -> Option<IpAddr> {
    match data {
        RData::A(a) => Some(IpAddr::V4(a.0)),
        RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
        _ => None,
    }
}

fn ttl(lookup: &Lookup) -> Duration {
    lookup.valid_until().saturating_duration_since(Instant::now())
}

/// Both families of a name.
#[derive(Clone, Debug, Default)]
struct Families {
    v4: Family,
    v6: Family,
}

impl Families {
    fn addresses(&self) -> Vec<IpAddr> {
        self.v6.addresses.iter().chain(&self.v4.addresses).copied().collect()
    }

    fn is_empty(&self) -> bool {
        self.v4.addresses.is_empty() && self.v6.addresses.is_empty()
    }

    /// The addresses of a host: of the file, or of both families, each as last known.
    async fn look(
        &mut self,
        dns: &Dns,
        loaded: &Loaded,
        host: &str,
    ) -> Result<(Vec<IpAddr>, Option<Duration>), ResolveError> {
        let fixed = loaded.hosts.find(host);
        if !fixed.is_empty() {
            return Ok((fixed.to_vec(), None));
        }
        let (v4, mut v6) =
            both(dns.lookup(loaded, host, RecordType::A), dns.lookup(loaded, host, RecordType::AAAA)).await;
        if let (Answer::Found(one), Answer::Found(other)) = (&v4, &v6)
            && one.query().name() != other.query().name()
        {
            // Found by different search domains: that is another host.
            v6 = Answer::Nothing;
        }
        // What is known is cleared only beside something that was found.
        match (v4, v6) {
            (Answer::Failed(error), Answer::Failed(_) | Answer::Nothing) | (Answer::Nothing, Answer::Failed(error)) => {
                Err(ResolveError::lookup(host, error))
            }
            (Answer::Nothing, Answer::Nothing) => Err(none(host)),
            (v4, v6) => {
                let ttl = [self.v4.take(v4), self.v6.take(v6)].into_iter().flatten().min();
                let addresses = self.addresses();
                if addresses.is_empty() { Err(none(host)) } else { Ok((addresses, ttl)) }
            }
        }
    }
}

/// The answers for both families. The second one has a while once the first has found something.
async fn both(one: impl Future<Output = Answer>, other: impl Future<Output = Answer>) -> (Answer, Answer) {
    tokio::pin!(one, other);
    tokio::select! {
        first = &mut one => {
            let second = second(&first, other).await;
            (first, second)
        }
        first = &mut other => {
            let second = second(&first, one).await;
            (second, first)
        }
    }
}

async fn second(first: &Answer, other: Pin<&mut impl Future<Output = Answer>>) -> Answer {
    if !matches!(first, Answer::Found(_)) {
        return other.await;
    }
    let late = Answer::Failed(NetError::Timeout);
    tokio::time::timeout(SECOND_FAMILY_WAIT, other).await.unwrap_or(late)
}

fn none(name: &str) -> ResolveError {
    ResolveError::NoAddresses { name: name.to_owned() }
}

struct Name {
    dns: Dns,
    host: String,
    port: u16,
    families: Families,
}

impl Resolve for Name {
    fn resolve(&mut self) -> Resolving<'_> {
        Box::pin(async {
            let loaded = self.dns.current()?;
            // What is kept of a family must outlive an answer that the name does not exist.
            let mut families = self.families.clone();
            let (addresses, ttl) = families.look(&self.dns, &loaded, &self.host).await?;
            self.families = families;
            let of = |&address: &IpAddr| Resolved::new(Address::Socket(SocketAddr::new(address, self.port)));
            Ok(Resolution { found: interleave(addresses.iter().map(of).collect()), ttl })
        })
    }
}

struct Srv {
    dns: Dns,
    name: String,
    /// What was last found of each target.
    targets: HashMap<String, Families>,
}

impl Resolve for Srv {
    fn resolve(&mut self) -> Resolving<'_> {
        Box::pin(async {
            let loaded = self.dns.current()?;
            let lookup = match self.dns.lookup(&loaded, &self.name, RecordType::SRV).await {
                Answer::Found(lookup) => lookup,
                Answer::Nothing => return Err(none(&self.name)),
                Answer::Failed(error) => return Err(ResolveError::lookup(&self.name, error)),
            };
            let (mut found, mut lives) = (Vec::new(), ttl(&lookup));
            let mut targets = HashMap::new();
            let records = || {
                lookup.answers().iter().take(SRV_TARGETS_MAX).filter_map(|record| match &record.data {
                    RData::SRV(srv) => Some((srv, srv.target.to_utf8())),
                    _ => None,
                })
            };
            let looked = self.look_up_targets(&loaded, records().map(|(_, host)| host)).await?;
            for (srv, host) in records() {
                let Some((families, (addresses, ttl))) = looked.get(&host) else { continue };
                targets.insert(host, families.clone());
                lives = ttl.map_or(lives, |ttl| ttl.min(lives));
                let at = |&address: &IpAddr| Address::Socket(SocketAddr::new(address, srv.port));
                found.extend(addresses.iter().map(at).map(|address| Resolved {
                    address,
                    // A weight of zero means a very small share beside others (RFC 2782), not none.
                    weight: (u32::from(srv.weight) * 100).max(1),
                    tier: srv.priority,
                }));
            }
            if found.is_empty() {
                return Err(none(&self.name));
            }
            self.targets = targets;
            Ok(Resolution { found, ttl: Some(lives) })
        })
    }
}

/// What is known of a target now, its addresses, and how long they hold.
type Target = (Families, (Vec<IpAddr>, Option<Duration>));

impl Srv {
    /// All targets that have addresses, looked up at the same time.
    async fn look_up_targets(
        &self,
        loaded: &Arc<Loaded>,
        hosts: impl Iterator<Item = String>,
    ) -> Result<HashMap<String, Target>, ResolveError> {
        let mut looking = JoinSet::new();
        for host in hosts.collect::<BTreeSet<_>>() {
            let (dns, loaded) = (self.dns.clone(), Arc::clone(loaded));
            let mut families = self.targets.get(&host).cloned().unwrap_or_default();
            looking.spawn(async move {
                let looked = families.look(&dns, &loaded, &host).await;
                (host, families, looked)
            });
        }
        let mut targets = HashMap::new();
        while let Some(ended) = looking.join_next().await {
            let (host, families, looked) = ended.map_err(|_| ResolveError::Panicked)?;
            match looked {
                Ok(found) => drop(targets.insert(host, (families, found))),
                // It is listed still, and gone.
                Err(ResolveError::NoAddresses { .. }) => {}
                // It keeps what it had. Without that, a set that is smaller must not pass for the whole one.
                Err(_) if !families.is_empty() => {
                    let addresses = families.addresses();
                    targets.insert(host, (families, (addresses, None)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(targets)
    }
}
