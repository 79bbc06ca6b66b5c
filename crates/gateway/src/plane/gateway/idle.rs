//! Databases that only `*` names, and that nobody uses any more: they are forgotten, or a client could fill the memory with
//! names.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Gateway, PoolKey, lock};
use crate::plane::Worker;

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

impl Gateway {
    /// Forgets the databases that only `*` names and that nobody has used for `timeouts.auto_database`. To be called every
    /// now and then, with the same `unused`.
    pub async fn forget_unused(&self, unused: &mut Unused) {
        let limit = self.setup().config.timeouts.auto_database;
        if limit.is_zero() {
            return;
        }
        let mut idle = self.idle_auto_pools();
        if idle.is_empty() {
            return;
        }
        let used: HashSet<PoolKey> = self.ask_all(Worker::pools_in_use).await.into_iter().flatten().collect();
        idle.retain(|key| !used.contains(key));
        let expired: Arc<[PoolKey]> = unused.expired(idle, Instant::now(), limit).into();
        if expired.is_empty() {
            return;
        }
        let keys = expired.clone();
        self.ask_all(move |worker| worker.forget_pools(&keys)).await;
        let mut pools = lock(&self.pools);
        for key in expired.iter() {
            // Whoever logs in at this moment has it, and nobody can get it while the lock is held.
            if pools.get(key).is_some_and(|pool| Arc::strong_count(pool) == 1) {
                pools.remove(key);
                tracing::debug!(database = %key.database, user = %key.user, "forgotten: nobody used it");
            }
        }
    }

    /// Pools of databases that only `*` names, whose connections, if there are any, nobody uses. Those with a choice of
    /// servers stay.
    fn idle_auto_pools(&self) -> Vec<PoolKey> {
        let pools = lock(&self.pools);
        let is_idle = |pool: &&Arc<super::SharedPool>| {
            let plain = pool.key.host.is_none() && pool.cluster().is_none();
            let counts = pool.pool.counts();
            plain && pool.plan().entry == "*" && counts.open == counts.idle && counts.connecting == 0
        };
        pools.values().filter(is_idle).map(|pool| pool.key.clone()).collect()
    }
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
