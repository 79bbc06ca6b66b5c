//! The binary with a `pgbouncer.ini`, as PgBouncer would be started.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use tidegate_testkit::{Gateway, PATIENCE, RawClient, Server, Signal, Startup, eventually, is_free};

const POLL: Duration = Duration::from_millis(5);

/// A running gateway; dropping it kills it.
pub(crate) struct Bouncer {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

/// What a test starts with: lines of the file, other files, options.
#[derive(Clone, Default)]
pub(crate) struct Setup<'a> {
    /// Sections; `$PG` is host and port of the shared Postgres, `$DIR` the folder of this test.
    pub(crate) ini: &'a str,
    /// Name and text of files beside it.
    pub(crate) files: &'a [(&'a str, &'a str)],
    /// Options before the file.
    pub(crate) options: &'a [&'a str],
}

/// The Postgres that all tests of this target share.
pub(crate) fn server() -> &'static Server {
    Server::shared(18)
}

/// A port below those that the kernel gives to outgoing connections.
pub(crate) fn free_port() -> u16 {
    free_port_of(20_000..30_000)
}

/// A port of this range.
pub(crate) fn free_port_of(range: std::ops::Range<u16>) -> u16 {
    let is_free = |port: &u16| is_free(&(Ipv4Addr::LOCALHOST, *port).into());
    let tries = std::iter::repeat_with(|| fastrand::u16(range.clone())).take(1_000);
    tries.into_iter().find(is_free).expect("a port is free")
}

impl Bouncer {
    /// Starts with these sections; trust unless they say otherwise.
    pub(crate) fn start(ini: &str) -> Self {
        Self::with(&Setup { ini, ..Setup::default() })
    }

    /// Starts and waits until it listens.
    pub(crate) fn with(setup: &Setup<'_>) -> Self {
        for _ in 0..5 {
            let mut bouncer = Self::spawn(setup, free_port());
            if bouncer.listens() {
                return bouncer;
            }
        }
        panic!("no free port found");
    }

    /// Starts, without waiting for anything.
    pub(crate) fn spawn(setup: &Setup<'_>, port: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in setup.files {
            let text = with_places(text, folder.path());
            fs::write(folder.path().join(name), text).expect("the folder can be written");
        }
        fs::write(folder.path().join("pgbouncer.ini"), text_of(setup.ini, folder.path(), port)).expect("it can");
        let extra: Vec<String> = setup.options.iter().map(|option| (*option).to_owned()).collect();
        let child = run(folder.path(), &extra);
        Self { child, port, folder }
    }

    /// Whether it accepts; not, if another process took the port.
    fn listens(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                assert!(self.log().contains("in use"), "it ended at once ({status}):\n{}", self.log());
                return false;
            }
            if TcpStream::connect_timeout(&self.address(), Duration::from_secs(1)).is_ok() {
                return true;
            }
            assert!(Instant::now() < deadline, "it accepts nothing:\n{}", self.log());
            thread::sleep(POLL);
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A login as `postgres`, to be changed.
    pub(crate) fn startup(&self, database: &str) -> Startup {
        Startup::tcp(self.address(), "postgres", database)
    }

    /// The same over the unix socket, once it accepts: that is after the port does.
    #[track_caller]
    pub(crate) fn unix(&self, user: &str, database: &str) -> Startup {
        let socket = self.folder.path().join(format!(".s.PGSQL.{}", self.port));
        eventually("the socket accepts", || UnixStream::connect(&socket).is_ok());
        Startup::unix(socket, user, database)
    }

    #[track_caller]
    pub(crate) fn client(&self, database: &str) -> RawClient {
        self.startup(database).connect()
    }

    #[track_caller]
    pub(crate) fn console(&self) -> RawClient {
        self.client("pgbouncer")
    }

    /// The rows of `SHOW what`, each by column name.
    #[track_caller]
    pub(crate) fn show(&self, what: &str) -> Vec<BTreeMap<String, String>> {
        let outcome = self.console().ok(&format!("SHOW {what}"));
        let columns = outcome.messages.iter().find(|message| message.tag == b'T').map(|message| message.columns());
        let columns = columns.unwrap_or_default();
        outcome.rows.into_iter().map(|row| columns.iter().cloned().zip(row).collect()).collect()
    }

    /// A setting as SHOW CONFIG has it.
    #[track_caller]
    pub(crate) fn setting(&self, key: &str) -> String {
        let rows = self.show("CONFIG");
        let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no {key} in SHOW CONFIG"));
        row["value"].clone()
    }

    /// The sum of a column of SHOW POOLS over the pools of a database.
    #[track_caller]
    pub(crate) fn pool_count(&self, database: &str, column: &str) -> u64 {
        let pools = self.show("POOLS");
        pools
            .iter()
            .filter(|pool| pool["database"] == database)
            .map(|pool| pool[column].parse::<u64>().unwrap_or(0))
            .sum()
    }

    #[track_caller]
    pub(crate) fn wait_for_pool(&self, database: &str, column: &str, value: u64) {
        eventually(&format!("{column} of {database} becomes {value}"), || self.pool_count(database, column) == value);
    }

    /// What it has said so far on standard error.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "`{text}` is not in the log:\n{}", self.log());
            thread::sleep(POLL);
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces the ini file; the process is not told.
    pub(crate) fn rewrite(&self, ini: &str) {
        fs::write(self.file("pgbouncer.ini"), text_of(ini, self.folder.path(), self.port)).expect("it can be written");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process was not waited for");
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.log());
            thread::sleep(POLL);
        }
    }

    /// Starts with a `tidegate.toml`, which `text` makes for a port; listens unless the port was taken meanwhile.
    pub(crate) fn with_toml(text: impl Fn(u16) -> String) -> Self {
        for _ in 0..5 {
            let port = free_port();
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("tidegate.toml");
            fs::write(&file, text(port)).expect("the folder can be written");
            let arguments = ["run", "-c", &file.display().to_string(), "--workers", "2"].map(str::to_owned);
            let child = spawn(folder.path(), &arguments);
            let mut bouncer = Self { child, port, folder };
            if bouncer.listens() {
                return bouncer;
            }
        }
        panic!("no free port found");
    }

    /// The port it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// The program with these arguments, and what it prints.
pub(crate) fn output(arguments: &[&str]) -> std::process::Output {
    Command::new(binary()).args(arguments).output().expect("the binary can be started")
}

pub(crate) fn binary() -> PathBuf {
    Gateway::binary(env!("CARGO_BIN_EXE_tidegate"))
}

/// The text with the places that `$PG` and `$DIR` stand for.
fn with_places(text: &str, folder: &Path) -> String {
    let address = server().address();
    let pg = format!("host={} port={}", address.ip(), address.port());
    text.replace("$PG", &pg).replace("$DIR", &folder.display().to_string())
}

fn text_of(ini: &str, folder: &Path, port: u16) -> String {
    let (ini, folder) = (with_places(ini, folder), folder.display());
    // A later line goes before an earlier: what the test says holds.
    format!(
        "[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir = {folder}\nauth_type = any\n\
         admin_users = postgres\npool_mode = transaction\n{ini}"
    )
}

fn run(folder: &Path, options: &[String]) -> Child {
    let ini = folder.join("pgbouncer.ini").display().to_string();
    let mut arguments = options.to_vec();
    arguments.push(ini);
    spawn(folder, &arguments)
}

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    let log = File::create(folder.join("stderr")).expect("the folder can be written");
    let again = log.try_clone().expect("a file can be duplicated");
    let mut command = Command::new(binary());
    // Two threads whatever the machine: what passes between threads is to be seen by every test.
    if !arguments.iter().any(|argument| argument == "run") {
        command.args(["--workers", "2"]);
    }
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(log).stderr(again);
    command.spawn().expect("the binary can be started")
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("the log:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}
