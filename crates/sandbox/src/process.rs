//! The main process of a server, and signals to it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
#[cfg(feature = "postgres")]
use crate::account::Account;

/// Interval for polling a state that has no notification.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// A running `postgres` process.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    /// Starts `program -D data` with its output appended to `log`.
    #[cfg(feature = "postgres")]
    pub(crate) fn start(program: &Path, data: &Path, log: &Path, account: Option<Account>) -> Result<Self, Error> {
        let mut command = unprivileged(program, account);
        command.arg("-D").arg(data);
        Self::spawn(command, log)
    }

    /// Starts `command` with its output appended to `log`.
    pub(crate) fn spawn(mut command: Command, log: &Path) -> Result<Self, Error> {
        let out = File::options().create(true).append(true).open(log).map_err(Error::path("open", log))?;
        let err = out.try_clone().map_err(Error::path("open", log))?;
        // A process group of its own: Ctrl-C in the terminal reaches the owner only, which decides.
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().map_err(Error::path("start", Path::new(command.get_program())))?;
        Ok(Self { child })
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id fits pid_t")
    }

    /// Signals the main process only.
    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Signals the main process and its children (sessions and auxiliary processes).
    pub(crate) fn signal_all(&self, signal: Signal) {
        self.signal(signal);
        children_of(self.pid()).into_iter().for_each(|child| send(child, signal));
    }

    /// Whether the main process has exited; reaps it.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the main process exits. Returns false after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

/// A command that runs as `account`, in a folder that every account may enter, in the C locale.
#[cfg(feature = "postgres")]
pub(crate) fn unprivileged(program: &Path, account: Option<Account>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null());
    if let Some(account) = account {
        account.apply(&mut command);
    }
    command
}

/// Sends a signal. A process that has exited is not an error: the caller waits for its exit anyway.
pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn children_of(parent: i32) -> Vec<i32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| parent_of(pid) == Some(parent))
        .collect()
}

/// Field 4 of `/proc/PID/stat`, counted after the command name, which may contain spaces and parentheses (proc(5)).
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
