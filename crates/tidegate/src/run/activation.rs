//! Listening sockets passed by systemd (`sd_listen_fds(3)`). They stay open while the process is replaced, so clients wait
//! instead of being rejected.

use std::{net::TcpListener, os::fd::OwnedFd};

use anyhow::Context as _;
use listenfd::ListenFd;
use tidegate_link::Listener;

/// `FileDescriptorName=` of sockets for `GET /metrics`; all others are for clients.
const METRICS: &str = "metrics";

/// The passed sockets.
#[derive(Debug, Default)]
pub(super) struct ActivatedSockets {
    pub(super) listeners: Vec<Listener>,
    pub(super) metrics: Vec<TcpListener>,
}

impl ActivatedSockets {
    /// Takes the sockets and removes the environment variables, so that no child uses them. Call once, before threads exist.
    ///
    /// # Errors
    /// If a socket is not a listening stream socket.
    pub(super) fn take() -> anyhow::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut given = ListenFd::from_env();
        let mut taken = Self::default();
        for index in 0..given.len() {
            let name = names.next().unwrap_or_default();
            taken.add(&mut given, index, name).with_context(|| {
                format!(
                    "socket {} (`{name}`) of the .socket unit cannot be used; set ListenStream= and Accept=no",
                    index + 1
                )
            })?;
        }
        Ok(taken)
    }

    fn add(&mut self, given: &mut ListenFd, index: usize, name: &str) -> anyhow::Result<()> {
        if name == METRICS {
            let socket = given.take_tcp_listener(index)?.context("it is in use already")?;
            socket.set_nonblocking(true)?;
            self.metrics.push(socket);
            return Ok(());
        }
        let tcp = given.take_tcp_listener(index);
        let fd: OwnedFd = match tcp {
            Ok(socket) => socket.context("it is in use already")?.into(),
            Err(_) => given.take_unix_listener(index)?.context("it is in use already")?.into(),
        };
        // systemd uses non-blocking sockets; it does not accept while this process lives.
        rustix::io::ioctl_fionbio(&fd, false)?;
        // systemd owns the file of a unix socket.
        self.listeners.push(Listener::from_fd(fd, None)?);
        Ok(())
    }

    /// Whether any sockets were passed.
    pub(super) fn is_some(&self) -> bool {
        !self.listeners.is_empty()
    }
}
