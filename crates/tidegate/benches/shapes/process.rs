//! The server under load, and the process that loads it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_sandbox::Postgres;

/// Limit of anything that the benchmark waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// A running `tidegate shapes`. Killed on drop.
pub(crate) struct ShapesServer {
    child: Child,
    pub(crate) address: SocketAddr,
    name: &'static str,
    folder: tempfile::TempDir,
}

impl ShapesServer {
    /// Starts a server with empty logs. `name` ends the names of its publication and slot.
    pub(crate) fn start(postgres: &Postgres, name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        // The folder of the sandbox, so that its watchdog recognises the process.
        let folder = tempfile::tempdir_in(postgres.socket_dir()).expect("a folder");
        let child = spawn(postgres, address, name, &folder);
        Self { child, address, name, folder }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the server runs");
        self.child.wait().expect("the server ends");
    }

    /// Starts the server again on its folder.
    pub(crate) fn restart(&mut self, postgres: &Postgres) {
        self.child = spawn(postgres, self.address, self.name, &self.folder);
    }

    /// Waits until the replication slot is read, and returns when that was seen.
    pub(crate) fn wait_for_stream(&self, postgres: &Postgres) -> Instant {
        let sql =
            format!("select 1 from pg_replication_slots where slot_name = 'tidegate_shapes_{}' and active", self.name);
        let deadline = Instant::now() + LIMIT;
        while query(postgres, &sql).is_empty() {
            assert!(Instant::now() < deadline, "the server does not read its slot:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Instant::now()
    }

    pub(crate) fn slot(&self) -> String {
        format!("tidegate_shapes_{}", self.name)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> f64 {
        self.status_kib("VmRSS:")
    }

    /// Peak of the resident memory in KiB.
    pub(crate) fn peak_kib(&self) -> f64 {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, field: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
    }

    /// CPU time of the process so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.child.id())
    }
}

impl Drop for ShapesServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time of a process in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain spaces.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    // The kernel reports ticks of 10 ms to user space on every architecture that is in use.
    (ticks(11) + ticks(12)) / 100.0
}

/// Runs SQL as the superuser.
pub(crate) fn query(postgres: &Postgres, sql: &str) -> Vec<Vec<Option<String>>> {
    postgres.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn spawn(postgres: &Postgres, address: SocketAddr, name: &str, folder: &tempfile::TempDir) -> Child {
    // Another build of the same program, such as one with symbols for a profiler.
    let program = std::env::var_os("TIDEGATE").map_or(PathBuf::from(env!("CARGO_BIN_EXE_tidegate")), PathBuf::from);
    let log = fs::File::options().create(true).append(true).open(folder.path().join("log")).expect("a log file");
    let mut command = Command::new(program);
    command.args(["shapes", "--database", &postgres.url(), "--listen", &address.to_string(), "--name", name]);
    command.arg("--storage").arg(folder.path().join("logs")).stdin(Stdio::null());
    let errors = log.try_clone().expect("a handle");
    let child = command.stdout(log).stderr(errors).spawn().expect("tidegate starts");
    postgres.register_process(child.id()).expect("the watchdog takes the process");
    child
}

/// A process that makes requests. It is driven by lines: it prints what it has reached, and reads when to go on.
pub(crate) struct LoadProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl LoadProcess {
    /// Starts this program again as a client.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.arg("--client").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the load starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Self { child, input, output: BufReader::new(output) }
    }

    /// Waits for a line `WORD NUMBER…`, and returns the numbers.
    ///
    /// # Panics
    /// If the process ends, or prints another word.
    pub(crate) fn expect(&mut self, word: &str) -> Vec<f64> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the load prints a line");
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some(word), "the load printed {line:?}");
        words.map(|word| word.parse().expect("a number")).collect()
    }

    /// Lets the process go on.
    pub(crate) fn go(&mut self) {
        self.input.as_mut().expect("the input is open").write_all(b"go\n").expect("the load reads");
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
