//! Reset of a server connection before its next client.

use std::{rc::Rc, time::Duration};

use tidegate_pool::{Lease, ReleaseAction};

use super::{Worker, WorkerPool};
use tidegate_config::PoolPlan;

use crate::{
    plane::{CancelStage, within},
    server::{Cleaning, ResetNeed, Server, clean},
};

/// Time limit of a reset; afterwards the connection is closed.
const CLEAN_LIMIT: Duration = Duration::from_secs(15);

pub(super) async fn clean_lease(worker: Rc<Worker>, pool: Rc<WorkerPool>, mut lease: Lease<Server>) {
    let plan = pool.plan();
    let cleaning = std::mem::take(&mut lease.cleaning);
    let resets = resets_of(&plan, cleaning, lease.reset_need);
    worker.cleaning.borrow_mut().insert(lease.identity.id, false);
    let cleaned = match lease.settle(&worker.reactor) {
        Ok(()) => {
            let work = async {
                wait_for_cancels(&worker, &pool, &lease).await;
                clean::clean(&mut lease, cleaning, &resets).await
            };
            within(&worker.reactor, CLEAN_LIMIT, work).await
        }
        Err(error) => Some(Err(error.into())),
    };
    worker.cleaning.borrow_mut().remove(&lease.identity.id);
    let fate = match cleaned {
        Some(Ok(())) => {
            pool.publish_news(&mut lease);
            ReleaseAction::Reuse
        }
        Some(Err(error)) => {
            tracing::info!(server = %lease.identity.address.host, pid = lease.identity.pid, %error, "server closed");
            ReleaseAction::Close
        }
        None => ReleaseAction::Close,
    };
    lease.release(fate, worker.reactor.now());
}

/// The statements that reset a server connection before its next client.
fn resets_of(plan: &PoolPlan, cleaning: Cleaning, need: ResetNeed) -> Vec<&str> {
    let of_pool = Some(plan.pool.server_reset.as_str()).filter(|reset| cleaning.reset && !reset.is_empty());
    let of_need = match need {
        _ if cleaning.discard => Some(clean::DISCARD_ALL),
        ResetNeed::Nothing => None,
        // DISCARD ALL covers it.
        ResetNeed::Code if of_pool == Some(clean::DISCARD_ALL) => None,
        ResetNeed::Code => Some(clean::RESET_CODE),
        ResetNeed::Session | ResetNeed::Connection => Some(clean::DISCARD_ALL),
    };
    let of_pool = of_pool.filter(|reset| of_need != Some(*reset));
    of_need.into_iter().chain(of_pool).collect()
}

/// Waits until all cancel requests to the server have completed.
async fn wait_for_cancels(worker: &Worker, pool: &WorkerPool, lease: &Lease<Server>) {
    if lease.cancels.is_open() {
        return;
    }
    let _held_up = pool.shared.count_cancel(CancelStage::HeldUp);
    worker.cleaning.borrow_mut().insert(lease.identity.id, true);
    lease.cancels.opened().await;
    worker.cleaning.borrow_mut().insert(lease.identity.id, false);
}
