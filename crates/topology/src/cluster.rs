//! The servers of one or several databases, as all threads see them.

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

use super::core::{HostState, HostView, Role};
use tidegate_config::{Host, HostSpec, Policy as PolicyName, PoolPlan, Route, RouteSettings, ServerTls};
use tidegate_pg_client::resolve::Rotation;

/// What makes two clusters the same: databases that agree in it share the probes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// Where the servers are.
    pub hosts: Vec<HostSpec>,
    /// TLS towards them.
    pub tls: ServerTls,
    /// By which rules one is chosen; what each client may decide for itself is left out.
    pub rules: RouteSettings,
}

impl ClusterSpec {
    /// That of a pool, if it has a choice of servers.
    #[must_use]
    pub fn of(plan: &PoolPlan) -> Option<Self> {
        let RouteSettings { route, read_only_to_replica, failover_wait, .. } = RouteSettings::default();
        let rules = RouteSettings { route, read_only_to_replica, failover_wait, ..plan.route.clone() };
        Some(Self { hosts: plan.choice.clone()?, tls: plan.tls.clone(), rules })
    }
}

/// Those to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The one that takes writes, if there is one.
    Primary,
    /// Replicas that are fresh enough.
    Replica,
    /// All that may be used.
    Any,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Primary, Self::Replica, Self::Any];

    /// Those that serve a route, the best first.
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

/// One server of a cluster.
#[derive(Debug)]
pub struct Node {
    /// Its name: the host as it was configured, with the address behind it if the name has several.
    pub name: Arc<str>,
    /// Where it is, as it was configured.
    pub host: Host,
    /// Its address, if a name was followed to it.
    pub address: Option<SocketAddr>,
    /// What the sets to choose from know it by. An address that was gone and comes back is another server to them, also
    /// while somebody still has the former one.
    key: Arc<str>,
    /// Its share. An answer to a look-up of SRV records may change it, and its tier.
    weight: AtomicU32,
    /// Lower ones go first.
    tier: AtomicU16,
    /// Asks for a probe now.
    pub kick: Notify,
    groups: AtomicU8,
    gone: AtomicBool,
    ejections: AtomicU32,
    view: Mutex<HostView>,
}

impl Node {
    /// A server of which nothing is known.
    #[must_use]
    pub fn new(name: Arc<str>, host: Host, address: Option<SocketAddr>, weight: u32, tier: u16) -> Self {
        Self {
            key: name.clone(),
            name,
            host,
            address,
            weight: AtomicU32::new(weight),
            tier: AtomicU16::new(tier),
            kick: Notify::new(),
            groups: AtomicU8::new(0),
            gone: AtomicBool::new(false),
            ejections: AtomicU32::new(0),
            view: Mutex::default(),
        }
    }

    /// The same as the n-th that was found.
    #[must_use]
    pub fn numbered(self, number: u64) -> Self {
        Self { key: format!("{}#{number}", self.name).into(), ..self }
    }

    /// Whether it is in a group that serves the route.
    #[must_use]
    pub fn serves(&self, route: Route) -> bool {
        let groups = self.groups.load(Ordering::Acquire);
        Group::of(route).iter().any(|group| groups & group.bit() != 0)
    }

    /// Has it asked what it is now, because something went wrong there.
    pub fn suspect(&self) {
        self.kick.notify_one();
    }

    /// Whether it was taken out of the cluster.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Lower ones go first.
    #[must_use]
    pub fn tier(&self) -> u16 {
        self.tier.load(Ordering::Relaxed)
    }

    pub(super) fn move_to(&self, weight: u32, tier: u16) {
        self.weight.store(weight, Ordering::Relaxed);
        self.tier.store(tier, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        self.kick.notify_one();
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn join(&self, groups: &[Group]) {
        let bits = groups.iter().fold(0, |bits, group| bits | group.bit());
        self.groups.store(bits, Ordering::Release);
    }

    pub(super) fn see(&self, view: HostView) -> HostView {
        std::mem::replace(&mut lock(&self.view), view)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every section replaces whole values, so a holder that panicked left sound data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One server as an operator sees it.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Which one.
    pub node: Arc<Node>,
    /// What is known of it.
    pub view: HostView,
    /// Transactions that it serves.
    pub in_flight: u32,
    /// How often it was left alone for its broken connections.
    pub ejections: u32,
    /// It is left alone now.
    pub is_ejected: bool,
}

/// What an entry of the list means: an answer, and those that it left out, where answers take turns.
#[derive(Clone, Debug, Default)]
struct Found {
    addresses: Vec<ResolvedAddress>,
    rotation: Rotation<SocketAddr>,
}

fn socket(resolved: &ResolvedAddress) -> Option<SocketAddr> {
    match resolved.address {
        EndpointAddress::Socket(address) => Some(address),
        _ => None,
    }
}

/// The servers of one or several databases. See the [module](super).
pub struct Cluster {
    /// What it is made of.
    pub spec: ClusterSpec,
    /// One set to choose from for each [`Group`].
    groups: [Balancer<Arc<Node>>; 3],
    nodes: Mutex<Vec<Arc<Node>>>,
    /// What the names of the list mean, by place in the list.
    found: Mutex<Vec<Found>>,
    changes: watch::Sender<u64>,
    begun: AtomicBool,
    closed: AtomicBool,
    /// Woken when it is closed.
    pub ended: Notify,
}

impl Cluster {
    /// A cluster of which nothing is known. Somebody has to start its [owner](super::own).
    #[must_use]
    pub fn new(spec: ClusterSpec, now: Instant) -> Self {
        let group = || Balancer::with_policy(policy(&spec), settings(&spec.rules), fastrand::u64(..), now);
        Self {
            groups: [group(), group(), group()],
            found: Mutex::new(vec![Found::default(); spec.hosts.len()]),
            spec,
            nodes: Mutex::default(),
            changes: watch::Sender::new(0),
            begun: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            ended: Notify::new(),
        }
    }

    /// True for the first who asks, who then starts its [owner](super::own).
    #[must_use]
    pub fn begins(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }

    /// The set to choose from.
    #[must_use]
    pub fn group(&self, group: Group) -> &Balancer<Arc<Node>> {
        &self.groups[group as usize]
    }

    /// Its servers, in the order of the configuration.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).clone()
    }

    pub(super) fn set_nodes(&self, nodes: Vec<Arc<Node>>) {
        *lock(&self.nodes) = nodes;
    }

    /// Takes over what another cluster has found for names that are in both lists: a name service that does not answer
    /// must not cost a reload its servers.
    pub fn learn_from(&self, other: &Self) {
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

    /// Takes an answer in: what the entry stands for now. Where answers take turns, those that this one leaves out are among
    /// it for the grace, as they were.
    pub(super) fn learn(
        &self,
        index: usize,
        answer: Vec<ResolvedAddress>,
        grace: Duration,
        now: Instant,
    ) -> Vec<ResolvedAddress> {
        let mut found = lock(&self.found);
        let Some(Found { addresses, rotation }) = found.get_mut(index) else { return answer };
        let named: Vec<SocketAddr> = answer.iter().filter_map(socket).collect();
        rotation.learn(&named, grace, now);
        let is_kept = |old: &ResolvedAddress| {
            socket(old).is_some_and(|address| rotation.has(&address) && !named.contains(&address))
        };
        let kept = std::mem::replace(addresses, answer).into_iter().filter(is_kept);
        addresses.extend(kept);
        addresses.clone()
    }

    /// Hears of whatever changes who may serve.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn announce(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    /// Ends it: its groups are empty from now on, and its task and probes end.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for group in &self.groups {
            group.close();
        }
        self.ended.notify_one();
        self.announce();
    }

    /// Whether it was closed: another one has its place.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether nothing is known yet of one of its servers, or of what their names mean.
    #[must_use]
    pub fn has_unheard(&self) -> bool {
        let nodes = self.nodes();
        nodes.is_empty() || nodes.iter().any(|node| lock(&node.view).state == HostState::New)
    }

    /// Why, if no server would tell what it is although all are there: a login that none of them lets in.
    #[must_use]
    pub fn mute(&self) -> Option<String> {
        let refusal = |node: &Arc<Node>| {
            let view = lock(&node.view);
            let is_mute = view.role == Role::Unknown && view.state == HostState::Up;
            view.error.clone().filter(|_| is_mute)
        };
        let refusals: Option<Vec<String>> = self.nodes().iter().map(refusal).collect();
        refusals?.pop()
    }

    /// Every server, as an operator sees it.
    #[must_use]
    pub fn sights(&self) -> Vec<Sight> {
        let statuses: Vec<_> = self.groups.iter().flat_map(Balancer::status).collect();
        let sight = |node: &Arc<Node>| {
            let own = || statuses.iter().filter(|status| status.key.as_str() == &*node.key);
            let counted = own().map(|status| u32::try_from(status.ejections).unwrap_or(u32::MAX)).sum();
            // A server that left a group and came back is counted anew there.
            let ejections = node.ejections.fetch_max(counted, Ordering::Relaxed).max(counted);
            Sight {
                view: lock(&node.view).clone(),
                in_flight: own().map(|status| status.in_flight).sum(),
                ejections,
                is_ejected: own().any(|status| status.ejected_until.is_some()),
                node: node.clone(),
            }
        };
        self.nodes().iter().map(sight).collect()
    }
}

fn policy(spec: &ClusterSpec) -> Arc<dyn Policy> {
    match spec.rules.policy {
        // The weights of SRV records are known later.
        PolicyName::RoundRobin if spec.hosts.iter().any(|host| host.srv || host.weight != 1) => {
            Arc::new(WeightedRoundRobin)
        }
        PolicyName::RoundRobin => Arc::new(RoundRobin),
        PolicyName::LeastRequest => Arc::new(LeastRequest::default()),
        PolicyName::PeakEwma => Arc::new(PeakEwma),
        PolicyName::PickFirst => Arc::new(PickFirst::default()),
    }
}

fn settings(rules: &RouteSettings) -> BalancerSettings {
    let detection = OutlierDetection {
        ejection_time: rules.eject_time,
        ejected_percent_max: 100,
        ..OutlierDetection::consecutive(rules.eject_after)
    };
    BalancerSettings {
        // Who is in a group was asked and has answered.
        initial_state: InitialState::Ready,
        outlier_detection: (rules.eject_after > 0 && !rules.eject_time.is_zero()).then_some(detection),
        slow_start: rules.slow_start,
        ..BalancerSettings::default()
    }
}

/// What a group is told of a server.
pub(super) fn spec_of(node: &Node) -> EndpointSpec {
    EndpointSpec::new(&*node.key).weight(node.weight.load(Ordering::Relaxed)).tier(node.tier())
}
