//! Refreshes the reported parameters of idle servers.
//!
//! A server that reloads its configuration or is promoted reports it before its next ReadyForQuery. In an unused pool no
//! query triggers that report, and new clients would get outdated values.

use std::{convert::Infallible, rc::Rc, time::Duration};

use tidegate_pool::ReleaseAction;

use super::{Worker, WorkerPool, within};
use crate::server::clean;

/// Interval between two refreshes of an unused pool.
const EVERY: Duration = Duration::from_secs(1);

/// Whether a refresh of the pool's idle servers is due.
#[must_use]
pub fn is_refresh_due(worker: &Worker, pool: &WorkerPool) -> bool {
    pool.is_refresh_due(worker.reactor.now(), EVERY)
}

/// Makes the idle servers of the pool report their changed parameters.
///
/// # Cancel safety
/// A server that is being refreshed is closed when the future is dropped.
pub async fn refresh(worker: &Rc<Worker>, pool: &Rc<WorkerPool>) {
    if refresh_one(worker, pool).await {
        return;
    }
    if pool.shared.pool.counts().idle == 0 {
        // The sessions that hold the servers publish changes.
        return;
    }
    // The idle servers are on other threads.
    let (asked, mut answered) = tokio::sync::mpsc::channel::<Infallible>(1);
    for mailbox in worker.workers.all() {
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
    // Completes when the last thread has replied.
    let _ = within(&worker.reactor, limit, answered.recv()).await;
}

/// Refreshes one idle server of this thread. Returns whether there was one.
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
