//! The poolers of `bench tails`, each with a certificate, so that clients may use TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bench::subject::{Options, Subject, SubjectRole, Testbed, USER, config};
use crate::gateway::{BuildProfile, GatewayConfig, RunningProgram, build, free_port};
use crate::machine::{allows_io_uring, version_of};
use crate::tests::Io;

/// Paths of the peers, and settings of the pools.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PoolerArgs {
    /// A PgBouncer instead of the installed one
    #[arg(long, value_name = "PATH")]
    pgbouncer: Option<PathBuf>,
    /// An Odyssey
    #[arg(long, value_name = "PATH")]
    odyssey: Option<PathBuf>,
    /// A pg_doorman
    #[arg(long, value_name = "PATH")]
    pg_doorman: Option<PathBuf>,
    /// A Tidegate instead of a new `dist` build
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// Server connections per pool
    #[arg(long, default_value_t = 40)]
    pub(super) pool_size: u32,
    /// Major version of Postgres; Debian's build of it is used if installed
    #[arg(long, default_value_t = 15)]
    postgres: u8,
}

/// Paths of certificate and key.
struct Identity {
    cert: PathBuf,
    key: PathBuf,
}

/// Starts Postgres and the poolers. Missing ones are noted.
pub(super) fn start(arguments: &PoolerArgs) -> Result<Testbed> {
    let options = Options {
        pgbouncer: arguments.pgbouncer.clone(),
        tidegate: arguments.tidegate.clone(),
        only: Vec::new(),
        pool_size: arguments.pool_size,
        postgres: arguments.postgres,
    };
    let mut testbed = Testbed::empty(&options)?;
    let identity = write_identity(testbed.dir.path())?;
    testbed.add_pgbouncer_with(&options, Some((&identity.cert, &identity.key)))?;
    add_odyssey(&mut testbed, arguments, &identity)?;
    add_pg_doorman(&mut testbed, arguments, &identity)?;
    add_tidegate(&mut testbed, arguments, &identity)?;
    testbed.register_processes()?;
    ensure!(!testbed.subjects.is_empty(), "no pooler could be started");
    Ok(testbed)
}

fn write_identity(dir: &Path) -> Result<Identity> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).context("make a certificate")?;
    let identity = Identity { cert: dir.join("tails.crt"), key: dir.join("tails.key") };
    fs::write(&identity.cert, made.cert.pem()).context("write the certificate")?;
    // Readable by the user under which PgBouncer runs. It is the key of this run only.
    fs::write(&identity.key, made.signing_key.serialize_pem()).context("write the key")?;
    Ok(identity)
}

fn add_tidegate(testbed: &mut Testbed, arguments: &PoolerArgs, identity: &Identity) -> Result<()> {
    let binary = arguments.tidegate.clone().map_or_else(|| build(BuildProfile::Dist), Ok)?;
    let io = if allows_io_uring() { Io::Uring } else { Io::Epoll };
    let tls = Some((identity.cert.as_path(), identity.key.as_path()));
    let config = GatewayConfig { tls, ..config(&testbed.postgres, arguments.pool_size, io) };
    let process = RunningProgram::gateway(&binary, testbed.dir.path(), "tidegate", &config)?;
    testbed.notes.push(format!("tidegate: {}, io = {}", version_of(&binary, "--version"), io.name()));
    testbed.subjects.push(Subject::pooler("tidegate", SubjectRole::Tidegate(io), process));
    Ok(())
}

fn add_odyssey(testbed: &mut Testbed, arguments: &PoolerArgs, identity: &Identity) -> Result<()> {
    let Some(program) = &arguments.odyssey else {
        testbed.missing("odyssey", "name one with --odyssey");
        return Ok(());
    };
    let port = free_port()?;
    let config = odyssey_config(port, testbed.postgres.port(), arguments.pool_size, identity);
    let file = testbed.dir.path().join("odyssey.conf");
    fs::write(&file, config).context("write the configuration of Odyssey")?;
    let process = RunningProgram::start(Command::new(program).arg(&file), testbed.dir.path(), "odyssey", port)?;
    testbed.notes.push(format!("odyssey: {}", version_of(program, "--version")));
    testbed.subjects.push(Subject::pooler("odyssey", SubjectRole::Peer, process));
    Ok(())
}

fn odyssey_config(port: u16, postgres: u16, pool_size: u32, identity: &Identity) -> String {
    let (cert, key) = (identity.cert.display(), identity.key.display());
    format!(
        "daemonize no\nlog_to_stdout yes\nlog_session no\nlog_query no\nlog_stats no\nlog_debug no\n\
         log_format \"%p %t %l [%i %s] (%c) %m\\n\"\nworkers 2\nresolvers 1\nnodelay yes\nclient_max 100000\n\
         listen {{\n  host \"127.0.0.1\"\n  port {port}\n  backlog 1024\n  tls \"allow\"\n\
         \x20 tls_cert_file \"{cert}\"\n  tls_key_file \"{key}\"\n}}\n\
         storage \"postgres\" {{\n  type \"remote\"\n  host \"127.0.0.1\"\n  port {postgres}\n  tls \"disable\"\n}}\n\
         database \"{USER}\" {{\n  user \"{USER}\" {{\n    authentication \"none\"\n    storage \"postgres\"\n\
         \x20   storage_user \"{USER}\"\n    storage_password \"{USER}\"\n    pool \"transaction\"\n\
         \x20   pool_size {pool_size}\n    pool_timeout 0\n    pool_discard no\n\
         \x20   pool_reserve_prepared_statement yes\n    client_fwd_error yes\n  }}\n}}\n"
    )
}

fn add_pg_doorman(testbed: &mut Testbed, arguments: &PoolerArgs, identity: &Identity) -> Result<()> {
    let Some(program) = &arguments.pg_doorman else {
        testbed.missing("pg_doorman", "name one with --pg-doorman");
        return Ok(());
    };
    let port = free_port()?;
    let config = pg_doorman_config(port, testbed.postgres.port(), arguments.pool_size, identity);
    let file = testbed.dir.path().join("pg_doorman.toml");
    fs::write(&file, config).context("write the configuration of pg_doorman")?;
    let process = RunningProgram::start(Command::new(program).arg(&file), testbed.dir.path(), "pg_doorman", port)?;
    testbed.notes.push(format!("pg_doorman: {}", version_of(program, "--version")));
    testbed.subjects.push(Subject::pooler("pg_doorman", SubjectRole::Peer, process));
    Ok(())
}

fn pg_doorman_config(port: u16, postgres: u16, pool_size: u32, identity: &Identity) -> String {
    // MD5 of the password `bench` and the user `bench`.
    const PASSWORD: &str = "md58cd23f098e139362116d611b32b971a9";
    let (cert, key) = (identity.cert.display(), identity.key.display());
    format!(
        "[general]\nhost = \"127.0.0.1\"\nport = {port}\nworker_threads = 2\nmax_connections = 100000\n\
         admin_username = \"admin\"\nadmin_password = \"admin\"\ntls_certificate = \"{cert}\"\n\
         tls_private_key = \"{key}\"\ntls_mode = \"allow\"\n\
         pg_hba = {{ content = \"host all all 127.0.0.1/32 trust\" }}\n\n\
         [pools.{USER}]\nserver_host = \"127.0.0.1\"\nserver_port = {postgres}\npool_mode = \"transaction\"\n\n\
         [[pools.{USER}.users]]\nusername = \"{USER}\"\npassword = \"{PASSWORD}\"\npool_size = {pool_size}\n\
         server_username = \"{USER}\"\nserver_password = \"{USER}\"\n"
    )
}
