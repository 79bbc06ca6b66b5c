//! The limit of a client's wait for a server, and the error after it, which names the cause of the wait.

use std::time::Duration;

use tidegate_config::{Dialect, Route, TimeoutConfig};
use tidegate_wire::{backend::ErrorReply, sqlstate};

use crate::plane::{Worker, WorkerPool};

/// Limit of a wait for a server; zero for none. PgBouncer's `query_timeout` counts from the arrival of a query, so that it also
/// bounds the wait; `timeouts.query` in a `tidegate.toml` is the time of the server.
pub(super) fn wait_limit(times: &TimeoutConfig, dialect: Dialect) -> Duration {
    let query = Some(times.query).filter(|limit| !limit.is_zero() && dialect == Dialect::Pgbouncer);
    match query {
        Some(query) if times.checkout.is_zero() => query,
        Some(query) => times.checkout.min(query),
        None => times.checkout,
    }
}

/// Error for a client of `pool` whose wait for a server took as long as [`wait_limit`].
pub(super) fn checkout_timeout(worker: &Worker, pool: &WorkerPool, route: Route, dialect: Dialect) -> ErrorReply {
    let plan = pool.plan();
    let times = &plan.timeouts;
    let limit = wait_limit(times, dialect);
    if dialect == Dialect::Pgbouncer {
        let text = if limit == times.checkout { "query_wait_timeout" } else { "query_timeout" };
        return ErrorReply::new(sqlstate::PROTOCOL_VIOLATION, text);
    }
    let message = format!("no server became free within {limit:?} (timeouts.checkout)");
    ErrorReply::new(sqlstate::TOO_MANY_CONNECTIONS, message).hint(hint(worker, pool, route))
}

/// The cause that keeps the pool from serving its clients, and the remedy.
fn hint(worker: &Worker, pool: &WorkerPool, route: Route) -> String {
    let database = &pool.shared.key.database;
    if worker.gateway.lifecycle.is_paused(database) {
        return "The database is paused by PAUSE or KILL in the admin console. RESUME ends the pause.".to_owned();
    }
    if let Some(replica_set) = pool.replica_set()
        && !replica_set.cluster.nodes().iter().any(|node| node.serves(route))
    {
        return "No server of the database serves the route of the client. SHOW HOSTS in the admin console lists the state \
                of each server."
            .to_owned();
    }
    if let Some(error) = pool.shared.failure() {
        return format!("The gateway cannot open a connection: {error}");
    }
    "All servers of the pool are in use. Raise pool.size, or look for long transactions with SHOW CLIENTS and for pinned \
     clients with SHOW PINS."
        .to_owned()
}
