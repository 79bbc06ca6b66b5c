//! Resource usage of a child process and of the walsender that serves it.

use std::fs;
use std::time::{Duration, Instant};

/// Resource usage of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Time from the start of the walsender to the last change.
    pub(crate) wall: Duration,
    /// CPU time of the subject meanwhile.
    pub(crate) cpu: Duration,
    /// CPU time of the walsender.
    pub(crate) server_cpu: Duration,
    /// Peak resident memory of the subject.
    pub(crate) peak_mib: f64,
}

/// Samples a subject and its walsender. The processes may end at any time; the last sample counts.
pub(crate) struct ProcessSampler {
    subject: u32,
    walsender: u32,
    start: Instant,
    cpu_before: Duration,
    last: Usage,
}

impl ProcessSampler {
    pub(crate) fn start(subject: u32, walsender: u32) -> Self {
        let cpu_before = cpu_time(subject).unwrap_or_default();
        let last = Usage { wall: Duration::ZERO, cpu: Duration::ZERO, server_cpu: Duration::ZERO, peak_mib: 0.0 };
        Self { subject, walsender, start: Instant::now(), cpu_before, last }
    }

    pub(crate) fn sample(&mut self) {
        if let Some(cpu) = cpu_time(self.subject) {
            self.last.cpu = cpu.saturating_sub(self.cpu_before);
        }
        if let Some(cpu) = cpu_time(self.walsender) {
            self.last.server_cpu = cpu;
        }
        if let Some(peak) = peak_mib(self.subject) {
            self.last.peak_mib = peak;
        }
    }

    pub(crate) fn finish(mut self) -> Usage {
        self.last.wall = self.start.elapsed();
        self.last
    }
}

/// User and system time of a process, all threads.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    // The kernel reports ticks of 10 ms to user space on every architecture that is in use.
    Some(Duration::from_millis(ticks * 10))
}

fn peak_mib(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}
