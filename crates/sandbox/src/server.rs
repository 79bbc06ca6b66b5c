//! The running server: what a test asks it, and how it is stopped, killed, suspended and brought back.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::account::Account;
use crate::builder::write;
use crate::client::{Client, Row};
use crate::guard::{ADOPTED, Guard};
use crate::port::free_port;
use crate::process::{POLL, Process, send};
use crate::{Binaries, Builder, Error};

/// A machine under load may need a while for recovery after [`Postgres::kill9`].
const START_LIMIT: Duration = Duration::from_secs(60);
/// Whoever waits for sessions to leave may wait longer than one who ends them.
const CLOSE_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Another process may take the port between the look and the bind.
const PORT_TRIES: u32 = 5;

/// How a server ends; the words are those of `pg_ctl stop -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Lets nobody in any more, and ends when the last session has left.
    Smart,
    /// Ends all sessions, with what they do.
    Fast,
    /// As a crash, but told.
    Immediate,
}

/// A Postgres of one's own. Dropping it ends the server and removes its folder.
#[derive(Debug)]
#[must_use = "dropping it ends the server"]
pub struct Postgres {
    // Declared in the order of the clean-up: the guard goes home first, the folder is removed last.
    guard: Option<Guard>,
    process: Option<Process>,
    binaries: Binaries,
    account: Option<Account>,
    port: u16,
    home: TempDir,
}

impl Postgres {
    /// Describes a server before it is made.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn launch(
        home: TempDir,
        port: Option<u16>,
        binaries: Binaries,
        account: Option<Account>,
    ) -> Result<Self, Error> {
        let guard = Some(Guard::watch(home.path())?);
        let mut postgres = Self { guard, process: None, binaries, account, port: 0, home };
        for attempt in 1.. {
            postgres.port = port.map_or_else(free_port, Ok)?;
            write(&postgres.data_dir().join("port.conf"), &format!("port = {}\n", postgres.port), account)?;
            match postgres.start() {
                Err(Error::Start { log, .. }) if attempt < PORT_TRIES && log.contains("already in use") => {}
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

    /// A URL for the superuser over TCP: `postgres://postgres@127.0.0.1:PORT/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres", "postgres")
    }

    /// A URL for another user and database over TCP.
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

    /// The programs it runs from.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Process id of the postmaster; 0 while it is not running.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// The server's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs `sql` as the superuser in the database `postgres`, in a session of its own; returns the rows as text.
    ///
    /// # Errors
    /// [`Error::Query`] when the server refuses the statement, [`Error::Io`] when it cannot be reached.
    pub fn simple_query(&self, sql: &str) -> Result<Vec<Row>, Error> {
        self.simple_query_in("postgres", sql)
    }

    /// As [`Self::simple_query`], in another database.
    ///
    /// # Errors
    /// As [`Self::simple_query`].
    pub fn simple_query_in(&self, database: &str, sql: &str) -> Result<Vec<Row>, Error> {
        Client::connect(&self.socket_path(), database)?.query(sql)
    }

    /// Creates a role that may log in, or sets the password of one that exists.
    ///
    /// # Errors
    /// As [`Self::simple_query`].
    pub fn ensure_role(&self, role: &str, password: &str) -> Result<(), Error> {
        let exists = self.simple_query(&format!("SELECT 1 FROM pg_roles WHERE rolname = {}", literal(role)))?;
        let verb = if exists.is_empty() { "CREATE" } else { "ALTER" };
        self.simple_query(&format!("{verb} ROLE {} LOGIN PASSWORD {}", identifier(role), literal(password)))?;
        Ok(())
    }

    /// Creates a database of that owner unless it exists.
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

    /// Ends the server at once but in order (SIGINT: open sessions are ended) and removes its folder.
    ///
    /// # Errors
    /// [`Error::Stop`] when it does not end.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end(Signal::INT)
    }

    /// Ends the server in order and starts it again on the same port and data. Also after [`Self::kill9`].
    ///
    /// # Errors
    /// [`Error::Stop`] or [`Error::Start`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.end(Signal::INT)?;
        self.start()
    }

    /// Begins to end the server and does not wait: [`Self::wait_closed`] does.
    pub fn close(&self, mode: Shutdown) {
        if let Some(process) = &self.process {
            process.signal(match mode {
                Shutdown::Smart => Signal::TERM,
                Shutdown::Fast => Signal::INT,
                Shutdown::Immediate => Signal::QUIT,
            });
        }
    }

    /// Waits for the end of a server that was told to. [`Self::restart`] brings it back.
    ///
    /// # Errors
    /// [`Error::Stop`] when it does not end.
    pub fn wait_closed(&mut self) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        if process.wait(CLOSE_LIMIT) { Ok(()) } else { Err(Error::Stop { pid: process.pid() }) }
    }

    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// Kills the postmaster and all sessions, as a crash would. [`Self::restart`] brings it back.
    ///
    /// # Errors
    /// [`Error::Stop`] when it does not end.
    pub fn kill9(&mut self) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process.signal_all(Signal::KILL);
        ended(&mut process)
    }

    /// Stops the postmaster and every session where they are (SIGSTOP): connections stay open, nothing answers.
    pub fn suspend(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Lets them go on (SIGCONT).
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Kills one session by the process id that the server reported for it. The postmaster then ends all others and
    /// recovers; `pg_terminate_backend` is the gentle way.
    pub fn kill9_session(&self, pid: i32) {
        send(pid, Signal::KILL);
    }

    /// Lets a process that was started for this server, and has a file in [`Self::socket_dir`] in its command line, be
    /// killed when the owner of the sandbox dies without a word. Its orderly end stays the caller's.
    ///
    /// # Errors
    /// [`Error::Io`] when the note for the guard cannot be written.
    pub fn adopt(&self, pid: u32) -> Result<(), Error> {
        let path = self.home.path().join(ADOPTED);
        let file = fs::File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{pid}")).map_err(Error::path("write", &path))
    }

    /// Rereads `postgresql.conf` and `pg_hba.conf` (SIGHUP).
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
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let written = self.log().len();
            let program = self.binaries.program("postgres");
            let process = Process::start(&program, &self.data_dir(), &self.log_path(), self.account)?;
            let started = self.wait_until_ready(process, written, deadline);
            match started {
                // Sessions of a killed postmaster take a moment to notice; the next one refuses to start until then.
                Err(Error::Start { log, .. }) if still_in_use(&log) && Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                other => return other,
            }
        }
    }

    fn wait_until_ready(&mut self, mut process: Process, log_from: usize, deadline: Instant) -> Result<(), Error> {
        loop {
            if Client::connect(&self.socket_path(), "postgres").is_ok() {
                self.process = Some(process);
                return Ok(());
            }
            let ended = process.has_ended();
            if ended || Instant::now() >= deadline {
                process.signal_all(Signal::KILL);
                let reason = if ended { "it ended" } else { "no answer in time" }.to_owned();
                return Err(Error::Start { reason, log: self.log().split_off(log_from) });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Asks with `signal`, then insists.
    fn end(&mut self, signal: Signal) -> Result<(), Error> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process.signal_all(Signal::CONT);
        process.signal(signal);
        if process.wait(STOP_LIMIT) {
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
        // SIGQUIT: sessions end without a word, no checkpoint is written; nothing here is worth one.
        let _ = self.end(Signal::QUIT);
        self.guard = None;
    }
}

fn ended(process: &mut Process) -> Result<(), Error> {
    if process.wait(STOP_LIMIT) { Ok(()) } else { Err(Error::Stop { pid: process.pid() }) }
}

/// Of shared memory after a crash; the words are the server's own.
fn still_in_use(log: &str) -> bool {
    log.contains("pre-existing shared memory block") && log.contains("is still in use")
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn identifier(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
