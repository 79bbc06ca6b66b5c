//! The streams of a gateway: started beside it, clients of it where they go to Postgres, stopped before it.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use tidegate_link::{Accepted, Address};

use crate::config::stream::Origin;
use crate::plane::Gateway;
use crate::stream::{Door, Doors, Fleet, Restart};

/// Starts the streams of the configuration. Those that go to Postgres through the gateway come in as clients do, by a
/// socket that leads nowhere else.
pub(super) fn start(gateway: &Arc<Gateway>) -> anyhow::Result<Option<Fleet>> {
    let setup = gateway.setup();
    let streams = &setup.config.streams;
    if let Some(stream) = streams.iter().find(|stream| stream.keys.from == Origin::Stdin) {
        let name = &stream.keys.name;
        anyhow::bail!(
            "the stream `{name}` reads standard input: run it by itself, with `tidegate stream -c FILE {name}`"
        );
    }
    if streams.is_empty() {
        return Ok(None);
    }
    let owner = Arc::downgrade(gateway);
    let open = move || {
        let gone = || std::io::Error::other("the gateway is stopping");
        let gateway = owner.upgrade().ok_or_else(gone)?;
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let emptiest = gateway.workers().iter().zip(&gateway.clients);
        let (worker, _) = emptiest.min_by_key(|(_, count)| count.load(Ordering::Relaxed)).ok_or_else(gone)?;
        worker.client(Accepted { fd: theirs.into(), peer: Address::Unix });
        Ok(ours)
    };
    let doors = Doors::new(Door::Inside(Arc::new(open)), &setup.config);
    let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
    let fleet = Fleet::start(streams, &doors, Restart::Always, threads).context("cannot start the streams")?;
    // It is set here only.
    let _ = gateway.streams.set(fleet.board().clone());
    Ok(Some(fleet))
}

/// Waits until no stream runs. Each has its own limit, `drain`.
pub(super) async fn ended(streams: Option<&Fleet>) {
    while streams.is_some_and(Fleet::is_running) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
