//! The process: pid file, user and background.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Uid, geteuid, getpid, setsid, test_kill_process};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The pid file; removed when dropped.
#[derive(Debug)]
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file; `None` for an empty path.
    ///
    /// # Errors
    /// If the process of an existing file is alive, or the file cannot be written.
    pub(super) fn claim(path: &Path) -> anyhow::Result<Option<Self>> {
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let shown = path.display();
        let text = fs::read_to_string(path).unwrap_or_default();
        let pid_of_file = text.trim().parse::<i32>().ok().filter(|number| *number > 0);
        if pid_of_file.is_none() && !text.trim().is_empty() {
            bail!("{shown} does not contain a process id; choose another file, or remove it");
        }
        let other = pid_of_file.and_then(Pid::from_raw).filter(|pid| *pid != getpid());
        if let Some(pid) = other.filter(|pid| is_alive(test_kill_process(*pid))) {
            let number = pid.as_raw_nonzero();
            bail!(
                "{shown} contains the id of process {number}, which is running; stop it, or remove the file if it is another \
                 program"
            );
        }
        Self::replace(path)
    }

    /// Writes the file in any case, because its process is being replaced. `None` for an empty path.
    ///
    /// # Errors
    /// If the file cannot be written.
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
        // Another process may have written its number meanwhile.
        let own = getpid().as_raw_nonzero().to_string();
        if fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == own) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Whether a process exists, from the result of a signal 0. A process of another user returns EPERM.
fn is_alive(signalled: rustix::io::Result<()>) -> bool {
    signalled != Err(Errno::SRCH)
}

/// Changes to another user; an empty name means the current one.
///
/// # Errors
/// If the user does not exist, or the process lacks the permission.
pub(super) fn change_user(name: &str) -> anyhow::Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    let (uid, gid) = user_and_group(name).with_context(|| format!("the user `{name}` does not exist"))?;
    if geteuid().as_raw() == uid {
        return Ok(());
    }
    if !geteuid().is_root() {
        bail!("cannot change to the user `{name}`: start as root or as `{name}`");
    }
    let is_single = fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_single {
        return become_user(uid, gid).with_context(|| format!("cannot change to the user `{name}`"));
    }
    let error = same_command()?.uid(uid).gid(gid).exec();
    Err(error).with_context(|| format!("cannot restart as the user `{name}`"))
}

/// Changes the user of this thread, which is the only one, and of later threads. As in PgBouncer, the user needs no access to
/// the files that were read before: a configuration with passwords may be readable by root alone.
fn become_user(uid: u32, gid: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// Whether the user exists.
pub(super) fn user_exists(name: &str) -> bool {
    user_and_group(name).is_some()
}

/// User and group id of a user, from /etc/passwd.
fn user_and_group(name: &str) -> Option<(u32, u32)> {
    let text = fs::read_to_string("/etc/passwd").ok()?;
    let found = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        (fields.first() == Some(&name)).then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))?
    };
    text.lines().find_map(found)
}

/// Id of a group: numeric, or from /etc/group.
pub(super) fn group_id(name: &str) -> Option<u32> {
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

/// A command that runs this program with the same arguments.
fn same_command() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
    command.args(std::env::args_os().skip(1));
    Ok(command)
}

/// Marks a process in the background.
const BACKGROUND: &str = "TIDEGATE_BACKGROUND";

/// Message of that process when it listens.
const READY: &[u8] = b"ready\n";

/// Whether this process was started in the background.
pub(super) fn is_background() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// Starts this program in the background and waits until it listens.
///
/// # Errors
/// If it ends before that; it has reported the reason.
pub(super) fn go_to_background() -> anyhow::Result<()> {
    let mut child = same_command()?;
    // Standard error is piped through this process, so that the child does not hold the terminal later.
    child.env(BACKGROUND, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().context("cannot start in the background")?;
    let stderr_copier = child
        .stderr
        .take()
        .map(|mut from| std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::stderr()).map(drop)));
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.as_mut() {
        stdout.take(READY.len() as u64).read_to_end(&mut output)?;
    }
    if output != READY {
        let status = child.wait()?;
        let _ = stderr_copier.map(std::thread::JoinHandle::join);
        bail!("the background process ended before it was ready ({status})");
    }
    Ok(())
}

/// Detaches from the terminal. Call first in a background process.
pub(super) fn leave_terminal() {
    // Fails for a group leader, which has no terminal in this case.
    let _ = setsid();
}

/// Reports readiness to the process that waits for this one, if it runs in the background.
pub(super) fn announce_ready() {
    if !is_background() {
        return;
    }
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(READY).and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_file_exists_while_the_process_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pid");
        fs::write(&path, "999999999\n").expect("a file");
        let file = PidFile::claim(&path).expect("no such process").expect("a path is given");
        assert_eq!(fs::read_to_string(&path).expect("a file").trim(), getpid().as_raw_nonzero().to_string());
        drop(file);
        assert!(!path.exists());
        for other in ["1\n", "nameserver 10.0.0.1\n", "-1\n"] {
            fs::write(&path, other).expect("a file");
            // Process 1 is alive and belongs to root.
            assert!(PidFile::claim(&path).is_err(), "{other}");
            assert_eq!(fs::read_to_string(&path).expect("a file"), other);
        }
        assert!(is_alive(Err(Errno::PERM)) && is_alive(Ok(())) && !is_alive(Err(Errno::SRCH)));
        assert!(PidFile::claim(Path::new("")).expect("no pid file").is_none());
    }

    #[test]
    fn users_and_groups_have_ids() {
        assert_eq!(user_and_group("root"), Some((0, 0)));
        assert_eq!(user_and_group("no such user"), None);
        assert_eq!((group_id("root"), group_id("77"), group_id("no such group")), (Some(0), Some(77), None));
    }
}
