//! A child process that listens on a port and has its own folder and log.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, kill_process, pidfd_getfd, pidfd_open};
use socket2::{Domain, Socket, Type};

use crate::TIMEOUT;
use crate::poll::poll;

pub use rustix::process::Signal;

/// Maximum number of log lines that a failing test prints.
const LOG_LINES_MAX: usize = 60;

/// A running child process. Dropping it kills the process.
pub struct Process {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Process {
    /// Starts a command that is expected to listen on `address`, and redirects its output to the log.
    ///
    /// # Panics
    /// If the command cannot be started.
    pub fn spawn(mut command: Command, address: SocketAddr, folder: tempfile::TempDir) -> Self {
        let log = File::create(folder.path().join("log")).expect("the folder can be written");
        let duplicate = log.try_clone().expect("a file can be duplicated");
        command.stdin(Stdio::null()).stdout(log).stderr(duplicate);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { child, address, folder }
    }

    /// Waits until the process accepts connections. Returns `false` if the process exited because the port is in use.
    ///
    /// # Panics
    /// If the process exits for another reason, or does not accept before the deadline.
    pub fn accepts(&mut self) -> bool {
        let mut exit = None;
        let accepts_or_exited = poll(TIMEOUT, || {
            exit = self.child.try_wait().expect("the status of a child can be read");
            exit.is_some() || TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok()
        });
        assert!(accepts_or_exited, "the process does not accept:\n{}", self.log());
        if let Some(status) = exit {
            let log = self.log();
            assert!(log.contains("in use"), "the process exited at its start ({status}):\n{log}");
        }
        exit.is_none()
    }

    /// The address on which the process listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder of this process.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process is a child that was not waited for");
    }

    /// The number of open file descriptors.
    pub fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(folder).expect("the process is a child that was not waited for").count()
    }

    /// The resident memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
        kilobytes.expect("the process is a child that was not waited for") * 1024
    }

    /// Duplicates of the TCP sockets of the process, to read their socket options.
    ///
    /// # Errors
    /// If this machine does not allow access to the descriptors of a child process.
    ///
    /// # Panics
    /// If the process has exited.
    pub fn connections(&self) -> io::Result<Vec<Socket>> {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        let entries = fs::read_dir(format!("/proc/{}/fd", self.child.id()))?;
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut connections = Vec::new();
        for number in numbers {
            match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).map(Socket::from) {
                Ok(socket) if socket.peer_addr().is_ok_and(|peer| peer.as_socket().is_some()) => {
                    connections.push(socket);
                }
                // Not a TCP socket, or closed in the meantime.
                Ok(_) | Err(Errno::BADF) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(connections)
    }

    /// Whether the process is running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the status of a child can be read").is_none()
    }

    /// Waits until the process exits.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut exit = None;
        poll(TIMEOUT, || {
            exit = self.child.try_wait().expect("the status of a child can be read");
            exit.is_some()
        });
        exit.unwrap_or_else(|| panic!("the process does not exit:\n{}", self.log()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have exited already; errors do not matter here.
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = lines.len().saturating_sub(LOG_LINES_MAX);
            eprintln!("the log of {}:\n{}", self.address, lines[last..].join("\n"));
        }
    }
}

/// Returns an address of 127.0.0.1 with a port on which no process listens. The range should lie below the ephemeral
/// ports (from 32768): a client that connects to an ephemeral port before the server listens can connect to itself.
pub fn free_address(ports: Range<u16>) -> SocketAddr {
    let address = || SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(ports.clone())));
    std::iter::repeat_with(address).take(1_000).find(is_free).expect("a port is free")
}

/// Whether the address is free. The check binds but does not listen: a concurrent test that waits for its server on
/// this address would otherwise connect to this socket.
fn is_free(address: &SocketAddr) -> bool {
    let bind = || {
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&(*address).into())
    };
    bind().is_ok()
}
