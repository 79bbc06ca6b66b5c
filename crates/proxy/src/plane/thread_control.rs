//! The requests of the shared state, as messages to the threads.

use std::{rc::Rc, sync::Arc};

use tidegate_pg_client::{ConnectError, Connection};
use tidegate_topology::{Cluster, ClusterNode, ReportSender, run_probe};

use super::{PoolKey, SharedPool, ThreadControl, Worker, Workers, gateway::one_of};

impl ThreadControl for Workers {
    fn count(&self) -> usize {
        Self::count(self)
    }

    fn pool_mail(&self, thread: usize, key: PoolKey) {
        if let Some(mailbox) = self.all().get(thread) {
            mailbox.pool_mail(key);
        }
    }

    fn open_pool(&self, thread: usize, pool: Arc<SharedPool>) {
        if let Some(mailbox) = self.all().get(thread) {
            mailbox.visit(move |worker| drop(worker.pool(&pool)));
        }
    }

    fn start_probe(&self, cluster: Arc<Cluster>, node: Arc<ClusterNode>, sink: ReportSender) {
        let mailboxes = self.all();
        if mailboxes.is_empty() {
            return;
        }
        let place = node.name.bytes().fold(0_usize, |sum, byte| sum.wrapping_add(byte.into())) % mailboxes.len();
        mailboxes[place].visit(move |worker| begin_probe(worker, cluster, node, sink));
    }

    fn sever(&self, servers: Arc<[u64]>) {
        self.visit_all(move |worker| worker.registry.sever(&servers));
    }

    fn wake_clients(&self) {
        self.visit_all(|worker| worker.registry.wake_all());
    }

    fn follow_phase(&self) {
        self.visit_all(|worker| worker.follow_phase());
    }
}

fn begin_probe(worker: &Rc<Worker>, cluster: Arc<Cluster>, node: Arc<ClusterNode>, sink: ReportSender) {
    let (reactor, rules) = (worker.reactor.clone(), cluster.spec.rules.clone());
    let (owner, target) = (worker.clone(), node.clone());
    let connect = async move |turn| log_in(&owner, &cluster, &target, turn).await;
    worker.spawn_attempt(run_probe(node, sink, reactor, rules, connect));
}

/// Identifies the session in `pg_stat_activity`.
const PROBE_NAME: &[(&[u8], &[u8])] = &[(b"application_name", b"tidegate probe")];

/// Logs in to probe a server, with the login of one of the pools: the role needs no privilege, and a host that admits clients
/// admits the probe. If a login is refused, the next attempt uses another pool's.
async fn log_in(
    worker: &Worker,
    cluster: &Arc<Cluster>,
    node: &ClusterNode,
    turn: usize,
) -> Result<Connection, ConnectError> {
    let gateway = &worker.gateway;
    let mut homes = gateway.pools.all();
    homes.retain(|pool| pool.key.host.is_none() && pool.cluster().is_some_and(|own| Arc::ptr_eq(&own, cluster)));
    if homes.is_empty() {
        return Err(ConnectError::Closed("no client has logged in yet whose login could probe the server"));
    }
    let plan = one_of(&homes[turn % homes.len()].plan(), node);
    let setup = gateway.config.setup();
    let tls = setup.server_tls.get(&plan.entry);
    gateway.pools.connector.connect_as(&worker.reactor, &plan, tls, PROBE_NAME).await
}
