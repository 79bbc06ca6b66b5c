//! The resource use of this process.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// The processor time of all threads so far.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The resident memory in KiB.
pub(crate) fn resident_kib() -> f64 {
    field("VmRSS:")
}

/// The peak since [`forget_peak`], in KiB.
pub(crate) fn peak_kib() -> f64 {
    field("VmHWM:")
}

pub(crate) fn forget_peak() {
    // The write may be forbidden; then the peak of the whole process counts, which is an upper bound.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn field(name: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(f64::NAN)
}
