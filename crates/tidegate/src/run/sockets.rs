//! The sockets that a gateway listens on: those that systemd holds, those of the process that it replaces, or its own.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tidegate_link::{Listener, UnixSocketOptions};

use super::{activation::Activated, handover::Predecessor, process};
use tidegate_admin::http;
use tidegate_config::Config;

/// What a gateway listens on.
#[derive(Debug)]
pub(super) struct Sockets {
    /// For clients.
    pub(super) listeners: Vec<Listener>,
    /// For `GET /metrics`.
    pub(super) metrics: Vec<TcpListener>,
}

impl Sockets {
    /// Those of systemd if there are any, whatever the configuration says of addresses; else those that it names, of which
    /// some may be had from the process that this one replaces.
    ///
    /// # Errors
    /// Which address cannot be had.
    pub(super) fn open(
        config: &Config,
        activated: Activated,
        mut predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<Self> {
        let mut metrics = activated.metrics;
        if metrics.is_empty() {
            for address in &config.metrics.addresses {
                let passed = predecessor.as_mut().and_then(|old| old.take_metrics(*address));
                metrics.push(passed.map_or_else(|| scraped(address), Ok)?);
            }
        }
        if !activated.listeners.is_empty() {
            tracing::info!(
                sockets = activated.listeners.len(),
                "systemd has passed sockets: the addresses of the configuration are not used"
            );
            return Ok(Self { listeners: activated.listeners, metrics });
        }
        // Last in the list, but first to be there: who can come over TCP can come this way too.
        let file = match config.listen.unix_socket() {
            None => None,
            Some(path) => {
                let passed = predecessor.as_mut().and_then(|old| old.take_file(&path));
                Some(passed.map_or_else(|| unix(&path, config), Ok)?)
            }
        };
        let mut listeners = Vec::new();
        for address in &config.listen.addresses {
            let passed = predecessor.as_mut().and_then(|old| old.take_tcp(*address));
            listeners.push(passed.map_or_else(|| tcp(*address, config), Ok)?);
        }
        listeners.extend(file);
        Ok(Self { listeners, metrics })
    }

    /// Says where clients can come.
    pub(super) fn announce(&self) {
        for listener in &self.listeners {
            match (listener.local_addr(), listener.file()) {
                (Some(address), _) => tracing::info!(%address, "listening"),
                (None, Some(path)) => tracing::info!(path = %path.display(), "listening"),
                (None, None) => tracing::info!("listening on a unix socket"),
            }
        }
    }
}

fn backlog(config: &Config) -> i32 {
    i32::try_from(config.listen.backlog).unwrap_or(i32::MAX)
}

/// How often an address is tried that is in use,
const TRIES: u32 = 20;
/// and how long is waited in between.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// What `bind` brings, as soon as the address is free. Of a process that was killed over io_uring the kernel closes the sockets a
/// little later than it tells of its end.
fn when_free<T>(address: impl fmt::Display, bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for tried in 1..TRIES {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
        if tried == 1 {
            tracing::warn!(%address, "the address is in use; trying again for a second");
        }
        thread::sleep(TRY_AGAIN);
    }
    bind()
}

fn scraped(address: &SocketAddr) -> anyhow::Result<TcpListener> {
    when_free(address, || http::bind(address)).with_context(|| format!("cannot listen on {address} for metrics"))
}

fn tcp(address: SocketAddr, config: &Config) -> anyhow::Result<Listener> {
    let bind = if config.listen.reuse_port { Listener::tcp_shared } else { Listener::tcp };
    when_free(address, || bind(address, backlog(config)))
        .with_context(|| format!("cannot listen on {address}; is another process using it (ss -ltnp)?"))
}

fn unix(path: &Path, config: &Config) -> anyhow::Result<Listener> {
    let listen = &config.listen;
    let group = match listen.unix_socket_group.as_str() {
        "" => None,
        name => {
            Some(process::group(name).with_context(|| format!("unix_socket_group: there is no group `{name}` here"))?)
        }
    };
    // Where others may listen on the same port, the last one to come has the file.
    let access = UnixSocketOptions { mode: listen.unix_socket_mode.0, group, replace: listen.reuse_port };
    when_free(path.display(), || Listener::unix(path, access, backlog(config)))
        .with_context(|| format!("cannot listen on {}", path.display()))
}
