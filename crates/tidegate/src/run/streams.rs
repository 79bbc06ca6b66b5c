//! Streams of a gateway: started with it, changed by a reload, and stopped before it. Streams to Postgres are clients of the
//! gateway.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use tidegate_link::{AcceptedSocket, PeerAddress};

use super::ReloadError;
use tidegate_config::{Config, stream::StreamSource};
use tidegate_proxy::plane::Gateway;
use tidegate_streams::{GatewayAccess, GatewayConnector, RestartMode, StreamManager};

/// Checks that the streams can run in a gateway.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    if let Some(stream) = config.streams.iter().find(|stream| stream.keys.from == StreamSource::Stdin) {
        return Err(ReloadError::Stdin(stream.keys.name.clone()).into());
    }
    Ok(())
}

/// Starts the configured streams, or none of them yet. Streams to Postgres through the gateway connect like clients, by a socket
/// pair.
pub(super) fn start(gateway: &Arc<Gateway>, at_once: bool) -> anyhow::Result<StreamManager> {
    let setup = gateway.config.setup();
    check(&setup.config)?;
    let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
    let scope = gateway.lifecycle.scope.child("streams");
    let streams = if at_once { &setup.config.streams[..] } else { &[] };
    let manager = StreamManager::start(streams, &gateway_access(gateway), RestartMode::Always, threads, scope);
    let manager = manager.context("cannot start the streams")?;
    // Set only here.
    let _ = gateway.streams.set(manager.status_table().clone());
    Ok(manager)
}

/// Waits until the streams of the previous process have ended.
pub(super) async fn until_allowed(gateway: &Gateway) {
    // The sender lives as long as the gateway.
    let _ = gateway.moves.streams_may_start.subscribe().wait_for(|may_start| *may_start).await;
}

/// Applies the current configuration.
pub(super) fn apply(manager: &mut StreamManager, gateway: &Arc<Gateway>) -> anyhow::Result<()> {
    let setup = gateway.config.setup();
    manager
        .apply(&setup.config.streams, &gateway_access(gateway))
        .context("cannot start the streams; the other changes are applied")
}

fn gateway_access(gateway: &Arc<Gateway>) -> GatewayAccess {
    let config = gateway.config.setup();
    GatewayAccess::new(GatewayConnector::InProcess(gateway_socket(gateway)), &config.config)
}

/// Opens connections to the gateway, as if a client had connected to its unix socket.
pub(super) fn gateway_socket(gateway: &Arc<Gateway>) -> Arc<dyn Fn() -> std::io::Result<UnixStream> + Send + Sync> {
    let owner = Arc::downgrade(gateway);
    Arc::new(move || {
        let gone = || std::io::Error::other("the gateway is stopping");
        let gateway = owner.upgrade().ok_or_else(gone)?;
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let least_loaded = gateway.workers().iter().zip(&gateway.clients.per_thread);
        let (worker, _) = least_loaded.min_by_key(|(_, count)| count.load(Ordering::Relaxed)).ok_or_else(gone)?;
        worker.client(AcceptedSocket { fd: theirs.into(), peer: PeerAddress::Unix, local: None });
        Ok(ours)
    })
}

/// Waits until no stream runs. Each stream has its own limit, `drain`.
pub(super) async fn wait_until_ended(streams: &StreamManager) {
    while streams.is_running() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
