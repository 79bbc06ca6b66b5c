//! Sessions between transactions move to the next process.

use std::{io, os::unix::net::UnixStream as BlockingStream, sync::Arc, time::Duration};

use tidegate_admin::AdminContext;
use tidegate_handover::{
    Departures, HELLO_BYTES, SESSIONS_IN_FLIGHT, STATE_VERSION, hello, receive_sessions, version_of,
};
use tidegate_pool::Limits;
use tidegate_proxy::{
    client::{Arrivals, cancel_client},
    plane::{Clients, Gateway, Pools, SessionMoves, Workers},
};
use tidegate_supervise::{Ctx, Scope, Tokio};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::mpsc,
};

/// Limit for the greeting of the other process.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Cancel requests on the way to the previous process.
const CANCELS_MAX: usize = 64;
/// Interval of checks whether moved sessions have to be logged.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Starts to send sessions to the process that has taken over.
pub(super) fn send(context: &AdminContext, successor: UnixStream) {
    let (owner, workers) = (context.gateway.clone(), context.workers.clone());
    spawn(&context.gateway.lifecycle.scope, |ctx: Ctx| async move {
        tokio::select! {
            () = ctx.cancelled() => {}
            () = send_until_gone(&owner, &workers, successor) => {}
        }
        if owner.moves.departures().is_some() {
            let (moved, left) = (owner.moves.departed(), owner.clients.count());
            tracing::info!(moved, left, "sessions moved to the new process");
        }
    });
}

/// Starts to adopt sessions of the process that was replaced.
pub(super) fn receive(context: &AdminContext, predecessor: BlockingStream) -> io::Result<()> {
    predecessor.set_nonblocking(true)?;
    let predecessor = UnixStream::from_std(predecessor)?;
    let (owner, workers) = (context.gateway.clone(), context.workers.clone());
    owner.moves.begin_arrivals();
    spawn(&context.gateway.lifecycle.scope, |ctx: Ctx| async move {
        tokio::select! {
            () = ctx.cancelled() => {}
            () = receive_until_gone(&owner, workers, predecessor) => {}
        }
        owner.moves.end_arrivals();
    });
    Ok(())
}

fn spawn<F: Future<Output = ()> + Send + 'static>(parent: &Scope, task: impl FnOnce(Ctx) -> F) {
    let scope = parent.child::<u64>("moves");
    // Rejected while the process is stopping.
    let _ = scope.on(Tokio::current()).spawn(task);
}

/// Exchanges the versions of the state. Returns whether both processes have the same one.
async fn has_same_version(stream: &mut UnixStream) -> bool {
    let exchange = async {
        stream.write_all(&hello(STATE_VERSION)).await?;
        let mut other = [0; HELLO_BYTES];
        stream.read_exact(&mut other).await?;
        Ok::<_, io::Error>(other)
    };
    let other = match tokio::time::timeout(HELLO_LIMIT, exchange).await {
        Ok(Ok(other)) => version_of(other),
        // A process without this feature closes the connection.
        Ok(Err(_)) | Err(_) => None,
    };
    let Some(other) = other else {
        tracing::info!("no sessions move: the other process has ended, or is older than this feature");
        return false;
    };
    if other == STATE_VERSION {
        return true;
    }
    tracing::warn!(
        version = STATE_VERSION,
        other,
        "sessions stay with the previous process until they end: the processes have different versions of their state"
    );
    false
}

async fn send_until_gone(gateway: &Arc<Gateway>, workers: &Arc<Workers>, mut successor: UnixStream) {
    if !has_same_version(&mut successor).await {
        return;
    }
    let (departures, sessions) = Departures::new();
    if !gateway.moves.open_departures(departures) {
        return;
    }
    let clients = gateway.clients.count();
    tracing::info!(clients, "sessions move to the new process when they are between transactions");
    for shared in gateway.pools.all() {
        shared.pool.set_limits(Limits { min: 0, ..shared.pool.limits() });
    }
    move_sessions(workers, SESSIONS_IN_FLIGHT);
    let cancel = |pid, key: Vec<u8>| {
        let (gateway, workers) = (gateway.clone(), workers.clone());
        async move { cancel_client(&gateway, &workers, pid, &key).await }
    };
    let on_turn = || {
        move_sessions(workers, SESSIONS_IN_FLIGHT);
        close_surplus(&gateway.pools, gateway.clients.count(), clients);
    };
    let mut ended = gateway.moves.streams_ended.subscribe();
    let streams_ended = async move {
        // The sender lives as long as the gateway.
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let moving = sessions.run(&successor, streams_ended, cancel, || move_sessions(workers, 1), on_turn);
    let error = tokio::select! {
        error = moving => error,
        () = report(&gateway.moves, &gateway.clients) => return,
    };
    workers.visit_all(|worker| worker.move_sessions(false, 0));
    let (moved, left) = (gateway.moves.departed(), gateway.clients.count());
    tracing::warn!(%error, moved, left, "the new process takes no more sessions; the others stay with this one until they end");
}

/// Lets sessions of all threads leave. The tasks of up to `limit` idle clients per thread are woken.
fn move_sessions(workers: &Workers, limit: usize) {
    workers.visit_all(move |worker| worker.move_sessions(true, limit));
}

/// Closes idle server connections, so that both processes together have few more than the limit: the share of this process is
/// that of its clients.
fn close_surplus(pools: &Pools, clients: usize, clients_before: usize) {
    for shared in pools.all() {
        let (pool, size) = (&shared.pool, shared.plan().pool.size as usize);
        let share = (size * clients).div_ceil(clients_before.max(1));
        let counts = pool.counts();
        for _ in 0..counts.open.saturating_sub(share).min(counts.idle) {
            pool.evict_idle();
        }
    }
}

/// Logs how many sessions have moved, whenever no more follow for a moment. Never ends.
async fn report(moves: &SessionMoves, clients: &Clients) {
    let (mut before, mut reported) = (0, 0);
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let moved = moves.departed();
        if moved == before && moved != reported {
            let (left, refused) = (clients.count(), moves.refused());
            tracing::info!(moved, left, refused, "sessions moved to the new process");
            reported = moved;
        }
        before = moved;
    }
}

async fn receive_until_gone(gateway: &Arc<Gateway>, workers: Arc<Workers>, mut predecessor: UnixStream) {
    if !has_same_version(&mut predecessor).await {
        return;
    }
    let (send, mut cancels) = mpsc::channel(CANCELS_MAX);
    gateway.moves.set_predecessor(Some(send));
    let arrivals = Arrivals::new(gateway.clone(), workers);
    let ended = receive_sessions(&predecessor, &arrivals, &mut cancels).await;
    let arrived = gateway.moves.arrived();
    match ended {
        Ok(()) => tracing::info!(arrived, "the previous process has ended"),
        Err(error) => tracing::warn!(%error, arrived, "no more sessions from the previous process"),
    }
}
