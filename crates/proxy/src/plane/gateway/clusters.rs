//! The clusters that pools choose servers from. Databases with the same list of hosts share one.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Instant,
};

use tidegate_supervise::Scope;

use super::{Gateway, ServerEntry, SharedPool, lock};
use tidegate_config::{Host, PoolPlan};
use tidegate_pg_client::ConnectError;
use tidegate_tasks as tasks;
use tidegate_topology::{Cluster, ClusterHooks, ClusterNode, ClusterSpec, ReportSender, spawn_controller};

impl Gateway {
    /// The cluster of a pool with several servers; created at first use.
    pub(super) fn cluster_of(self: &Arc<Self>, plan: &PoolPlan) -> Option<Arc<Cluster>> {
        let spec = ClusterSpec::of(plan)?;
        let mut clusters = lock(&self.pools.clusters);
        if let Some(known) = clusters.iter().find(|cluster| cluster.spec == spec) {
            return Some(known.clone());
        }
        let cluster = Arc::new(Cluster::new(spec, Instant::now()));
        clusters.iter().for_each(|known| cluster.import_addresses(known));
        clusters.push(cluster.clone());
        Some(cluster)
    }

    /// Starts the probes of a cluster, once there is a pool whose login they can use.
    pub(super) fn watch_cluster(self: &Arc<Self>, cluster: &Arc<Cluster>, plan: &PoolPlan) {
        if !cluster.claim_start() {
            return;
        }
        let scope: Scope<&'static str> =
            tasks::observed_scope(&self.lifecycle.scope, &format!("hosts-{}", plan.entry)).build();
        let owner = Arc::downgrade(self);
        spawn_controller(cluster, &scope, &self.pools.connector.resolver, move || GatewayHooks(owner.clone()));
    }

    /// Applies a new configuration to the cluster of a pool. Returns the pool's settings, or `None` if it is the pool of a
    /// removed server.
    pub(super) fn follow_choice(self: &Arc<Self>, pool: &SharedPool, plan: PoolPlan) -> Option<PoolPlan> {
        let cluster = self.cluster_of(&plan);
        let Some(name) = &pool.key.host else {
            lock(&pool.cluster).clone_from(&cluster);
            if let Some(cluster) = &cluster {
                self.watch_cluster(cluster, &plan);
            }
            return Some(plan);
        };
        let stays = plan.choice.iter().flatten().any(|spec| is_of(name, &spec.host));
        if !stays {
            return None;
        }
        *lock(&pool.cluster) = cluster;
        let old = pool.plan();
        Some(PoolPlan { hosts: old.hosts.clone(), address: old.address, choice: None, ..plan })
    }

    /// Closes clusters that no pool uses.
    pub(super) fn close_unused_clusters(&self) {
        let used: Vec<Arc<Cluster>> = self.pools.homes_and_hosts().0.iter().filter_map(|pool| pool.cluster()).collect();
        let is_used = |cluster: &Arc<Cluster>| used.iter().any(|used| Arc::ptr_eq(used, cluster));
        let unused: Vec<_> = lock(&self.pools.clusters).extract_if(.., |cluster| !is_used(cluster)).collect();
        unused.iter().for_each(|cluster| cluster.close());
    }
}

/// Whether a server name belongs to this entry of the host list.
fn is_of(name: &str, host: &Host) -> bool {
    let host = host.to_string();
    name.strip_prefix(&host).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The gateway as seen by a cluster.
struct GatewayHooks(Weak<Gateway>);

impl ClusterHooks for GatewayHooks {
    fn start_probe(&self, cluster: &Arc<Cluster>, node: &Arc<ClusterNode>, sink: ReportSender) {
        let Some(gateway) = self.0.upgrade() else { return };
        gateway.threads.start_probe(cluster.clone(), node.clone(), sink);
    }

    fn retire_connections(&self, cluster: &Cluster, node: &ClusterNode) {
        let Some(gateway) = self.0.upgrade() else { return };
        for pool in pools_of(&gateway, cluster).filter(|pool| pool.key.host.as_ref() == Some(&node.name)) {
            if node.is_removed() {
                gateway.pools.remove(&pool, ConnectError::Closed(TAKEN_OUT));
            } else {
                pool.reconnect();
            }
        }
    }

    fn retire_others(&self, cluster: &Cluster, nodes: &[Arc<ClusterNode>]) {
        let Some(gateway) = self.0.upgrade() else { return };
        let is_left = |host: &Arc<str>| !nodes.iter().any(|node| node.name == *host);
        for pool in pools_of(&gateway, cluster).filter(|pool| pool.key.host.as_ref().is_some_and(is_left)) {
            gateway.pools.remove(&pool, ConnectError::Closed(TAKEN_OUT));
        }
    }

    fn disconnect_clients(&self, cluster: &Cluster, node: &ClusterNode) {
        let Some(gateway) = self.0.upgrade() else { return };
        let keys: Vec<_> = pools_of(&gateway, cluster).map(|pool| pool.key.clone()).collect();
        let is_meant = |entry: &ServerEntry| entry.key.host.as_ref() == Some(&node.name) && keys.contains(&entry.key);
        let servers: Arc<[u64]> =
            gateway.pools.servers().iter().filter(|entry| is_meant(entry)).map(|entry| entry.identity.id).collect();
        gateway.threads.sever(servers);
    }

    fn databases(&self, cluster: &Cluster) -> String {
        let Some(gateway) = self.0.upgrade() else { return String::new() };
        let homes = gateway.pools.homes_and_hosts().0;
        let is_own =
            |pool: &&Arc<SharedPool>| pool.cluster().is_some_and(|own| std::ptr::eq(Arc::as_ptr(&own), cluster));
        let names: BTreeSet<&str> = homes.iter().filter(is_own).map(|pool| &*pool.key.database).collect();
        names.into_iter().collect::<Vec<_>>().join(",")
    }
}

/// Error for waiters of a removed server.
const TAKEN_OUT: &str = "the server was taken out";

/// The pools of single servers of a cluster.
fn pools_of(gateway: &Gateway, cluster: &Cluster) -> impl Iterator<Item = Arc<SharedPool>> {
    let own = move |pool: &Arc<SharedPool>| pool.cluster().is_some_and(|own| std::ptr::eq(Arc::as_ptr(&own), cluster));
    gateway.pools.all().into_iter().filter(move |pool| pool.key.host.is_some() && own(pool))
}
