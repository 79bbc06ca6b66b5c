//! The programs that are measured: each stands before the same Postgres on a port of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tidegate_sandbox::{Binaries, Major, Postgres};

use crate::gateway::{Config, Profile, Running, build, free_port};
use crate::machine::{allows_io_uring, find_program, version_of};
use crate::repository::output_of;
use crate::tests::Io;

/// User, database and password of every bench.
pub(crate) const USER: &str = "bench";

/// Where the peers are, and what the pools are like.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A PgBouncer instead of the one on the path (see bench/README.md for a newer one)
    #[arg(long, value_name = "PATH")]
    pgbouncer: Option<PathBuf>,
    /// A Tidegate instead of a fresh `dist` build
    #[arg(long, value_name = "PATH")]
    pub(crate) tidegate: Option<PathBuf>,
    /// Only these subjects (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Server connections per pool
    #[arg(long, default_value_t = 20)]
    pub(crate) pool_size: u32,
    /// Major version of the Postgres behind; Debian's of that version is taken when it is installed
    #[arg(long, default_value_t = 15)]
    postgres: u8,
}

impl Options {
    /// The same stage with Postgres alone.
    pub(crate) fn without_proxies(mut self) -> Self {
        self.only = vec!["direct".to_owned()];
        self
    }
}

/// What a subject is to the bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// No proxy.
    Direct,
    /// PgBouncer: what the ratios are against.
    Measure,
    Peer,
    /// Tidegate in an I/O mode.
    Ours(Io),
}

#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) port: u16,
    /// What clients connect to, in equal shares.
    pub(crate) databases: &'static [&'static str],
    /// It can keep named prepared statements of its clients in transaction mode.
    pub(crate) prepares: bool,
    process: Option<Running>,
}

impl Subject {
    fn new(name: &'static str, role: Role, port: u16, prepares: bool, process: Option<Running>) -> Self {
        Self { name, role, port, databases: &[USER], prepares, process }
    }

    /// A gateway that was started elsewhere.
    pub(crate) fn gateway(name: &'static str, databases: &'static [&'static str], process: Running) -> Self {
        let port = process.port;
        Self { databases, ..Self::new(name, Role::Ours(Io::Uring), port, true, Some(process)) }
    }

    /// The proxy's process; none when it is Postgres itself.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Running::pid)
    }
}

/// Postgres and everything before it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) subjects: Vec<Subject>,
    /// Versions, and who is missing and why.
    pub(crate) notes: Vec<String>,
    // Dropped after the subjects, the folder before the one it lies in.
    pub(crate) dir: tempfile::TempDir,
    pub(crate) postgres: Postgres,
}

impl Stage {
    /// Starts Postgres and every subject that is there.
    pub(crate) fn set(options: &Options) -> Result<Self> {
        let postgres = start_postgres(options.postgres)?;
        // Inside the sandbox: whose configuration lies there may be adopted by it.
        let dir = tempfile::tempdir_in(postgres.socket_dir()).context("create a folder")?;
        open_to_all(dir.path())?;
        let mut stage = Self { subjects: Vec::new(), notes: Vec::new(), postgres, dir };
        stage.note_postgres()?;
        let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
        for (name, add) in ALL {
            if wanted(name) {
                add(&mut stage, name, options)?;
            }
        }
        for pid in stage.subjects.iter().filter_map(Subject::pid) {
            stage.postgres.register_process(pid)?;
        }
        ensure!(!stage.subjects.is_empty(), "no subject is called {}", options.only.join(" or "));
        Ok(stage)
    }

    fn note_postgres(&mut self) -> Result<()> {
        let rows = self.postgres.simple_query("SHOW server_version")?;
        let version = rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
        self.notes.push(format!("postgres: {version}"));
        Ok(())
    }

    fn missing(&mut self, name: &str, why: &str) {
        self.notes.push(format!("{name}: MISSING, {why}"));
    }
}

type Add = fn(&mut Stage, &'static str, &Options) -> Result<()>;

const ALL: [(&str, Add); 5] = [
    ("direct", add_direct),
    ("pgbouncer", add_pgbouncer),
    ("haproxy", add_haproxy),
    ("tidegate", |stage, name, options| add_ours(stage, name, options, Io::Uring)),
    ("tidegate-epoll", |stage, name, options| add_ours(stage, name, options, Io::Epoll)),
];

fn add_direct(stage: &mut Stage, name: &'static str, _: &Options) -> Result<()> {
    let port = stage.postgres.port();
    stage.subjects.push(Subject::new(name, Role::Direct, port, true, None));
    Ok(())
}

fn add_pgbouncer(stage: &mut Stage, name: &'static str, options: &Options) -> Result<()> {
    let Some(program) = options.pgbouncer.clone().or_else(|| find_program("pgbouncer")) else {
        stage.missing(name, "install Debian's package pgbouncer, or name one with --pgbouncer");
        return Ok(());
    };
    let version = version_of(&program, "--version");
    let prepares = prepares_statements(&version);
    let lacks = if prepares { "" } else { "; no prepared statements in transaction mode before 1.21, so not measured" };
    stage.notes.push(format!("pgbouncer: {version}{lacks}"));
    let port = free_port()?;
    let config = write_pgbouncer(stage, port, options.pool_size, prepares)?;
    let mut command = Command::new(program);
    command.arg(config);
    if rustix::process::geteuid().is_root() {
        // It refuses to run as root.
        command.args(["--user", "nobody"]);
    }
    let process = Running::start(&mut command, stage.dir.path(), name, port)?;
    stage.subjects.push(Subject::new(name, Role::Measure, port, prepares, Some(process)));
    Ok(())
}

fn write_pgbouncer(stage: &Stage, port: u16, pool_size: u32, prepares: bool) -> Result<PathBuf> {
    let users = stage.dir.path().join("userlist.txt");
    fs::write(&users, format!("\"{USER}\" \"{USER}\"\n")).context("write the user list")?;
    let prepared = if prepares { "max_prepared_statements = 200\n" } else { "" };
    let config = format!(
        "[databases]\n{USER} = host=127.0.0.1 port={} dbname={USER}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = {}\nadmin_users = {USER}\n\
         pool_mode = transaction\ndefault_pool_size = {pool_size}\nmax_client_conn = 100000\n\
         log_connections = 0\nlog_disconnections = 0\n{prepared}",
        stage.postgres.port(),
        users.display(),
    );
    let file = stage.dir.path().join("pgbouncer.ini");
    fs::write(&file, config).context("write the configuration of PgBouncer")?;
    Ok(file)
}

/// `PgBouncer 1.21.0` was the first.
fn prepares_statements(version: &str) -> bool {
    let number = version.split_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(1), Some(21))
}

fn add_haproxy(stage: &mut Stage, name: &'static str, _: &Options) -> Result<()> {
    let Some(program) = find_program("haproxy") else {
        stage.missing(name, "install Debian's package haproxy");
        return Ok(());
    };
    stage.notes.push(format!("haproxy: {} (TCP, a server connection per client)", version_of(&program, "-v")));
    let port = free_port()?;
    let config = format!(
        "global\n  nbthread 2\n  maxconn 2000\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
         frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n\
         backend b\n  server pg 127.0.0.1:{}\n",
        stage.postgres.port(),
    );
    let file = stage.dir.path().join("haproxy.cfg");
    fs::write(&file, config).context("write the configuration of HAProxy")?;
    let process = Running::start(Command::new(program).arg("-db").arg("-f").arg(file), stage.dir.path(), name, port)?;
    stage.subjects.push(Subject::new(name, Role::Peer, port, true, Some(process)));
    Ok(())
}

fn add_ours(stage: &mut Stage, name: &'static str, options: &Options, io: Io) -> Result<()> {
    let binary = options.tidegate.clone().map_or_else(|| build(Profile::Dist), Ok)?;
    if io == Io::Uring && !allows_io_uring() {
        stage.missing(name, "this machine forbids io_uring; see tidegate-epoll");
        return Ok(());
    }
    let config = config(&stage.postgres, options.pool_size, io);
    let process = Running::gateway(&binary, stage.dir.path(), name, &config)?;
    stage.notes.push(format!("{name}: {}, io = {}", version_of(&binary, "--version"), io.name()));
    let port = process.port;
    stage.subjects.push(Subject::new(name, Role::Ours(io), port, true, Some(process)));
    Ok(())
}

/// A gateway as it is when little is configured.
pub(crate) fn config(postgres: &Postgres, pool_size: u32, io: Io) -> Config<'static> {
    Config {
        mode: "transaction",
        auth: "trust",
        io: Some(io),
        pool_size,
        postgres_port: postgres.port(),
        user: USER,
        database: USER,
        tls: None,
        journal: None,
    }
}

/// Debian's build when it is there: the peers' published figures were taken with it.
pub(crate) fn start_postgres(major: u8) -> Result<Postgres> {
    let major = major_or_newest(major)?;
    let postgres = Postgres::builder()
        .version(major)
        .setting("max_connections", "300")
        .setting("shared_buffers", "512MB")
        .setting("autovacuum", "off")
        .start()?;
    postgres.ensure_role(USER, USER)?;
    postgres.ensure_database(USER, USER)?;
    Ok(postgres)
}

/// That version if it is on this machine, else the newest.
pub(crate) fn major_or_newest(wanted: u8) -> Result<Major> {
    let wanted = Major(wanted);
    Ok(if Binaries::find(wanted)?.is_some() { wanted } else { Major(18) })
}

/// Fills the tables of pgbench.
pub(crate) fn fill(postgres: &Postgres, pgbench: &Path) -> Result<()> {
    let mut command = Command::new(pgbench);
    command.args(["-i", "-q", "-s", "10", "-h", "127.0.0.1", "-U", USER, "-p", &postgres.port().to_string(), USER]);
    output_of(&mut command)?;
    Ok(())
}

/// PgBouncer reads its files as another user.
fn open_to_all(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).context("open the folder of the bench")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbouncer_learnt_to_prepare_with_1_21() {
        assert!(!prepares_statements("PgBouncer 1.18.0"));
        assert!(prepares_statements("PgBouncer 1.21.0"));
        assert!(prepares_statements("PgBouncer 1.25.2"));
        assert!(!prepares_statements("unknown version"));
    }
}
