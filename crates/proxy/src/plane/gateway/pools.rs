//! Server connections: pools, the clusters of servers that pools choose from, and what opens a connection.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use tidegate_pg_client::{ConnectError, Connector, ServerIdentity};
use tidegate_session_state::statements::CatalogChanges;
use tidegate_topology::Cluster;

use super::{
    PoolKey, SharedPool, lock,
    quota::ServerQuotas,
    register::{Register, ServerEntry},
};

/// The pools of one gateway.
pub struct Pools {
    by_key: Mutex<BTreeMap<PoolKey, Arc<SharedPool>>>,
    pub(super) clusters: Mutex<Vec<Arc<Cluster>>>,
    next_id: AtomicUsize,
    /// Held while a configuration replaces another: all pools follow one before the next comes.
    replacing: Mutex<()>,
    register: Mutex<Register>,
    pub(super) quotas: ServerQuotas,
    /// Opens server connections.
    pub connector: Connector,
    /// Time of the last known change of each database's catalog.
    pub catalog_changes: Arc<CatalogChanges>,
}

impl Pools {
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            by_key: Mutex::default(),
            clusters: Mutex::default(),
            next_id: AtomicUsize::new(0),
            replacing: Mutex::default(),
            register: Mutex::default(),
            quotas: ServerQuotas::default(),
            connector,
            catalog_changes: Arc::default(),
        }
    }

    /// The pools by key, locked.
    pub(in crate::plane) fn lock(&self) -> MutexGuard<'_, BTreeMap<PoolKey, Arc<SharedPool>>> {
        lock(&self.by_key)
    }

    pub(super) fn hold_replacing(&self) -> MutexGuard<'_, ()> {
        lock(&self.replacing)
    }

    pub(super) fn next_id(&self) -> usize {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// All pools, in order of database and user.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<SharedPool>> {
        self.lock().values().cloned().collect()
    }

    /// Whether there is a pool of that database.
    pub(super) fn has_database(&self, database: &str) -> bool {
        self.lock().values().any(|pool| *pool.key.database == *database)
    }

    /// The pool with that key, if it exists.
    #[must_use]
    pub fn get(&self, key: &PoolKey) -> Option<Arc<SharedPool>> {
        self.lock().get(key).cloned()
    }

    /// The pools of clients, and the pools of single servers that those choose from.
    pub(super) fn homes_and_hosts(&self) -> (Vec<Arc<SharedPool>>, Vec<Arc<SharedPool>>) {
        self.all().into_iter().partition(|pool| pool.key.host.is_none())
    }

    /// Closes every pool for good: idle server connections now, the others on release.
    pub fn close_all(&self) {
        for pool in self.all() {
            pool.pool.close(ConnectError::Closed("the gateway is stopping"));
        }
    }

    /// Removes a pool. It opens no further connections; leased ones close on release.
    pub(super) fn remove(&self, pool: &SharedPool, reason: ConnectError) {
        let mut pools = self.lock();
        if pools.get(&pool.key).is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), pool)) {
            pools.remove(&pool.key);
        }
        drop(pools);
        // Last, so that no lookup finds a closed pool.
        pool.pool.close(reason);
    }

    /// Registers a new server connection for the console.
    pub fn note_server(&self, key: &PoolKey, identity: &Arc<ServerIdentity>) {
        lock(&self.register).add(key.clone(), identity);
    }

    /// The open server connections, in the order of their logins.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerEntry> {
        let known = lock(&self.register).entries();
        known.into_iter().map(|(key, identity)| self.server_entry(key, identity)).collect()
    }

    fn server_entry(&self, key: PoolKey, identity: Arc<ServerIdentity>) -> ServerEntry {
        // A server connection without a pool is left over from a reload.
        let outdated = self.get(&key).is_none_or(|pool| pool.is_outdated(identity.connected_at));
        ServerEntry { key, identity, outdated }
    }
}
