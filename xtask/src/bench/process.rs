//! What a process has used, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Processor time of all threads that live so far, in user and kernel mode, as the scheduler counts it: `/proc/PID/stat` counts
/// in ticks of 10 ms, and whoever happens to run at one gets all of it.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("read the threads of a subject")?;
    // A thread that has just ended has no file any more.
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

/// Lets this process, and those it starts, open as many files as the system allows.
pub(crate) fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If it is refused, the number returned is what counts.
    let _ = setrlimit(Resource::Nofile, wanted);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_has_used_memory() {
        assert!(resident_kib(std::process::id()).unwrap() > 100);
        let before = cpu_time(std::process::id()).unwrap();
        assert!(before > Duration::ZERO);
    }
}
