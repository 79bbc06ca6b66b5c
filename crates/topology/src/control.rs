//! The owner of a cluster: a task that takes reports in, follows names, and publishes who may serve.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use tidegate_balance::{
    Balancer, EndpointAddress, NameWatcher, ResolveError, ResolveEvent, ResolveNow, ResolvedAddress,
};
use tidegate_supervise::{Child, Class, Ctx, Restart, Scope};
use tokio::sync::mpsc;

use super::{
    cluster::{Cluster, Group, Node, spec_of},
    core::{HostState, HostView, Role, Rules, Topology, Verdict},
    observation::Report,
    probe::Sink,
};
use tidegate_config::{Host, HostSpec, Policy};
use tidegate_pg_client::resolve::Resolver;
use tidegate_tasks as tree;
use tidegate_tasks::Followed;

/// What the owner of a cluster hears.
#[derive(Debug)]
pub enum Event {
    /// A server was asked.
    Report(Arc<str>, Report),
    /// An entry of the list was looked up.
    Resolved(usize, Vec<ResolvedAddress>),
    /// It could not be.
    Unresolved(usize, ResolveError),
}

/// What a cluster asks of the gateway around it.
pub trait Ground: Send + Sync + 'static {
    /// Begin to ask this server what it is; see [`watch`](super::watch).
    fn watch(&self, cluster: &Arc<Cluster>, node: &Arc<Node>, sink: Sink);

    /// Close the connections to this server, those in use when they are released.
    fn retire(&self, cluster: &Cluster, node: &Node);

    /// Close the connections to servers that are none of these, likewise.
    fn keep(&self, cluster: &Cluster, nodes: &[Arc<Node>]);

    /// Send those away who have a connection to this server: what they do there would be lost.
    fn sever(&self, cluster: &Cluster, node: &Node);
}

/// Reports that may wait. Probes wait for room; there is one report per server and question.
const EVENTS_MAX: usize = 256;

/// The owner of a cluster.
struct Control<G> {
    cluster: Arc<Cluster>,
    ground: G,
    topology: Topology,
    /// What each entry of the list stands for.
    places: Vec<Vec<Arc<Node>>>,
    resolver: Resolver,
    verdict: Verdict,
    sink: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    look_again: Vec<ResolveNow>,
    /// Who follows its names.
    followers: Vec<Child>,
    /// Addresses that were found so far, the same ones again and again.
    found: u64,
}

/// Starts the owner of a cluster as a child of `scope`, and starts another should it fail: that one knows nothing of the
/// servers until they are asked again. `ground` makes what is around it.
pub fn own<G: Ground>(
    cluster: &Arc<Cluster>,
    scope: &Scope<&'static str>,
    resolver: &Resolver,
    ground: impl Fn() -> G + Send + Sync + 'static,
) {
    let (cluster, parent, names) = (cluster.clone(), scope.clone(), resolver.clone());
    let class = Class::new(tree::kept(Restart::Transient), move |_: &&'static str, ctx: Ctx| {
        // Those of an earlier life may not have ended yet.
        let scope = parent.child("names");
        Control::new(cluster.clone(), ground(), names.clone()).run(ctx, scope)
    });
    // It is refused when the process is ending already.
    let _ = scope.on(resolver.runtime()).spawn_kept("owner", &class);
}

impl<G: Ground> Control<G> {
    /// The owner of `cluster`, to be run.
    fn new(cluster: Arc<Cluster>, ground: G, resolver: Resolver) -> Self {
        let rules = &cluster.spec.rules;
        let (sink, events) = mpsc::channel(EVENTS_MAX);
        Self {
            topology: Topology::new(Rules { lag_bytes_max: rules.lag_bytes_max, lag_max: rules.lag_max }),
            places: vec![Vec::new(); cluster.spec.hosts.len()],
            resolver,
            verdict: Verdict::default(),
            look_again: Vec::new(),
            followers: Vec::new(),
            found: 0,
            cluster,
            ground,
            sink,
            events,
        }
    }

    /// Works until the cluster is closed, or the scope is stopped.
    async fn run(mut self, ctx: Ctx, scope: Scope<Followed>) {
        self.begin(&scope);
        let cluster = self.cluster.clone();
        while !cluster.is_closed() {
            let tick = Group::ALL.iter().filter_map(|group| cluster.group(*group).tick(Instant::now())).min();
            let ticked = async {
                match tick {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ctx.cancelled() => break,
                () = cluster.ended.notified() => break,
                Some(event) = self.events.recv() => self.hear(event),
                () = ticked => {}
            }
        }
    }

    /// Servers whose addresses are written in the list are known at once; names are followed.
    fn begin(&mut self, scope: &Scope<Followed>) {
        // What an owner that failed has left behind: its probes report to nobody any more.
        self.cluster.set_nodes(Vec::new());
        for group in Group::ALL {
            fill(self.cluster.group(group), &[]);
        }
        let hosts = self.cluster.spec.hosts.clone();
        for (index, spec) in hosts.iter().enumerate() {
            if follower(spec, &self.resolver).is_none() {
                let tier = self.tier(index, 0);
                let node = Node::new(spec.host.to_string().into(), spec.host.clone(), None, spec.weight, tier);
                self.places[index] = vec![Arc::new(node)];
                continue;
            };
            self.follow(index, spec, scope);
            // What was found before a reload serves until there is another answer.
            let known = self.cluster.found(index);
            self.resolve(index, &known);
        }
        self.renew();
    }

    /// Has the name of an entry looked up again and again.
    fn follow(&mut self, index: usize, spec: &HostSpec, scope: &Scope<Followed>) {
        let asked = ResolveNow::default();
        let (sink, cluster) = (self.sink.clone(), self.cluster.clone());
        let (spec, names, now) = (spec.clone(), self.resolver.clone(), asked.clone());
        let key = Followed { entry: index, host: spec.host.to_string() };
        let class = Class::new(tree::kept(Restart::Transient), move |_: &Followed, ctx: Ctx| {
            let make = follower(&spec, &names);
            let follow = make.map(|make| NameWatcher::new(make, names.rules(), now.clone(), fastrand::u64(..)));
            let (sink, cluster) = (sink.clone(), cluster.clone());
            // A full queue loses the set until the next look, which tells it again.
            let tell = move |event| drop(sink.try_send(of_resolver(index, event)));
            async move {
                let Some(follow) = follow else { return };
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = closed(&cluster) => {}
                    () = follow.run(tell) => {}
                }
            }
        });
        self.followers.extend(scope.on(self.resolver.runtime()).spawn_kept(key, &class));
        self.look_again.push(asked);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Report(name, report) => {
                if matches!(report, Report::Down(_)) {
                    // Its name may have come to mean another address.
                    self.look_again.iter().for_each(ResolveNow::request);
                }
                self.topology.note(&name, report, Instant::now());
                self.publish();
            }
            Event::Resolved(index, found) => {
                let found = self.cluster.learn(index, found, self.resolver.rotation_grace(), Instant::now());
                self.resolve(index, &found);
                self.renew();
            }
            Event::Unresolved(index, error) => {
                let host = &self.cluster.spec.hosts[index];
                tracing::warn!(%host, %error, "a host name cannot be looked up");
            }
        }
    }

    /// An entry of the list stands for these addresses now; who was among them before stays the same server.
    fn resolve(&mut self, index: usize, found: &[ResolvedAddress]) {
        let spec = &self.cluster.spec.hosts[index];
        let before = std::mem::take(&mut self.places[index]);
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
                known.move_to(weight, tier);
            }
            let new = || Node::new(name.clone(), host, Some(address), weight, tier).numbered(first + number);
            Some(known.unwrap_or_else(|| Arc::new(new())))
        };
        self.places[index] = (0..).zip(found).filter_map(node).collect();
        self.found += found.len() as u64;
    }

    /// Servers of the own zone go before all others; then the place in the list counts, if the policy is to go by it, and
    /// the priority of a record.
    fn tier(&self, index: usize, priority: u16) -> u16 {
        let (spec, rules) = (&self.cluster.spec.hosts[index], &self.cluster.spec.rules);
        let is_far = !rules.zone.is_empty() && rules.zone != spec.zone;
        let place = if rules.policy == Policy::PickFirst { u16::try_from(index).unwrap_or(u16::MAX) } else { 0 };
        u16::from(is_far) * (u16::MAX / 2) + place.saturating_add(priority).min(u16::MAX / 2)
    }

    /// The set of servers may have changed.
    fn renew(&mut self) {
        let mut seen = BTreeSet::new();
        let all = self.places.iter().flatten();
        let nodes: Vec<Arc<Node>> = all.filter(|node| seen.insert(node.name.clone())).cloned().collect();
        let before = self.cluster.nodes();
        let has = |list: &[Arc<Node>], node: &Arc<Node>| list.iter().any(|other| Arc::ptr_eq(other, node));
        self.cluster.set_nodes(nodes.clone());
        self.topology.set_hosts(nodes.iter().map(|node| node.name.clone()));
        self.publish();
        for node in before.iter().filter(|node| !has(&nodes, node)) {
            tracing::info!(host = %node.name, "host removed");
            node.leave();
            self.ground.retire(&self.cluster, node);
        }
        // Connections that a reload left to this cluster, to addresses that were never in it.
        if self.places.iter().all(|place| !place.is_empty()) {
            self.ground.keep(&self.cluster, &nodes);
        }
        for node in nodes.iter().filter(|node| !has(&before, node)) {
            self.ground.watch(&self.cluster, node, Sink(self.sink.clone()));
        }
    }

    /// Publishes what the topology says now.
    fn publish(&mut self) {
        let verdict = self.topology.verdict();
        let nodes: HashMap<Arc<str>, Arc<Node>> =
            self.cluster.nodes().into_iter().map(|node| (node.name.clone(), node)).collect();
        let before = std::mem::replace(&mut self.verdict, verdict);
        let verdict = &self.verdict;
        let of = |group: Group| -> &[Arc<str>] {
            match group {
                Group::Primary => verdict.primary.as_slice(),
                Group::Replica => &verdict.replicas,
                Group::Any => &verdict.any,
            }
        };
        for node in nodes.values() {
            let groups: Vec<Group> = Group::ALL.into_iter().filter(|group| of(*group).contains(&node.name)).collect();
            node.join(&groups);
        }
        for group in Group::ALL {
            let members: Vec<&Arc<Node>> = of(group).iter().filter_map(|name| nodes.get(name)).collect();
            fill(self.cluster.group(group), &members);
        }
        for (name, view) in self.topology.views() {
            if let Some(node) = nodes.get(&name) {
                tell(node, &node.see(view.clone()), &view);
            }
        }
        tell_of_others(verdict, &before);
        for name in verdict.unfit.difference(&before.unfit) {
            if let Some(node) = nodes.get(name) {
                self.ground.retire(&self.cluster, node);
            }
        }
        for name in verdict.deposed.difference(&before.deposed) {
            if let Some(node) = nodes.get(name) {
                self.ground.sever(&self.cluster, node);
            }
        }
        if *verdict != before {
            tell_of_primary(verdict.primary.as_deref(), before.primary.as_deref());
            self.cluster.announce();
        }
    }
}

/// However it ends: nobody listens to probes and followers any more.
impl<G> Drop for Control<G> {
    fn drop(&mut self) {
        self.followers.iter().for_each(Child::stop);
        for node in self.cluster.nodes() {
            node.leave();
        }
    }
}

/// Waits until the cluster is closed.
async fn closed(cluster: &Cluster) {
    let mut changes = cluster.subscribe();
    while !cluster.is_closed() && changes.changed().await.is_ok() {}
}

/// Puts exactly these into a set to choose from.
fn fill(group: &Balancer<Arc<Node>>, members: &[&Arc<Node>]) {
    let make = |spec: &tidegate_balance::EndpointSpec, _| {
        let member = members.iter().find(|node| node.key() == spec.key.as_str());
        Arc::clone(member.expect("every spec was made of a member"))
    };
    group.update(Instant::now(), members.iter().map(|node| spec_of(node)), make);
    // Connections belong to pools, which are retired on their own: nothing waits for the end of a drain.
    drop(group.take_departed());
}

/// Logs who takes writes. That nobody does is said aloud: servers that are up may all be replicas.
fn tell_of_primary(primary: Option<&str>, before: Option<&str>) {
    match (primary, before) {
        (None, Some(before)) => {
            tracing::warn!(before, "no primary: who writes waits for one, as long as failover_wait says");
        }
        (Some(primary), before) if before != Some(primary) => {
            tracing::info!(primary, before = before.unwrap_or("none"), "primary");
        }
        _ => {}
    }
}

/// Logs which servers say that they take writes, besides the one that is believed.
fn tell_of_others(verdict: &Verdict, before: &Verdict) {
    let primary = verdict.primary.as_deref().unwrap_or("none");
    for name in verdict.deposed.difference(&before.deposed) {
        tracing::error!(host = %name, primary,
            "two primaries: this one is of an older timeline, or came later, and is not used; \
             rebuild it as a replica (pg_rewind) or take it out of the configuration");
    }
    for name in verdict.apart.difference(&before.apart) {
        tracing::warn!(host = %name, primary,
            "two primaries that have nothing to do with each other: route `any` uses both, `primary` the other one alone");
    }
}

/// Logs what has changed for a server.
fn tell(node: &Node, before: &HostView, now: &HostView) {
    if (before.state, before.role) == (now.state, now.role) {
        return;
    }
    let (role, state) = (now.role.as_str(), now.state.as_str());
    let error = now.error.as_deref().unwrap_or("none");
    let is_well = matches!(now.state, HostState::Up | HostState::New) && now.role != Role::Unknown;
    if is_well {
        tracing::info!(host = %node.name, role, state, "host");
    } else {
        tracing::warn!(host = %node.name, role, state, error, "host");
    }
}

fn of_resolver(index: usize, event: ResolveEvent) -> Event {
    match event {
        ResolveEvent::Set(found) => Event::Resolved(index, found),
        ResolveEvent::Failed(error) => Event::Unresolved(index, error),
        // Answers are kept forever.
        ResolveEvent::Stale => Event::Resolved(index, Vec::new()),
    }
}

/// How an entry of the list is followed; `None` if it is an address.
fn follower(spec: &HostSpec, resolver: &Resolver) -> Option<tidegate_balance::ResolverFactory> {
    let Host::Tcp { name, port } = &spec.host else { return None };
    if !spec.srv && name.parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    let (name, port, srv, resolver) = (name.clone(), *port, spec.srv, resolver.clone());
    Some(Box::new(move || Ok(if srv { resolver.services(&name) } else { resolver.follow(&name, port) })))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::ClusterSpec;

    /// Those around a cluster: the first owner fails while it begins, later ones are heard.
    struct Shaky {
        lives: AtomicUsize,
        watched: mpsc::UnboundedSender<String>,
    }

    struct Life(Arc<Shaky>, usize);

    impl Ground for Life {
        fn watch(&self, _: &Arc<Cluster>, node: &Arc<Node>, _: Sink) {
            assert!(self.1 > 0, "on purpose");
            self.0.watched.send(node.name.to_string()).unwrap();
        }
        fn retire(&self, _: &Cluster, node: &Node) {
            panic!("{} is no other server than before", node.name);
        }
        fn keep(&self, _: &Cluster, _: &[Arc<Node>]) {}
        fn sever(&self, _: &Cluster, _: &Node) {}
    }

    #[tokio::test]
    async fn an_owner_that_fails_is_followed_by_one_that_begins_anew() {
        let hosts = ["10.0.0.1", "10.0.0.2"].map(|name| HostSpec::from(Host::Tcp { name: name.into(), port: 5432 }));
        let config = tidegate_config::Config::from_url("postgres://db.example/shop").unwrap();
        let tls = config.databases.iter().next().unwrap().1.tls.clone();
        let spec = ClusterSpec { hosts: hosts.to_vec(), tls, rules: tidegate_config::RouteSettings::default() };
        let cluster = Arc::new(Cluster::new(spec, Instant::now()));
        let resolver = Resolver::new(tokio::runtime::Handle::current());
        let scope: Scope<&'static str> = Scope::root("hosts");
        let (watched, mut seen) = mpsc::unbounded_channel();
        let shaky = Arc::new(Shaky { lives: AtomicUsize::new(0), watched });
        own(&cluster, &scope, &resolver, move || Life(shaky.clone(), shaky.lives.fetch_add(1, Ordering::SeqCst)));
        assert_eq!(seen.recv().await.as_deref(), Some("10.0.0.1:5432"));
        assert_eq!(seen.recv().await.as_deref(), Some("10.0.0.2:5432"));
        assert!(cluster.nodes().iter().all(|node| !node.is_gone()));
        let counts = scope.counts();
        assert_eq!((counts.live, counts.restarts), (1, 1));
        cluster.close();
        let report = scope.stop(tokio::time::sleep, Duration::from_secs(60), Duration::ZERO).await;
        assert!(report.left == 0 && cluster.nodes().iter().all(|node| node.is_gone()), "{report}");
    }
}
