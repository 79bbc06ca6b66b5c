//! `bench hosts`: what a choice of servers costs the gateway. The same binary before the same primary and two replicas:
//! with one host, with three of which any may serve, and with three of which the primary does; with three addresses of that
//! one host, where nothing differs but the choice; and with each of the three as a database of its own, to which a third of
//! the clients connects: there is no choice, and what it costs more than one host is what three servers cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tidegate_sandbox::{Cluster, Major, Postgres};

use super::Pace;
use super::load::{self, Load, Yield};
use super::report::{Limit, Metric, Report};
use super::rounds::{self, in_turn};
use super::sample::{median, paired_ratio};
use super::subject::{Subject, USER, fill, major_or_newest};
use crate::gateway::{Profile, Running, build, free_port};
use crate::machine::{allows_io_uring, version_of};
use crate::tests::Io;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A Tidegate instead of a fresh release build
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// Clients
    #[arg(long, default_value_t = 32)]
    clients: u32,
    /// Server connections in all: a third of them for each server where there are three
    #[arg(long, default_value_t = 21)]
    pool_size: u32,
    /// Seconds per protocol, subject and round
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// How often everything is measured, in turn
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Major version of the Postgres behind; Debian's of that version is taken when it is installed
    #[arg(long, default_value_t = 15)]
    postgres: u8,
}

const ONE: &str = "1 host";
const ANY_ADDRESS: &str = "3 addresses of it, any";
const FIRST_ADDRESS: &str = "3 addresses of it, primary";
const ANY: &str = "3 hosts, any";
const PRIMARY: &str = "3 hosts, primary";
const APART: &str = "3 databases, a host each";

/// Clients are in three parts everywhere, as they have to be where there are three databases.
const TOGETHER: &[&str] = &[USER; 3];
const EACH: &[&str] = &["first", "second", "third"];

/// Every server listens to all of them.
const ADDRESSES: [&str; 3] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];

const TPS: Metric = Metric::new("tps", "");
const CPU: Metric = Metric::new("cpu", "us/tx");
const RATIO: Metric = Metric::new("cpu per tx / 1 host", "");

/// What the issue allows a choice to cost.
const AT_MOST: f64 = 1.05;

pub(super) fn run(arguments: &Arguments, pace: Pace) -> Result<Report> {
    let pgbench = load::pgbench()?;
    let cluster = start_cluster(major_or_newest(arguments.postgres)?)?;
    fill(cluster.primary(), &pgbench)?;
    (1..3).try_for_each(|index| cluster.catch_up(index))?;
    let binary = arguments.tidegate.clone().map_or_else(|| build(Profile::Release), Ok)?;
    // Inside the sandbox: whose configuration lies there may be adopted by it.
    let dir = tempfile::tempdir_in(cluster.primary().socket_dir()).context("create a folder")?;
    let third = arguments.pool_size.div_ceil(3);
    let start = |name, databases, tables: String| {
        Ok::<_, anyhow::Error>(Subject::gateway(name, databases, start_gateway(&binary, dir.path(), name, &tables)?))
    };
    let one = |list: &str| table(USER, list, arguments.pool_size);
    let any = |list: &str| format!("{}route = \"any\"\n", table(USER, list, third));
    let primary = |list: &str| format!("{}route = \"primary\"\n", one(list));
    let (servers, addresses) = (servers(&cluster), addresses(&cluster));
    let hosts = servers.join(", ");
    let apart = EACH.iter().zip(&servers).map(|(name, server)| table(name, server, third)).collect();
    let subjects = [
        start(ONE, TOGETHER, one(&servers[0]))?,
        start(ANY_ADDRESS, TOGETHER, any(&addresses))?,
        start(FIRST_ADDRESS, TOGETHER, primary(&addresses))?,
        start(ANY, TOGETHER, any(&hosts))?,
        start(PRIMARY, TOGETHER, primary(&hosts))?,
        start(APART, EACH, apart)?,
    ];
    subjects.iter().filter_map(Subject::pid).try_for_each(|pid| cluster.primary().adopt(pid))?;
    let (seconds, rounds) = match pace {
        Pace::Full => (arguments.seconds, arguments.rounds),
        Pace::Quick => (arguments.seconds.div_ceil(2), arguments.rounds.div_ceil(5)),
    };
    let mut report = Report::new("hosts");
    report.note(format!("tidegate: {}", version_of(&binary, "--version")));
    report.note(format!(
        "load: pgbench -S, scale 10, {} clients, {} server connections in all, {rounds} rounds of {seconds} s; medians; \
         ratios by round",
        arguments.clients, arguments.pool_size,
    ));
    report.note(rounds::NOTE);
    for protocol in ["simple", "prepared"] {
        let load = Load { protocol, clients: arguments.clients, seconds, script: None, logged_share: 0.01 };
        measure(&subjects, &pgbench, &load, rounds, &mut report)?;
    }
    Ok(report)
}

fn measure(subjects: &[Subject], pgbench: &Path, load: &Load, rounds: u32, report: &mut Report) -> Result<()> {
    for subject in subjects {
        load::run(pgbench, subject, &Load { seconds: 1, ..load.clone() })?;
    }
    let all: Vec<&Subject> = subjects.iter().collect();
    let yields = in_turn(&all, rounds, |round, subject| {
        let got = load::run(pgbench, subject, load)?;
        eprintln!("round {round}: {} {}: {:.0} tps", load.protocol, subject.name, got.tps);
        Ok(got)
    })?;
    let of = |index: usize, quantity: fn(&Yield) -> f64| yields[index].iter().map(quantity).collect::<Vec<_>>();
    for (index, subject) in subjects.iter().enumerate() {
        report.add(subject.name, load.protocol, TPS, median(&of(index, |got| got.tps)), None);
        report.add(subject.name, load.protocol, CPU, median(&of(index, Yield::cpu_us_per_transaction)), None);
    }
    for (index, subject) in subjects.iter().enumerate().skip(1) {
        let cpu = |index| of(index, Yield::cpu_us_per_transaction);
        let ratio = paired_ratio(&cpu(index), &cpu(0));
        let bar = (subject.name != APART).then_some(Limit::AtMost(AT_MOST));
        report.add(subject.name, load.protocol, RATIO, ratio, bar);
    }
    Ok(())
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

/// Where the primary is, three times over.
fn addresses(cluster: &Cluster) -> String {
    ADDRESSES.map(|address| format!("\"{address}:{}\"", cluster.primary().port())).join(", ")
}

/// All servers, the primary first, as the configuration writes them.
fn servers(cluster: &Cluster) -> Vec<String> {
    cluster.servers().map(|server| format!("\"127.0.0.1:{}\"", server.port())).collect()
}

/// A database of the configuration, without its route.
fn table(name: &str, list: &str, size: u32) -> String {
    format!("[databases.{name}]\ndbname = \"{USER}\"\nsslmode = \"disable\"\nhosts = [{list}]\nsize = {size}\n")
}

fn start_gateway(binary: &Path, dir: &Path, name: &str, tables: &str) -> Result<Running> {
    let port = free_port()?;
    let io = if allows_io_uring() { Io::Uring } else { Io::Epoll }.name();
    let config = format!(
        "[listen]\naddresses = [\"127.0.0.1:{port}\"]\n[auth]\nmethod = \"trust\"\n{tables}[users.{USER}]\n\
         password = \"{USER}\"\n[log]\nconnections = false\n[runtime]\nio = \"{io}\"\n"
    );
    let stem = name.replace([' ', ','], "-");
    let file = dir.join(format!("{stem}.toml"));
    fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
    Running::start(Command::new(binary).arg("run").arg("-c").arg(&file), dir, &stem, port)
}
