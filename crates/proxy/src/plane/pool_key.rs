//! The key of a pool.

use std::sync::Arc;

use tidegate_config::{Config, PoolPlan};

/// Key of a pool: what the client named, and where several servers can be chosen, the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The user of the client.
    pub user: Arc<str>,
    /// Whether the pool is for user look-ups (`lookup_query`) and serves no clients.
    pub looks_up: bool,
    /// The server; none for the pool of the clients, from which the pools of single servers are derived.
    pub host: Option<Arc<str>>,
}

impl PoolKey {
    /// The key for clients of this database and user.
    #[must_use]
    pub fn new(database: &str, user: &str) -> Self {
        Self { database: database.into(), user: user.into(), looks_up: false, host: None }
    }

    /// The settings of the pool; `None` if the configuration has no such pool.
    pub(super) fn plan(&self, config: &Config) -> Option<PoolPlan> {
        match self.looks_up {
            false => config.pool_for(&self.database, &self.user),
            true => config.lookup_pool_for(&self.database, &self.user),
        }
    }
}
