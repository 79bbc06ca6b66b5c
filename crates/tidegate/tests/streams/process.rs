//! A `tidegate stream` as a child process, and its files.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tidegate_testkit::{Gateway, poll};

/// The deadline of every wait; only a hang reaches it, also on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// A folder that is removed after the test.
pub(crate) struct TempFolder(tempfile::TempDir);

impl TempFolder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    pub(crate) fn append(&self, name: &str, text: &str) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Creates a named pipe.
    pub(crate) fn pipe(&self, name: &str) -> String {
        assert!(Command::new("mkfifo").arg(self.path(name)).status().unwrap().success());
        self.path(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Writes a shell script that reads lines, and returns it as a sink for `--to`.
    pub(crate) fn script(&self, name: &str, text: &str) -> String {
        format!("command:exec sh {}", self.write(name, text))
    }
}

/// The oldest and the newest supported version of Postgres, or those of `TIDEGATE_POSTGRES_VERSIONS`, such as `16,17`.
pub(crate) fn versions() -> Vec<u8> {
    let listed = std::env::var("TIDEGATE_POSTGRES_VERSIONS").ok();
    listed.map_or(vec![14, 18], |listed| listed.split(',').map(|version| version.trim().parse().unwrap()).collect())
}

/// A random generator with a printed seed, which `TIDEGATE_SEED` repeats.
pub(crate) fn random() -> fastrand::Rng {
    let seed = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TIDEGATE_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Records with the numbers of a range; number `n` has the key `n % keys`.
pub(crate) fn numbers(range: std::ops::Range<u64>, keys: u64) -> String {
    range.map(|n| format!("{{\"k\":\"k{}\",\"n\":{n}}}\n", n % keys)).collect()
}

/// The key and the number of a line of [`numbers`].
pub(crate) fn number(line: &str) -> (String, u64) {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    (value["k"].as_str().unwrap().to_owned(), value["n"].as_u64().unwrap())
}

/// Asserts that each number of the range occurs once, with those of a key in order.
#[track_caller]
pub(crate) fn assert_each_once_in_order(lines: &[String], range: std::ops::Range<u64>) {
    let mut last = std::collections::BTreeMap::<String, u64>::new();
    let mut all: Vec<u64> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    let repeated: Vec<u64> = lines.iter().map(|line| number(line).1).filter(|n| !seen.insert(*n)).collect();
    assert_eq!(repeated, [0; 0], "repeated records");
    for line in lines {
        let (key, n) = number(line);
        if let Some(before) = last.insert(key.clone(), n) {
            assert!(before < n, "{key}: {n} after {before}");
        }
        all.push(n);
    }
    all.sort_unstable();
    assert_eq!(all, range.collect::<Vec<_>>());
}

pub(crate) struct Stream {
    child: Child,
    pub(crate) input: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
    errors: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// The exit code and the output of a process.
pub(crate) struct StreamOutput {
    pub(crate) code: Option<i32>,
    pub(crate) lines: Vec<String>,
    pub(crate) errors: String,
}

pub(crate) fn binary() -> PathBuf {
    Gateway::binary(env!("CARGO_BIN_EXE_tidegate"))
}

impl Stream {
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::start_in(Path::new("."), arguments)
    }

    pub(crate) fn start_in<A: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = A>) -> Self {
        let mut command = Command::new(binary());
        command.arg("stream").args(arguments).current_dir(folder);
        Self::spawn(command)
    }

    /// Starts a stream whose system roots are this authority.
    pub(crate) fn start_trusting<A: AsRef<OsStr>>(ca: &Path, arguments: impl IntoIterator<Item = A>) -> Self {
        let mut command = Command::new(binary());
        command.arg("stream").args(arguments).env("SSL_CERT_FILE", ca);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, errors) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (seen, stderr_text) = (Arc::clone(&lines), Arc::clone(&errors));
        let readers = vec![
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    seen.lock().unwrap().push(line);
                }
            }),
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = stderr.read(&mut buffer) {
                    stderr_text.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..read]));
                }
            }),
        ];
        let input = child.stdin.take();
        Self { child, input, lines, errors, readers }
    }

    /// Runs a stream until it ends.
    pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> StreamOutput {
        Self::start(arguments).wait()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills the process group, like a crash.
    pub(crate) fn kill9(mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Closes standard input and waits for the end of the process.
    #[track_caller]
    pub(crate) fn wait(mut self) -> StreamOutput {
        drop(self.input.take());
        assert!(poll(TIMEOUT, || self.has_ended()), "the stream does not end:\n{}", self.errors());
        let status = self.child.wait().unwrap();
        // Commands of the stream may hold the pipes, and the stream kills them.
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        StreamOutput { code: status.code(), lines: self.lines(), errors: self.errors() }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the log of the stream:\n{}", self.errors());
        }
    }
}

impl StreamOutput {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.errors);
        self
    }
}

/// The response to `GET path`, with its head.
pub(crate) fn http_get(address: std::net::SocketAddr, path: &str) -> String {
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    page
}

/// Polls a condition until it holds; the deadline fails the test.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(poll(TIMEOUT, holds), "not in time: {what}");
}
