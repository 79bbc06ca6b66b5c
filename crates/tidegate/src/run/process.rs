//! The process itself: its number in a file, its user, its life in the background, and what systemd is told.

use std::{
    ffi::OsString,
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        net::{SocketAddr, UnixDatagram},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, getpid, setsid, test_kill_process};

/// The file with the process's number, as long as it runs.
#[derive(Debug)]
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file; `None` for an empty path.
    ///
    /// # Errors
    /// When the process that the file names is alive, or the file cannot be written.
    pub(super) fn claim(path: &Path) -> anyhow::Result<Option<Self>> {
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let shown = path.display();
        let text = fs::read_to_string(path).unwrap_or_default();
        let known = text.trim().parse::<i32>().ok().filter(|number| *number > 0);
        if known.is_none() && !text.trim().is_empty() {
            bail!("{shown} has something else than the number of a process; name another file, or remove it");
        }
        let other = known.and_then(Pid::from_raw).filter(|pid| *pid != getpid());
        if let Some(pid) = other.filter(|pid| is_alive(test_kill_process(*pid))) {
            let number = pid.as_raw_nonzero();
            bail!(
                "{shown} names process {number}, which is alive; stop it, or remove the file if it is another program"
            );
        }
        Self::replace(path)
    }

    /// Writes the file whatever it says: the process that it names is being replaced. `None` for an empty path.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn replace(path: &Path) -> anyhow::Result<Option<Self>> {
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let number = format!("{}\n", getpid().as_raw_nonzero());
        fs::write(path, number).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Some(Self(path.to_owned())))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Somebody who has written another number there since is left alone.
        let own = getpid().as_raw_nonzero().to_string();
        if fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == own) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Whether a process is there, by the answer to a signal that does nothing: one of another user may not be sent any.
fn is_alive(signalled: rustix::io::Result<()>) -> bool {
    signalled != Err(Errno::SRCH)
}

/// Begins again as that user, if this is another; an empty name is this one.
///
/// # Errors
/// When the user is not known, or the process may not become it.
pub(super) fn become_user(name: &str) -> anyhow::Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    let (uid, gid) = account(name).with_context(|| format!("there is no user `{name}` on this machine"))?;
    if geteuid().as_raw() == uid {
        return Ok(());
    }
    if !geteuid().is_root() {
        bail!("cannot become the user `{name}`: start as root or as `{name}`");
    }
    let error = again()?.uid(uid).gid(gid).exec();
    Err(error).with_context(|| format!("cannot begin again as the user `{name}`"))
}

/// Whether the machine has a user of that name.
pub(super) fn is_account(name: &str) -> bool {
    account(name).is_some()
}

/// User and group number of a user, from the machine's file of users.
fn account(name: &str) -> Option<(u32, u32)> {
    let text = fs::read_to_string("/etc/passwd").ok()?;
    let found = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        (fields.first() == Some(&name)).then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))?
    };
    text.lines().find_map(found)
}

/// The number of a group: as it is written, or from the machine's file of groups.
pub(super) fn group(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let text = fs::read_to_string("/etc/group").ok()?;
    let found = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        (fields.first() == Some(&name)).then(|| fields.get(2)?.parse().ok())?
    };
    text.lines().find_map(found)
}

/// This program with these arguments.
fn again() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(std::env::args_os().skip(1));
    Ok(command)
}

/// Marks the process that is in the background already.
const BACKGROUND: &str = "TIDEGATE_BACKGROUND";

/// What that process says when it listens.
const READY: &[u8] = b"ready\n";

/// Whether this process was started to run in the background.
pub(super) fn is_background() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// Starts this program again in the background, and waits until it listens.
///
/// # Errors
/// When it ends before that; it has said why.
pub(super) fn go_to_background() -> anyhow::Result<()> {
    let mut child = again()?;
    // Its standard error is this process's for as long as that lives, so that it does not hold the terminal later.
    child.env(BACKGROUND, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().context("cannot start in the background")?;
    let complaints = child
        .stderr
        .take()
        .map(|mut from| std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::stderr()).map(drop)));
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.as_mut() {
        stdout.take(READY.len() as u64).read_to_end(&mut said)?;
    }
    if said != READY {
        let status = child.wait()?;
        let _ = complaints.map(std::thread::JoinHandle::join);
        bail!("it ended before it could listen ({status})");
    }
    Ok(())
}

/// Leaves the terminal; the first thing that a process in the background does.
pub(super) fn leave_terminal() {
    // It fails for the leader of a group, which is without terminal then.
    let _ = setsid();
}

/// Says that clients can come: to the process that waits for this one, and to systemd.
pub(super) fn announce_ready() {
    notify("READY=1");
    if !is_background() {
        return;
    }
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(READY).and_then(|()| stdout.flush());
}

/// Tells systemd, if it has started this process (`sd_notify(3)`).
pub(super) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::warn!(%error, "systemd was not told: {state}");
    }
}

fn send(path: &OsString, state: &str) -> std::io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    let socket = UnixDatagram::unbound()?;
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_there_as_long_as_the_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pid");
        fs::write(&path, "999999999\n").expect("a file");
        let file = PidFile::claim(&path).expect("a number of nobody is no obstacle").expect("a path is given");
        assert_eq!(fs::read_to_string(&path).expect("a file").trim(), getpid().as_raw_nonzero().to_string());
        drop(file);
        assert!(!path.exists());
        for other in ["1\n", "nameserver 10.0.0.1\n", "-1\n"] {
            fs::write(&path, other).expect("a file");
            // The first process is alive, whoever's it is.
            assert!(PidFile::claim(&path).is_err(), "{other}");
            assert_eq!(fs::read_to_string(&path).expect("a file"), other);
        }
        assert!(is_alive(Err(Errno::PERM)) && is_alive(Ok(())) && !is_alive(Err(Errno::SRCH)));
        assert!(PidFile::claim(Path::new("")).expect("no file is wanted").is_none());
    }

    #[test]
    fn users_of_the_machine_have_numbers() {
        assert_eq!(account("root"), Some((0, 0)));
        assert_eq!(account("nobody of that name"), None);
        assert_eq!((group("root"), group("77"), group("no group of that name")), (Some(0), Some(77), None));
    }
}
