//! A running server: queries, shutdown, kill, suspend, restart.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::account::Account;
use crate::client::{Client, TextRow};
use crate::data_dir::write;
use crate::port::free_port;
use crate::process::{POLL, ServerProcess, send};
use crate::watchdog::{REGISTERED_PROCESSES, Watchdog};
use crate::{Binaries, Error, PostgresBuilder};

/// Recovery after [`Postgres::kill9`] may take some time on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A smart shutdown waits for sessions, which takes longer than ending them.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Another process may bind the port after it was found free.
const PORT_ATTEMPTS_MAX: u32 = 5;

/// Shutdown modes, as of `pg_ctl stop -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Accepts no new sessions, and exits after the last session has ended.
    Smart,
    /// Ends all sessions and rolls back their transactions.
    Fast,
    /// Exits without a clean shutdown; the next start runs recovery.
    Immediate,
}

/// A private Postgres server. Dropping it stops the server and removes its folder.
#[derive(Debug)]
#[must_use = "dropping it ends the server"]
pub struct Postgres {
    // Drop order: the watchdog is dismissed first, the folder is removed last.
    watchdog: Option<Watchdog>,
    process: Option<ServerProcess>,
    binaries: Binaries,
    account: Option<Account>,
    port: u16,
    home: TempDir,
}

impl Postgres {
    /// Configures a server.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    pub(crate) fn launch(
        home: TempDir,
        port: Option<u16>,
        binaries: Binaries,
        account: Option<Account>,
    ) -> Result<Self, Error> {
        let watchdog = Some(Watchdog::watch(home.path())?);
        let mut postgres = Self { watchdog, process: None, binaries, account, port: 0, home };
        for attempt in 1.. {
            postgres.port = port.map_or_else(free_port, Ok)?;
            write(&postgres.data_dir().join("port.conf"), &format!("port = {}\n", postgres.port), account)?;
            match postgres.start() {
                Err(Error::Start { log, .. }) if attempt < PORT_ATTEMPTS_MAX && log.contains("already in use") => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        Ok(postgres)
    }

    /// The TCP port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of the superuser over TCP: `postgres://postgres@127.0.0.1:PORT/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres", "postgres")
    }

    /// URL of another user and database over TCP.
    #[must_use]
    pub fn url_for(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// The folder of the unix socket, `.s.PGSQL.<port>`.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.home.path()
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// The programs of this server.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Process ID of the postmaster; 0 while it is not running.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, ServerProcess::pid)
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs `sql` as the superuser in the database `postgres`, in a new session. Returns the rows as text.
    ///
    /// # Errors
    /// [`Error::Query`] if the server reports an error, [`Error::Io`] if it cannot be reached.
    pub fn simple_query(&self, sql: &str) -> Result<Vec<TextRow>, Error> {
        self.simple_query_in("postgres", sql)
    }

    /// Like [`Self::simple_query`], in another database.
    ///
    /// # Errors
    /// As [`Self::simple_query`].
    pub fn simple_query_in(&self, database: &str, sql: &str) -> Result<Vec<TextRow>, Error> {
        Client::connect(&self.socket_path(), database)?.query(sql)
    }

    /// Creates a role with login, or sets the password of an existing one.
    ///
    /// # Errors
    /// As [`Self::simple_query`].
    pub fn ensure_role(&self, role: &str, password: &str) -> Result<(), Error> {
        let exists = self.simple_query(&format!("SELECT 1 FROM pg_roles WHERE rolname = {}", literal(role)))?;
        let verb = if exists.is_empty() { "CREATE" } else { "ALTER" };
        self.simple_query(&format!("{verb} ROLE {} LOGIN PASSWORD {}", identifier(role), literal(password)))?;
        Ok(())
    }

    /// Creates a database with this owner, unless it exists.
    ///
    /// # Errors
    /// As [`Self::simple_query`].
    pub fn ensure_database(&self, database: &str, owner: &str) -> Result<(), Error> {
        let exists = self.simple_query(&format!("SELECT 1 FROM pg_database WHERE datname = {}", literal(database)))?;
        if exists.is_empty() {
            self.simple_query(&format!("CREATE DATABASE {} OWNER {}", identifier(database), identifier(owner)))?;
        }
        Ok(())
    }

    /// Stops the server with a fast shutdown and removes its folder.
    ///
    /// # Errors
    /// [`Error::Stop`] if it does not exit.
    pub fn stop(mut self) -> Result<(), Error> {
        self.stop_process(Signal::INT)
    }

    /// Restarts the server on the same port and data; also after [`Self::kill9`].
    ///
    /// # Errors
    /// [`Error::Stop`] or [`Error::Start`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop_process(Signal::INT)?;
        self.start()
    }

    /// Starts a shutdown without waiting for it: [`Self::wait_for_shutdown`] waits.
    pub fn begin_shutdown(&self, mode: ShutdownMode) {
        if let Some(process) = &self.process {
            process.signal(match mode {
                ShutdownMode::Smart => Signal::TERM,
                ShutdownMode::Fast => Signal::INT,
                ShutdownMode::Immediate => Signal::QUIT,
            });
        }
    }

    /// Waits until the server has exited after [`Self::begin_shutdown`]. [`Self::restart`] starts it again.
    ///
    /// # Errors
    /// [`Error::Stop`] if it does not exit.
    pub fn wait_for_shutdown(&mut self) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        if process.wait(SHUTDOWN_TIMEOUT) { Ok(()) } else { Err(Error::Stop { pid: process.pid() }) }
    }

    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// Kills the postmaster and all sessions (SIGKILL). [`Self::restart`] starts it again.
    ///
    /// # Errors
    /// [`Error::Stop`] if it does not exit.
    pub fn kill9(&mut self) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process.signal_all(Signal::KILL);
        ended(&mut process)
    }

    /// Suspends the postmaster and every session (SIGSTOP): connections stay open without responses.
    pub fn suspend(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Resumes suspended processes (SIGCONT).
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Kills a session by its process ID (SIGKILL). The postmaster then terminates all others and runs recovery;
    /// `pg_terminate_backend` does not.
    pub fn kill9_session(&self, pid: i32) {
        send(pid, Signal::KILL);
    }

    /// Registers a process to be killed if the owner of the sandbox is killed. Its command line must contain
    /// [`Self::socket_dir`]. An orderly stop remains the task of the caller.
    ///
    /// # Errors
    /// [`Error::Io`] if the file of the watchdog cannot be written.
    pub fn register_process(&self, pid: u32) -> Result<(), Error> {
        let path = self.home.path().join(REGISTERED_PROCESSES);
        let file = fs::File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{pid}")).map_err(Error::path("write", &path))
    }

    /// Reloads `postgresql.conf` and `pg_hba.conf` (SIGHUP).
    pub fn reload(&self) {
        if let Some(process) = &self.process {
            process.signal(Signal::HUP);
        }
    }

    fn signal_all(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal_all(signal);
        }
    }

    fn start(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let written = self.log().len();
            let program = self.binaries.program("postgres");
            let process = ServerProcess::start(&program, &self.data_dir(), &self.log_path(), self.account)?;
            let started = self.wait_until_ready(process, written, deadline);
            match started {
                // Sessions of a killed postmaster need a moment to exit; the next postmaster refuses to start until
                // then.
                Err(Error::Start { log, .. }) if still_in_use(&log) && Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                other => return other,
            }
        }
    }

    fn wait_until_ready(
        &mut self,
        mut process: ServerProcess,
        log_from: usize,
        deadline: Instant,
    ) -> Result<(), Error> {
        loop {
            if Client::connect(&self.socket_path(), "postgres").is_ok() {
                self.process = Some(process);
                return Ok(());
            }
            let ended = process.has_ended();
            if ended || Instant::now() >= deadline {
                process.signal_all(Signal::KILL);
                let reason = if ended { "it exited" } else { "timeout" }.to_owned();
                return Err(Error::Start { reason, log: self.log().split_off(log_from) });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends `signal`, and SIGKILL after a timeout.
    fn stop_process(&mut self, signal: Signal) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process.signal_all(Signal::CONT);
        process.signal(signal);
        if process.wait(STOP_TIMEOUT) {
            return Ok(());
        }
        process.signal_all(Signal::KILL);
        ended(&mut process)
    }

    fn socket_path(&self) -> PathBuf {
        self.home.path().join(format!(".s.PGSQL.{}", self.port))
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGQUIT: sessions end immediately and no checkpoint is written, because the data are temporary.
        let _ = self.stop_process(Signal::QUIT);
        self.watchdog = None;
    }
}

fn ended(process: &mut ServerProcess) -> Result<(), Error> {
    if process.wait(STOP_TIMEOUT) { Ok(()) } else { Err(Error::Stop { pid: process.pid() }) }
}

/// The server reports shared memory of a crashed predecessor.
fn still_in_use(log: &str) -> bool {
    log.contains("pre-existing shared memory block") && log.contains("is still in use")
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn identifier(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
