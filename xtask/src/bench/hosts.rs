//! `bench hosts`: CPU cost of choosing among servers. The same binary runs against the same primary and two replicas in
//! several configurations: one host; three hosts, any of which may serve; three hosts, of which the primary serves;
//! three addresses of the primary, where only the choice is added; and three databases with a host each for a third of
//! the clients, which shows the cost of three servers without a choice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tidegate_sandbox::{Cluster, Major, Postgres};

use super::Pace;
use super::load;
use super::pairs::{AGAIN, PairedComparison, Times};
use super::report::{BenchReport, Metric, MetricTarget};
use super::subject::{Subject, USER, fill, installed_or_newest};
use crate::gateway::{BuildProfile, RunningProgram, build, free_port};
use crate::machine::{allows_io_uring, version_of};
use crate::tests::Io;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A Tidegate binary instead of a new `dist` build
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// Clients of each gateway
    #[arg(long, default_value_t = 32)]
    clients: u32,
    /// Total server connections; with three servers, a third for each
    #[arg(long, default_value_t = 21)]
    pool_size: u32,
    #[command(flatten)]
    times: Times,
    /// Major version of Postgres; Debian's build of it is used if installed
    #[arg(long, default_value_t = 15)]
    postgres: u8,
}

const ONE: &str = "1 host";
const ANY_ADDRESS: &str = "3 addresses of it, any";
const FIRST_ADDRESS: &str = "3 addresses of it, primary";
const ANY: &str = "3 hosts, any";
const PRIMARY: &str = "3 hosts, primary";
const APART: &str = "3 databases, a host each";

/// Clients form three groups in every configuration, as for three databases.
const TOGETHER: &[&str] = &[USER; 3];
const EACH: &[&str] = &["first", "second", "third"];

/// Every server listens on all of them.
const ADDRESSES: [&str; 3] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];

const PROTOCOLS: &[&str] = &["simple", "prepared"];
const RATIO: Metric = Metric::new("cpu per tx / 1 host", "");

/// Target for the cost of a choice.
const AT_MOST: f64 = 1.05;

pub(super) fn run(arguments: &Arguments, pace: Pace) -> Result<BenchReport> {
    let pgbench = load::pgbench()?;
    let cluster = start_cluster(installed_or_newest(arguments.postgres)?)?;
    fill(cluster.primary(), &pgbench)?;
    (1..3).try_for_each(|index| cluster.catch_up(index))?;
    let binary = arguments.tidegate.clone().map_or_else(|| build(BuildProfile::Dist), Ok)?;
    // Inside the sandbox folder, so that its watchdog can find the gateway by its command line.
    let dir = tempfile::tempdir_in(cluster.primary().socket_dir()).context("create a folder")?;
    let cases = cases(&cluster, arguments.pool_size);
    let start = || {
        let start_one = |&(name, databases, ref tables): &HostsCase| {
            let running = start_gateway(&binary, dir.path(), name, tables)?;
            cluster.primary().register_process(running.pid())?;
            Ok(Subject::gateway(name, databases, running))
        };
        cases.iter().map(start_one).collect()
    };
    let times = arguments.times.at(pace);
    let mut report = BenchReport::new("hosts");
    report.note(format!("tidegate: {}", version_of(&binary, "--version")));
    report.note(format!(
        "load: pgbench -S, scale 10, {} clients and {} server connections in all for each",
        arguments.clients, arguments.pool_size
    ));
    report.note(times.note());
    let target = |name| (![AGAIN, APART].contains(&name)).then_some(MetricTarget::AtMost(AT_MOST));
    let others: Vec<_> = cases.iter().skip(1).map(|&(name, ..)| (name, target(name))).collect();
    let comparison = PairedComparison { pgbench: &pgbench, times, clients: arguments.clients, ratio: RATIO };
    comparison.run(PROTOCOLS, &others, start, &mut report)?;
    Ok(report)
}

/// Name, databases that clients connect to, and database tables of the configuration.
type HostsCase = (&'static str, &'static [&'static str], String);

/// The first configuration is the baseline of all others.
fn cases(cluster: &Cluster, pool_size: u32) -> [HostsCase; 7] {
    let third = pool_size.div_ceil(3);
    let one = |list: &str| table(USER, list, pool_size);
    let any = |list: &str| format!("{}route = \"any\"\n", table(USER, list, third));
    let primary = |list: &str| format!("{}route = \"primary\"\n", one(list));
    let (servers, addresses) = (servers(cluster), addresses(cluster));
    let hosts = servers.join(", ");
    let apart = EACH.iter().zip(&servers).map(|(name, server)| table(name, server, third)).collect();
    [
        (ONE, TOGETHER, one(&servers[0])),
        (AGAIN, TOGETHER, one(&servers[0])),
        (ANY_ADDRESS, TOGETHER, any(&addresses)),
        (FIRST_ADDRESS, TOGETHER, primary(&addresses)),
        (ANY, TOGETHER, any(&hosts)),
        (PRIMARY, TOGETHER, primary(&hosts)),
        (APART, EACH, apart),
    ]
}

fn start_cluster(major: Major) -> Result<Cluster> {
    let builder = Postgres::builder()
        .version(major)
        .setting("listen_addresses", &ADDRESSES.join(","))
        .setting("max_connections", "300")
        .setting("shared_buffers", "256MB")
        .setting("max_wal_size", "4GB")
        .setting("autovacuum", "off");
    let cluster = Cluster::start(&builder, 2)?;
    cluster.primary().ensure_role(USER, USER)?;
    cluster.primary().ensure_database(USER, USER)?;
    Ok(cluster)
}

/// Three addresses of the primary.
fn addresses(cluster: &Cluster) -> String {
    ADDRESSES.map(|address| format!("\"{address}:{}\"", cluster.primary().port())).join(", ")
}

/// The hosts of the configuration: the primary first, then the replicas.
fn servers(cluster: &Cluster) -> Vec<String> {
    cluster.servers().map(|server| format!("\"127.0.0.1:{}\"", server.port())).collect()
}

/// A database table of the configuration, without its route.
fn table(name: &str, list: &str, size: u32) -> String {
    format!("[databases.{name}]\ndbname = \"{USER}\"\nsslmode = \"disable\"\nhosts = [{list}]\nsize = {size}\n")
}

fn start_gateway(binary: &Path, dir: &Path, name: &str, tables: &str) -> Result<RunningProgram> {
    let port = free_port()?;
    let io = if allows_io_uring() { Io::Uring } else { Io::Epoll }.name();
    let config = format!(
        "[listen]\naddresses = [\"127.0.0.1:{port}\"]\n[auth]\nmethod = \"trust\"\n{tables}[users.{USER}]\n\
         password = \"{USER}\"\n[log]\nconnections = false\n[runtime]\nio = \"{io}\"\n"
    );
    let stem = name.replace([' ', ','], "-");
    let file = dir.join(format!("{stem}.toml"));
    fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
    RunningProgram::start(Command::new(binary).arg("run").arg("-c").arg(&file), dir, &stem, port)
}
