//! Listening sockets, TCP and unix, shared by all threads.

use std::{
    borrow::Cow,
    cell::Cell,
    ffi::OsString,
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use socket2::{Domain, SockAddr, Type};

use crate::{
    epoll::PolledListener,
    reactor::{Reactor, ReactorBackend},
    tcp::set_tcp_options,
    uring::RingListener,
};

/// The address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A process on this machine.
    Unix,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}

/// A connection that was just accepted.
#[derive(Debug)]
pub struct AcceptedSocket {
    /// The socket, which may move to another thread.
    pub fd: OwnedFd,
    /// The peer.
    pub peer: PeerAddress,
    /// The local address, if the listener is bound to a single one; otherwise only the socket has it.
    pub local: Option<SocketAddr>,
}

/// A listening socket, before a thread accepts on it.
#[derive(Clone, Debug)]
pub struct Listener(Arc<BoundSocket>);

#[derive(Debug)]
struct BoundSocket {
    socket: socket2::Socket,
    file: Option<SocketFile>,
}

/// The file of a unix socket. It is removed with the listener, unless the path has another file by then.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Distinguishes the file from another one at the same path.
    identity: Option<(u64, u64)>,
    keep: AtomicBool,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        // An abstract socket has no file to remove.
        let keep = AtomicBool::new(is_abstract(path));
        Self { path: path.to_owned(), identity: identity(path), keep }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.keep.load(Ordering::Relaxed) && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a path names an abstract unix socket: it starts with `@`, as in libpq.
#[must_use]
pub fn is_abstract(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    path.as_os_str().as_bytes().starts_with(b"@")
}

/// The path as the kernel expects it: the name of an abstract socket starts with a zero byte instead of `@` (`unix(7)`,
/// "Abstract sockets").
#[must_use]
pub fn kernel_path(path: &Path) -> Cow<'_, Path> {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    if !is_abstract(path) {
        return path.into();
    }
    let mut name = path.as_os_str().as_bytes().to_vec();
    name[0] = 0;
    PathBuf::from(OsString::from_vec(name)).into()
}

/// The address of a unix socket, with a file or abstract.
///
/// # Errors
/// The path is too long.
pub fn unix_address(path: &Path) -> io::Result<SockAddr> {
    SockAddr::unix(kernel_path(path))
}

/// Device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Options for the file of a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixSocketOptions {
    /// Permissions of the file.
    pub mode: u32,
    /// Group ID of the file, if it differs from that of the process.
    pub group: Option<u32>,
    /// Whether to replace a socket on which another process listens. A client connects to the old or to the new one.
    pub replace: bool,
}

impl Listener {
    /// Listens on a TCP address. Connections have `TCP_NODELAY` and keep-alive (after a minute, every 15 s). On a
    /// loopback address they use the simplest congestion control.
    ///
    /// # Errors
    /// Errors of `bind` and `listen`, most often an address in use.
    pub fn tcp(address: SocketAddr, backlog: i32) -> io::Result<Self> {
        Self::tcp_with(address, backlog, |_| Ok(()))
    }

    /// Like [`Listener::tcp`]; `prepare` sets options of the socket before it is bound, which accepted sockets inherit. Kernel
    /// buffers have to be set here, because the window scale is agreed on before a connection is accepted (`tcp(7)`).
    ///
    /// # Errors
    /// As [`Listener::tcp`], and those of `prepare`.
    pub fn tcp_with(
        address: SocketAddr,
        backlog: i32,
        prepare: impl FnOnce(&socket2::Socket) -> io::Result<()>,
    ) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        set_tcp_options(&socket, Some(address))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        prepare(&socket)?;
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        Ok(Self(Arc::new(BoundSocket { socket, file: None })))
    }

    /// Like [`Listener::tcp`], with `SO_REUSEPORT`: the kernel distributes clients over all processes that listen with
    /// it.
    ///
    /// # Errors
    /// As [`Listener::tcp`].
    pub fn tcp_shared(address: SocketAddr, backlog: i32) -> io::Result<Self> {
        Self::tcp_with(address, backlog, |socket| socket.set_reuse_port(true))
    }

    /// Listens on a unix socket. Its file is removed when the last copy of the listener is dropped. A path that starts
    /// with `@` is an abstract socket ([`kernel_path`]), which every process on this machine can connect to.
    ///
    /// # Errors
    /// Errors of `bind` and `listen`. A file that is not a socket, or on whose socket a process listens (unless
    /// [`UnixSocketOptions::replace`] is set or the socket is abstract), is an address in use. A stale socket is
    /// replaced.
    pub fn unix(path: &Path, options: UnixSocketOptions, backlog: i32) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt as _;
        let address = unix_address(path)?;
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        if is_abstract(path) {
            socket.bind(&address)?;
            socket.listen(backlog)?;
            return Ok(Self(Arc::new(BoundSocket { socket, file: Some(SocketFile::new(path)) })));
        }
        let mut replaced = false;
        if let Ok(found) = std::fs::symlink_metadata(path) {
            replaced = found.file_type().is_socket() && is_listened_on(&address)?;
            if !found.file_type().is_socket() || replaced && !options.replace {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            if !replaced {
                std::fs::remove_file(path)?;
            }
        }
        if replaced {
            // The new socket has a temporary name until it listens, so that clients can connect at any moment.
            let temporary = temporary_name(path, &socket);
            let _ = std::fs::remove_file(&temporary);
            socket.bind(&SockAddr::unix(&temporary)?)?;
            let moved =
                listen_at(&socket, &temporary, options, backlog).and_then(|()| std::fs::rename(&temporary, path));
            if moved.is_err() {
                let _ = std::fs::remove_file(&temporary);
            }
            moved?;
        } else {
            socket.bind(&address)?;
            listen_at(&socket, path, options, backlog)?;
        }
        Ok(Self(Arc::new(BoundSocket { socket, file: Some(SocketFile::new(path)) })))
    }

    /// Creates a listener from a socket that already listens, from systemd or another process. With `file`, the file is
    /// removed like that of [`Listener::unix`].
    ///
    /// # Errors
    /// The descriptor is not a listening stream socket.
    pub fn from_fd(fd: OwnedFd, file: Option<&Path>) -> io::Result<Self> {
        let socket = socket2::Socket::from(fd);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a listening stream socket"));
        }
        if let Some(address) = socket.local_addr()?.as_socket() {
            set_tcp_options(&socket, Some(address))?;
        }
        Ok(Self(Arc::new(BoundSocket { socket, file: file.map(SocketFile::new) })))
    }

    /// The file of the unix socket, or its abstract name, if the listener owns it.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_ref().map(|file| file.path.as_path())
    }

    /// Keeps the file of the unix socket on drop, because another process has the socket.
    pub fn keep_file(&self) {
        if let Some(file) = &self.0.file {
            file.keep.store(true, Ordering::Relaxed);
        }
    }

    /// The bound address, with the port that the kernel chose for port 0.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.socket.local_addr().ok().and_then(|address| address.as_socket())
    }

    /// Accepts on this thread; several threads may accept on one listener.
    ///
    /// # Errors
    /// No descriptor is left, or the listener cannot be registered.
    pub fn accept_on(&self, reactor: &Reactor) -> io::Result<Acceptor> {
        let fd: Rc<OwnedFd> = Rc::new(self.0.socket.try_clone()?.into());
        rustix::io::ioctl_fionbio(&*fd, true)?;
        let backend = match reactor.io() {
            ReactorBackend::Uring(ring) => ListenerBackend::Ring(RingListener::new(ring.clone(), fd.clone())),
            ReactorBackend::Epoll(poller) => ListenerBackend::Polled(PolledListener::new(poller.clone(), fd.clone())?),
        };
        let local = self.local_addr().filter(|address| !address.ip().is_unspecified());
        Ok(Acceptor { fd, backend, local, last_accept_turn: Cell::default(), expects_more: Cell::default() })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

/// A temporary name beside `path`. It is no longer than the usual name of a port, since socket paths are short.
fn temporary_name(path: &Path, socket: &socket2::Socket) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    path.with_file_name(format!(".{:x}.{:x}", std::process::id(), socket.as_raw_fd()))
}

fn listen_at(socket: &socket2::Socket, path: &Path, options: UnixSocketOptions, backlog: i32) -> io::Result<()> {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    if options.group.is_some() {
        chown(path, None, options.group)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(options.mode))?;
    socket.listen(backlog)
}

/// Whether a process listens on a unix socket. Does not wait if the backlog is full.
fn is_listened_on(address: &SockAddr) -> io::Result<bool> {
    let probe = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    Ok(!matches!(probe.connect(address), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused))
}

/// A listener on one thread.
pub struct Acceptor {
    fd: Rc<OwnedFd>,
    backend: ListenerBackend,
    local: Option<SocketAddr>,
    /// The turn of the last accept.
    last_accept_turn: Cell<u64>,
    /// Connections come turn after turn, so it pays to try the next accept before waiting.
    expects_more: Cell<bool>,
}

/// Reports waiting connections.
enum ListenerBackend {
    Ring(RingListener),
    Polled(PolledListener),
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Acceptor {
    /// Accepts the next connection.
    ///
    /// # Errors
    /// Errors of `accept`; back off after `EMFILE` and `ENFILE`.
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<AcceptedSocket>> {
        loop {
            if !self.expects_more.get() {
                std::task::ready!(self.backend.poll_readable(cx))?;
            }
            match self.accept() {
                Ok(accepted) => {
                    let turn = self.backend.turn();
                    // Neither for the first connection nor after a pause.
                    let last = self.last_accept_turn.replace(turn);
                    self.expects_more.set(last > 0 && turn - last <= 1);
                    return Poll::Ready(Ok(accepted));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.expects_more.set(false),
                Err(error) => {
                    self.backend.pause();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// Stops accepting. Returns the connections for which no other thread may have been woken, then `None`.
    pub fn poll_close(&self, cx: &Context<'_>) -> Poll<Option<AcceptedSocket>> {
        std::task::ready!(self.backend.poll_paused(cx));
        Poll::Ready(self.accept().ok())
    }

    fn accept(&self) -> io::Result<AcceptedSocket> {
        let (socket, address) = socket2::SockRef::from(&self.fd.as_fd()).accept()?;
        let peer = address.as_socket().map_or(PeerAddress::Unix, |address| PeerAddress::Tcp(canonical(address)));
        Ok(AcceptedSocket { fd: socket.into(), peer, local: self.local })
    }
}

/// An address of IPv4 that a socket of both families (from systemd) shows as `::ffff:127.0.0.1`.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl ListenerBackend {
    fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Ring(listener) => listener.poll_readable(cx),
            Self::Polled(listener) => listener.poll_readable(cx),
        }
    }

    /// Stops notifications until the next poll.
    fn pause(&self) {
        if let Self::Polled(listener) = self {
            listener.pause();
        }
    }

    fn poll_paused(&self, cx: &Context<'_>) -> Poll<()> {
        match self {
            Self::Ring(listener) => listener.poll_paused(cx),
            Self::Polled(listener) => {
                listener.pause();
                Poll::Ready(())
            }
        }
    }

    fn turn(&self) -> u64 {
        match self {
            Self::Ring(listener) => listener.turn(),
            Self::Polled(listener) => listener.turn(),
        }
    }
}
