//! Resolution by DNS: A and AAAA records looked up separately, SRV records with priorities and weights, and the system's
//! files, read again when they change.

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

use super::hosts_file::HostsFile;
use super::resolver::{Resolution, Resolve, ResolveError, ResolveFuture};
use crate::address::{EndpointAddress, ResolvedAddress, interleave};

/// Maximum number of concurrent lookups of one [`DnsClient`], for any number of names.
const LOOKUPS_MAX: usize = 64;
/// Maximum number of targets of one SRV answer that are looked up.
const SRV_TARGETS_MAX: usize = 128;
/// How long the second address family is waited for once the first has addresses: some name servers never answer AAAA
/// queries.
const SECOND_FAMILY_TIMEOUT: Duration = Duration::from_secs(1);

/// A DNS client. Clones share its connections and its limit on concurrent lookups.
#[derive(Clone, Debug)]
pub struct DnsClient(Arc<DnsClientInner>);

#[derive(Debug)]
struct DnsClientInner {
    source: ConfigSource,
    loaded: Mutex<Option<Arc<LoadedConfig>>>,
    permits: Semaphore,
}

#[derive(Debug)]
enum ConfigSource {
    Files { resolv_conf: PathBuf, hosts: PathBuf },
    Servers { servers: Vec<SocketAddr>, hosts: Option<PathBuf> },
}

/// Modification time and length of a file.
type FileStamp = Option<(SystemTime, u64)>;

/// Contents of the files, with the stamps of both.
struct LoadedConfig {
    stamps: [FileStamp; 2],
    resolver: TokioResolver,
    hosts: HostsFile,
}

impl std::fmt::Debug for LoadedConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedConfig").field("stamps", &self.stamps).finish_non_exhaustive()
    }
}

impl DnsClient {
    /// Uses the system's name servers and hosts file. Both files are read again when they change.
    pub fn system() -> Self {
        Self::from_files("/etc/resolv.conf", "/etc/hosts")
    }

    /// Like [`system`](Self::system), with other files.
    pub fn from_files(resolv_conf: impl Into<PathBuf>, hosts: impl Into<PathBuf>) -> Self {
        Self::new(ConfigSource::Files { resolv_conf: resolv_conf.into(), hosts: hosts.into() })
    }

    /// Uses these name servers and no hosts file.
    pub fn from_servers(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self::new(ConfigSource::Servers { servers: servers.into_iter().collect(), hosts: None })
    }

    /// Uses a hosts file such as `/etc/hosts`, which is read again when it changes, and then these name servers.
    pub fn from_servers_and_hosts(servers: impl IntoIterator<Item = SocketAddr>, hosts: impl Into<PathBuf>) -> Self {
        Self::new(ConfigSource::Servers { servers: servers.into_iter().collect(), hosts: Some(hosts.into()) })
    }

    fn new(source: ConfigSource) -> Self {
        let permits = Semaphore::new(LOOKUPS_MAX);
        Self(Arc::new(DnsClientInner { source, loaded: Mutex::new(None), permits }))
    }

    /// Returns a resolver of the A and AAAA records of `host`, with `port` for each address.
    ///
    /// If one of the two lookups fails, or has no answer one second after the other, its previous addresses are kept.
    pub fn host(&self, host: &str, port: u16) -> Box<dyn Resolve> {
        Box::new(HostResolver { dns: self.clone(), host: host.to_owned(), port, families: AddressFamilies::default() })
    }

    /// Returns a resolver of the SRV records of `name`, and of the addresses of their targets.
    ///
    /// The address families of a target are looked up as by [`host`](Self::host). The SRV priority is the tier. A target without
    /// addresses is left out; if no target has any, the lookup fails. It also fails if a target cannot be looked up and has
    /// no previous addresses.
    pub fn srv(&self, name: &str) -> Box<dyn Resolve> {
        Box::new(SrvResolver { dns: self.clone(), name: name.to_owned(), targets: HashMap::new() })
    }

    /// The resolver, created again if a file has changed.
    fn current(&self) -> Result<Arc<LoadedConfig>, ResolveError> {
        let mut loaded = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.0.source.stamps();
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.stamps == stamps) {
            return Ok(Arc::clone(loaded));
        }
        let new = self.0.source.load(stamps).map_err(|error| ResolveError::Start(Arc::new(error)))?;
        Ok(Arc::clone(loaded.insert(Arc::new(new))))
    }

    async fn look_up(&self, loaded: &LoadedConfig, name: &str, record_type: RecordType) -> DnsAnswer {
        // The semaphore is never closed. If it were, the limit would be lost, but not the answer.
        let _permit = self.0.permits.acquire().await;
        match loaded.resolver.lookup(name, record_type).await {
            Ok(lookup) => DnsAnswer::Found(lookup),
            Err(error) if error.is_no_records_found() || error.is_nx_domain() => DnsAnswer::NoRecords,
            Err(error) => DnsAnswer::Failed(error),
        }
    }
}

impl ConfigSource {
    fn stamps(&self) -> [FileStamp; 2] {
        let stamp = |path: &Path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        match self {
            Self::Files { resolv_conf, hosts } => [stamp(resolv_conf), stamp(hosts)],
            Self::Servers { hosts, .. } => [None, hosts.as_deref().and_then(stamp)],
        }
    }

    fn load(&self, stamps: [FileStamp; 2]) -> io::Result<LoadedConfig> {
        // A missing hosts file counts as an empty one. Comments can have any encoding.
        let read = |hosts: &PathBuf| std::fs::read(hosts).unwrap_or_default();
        let parse = |hosts: &PathBuf| HostsFile::parse(&String::from_utf8_lossy(&read(hosts)));
        let (config, mut options, hosts) = match self {
            Self::Servers { servers, hosts } => {
                (config_of(servers), ResolverOpts::default(), hosts.as_ref().map(parse).unwrap_or_default())
            }
            Self::Files { resolv_conf, hosts } => {
                let (config, options) = parse_resolv_conf(std::fs::read(resolv_conf)?).map_err(io::Error::other)?;
                (config, options, parse(hosts))
            }
        };
        // The schedule decides when an answer is too old, and the hosts file is read here.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(io::Error::other)?;
        Ok(LoadedConfig { stamps, resolver, hosts })
    }
}

fn config_of(servers: &[SocketAddr]) -> ResolverConfig {
    let on_port = |mut connection: ConnectionConfig, port| {
        connection.port = port;
        connection
    };
    let name_server = |server: &SocketAddr| {
        let both = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        let connections = both.map(|connection| on_port(connection, server.port()));
        NameServerConfig::new(server.ip(), true, connections.into())
    };
    ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(name_server).collect())
}

enum DnsAnswer {
    Found(Lookup),
    /// The name does not exist, or has no records of this type.
    NoRecords,
    Failed(NetError),
}

/// The last known addresses of one family.
#[derive(Clone, Debug, Default)]
struct AddressFamily {
    addresses: Vec<IpAddr>,
}

impl AddressFamily {
    /// Applies an answer, and returns its TTL.
    fn apply(&mut self, answer: DnsAnswer) -> Option<Duration> {
        match answer {
            DnsAnswer::Found(lookup) => {
                self.addresses = lookup.answers().iter().filter_map(|record| address(&record.data)).collect();
                Some(ttl(&lookup))
            }
            DnsAnswer::NoRecords => {
                self.addresses.clear();
                None
            }
            DnsAnswer::Failed(_) => None,
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

/// Both address families of a host.
#[derive(Clone, Debug, Default)]
struct AddressFamilies {
    v4: AddressFamily,
    v6: AddressFamily,
}

impl AddressFamilies {
    fn addresses(&self) -> Vec<IpAddr> {
        self.v6.addresses.iter().chain(&self.v4.addresses).copied().collect()
    }

    fn is_empty(&self) -> bool {
        self.v4.addresses.is_empty() && self.v6.addresses.is_empty()
    }

    /// Addresses of a host, and their TTL: from the hosts file, or from both families, each as last known.
    async fn look_up(
        &mut self,
        dns: &DnsClient,
        loaded: &LoadedConfig,
        host: &str,
    ) -> Result<(Vec<IpAddr>, Option<Duration>), ResolveError> {
        let listed = loaded.hosts.find(host);
        if !listed.is_empty() {
            return Ok((listed.to_vec(), None));
        }
        let (v4, mut v6) =
            both(dns.look_up(loaded, host, RecordType::A), dns.look_up(loaded, host, RecordType::AAAA)).await;
        if let (DnsAnswer::Found(v4_found), DnsAnswer::Found(v6_found)) = (&v4, &v6)
            && v4_found.query().name() != v6_found.query().name()
        {
            // Found in different search domains: another host.
            v6 = DnsAnswer::NoRecords;
        }
        // Known addresses of a family are cleared only if the other family has an answer.
        match (v4, v6) {
            (DnsAnswer::Failed(error), DnsAnswer::Failed(_) | DnsAnswer::NoRecords)
            | (DnsAnswer::NoRecords, DnsAnswer::Failed(error)) => Err(ResolveError::lookup(host, error)),
            (DnsAnswer::NoRecords, DnsAnswer::NoRecords) => Err(no_addresses(host)),
            (v4, v6) => {
                let ttl = [self.v4.apply(v4), self.v6.apply(v6)].into_iter().flatten().min();
                let addresses = self.addresses();
                if addresses.is_empty() { Err(no_addresses(host)) } else { Ok((addresses, ttl)) }
            }
        }
    }
}

/// Answers of both families. Once the first has found addresses, the second has a timeout.
async fn both(v4: impl Future<Output = DnsAnswer>, v6: impl Future<Output = DnsAnswer>) -> (DnsAnswer, DnsAnswer) {
    tokio::pin!(v4, v6);
    tokio::select! {
        first = &mut v4 => {
            let second = second(&first, v6).await;
            (first, second)
        }
        first = &mut v6 => {
            let second = second(&first, v4).await;
            (second, first)
        }
    }
}

async fn second(first: &DnsAnswer, other: Pin<&mut impl Future<Output = DnsAnswer>>) -> DnsAnswer {
    if !matches!(first, DnsAnswer::Found(_)) {
        return other.await;
    }
    let late = DnsAnswer::Failed(NetError::Timeout);
    tokio::time::timeout(SECOND_FAMILY_TIMEOUT, other).await.unwrap_or(late)
}

fn no_addresses(name: &str) -> ResolveError {
    ResolveError::NoAddresses { name: name.to_owned() }
}

struct HostResolver {
    dns: DnsClient,
    host: String,
    port: u16,
    families: AddressFamilies,
}

impl Resolve for HostResolver {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        Box::pin(async {
            let loaded = self.dns.current()?;
            // A copy: a failed lookup must not change the known addresses.
            let mut families = self.families.clone();
            let (addresses, ttl) = families.look_up(&self.dns, &loaded, &self.host).await?;
            self.families = families;
            let with_port =
                |&address: &IpAddr| ResolvedAddress::new(EndpointAddress::Socket(SocketAddr::new(address, self.port)));
            Ok(Resolution { addresses: interleave(addresses.iter().map(with_port).collect()), ttl })
        })
    }
}

struct SrvResolver {
    dns: DnsClient,
    name: String,
    /// The last known addresses of each target.
    targets: HashMap<String, AddressFamilies>,
}

impl Resolve for SrvResolver {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        Box::pin(async {
            let loaded = self.dns.current()?;
            let lookup = match self.dns.look_up(&loaded, &self.name, RecordType::SRV).await {
                DnsAnswer::Found(lookup) => lookup,
                DnsAnswer::NoRecords => return Err(no_addresses(&self.name)),
                DnsAnswer::Failed(error) => return Err(ResolveError::lookup(&self.name, error)),
            };
            let (mut addresses, mut ttl_min) = (Vec::new(), ttl(&lookup));
            let mut targets = HashMap::new();
            let records = || {
                lookup.answers().iter().take(SRV_TARGETS_MAX).filter_map(|record| match &record.data {
                    RData::SRV(srv) => Some((srv, srv.target.to_utf8())),
                    _ => None,
                })
            };
            let looked_up = self.look_up_targets(&loaded, records().map(|(_, host)| host)).await?;
            for (srv, host) in records() {
                let Some((families, (found, ttl))) = looked_up.get(&host) else { continue };
                targets.insert(host, families.clone());
                ttl_min = ttl.map_or(ttl_min, |ttl| ttl.min(ttl_min));
                addresses.extend(found.iter().map(|&address| ResolvedAddress {
                    address: EndpointAddress::Socket(SocketAddr::new(address, srv.port)),
                    // A weight of zero means a very small share beside others (RFC 2782), not none.
                    weight: (u32::from(srv.weight) * 100).max(1),
                    tier: srv.priority,
                }));
            }
            if addresses.is_empty() {
                return Err(no_addresses(&self.name));
            }
            self.targets = targets;
            Ok(Resolution { addresses, ttl: Some(ttl_min) })
        })
    }
}

/// The families of a target, its addresses, and their TTL.
type SrvTarget = (AddressFamilies, (Vec<IpAddr>, Option<Duration>));

impl SrvResolver {
    /// Looks up all targets concurrently. Returns those that have addresses.
    async fn look_up_targets(
        &self,
        loaded: &Arc<LoadedConfig>,
        hosts: impl Iterator<Item = String>,
    ) -> Result<HashMap<String, SrvTarget>, ResolveError> {
        let mut lookups = JoinSet::new();
        for host in hosts.collect::<BTreeSet<_>>() {
            let (dns, loaded) = (self.dns.clone(), Arc::clone(loaded));
            let mut families = self.targets.get(&host).cloned().unwrap_or_default();
            lookups.spawn(async move {
                let result = families.look_up(&dns, &loaded, &host).await;
                (host, families, result)
            });
        }
        let mut targets = HashMap::new();
        while let Some(joined) = lookups.join_next().await {
            let (host, families, result) = joined.map_err(|_| ResolveError::Panicked)?;
            match result {
                Ok(found) => drop(targets.insert(host, (families, found))),
                // The SRV answer lists a target that does not exist any more.
                Err(ResolveError::NoAddresses { .. }) => {}
                // The target keeps its known addresses.
                Err(_) if !families.is_empty() => {
                    let addresses = families.addresses();
                    targets.insert(host, (families, (addresses, None)));
                }
                // The set would be incomplete without its addresses.
                Err(error) => return Err(error),
            }
        }
        Ok(targets)
    }
}
