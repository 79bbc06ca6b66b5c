//! Hand-over of listening sockets to the next process: `-R`, `--take-over`.
//!
//! Beside the unix socket for clients there is a hand-over socket, `.s.PGSQL.6432.handover`, for processes of the same user. If
//! the unix socket has no file, neither has the hand-over socket. Without a unix socket it is an abstract one, named by the
//! first TCP address. A process that connects gets every listening socket, one
//! message each, and confirms when it accepts on them. Then this process stops accepting, and ends when its clients have
//! disconnected. Both accept for a moment, so no client is rejected or lost. A process that disconnects without a confirmation
//! changes nothing. After the confirmation, sessions between transactions move over the same connection ([`sessions`]).

use std::{
    ffi::OsString,
    fs,
    io::{self, Write as _},
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
use rustix::process::Pid;
use socket2::{Domain, Type};
use tidegate_handover::{receive_with_descriptor, send_with_descriptor};
use tidegate_link::{Listener, is_abstract, kernel_path, unix_address};
use tidegate_supervise::{ChildClass, Ctx, Restart, Scope, Tokio};
use tokio::{
    io::{AsyncReadExt as _, Interest},
    net,
};

mod sessions;

use super::{STOP_ABORT, STOP_GRACE, systemd};
use tidegate_admin::AdminContext;
use tidegate_config::Config;
use tidegate_proxy::plane::Phase;
use tidegate_tasks as tasks;
use tidegate_tasks::ListenerKey;

/// Message with a TCP socket for clients.
const TCP: &str = "tcp";
/// Message with a unix socket and the path of its file.
const FILE: &str = "file ";
/// Message with a socket for HTTP: metrics, the web console or live queries.
const HTTP: &str = "http";
/// Message with the hand-over socket itself, if it has no file that a new one could replace.
const HANDOVER_SOCKET: &str = "hand-over";
/// Message with the number of the first thread of the next process, for process ids of clients. Its socket is not used: a
/// process that does not know the message expects one.
const FIRST_THREAD: &str = "first thread ";
/// The last message, without a socket.
const END: &str = "end";
/// Confirmation of the next process.
const READY: &[u8; 5] = b"ready";

/// Length of all messages, padded with zeros; the longest part is the path of a socket.
const MESSAGE_BYTES: usize = 256;
/// Limit for passing the sockets.
const PASS_LIMIT: Duration = Duration::from_secs(10);
/// Limit for the start of the next process.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Pause of accepting after an error, such as a lack of file descriptors.
const BACKOFF: Duration = Duration::from_millis(100);

/// Path of the hand-over socket. `None` without a unix socket, if other processes may have the same TCP address.
fn handover_path(config: &Config) -> Option<PathBuf> {
    let listen = &config.listen;
    let mut path = match (listen.unix_socket(), listen.addresses.first()) {
        (Some(socket), _) => OsString::from(socket),
        // The kernel keeps the names of abstract sockets per network namespace, as it does with TCP addresses.
        (None, Some(address)) if address.port() != 0 && !listen.reuse_port => format!("@tidegate.{address}").into(),
        (None, _) => return None,
    };
    path.push(".handover");
    Some(path.into())
}

fn send(socket: impl AsFd, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    let room = message.get_mut(..text.len()).ok_or_else(|| io::Error::other("the path of a socket is too long"))?;
    room.copy_from_slice(text.as_bytes());
    let sent = send_with_descriptor(socket, &message, fd)?;
    if sent == MESSAGE_BYTES { Ok(()) } else { Err(io::Error::other("a message was cut short")) }
}

fn receive(socket: &UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let mut message = [0; MESSAGE_BYTES];
    let (mut length, mut fd) = (0, None);
    while let Some(rest) = message.get_mut(length..).filter(|rest| !rest.is_empty()) {
        let (received, passed) = receive_with_descriptor(socket, rest)?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += received;
        fd = passed.or(fd);
    }
    let text = String::from_utf8_lossy(&message);
    Ok((text.trim_end_matches('\0').to_owned(), fd))
}

/// Whether the peer belongs to the same user or to root, so that sockets may be exchanged.
fn is_same_user(socket: impl AsFd) -> io::Result<bool> {
    let other = rustix::net::sockopt::socket_peercred(socket)?.uid;
    Ok(other.is_root() || other == rustix::process::geteuid())
}

fn connect(handover_socket: &Path) -> io::Result<UnixStream> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.connect(&unix_address(handover_socket)?)?;
    Ok(OwnedFd::from(socket).into())
}

/// The replaced process and its sockets.
#[derive(Debug)]
pub(super) struct Predecessor {
    socket: UnixStream,
    tcp: Vec<Listener>,
    files: Vec<(PathBuf, OwnedFd)>,
    http: Vec<TcpListener>,
    handover_socket: Option<OwnedFd>,
    first_thread: usize,
}

impl Predecessor {
    /// Requests the sockets of the process that runs with this configuration. `None` if there is none.
    ///
    /// # Errors
    /// If the process does not pass its sockets.
    pub(super) fn request(config: &Config) -> anyhow::Result<Option<Self>> {
        let handover_socket =
            handover_path(config).context("taking over requires a unix socket or a TCP port: set unix_socket_dir")?;
        let socket = match connect(&handover_socket) {
            Ok(socket) => socket,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                tracing::info!(handover_socket = %handover_socket.display(), "no process to take over from; starting normally");
                return Ok(None);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot connect to {}", handover_socket.display()));
            }
        };
        socket.set_read_timeout(Some(PASS_LIMIT))?;
        if !is_same_user(&socket)? {
            anyhow::bail!("{} belongs to another user", handover_socket.display());
        }
        let mut predecessor = Self {
            socket,
            tcp: Vec::new(),
            files: Vec::new(),
            http: Vec::new(),
            handover_socket: None,
            first_thread: 0,
        };
        predecessor
            .take_all()
            .with_context(|| format!("the process at {} did not pass its sockets", handover_socket.display()))?;
        Ok(Some(predecessor))
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
            } else if text == HTTP {
                self.http.push(TcpListener::from(fd));
            } else if text == HANDOVER_SOCKET {
                self.handover_socket = Some(fd);
            } else if let Some(path) = text.strip_prefix(FILE) {
                self.files.push((path.into(), fd));
            } else if let Some(number) = text.strip_prefix(FIRST_THREAD) {
                self.first_thread = number.parse().unwrap_or(0);
            }
        }
    }

    /// Takes the socket for clients at this address.
    pub(super) fn take_tcp(&mut self, address: SocketAddr) -> Option<Listener> {
        let place = self.tcp.iter().position(|listener| listener.local_addr() == Some(address))?;
        Some(self.tcp.swap_remove(place))
    }

    /// Takes the unix socket with this file, which this process owns from now on.
    pub(super) fn take_file(&mut self, path: &Path) -> Option<Listener> {
        let place = self.files.iter().position(|(adopted, _)| adopted == path)?;
        let (path, fd) = self.files.swap_remove(place);
        Listener::from_fd(fd, Some(&path)).ok()
    }

    /// Takes the HTTP socket at this address: for metrics, the web console or live queries.
    pub(super) fn take_http(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let place = self.http.iter().position(|socket| socket.local_addr().ok() == Some(address))?;
        Some(self.http.swap_remove(place))
    }

    /// Takes the hand-over socket, if it has no file.
    pub(super) fn take_handover_socket(&mut self) -> Option<OwnedFd> {
        self.handover_socket.take()
    }

    /// Number of the first thread of this process, for process ids of clients.
    pub(super) fn first_thread(&self) -> usize {
        self.first_thread
    }

    /// Confirms that this process accepts clients, and adopts sessions from now on.
    ///
    /// # Errors
    /// If the other process has ended meanwhile.
    pub(super) fn confirm(mut self, context: &AdminContext) -> io::Result<()> {
        self.socket.write_all(READY)?;
        sessions::receive(context, self.socket)
    }
}

/// The sockets to pass on.
pub(super) struct PassedSockets {
    pub(super) listeners: Vec<Listener>,
    /// Sockets for HTTP: metrics, the web console and live queries.
    pub(super) http: Vec<OwnedFd>,
    /// The tasks that serve metrics.
    pub(super) scrapes: Scope<SocketAddr>,
    /// The tasks of the web console.
    pub(super) pages: Scope<SocketAddr>,
}

/// Opens the hand-over socket, or adopts that of the previous process, until the listeners are closed. The gateway also works
/// without one.
pub(super) fn open(context: &Arc<AdminContext>, sockets: PassedSockets, adopted: Option<OwnedFd>) {
    let gateway = &context.gateway;
    let Some(path) = handover_path(&gateway.config.setup().config) else { return };
    let opened = match adopted {
        Some(adopted) => HandoverSocket::adopt(adopted, path.clone()),
        None => HandoverSocket::open(path.clone()),
    };
    let handover_socket = match opened {
        Ok(handover_socket) => handover_socket,
        Err(error) => {
            let path = path.display();
            return tracing::warn!(%path, %error, "cannot open the hand-over socket; no other process can take over");
        }
    };
    let opened = Arc::new((context.clone(), handover_socket, sockets));
    let class = ChildClass::new(tasks::unlimited_restarts(Restart::Transient), move |_: &ListenerKey, ctx: Ctx| {
        let opened = opened.clone();
        async move {
            let (context, handover_socket, sockets) = &*opened;
            tokio::select! {
                () = ctx.cancelled() => {}
                () = serve(context, handover_socket, sockets) => {}
            }
        }
    });
    // Rejected while the process is stopping.
    let _ = gateway.lifecycle.listen_scope.on(Tokio::current()).spawn_kept(ListenerKey::Successor, &class);
}

/// The hand-over socket.
struct HandoverSocket {
    listener: net::UnixListener,
    path: PathBuf,
    /// Inode of the file, if it has one.
    inode: Option<u64>,
}

impl HandoverSocket {
    fn adopt(adopted: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(adopted);
        listener.set_nonblocking(true)?;
        Ok(Self { listener: net::UnixListener::from_std(listener)?, path, inode: None })
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        if is_abstract(&path) {
            return Ok(Self { listener: net::UnixListener::bind(kernel_path(&path))?, path, inode: None });
        }
        // A left-over file, or that of the replaced process.
        let _ = fs::remove_file(&path);
        let listener = net::UnixListener::bind(&path)?;
        // The peer's user is checked in any case.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let inode = Some(fs::symlink_metadata(&path)?.ino());
        Ok(Self { listener, path, inode })
    }
}

impl Drop for HandoverSocket {
    fn drop(&mut self) {
        // The file may belong to another process by now.
        if self.inode.is_some() && fs::symlink_metadata(&self.path).ok().map(|found| found.ino()) == self.inode {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Serves processes until one has taken over.
async fn serve(context: &Arc<AdminContext>, handover_socket: &HandoverSocket, sockets: &PassedSockets) {
    let gateway = &context.gateway;
    let successor = loop {
        let successor = match handover_socket.listener.accept().await {
            Ok((successor, _)) => successor,
            Err(error) => {
                tracing::warn!(%error, "accept on the hand-over socket failed");
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        let first_thread = gateway.moves.thread_number(context.workers.count());
        match pass(successor, handover_socket, sockets, first_thread).await {
            Ok((successor, pid)) => {
                // Accepted from this process only, and only if the other one belongs to the service.
                systemd::main_process(pid);
                break successor;
            }
            // Any user can connect to an abstract socket.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::debug!(%error, "hand-over refused");
            }
            Err(error) => tracing::warn!(%error, "hand-over failed; this process continues"),
        }
    };
    tracing::info!("another process has taken over; this one ends when its clients have disconnected");
    sockets.listeners.iter().for_each(Listener::keep_file);
    sockets.scrapes.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
    sockets.pages.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
    // A RESUME would be sent to the other process, which is not paused.
    gateway.resume(None);
    gateway.lifecycle.hand_over();
    // Before the phase changes: this task ends with the listeners.
    sessions::send(context, successor);
    gateway.change_phase(|phase| if phase.goes_on() { Phase::WaitingForClients } else { phase });
}

/// Passes all sockets and waits for the confirmation. Returns the process that confirmed.
async fn pass(
    mut successor: net::UnixStream,
    handover_socket: &HandoverSocket,
    sockets: &PassedSockets,
    first_thread: usize,
) -> io::Result<(net::UnixStream, Pid)> {
    if !is_same_user(&successor)? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    tokio::time::timeout(PASS_LIMIT, send_all(&successor, handover_socket, sockets, first_thread))
        .await
        .map_err(late)??;
    let mut reply = [0; READY.len()];
    let received = tokio::time::timeout(START_LIMIT, successor.read_exact(&mut reply)).await.map_err(late)?;
    if received.is_ok() && reply == *READY {
        let pid = rustix::net::sockopt::socket_peercred(&successor)?.pid;
        return Ok((successor, pid));
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it was ready"))
}

async fn send_all(
    successor: &net::UnixStream,
    handover_socket: &HandoverSocket,
    sockets: &PassedSockets,
    first_thread: usize,
) -> io::Result<()> {
    for listener in &sockets.listeners {
        let text = match listener.file() {
            Some(path) => format!("{FILE}{}", path.display()),
            None => TCP.to_owned(),
        };
        send_one(successor, &text, Some(listener.as_fd())).await?;
    }
    for socket in &sockets.http {
        send_one(successor, HTTP, Some(socket.as_fd())).await?;
    }
    if handover_socket.inode.is_none() {
        send_one(successor, HANDOVER_SOCKET, Some(handover_socket.listener.as_fd())).await?;
    }
    let text = format!("{FIRST_THREAD}{first_thread}");
    send_one(successor, &text, Some(handover_socket.listener.as_fd())).await?;
    send_one(successor, END, None).await
}

async fn send_one(successor: &net::UnixStream, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    successor.async_io(Interest::WRITABLE, || send(successor, text, fd)).await
}
