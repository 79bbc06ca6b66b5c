//! `pool.server_check`: a server that was free for a while shows that it still answers, before a client's query is lost on it.

use std::time::Instant;

use tidegate_config::PoolPlan;
use tidegate_link::Reactor;
use tidegate_pool::Lease;

use crate::{
    plane::within,
    server::{Server, clean},
};

/// Whether the server is to be checked before it is used.
#[inline]
pub(super) fn is_due(lease: &Lease<Server>, plan: &PoolPlan, now: Instant) -> bool {
    plan.needs_server_check(lease.opened_at(), lease.released_at(), now)
}

/// Checks it; a server that takes longer than a login may is as good as gone.
pub(super) async fn passes(reactor: &Reactor, lease: &mut Lease<Server>, plan: &PoolPlan) -> bool {
    let checked = within(reactor, plan.timeouts.connect, clean::run(lease, &plan.pool.server_check)).await;
    let reason = match checked {
        Some(Ok(())) => return true,
        Some(Err(error)) => error.to_string(),
        None => "it does not answer".to_owned(),
    };
    tracing::info!(server = %lease.identity.address.host, pid = lease.identity.pid, reason, "server_check failed");
    false
}
