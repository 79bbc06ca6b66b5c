//! Listening sockets in the hands of the next process: `-R`, `--take-over`.
//!
//! Beside the unix socket for clients lies a door, `.s.PGSQL.6432.handover`, for processes of the same user; if that socket has
//! no file, neither has the door. Who comes in is
//! given every socket that this process listens on, one message each. Once it accepts on them it says so; then this process
//! accepts no more, and ends when its clients have left. For a moment both listen on the same sockets, so there is none in
//! which a client is refused or lost. A process that goes away without a word has changed nothing.

use std::{
    ffi::OsString,
    fs,
    io::{self, IoSlice, IoSliceMut, Write as _},
    mem::MaybeUninit,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use socket2::{Domain, Type};
use tidegate_link::{Listener, is_abstract, kernel_path, unix_address};
use tidegate_supervise::{Class, Ctx, Restart, Scope, Tokio};
use tokio::{
    io::{AsyncReadExt as _, Interest},
    net,
};

use super::{STOP_ABORT, STOP_GRACE};
use tidegate_config::Config;
use tidegate_proxy::plane::{Gateway, Phase};
use tidegate_tasks as tree;
use tidegate_tasks::Ear;

/// A message with a TCP socket for clients,
const TCP: &str = "tcp";
/// with a unix socket and the path of its file,
const FILE: &str = "file ";
/// with a socket for `GET /metrics`,
const METRICS: &str = "metrics";
/// with the door itself, if it has no file that another door could take the place of,
const DOOR: &str = "door";
/// and the last one, without a socket.
const END: &str = "end";
/// What the next process says when it accepts.
const READY: &[u8; 5] = b"ready";

/// All messages are of this length, filled up with zeroes; the longest part of one is the path of a socket.
const MESSAGE_BYTES: usize = 256;
/// How long a process may take to pass its sockets on,
const PASS_LIMIT: Duration = Duration::from_secs(10);
/// and the next one to accept on them.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long the door stays closed when there is no descriptor left.
const BACK_OFF: Duration = Duration::from_millis(100);

/// The door of the gateway with this configuration, if it has a unix socket.
fn door_of(config: &Config) -> Option<PathBuf> {
    let mut path = OsString::from(config.listen.unix_socket()?);
    path.push(".handover");
    Some(path.into())
}

fn send(socket: impl AsFd, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    let room = message.get_mut(..text.len()).ok_or_else(|| io::Error::other("the path of a socket is too long"))?;
    room.copy_from_slice(text.as_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.as_slice();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == MESSAGE_BYTES { Ok(()) } else { Err(io::Error::other("a message was cut short")) }
}

fn receive(socket: &UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let mut message = [0; MESSAGE_BYTES];
    let (mut length, mut fd) = (0, None);
    while let Some(rest) = message.get_mut(length..).filter(|rest| !rest.is_empty()) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(socket, &mut [IoSliceMut::new(rest)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += got.bytes;
        for close_with in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = close_with {
                fd = fds.last().or(fd);
            }
        }
    }
    let text = String::from_utf8_lossy(&message);
    Ok((text.trim_end_matches('\0').to_owned(), fd))
}

/// Whether the process at the other end may have our sockets, and we its.
fn is_of_own_user(socket: impl AsFd) -> io::Result<bool> {
    let other = rustix::net::sockopt::socket_peercred(socket)?.uid;
    Ok(other.is_root() || other == rustix::process::geteuid())
}

fn connect(door: &Path) -> io::Result<UnixStream> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.connect(&unix_address(door)?)?;
    Ok(OwnedFd::from(socket).into())
}

/// The process that this one replaces, with what it has passed.
#[derive(Debug)]
pub(super) struct Predecessor {
    socket: UnixStream,
    tcp: Vec<Listener>,
    files: Vec<(PathBuf, OwnedFd)>,
    metrics: Vec<TcpListener>,
    door: Option<OwnedFd>,
}

impl Predecessor {
    /// Has the sockets of the process that runs with this configuration. `None` if there is none.
    ///
    /// # Errors
    /// When there is one that does not pass them.
    pub(super) fn meet(config: &Config) -> anyhow::Result<Option<Self>> {
        let door = door_of(config).context("taking over needs a unix socket: name a folder in unix_socket_dir")?;
        let socket = match connect(&door) {
            Ok(socket) => socket,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                tracing::info!(door = %door.display(), "there is no process to take over from; starting as usual");
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("cannot ask at {}", door.display())),
        };
        socket.set_read_timeout(Some(PASS_LIMIT))?;
        if !is_of_own_user(&socket)? {
            anyhow::bail!("{} belongs to another user; it is not asked for sockets", door.display());
        }
        let mut met = Self { socket, tcp: Vec::new(), files: Vec::new(), metrics: Vec::new(), door: None };
        met.take_all().with_context(|| format!("the process at {} has not passed its sockets", door.display()))?;
        Ok(Some(met))
    }

    fn take_all(&mut self) -> anyhow::Result<()> {
        loop {
            let (text, fd) = receive(&self.socket)?;
            if text == END {
                return Ok(());
            }
            let fd = fd.context("a message without its socket")?;
            if text == TCP {
                self.tcp.push(Listener::from_fd(fd, None)?);
            } else if text == METRICS {
                self.metrics.push(TcpListener::from(fd));
            } else if text == DOOR {
                self.door = Some(fd);
            } else if let Some(path) = text.strip_prefix(FILE) {
                self.files.push((path.into(), fd));
            }
        }
    }

    /// Its socket for clients at that address.
    pub(super) fn take_tcp(&mut self, address: SocketAddr) -> Option<Listener> {
        let place = self.tcp.iter().position(|listener| listener.local_addr() == Some(address))?;
        Some(self.tcp.swap_remove(place))
    }

    /// Its unix socket with that file, which is this process's from now.
    pub(super) fn take_file(&mut self, path: &Path) -> Option<Listener> {
        let place = self.files.iter().position(|(known, _)| known == path)?;
        let (path, fd) = self.files.swap_remove(place);
        Listener::from_fd(fd, Some(&path)).ok()
    }

    /// Its socket for `GET /metrics` at that address.
    pub(super) fn take_metrics(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let place = self.metrics.iter().position(|socket| socket.local_addr().ok() == Some(address))?;
        Some(self.metrics.swap_remove(place))
    }

    /// Its door, if that has no file.
    pub(super) fn take_door(&mut self) -> Option<OwnedFd> {
        self.door.take()
    }

    /// Tells it that clients are accepted here.
    ///
    /// # Errors
    /// When it has gone meanwhile.
    pub(super) fn release(mut self) -> io::Result<()> {
        self.socket.write_all(READY)
    }
}

/// What is passed on.
pub(super) struct Goods {
    pub(super) listeners: Vec<Listener>,
    pub(super) metrics: Vec<OwnedFd>,
    /// Whoever answers on `metrics`.
    pub(super) scrapes: Scope<SocketAddr>,
}

/// Opens the door, or takes over that of the process before, until nobody listens any more. Without one the gateway works as
/// well.
pub(super) fn open(gateway: &Arc<Gateway>, goods: Goods, known: Option<OwnedFd>) {
    let Some(path) = door_of(&gateway.config.setup().config) else { return };
    let opened = match known {
        Some(known) => Door::adopt(known, path.clone()),
        None => Door::open(path.clone()),
    };
    let door = match opened {
        Ok(door) => door,
        Err(error) => {
            return tracing::warn!(path = %path.display(), %error, "no other process can take over from this one");
        }
    };
    let opened = Arc::new((gateway.clone(), door, goods));
    let class = Class::new(tree::kept(Restart::Transient), move |_: &Ear, ctx: Ctx| {
        let opened = opened.clone();
        async move {
            let (gateway, door, goods) = &*opened;
            tokio::select! {
                () = ctx.cancelled() => {}
                () = attend(gateway, door, goods) => {}
            }
        }
    });
    // It is refused when the process is ending already.
    let _ = gateway.lifecycle.listen_scope.on(Tokio::current()).spawn_kept(Ear::Successor, &class);
}

/// Where the next process comes in.
struct Door {
    listener: net::UnixListener,
    path: PathBuf,
    /// Of its file, if it has one.
    number: Option<u64>,
}

impl Door {
    fn adopt(known: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(known);
        listener.set_nonblocking(true)?;
        Ok(Self { listener: net::UnixListener::from_std(listener)?, path, number: None })
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        if is_abstract(&path) {
            return Ok(Self { listener: net::UnixListener::bind(kernel_path(&path))?, path, number: None });
        }
        // Left behind, or that of the process which this one replaces.
        let _ = fs::remove_file(&path);
        let listener = net::UnixListener::bind(&path)?;
        // Who comes in before is looked at all the same.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let number = Some(fs::symlink_metadata(&path)?.ino());
        Ok(Self { listener, path, number })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // By now it may be that of another process.
        if self.number.is_some() && fs::symlink_metadata(&self.path).ok().map(|found| found.ino()) == self.number {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Receives processes until one has taken over.
async fn attend(gateway: &Gateway, door: &Door, goods: &Goods) {
    loop {
        let visitor = match door.listener.accept().await {
            Ok((visitor, _)) => visitor,
            Err(error) => {
                tracing::warn!(%error, "a process that wants to take over could not be let in");
                tokio::time::sleep(BACK_OFF).await;
                continue;
            }
        };
        match pass(visitor, door, goods).await {
            Ok(()) => break,
            Err(error) => tracing::warn!(%error, "another process has not taken over; this one goes on"),
        }
    }
    tracing::info!("another process has taken over: this one ends when its clients have left");
    goods.listeners.iter().for_each(Listener::keep_file);
    goods.scrapes.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
    // A RESUME would reach the other process, which knows of no pause.
    gateway.resume(None);
    gateway.change_phase(|phase| if phase.goes_on() { Phase::WaitingForClients } else { phase });
}

/// Passes all sockets on, and waits until the other process accepts.
async fn pass(mut visitor: net::UnixStream, door: &Door, goods: &Goods) -> io::Result<()> {
    if !is_of_own_user(&visitor)? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    tokio::time::timeout(PASS_LIMIT, send_all(&visitor, door, goods)).await.map_err(late)??;
    let mut said = [0; READY.len()];
    let heard = tokio::time::timeout(START_LIMIT, visitor.read_exact(&mut said)).await.map_err(late)?;
    if heard.is_ok() && said == *READY {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it could listen"))
}

async fn send_all(visitor: &net::UnixStream, door: &Door, goods: &Goods) -> io::Result<()> {
    for listener in &goods.listeners {
        let text = match listener.file() {
            Some(path) => format!("{FILE}{}", path.display()),
            None => TCP.to_owned(),
        };
        send_one(visitor, &text, Some(listener.as_fd())).await?;
    }
    for socket in &goods.metrics {
        send_one(visitor, METRICS, Some(socket.as_fd())).await?;
    }
    if door.number.is_none() {
        send_one(visitor, DOOR, Some(door.listener.as_fd())).await?;
    }
    send_one(visitor, END, None).await
}

async fn send_one(visitor: &net::UnixStream, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    visitor.async_io(Interest::WRITABLE, || send(visitor, text, fd)).await
}
