//! What a process has used, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Processor time of all threads so far, in user and kernel mode. Resolution is the kernel's tick, usually 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("read the processor time of a subject")?;
    // Fields 14 and 15, counted after the name in brackets (proc(5)).
    let after_name = stat.rsplit_once(')').context("a stat line has a name")?.1;
    let field = |index: usize| after_name.split_whitespace().nth(index).and_then(|text| text.parse::<u64>().ok());
    let ticks = field(11).zip(field(12)).map(|(user, system)| user + system).context("a stat line has times")?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
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
        assert!(cpu_time(std::process::id()).is_ok());
    }
}
