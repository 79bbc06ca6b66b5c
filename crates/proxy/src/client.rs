//! A client connection, from accept to close.

use std::{
    rc::Rc,
    sync::{Arc, atomic::Ordering},
};

use tidegate_link::{AcceptedSocket, Link};
use tidegate_supervise::Ctx;

use crate::plane::{Gateway, Worker};
use handshake::Admitted;

mod auth;
mod canceller;
mod check;
mod checkout_timeout;
mod console;
mod handshake;
mod idle;
mod log;
mod lookup;
mod passthrough;
mod route;
mod session;

pub use canceller::cancel_client;
pub use session::Arrivals;

/// Spawns the task of a client on the thread of `worker`.
pub fn start(worker: &Rc<Worker>, accepted: AcceptedSocket) {
    let guard = ClientGuard::take(&worker.gateway, worker.index);
    let (owner, peer) = (worker.clone(), accepted.peer);
    let id = worker.gateway.clients.next_id();
    let task = worker.client_scope.wrap_numbered(id, move |ctx| serve(owner, accepted, id, ctx, guard));
    match task {
        Ok(task) => worker.reactor.spawn(task),
        Err(refused) => tracing::debug!(%peer, %refused, "client not served"),
    }
}

/// Counts a client in the client count of its thread.
struct ClientGuard(Arc<Gateway>, usize);

impl ClientGuard {
    fn take(gateway: &Arc<Gateway>, worker: usize) -> Self {
        gateway.clients.per_thread[worker].fetch_add(1, Ordering::Relaxed);
        Self(gateway.clone(), worker)
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.0.clients.per_thread[self.1].fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(
    worker: Rc<Worker>,
    accepted: AcceptedSocket,
    id: u64,
    ctx: Ctx,
    guard: ClientGuard,
) -> impl Future<Output = ()> {
    // The login future is large and short-lived: boxed, it does not count towards the memory of an idle client.
    let login = Box::pin(handshake::log_in(worker, accepted, id, ctx.clone()));
    async move {
        match login.await {
            Some(Admitted::Session(session)) => session::run(session, &ctx).await,
            Some(Admitted::Console(client)) => Box::pin(client.serve()).await,
            Some(Admitted::Replication(client)) => Box::pin(client.serve(&ctx)).await,
            Some(Admitted::Cancel(request)) => Box::pin(request.serve(&ctx)).await,
            None => {}
        }
        drop(guard);
    }
}

/// Time limit for sending the final bytes to a client.
const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Sends the final bytes and closes the connection.
pub async fn close_with(worker: &Worker, link: &mut Link, words: Vec<u8>) {
    link.write(words);
    link.write_close_notify();
    let _ = crate::plane::within(&worker.reactor, CLOSE_TIMEOUT, link.flush()).await;
    link.shutdown();
}
