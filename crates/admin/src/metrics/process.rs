//! Metrics of the process, with the names of Prometheus' client libraries.

use std::fs;

use super::{
    MetricsPage,
    family::{MetricSample, MetricType},
};

/// Clock ticks per second in `/proc`: `USER_HZ`, which Linux fixes at 100 for programs.
const TICKS: f64 = 100.0;

/// Usage of this process according to `/proc`. A part that cannot be read is missing.
#[derive(Debug, Default, PartialEq)]
struct ProcessUsage {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    threads: Option<f64>,
    open_files: Option<f64>,
    max_files: Option<f64>,
}

impl ProcessUsage {
    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut usage = Self::default();
        usage.add_stat(&text("/proc/self/stat"), &text("/proc/stat"));
        usage.add_status(&text("/proc/self/status"));
        usage.open_files = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
        usage.max_files = max_files(&text("/proc/self/limits"));
        usage
    }

    /// Reads `/proc/self/stat` (proc(5)) and the boot time of `/proc/stat`.
    fn add_stat(&mut self, own: &str, machine: &str) {
        // The name of the program may contain spaces and parentheses; field 3 follows the last parenthesis.
        let fields: Vec<f64> = own
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect())
            .unwrap_or_default();
        let field = |number: usize| fields.get(number - 3).copied();
        self.cpu_seconds = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
        let boot = machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        self.start_seconds = field(22).zip(boot).map(|(start, boot)| boot + start / TICKS);
    }

    fn add_status(&mut self, status: &str) {
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        self.resident_bytes = value("VmRSS").map(|kib| kib * 1024.0);
        self.virtual_bytes = value("VmSize").map(|kib| kib * 1024.0);
        self.threads = value("Threads");
    }
}

fn max_files(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        limit => limit.parse().ok(),
    }
}

impl MetricsPage {
    pub(super) fn process(&mut self) {
        let usage = ProcessUsage::read();
        let gauge = MetricType::Gauge;
        for (name, help, metric_type, value) in [
            ("cpu_seconds_total", "CPU time of the process", MetricType::Counter, usage.cpu_seconds),
            ("start_time_seconds", "Start of the process", gauge, usage.start_seconds),
            ("resident_memory_bytes", "Memory of the process", gauge, usage.resident_bytes),
            ("virtual_memory_bytes", "Address space of the process", gauge, usage.virtual_bytes),
            ("threads", "Threads of the process", gauge, usage.threads),
            ("open_fds", "Open file descriptors", gauge, usage.open_files),
            ("max_fds", "Limit of open file descriptors", gauge, usage.max_files),
        ] {
            let samples = value.map(|value| MetricSample::number(metric_type, &[], value)).into_iter().collect();
            self.family(name, help, metric_type, samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_proc() {
        let mut usage = ProcessUsage::default();
        let own = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 5 0 1000 1 2 3";
        usage.add_stat(own, "cpu 1 2\nbtime 1700000000\n");
        assert_eq!((usage.cpu_seconds, usage.start_seconds), (Some(4.0), Some(1_700_000_010.0)));
        usage.add_status("Name:\ttidegate\nVmSize:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t6\n");
        assert_eq!((usage.resident_bytes, usage.virtual_bytes), (Some(1_048_576.0), Some(2_097_152.0)));
        assert_eq!(usage.threads, Some(6.0));
        assert_eq!(
            max_files("Max open files            1024                 524288               files\n"),
            Some(1024.0)
        );
        assert_eq!(
            max_files("Max open files            unlimited            unlimited            files\n"),
            Some(f64::INFINITY)
        );
        let mut damaged = ProcessUsage::default();
        damaged.add_stat("", "");
        damaged.add_status("VmRSS: much");
        assert_eq!(damaged, ProcessUsage::default());
        let own = ProcessUsage::read();
        assert!(own.cpu_seconds.is_some() && own.open_files.is_some_and(|files| files > 0.0), "{own:?}");
    }
}
