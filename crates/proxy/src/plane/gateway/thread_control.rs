//! Requests of the shared state to the threads, which know it.

use std::sync::Arc;

use tidegate_topology::{Cluster, ClusterNode, ReportSender};

use super::{PoolKey, SharedPool};

/// Requests to the threads of a gateway. A thread executes them between two of its tasks; a request to a thread that is not
/// started, or that has ended, has no effect.
pub trait ThreadControl: Send + Sync {
    /// Number of threads, also before they are started.
    fn count(&self) -> usize;

    /// Makes a thread process the messages of a pool.
    fn pool_mail(&self, thread: usize, key: PoolKey);

    /// Opens the share of a thread of a pool.
    fn open_pool(&self, thread: usize, pool: Arc<SharedPool>);

    /// Starts to probe a server of a cluster, with the logins of its pools.
    fn start_probe(&self, cluster: Arc<Cluster>, node: Arc<ClusterNode>, sink: ReportSender);

    /// Disconnects the clients that hold one of these server connections.
    fn sever(&self, servers: Arc<[u64]>);

    /// Wakes the tasks of all clients.
    fn wake_clients(&self);

    /// Makes all threads apply the phase of the gateway.
    fn follow_phase(&self);
}
