//! A program that listens, as a child process with a folder and a log of its own.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, kill_process, pidfd_getfd, pidfd_open};
use socket2::{Domain, Socket, Type};

use crate::PATIENCE;

pub use rustix::process::Signal;

const POLL: Duration = Duration::from_millis(5);
/// How much of the log a failing test prints.
const LOG_LINES_MAX: usize = 60;

/// A running program; dropping it kills it.
pub struct Process {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Process {
    /// Starts the command, which is to listen there; what it prints goes into its log.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(mut command: Command, address: SocketAddr, folder: tempfile::TempDir) -> Self {
        let log = File::create(folder.path().join("log")).expect("the folder can be written");
        let again = log.try_clone().expect("a file can be duplicated");
        command.stdin(Stdio::null()).stdout(log).stderr(again);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { child, address, folder }
    }

    /// Waits until it accepts. `false` if it ended because somebody else has the port.
    ///
    /// # Panics
    /// If it ended for another reason, or accepts nothing.
    pub fn accepts(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                let log = self.log();
                assert!(log.contains("in use"), "it ended at once ({status}):\n{log}");
                return false;
            }
            if TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok() {
                return true;
            }
            assert!(Instant::now() < deadline, "it accepts nothing:\n{}", self.log());
            thread::sleep(POLL);
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A folder of this process alone.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process is a child that was not waited for");
    }

    /// Descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(folder).expect("the process is a child that was not waited for").count()
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
        kilobytes.expect("the process is a child that was not waited for") * 1024
    }

    /// Its connections over TCP, duplicated, so that the kernel can be asked how it has set them up.
    ///
    /// # Errors
    /// When this machine does not let a process look into its child.
    ///
    /// # Panics
    /// When the process has ended.
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
                // No socket, or none over TCP; or it was closed since.
                Ok(_) | Err(Errno::BADF) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(connections)
    }

    /// Whether it is still there.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.log());
            thread::sleep(POLL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left to do about an error.
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

/// A place of 127.0.0.1 where nobody listens. Ports should lie below the range from which the kernel takes those of
/// outgoing connections (32768 on): a socket that connects to a port of that range before anybody listens there may meet
/// itself.
pub fn free_address(ports: Range<u16>) -> SocketAddr {
    let address = || SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(ports.clone())));
    std::iter::repeat_with(address).take(1_000).find(is_free).expect("a port is free")
}

/// Whether nobody listens there. Nobody listens for the sake of the question either: whoever waits for a server that is to
/// listen there would take that for its server.
fn is_free(address: &SocketAddr) -> bool {
    let bind = || {
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&(*address).into())
    };
    bind().is_ok()
}
