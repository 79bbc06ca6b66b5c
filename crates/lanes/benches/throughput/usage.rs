//! Resource usage of a run: time, CPU time, memory.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub(crate) struct Usage {
    wall: Instant,
    cpu: Duration,
    resident_kib: u64,
}

pub(crate) struct Used {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    /// Peak resident memory above the start value.
    pub(crate) peak_mib: f64,
}

impl Usage {
    /// Resets the peak.
    pub(crate) fn now() -> Self {
        // If the peak cannot be reset, the figure includes the creation of the records.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self { wall: Instant::now(), cpu: cpu(), resident_kib: status("VmRSS:") }
    }

    pub(crate) fn until_now(&self) -> Used {
        let (wall, cpu) = (self.wall.elapsed(), cpu() - self.cpu);
        Used { wall, cpu, peak_mib: status("VmHWM:").saturating_sub(self.resident_kib) as f64 / 1024.0 }
    }
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A field of `/proc/self/status`, in KiB.
pub(crate) fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
