//! Limits across pools: server connections and clients of one database, one user or one address.
//!
//! A count is raised only within its limit and lowered by a destructor, so it cannot leak. Cost: once per connection attempt
//! and once per login, none per query.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tidegate_pool::Pool;

use super::{Network, PoolKey, Pools, lock};
use tidegate_config::{PoolPlan, SharedLimits};

use crate::{error::Cause, server::Server};

/// Purpose of a server connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionUse {
    /// A pooled connection, for any waiting client.
    InPool,
    /// A dedicated connection of one client.
    DedicatedServer,
}

impl ConnectionUse {
    /// Whether the connection is no longer needed. A pause does not wait for other pools; a waiter may have left, or got
    /// another connection.
    pub(crate) fn is_given_up(self, pool: &Pool<Server>) -> bool {
        match self {
            Self::InPool => pool.is_closed() || pool.is_paused() || pool.counts().waiting == 0,
            Self::DedicatedServer => pool.is_closed(),
        }
    }
}

/// Counts by name.
#[derive(Debug, Default)]
struct Counts(Mutex<HashMap<Arc<str>, Arc<AtomicUsize>>>);

impl Counts {
    fn of(&self, name: &str) -> Arc<AtomicUsize> {
        let mut counts = lock(&self.0);
        if let Some(count) = counts.get(name) {
            return count.clone();
        }
        if counts.len() == counts.capacity() {
            counts.retain(|_, count| Arc::strong_count(count) > 1);
        }
        counts.entry(name.into()).or_default().clone()
    }

    /// Counts one more, unless `limit` is reached; 0 is no limit.
    fn take(&self, name: &str, limit: u32) -> Option<CountGuard> {
        let count = self.of(name);
        let more = |held: usize| (limit == 0 || held < limit as usize).then_some(held + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(CountGuard(count))
    }
}

/// A counted item; uncounted on drop.
#[derive(Debug)]
pub struct CountGuard(Arc<AtomicUsize>);

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Limits of server connections.
#[derive(Debug, Default)]
pub(super) struct ServerQuotas {
    by_database: Counts,
    by_user: Counts,
}

/// Limits of clients.
#[derive(Debug, Default)]
pub(super) struct ClientQuotas {
    by_database: Counts,
    by_user: Counts,
    by_address: Counts,
    arrivals_by_address: Counts,
}

impl ClientQuotas {
    pub(super) fn admit(&self, database: &str, user: &str, limits: &SharedLimits) -> Result<QuotaGuard, QuotaExceeded> {
        both((&self.by_database, database, limits.database_clients), (&self.by_user, user, limits.user_clients))
    }

    pub(super) fn admit_address(&self, address: IpAddr, max: u32) -> Option<CountGuard> {
        self.by_address.take(&Network::of(address).to_string(), max)
    }

    pub(super) fn admit_arrival(&self, address: IpAddr, max: u32) -> Option<CountGuard> {
        self.arrivals_by_address.take(&Network::of(address).to_string(), max)
    }
}

/// An item counted for a database and a user.
#[derive(Debug)]
pub struct QuotaGuard {
    _database: CountGuard,
    _user: CountGuard,
    _address: Option<CountGuard>,
}

impl QuotaGuard {
    /// The same item, counted for an address as well.
    #[must_use]
    pub fn with_address(self, address: Option<CountGuard>) -> Self {
        Self { _address: address, ..self }
    }
}

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// The limit of the database.
    Database,
    /// The limit of the user.
    User,
}

impl QuotaExceeded {
    /// The reason for the error of a client.
    #[must_use]
    pub const fn cause(self) -> Cause {
        match self {
            Self::Database => Cause::DatabaseClients,
            Self::User => Cause::UserClients,
        }
    }
}

fn both(
    (database_counts, database, database_limit): (&Counts, &str, u32),
    (user_counts, user, user_limit): (&Counts, &str, u32),
) -> Result<QuotaGuard, QuotaExceeded> {
    let database = database_counts.take(database, database_limit).ok_or(QuotaExceeded::Database)?;
    let user = user_counts.take(user, user_limit).ok_or(QuotaExceeded::User)?;
    Ok(QuotaGuard { _database: database, _user: user, _address: None })
}

impl Pools {
    /// Counts a server connection of a pool.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admit_server(&self, key: &PoolKey, plan: &PoolPlan) -> Result<QuotaGuard, QuotaExceeded> {
        both(
            (&self.quotas.by_database, &key.database, plan.shared.database_servers),
            (&self.quotas.by_user, &plan.user, plan.shared.user_servers),
        )
    }

    /// Counts a server connection that another process has handed over, whatever the limits are.
    #[must_use]
    pub fn count_server(&self, key: &PoolKey, plan: &PoolPlan) -> Option<QuotaGuard> {
        both((&self.quotas.by_database, &key.database, 0), (&self.quotas.by_user, &plan.user, 0)).ok()
    }

    /// Closes an idle connection to free a place for this pool: of another pool, or of this one for a dedicated connection.
    /// The pool with the most idle connections gives one.
    pub fn evict_for(&self, key: &PoolKey, plan: &PoolPlan, full: QuotaExceeded, room: ConnectionUse) {
        let gives = |other: &Arc<super::SharedPool>| match full {
            QuotaExceeded::Database => other.key.database == key.database,
            QuotaExceeded::User => other.plan().user == plan.user,
        };
        let others = self
            .all()
            .into_iter()
            .filter(|other| (other.key != *key || room == ConnectionUse::DedicatedServer) && gives(other));
        let idle = others.map(|other| (other.pool.counts().idle, other)).filter(|(idle, _)| *idle > 0);
        if let Some((_, fullest)) = idle.max_by_key(|(idle, _)| *idle) {
            fullest.pool.evict_idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_until_one_is_dropped() {
        let counts = Counts::default();
        let first = counts.take("a", 2);
        let second = counts.take("a", 2);
        assert!(first.is_some() && second.is_some() && counts.take("a", 2).is_none());
        assert!(counts.take("b", 2).is_some(), "another name has a count of its own");
        drop(first);
        assert!(counts.take("a", 2).is_some());
    }

    #[test]
    fn no_limit_is_no_limit() {
        let counts = Counts::default();
        let held: Vec<_> = (0..100).map(|_| counts.take("a", 0)).collect();
        assert!(held.iter().all(Option::is_some));
    }
}
