//! Accepts clients and spreads them over the threads.

use std::{
    cell::Cell,
    io,
    rc::Rc,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use tidegate_link::{AcceptedSocket, Acceptor, Listener};
use tidegate_pg_client::OsErrorText;
use tidegate_supervise::{Class, Ctx, Restart};
use tidegate_tasks as tasks;
use tidegate_tasks::ListenerKey;

use crate::{client, plane::Worker};

/// How long accepting pauses when there is nothing to accept with, most often no file descriptor.
const BACK_OFF: Duration = Duration::from_millis(100);

/// What goes on is told again after this.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

/// A client goes to another thread if this one has more clients than that by so many.
const UNEVENNESS_MAX: usize = 1;

/// Accepts on `listener` for as long as the scope of listeners lives, and begins anew should that fail.
///
/// # Errors
/// When the listener cannot be registered with this thread.
pub fn start(worker: &Rc<Worker>, listener: Listener, ear: ListenerKey) -> io::Result<()> {
    let first = Cell::new(Some(listener.accept_on(&worker.reactor)?));
    let (owner, timer) = (worker.clone(), worker.clone());
    let class = Class::new(tasks::unlimited_restarts(Restart::Transient), move |_: &ListenerKey, ctx| {
        let acceptor = first.take().map_or_else(|| listener.accept_on(&owner.reactor), Ok);
        accept(owner.clone(), acceptor, ctx)
    });
    let sleep = move |wait: Duration| timer.reactor.sleep(wait);
    if let Ok(task) = worker.gateway.lifecycle.listen_scope.wrap_kept(ear, &class, sleep) {
        worker.reactor.spawn(task);
    }
    Ok(())
}

async fn accept(worker: Rc<Worker>, acceptor: io::Result<Acceptor>, ctx: Ctx) -> io::Result<()> {
    let acceptor = acceptor?;
    let mut told: Option<Instant> = None;
    loop {
        let accepted = std::future::poll_fn(|cx| {
            if ctx.poll_cancelled(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            acceptor.poll_accept(cx).map(Some)
        });
        match accepted.await {
            None => break,
            Some(Ok(accepted)) => place(&worker, accepted),
            Some(Err(error)) => {
                let now = worker.reactor.now();
                if told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD_AGAIN) {
                    told = Some(now);
                    tracing::warn!(error = %OsErrorText(&error), "accept failed; trying again every {BACK_OFF:?}");
                }
                worker.reactor.sleep(BACK_OFF).await;
            }
        }
    }
    // Who has come so far is not turned away.
    while let Some(accepted) = std::future::poll_fn(|cx| acceptor.poll_close(cx)).await {
        place(&worker, accepted);
    }
    Ok(())
}

/// Serves a client on this thread, or on the one with the fewest clients if that is far emptier.
fn place(worker: &Rc<Worker>, accepted: AcceptedSocket) {
    let counts = &worker.gateway.clients.per_thread;
    let own = counts[worker.index].load(Ordering::Relaxed);
    let emptiest = counts.iter().enumerate().map(|(index, count)| (count.load(Ordering::Relaxed), index)).min();
    match emptiest {
        Some((fewest, index)) if own > fewest + UNEVENNESS_MAX - 1 && index != worker.index => {
            worker.gateway.workers()[index].client(accepted);
        }
        _ => client::start(worker, accepted),
    }
}
