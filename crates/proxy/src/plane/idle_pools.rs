//! Removal of unused pools. Otherwise clients could fill the memory with names of databases and users.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Configuration, PoolKey, Pools, SharedPool, Workers};

/// Pools that were seen unused, with the time of the first observation.
#[derive(Debug, Default)]
pub struct Unused(HashMap<PoolKey, Instant>);

impl Unused {
    /// The pools of `idle` that were idle in every check for `limit`. Forgets all others.
    fn expired(&mut self, idle: Vec<PoolKey>, now: Instant, limit: Duration) -> Vec<PoolKey> {
        let since = |key: PoolKey| {
            let since = self.0.get(&key).copied().unwrap_or(now);
            (key, since)
        };
        self.0 = idle.into_iter().map(since).collect();
        let over = self.0.iter().filter(|(_, since)| now.saturating_duration_since(**since) >= limit);
        over.map(|(key, _)| key.clone()).collect()
    }
}

/// Maximum number of pools without connections and clients whose user no server ever admitted. With method `trust` a client
/// can create one with any name.
const EMPTY_STRANGERS_MAX: usize = 256;
/// The same limit for pools that had connections. Their next client has to wait for a connection anyway.
const EMPTY_MAX: usize = 1024;

/// Removes databases that only `*` matches and that were unused for `timeouts.auto_database`. Called periodically with the same
/// `unused`.
pub async fn forget_unused(config: &Configuration, pools: &Pools, workers: &Workers, unused: &mut Unused) {
    let limit = config.setup().config.timeouts.auto_database;
    if !limit.is_zero() {
        forget_pools(pools, workers, idle_auto_pools(pools), (unused, limit)).await;
    }
}

/// Removes pools without connections and clients, if there are many. Called periodically.
pub async fn forget_empty(config: &Configuration, pools: &Pools, workers: &Workers) {
    let (strangers, others) = empty_pools(config, pools);
    for (empty, most) in [(strangers, EMPTY_STRANGERS_MAX), (others, EMPTY_MAX)] {
        if empty.len() > most {
            forget_pools(pools, workers, empty, (&mut Unused::default(), Duration::ZERO)).await;
        }
    }
}

async fn forget_pools(
    all: &Pools,
    workers: &Workers,
    mut idle: Vec<PoolKey>,
    (unused, limit): (&mut Unused, Duration),
) {
    if !idle.is_empty() {
        let keys: Arc<[PoolKey]> = idle.as_slice().into();
        let used = workers.ask_all(move |worker| worker.pools_in_use(&keys)).await;
        let used: HashSet<PoolKey> = used.into_iter().flatten().collect();
        idle.retain(|key| !used.contains(key));
    }
    let expired = unused.expired(idle, Instant::now(), limit);
    if expired.is_empty() {
        return;
    }
    // Pools of single servers go together with the pool of the clients, which alone refers to them.
    let keys: Arc<[PoolKey]> = {
        let pools = all.lock();
        expired.iter().flat_map(|home| family(&pools, home).map(|pool| pool.key.clone())).collect()
    };
    workers.ask_all(move |worker| worker.forget_pools(&keys)).await;
    let mut pools = all.lock();
    for home in expired {
        // A concurrent login holds a reference; while the lock is held no further one appears.
        if family(&pools, &home).all(|pool| Arc::strong_count(pool) == 1) {
            let keys: Vec<PoolKey> = family(&pools, &home).map(|pool| pool.key.clone()).collect();
            keys.iter().for_each(|key| drop(pools.remove(key)));
            tracing::debug!(database = %home.database, user = %home.user, "unused pool removed");
        }
    }
}

/// Pools of databases that only `*` matches, with no connection in use. Pools with a cluster stay.
fn idle_auto_pools(pools: &Pools) -> Vec<PoolKey> {
    let pools = pools.lock();
    let is_idle = |pool: &&Arc<SharedPool>| {
        let plain = pool.key.host.is_none() && pool.cluster().is_none();
        let counts = pool.pool.counts();
        plain && pool.plan().entry == "*" && counts.open == counts.idle && counts.connecting == 0
    };
    pools.values().filter(is_idle).map(|pool| pool.key.clone()).collect()
}

/// Pools without connections and waiters: those to which no server was ever connected, and the others. Pools with `min_size`
/// stay.
fn empty_pools(config: &Configuration, pools: &Pools) -> (Vec<PoolKey>, Vec<PoolKey>) {
    let setup = config.setup();
    let kept: BTreeSet<(&str, &str)> = setup.config.shared_users().collect();
    let pools = pools.lock();
    let may_go =
        |pool: &&Arc<SharedPool>| pool.key.host.is_none() && !kept.contains(&(&*pool.key.database, &*pool.key.user));
    let is_empty = |pool: &&Arc<SharedPool>| {
        family(&pools, &pool.key).all(|pool| pool.open() == 0 && pool.pool.counts().waiting == 0)
    };
    let empty = pools.values().filter(may_go).filter(is_empty);
    let (strangers, others): (Vec<_>, Vec<_>) = empty.partition(|pool| !pool.has_server_params());
    let keys = |pools: Vec<&Arc<SharedPool>>| pools.into_iter().map(|pool| pool.key.clone()).collect();
    (keys(strangers), keys(others))
}

/// The pool of the clients, and the pools of the single servers behind it.
fn family<'a>(
    pools: &'a BTreeMap<PoolKey, Arc<SharedPool>>,
    home: &PoolKey,
) -> impl Iterator<Item = &'a Arc<SharedPool>> {
    let of = (home.database.clone(), home.user.clone(), home.looks_up);
    let is_of = move |key: &PoolKey| key.database == of.0 && key.user == of.1 && key.looks_up == of.2;
    pools.range(home..).take_while(move |(key, _)| is_of(key)).map(|(_, pool)| pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_of_a_pool_restarts_its_limit() {
        let mut unused = Unused::default();
        let (a, b) = (PoolKey::new("a", "u"), PoolKey::new("b", "u"));
        let (start, limit) = (Instant::now(), Duration::from_secs(10));
        let both = || vec![a.clone(), b.clone()];
        assert!(unused.expired(both(), start, limit).is_empty());
        assert!(unused.expired(vec![a.clone()], start + limit / 2, limit).is_empty());
        assert_eq!(unused.expired(both(), start + limit, limit), std::slice::from_ref(&a));
        assert_eq!(unused.expired(vec![b.clone()], start + limit * 2, limit), [b]);
    }
}
