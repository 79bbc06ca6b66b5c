//! Accepts clients and distributes them over the worker threads.

use std::{
    cell::Cell,
    io,
    rc::Rc,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use tidegate_link::{AcceptedSocket, Acceptor, Listener};
use tidegate_pg_client::{OsErrorText, tcp};
use tidegate_supervise::{ChildClass, Ctx, Restart};
use tidegate_tasks as tasks;
use tidegate_tasks::ListenerKey;

use crate::{client, plane::Worker};

/// Pause after a failed accept; the usual cause is a lack of file descriptors.
const BACKOFF: Duration = Duration::from_millis(100);

/// Minimum interval between warnings about failed accepts.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum difference in client counts for moving a client to the thread with the fewest.
const IMBALANCE_MIN: usize = 1;

/// Accepts on `listener` until the scope of listeners is cancelled; restarts after a failure.
///
/// # Errors
/// Fails if the listener cannot be registered with this thread.
pub fn start(worker: &Rc<Worker>, listener: Listener, key: ListenerKey) -> io::Result<()> {
    let first = Cell::new(Some(listener.accept_on(&worker.reactor)?));
    let (owner, timer, is_unix) = (worker.clone(), worker.clone(), listener.local_addr().is_none());
    let class = ChildClass::new(tasks::unlimited_restarts(Restart::Transient), move |_: &ListenerKey, ctx| {
        let acceptor = first.take().map_or_else(|| listener.accept_on(&owner.reactor), Ok);
        accept(owner.clone(), acceptor, is_unix, ctx)
    });
    let sleep = move |wait: Duration| timer.reactor.sleep(wait);
    let lifecycle = &worker.gateway.lifecycle;
    let scope = if is_unix { &lifecycle.unix_listen_scope } else { &lifecycle.listen_scope };
    if let Ok(task) = scope.wrap_kept(key, &class, sleep) {
        worker.reactor.spawn(task);
    }
    Ok(())
}

async fn accept(worker: Rc<Worker>, acceptor: io::Result<Acceptor>, is_unix: bool, ctx: Ctx) -> io::Result<()> {
    let acceptor = acceptor?;
    let mut buffers = ListenBuffers::default();
    let mut warned_at: Option<Instant> = None;
    loop {
        if !is_unix {
            buffers.follow(&worker, &acceptor);
        }
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
                if warned_at.is_none_or(|warned_at| now.saturating_duration_since(warned_at) >= WARN_INTERVAL) {
                    warned_at = Some(now);
                    tracing::warn!(error = %OsErrorText(&error), "accept failed; trying again every {BACKOFF:?}");
                }
                worker.reactor.sleep(BACKOFF).await;
            }
        }
    }
    // Serve the connections that the kernel has already accepted.
    while let Some(accepted) = std::future::poll_fn(|cx| acceptor.poll_close(cx)).await {
        place(&worker, accepted);
    }
    Ok(())
}

/// Kernel buffers of a listener, which accepted sockets inherit. Also those of a listener from systemd or the replaced process.
#[derive(Default)]
struct ListenBuffers {
    /// The setting that was applied.
    bytes: u32,
}

impl ListenBuffers {
    /// Applies a changed setting. The next accepted connection may still have the buffers of the old one.
    fn follow(&mut self, worker: &Worker, acceptor: &Acceptor) {
        let settings = &worker.gateway.config.setup().config.tcp;
        if settings.socket_buffer == self.bytes {
            return;
        }
        self.bytes = settings.socket_buffer;
        if let Err(error) = tcp::set_buffers(acceptor, settings) {
            tracing::warn!(error = %OsErrorText(&error), "tcp_socket_buffer cannot be applied to a listener");
        }
    }
}

/// Serves a client on this thread, or on the thread with the fewest clients if `IMBALANCE_MIN` is reached.
fn place(worker: &Rc<Worker>, accepted: AcceptedSocket) {
    let counts = &worker.gateway.clients.per_thread;
    let own = counts[worker.index].load(Ordering::Relaxed);
    let emptiest = counts.iter().enumerate().map(|(index, count)| (count.load(Ordering::Relaxed), index)).min();
    match emptiest {
        Some((fewest, index)) if own > fewest + IMBALANCE_MIN - 1 && index != worker.index => {
            worker.workers.all()[index].client(accepted);
        }
        _ => client::start(worker, accepted),
    }
}
