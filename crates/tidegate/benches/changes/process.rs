//! Processes under measurement.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_sandbox::Postgres;

/// Limit of anything that the benchmark waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// A child that is killed when it is dropped.
pub(crate) struct Measured {
    child: Child,
    pub(crate) started: Instant,
    log: PathBuf,
}

impl Measured {
    /// Starts a program. Its log lines go to a file in `folder`.
    pub(crate) fn start(mut command: Command, server: &Postgres, folder: &Path) -> Self {
        let log = folder.join("log");
        let file = fs::File::options().create(true).append(true).open(&log).expect("a log file");
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn().expect("a process");
        server.register_process(child.id()).expect("the watchdog takes the process");
        Self { child, started, log }
    }

    /// `tidegate stream` on the slot `bench`, with its state in `folder`.
    pub(crate) fn stream(server: &Postgres, folder: &Path, to: &str, more: &[&str]) -> Self {
        let program = std::env::var_os("TIDEGATE").map_or(PathBuf::from(env!("CARGO_BIN_EXE_tidegate")), PathBuf::from);
        let mut command = Command::new(program);
        command.args(["stream", "--name", "bench", "--quiet", "--from"]).arg(server.url());
        command.args(["--publication", "bench", "--slot", "bench", "--to", to, "--snapshot", "none"]);
        command.args(["--order", "commit"]).args(more);
        Self::start(command, server, folder)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::with_capacity(1 << 20, self.child.stdout.take().expect("a pipe"))
    }

    /// Waits until a process reads the slot. Returns the time since the start.
    pub(crate) fn wait_for_slot(&mut self, server: &Postgres, slot: &str) -> Duration {
        let sql = format!("select active from pg_replication_slots where slot_name = '{slot}'");
        self.until("the slot is read", || server.simple_query(&sql).expect("the slots")[0][0].as_deref() == Some("t"))
    }

    /// Waits for a condition, as long as the process runs. Returns the time since its start.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
        while !holds() {
            let log = || fs::read_to_string(&self.log).unwrap_or_default();
            assert!(self.started.elapsed() < LIMIT, "not in time: {what}\n{}", log());
            if self.child.try_wait().expect("a status").is_some() {
                // The end of its output is seen a little later.
                std::thread::sleep(Duration::from_millis(200));
                assert!(holds(), "the process has ended: {what}\n{}", log());
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.started.elapsed()
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads lines until there are `expected`. Returns how many there were at the end of the output.
pub(crate) fn count_lines(mut output: impl std::io::Read, expected: u64) -> u64 {
    let mut buffer = vec![0; 1 << 18];
    let mut lines = 0;
    while lines < expected {
        match output.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
    lines
}

/// User and system time of a process in seconds, and of its children that have ended.
fn cpu_of(pid: u32) -> [f64; 2] {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain spaces.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    // The kernel reports ticks of 10 ms to user space on every architecture that is in use.
    [(ticks(11) + ticks(12)) / 100.0, (ticks(13) + ticks(14)) / 100.0]
}

/// CPU time of a process in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    cpu_of(pid)[0]
}

/// CPU time of the children of this process that have ended, in seconds.
pub(crate) fn ended_children_seconds() -> f64 {
    cpu_of(std::process::id())[1]
}

/// CPU time of a server with all of its processes, also those that have ended, in seconds.
pub(crate) fn server_seconds(server: &Postgres) -> f64 {
    let postmaster = server.pid().unsigned_abs();
    let children = fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).unwrap_or_default();
    let running: f64 = children.split_whitespace().filter_map(|pid| pid.parse().ok()).map(cpu_seconds).sum();
    running + cpu_of(postmaster).iter().sum::<f64>()
}

/// Peak of the resident memory in MiB.
pub(crate) fn peak_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<f64>().ok()).map_or(f64::NAN, |kib| kib / 1024.0)
}
