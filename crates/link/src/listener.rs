//! Where clients come in: TCP and unix sockets, shared by all threads.

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
    /// Where to, if the listener has one address only; else the socket knows.
    pub local: Option<SocketAddr>,
}

/// A listening socket, before a thread accepts on it.
#[derive(Clone, Debug)]
pub struct Listener(Arc<Bound>);

#[derive(Debug)]
struct Bound {
    socket: socket2::Socket,
    file: Option<SocketFile>,
}

/// The file of a unix socket. It goes with the listener, unless it belongs to another one by then.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// What tells it from another file of that name.
    identity: Option<(u64, u64)>,
    left: AtomicBool,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        // There is nothing to be removed of one without a file.
        let left = AtomicBool::new(is_abstract(path));
        Self { path: path.to_owned(), identity: identity(path), left }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Relaxed) && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a path is the name of a unix socket without a file: it begins with `@`, as those of libpq do.
#[must_use]
pub fn is_abstract(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    path.as_os_str().as_bytes().starts_with(b"@")
}

/// The path of a unix socket as the kernel has it: in the name of one without a file, a zero stands for the `@`
/// (`unix(7)`, "Abstract sockets").
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

/// The address of a unix socket, with a file or without.
///
/// # Errors
/// When its path is too long.
pub fn unix_address(path: &Path) -> io::Result<SockAddr> {
    SockAddr::unix(kernel_path(path))
}

/// Device and number of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// How the file of a unix socket is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// Its permissions.
    pub mode: u32,
    /// Number of its group, if not that of the process.
    pub group: Option<u32>,
    /// Whether it takes the place of one that somebody listens on. Whoever connects meets the one or the other.
    pub replaces: bool,
}

impl Listener {
    /// Listens on a TCP address. Its connections send small messages at once (`TCP_NODELAY`) and notice a peer that is
    /// gone (keep-alive after a minute, every 15 s). On a loopback address they have the plainest
    /// congestion control.
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
        tune(&socket, Some(address))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        Ok(Self(Arc::new(Bound { socket, file: None })))
    }

    /// Listens on a unix socket, and removes its file when the last copy of the listener is dropped. A path that begins with
    /// `@` is a name without a file ([`kernel_path`]), to which everybody on this machine has access.
    ///
    /// # Errors
    /// Those of `bind` and `listen`. A socket left behind by a process that is gone is replaced; one that somebody
    /// listens on (unless it has a file, and is to be replaced too), and a file that is no socket, is an address in use.
    pub fn unix(path: &Path, access: FileAccess, backlog: i32) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt as _;
        let address = unix_address(path)?;
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        if is_abstract(path) {
            socket.bind(&address)?;
            socket.listen(backlog)?;
            return Ok(Self(Arc::new(Bound { socket, file: Some(SocketFile::new(path)) })));
        }
        let mut replaced = false;
        if let Ok(found) = std::fs::symlink_metadata(path) {
            replaced = found.file_type().is_socket() && is_listened_on(&address)?;
            if !found.file_type().is_socket() || replaced && !access.replaces {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            if !replaced {
                std::fs::remove_file(path)?;
            }
        }
        if replaced {
            // Under a name of its own until it can be used: there is no moment in which nobody listens.
            let fresh = name_beside(path, &socket);
            let _ = std::fs::remove_file(&fresh);
            socket.bind(&SockAddr::unix(&fresh)?)?;
            let moved = listen_at(&socket, &fresh, access, backlog).and_then(|()| std::fs::rename(&fresh, path));
            if moved.is_err() {
                let _ = std::fs::remove_file(&fresh);
            }
            moved?;
        } else {
            socket.bind(&address)?;
            listen_at(&socket, path, access, backlog)?;
        }
        Ok(Self(Arc::new(Bound { socket, file: Some(SocketFile::new(path)) })))
    }

    /// Takes over a socket that listens already, from systemd or from another process. With `file`, its file goes with
    /// the listener as that of [`Listener::unix`].
    ///
    /// # Errors
    /// When it is no stream socket that listens.
    pub fn adopt(fd: OwnedFd, file: Option<&Path>) -> io::Result<Self> {
        let socket = socket2::Socket::from(fd);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a stream socket that listens"));
        }
        if let Some(address) = socket.local_addr()?.as_socket() {
            tune(&socket, Some(address))?;
        }
        Ok(Self(Arc::new(Bound { socket, file: file.map(SocketFile::new) })))
    }

    /// The file of its unix socket, or its name, if it goes with the listener.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_ref().map(|file| file.path.as_path())
    }

    /// Leaves the file of its unix socket to another process that has the socket.
    pub fn leave_file(&self) {
        if let Some(file) = &self.0.file {
            file.left.store(true, Ordering::Relaxed);
        }
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
        rustix::io::ioctl_fionbio(&*fd, true)?;
        let bell = match reactor.io() {
            Io::Uring(ring) => Bell::Ring(RingListener::new(ring.clone(), fd.clone())),
            Io::Epoll(poller) => Bell::Polled(PolledListener::new(poller.clone(), fd.clone())?),
        };
        let local = self.local_addr().filter(|address| !address.ip().is_unspecified());
        Ok(Acceptor { fd, bell, local, last: Cell::default(), crowded: Cell::default() })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

/// A name for a socket that is made to replace the one at `path`; no longer than that of a usual port, since paths of
/// sockets are short.
fn name_beside(path: &Path, socket: &socket2::Socket) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    path.with_file_name(format!(".{:x}.{:x}", std::process::id(), socket.as_raw_fd()))
}

fn listen_at(socket: &socket2::Socket, path: &Path, access: FileAccess, backlog: i32) -> io::Result<()> {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    if access.group.is_some() {
        chown(path, None, access.group)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(access.mode))?;
    socket.listen(backlog)
}

/// Whether a process accepts connections on a unix socket. A line of clients that is full is no reason to wait here.
fn is_listened_on(address: &SockAddr) -> io::Result<bool> {
    let probe = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    Ok(!matches!(probe.connect(address), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused))
}

/// A listener on one thread.
pub struct Acceptor {
    fd: Rc<OwnedFd>,
    bell: Bell,
    local: Option<SocketAddr>,
    /// The turn of the thread in which somebody was let in last.
    last: Cell<u64>,
    /// They come in turn after turn, so that after one it is worth a call to ask for the next.
    crowded: Cell<bool>,
}

/// Tells when somebody has come.
enum Bell {
    Ring(RingListener),
    Polled(PolledListener),
}

impl Acceptor {
    /// Accepts the next connection.
    ///
    /// # Errors
    /// Those of `accept`; `EMFILE` and `ENFILE` are best followed by a pause.
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<Accepted>> {
        loop {
            if !self.crowded.get() {
                std::task::ready!(self.bell.poll_arrival(cx))?;
            }
            match self.accept() {
                Ok(accepted) => {
                    let turn = self.bell.turn();
                    // Neither the first one ever, nor one after a silence.
                    let last = self.last.replace(turn);
                    self.crowded.set(last > 0 && turn - last <= 1);
                    return Poll::Ready(Ok(accepted));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.crowded.set(false),
                Err(error) => {
                    self.bell.deafen();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// Accepts no more. Those whom others who share the listener may not have heard of come first, then `None`.
    pub fn poll_close(&self, cx: &Context<'_>) -> Poll<Option<Accepted>> {
        std::task::ready!(self.bell.poll_deaf(cx));
        Poll::Ready(self.accept().ok())
    }

    fn accept(&self) -> io::Result<Accepted> {
        let (socket, address) = socket2::SockRef::from(&self.fd.as_fd()).accept()?;
        let peer = address.as_socket().map_or(Address::Unix, Address::Tcp);
        Ok(Accepted { fd: socket.into(), peer, local: self.local })
    }
}

impl Bell {
    fn poll_arrival(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Ring(listener) => listener.poll_arrival(cx),
            Self::Polled(listener) => listener.poll_arrival(cx),
        }
    }

    /// It tells of nobody until it is asked again.
    fn deafen(&self) {
        if let Self::Polled(listener) = self {
            listener.deafen();
        }
    }

    fn poll_deaf(&self, cx: &Context<'_>) -> Poll<()> {
        match self {
            Self::Ring(listener) => listener.poll_deaf(cx),
            Self::Polled(listener) => {
                listener.deafen();
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
