//! A gateway that is started with a `pgbouncer.ini`, like PgBouncer.

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    ops::{Deref, DerefMut, Range},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use tidegate_testkit::{Gateway, Process, RawClient, Server, Startup, eventually, free_address};

/// A running gateway; dropping it kills it.
pub(crate) struct IniGateway(Process);

impl Deref for IniGateway {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for IniGateway {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}

/// The files and options of a gateway.
#[derive(Clone, Default)]
pub(crate) struct Setup<'a> {
    /// The sections of the file; `$PG` is the host and the port of the shared Postgres, `$DIR` the folder of this test.
    pub(crate) ini: &'a str,
    /// The names and texts of further files in the folder.
    pub(crate) files: &'a [(&'a str, &'a str)],
    /// The options before the file.
    pub(crate) options: &'a [&'a str],
    /// The program that starts the gateway, and its first arguments; empty for a direct start.
    pub(crate) starter: &'a [&'a str],
}

/// The Postgres that all tests of this target share.
pub(crate) fn server() -> &'static Server {
    Server::shared(18)
}

/// A free port for a gateway.
pub(crate) fn free_port() -> u16 {
    free_port_of(20_000..30_000)
}

/// A free port of this range.
pub(crate) fn free_port_of(range: Range<u16>) -> u16 {
    free_address(range).port()
}

impl IniGateway {
    /// Starts a gateway with these sections, by default without authentication.
    pub(crate) fn start(ini: &str) -> Self {
        Self::with(&Setup { ini, ..Setup::default() })
    }

    /// Starts a gateway and waits until it accepts.
    pub(crate) fn with(setup: &Setup<'_>) -> Self {
        for _ in 0..5 {
            let mut gateway = Self::spawn(setup, free_port());
            if gateway.accepts() {
                return gateway;
            }
        }
        panic!("no free port found");
    }

    /// Starts a gateway without waiting.
    pub(crate) fn spawn(setup: &Setup<'_>, port: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in setup.files {
            let text = expand(text, folder.path());
            fs::write(folder.path().join(name), text).expect("the folder can be written");
        }
        fs::write(folder.path().join("pgbouncer.ini"), text_of(setup.ini, folder.path(), port))
            .expect("the folder can be written");
        let mut arguments: Vec<String> = setup.options.iter().map(|option| (*option).to_owned()).collect();
        arguments.push(folder.path().join("pgbouncer.ini").display().to_string());
        let starter: Vec<_> = setup.starter.iter().map(|word| expand(word, folder.path())).collect();
        Self(spawn_by(&starter, folder, port, &arguments))
    }

    /// Starts another process with the file of this one, without waiting.
    pub(crate) fn second_process(&self, options: &[&str]) -> Self {
        let mut arguments: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        arguments.push(self.file("pgbouncer.ini").display().to_string());
        Self(spawn(tempfile::tempdir().expect("a folder"), self.port(), &arguments))
    }

    /// A startup packet of `postgres`, to be changed.
    pub(crate) fn startup(&self, database: &str) -> Startup {
        Startup::tcp(self.address(), "postgres", database)
    }

    /// A startup packet over the unix socket, after waiting until the socket accepts, which is later than the port.
    #[track_caller]
    pub(crate) fn unix(&self, user: &str, database: &str) -> Startup {
        let socket = self.folder().join(format!(".s.PGSQL.{}", self.port()));
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

    /// The rows of `SHOW table` by column name.
    #[track_caller]
    pub(crate) fn show(&self, table: &str) -> Vec<BTreeMap<String, String>> {
        self.console().show(table)
    }

    /// The value of a setting in SHOW CONFIG.
    #[track_caller]
    pub(crate) fn setting(&self, key: &str) -> String {
        Self::setting_by(&mut self.console(), key)
    }

    /// The value of a setting in SHOW CONFIG on this console.
    #[track_caller]
    pub(crate) fn setting_by(console: &mut RawClient, key: &str) -> String {
        let rows = console.show("CONFIG");
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

    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        eventually(&format!("`{text}` is in the log"), || self.log().contains(text));
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Replaces the file, without a reload.
    pub(crate) fn set_config(&self, ini: &str) {
        fs::write(self.file("pgbouncer.ini"), text_of(ini, self.folder(), self.port()))
            .expect("the file can be written");
    }

    /// Starts a gateway with a `tidegate.toml`, which `text` returns for a port.
    pub(crate) fn with_toml(text: impl Fn(u16) -> String) -> Self {
        for _ in 0..5 {
            let port = free_port();
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("tidegate.toml");
            fs::write(&file, text(port)).expect("the folder can be written");
            let arguments = ["run", "-c", &file.display().to_string(), "--workers", "2"].map(str::to_owned);
            let mut gateway = Self(spawn(folder, port, &arguments));
            if gateway.accepts() {
                return gateway;
            }
        }
        panic!("no free port found");
    }

    /// Starts a process that takes over, with the same `tidegate.toml`, without waiting.
    pub(crate) fn take_over_with_toml(&self) -> Self {
        let file = self.file("tidegate.toml").display().to_string();
        let arguments = ["run", "-c", &file, "--workers", "2", "--take-over"].map(str::to_owned);
        Self(spawn(tempfile::tempdir().expect("a folder"), self.port(), &arguments))
    }

    /// The process.
    pub(crate) fn into_process(self) -> Process {
        self.0
    }

    /// The TCP port of the gateway.
    pub(crate) fn port(&self) -> u16 {
        self.address().port()
    }
}

/// Runs the binary with these arguments until it ends.
pub(crate) fn output(arguments: &[&str]) -> std::process::Output {
    Command::new(binary()).args(arguments).output().expect("the binary can be started")
}

pub(crate) fn binary() -> PathBuf {
    Gateway::binary(env!("CARGO_BIN_EXE_tidegate"))
}

/// Replaces `$PG` and `$DIR` in a text.
pub(crate) fn expand(text: &str, folder: &Path) -> String {
    let address = server().address();
    let pg = format!("host={} port={}", address.ip(), address.port());
    text.replace("$PG", &pg).replace("$DIR", &folder.display().to_string())
}

fn text_of(ini: &str, folder: &Path, port: u16) -> String {
    let (ini, folder) = (expand(ini, folder), folder.display());
    // A later line overrides an earlier one, so that the lines of the test apply.
    format!(
        "[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir = {folder}\nauth_type = any\n\
         admin_users = postgres\npool_mode = transaction\n{ini}"
    )
}

fn spawn(folder: tempfile::TempDir, port: u16, arguments: &[String]) -> Process {
    spawn_by(&[], folder, port, arguments)
}

fn spawn_by(starter: &[String], folder: tempfile::TempDir, port: u16, arguments: &[String]) -> Process {
    let mut command = match starter {
        [] => Command::new(binary()),
        [program, arguments_of_starter @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments_of_starter).arg(binary());
            command
        }
    };
    // Two threads on every machine, so that every test covers the paths between threads.
    if !arguments.iter().any(|argument| argument == "run" || argument == "--workers") {
        command.args(["--workers", "2"]);
    }
    command.args(arguments).current_dir(folder.path());
    Process::spawn(command, (Ipv4Addr::LOCALHOST, port).into(), folder)
}
