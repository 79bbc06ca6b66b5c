//! `pool.server_check`: checks an idle server before use, so that no query is lost on a dead connection.

use std::time::Instant;

use tidegate_config::PoolPlan;
use tidegate_link::Reactor;
use tidegate_pool::Lease;

use crate::{
    plane::within,
    server::{Server, clean},
};

/// Whether the server must be checked before use.
#[inline]
pub(super) fn is_due(lease: &Lease<Server>, plan: &PoolPlan, now: Instant) -> bool {
    plan.needs_server_check(lease.opened_at(), lease.released_at(), now)
}

/// Runs the check query. A server that exceeds the connect timeout fails the check.
pub(super) async fn passes(reactor: &Reactor, lease: &mut Lease<Server>, plan: &PoolPlan) -> bool {
    let checked = within(reactor, plan.timeouts.connect, clean::run(lease, &plan.pool.server_check)).await;
    let reason = match checked {
        Some(Ok(())) => return true,
        Some(Err(error)) => error.to_string(),
        None => "no reply within timeouts.connect".to_owned(),
    };
    tracing::info!(server = %lease.identity.address.host, pid = lease.identity.pid, reason, "server_check failed");
    false
}
