//! Pools that nobody uses any more: they are forgotten, or a client could fill the memory with names of databases and of users.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Gateway, PoolKey, SharedPool};

/// Since when pools were seen without use.
#[derive(Debug, Default)]
pub struct Unused(HashMap<PoolKey, Instant>);

impl Unused {
    /// The pools among `idle` that were so at every look for `limit`; all others are forgotten.
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

/// So many pools may stay that have no connection and no client, and whose users no server has ever let in. Names cost nothing
/// where nobody asks for a password.
const EMPTY_STRANGERS_MAX: usize = 256;
/// The same of those that have had connections: the next client would have to wait for one anyway.
const EMPTY_MAX: usize = 1024;

impl Gateway {
    /// Forgets the databases that only `*` names and that nobody has used for `timeouts.auto_database`. To be called every
    /// now and then, with the same `unused`.
    pub async fn forget_unused(&self, unused: &mut Unused) {
        let limit = self.config.setup().config.timeouts.auto_database;
        if !limit.is_zero() {
            self.forget_pools(self.idle_auto_pools(), unused, limit).await;
        }
    }

    /// Forgets the pools that have no connection and no client, if there are many of them. To be called every now and then.
    pub async fn forget_empty(&self) {
        let (strangers, others) = self.empty_pools();
        for (empty, most) in [(strangers, EMPTY_STRANGERS_MAX), (others, EMPTY_MAX)] {
            if empty.len() > most {
                self.forget_pools(empty, &mut Unused::default(), Duration::ZERO).await;
            }
        }
    }

    async fn forget_pools(&self, mut idle: Vec<PoolKey>, unused: &mut Unused, limit: Duration) {
        if !idle.is_empty() {
            let keys: Arc<[PoolKey]> = idle.as_slice().into();
            let used = self.ask_all(move |worker| worker.pools_in_use(&keys)).await;
            let used: HashSet<PoolKey> = used.into_iter().flatten().collect();
            idle.retain(|key| !used.contains(key));
        }
        let expired = unused.expired(idle, Instant::now(), limit);
        if expired.is_empty() {
            return;
        }
        // Behind each pool those of the servers that its clients choose from, which only it has in hand.
        let keys: Arc<[PoolKey]> = {
            let pools = self.pools.lock();
            expired.iter().flat_map(|home| family(&pools, home).map(|pool| pool.key.clone())).collect()
        };
        self.ask_all(move |worker| worker.forget_pools(&keys)).await;
        let mut pools = self.pools.lock();
        for home in expired {
            // Whoever logs in at this moment has it, and nobody can get it while the lock is held.
            if family(&pools, &home).all(|pool| Arc::strong_count(pool) == 1) {
                let keys: Vec<PoolKey> = family(&pools, &home).map(|pool| pool.key.clone()).collect();
                keys.iter().for_each(|key| drop(pools.remove(key)));
                tracing::debug!(database = %home.database, user = %home.user, "forgotten: nobody used it");
            }
        }
    }

    /// Pools of databases that only `*` names, whose connections, if there are any, nobody uses. Those with a choice of
    /// servers stay.
    fn idle_auto_pools(&self) -> Vec<PoolKey> {
        let pools = self.pools.lock();
        let is_idle = |pool: &&Arc<SharedPool>| {
            let plain = pool.key.host.is_none() && pool.cluster().is_none();
            let counts = pool.pool.counts();
            plain && pool.plan().entry == "*" && counts.open == counts.idle && counts.connecting == 0
        };
        pools.values().filter(is_idle).map(|pool| pool.key.clone()).collect()
    }

    /// Pools for which nothing is open or is being opened, and in which nobody waits: those to which no server was ever
    /// connected, and the others. Those that are kept open before a client comes stay.
    fn empty_pools(&self) -> (Vec<PoolKey>, Vec<PoolKey>) {
        let setup = self.config.setup();
        let kept: BTreeSet<(&str, &str)> = setup.config.shared_users().collect();
        let pools = self.pools.lock();
        let may_go = |pool: &&Arc<SharedPool>| {
            pool.key.host.is_none() && !kept.contains(&(&*pool.key.database, &*pool.key.user))
        };
        let is_empty = |pool: &&Arc<SharedPool>| {
            family(&pools, &pool.key).all(|pool| pool.open() == 0 && pool.pool.counts().waiting == 0)
        };
        let empty = pools.values().filter(may_go).filter(is_empty);
        let (strangers, others): (Vec<_>, Vec<_>) = empty.partition(|pool| !pool.has_welcome());
        let keys = |pools: Vec<&Arc<SharedPool>>| pools.into_iter().map(|pool| pool.key.clone()).collect();
        (keys(strangers), keys(others))
    }
}

/// The pool of clients, and those of the single servers that they choose from.
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
    fn what_is_used_once_begins_anew() {
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
