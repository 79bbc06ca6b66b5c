//! The controller of a cluster: a task that receives reports, resolves names, and publishes the usable servers.

use std::{
    cell::LazyCell,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use tidegate_balance::{
    Balancer, EndpointAddress, NameWatcher, ResolveError, ResolveEvent, ResolveNow, ResolvedAddress,
};
use tidegate_supervise::{Child, ChildClass, Ctx, Restart, Scope};
use tokio::sync::mpsc;

use super::{
    cluster::{Cluster, ClusterNode, HostGroup, spec_of},
    core::{ClusterRouting, HostRole, HostState, HostView, LagLimits, Topology},
    observation::ProbeReport,
    probe::ReportSender,
};
use tidegate_config::{Dialect, Host, HostSpec, RoutePolicy};
use tidegate_pg_client::resolve::Resolver;
use tidegate_tasks as tasks;
use tidegate_tasks::FollowedName;

/// Event for the controller.
#[derive(Debug)]
pub enum ClusterEvent {
    /// Result of a probe.
    Report(Arc<str>, ProbeReport),
    /// New addresses of an entry in the host list.
    Resolved(usize, Vec<ResolvedAddress>),
    /// The entry could not be resolved.
    Unresolved(usize, ResolveError),
}

/// Callbacks of a cluster, implemented by the gateway.
pub trait ClusterHooks: Send + Sync + 'static {
    /// Starts probing a server; see [`run_probe`](super::run_probe).
    fn start_probe(&self, cluster: &Arc<Cluster>, node: &Arc<ClusterNode>, sender: ReportSender);

    /// Closes the connections to a server; those in use when they are released.
    fn retire_connections(&self, cluster: &Cluster, node: &ClusterNode);

    /// Closes the connections to all servers except `nodes`, in the same way.
    fn retire_others(&self, cluster: &Cluster, nodes: &[Arc<ClusterNode>]);

    /// Disconnects the clients that are connected to a server, because their writes would be lost.
    fn disconnect_clients(&self, cluster: &Cluster, node: &ClusterNode);

    /// Names of the databases that use the cluster, for log lines.
    fn databases(&self, cluster: &Cluster) -> String;
}

/// Limit of queued events. Probes wait for room; each server has at most one report in flight.
const EVENTS_MAX: usize = 256;

/// The controller of a cluster.
struct ClusterController<G> {
    cluster: Arc<Cluster>,
    hooks: G,
    topology: Topology,
    /// The servers of each entry in the host list.
    nodes_by_entry: Vec<Vec<Arc<ClusterNode>>>,
    resolver: Resolver,
    routing: ClusterRouting,
    /// The last primary, also while there is none.
    last_primary: Option<Arc<str>>,
    sender: mpsc::Sender<ClusterEvent>,
    events: mpsc::Receiver<ClusterEvent>,
    resolve_again: Vec<ResolveNow>,
    /// The tasks that resolve names.
    resolver_tasks: Vec<Child>,
    /// Number of addresses found so far, for unique keys.
    found: u64,
}

/// Starts the controller of a cluster as a child of `scope` and restarts it after a failure. A restarted controller has no
/// status of the servers until they are probed again. `hooks` creates the callbacks.
pub fn spawn_controller<G: ClusterHooks>(
    cluster: &Arc<Cluster>,
    scope: &Scope<&'static str>,
    resolver: &Resolver,
    hooks: impl Fn() -> G + Send + Sync + 'static,
) {
    let (cluster, parent, names) = (cluster.clone(), scope.clone(), resolver.clone());
    let class = ChildClass::new(tasks::unlimited_restarts(Restart::Transient), move |_: &&'static str, ctx: Ctx| {
        // Resolver tasks of the failed controller may still run.
        let scope = parent.child("names");
        ClusterController::new(cluster.clone(), hooks(), names.clone()).run(ctx, scope)
    });
    // Rejected while the process is stopping.
    let _ = scope.on(resolver.runtime()).spawn_kept("owner", &class);
}

impl<G: ClusterHooks> ClusterController<G> {
    /// Creates the controller of `cluster`.
    fn new(cluster: Arc<Cluster>, hooks: G, resolver: Resolver) -> Self {
        let rules = &cluster.spec.rules;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        Self {
            topology: Topology::new(LagLimits { lag_bytes_max: rules.lag_bytes_max, lag_max: rules.lag_max }),
            nodes_by_entry: vec![Vec::new(); cluster.spec.hosts.len()],
            resolver,
            routing: ClusterRouting::default(),
            last_primary: None,
            resolve_again: Vec::new(),
            resolver_tasks: Vec::new(),
            found: 0,
            cluster,
            hooks,
            sender,
            events,
        }
    }

    /// Runs until the cluster is closed, or the scope is stopped.
    async fn run(mut self, ctx: Ctx, scope: Scope<FollowedName>) {
        self.start(&scope);
        let cluster = self.cluster.clone();
        while !cluster.is_closed() {
            let tick = HostGroup::ALL.iter().filter_map(|group| cluster.group(*group).tick(Instant::now())).min();
            let ticked = async {
                match tick {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ctx.cancelled() => break,
                () = cluster.closed_notify.notified() => break,
                Some(event) = self.events.recv() => self.on_event(event),
                () = ticked => {}
            }
        }
    }

    /// Adds servers with configured addresses, and starts to resolve names.
    fn start(&mut self, scope: &Scope<FollowedName>) {
        // Remove the servers of a failed controller: their probes have no receiver.
        self.cluster.set_nodes(Vec::new());
        for group in HostGroup::ALL {
            set_members(self.cluster.group(group), &[]);
        }
        let hosts = self.cluster.spec.hosts.clone();
        for (index, spec) in hosts.iter().enumerate() {
            if make_resolver(spec, &self.resolver).is_none() {
                let tier = self.tier(index, 0);
                let node = ClusterNode::new(spec.host.to_string().into(), spec.host.clone(), None, spec.weight, tier);
                self.nodes_by_entry[index] = vec![Arc::new(node)];
                continue;
            };
            self.follow(index, spec, scope);
            // Addresses from before a reload are used until the first answer.
            let known = self.cluster.found(index);
            self.resolve(index, &known);
        }
        self.apply_nodes();
    }

    /// Starts to resolve the name of an entry repeatedly.
    fn follow(&mut self, index: usize, spec: &HostSpec, scope: &Scope<FollowedName>) {
        let resolve_now = ResolveNow::default();
        let (sender, cluster) = (self.sender.clone(), self.cluster.clone());
        let (spec, names, now) = (spec.clone(), self.resolver.clone(), resolve_now.clone());
        let key = FollowedName { entry: index, host: spec.host.to_string() };
        let class =
            ChildClass::new(tasks::unlimited_restarts(Restart::Transient), move |_: &FollowedName, ctx: Ctx| {
                let make = make_resolver(&spec, &names);
                let follow = make.map(|make| NameWatcher::new(make, names.rules(), now.clone(), fastrand::u64(..)));
                let (sender, cluster) = (sender.clone(), cluster.clone());
                // A full queue drops the set; the next look-up sends it again.
                let log_change = move |event| drop(sender.try_send(resolver_event(index, event)));
                async move {
                    let Some(follow) = follow else { return };
                    tokio::select! {
                        () = ctx.cancelled() => {}
                        () = closed(&cluster) => {}
                        () = follow.run(log_change) => {}
                    }
                }
            });
        self.resolver_tasks.extend(scope.on(self.resolver.runtime()).spawn_kept(key, &class));
        self.resolve_again.push(resolve_now);
    }

    fn on_event(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::Report(name, report) => {
                if matches!(report, ProbeReport::Down(_)) {
                    // The name may have another address now.
                    self.resolve_again.iter().for_each(ResolveNow::request);
                }
                self.topology.on_report(&name, report, Instant::now());
                self.publish();
            }
            ClusterEvent::Resolved(index, found) => {
                let found = self.cluster.record(index, found, self.resolver.rotation_grace(), Instant::now());
                self.resolve(index, &found);
                self.apply_nodes();
            }
            ClusterEvent::Unresolved(index, error) => {
                let host = &self.cluster.spec.hosts[index];
                match self.cluster.spec.dialect {
                    Dialect::Postgres => tracing::warn!(%host, %error, "server DNS lookup failed"),
                    Dialect::Pgbouncer => tracing::warn!("{host}: closing because: server DNS lookup failed ({error})"),
                }
            }
        }
    }

    /// Replaces the servers of an entry. A server whose address remains stays the same.
    fn resolve(&mut self, index: usize, found: &[ResolvedAddress]) {
        let spec = &self.cluster.spec.hosts[index];
        let before = std::mem::take(&mut self.nodes_by_entry[index]);
        let first = self.found;
        let node = |(number, resolved): (u64, &ResolvedAddress)| {
            let EndpointAddress::Socket(address) = resolved.address else { return None };
            let name: Arc<str> = format!("{}/{address}", spec.host).into();
            let known = before.iter().find(|node| node.name == name).cloned();
            let weight = if spec.srv { resolved.weight } else { spec.weight };
            let tier = self.tier(index, resolved.tier);
            let host = match &spec.host {
                Host::Tcp { name, .. } => Host::Tcp { name: name.clone(), port: address.port() },
                other => other.clone(),
            };
            if let Some(known) = &known {
                known.set_weight_and_tier(weight, tier);
            }
            let new =
                || ClusterNode::new(name.clone(), host, Some(address), weight, tier).with_unique_key(first + number);
            Some(known.unwrap_or_else(|| Arc::new(new())))
        };
        self.nodes_by_entry[index] = (0..).zip(found).filter_map(node).collect();
        self.found += found.len() as u64;
    }

    /// Computes the tier of a server: the own zone first, then the position in the list if the policy depends on it, then the
    /// priority of the SRV record.
    fn tier(&self, index: usize, priority: u16) -> u16 {
        let (spec, rules) = (&self.cluster.spec.hosts[index], &self.cluster.spec.rules);
        let is_far = !rules.zone.is_empty() && rules.zone != spec.zone;
        let place = if rules.policy == RoutePolicy::PickFirst { u16::try_from(index).unwrap_or(u16::MAX) } else { 0 };
        u16::from(is_far) * (u16::MAX / 2) + place.saturating_add(priority).min(u16::MAX / 2)
    }

    /// Applies a possibly changed set of servers.
    fn apply_nodes(&mut self) {
        let mut seen = BTreeSet::new();
        let all = self.nodes_by_entry.iter().flatten();
        let nodes: Vec<Arc<ClusterNode>> = all.filter(|node| seen.insert(node.name.clone())).cloned().collect();
        let before = self.cluster.nodes();
        let has =
            |list: &[Arc<ClusterNode>], node: &Arc<ClusterNode>| list.iter().any(|other| Arc::ptr_eq(other, node));
        self.cluster.set_nodes(nodes.clone());
        self.topology.set_hosts(nodes.iter().map(|node| node.name.clone()));
        self.publish();
        for node in before.iter().filter(|node| !has(&nodes, node)) {
            tracing::info!(host = %node.name, "host removed");
            node.remove();
            self.hooks.retire_connections(&self.cluster, node);
        }
        // A reload may have left connections to addresses that were never in this cluster.
        if self.nodes_by_entry.iter().all(|place| !place.is_empty()) {
            self.hooks.retire_others(&self.cluster, &nodes);
        }
        for node in nodes.iter().filter(|node| !has(&before, node)) {
            self.hooks.start_probe(&self.cluster, node, ReportSender(self.sender.clone()));
        }
    }

    /// Publishes the current routing.
    fn publish(&mut self) {
        let routing = self.topology.routing();
        let nodes: HashMap<Arc<str>, Arc<ClusterNode>> =
            self.cluster.nodes().into_iter().map(|node| (node.name.clone(), node)).collect();
        let before = std::mem::replace(&mut self.routing, routing);
        let routing = &self.routing;
        let databases = LazyCell::new(|| self.hooks.databases(&self.cluster));
        let of = |group: HostGroup| -> &[Arc<str>] {
            match group {
                HostGroup::Primary => routing.primary.as_slice(),
                HostGroup::Replica => &routing.replicas,
                HostGroup::Any => &routing.any,
            }
        };
        for node in nodes.values() {
            let groups: Vec<HostGroup> =
                HostGroup::ALL.into_iter().filter(|group| of(*group).contains(&node.name)).collect();
            node.set_groups(&groups);
        }
        for group in HostGroup::ALL {
            let members: Vec<&Arc<ClusterNode>> = of(group).iter().filter_map(|name| nodes.get(name)).collect();
            set_members(self.cluster.group(group), &members);
        }
        for (name, view) in self.topology.views() {
            if let Some(node) = nodes.get(&name) {
                log_change(node, &node.replace_view(view.clone()), &view, &databases);
            }
        }
        log_other_primaries(routing, &before, &databases);
        for name in routing.unusable.difference(&before.unusable) {
            if let Some(node) = nodes.get(name) {
                self.hooks.retire_connections(&self.cluster, node);
            }
        }
        for name in routing.deposed.difference(&before.deposed) {
            if let Some(node) = nodes.get(name) {
                self.hooks.disconnect_clients(&self.cluster, node);
            }
        }
        if *routing != before {
            let primary = routing.primary.as_deref();
            if primary != before.primary.as_deref() {
                log_primary(primary, self.last_primary.as_deref(), &databases);
            }
            if routing.primary.is_some() {
                self.last_primary.clone_from(&routing.primary);
            }
            self.cluster.announce();
        }
    }
}

/// Probes and resolver tasks have no receiver any more, however the controller ends.
impl<G> Drop for ClusterController<G> {
    fn drop(&mut self) {
        self.resolver_tasks.iter().for_each(Child::stop);
        for node in self.cluster.nodes() {
            node.remove();
        }
    }
}

/// Waits until the cluster is closed.
async fn closed(cluster: &Cluster) {
    let mut changes = cluster.subscribe();
    while !cluster.is_closed() && changes.changed().await.is_ok() {}
}

/// Replaces the members of a group.
fn set_members(group: &Balancer<Arc<ClusterNode>>, members: &[&Arc<ClusterNode>]) {
    let make = |spec: &tidegate_balance::EndpointSpec, _| {
        let member = members.iter().find(|node| node.key() == spec.key.as_str());
        Arc::clone(member.expect("every spec was made of a member"))
    };
    group.update(Instant::now(), members.iter().map(|node| spec_of(node)), make);
    // Pools retire their connections themselves, so nothing waits for the drain.
    drop(group.take_departed());
}

/// Logs a change of the primary; `last` is the one before. The loss is a warning: servers that are up may all be replicas.
fn log_primary(primary: Option<&str>, last: Option<&str>, databases: &str) {
    let before = last.unwrap_or("none");
    match primary {
        None => tracing::warn!(databases, before, "no primary available; writes wait up to failover_wait"),
        Some(primary) => tracing::info!(databases, primary, before, "primary"),
    }
}

/// Logs servers that report to be primary beside the believed one.
fn log_other_primaries(routing: &ClusterRouting, before: &ClusterRouting, databases: &str) {
    let primary = routing.primary.as_deref().unwrap_or("none");
    for name in routing.deposed.difference(&before.deposed) {
        tracing::error!(databases, host = %name, primary,
            "two primaries: this one has an older timeline, or appeared later, and is not used; \
             rebuild it as a replica (pg_rewind) or remove it from the configuration");
    }
    for name in routing.unrelated.difference(&before.unrelated) {
        tracing::warn!(databases, host = %name, primary,
            "two primaries of different systems: route `any` uses both, route `primary` only the other one");
    }
}

/// Logs a changed state or role of a server.
fn log_change(node: &ClusterNode, before: &HostView, now: &HostView, databases: &str) {
    if (before.state, before.role) == (now.state, now.role) {
        return;
    }
    let (role, state) = (now.role.as_str(), now.state.as_str());
    let error = now.error.as_deref().unwrap_or("none");
    let is_healthy = matches!(now.state, HostState::Up | HostState::New) && now.role != HostRole::Unknown;
    if is_healthy {
        tracing::info!(databases, host = %node.name, role, state, "host");
    } else {
        tracing::warn!(databases, host = %node.name, role, state, error, "host");
    }
}

fn resolver_event(index: usize, event: ResolveEvent) -> ClusterEvent {
    match event {
        ResolveEvent::Set(found) => ClusterEvent::Resolved(index, found),
        ResolveEvent::Failed(error) => ClusterEvent::Unresolved(index, error),
        // Answers never expire.
        ResolveEvent::Stale => ClusterEvent::Resolved(index, Vec::new()),
    }
}

/// How to resolve an entry; `None` if it is an address.
fn make_resolver(spec: &HostSpec, resolver: &Resolver) -> Option<tidegate_balance::ResolverFactory> {
    let Host::Tcp { name, port } = &spec.host else { return None };
    if !spec.srv && name.parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    let (name, port, srv, resolver) = (name.clone(), *port, spec.srv, resolver.clone());
    Some(Box::new(move || Ok(if srv { resolver.follow_srv(&name) } else { resolver.follow(&name, port) })))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::ClusterSpec;

    /// Callbacks whose first controller fails while it starts.
    struct FailingHooks {
        starts: AtomicUsize,
        watched: mpsc::UnboundedSender<String>,
    }

    struct ControllerHooks(Arc<FailingHooks>, usize);

    impl ClusterHooks for ControllerHooks {
        fn start_probe(&self, _: &Arc<Cluster>, node: &Arc<ClusterNode>, _: ReportSender) {
            assert!(self.1 > 0, "on purpose");
            self.0.watched.send(node.name.to_string()).unwrap();
        }
        fn retire_connections(&self, _: &Cluster, node: &ClusterNode) {
            panic!("{} is the same server as before", node.name);
        }
        fn retire_others(&self, _: &Cluster, _: &[Arc<ClusterNode>]) {}
        fn disconnect_clients(&self, _: &Cluster, _: &ClusterNode) {}
        fn databases(&self, _: &Cluster) -> String {
            String::new()
        }
    }

    #[tokio::test]
    async fn failed_controller_is_restarted() {
        let hosts = ["10.0.0.1", "10.0.0.2"].map(|name| HostSpec::from(Host::Tcp { name: name.into(), port: 5432 }));
        let config = tidegate_config::Config::from_url("postgres://db.example/shop").unwrap();
        let tls = config.databases.iter().next().unwrap().1.tls.clone();
        let rules = tidegate_config::RouteConfig::default();
        let spec = ClusterSpec { dialect: Dialect::Postgres, hosts: hosts.to_vec(), tls, rules };
        let cluster = Arc::new(Cluster::new(spec, Instant::now()));
        let resolver = Resolver::new(tokio::runtime::Handle::current());
        let scope: Scope<&'static str> = Scope::root("hosts");
        let (watched, mut seen) = mpsc::unbounded_channel();
        let shaky = Arc::new(FailingHooks { starts: AtomicUsize::new(0), watched });
        spawn_controller(&cluster, &scope, &resolver, move || {
            ControllerHooks(shaky.clone(), shaky.starts.fetch_add(1, Ordering::SeqCst))
        });
        assert_eq!(seen.recv().await.as_deref(), Some("10.0.0.1:5432"));
        assert_eq!(seen.recv().await.as_deref(), Some("10.0.0.2:5432"));
        assert!(cluster.nodes().iter().all(|node| !node.is_removed()));
        let counts = scope.counts();
        assert_eq!((counts.live, counts.restarts), (1, 1));
        cluster.close();
        let report = scope.stop(tokio::time::sleep, Duration::from_secs(60), Duration::ZERO).await;
        assert!(report.left == 0 && cluster.nodes().iter().all(|node| node.is_removed()), "{report}");
    }
}
