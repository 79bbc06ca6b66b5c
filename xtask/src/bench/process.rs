//! Resource usage of a process, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// CPU time of all current threads, in user and kernel mode, as measured by the scheduler. `/proc/PID/stat` counts
/// ticks of 10 ms, and attributes a whole tick to the running thread.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("read the threads of a subject")?;
    // An exited thread has no file.
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("schedstat")).ok();
    let nanoseconds = |text: String| text.split(' ').next().and_then(|first| first.parse::<u64>().ok());
    Ok(Duration::from_nanos(threads.flatten().filter_map(of).filter_map(nanoseconds).sum()))
}

/// Resident memory in KiB.
pub(crate) fn resident_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read the memory of a subject")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a status has VmRSS")?;
    line.trim().trim_end_matches(" kB").parse().context("VmRSS is a number of kB")
}

/// Raises the limit of open files for this process and its children. Returns the limit.
pub(crate) fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // The returned limit is correct even if this fails.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_resident_memory() {
        assert!(resident_kib(std::process::id()).unwrap() > 100);
        let before = cpu_time(std::process::id()).unwrap();
        assert!(before > Duration::ZERO);
    }
}
