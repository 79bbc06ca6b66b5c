//! Listening sockets: from systemd, from the replaced process, or new.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tidegate_link::{Listener, UnixSocketOptions};

use super::{activation::ActivatedSockets, handover::Predecessor, process};
use tidegate_admin::http;
use tidegate_config::Config;
use tidegate_pg_client::tcp;

/// The listening sockets of a gateway.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Sockets for clients.
    pub(super) listeners: Vec<Listener>,
    /// Sockets for `GET /metrics`.
    pub(super) metrics: Vec<TcpListener>,
    /// Sockets for the web console.
    pub(super) web: Vec<TcpListener>,
    /// Sockets for live queries. An address that the replaced process does not pass is bound later.
    pub(super) shapes: Vec<TcpListener>,
}

impl Sockets {
    /// Opens the sockets. Sockets from systemd replace the configured addresses; otherwise sockets of the replaced process are
    /// reused.
    ///
    /// # Errors
    /// The address that is not available.
    pub(super) fn open(
        config: &Config,
        activated: ActivatedSockets,
        mut predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<Self> {
        let mut metrics = activated.metrics;
        if metrics.is_empty() {
            for address in &config.metrics.addresses {
                let passed = predecessor.as_mut().and_then(|old| old.take_http(*address));
                metrics.push(passed.map_or_else(|| bind_http(address, "metrics"), Ok)?);
            }
        }
        let mut web = Vec::new();
        for address in &config.admin_http.addresses {
            let passed = predecessor.as_mut().and_then(|old| old.take_http(*address));
            web.push(passed.map_or_else(|| bind_http(address, "the web console"), Ok)?);
        }
        let shapes = live_query_sockets(config, predecessor.as_deref_mut())?;
        if !activated.listeners.is_empty() {
            tracing::info!(
                sockets = activated.listeners.len(),
                "using sockets from systemd instead of the configured addresses"
            );
            return Ok(Self { listeners: activated.listeners, metrics, web, shapes });
        }
        // Last in the list, but opened first: clients that can use TCP may also use the unix socket.
        let file = match config.listen.unix_socket() {
            None => None,
            Some(path) => {
                let passed = predecessor.as_mut().and_then(|old| old.take_file(&path));
                Some(passed.map_or_else(|| bind_unix(&path, config), Ok)?)
            }
        };
        let mut listeners = Vec::new();
        for address in &config.listen.addresses {
            let passed = predecessor.as_mut().and_then(|old| old.take_tcp(*address));
            listeners.push(passed.map_or_else(|| bind_tcp(*address, config), Ok)?);
        }
        listeners.extend(file);
        Ok(Self { listeners, metrics, web, shapes })
    }

    /// Copies of all sockets for HTTP, for the next process.
    ///
    /// # Errors
    /// If there is no free descriptor.
    pub(super) fn http_copies(&self) -> io::Result<Vec<OwnedFd>> {
        let all = self.metrics.iter().chain(&self.web).chain(&self.shapes);
        all.map(|socket| socket.try_clone().map(Into::into)).collect()
    }

    /// The addresses for clients.
    pub(super) fn client_addresses(&self) -> Vec<String> {
        let of = |listener: &Listener| match (listener.local_addr(), listener.file()) {
            (Some(address), _) => address.to_string(),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => "unix".to_owned(),
        };
        self.listeners.iter().map(of).collect()
    }

    /// Logs the addresses for clients.
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

/// Attempts to bind an address that is in use.
const BIND_ATTEMPTS: u32 = 20;
/// Pause between the attempts.
const BIND_PAUSE: Duration = Duration::from_millis(50);

/// Binds as soon as the address is free. The kernel closes the sockets of a killed io_uring process slightly after it reports the
/// end of the process.
fn retry_bind<T>(address: impl fmt::Display, bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for attempt in 1..BIND_ATTEMPTS {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
        if attempt == 1 {
            tracing::warn!(%address, "the address is in use; trying again for a second");
        }
        thread::sleep(BIND_PAUSE);
    }
    bind()
}

fn bind_http(address: &SocketAddr, purpose: &str) -> anyhow::Result<TcpListener> {
    retry_bind(address, || http::bind(*address)).with_context(|| format!("cannot listen on {address} for {purpose}"))
}

/// The sockets of `[shapes]`.
fn live_query_sockets(config: &Config, mut predecessor: Option<&mut Predecessor>) -> anyhow::Result<Vec<TcpListener>> {
    let mut sockets = Vec::new();
    if config.shapes.database.is_empty() {
        return Ok(sockets);
    }
    // A port that the kernel chooses is bound by the server itself.
    for address in config.shapes.addresses.iter().filter(|address| address.port() != 0) {
        match predecessor.as_mut() {
            None => sockets.push(bind_http(address, "live queries")?),
            Some(old) => sockets.extend(old.take_http(*address)),
        }
    }
    Ok(sockets)
}

fn bind_tcp(address: SocketAddr, config: &Config) -> anyhow::Result<Listener> {
    let bind = || {
        Listener::tcp_with(address, backlog(config), |socket| {
            if config.listen.reuse_port {
                socket.set_reuse_port(true)?;
            }
            tcp::set_buffers(socket, &config.tcp)
        })
    };
    retry_bind(address, bind)
        .with_context(|| format!("cannot listen on {address}; is another process using it (ss -ltnp)?"))
}

fn bind_unix(path: &Path, config: &Config) -> anyhow::Result<Listener> {
    let listen = &config.listen;
    let group = match listen.unix_socket_group.as_str() {
        "" => None,
        name => Some(
            process::group_id(name).with_context(|| format!("unix_socket_group: the group `{name}` does not exist"))?,
        ),
    };
    // The last process of a shared port owns the file.
    let access = UnixSocketOptions { mode: listen.unix_socket_mode.0, group, replace: listen.reuse_port };
    retry_bind(path.display(), || Listener::unix(path, access, backlog(config)))
        .with_context(|| format!("cannot listen on {}", path.display()))
}
