//! `bench idle`: what a client costs that is logged in and does nothing. Plaintext, trust; resident memory of the proxy
//! over what it had when empty.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Pace;
use super::logins::log_in;
use super::process::{raise_open_files, resident_kib};
use super::report::{Limit, Metric, Report};
use super::subject::{Options, Role, Stage, Subject};

const KIB_EACH: Metric = Metric::new("memory", "KiB each");
const EMPTY: Metric = Metric::new("empty", "MiB");
const LOGINS: Metric = Metric::new("logins", "/s");

/// Memory settles: buffers of the login are given back, allocators tidy up.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    subjects: Options,
    /// How many clients
    #[arg(long, default_value_t = 10_000)]
    clients: u32,
}

pub(super) fn run(arguments: &Arguments, pace: Pace) -> Result<Report> {
    let clients = pace.scale(arguments.clients);
    let files = raise_open_files();
    ensure!(files > u64::from(clients) + 100, "{clients} clients need more than the {files} open files allowed here");
    let stage = Stage::set(&arguments.subjects)?;
    let mut report = Report::new("idle");
    stage.notes.iter().for_each(|note| report.note(note));
    report.note(format!("load: {clients} idle clients"));
    // A proxy that keeps a server connection per client, or is none, has no place here.
    let pooling = |subject: &&Subject| matches!(subject.role, Role::Measure | Role::Ours(_));
    for subject in stage.subjects.iter().filter(pooling) {
        measure(subject, clients, &mut report)?;
    }
    Ok(report)
}

/// Clients that come and go before the empty process is measured.
const WARM_UP: u32 = 200;

fn measure(subject: &Subject, clients: u32, report: &mut Report) -> Result<()> {
    let Some(pid) = subject.pid() else {
        return Ok(());
    };
    // The first clients bring what all share: the pool with its first server connection, the pages of code and of
    // buffers that a login touches.
    let first = log_in(subject.port)?;
    drop((0..WARM_UP).map(|_| log_in(subject.port)).collect::<Result<Vec<_>>>()?);
    thread::sleep(SETTLE);
    let empty = resident_kib(pid)?;
    let start = Instant::now();
    let idle = (0..clients).map(|_| log_in(subject.port)).collect::<Result<Vec<_>>>()?;
    let logins = f64::from(clients) / start.elapsed().as_secs_f64();
    thread::sleep(SETTLE);
    let each = (resident_kib(pid)? as f64 - empty as f64) / f64::from(clients);
    let case = format!("{} clients", idle.len());
    report.add(subject.name, &case, KIB_EACH, each, None);
    report.add(subject.name, &case, EMPTY, empty as f64 / 1024.0, None);
    report.add(subject.name, &case, LOGINS, logins, None);
    if let Role::Ours(_) = subject.role {
        report.add(subject.name, &case, KIB_EACH, each, Some(Limit::AtMost(2.0)));
    }
    drop((first, idle));
    Ok(())
}
