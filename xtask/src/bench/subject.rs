//! The measured programs: each listens on a port of its own in front of the same Postgres.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tidegate_sandbox::{Binaries, Major, Postgres};

use crate::gateway::{BuildProfile, GatewayConfig, RunningProgram, build, free_port};
use crate::machine::{allows_io_uring, find_program, version_of};
use crate::repository::output_of;
use crate::tests::Io;

/// User, database and password of every bench.
pub(crate) const USER: &str = "bench";

/// Paths of the peers, and settings of the pools.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A PgBouncer instead of the installed one (see bench/README.md for a newer one)
    #[arg(long, value_name = "PATH")]
    pub(crate) pgbouncer: Option<PathBuf>,
    /// A Tidegate binary instead of a new `dist` build
    #[arg(long, value_name = "PATH")]
    pub(crate) tidegate: Option<PathBuf>,
    /// Only these subjects (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Server connections per pool
    #[arg(long, default_value_t = 20)]
    pub(crate) pool_size: u32,
    /// Major version of Postgres; Debian's build of it is used if installed
    #[arg(long, default_value_t = 15)]
    pub(crate) postgres: u8,
}

impl Options {
    /// The same options with Postgres as the only subject.
    pub(crate) fn without_proxies(mut self) -> Self {
        self.only = vec!["direct".to_owned()];
        self
    }
}

/// The role of a subject in comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubjectRole {
    /// No proxy.
    Direct,
    /// PgBouncer: the baseline of the ratios.
    Baseline,
    Peer,
    /// Tidegate in an I/O mode.
    Tidegate(Io),
}

#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) role: SubjectRole,
    pub(crate) port: u16,
    /// Databases that clients connect to, in equal shares.
    pub(crate) databases: &'static [&'static str],
    /// Supports named prepared statements in transaction mode.
    pub(crate) prepares: bool,
    process: Option<RunningProgram>,
}

impl Subject {
    fn new(name: &'static str, role: SubjectRole, port: u16, prepares: bool, process: Option<RunningProgram>) -> Self {
        Self { name, role, port, databases: &[USER], prepares, process }
    }

    /// A gateway that was started by the caller.
    pub(crate) fn gateway(name: &'static str, databases: &'static [&'static str], process: RunningProgram) -> Self {
        let port = process.port;
        Self { databases, ..Self::new(name, SubjectRole::Tidegate(Io::Uring), port, true, Some(process)) }
    }

    /// A pooler that was started by the caller, and prepares statements in transaction mode.
    pub(crate) fn pooler(name: &'static str, role: SubjectRole, process: RunningProgram) -> Self {
        Self::new(name, role, process.port, true, Some(process))
    }

    /// Process ID of the proxy; `None` for Postgres itself.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(RunningProgram::pid)
    }
}

/// Postgres and all subjects.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) subjects: Vec<Subject>,
    /// Versions, and missing subjects with the reason.
    pub(crate) notes: Vec<String>,
    // Drop order: after the subjects, and before the sandbox folder that contains it.
    pub(crate) dir: tempfile::TempDir,
    pub(crate) postgres: Postgres,
}

impl Testbed {
    /// Starts Postgres without a subject.
    pub(crate) fn empty(options: &Options) -> Result<Self> {
        let postgres = start_postgres(options.postgres)?;
        // Inside the sandbox folder, so that its watchdog can find the gateway by its command line.
        let dir = tempfile::tempdir_in(postgres.socket_dir()).context("create a folder")?;
        open_to_all(dir.path())?;
        let mut stage = Self { subjects: Vec::new(), notes: Vec::new(), postgres, dir };
        stage.note_postgres()?;
        Ok(stage)
    }

    /// Starts Postgres and every available subject.
    pub(crate) fn set(options: &Options) -> Result<Self> {
        let mut stage = Self::empty(options)?;
        let selected = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
        for (name, add) in ALL {
            if selected(name) {
                add(&mut stage, name, options)?;
            }
        }
        stage.register_processes()?;
        ensure!(!stage.subjects.is_empty(), "unknown subject {}", options.only.join(" or "));
        Ok(stage)
    }

    /// Ends the subjects with this process, also if it is killed.
    pub(crate) fn register_processes(&self) -> Result<()> {
        for pid in self.subjects.iter().filter_map(Subject::pid) {
            self.postgres.register_process(pid)?;
        }
        Ok(())
    }

    /// Adds PgBouncer, with a certificate and its key if clients may use TLS.
    pub(crate) fn add_pgbouncer_with(&mut self, options: &Options, tls: Option<(&Path, &Path)>) -> Result<()> {
        start_pgbouncer(self, "pgbouncer", options, tls)
    }

    fn note_postgres(&mut self) -> Result<()> {
        let rows = self.postgres.simple_query("SHOW server_version")?;
        let version = rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
        self.notes.push(format!("postgres: {version}"));
        Ok(())
    }

    pub(crate) fn missing(&mut self, name: &str, why: &str) {
        self.notes.push(format!("{name}: MISSING, {why}"));
    }
}

type Add = fn(&mut Testbed, &'static str, &Options) -> Result<()>;

const ALL: [(&str, Add); 5] = [
    ("direct", add_direct),
    ("pgbouncer", add_pgbouncer),
    ("haproxy", add_haproxy),
    ("tidegate", |stage, name, options| add_ours(stage, name, options, Io::Uring)),
    ("tidegate-epoll", |stage, name, options| add_ours(stage, name, options, Io::Epoll)),
];

fn add_direct(stage: &mut Testbed, name: &'static str, _: &Options) -> Result<()> {
    let port = stage.postgres.port();
    stage.subjects.push(Subject::new(name, SubjectRole::Direct, port, true, None));
    Ok(())
}

fn add_pgbouncer(stage: &mut Testbed, name: &'static str, options: &Options) -> Result<()> {
    start_pgbouncer(stage, name, options, None)
}

fn start_pgbouncer(
    stage: &mut Testbed,
    name: &'static str,
    options: &Options,
    tls: Option<(&Path, &Path)>,
) -> Result<()> {
    let Some(program) = options.pgbouncer.clone().or_else(|| find_program("pgbouncer")) else {
        stage.missing(name, "install Debian's package pgbouncer, or name one with --pgbouncer");
        return Ok(());
    };
    let version = version_of(&program, "--version");
    // `tidegate-pgbouncer` installs Tidegate under PgBouncer's name.
    ensure!(!version.contains("Tidegate"), "{} is Tidegate; name a PgBouncer with --pgbouncer", program.display());
    let prepares = prepares_statements(&version);
    let lacks = if prepares { "" } else { "; no prepared statements in transaction mode before 1.21, so not measured" };
    stage.notes.push(format!("pgbouncer: {version}{lacks}"));
    let port = free_port()?;
    let config = write_pgbouncer(stage, port, options.pool_size, prepares, tls)?;
    let mut command = Command::new(program);
    command.arg(config);
    if rustix::process::geteuid().is_root() {
        // PgBouncer refuses to run as root.
        command.args(["--user", "nobody"]);
    }
    let process = RunningProgram::start(&mut command, stage.dir.path(), name, port)?;
    stage.subjects.push(Subject::new(name, SubjectRole::Baseline, port, prepares, Some(process)));
    Ok(())
}

fn write_pgbouncer(
    stage: &Testbed,
    port: u16,
    pool_size: u32,
    prepares: bool,
    tls: Option<(&Path, &Path)>,
) -> Result<PathBuf> {
    let users = stage.dir.path().join("userlist.txt");
    fs::write(&users, format!("\"{USER}\" \"{USER}\"\n")).context("write the user list")?;
    let prepared = if prepares { "max_prepared_statements = 200\n" } else { "" };
    let tls = tls.map_or(String::new(), |(cert, key)| {
        let (cert, key) = (cert.display(), key.display());
        format!("client_tls_sslmode = allow\nclient_tls_cert_file = {cert}\nclient_tls_key_file = {key}\n")
    });
    let config = format!(
        "[databases]\n{USER} = host=127.0.0.1 port={} dbname={USER}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = {}\nadmin_users = {USER}\n\
         pool_mode = transaction\ndefault_pool_size = {pool_size}\nmax_client_conn = 100000\n\
         log_connections = 0\nlog_disconnections = 0\n{prepared}{tls}",
        stage.postgres.port(),
        users.display(),
    );
    let file = stage.dir.path().join("pgbouncer.ini");
    fs::write(&file, config).context("write the configuration of PgBouncer")?;
    Ok(file)
}

/// Since `PgBouncer 1.21.0`.
fn prepares_statements(version: &str) -> bool {
    let number = version.split_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(1), Some(21))
}

fn add_haproxy(stage: &mut Testbed, name: &'static str, _: &Options) -> Result<()> {
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
    let process =
        RunningProgram::start(Command::new(program).arg("-db").arg("-f").arg(file), stage.dir.path(), name, port)?;
    stage.subjects.push(Subject::new(name, SubjectRole::Peer, port, true, Some(process)));
    Ok(())
}

fn add_ours(stage: &mut Testbed, name: &'static str, options: &Options, io: Io) -> Result<()> {
    let binary = options.tidegate.clone().map_or_else(|| build(BuildProfile::Dist), Ok)?;
    if io == Io::Uring && !allows_io_uring() {
        stage.missing(name, "this machine forbids io_uring; see tidegate-epoll");
        return Ok(());
    }
    let config = config(&stage.postgres, options.pool_size, io);
    let process = RunningProgram::gateway(&binary, stage.dir.path(), name, &config)?;
    stage.notes.push(format!("{name}: {}, io = {}", version_of(&binary, "--version"), io.name()));
    let port = process.port;
    stage.subjects.push(Subject::new(name, SubjectRole::Tidegate(io), port, true, Some(process)));
    Ok(())
}

/// A gateway with defaults for most settings.
pub(crate) fn config(postgres: &Postgres, pool_size: u32, io: Io) -> GatewayConfig<'static> {
    GatewayConfig {
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

/// Starts Debian's build if installed, because the published figures of the peers use it.
pub(crate) fn start_postgres(major: u8) -> Result<Postgres> {
    let major = installed_or_newest(major)?;
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

/// This version if it is installed, otherwise the newest.
pub(crate) fn installed_or_newest(major: u8) -> Result<Major> {
    let major = Major(major);
    Ok(if Binaries::find(major)?.is_some() { major } else { Major(18) })
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
    fn pgbouncer_prepares_since_1_21() {
        assert!(!prepares_statements("PgBouncer 1.18.0"));
        assert!(prepares_statements("PgBouncer 1.21.0"));
        assert!(prepares_statements("PgBouncer 1.25.2"));
        assert!(!prepares_statements("unknown version"));
    }
}
