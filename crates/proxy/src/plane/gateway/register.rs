//! Registry of server connections of all threads, for the console.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak, atomic::Ordering},
    time::SystemTime,
};

use super::{Gateway, PoolKey, SharedPool, lock};
use tidegate_config::Host;
use tidegate_pg_client::ServerIdentity;

/// A server connection as shown by the console.
#[derive(Clone, Debug)]
pub struct ServerEntry {
    /// Key of its pool.
    pub key: PoolKey,
    /// Identity of the connection.
    pub identity: Arc<ServerIdentity>,
    /// Whether the connection is older than the last RECONNECT.
    pub outdated: bool,
}

/// Open server connections. Entries are weak: a closed connection is found dead.
#[derive(Debug, Default)]
pub(super) struct Register(Vec<(PoolKey, Weak<ServerIdentity>)>);

impl Register {
    pub(super) fn add(&mut self, key: PoolKey, identity: &Arc<ServerIdentity>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|(_, known)| known.strong_count() > 0);
        }
        self.0.push((key, Arc::downgrade(identity)));
    }

    /// The open connections.
    pub(super) fn entries(&self) -> Vec<(PoolKey, Arc<ServerIdentity>)> {
        let open = |(key, identity): &(PoolKey, Weak<ServerIdentity>)| Some((key.clone(), identity.upgrade()?));
        self.0.iter().filter_map(open).collect()
    }
}

impl Gateway {
    /// Reconnects pools with connections to an address that their host name no longer resolves to.
    pub fn follow_names(&self) {
        for moved in self.pools.connector.resolver.take_changed_names() {
            let strays = |server: &ServerEntry| {
                let address = &server.identity.address;
                let ip = address.address.as_socket().map(|socket| socket.ip());
                let by_name = matches!(&address.host, Host::Tcp { name, .. } if *name == moved.name);
                by_name && ip.is_some_and(|ip| !moved.addresses.contains(&ip))
            };
            let left: BTreeSet<PoolKey> =
                self.pools.servers().into_iter().filter(strays).map(|server| server.key).collect();
            tracing::info!(name = moved.name, addresses = ?moved.addresses, "a host name leads elsewhere");
            let mut pools = self.pools.all();
            pools.retain(|pool| left.contains(&pool.key));
            self.reconnect(&pools);
        }
    }

    /// Replaces every connection of these pools, and wakes their clients in session mode.
    pub fn reconnect(&self, pools: &[Arc<SharedPool>]) {
        pools.iter().for_each(|pool| pool.reconnect());
        self.threads.wake_clients();
    }
}

impl super::SharedPool {
    /// Closes every open connection of a paused pool, as each becomes idle.
    pub fn close_for_pause(&self) {
        self.replace_connections(true);
    }

    /// Whether the last reconnect was caused by a pause.
    #[must_use]
    pub fn is_closed_by_pause(&self) -> bool {
        self.closed_by_pause.load(Ordering::Relaxed)
    }

    /// Replaces every open connection, as each becomes idle.
    pub fn reconnect(&self) {
        self.replace_connections(false);
    }

    /// The cause is stored first: a thread may close a connection, and log the cause, before this call ends.
    fn replace_connections(&self, by_pause: bool) {
        self.closed_by_pause.store(by_pause, Ordering::Relaxed);
        *lock(&self.reconnected_at) = Some(SystemTime::now());
        self.outdate_server_params();
        self.pool.reconnect();
    }

    pub(super) fn is_outdated(&self, connected_at: SystemTime) -> bool {
        lock(&self.reconnected_at).is_some_and(|since| connected_at < since)
    }
}
