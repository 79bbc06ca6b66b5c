//! Sockets that systemd holds (`sd_listen_fds(3)`): they stay open while the process is replaced, so that clients wait for
//! the next one and nobody is refused.

use std::{net::TcpListener, os::fd::OwnedFd};

use anyhow::Context as _;
use listenfd::ListenFd;
use tidegate_link::Listener;

/// `FileDescriptorName=` of sockets that answer `GET /metrics`; those of any other name are for clients.
const METRICS: &str = "metrics";

/// The sockets that were passed.
#[derive(Debug, Default)]
pub(super) struct Activated {
    pub(super) listeners: Vec<Listener>,
    pub(super) metrics: Vec<TcpListener>,
}

impl Activated {
    /// Takes the sockets that this process was started with. To be called once, before there are threads: the variables of
    /// the environment that speak of them are taken away, so that no child takes them for its own.
    ///
    /// # Errors
    /// When one of them is not a stream socket that listens.
    pub(super) fn take() -> anyhow::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut given = ListenFd::from_env();
        let mut taken = Self::default();
        for index in 0..given.len() {
            let name = names.next().unwrap_or_default();
            taken.add(&mut given, index, name).with_context(|| {
                format!(
                    "socket {} (`{name}`) of the .socket unit cannot be used; write ListenStream=, and Accept=no",
                    index + 1
                )
            })?;
        }
        Ok(taken)
    }

    fn add(&mut self, given: &mut ListenFd, index: usize, name: &str) -> anyhow::Result<()> {
        if name == METRICS {
            let socket = given.take_tcp_listener(index)?.context("it was taken already")?;
            socket.set_nonblocking(true)?;
            self.metrics.push(socket);
            return Ok(());
        }
        let tcp = given.take_tcp_listener(index);
        let fd: OwnedFd = match tcp {
            Ok(socket) => socket.context("it was taken already")?.into(),
            Err(_) => given.take_unix_listener(index)?.context("it was taken already")?.into(),
        };
        // systemd has made it one that does not wait, for itself; it listens no more while this process lives.
        rustix::io::ioctl_fionbio(&fd, false)?;
        // The file of a unix socket is systemd's.
        self.listeners.push(Listener::from_fd(fd, None)?);
        Ok(())
    }

    /// There were any.
    pub(super) fn is_some(&self) -> bool {
        !self.listeners.is_empty()
    }
}
