//! The streams of a gateway: started beside it, changed by a reload, clients of it where they go to Postgres, stopped before
//! it.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use tidegate_link::{AcceptedSocket, PeerAddress};

use super::ReloadError;
use tidegate_config::{Config, stream::Origin};
use tidegate_proxy::plane::Gateway;
use tidegate_streams::{Door, Doors, Fleet, Restart};

/// Whether the streams of a configuration can run beside a gateway.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    if let Some(stream) = config.streams.iter().find(|stream| stream.keys.from == Origin::Stdin) {
        return Err(ReloadError::Stdin(stream.keys.name.clone()).into());
    }
    Ok(())
}

/// Starts the streams of the configuration. Those that go to Postgres through the gateway come in as clients do, by a
/// socket that leads nowhere else.
pub(super) fn start(gateway: &Arc<Gateway>) -> anyhow::Result<Fleet> {
    let setup = gateway.config.setup();
    check(&setup.config)?;
    let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
    let scope = gateway.lifecycle.scope.child("streams");
    let replica_set = Fleet::start(&setup.config.streams, &doors(gateway), Restart::Always, threads, scope);
    let replica_set = replica_set.context("cannot start the streams")?;
    // It is set here only.
    let _ = gateway.streams.set(replica_set.board().clone());
    Ok(replica_set)
}

/// Goes by the configuration that is in force now.
pub(super) fn adopt(replica_set: &mut Fleet, gateway: &Arc<Gateway>) -> anyhow::Result<()> {
    let setup = gateway.config.setup();
    replica_set.adopt(&setup.config.streams, &doors(gateway)).context("cannot start the streams; the rest is in force")
}

fn doors(gateway: &Arc<Gateway>) -> Doors {
    let owner = Arc::downgrade(gateway);
    let open = move || {
        let gone = || std::io::Error::other("the gateway is stopping");
        let gateway = owner.upgrade().ok_or_else(gone)?;
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let emptiest = gateway.workers().iter().zip(&gateway.clients.per_thread);
        let (worker, _) = emptiest.min_by_key(|(_, count)| count.load(Ordering::Relaxed)).ok_or_else(gone)?;
        worker.client(AcceptedSocket { fd: theirs.into(), peer: PeerAddress::Unix, local: None });
        Ok(ours)
    };
    Doors::new(Door::Inside(Arc::new(open)), &gateway.config.setup().config)
}

/// Waits until no stream runs. Each has its own limit, `drain`.
pub(super) async fn ended(streams: &Fleet) {
    while streams.is_running() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
