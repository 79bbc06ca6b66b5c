//! The servers that clients of one pool choose from, as seen by one thread.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Instant};

use tidegate_balance::{CallOutcome, Endpoint, EndpointLease, Pick, Picker};
use tidegate_config::{Route, RoutePolicy};
use tidegate_pool::PoolCounts;
use tidegate_topology::{Cluster, ClusterNode, HostGroup};

use crate::plane::worker_pool::{OpenHostPool, WorkerPool};

/// The servers of one pool, with the state of each on this thread.
pub struct ReplicaSet {
    /// State shared by all threads.
    pub cluster: Arc<Cluster>,
    pickers: RefCell<[Picker<Arc<ClusterNode>>; 3]>,
    /// Pools of the servers that were chosen so far.
    pools: RefCell<Vec<(Arc<ClusterNode>, Rc<WorkerPool>)>>,
    /// Whether the policy uses latencies; otherwise nothing is measured.
    measures: bool,
}

/// The server chosen for a transaction, until the transaction ends.
pub struct Placed {
    /// Counts as in flight at that server.
    lease: EndpointLease<Arc<ClusterNode>>,
    /// Pool of the server.
    pub pool: Rc<WorkerPool>,
}

impl Placed {
    /// The server.
    #[must_use]
    pub fn node(&self) -> &Arc<ClusterNode> {
        &self.lease
    }

    /// The transaction ended, with this outcome.
    pub fn finish(self, now: Instant, outcome: CallOutcome) {
        if outcome == CallOutcome::Failure {
            self.node().request_probe();
        }
        self.lease.finish(Some(now), outcome);
    }
}

/// Connections of a server in proportion to its weight.
#[derive(Clone, Copy)]
struct ConnectionShare {
    connections: u64,
    weight: u64,
}

impl ConnectionShare {
    /// The share of a server with this number of connections.
    fn of(node: &ClusterNode, connections: usize) -> Self {
        Self { connections: connections as u64, weight: node.weight().into() }
    }

    /// The share after one more client is served: by an idle connection that no other client waits for, or by a new one.
    fn after_one_more(node: &ClusterNode, pool: &WorkerPool) -> Self {
        let counts = pool.shared.pool.counts();
        Self::of(node, counts.open + usize::from(!has_spare(&counts)))
    }

    /// Servers without a weight are used only if no other has one.
    fn is_above(&self, other: &Self) -> bool {
        match (self.weight, other.weight) {
            (0, 0) => self.connections > other.connections,
            (own, of_other) => self.connections * of_other > other.connections * own,
        }
    }
}

/// Whether a connection is idle on any thread, and no client waits for it.
fn has_spare(counts: &PoolCounts) -> bool {
    counts.idle > counts.waiting
}

fn has(nodes: &[Arc<ClusterNode>], node: &Arc<ClusterNode>) -> bool {
    nodes.iter().any(|known| Arc::ptr_eq(known, node))
}

impl ReplicaSet {
    pub(super) fn new(cluster: Arc<Cluster>) -> Rc<Self> {
        let picker = |group| Picker::new(cluster.group(group), fastrand::u64(..));
        let measures = cluster.spec.rules.policy == RoutePolicy::PeakEwma;
        Rc::new(Self {
            pickers: RefCell::new(HostGroup::ALL.map(picker)),
            cluster,
            pools: RefCell::default(),
            measures,
        })
    }

    /// Picks a server for the route, none of `tried`. `None` if there is none now.
    #[inline]
    pub fn pick(
        &self,
        thread: &impl OpenHostPool,
        home: &WorkerPool,
        route: Route,
        tried: &[Arc<ClusterNode>],
        now: Instant,
    ) -> Option<Placed> {
        let untried = |endpoint: &Endpoint<Arc<ClusterNode>>| !has(tried, endpoint.value());
        let pick = if tried.is_empty() { Pick::new() } else { Pick::new().filter(&untried) };
        self.pick_by(thread, home, route, pick, now)
    }

    /// Picks a server that serves the route as well as this one, none of `tried`.
    pub fn pick_like(
        &self,
        thread: &impl OpenHostPool,
        home: &WorkerPool,
        route: Route,
        (model, except): (&ClusterNode, &[Arc<ClusterNode>]),
        now: Instant,
    ) -> Option<Placed> {
        let tier = model.tier();
        let is_like = |endpoint: &Endpoint<Arc<ClusterNode>>| {
            let node = endpoint.value();
            node.tier() == tier && !has(except, node)
        };
        self.pick_by(thread, home, route, Pick::new().filter(&is_like), now)
    }

    /// Picks a server of the same tier as this one and with an idle connection on this thread.
    pub fn pick_idle_like(
        &self,
        thread: &impl OpenHostPool,
        home: &WorkerPool,
        route: Route,
        model: &ClusterNode,
        now: Instant,
    ) -> Option<Placed> {
        let idle_node = self.find_idle(route, model.tier())?;
        let is_idle_node = |endpoint: &Endpoint<Arc<ClusterNode>>| Arc::ptr_eq(endpoint.value(), &idle_node);
        self.pick_by(thread, home, route, Pick::new().filter(&is_idle_node), now)
    }

    /// The server for a client that has found no idle connection on its thread: the chosen one, unless it would have to open a
    /// connection and another one like it has fewer for its weight. Each thread picks in turn on its own, so that clients of two
    /// threads would otherwise open their connections at one server.
    pub fn spread_connects(
        &self,
        thread: &impl OpenHostPool,
        home: &WorkerPool,
        route: Route,
        (chosen, tried): (Placed, &[Arc<ClusterNode>]),
        now: Instant,
    ) -> Placed {
        let rules = &self.cluster.spec.rules;
        // The other policies choose by load or by order; a server in its slow start has few connections on purpose.
        let is_in_turn = rules.policy == RoutePolicy::RoundRobin && rules.slow_start.is_zero();
        let counts = chosen.pool.shared.pool.counts();
        if !is_in_turn || has_spare(&counts) || chosen.pool.local.is_exhausted() {
            return chosen;
        }
        let mut most = ConnectionShare::of(chosen.node(), counts.open);
        let mut best: Option<Arc<ClusterNode>> = None;
        let is_like = |node: &&Arc<ClusterNode>| {
            node.tier() == chosen.node().tier()
                && node.serves(route)
                && !has(tried, node)
                && !Arc::ptr_eq(node, chosen.node())
        };
        for node in self.cluster.nodes().iter().filter(is_like) {
            // A pool after a failed connect is exhausted too: the next connect is due after a pause.
            let pool = self.pool(thread, home, node).filter(|pool| !pool.local.is_exhausted());
            let Some(pool) = pool else { continue };
            let share = ConnectionShare::after_one_more(node, &pool);
            if !share.is_above(&most) {
                (most, best) = (share, Some(node.clone()));
            }
        }
        let Some(best) = best else { return chosen };
        let is_best = |endpoint: &Endpoint<Arc<ClusterNode>>| Arc::ptr_eq(endpoint.value(), &best);
        // An ejected server cannot be picked.
        self.pick_by(thread, home, route, Pick::new().filter(&is_best), now).unwrap_or(chosen)
    }

    /// Starts at a random server, so that threads do not all pick the same one.
    fn find_idle(&self, route: Route, tier: u16) -> Option<Arc<ClusterNode>> {
        let pools = self.pools.borrow();
        let (before, after) = pools.split_at(fastrand::usize(..=pools.len()));
        let fits = |(node, pool): &&(Arc<ClusterNode>, Rc<WorkerPool>)| {
            node.tier() == tier && pool.local.has_idle() && node.serves(route)
        };
        after.iter().chain(before).find(fits).map(|(node, _)| node.clone())
    }

    #[inline]
    fn pick_by(
        &self,
        thread: &impl OpenHostPool,
        home: &WorkerPool,
        route: Route,
        pick: Pick<'_, Arc<ClusterNode>>,
        now: Instant,
    ) -> Option<Placed> {
        let pick = if self.measures { pick.at(now) } else { pick };
        let mut pickers = self.pickers.borrow_mut();
        let lease = HostGroup::of(route).iter().find_map(|group| pickers[*group as usize].pick(&pick).ok())?;
        drop(pickers);
        let pool = self.pool(thread, home, &lease)?;
        Some(Placed { lease, pool })
    }

    #[inline]
    fn pool(&self, thread: &impl OpenHostPool, home: &WorkerPool, node: &Arc<ClusterNode>) -> Option<Rc<WorkerPool>> {
        let pools = self.pools.borrow();
        let known = pools.iter().find(|(known, _)| Arc::ptr_eq(known, node)).map(|(_, pool)| pool.clone());
        drop(pools);
        known.or_else(|| self.open_pool(thread, home, node))
    }

    #[cold]
    fn open_pool(
        &self,
        thread: &impl OpenHostPool,
        home: &WorkerPool,
        node: &Arc<ClusterNode>,
    ) -> Option<Rc<WorkerPool>> {
        let pool = thread.open_host_pool(home, &self.cluster, node)?;
        let mut pools = self.pools.borrow_mut();
        pools.retain(|(known, _)| !known.is_removed());
        pools.push((node.clone(), pool.clone()));
        Some(pool)
    }

    /// Servers that are known to this thread to be at their connection limit.
    #[must_use]
    pub fn taken(&self) -> Vec<Arc<ClusterNode>> {
        let pools = self.pools.borrow();
        pools.iter().filter(|(_, pool)| pool.local.is_exhausted()).map(|(node, _)| node.clone()).collect()
    }

    /// Drops the pools of removed servers.
    pub fn forget_gone(&self) {
        self.pools.borrow_mut().retain(|(known, _)| !known.is_removed());
    }

    /// Drops the pool of a server after it was closed.
    pub fn forget(&self, node: &Arc<ClusterNode>) {
        self.pools.borrow_mut().retain(|(known, _)| !Arc::ptr_eq(known, node));
    }
}
