//! Postgres and gateway of the demo.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process};
use tidegate_sandbox::{Postgres, StartProgress};

use super::protocol::ROWS;

/// User and database of the demo.
pub(super) const USER: &str = "demo";

/// Server connections of the gateway.
pub(super) const GATEWAY_POOL: u32 = 20;

/// Preferred port of the gateway; the next free one if it is in use.
const PORT: u16 = 6432;
/// Preferred port of live queries.
const SHAPES_PORT: u16 = 3000;

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Running Postgres and gateway.
pub(super) struct DemoEnvironment {
    // Dropped in this order: the gateway before its server.
    gateway: DemoGateway,
    pub(super) postgres: Postgres,
}

impl DemoEnvironment {
    /// Starts both; `servers` is the number of connections that Postgres has to support. `with_shapes` also serves live queries,
    /// for which Postgres writes more WAL.
    pub(super) fn start(servers: u32, with_shapes: bool) -> Result<Self> {
        let postgres = start_postgres(servers, if with_shapes { "logical" } else { "replica" })?;
        let gateway = DemoGateway::start(&postgres, with_shapes)?;
        Ok(Self { gateway, postgres })
    }

    /// Stops both, the gateway first.
    pub(super) fn stop(self) -> Result<()> {
        self.gateway.stop()?;
        self.postgres.stop().context("stop Postgres")
    }

    /// The port of the gateway.
    pub(super) fn port(&self) -> u16 {
        self.gateway.port
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{USER}", self.gateway.port)
    }

    pub(super) fn console_url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/tidegate", self.gateway.port)
    }

    /// The URL of three rows as a live query, if there are any.
    pub(super) fn shape_url(&self) -> Option<String> {
        let port = self.gateway.shapes_port?;
        Some(format!("http://127.0.0.1:{port}/v1/shape?table=account&where=id%3C=3&offset=-1"))
    }

    pub(super) fn version(&self) -> Result<String> {
        self.query_value("SHOW server_version")
    }

    /// The current number of connections of clients or of the gateway.
    pub(super) fn server_connections(&self) -> Result<u64> {
        let count = self.query_value(&format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}'"))?;
        count.parse().context("parse a count")
    }

    fn query_value(&self, sql: &str) -> Result<String> {
        let rows = self.postgres.simple_query(sql).context("query Postgres")?;
        rows.into_iter().next().and_then(|row| row.into_iter().next()?).context("a result of one value")
    }
}

/// Starts a Postgres with the table of the demo.
pub(super) fn start_postgres(servers: u32, wal_level: &str) -> Result<Postgres> {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    let postgres = Postgres::builder()
        .any_version()
        // Room for the superuser, the gateway, manual connections, and processes that are about to exit.
        .setting("max_connections", &(2 * servers + 50).to_string())
        .setting("wal_level", wal_level)
        .start_with_progress(&mut |progress| bar.set_message(describe(&progress)))
        .context("start Postgres")?;
    bar.set_message("filling a table");
    postgres.ensure_role(USER, USER).context("create the role of the demo")?;
    postgres.ensure_database(USER, USER).context("create the database of the demo")?;
    let fill = format!(
        "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
         INSERT INTO account SELECT id, id * 7 FROM generate_series(1, {ROWS}) id;
         GRANT ALL ON account TO {USER};
         VACUUM ANALYZE account;"
    );
    for statement in fill.split_inclusive(';').filter(|statement| !statement.trim().is_empty()) {
        postgres.simple_query_in(USER, statement).context("fill the table of the demo")?;
    }
    bar.finish_and_clear();
    Ok(postgres)
}

fn describe(progress: &StartProgress) -> String {
    match progress {
        StartProgress::Downloading { major } => format!("downloading Postgres {major}, once for all demos"),
        StartProgress::Unpacking { version, bytes } => {
            format!("unpacking Postgres {version} ({} MB)", bytes / 1_000_000)
        }
        StartProgress::Initialising => "initialising a database cluster".to_owned(),
        StartProgress::Starting => "starting Postgres".to_owned(),
        _ => "preparing Postgres".to_owned(),
    }
}

/// This program, running as `tidegate run`.
struct DemoGateway {
    child: Child,
    port: u16,
    /// The port of live queries.
    shapes_port: Option<u16>,
    log: PathBuf,
}

impl DemoGateway {
    /// Configuration and log are in the folder of Postgres, which is removed even if this process is killed.
    fn start(postgres: &Postgres, with_shapes: bool) -> Result<Self> {
        let port = free_port(PORT)?;
        let shapes_port = with_shapes.then(|| free_port(SHAPES_PORT)).transpose()?;
        let config = postgres.socket_dir().join("tidegate.toml");
        let log = postgres.socket_dir().join("tidegate.log");
        let mut text = configuration(port, postgres.port());
        if let Some(port) = shapes_port {
            let (url, storage) = (postgres.url_for("postgres", USER), postgres.socket_dir().join("shapes"));
            let storage = storage.display();
            text += &format!(
                "\n[shapes]\ndatabase = \"{url}\"\naddresses = [\"127.0.0.1:{port}\"]\nstorage = \"{storage}\"\n"
            );
        }
        fs::write(&config, text).context("write a configuration")?;
        let out = File::create(&log).context("create a log")?;
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.arg("run").arg("-c").arg(config).stdin(Stdio::null());
        // Ctrl-C signals the whole process group, but the gateway has to stop after the clients.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdout(out.try_clone().context("share a log")?).stderr(out);
        let child = command.spawn().context("start the gateway")?;
        let mut gateway = Self { child, port, shapes_port, log };
        postgres.register_process(gateway.child.id()).context("guard the gateway")?;
        gateway.wait_until_listening()?;
        Ok(gateway)
    }

    fn wait_until_listening(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if self.child.try_wait().context("check the gateway")?.is_some() || Instant::now() > deadline {
                bail!("the gateway is not listening:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Sends SIGINT, which waits for transactions only, and waits for the end.
    fn stop(mut self) -> Result<()> {
        self.signal(Signal::INT);
        let deadline = Instant::now() + STOP_LIMIT;
        while self.child.try_wait().context("wait for the gateway")?.is_none() {
            ensure!(Instant::now() < deadline, "the gateway did not stop in time and is killed");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The process may be gone already; the following wait detects it.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for DemoGateway {
    fn drop(&mut self) {
        // Not reaped yet, so the process id is still valid.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn configuration(port: u16, postgres: u16) -> String {
    format!(
        "[listen]\naddresses = [\"127.0.0.1:{port}\"]\nmax_clients = 100000\n\n\
         [auth]\nmethod = \"trust\"\n\n\
         [pool]\nmode = \"transaction\"\nsize = {GATEWAY_POOL}\n\n\
         [databases.{USER}]\nhost = \"127.0.0.1\"\nport = {postgres}\nsslmode = \"disable\"\n\n\
         [users.{USER}]\npassword = \"{USER}\"\n\n\
         [admin]\nusers = [\"{USER}\"]\n\n\
         [log]\nconnections = false\n"
    )
}

/// The preferred port, or the next free one.
fn free_port(preferred: u16) -> Result<u16> {
    let mut ports = preferred..preferred + 100;
    let port = ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    let port = port.with_context(|| format!("find a free port from {preferred} on"))?;
    if port != preferred {
        println!("Port {preferred} is in use; the gateway listens on {port}");
    }
    Ok(port)
}
