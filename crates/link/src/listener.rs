//! Where clients come in: TCP and unix sockets, shared by all threads.

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use socket2::{Domain, SockAddr, Type};

use crate::{
    epoll::PolledListener,
    reactor::{Io, Reactor},
    socket::tune,
    uring::RingListener,
};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A process of this machine.
    Unix,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}

/// A connection that was just accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The socket, which may go to another thread.
    pub fd: OwnedFd,
    /// Who connected.
    pub peer: Address,
}

impl Accepted {
    pub(crate) fn new(fd: OwnedFd, address: &SockAddr) -> Self {
        Self { fd, peer: address.as_socket().map_or(Address::Unix, Address::Tcp) }
    }
}

/// A listening socket, before a thread accepts on it.
#[derive(Clone, Debug)]
pub struct Listener(Arc<Bound>);

#[derive(Debug)]
struct Bound {
    socket: socket2::Socket,
    path: Option<PathBuf>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    /// Listens on a TCP address. Its connections send small messages at once (`TCP_NODELAY`) and notice a peer that is
    /// gone (keep-alive after a minute, every 15 s).
    ///
    /// # Errors
    /// Those of `bind` and `listen`: most often that the address is in use.
    pub fn tcp(address: SocketAddr, backlog: i32) -> io::Result<Self> {
        Self::bind_tcp(address, backlog, false)
    }

    /// As [`Listener::tcp`], beside other processes that listen there in the same way: the kernel spreads clients over
    /// all of them.
    ///
    /// # Errors
    /// As [`Listener::tcp`].
    pub fn tcp_shared(address: SocketAddr, backlog: i32) -> io::Result<Self> {
        Self::bind_tcp(address, backlog, true)
    }

    fn bind_tcp(address: SocketAddr, backlog: i32, reuse_port: bool) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if reuse_port {
            socket.set_reuse_port(true)?;
        }
        tune(&socket)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        Ok(Self(Arc::new(Bound { socket, path: None })))
    }

    /// Listens on a unix socket, and removes its file when the last copy of the listener is dropped.
    ///
    /// # Errors
    /// Those of `bind` and `listen`. A socket left behind by a process that is gone is replaced; one that somebody
    /// listens on, and a file that is no socket, is an address in use.
    pub fn unix(path: &Path, mode: u32, backlog: i32) -> io::Result<Self> {
        use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
        let address = SockAddr::unix(path)?;
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() || is_listened_on(&address)? {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        socket.bind(&address)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        socket.listen(backlog)?;
        Ok(Self(Arc::new(Bound { socket, path: Some(path.to_owned()) })))
    }

    /// The address it listens on, with the port that the kernel chose for port 0.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.socket.local_addr().ok().and_then(|address| address.as_socket())
    }

    /// Accepts on this thread; several threads may accept on one listener.
    ///
    /// # Errors
    /// When no descriptor is left, or the listener cannot be registered.
    pub fn accept_on(&self, reactor: &Reactor) -> io::Result<Acceptor> {
        let fd: Rc<OwnedFd> = Rc::new(self.0.socket.try_clone()?.into());
        let kind = match reactor.io() {
            Io::Uring(ring) => Kind::Ring(RingListener::new(ring.clone(), fd)),
            Io::Epoll(poller) => Kind::Polled(PolledListener::new(poller.clone(), fd)?),
        };
        Ok(Acceptor(kind))
    }
}

/// Whether a process accepts connections on a unix socket. A line of clients that is full is no reason to wait here.
fn is_listened_on(address: &SockAddr) -> io::Result<bool> {
    let probe = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    Ok(!matches!(probe.connect(address), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused))
}

/// A listener on one thread.
pub struct Acceptor(Kind);

enum Kind {
    Ring(RingListener),
    Polled(PolledListener),
}

impl Acceptor {
    /// Accepts the next connection.
    ///
    /// # Errors
    /// Those of `accept`; `EMFILE` and `ENFILE` are best followed by a pause.
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<Accepted>> {
        match &self.0 {
            Kind::Ring(listener) => listener.poll_accept(cx),
            Kind::Polled(listener) => listener.poll_accept(cx),
        }
    }
}
