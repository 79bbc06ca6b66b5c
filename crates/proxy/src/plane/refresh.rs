//! Asking servers at rest what has changed in their configuration.
//!
//! A server that loads its configuration anew, or that is promoted, reports it with its next ReadyForQuery. Where nobody uses a
//! pool, nobody would learn of it, and new clients would be greeted with what held before.

use std::{convert::Infallible, rc::Rc, time::Duration};

use tidegate_pool::ReleaseAction;

use super::{Worker, WorkerPool, within};
use crate::server::clean;

/// A pool of which nothing was asked for so long may have servers with another configuration.
const EVERY: Duration = Duration::from_secs(1);

/// Whether servers of the pool that are at rest are to be asked what has changed: at most once in a while.
#[must_use]
pub fn is_refresh_due(worker: &Worker, pool: &WorkerPool) -> bool {
    pool.is_refresh_due(worker.reactor.now(), EVERY)
}

/// Lets servers of the pool that are at rest report what has changed.
///
/// # Cancel safety
/// Dropped, a server that is being asked is closed.
pub async fn refresh(worker: &Rc<Worker>, pool: &Rc<WorkerPool>) {
    if refresh_one(worker, pool).await {
        return;
    }
    if pool.shared.pool.counts().idle == 0 {
        // The sessions that use them publish it.
        return;
    }
    // They rest on other threads.
    let (asked, mut answered) = tokio::sync::mpsc::channel::<Infallible>(1);
    for mailbox in worker.gateway.workers() {
        let (asked, shared) = (asked.clone(), pool.shared.clone());
        mailbox.visit(move |worker| {
            let (pool, other) = (worker.pool(&shared), worker.clone());
            worker.spawn_chore(0, async move {
                refresh_one(&other, &pool).await;
                drop(asked);
            });
        });
    }
    drop(asked);
    let limit = pool.plan().timeouts.connect;
    // It ends when the last of them has answered.
    let _ = within(&worker.reactor, limit, answered.recv()).await;
}

/// The same of one server on this thread. Whether there was one.
async fn refresh_one(worker: &Rc<Worker>, pool: &Rc<WorkerPool>) -> bool {
    let reactor = &worker.reactor;
    let Some(mut lease) = pool.local.try_checkout(reactor.now()) else { return false };
    let limit = pool.plan().timeouts.connect;
    let is_sound = lease.settle(reactor).is_ok()
        && matches!(within(reactor, limit, clean::refresh(&mut lease)).await, Some(Ok(())));
    if is_sound {
        pool.publish_news(&mut lease);
    } else {
        pool.shared.outdate_server_params();
    }
    lease.release(if is_sound { ReleaseAction::Reuse } else { ReleaseAction::Close }, reactor.now());
    true
}
