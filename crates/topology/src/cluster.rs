//! The servers of one or several databases, shared by all threads.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate_balance::{
    Balancer, BalancerSettings, EndpointAddress, EndpointSpec, InitialState, LeastRequest, OutlierDetection, PeakEwma,
    PickFirst, Policy, ResolvedAddress, RoundRobin, WeightedRoundRobin,
};
use tokio::sync::{Notify, watch};

use super::core::{HostRole, HostState, HostView};
use tidegate_config::{Dialect, Host, HostSpec, PoolPlan, Route, RouteConfig, RoutePolicy as PolicyName, ServerTls};
use tidegate_pg_client::resolve::AddressRotation;

/// Settings that identify a cluster. Databases with equal settings share their probes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// Wording of log lines.
    pub dialect: Dialect,
    /// The configured hosts.
    pub hosts: Vec<HostSpec>,
    /// TLS towards them.
    pub tls: ServerTls,
    /// Settings of the choice; those that each client may override are left out.
    pub rules: RouteConfig,
}

impl ClusterSpec {
    /// The settings of a pool, if it has several servers.
    #[must_use]
    pub fn of(plan: &PoolPlan) -> Option<Self> {
        let RouteConfig { route, read_only_to_replica, failover_wait, .. } = RouteConfig::default();
        let rules = RouteConfig { route, read_only_to_replica, failover_wait, ..plan.route.clone() };
        Some(Self { dialect: plan.dialect, hosts: plan.choice.clone()?, tls: plan.tls.clone(), rules })
    }
}

/// A set of servers to pick from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostGroup {
    /// The primary, if there is one.
    Primary,
    /// Replicas within the lag limits.
    Replica,
    /// All usable servers.
    Any,
}

impl HostGroup {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Primary, Self::Replica, Self::Any];

    /// The groups that serve a route, best first.
    #[must_use]
    pub const fn of(route: Route) -> &'static [Self] {
        match route {
            Route::Primary => &[Self::Primary],
            Route::Replica => &[Self::Replica],
            Route::PreferReplica => &[Self::Replica, Self::Primary],
            Route::Any => &[Self::Any],
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A server of a cluster.
#[derive(Debug)]
pub struct ClusterNode {
    /// Name: the configured host, followed by its address if the name has several.
    pub name: Arc<str>,
    /// The configured host.
    pub host: Host,
    /// The address, if it comes from a name.
    pub address: Option<SocketAddr>,
    /// Key in the groups. An address that disappears and comes back is a new server for them, even while the old one is in use.
    key: Arc<str>,
    /// Weight in the groups. A look-up of SRV records may change weight and tier.
    weight: AtomicU32,
    /// Priority: lower tiers are used first.
    tier: AtomicU16,
    /// Requests a probe now.
    pub probe_request: Notify,
    groups: AtomicU8,
    gone: AtomicBool,
    ejections: AtomicU32,
    view: Mutex<HostView>,
}

impl ClusterNode {
    /// Creates a server without reports.
    #[must_use]
    pub fn new(name: Arc<str>, host: Host, address: Option<SocketAddr>, weight: u32, tier: u16) -> Self {
        Self {
            key: name.clone(),
            name,
            host,
            address,
            weight: AtomicU32::new(weight),
            tier: AtomicU16::new(tier),
            probe_request: Notify::new(),
            groups: AtomicU8::new(0),
            gone: AtomicBool::new(false),
            ejections: AtomicU32::new(0),
            view: Mutex::default(),
        }
    }

    /// Makes the key unique by a number.
    #[must_use]
    pub fn with_unique_key(self, number: u64) -> Self {
        Self { key: format!("{}#{number}", self.name).into(), ..self }
    }

    /// Whether the server is in a group that serves the route.
    #[must_use]
    pub fn serves(&self, route: Route) -> bool {
        let groups = self.groups.load(Ordering::Acquire);
        HostGroup::of(route).iter().any(|group| groups & group.bit() != 0)
    }

    /// Requests a probe now, after an error.
    pub fn request_probe(&self) {
        self.probe_request.notify_one();
    }

    /// Whether the server was removed from the cluster.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Priority: lower tiers are used first.
    #[must_use]
    pub fn tier(&self) -> u16 {
        self.tier.load(Ordering::Relaxed)
    }

    /// Share among the servers of its tier.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(super) fn set_weight_and_tier(&self, weight: u32, tier: u16) {
        self.weight.store(weight, Ordering::Relaxed);
        self.tier.store(tier, Ordering::Relaxed);
    }

    pub(super) fn remove(&self) {
        self.gone.store(true, Ordering::Release);
        self.probe_request.notify_one();
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn set_groups(&self, groups: &[HostGroup]) {
        let bits = groups.iter().fold(0, |bits, group| bits | group.bit());
        self.groups.store(bits, Ordering::Release);
    }

    pub(super) fn replace_view(&self, view: HostView) -> HostView {
        std::mem::replace(&mut lock(&self.view), view)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every section replaces whole values, so a holder that panicked left consistent data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Status of one server for operators.
#[derive(Clone, Debug)]
pub struct HostStatus {
    /// The server.
    pub node: Arc<ClusterNode>,
    /// Known facts about the server.
    pub view: HostView,
    /// Number of running transactions.
    pub in_flight: u32,
    /// Number of ejections after broken connections.
    pub ejections: u32,
    /// Whether the server is ejected now.
    pub is_ejected: bool,
}

/// Addresses of an entry in the host list: the last answer, and missing addresses of a rotating name.
#[derive(Clone, Debug, Default)]
struct EntryAddresses {
    addresses: Vec<ResolvedAddress>,
    rotation: AddressRotation<SocketAddr>,
}

fn socket_address(resolved: &ResolvedAddress) -> Option<SocketAddr> {
    match resolved.address {
        EndpointAddress::Socket(address) => Some(address),
        _ => None,
    }
}

/// The servers of one or several databases. See the [crate documentation](crate).
pub struct Cluster {
    /// Settings of the cluster.
    pub spec: ClusterSpec,
    /// Servers of each [`HostGroup`].
    groups: [Balancer<Arc<ClusterNode>>; 3],
    nodes: Mutex<Vec<Arc<ClusterNode>>>,
    /// Addresses of the names, by position in the host list.
    found: Mutex<Vec<EntryAddresses>>,
    changes: watch::Sender<u64>,
    is_started: AtomicBool,
    closed: AtomicBool,
    /// Notified when the cluster is closed.
    pub closed_notify: Notify,
}

impl Cluster {
    /// Creates a cluster without reports. [`spawn_controller`](super::spawn_controller) starts its controller.
    #[must_use]
    pub fn new(spec: ClusterSpec, now: Instant) -> Self {
        let group = || Balancer::with_policy(policy(&spec), settings(&spec.rules), fastrand::u64(..), now);
        Self {
            groups: [group(), group(), group()],
            found: Mutex::new(vec![EntryAddresses::default(); spec.hosts.len()]),
            spec,
            nodes: Mutex::default(),
            changes: watch::Sender::new(0),
            is_started: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            closed_notify: Notify::new(),
        }
    }

    /// Returns true to the first caller, which starts the [controller](super::spawn_controller).
    #[must_use]
    pub fn claim_start(&self) -> bool {
        !self.is_started.swap(true, Ordering::AcqRel)
    }

    /// The set of servers of a group.
    #[must_use]
    pub fn group(&self, group: HostGroup) -> &Balancer<Arc<ClusterNode>> {
        &self.groups[group as usize]
    }

    /// The servers, in the order of the configuration.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<ClusterNode>> {
        lock(&self.nodes).clone()
    }

    pub(super) fn set_nodes(&self, nodes: Vec<Arc<ClusterNode>>) {
        *lock(&self.nodes) = nodes;
    }

    /// Copies addresses of names that are in both host lists, so that a reload keeps its servers while name servers are down.
    pub fn import_addresses(&self, other: &Self) {
        let known = lock(&other.found).clone();
        let mut found = lock(&self.found);
        for (spec, found) in self.spec.hosts.iter().zip(found.iter_mut()) {
            let is_same = |known: &HostSpec| known.host == spec.host && known.srv == spec.srv;
            let place = other.spec.hosts.iter().position(is_same);
            if let Some(answer) = place.and_then(|place| known.get(place)).filter(|found| !found.addresses.is_empty()) {
                found.clone_from(answer);
            }
        }
    }

    pub(super) fn found(&self, index: usize) -> Vec<ResolvedAddress> {
        lock(&self.found).get(index).map(|found| found.addresses.clone()).unwrap_or_default()
    }

    /// Records an answer and returns the current addresses. Missing addresses of a rotating name stay for the grace period.
    pub(super) fn record(
        &self,
        index: usize,
        answer: Vec<ResolvedAddress>,
        grace: Duration,
        now: Instant,
    ) -> Vec<ResolvedAddress> {
        let mut found = lock(&self.found);
        let Some(EntryAddresses { addresses, rotation }) = found.get_mut(index) else { return answer };
        let named: Vec<SocketAddr> = answer.iter().filter_map(socket_address).collect();
        rotation.record(&named, grace, now);
        let is_kept = |old: &ResolvedAddress| {
            socket_address(old).is_some_and(|address| rotation.has(&address) && !named.contains(&address))
        };
        let kept = std::mem::replace(addresses, answer).into_iter().filter(is_kept);
        addresses.extend(kept);
        addresses.clone()
    }

    /// Subscribes to changes of the usable servers.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn announce(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    /// Closes the cluster: its groups become empty, its task and its probes end.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for group in &self.groups {
            group.close();
        }
        self.closed_notify.notify_one();
        self.announce();
    }

    /// Whether the cluster was closed and replaced by another one.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether a server has not been probed yet, or a name has not been resolved yet.
    #[must_use]
    pub fn has_unprobed(&self) -> bool {
        let nodes = self.nodes();
        nodes.is_empty() || nodes.iter().any(|node| lock(&node.view).state == HostState::New)
    }

    /// The error, if all servers reject the login of the probes.
    #[must_use]
    pub fn login_refusal(&self) -> Option<String> {
        let refusal = |node: &Arc<ClusterNode>| {
            let view = lock(&node.view);
            let is_refusing = view.role == HostRole::Unknown && view.state == HostState::Up;
            view.error.clone().filter(|_| is_refusing)
        };
        let refusals: Option<Vec<String>> = self.nodes().iter().map(refusal).collect();
        refusals?.pop()
    }

    /// The status of each server.
    #[must_use]
    pub fn host_statuses(&self) -> Vec<HostStatus> {
        let statuses: Vec<_> = self.groups.iter().flat_map(Balancer::status).collect();
        let status_of = |node: &Arc<ClusterNode>| {
            let statuses_of_node = || statuses.iter().filter(|status| status.key.as_str() == &*node.key);
            let counted = statuses_of_node().map(|status| u32::try_from(status.ejections).unwrap_or(u32::MAX)).sum();
            // A server that left a group and came back is counted from zero there.
            let ejections = node.ejections.fetch_max(counted, Ordering::Relaxed).max(counted);
            HostStatus {
                view: lock(&node.view).clone(),
                in_flight: statuses_of_node().map(|status| status.in_flight).sum(),
                ejections,
                is_ejected: statuses_of_node().any(|status| status.ejected_until.is_some()),
                node: node.clone(),
            }
        };
        self.nodes().iter().map(status_of).collect()
    }
}

fn policy(spec: &ClusterSpec) -> Arc<dyn Policy> {
    match spec.rules.policy {
        // The weights of SRV records become known later.
        PolicyName::RoundRobin if spec.hosts.iter().any(|host| host.srv || host.weight != 1) => {
            Arc::new(WeightedRoundRobin)
        }
        PolicyName::RoundRobin => Arc::new(RoundRobin),
        PolicyName::LeastRequest => Arc::new(LeastRequest::default()),
        PolicyName::PeakEwma => Arc::new(PeakEwma),
        PolicyName::PickFirst => Arc::new(PickFirst::default()),
    }
}

fn settings(rules: &RouteConfig) -> BalancerSettings {
    let detection = OutlierDetection {
        ejection_time: rules.eject_time,
        ejected_percent_max: 100,
        ..OutlierDetection::consecutive(rules.eject_after)
    };
    BalancerSettings {
        // Members of a group have answered a probe.
        initial_state: InitialState::Ready,
        outlier_detection: (rules.eject_after > 0 && !rules.eject_time.is_zero()).then_some(detection),
        slow_start: rules.slow_start,
        ..BalancerSettings::default()
    }
}

/// Describes a server for a group.
pub(super) fn spec_of(node: &ClusterNode) -> EndpointSpec {
    EndpointSpec::new(&*node.key).weight(node.weight()).tier(node.tier())
}
